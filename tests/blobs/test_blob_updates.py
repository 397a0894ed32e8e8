"""Updates that do not name a blob keep it, from whichever tier it is in."""

from __future__ import annotations

from pathlib import Path

import pytest

import lance_memwal as mw
from tests.kit.blobs import blob_rows, blob_table, check_blobs

FIRST: dict[int, bytes | None] = {1: b"one" * 100, 2: None, 3: b""}


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_an_update_keeps_the_blob_of_its_row(tmp_path: Path, version: str) -> None:
    table = blob_table(tmp_path, FIRST, version)
    images = {**FIRST, 4: b"four", 5: b"five"}
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put(blob_rows({4: b"old", 5: b"five"}))
        writer.flush()
        writer.put(blob_rows({4: b"four"}))
        for round_number, step in enumerate(["tiers", "memtable", "SSTable", "base table"]):
            writer.update([{"id": key, "n": f"{step} {key}"} for key in images])
            check_blobs(table, images)
            assert {row["n"] for row in table.scan(["n"]).to_table().to_pylist()} == {f"{step} {k}" for k in images}
            if round_number:
                writer.flush()
            if round_number > 1:
                table.compact()
            check_blobs(table, images)


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_partial_and_conditional_writes_know_blobs(tmp_path: Path, version: str) -> None:
    table = blob_table(tmp_path, FIRST, version)
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put([{"id": 1, "n": "kept"}, {"id": 7, "n": "new"}], missing="keep")
        check_blobs(table, {**FIRST, 7: None})
        writer.put([{"id": 7, "image": b"seven"}, {"id": 7, "n": "after"}], missing="keep")  # one after the other
        check_blobs(table, {**FIRST, 7: b"seven"})
        assert table.get(7, columns=["n"]) == {"n": "after"}
        writer.update(where="image.size > 4", set={"n": "concat('large ', cast(id as string))"})
        check_blobs(table, {**FIRST, 7: b"seven"})
        assert table.get(7, columns=["n"]) == {"n": "large 7"}
        assert table.get(3, columns=["n"]) == {"n": "3"}
        writer.put(blob_rows({1: b"not this"}), if_absent=True)
        writer.put(blob_rows({1: b"but this"}), where="excluded.n <> n")
        check_blobs(table, {**FIRST, 1: b"but this", 7: b"seven"})
        writer.delete(where="image is null")
        check_blobs(table, {1: b"but this", 3: b"", 7: b"seven"}, absent=[2])
        with pytest.raises(mw.InvalidInputError, match="not compared"):
            writer.compare_and_set(1, {"id": 1, "image": b"but this", "n": "1"}, None)
        with pytest.raises(mw.InvalidInputError, match="no row in the table"):
            writer.update([{"id": 99, "n": "x"}])


def test_many_parts_of_one_write_see_each_other(tmp_path: Path) -> None:
    table = blob_table(tmp_path, FIRST)
    with table.writer(compaction=None, fsync=False) as writer:
        rows = [{"id": 1, "image": b"x", "n": "a"}, {"id": 1, "n": "b"}, {"id": 1, "image": b"y"}, {"id": 1, "n": "c"}]
        writer.update(rows)
        assert table.get(1, columns=["n"]) == {"n": "c"}
        check_blobs(table, {**FIRST, 1: b"y"})
