"""The size of a write is what it adds to an entry: shared buffers count each time, framing counts, slices count as slices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_memwal import InvalidInputError, WalAppender
from lance_memwal.log.tailer import WalTailer
from lance_memwal.write.once import OnceAppender
from tests.kit.writers import SHARD, WAL, base_table, in_thread, key_field, open_writer, row_entries, rows, watched

KIB = 1024
BLOB = pa.array([b"x" * (64 * KIB)], pa.binary())
KEY = pa.array([1], pa.int64())


def shared_columns(count: int = 8) -> pa.RecordBatch:
    """One buffer, under many names."""
    schema = pa.schema([key_field(), *(pa.field(f"c{n}", pa.binary()) for n in range(count))])
    return pa.record_batch([KEY, *[BLOB] * count], schema=schema)


def shared_children(count: int = 8) -> pa.RecordBatch:
    struct = pa.StructArray.from_arrays([BLOB] * count, [f"c{n}" for n in range(count)])
    return pa.record_batch([KEY, struct], schema=pa.schema([key_field(), pa.field("s", struct.type)]))


def shared_values(count: int = 8) -> pa.RecordBatch:
    """The values of a dictionary that several columns share."""
    column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), BLOB)
    schema = pa.schema([key_field(), *(pa.field(f"c{n}", column.type) for n in range(count))])
    return pa.record_batch([KEY, *[column] * count], schema=schema)


SHARED = {"columns": shared_columns(), "children": shared_children(), "dictionaries": shared_values()}


@pytest.mark.repro("writer-12")
@pytest.mark.parametrize("kind", SHARED)
def test_what_shares_a_buffer_is_counted_as_often_as_it_is_written(kind: str, tmp_path: Path) -> None:
    batch = SHARED[kind]
    assert batch.get_total_buffer_size() < 200 * KIB
    base_table(tmp_path, batch.schema)
    with open_writer(tmp_path, schema=batch.schema, max_entry_bytes=256 * KIB) as writer:
        writer.put(batch)
        assert [sstable.generation for sstable in writer.manifest().sstables] == [1], "published, not in the log"
        writer.put(batch.slice(0, 1))
        assert len(writer.manifest().sstables) == 2
    assert row_entries(tmp_path) == []


@pytest.mark.repro("writer-12")
@pytest.mark.parametrize("kind", SHARED)
def test_what_is_too_large_for_a_writer_without_memtables_fails_its_own_put_alone(kind: str, tmp_path: Path) -> None:
    batch = SHARED[kind]
    base_table(tmp_path, batch.schema)
    small = pa.RecordBatch.from_arrays(
        [KEY, *(pa.nulls(1, field.type) for field in list(batch.schema)[1:])], schema=batch.schema
    )
    options: dict[str, Any] = {"enable_memtable": False, "max_entry_bytes": 256 * KIB}
    with open_writer(tmp_path, schema=batch.schema, **options) as writer:
        with pytest.raises(InvalidInputError, match="max_entry_bytes"):
            writer.put(batch)
        with pytest.raises(InvalidInputError, match="max_entry_bytes"):
            writer.put_nowait(batch)
        writer.put(small)
    assert [entry.num_rows for entry in row_entries(tmp_path)] == [1]


def test_a_put_that_fails_does_not_fail_those_that_wait_with_it(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    options: dict[str, Any] = {"enable_memtable": False, "max_entry_bytes": 8 * KIB}
    with open_writer(location, **options) as writer:
        held = store.hold("put_new", WAL, 1)
        first = in_thread(lambda: writer.put(rows([1])))
        held.wait_reached()
        others = [in_thread(lambda n=n: writer.put(rows([n]))) for n in (2, 3)]
        large = in_thread(lambda: writer.put(rows(range(100), "x" * 200)))
        held.open()
        for put in (first, *others):
            put.result()
        with pytest.raises(InvalidInputError, match="max_entry_bytes"):
            large.result()
        writer.put(rows([4]))
    assert sum(entry.num_rows for entry in row_entries(tmp_path)) == 4


@pytest.mark.repro("writer-19")
def test_the_framing_of_wide_rows_counts(tmp_path: Path) -> None:
    """A row of 500 bytes in 500 columns is some 28 KB in an entry; what is pending together must not pass the limit."""
    columns = 500
    schema = pa.schema([key_field(), *(pa.field(f"c{n}", pa.int8()) for n in range(columns))])
    value = pa.array([1], pa.int8())
    base_table(tmp_path, schema)
    store, location = watched(tmp_path)
    limit = 128 * KIB
    with open_writer(location, schema=schema, max_entry_bytes=limit) as writer:
        held = store.hold("put_new", WAL, 1)
        puts = [pa.record_batch([pa.array([n], pa.int64()), *[value] * columns], schema=schema) for n in range(20)]
        acks = [writer.put_nowait(batch) for batch in puts]
        held.wait_reached()
        held.open()
        for ack in acks:
            ack.wait()
    entries = row_entries(tmp_path)
    assert sum(entry.num_rows for entry in entries) == 20
    schema_bytes = 200 * columns
    assert max(entry.size_bytes for entry in entries) <= limit + schema_bytes
    assert len(entries) > 3


def test_a_slice_counts_as_a_slice(tmp_path: Path) -> None:
    base_table(tmp_path)
    parent = rows(range(10_000), "x" * 100)
    with open_writer(tmp_path, max_entry_bytes=64 * KIB) as writer:
        writer.put(parent.slice(17, 3))
        assert writer.manifest().sstables == ()
    assert [entry.num_rows for entry in row_entries(tmp_path)] == [3]


def test_an_appender_refuses_what_is_too_large_and_goes_on(tmp_path: Path) -> None:
    batch = shared_columns()
    base_table(tmp_path, batch.schema, writer_defaults={"max_entry_bytes": 256 * KIB})
    appender = WalAppender.open(str(tmp_path), SHARD, fsync=False)
    with pytest.raises(InvalidInputError, match="too many for one WAL entry"):
        appender.append(batch)
    assert appender.append(pa.table({"id": [1]}), missing="null") == 1


def test_an_append_with_a_claim_becomes_a_generation_where_it_is_too_large(tmp_path: Path) -> None:
    batch = shared_columns()
    base_table(tmp_path, batch.schema)
    once = OnceAppender(str(tmp_path), max_entry_bytes=256 * KIB)
    assert once.append(once.claim(SHARD), [batch]).generation == 1
    found = WalTailer(str(tmp_path), SHARD).read_entry(1)
    assert found is not None
    assert found.batches == ()
