"""A generation whose description does not fit the table: no tier may guess, and none may take a delete for a row."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def _one_file(root: Path, pattern: str) -> Path:
    (found,) = (root / "t" / "_mem_wal").glob(pattern)
    return found


def test_a_generation_without_flags_is_damage_in_every_tier_and_no_delete_becomes_a_row(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, pa.table({"id": [0, 1], "v": ["w0", "w1"]}, schema=SCHEMA), primary_key="id")
    with table.writer(compaction=None) as writer:
        writer.delete([1])
        writer.put([{"id": 2, "v": "b"}])
    manifest = _one_file(tmp_path, "*/*_gen_1/_versions/*.manifest")
    manifest.write_bytes(manifest.read_bytes().replace(b"_tombstone", b"_tombstonf"))
    for call in (lambda: mw.open_table(uri).compact(), lambda: mw.open_table(uri).scan().to_table()):
        with pytest.raises(mw.CorruptDataError):
            call()
    assert [problem for problem in mw.open_table(uri).verify().problems if "_tombstone" in problem.what]
    assert lance.dataset(uri).count_rows() == 2


def test_a_field_that_was_dropped_inside_a_struct_is_not_called_damage(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    inner = pa.struct([("x", pa.int32()), ("y", pa.string())])
    table = mw.create_table(uri, pa.schema([("id", pa.int64()), ("s", inner)]), primary_key="id")
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 1, "s": {"x": 1, "y": "a"}}])
    lance.dataset(uri).drop_columns(["s.x"])
    assert mw.open_table(uri).verify().ok
    assert mw.open_table(uri).scan().to_table().to_pylist() == [{"id": 1, "s": {"y": "a"}}]
    mw.open_table(uri).compact()
    assert lance.dataset(uri).to_table().to_pylist() == [{"id": 1, "s": {"y": "a"}}]


def test_compaction_names_a_listed_generation_that_is_not_there(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, SCHEMA, primary_key="id")
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 2, "v": "b"}])
    _one_file(tmp_path, "*/*_gen_1/_versions/*.manifest").unlink()
    with pytest.raises(mw.CorruptDataError, match="not there"):
        mw.open_table(uri).compact()
