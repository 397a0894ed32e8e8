"""Columns renamed, added and dropped on the base table between write and replay, or while other threads write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import CorruptDataError, UnsupportedFormatError
from lance_memwal.rows.adapt import RowAdapter
from lance_memwal.rows.schema import TableSchema
from lance_memwal.write.queue import EntryBuilder, WriteRows
from lance_memwal.write.request import Write, begin_on
from tests.kit.writers import SHARD, WAL, base_table, in_thread, key_field, open_writer, row_entries, rows, watched

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


def test_a_live_writer_looks_rows_up_with_the_columns_of_the_base_table_now(tmp_path: Path) -> None:
    base_table(tmp_path / "t", WIDE)
    with open_writer(tmp_path / "t", None) as writer:
        writer.put([ROW])
        lance.dataset(str(tmp_path / "t")).drop_columns(["size"])
        assert writer.get(1) == {"id": 1, "name": "n", "note": "x"}
        assert writer.scan().to_table().to_pylist() == writer.lookup([1]).to_pylist()
        assert writer.lookup([1], []).num_columns == 0


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
    assert writer.memtable_scanner().to_table().to_pylist() == [ROW]
    writer.close()


BASE = TableSchema.from_arrow(WIDE)


def test_columns_of_another_type_or_without_a_key_are_unsupported_and_never_cast() -> None:
    stored = pa.record_batch({"id": [1], "name": ["n"], "size": pa.array([5], pa.int64())})
    with pytest.raises(UnsupportedFormatError, match="'size' is stored as int64") as caught:
        RowAdapter(BASE).adapt(stored, None, position=12)
    assert caught.value.position == 12
    with pytest.raises(UnsupportedFormatError, match="'id' is missing"):
        RowAdapter(BASE).adapt(pa.record_batch({"name": ["n"]}), None)
    with pytest.raises(CorruptDataError, match="'id' holds a null"):
        RowAdapter(BASE).adapt(pa.record_batch({"id": pa.array([None], pa.int64())}), None)
    with pytest.raises(UnsupportedFormatError, match="'_tombstone' is stored as string"):
        RowAdapter(BASE).adapt(pa.record_batch({"id": [1], "_tombstone": ["yes"]}), None)


def test_tombstones_may_be_absent_nullable_and_anywhere() -> None:
    adapter = RowAdapter(BASE)
    assert adapter.adapt(pa.record_batch({"id": [1]}), None)[1] is None
    assert adapter.adapt(pa.record_batch({"_tombstone": [False], "id": [1]}), None)[1] is None
    batch, flags = adapter.adapt(pa.record_batch({"_tombstone": [None, True], "note": ["x", None], "id": [1, 2]}), None)
    assert flags.to_pylist() == [False, True]
    assert batch.schema.names == WIDE.names
    assert batch.to_pylist()[0] == {"id": 1, "name": None, "size": None, "note": "x"}


def test_a_writer_moves_to_new_columns_while_others_write(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t")
    stop = threading.Event()
    with table.shard_writer(SHARD, fsync=False) as writer:

        def work(thread: int) -> int:
            count = 0
            while not stop.is_set():
                writer.put(rows([1000 * thread + count], "x"), missing="null")
                count += 1
            return count

        threads = [in_thread(lambda t=t: work(t)) for t in range(3)]
        lance.dataset(table.uri).add_columns(pa.field("extra", pa.int64()))
        writer.evolve_schema()
        writer.put([{"id": 99_999, "v": "new", "extra": 5}])
        stop.set()
        counts = [thread.result() for thread in threads]
        assert writer.scan().count_rows() == sum(counts) + 1
        assert writer.get(99_999) == {"id": 99_999, "v": "new", "extra": 5}
    assert table.scan().count_rows() == sum(counts) + 1


def test_a_change_waits_for_a_write_that_is_under_way(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t")
    store, location = watched(tmp_path / "t")
    with mw.ShardWriter.open(location, shard_id=SHARD, fsync=False) as writer:
        held = store.hold("put_new", WAL)
        put = in_thread(lambda: writer.put(rows([1])))
        held.wait_reached()
        lance.dataset(table.uri).add_columns(pa.field("extra", pa.int64()))
        moving = in_thread(writer.evolve_schema)
        assert put.running
        assert moving.running
        held.open()
        put.result()
        moving.result()
        assert "extra" in writer.schema.names
        assert writer.get(1) == {"id": 1, "v": "a", "extra": None}


WRITES: dict[str, Callable[[mw.ShardWriter], object]] = {
    "put": lambda writer: writer.put([{"id": 2, "v": "x"}], missing="null"),
    "large put": lambda writer: writer.put(rows([2], "x" * 300_000), missing="null"),
    "buffered put": lambda writer: begin_on(writer, Write("put", [{"id": 2, "v": "x"}], "null"), drain=True).wait(),
    "delete": lambda writer: writer.delete([1]),
    "update": lambda writer: writer.update([{"id": 1, "v": "new"}]),
}


@pytest.mark.parametrize("verb", WRITES)
def test_rows_are_refitted_after_a_column_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    table = base_table(tmp_path / "t")
    with table.shard_writer(SHARD, fsync=False) as writer:
        writer.put([{"id": 1, "v": "old"}, {"id": 7, "v": "kept"}])
        lance.dataset(table.uri).add_columns(pa.field("extra", pa.int64()))
        encode, changed = EntryBuilder.encode_rows, list[str]()

        def change_columns_once(builder: EntryBuilder, fitted: WriteRows) -> bool:
            is_encoded = encode(builder, fitted)
            if not changed:
                changed.append(verb)
                in_thread(writer.evolve_schema).result()
            return is_encoded

        if verb != "put":  # the leader fits small puts, and keeps columns from changing in between
            monkeypatch.setattr(EntryBuilder, "encode_rows", change_columns_once)
        WRITES[verb](writer)
        writer.evolve_schema()
        writer.put([{"id": 9, "v": "last"}], missing="null")
        found = {row["id"]: row for row in writer.scan().to_table().to_pylist()}
    assert found[7]["v"] == "kept"
    assert found[7]["extra"] is None
    expected = {"delete": None, "update": "new"}.get(verb, "old")
    assert (found[1]["v"] if 1 in found else None) == expected
    assert (2 in found) == (verb not in ("delete", "update"))
    assert table.count_rows() == len(found)
    assert table.verify().ok
