"""Columns renamed, added and dropped on the base table between the write and the replay: rows are matched by field id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import CorruptDataError, UnsupportedFormatError
from lance_memwal.rows.adapt import RowAdapter
from lance_memwal.rows.schema import TableSchema
from tests.kit.writers import SHARD, base_table, key_field, open_writer, row_entries

WIDE = pa.schema(
    [key_field(), pa.field("name", pa.string()), pa.field("size", pa.int32()), pa.field("note", pa.string())]
)
ROW = {"id": 1, "name": "n", "size": 5, "note": "x"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A table whose shard holds one unflushed row and one tombstone."""
    base_table(tmp_path / "t", WIDE)
    writer = open_writer(tmp_path / "t", None)
    writer.put([ROW, {"id": 2, "name": "gone"}], missing="null")
    writer.delete([2])
    writer.abort()
    return tmp_path / "t"


def replayed(root: Path) -> list[dict[str, Any]]:
    """The rows after replay, the same as after a flush."""
    writer = open_writer(root, None)
    rows: list[dict[str, Any]] = writer.scan().to_table().to_pylist()
    writer.close()
    assert mw.open_table(str(root)).scan().to_table().to_pylist() == rows
    return rows


def test_a_renamed_column_keeps_its_values(root: Path) -> None:
    """Lesson 30: generations matched by name read wrong columns."""
    lance.dataset(str(root)).alter_columns({"path": "name", "name": "title"})
    assert replayed(root) == [{"id": 1, "title": "n", "size": 5, "note": "x"}]


def test_an_added_column_reads_as_null(root: Path) -> None:
    lance.dataset(str(root)).add_columns(pa.field("extra", pa.float64()))
    assert replayed(root) == [{**ROW, "extra": None}]


def test_a_dropped_column_is_ignored(root: Path) -> None:
    lance.dataset(str(root)).drop_columns(["size"])
    assert replayed(root) == [{"id": 1, "name": "n", "note": "x"}]


def test_a_live_writer_looks_rows_up_with_the_columns_of_the_base_table_now(tmp_path: Path) -> None:
    base_table(tmp_path / "t", WIDE)
    with open_writer(tmp_path / "t", None) as writer:
        writer.put([ROW])
        lance.dataset(str(tmp_path / "t")).drop_columns(["size"])
        assert writer.get(1) == {"id": 1, "name": "n", "note": "x"}
        assert writer.lsm_scan().to_table().to_pylist() == writer.lookup([1]).to_pylist()
        assert writer.lookup([1], []).num_columns == 0


def test_a_column_dropped_and_added_again_under_its_name_does_not_get_the_old_values(root: Path) -> None:
    lance.dataset(str(root)).drop_columns(["size"])
    lance.dataset(str(root)).add_columns(pa.field("size", pa.int32()))
    assert replayed(root) == [{"id": 1, "name": "n", "note": "x", "size": None}]


def test_two_columns_that_swap_their_names_keep_their_values(root: Path) -> None:
    for path, name in (("name", "tmp"), ("note", "name"), ("tmp", "note")):
        lance.dataset(str(root)).alter_columns({"path": path, "name": name})
    assert replayed(root) == [{"id": 1, "note": "n", "size": 5, "name": "x"}]


def test_new_entries_carry_the_ids_of_the_new_schema(root: Path) -> None:
    lance.dataset(str(root)).drop_columns(["name"])
    lance.dataset(str(root)).add_columns(pa.field("extra", pa.int64()))
    with open_writer(root, None) as writer:
        writer.put([{"id": 7, "extra": 9}], missing="null")
    schema = row_entries(root)[-1].schema
    assert schema is not None
    ids = {f.name: (f.metadata or {}).get(b"lance:field_id") for f in schema}
    fields = {f.name(): str(f.id()).encode() for f in lance.dataset(str(root)).lance_schema.fields()}
    assert ids == {**fields, "_tombstone": None}


def test_an_entry_without_ids_is_matched_by_name(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "t", WIDE, shard_id=SHARD)  # no base table yet: nobody has ids
    writer.put([ROW])
    writer.abort()
    reordered = pa.schema([WIDE.field(name) for name in ("note", "id", "size", "name")])
    lance.write_dataset(reordered.empty_table(), str(tmp_path / "t"))
    mw.enable(str(tmp_path / "t"), sharding=mw.Manual(), allow_keys_across_shards=True, adopt_shards=True)
    writer = open_writer(tmp_path / "t", None)
    assert writer.scan().to_table().to_pylist() == [ROW]
    writer.close()


BASE = TableSchema.from_arrow(WIDE)


def test_a_type_that_differs_from_the_tables_is_not_understood_and_never_a_cast() -> None:
    stored = pa.record_batch({"id": [1], "name": ["n"], "size": pa.array([5], pa.int64())})
    with pytest.raises(UnsupportedFormatError, match="'size' is stored as int64") as caught:
        RowAdapter(BASE).adapt(stored, position=12)
    assert caught.value.position == 12


def test_a_missing_key_column_is_not_understood_and_a_null_key_is_corruption() -> None:
    with pytest.raises(UnsupportedFormatError, match="'id' is missing"):
        RowAdapter(BASE).adapt(pa.record_batch({"name": ["n"]}))
    with pytest.raises(CorruptDataError, match="'id' holds a null"):
        RowAdapter(BASE).adapt(pa.record_batch({"id": pa.array([None], pa.int64())}))


def test_a_tombstone_column_of_another_type_is_not_understood() -> None:
    with pytest.raises(UnsupportedFormatError, match="'_tombstone' is stored as string"):
        RowAdapter(BASE).adapt(pa.record_batch({"id": [1], "_tombstone": ["yes"]}))


def test_tombstones_may_be_absent_nullable_and_anywhere() -> None:
    adapter = RowAdapter(BASE)
    assert adapter.adapt(pa.record_batch({"id": [1]}))[1] is None
    assert adapter.adapt(pa.record_batch({"_tombstone": [False], "id": [1]}))[1] is None
    batch, flags = adapter.adapt(pa.record_batch({"_tombstone": [None, True], "note": ["x", None], "id": [1, 2]}))
    assert flags.to_pylist() == [False, True]
    assert batch.schema.names == WIDE.names
    assert batch.to_pylist()[0] == {"id": 1, "name": None, "size": None, "note": "x"}
