"""Updates that do not name a blob keep it, from whichever tier it is in."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance.blob import Blob, BlobType, blob_array

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
        with pytest.raises(mw.InvalidInputError, match="no row in the table"):
            writer.update([{"id": 99, "n": "x"}])


def test_many_parts_of_one_write_see_each_other(tmp_path: Path) -> None:
    table = blob_table(tmp_path, FIRST)
    with table.writer(compaction=None, fsync=False) as writer:
        rows = [{"id": 1, "image": b"x", "n": "a"}, {"id": 1, "n": "b"}, {"id": 1, "image": b"y"}, {"id": 1, "n": "c"}]
        writer.update(rows)
        assert table.get(1, columns=["n"]) == {"n": "c"}
        check_blobs(table, {**FIRST, 1: b"y"})


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("tier", ["memtable", "SSTable", "base table"])
def test_blobs_are_compared_by_their_bytes_or_not_at_all(tmp_path: Path, version: str, tier: str) -> None:
    table = blob_table(tmp_path, {}, version)
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put(blob_rows(FIRST))
        if tier != "memtable":
            writer.flush()
        if tier == "base table":
            table.compact()
        one = {"id": 1, "n": "1"}
        assert not writer.compare_and_set(1, {**one, "image": b"two" * 100}, {**one, "image": b"as long"})
        assert not writer.compare_and_set(1, {**one, "image": None}, None)
        assert not writer.compare_and_set(2, {"id": 2, "n": "2", "image": b""}, None), "null is not empty"
        assert writer.compare_and_set(1, {**one, "image": b"one" * 100}, {"n": "b", "image": b"new"})
        check_blobs(table, {**FIRST, 1: b"new"})
        assert not writer.compare_and_set(1, one, {"n": "c"}), "the other columns are compared"
        assert writer.compare_and_set(1, {"n": "b"}, {"n": "c"}), "a blob that is left out is not compared, and stays"
        assert table.get(1, columns=["n"]) == {"n": "c"}
        check_blobs(table, {**FIRST, 1: b"new"})
        assert writer.compare_and_set(2, {"n": "2", "image": None}, {"n": "d", "image": b"x"})
        assert writer.compare_and_set(9, None, {"n": "9"})
        assert writer.compare_and_set(3, {"n": "3", "image": b""}, None)
        check_blobs(table, {1: b"new", 2: b"x", 9: None}, absent=[3])
        with pytest.raises(mw.InvalidInputError, match="left out: 'n'"):
            writer.compare_and_set(1, {"image": b"new"}, None)


def test_an_update_refuses_references_as_a_put_does(tmp_path: Path) -> None:
    table = blob_table(tmp_path, FIRST, "2.2")
    there = pa.record_batch({"id": pa.array([1]), "image": blob_array([Blob.from_uri("file:///etc/hosts")])})
    with table.writer(compaction=None, fsync=False) as writer, pytest.raises(mw.InvalidInputError, match="reference"):
        writer.update(there)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"data": b"bytes", "uri": "file:///etc/hosts"},
        {"data": b"bytes", "uri": ""},
        {"data": b"bytes", "position": 0, "size": 2},
        {"data": b"bytes", "size": 2},
        {"position": 0, "size": 2},
    ],
    ids=str,
)
def test_what_no_file_can_hold_is_refused_before_it_is_acknowledged(tmp_path: Path, given: dict[str, Any]) -> None:
    table = blob_table(tmp_path, FIRST, "2.2")
    kind = BlobType()
    value = {field.name: given.get(field.name) for field in kind.storage_type}
    blobs = kind.wrap_array(pa.array([None, value], kind.storage_type))
    rows = pa.record_batch({"id": pa.array([7, 8]), "image": blobs, "n": pa.array(["7", "8"])})
    with table.writer(compaction=None, fsync=False) as writer:
        for write in (writer.put, writer.put_nowait, partial(writer.put, missing="keep"), writer.insert):
            with pytest.raises(mw.InvalidInputError, match="'image'"):
                write(rows)
        with pytest.raises(mw.InvalidInputError, match="'image'"):
            writer.update(rows, insert=True)
        writer.put(rows.slice(0, 1))  # a null is a blob like any other
        writer.flush()
        check_blobs(table, {**FIRST, 7: None}, absent=[8])
