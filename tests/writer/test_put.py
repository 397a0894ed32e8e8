"""put: what it refuses and returns, how a write lies in memtable and log, its size, and rows that are no longer the caller's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import InvalidInputError, WalAppender, WriteResult
from lance_memwal.log.tailer import WalTailer
from lance_memwal.write.once import OnceAppender
from tests.kit.writers import (
    KEYED,
    SECONDS,
    SHARD,
    WAL,
    base_table,
    entries,
    flushed,
    in_thread,
    key_field,
    open_writer,
    positions_of,
    put_undrained,
    row_entries,
    rows,
    scanned,
    watched,
)


def test_an_empty_batch_list_is_refused(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        for nothing in (
            [],
            (),
            pa.table({"id": pa.array([], pa.int64())}),
            pa.RecordBatchReader.from_batches(KEYED, []),
        ):
            with pytest.raises(InvalidInputError, match="empty batch list"):
                writer.put(nothing)
        assert writer.stats().put_count == 0
        assert entries(tmp_path) == []


def test_an_empty_batch_is_refused_with_its_number(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        with pytest.raises(InvalidInputError, match="Batch 0 is empty"):
            writer.put(rows([]))
        with pytest.raises(InvalidInputError, match="Batch 1 is empty"):
            writer.put([rows([1]), rows([]), rows([2])])
        assert scanned(writer) == {}


def test_put_returns_the_range_of_its_batch_positions(tmp_path: Path) -> None:
    with open_writer(tmp_path, max_memtable_batches=4) as writer:
        assert positions_of(writer.put(rows([1]))) == range(1)
        assert positions_of(writer.put([rows([2]), rows([3])])) == range(1, 3)
        assert positions_of(writer.put([rows([4]), rows([5])])) == range(3, 5)  # in the next memtable
        assert positions_of(writer.delete([1])) == range(5, 6)
        assert not writer.put(rows([6])).skipped


def _many(*, twice: bool = False) -> list[pa.RecordBatch]:
    return [rows([k, k] if twice else [k]) for k in range(23)]


@pytest.mark.parametrize(
    ("put", "settings"),
    [
        (lambda w: w.put(_many()), {}),
        (lambda w: w.put(_many()), {"durable_write": False}),
        (lambda w: w.put(_many()), {"enable_memtable": False}),
        (lambda w: w.put(_many()), {"max_entry_bytes": 1000}),  # published as a generation of its own
        (lambda w: w.put(pa.Table.from_batches(_many()), txn=("app", 1)), {}),
        (lambda w: w.put(iter(_many()), missing="keep"), {}),
        (lambda w: w.put(_many(), if_absent=True), {}),
        (lambda w: w.put(_many(), if_absent=True), {"max_entry_bytes": 1000}),
        (lambda w: w.put(_many(twice=True), where="excluded.v >= v"), {}),
        (lambda w: w.insert(tuple(_many())), {}),
        (lambda w: w.put_nowait(_many()).wait(), {}),
    ],
)
def test_batch_positions_count_the_batches_that_were_given(
    tmp_path: Path, put: Callable[[mw.ShardWriter], WriteResult], settings: dict[str, Any]
) -> None:
    with open_writer(tmp_path, max_memtable_batches=5, **settings) as writer:
        writer.put(rows([100]))
        assert positions_of(put(writer)) == range(1, 24)
        if writer.config.enable_memtable:
            assert writer.memtable_stats().max_buffered_batch_position == 23
            assert {row["id"] for row in writer.scan().to_table().to_pylist()} == {*range(23), 100}
        assert positions_of(writer.put([rows([101]), rows([102])])) == range(24, 26)
    assert all(len(entry.batches) <= 5 for entry in row_entries(tmp_path))


def test_one_entry_holds_all_batches_of_a_put(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put([rows([1]), rows([2, 3]), rows([4])])
        writer.put(rows([5]))
        assert [[b.num_rows for b in e.batches] for e in row_entries(tmp_path)] == [[1, 2, 1], [1]]


def test_readers_see_all_batches_of_a_put_or_none(tmp_path: Path) -> None:
    stop = threading.Event()
    with open_writer(tmp_path, max_memtable_rows=10_000) as writer:
        writer.put([rows([k], "0") for k in range(8)])

        def read() -> int:
            reads = 0
            while not stop.is_set():
                values = set(scanned(writer).values())
                assert len(values) == 1, f"a reader saw a part of a put: {values}"
                reads += 1
            return reads

        readers = [in_thread(read) for _ in range(2)]
        for version in range(1, 150):
            writer.put([rows([k], str(version)) for k in range(8)])
        stop.set()
        assert min(reader.result() for reader in readers) > 0
        assert set(scanned(writer).values()) == {"149"}


@pytest.mark.parametrize("durable", [True, False])
def test_a_large_put_is_taken_whole(tmp_path: Path, durable: bool) -> None:
    with open_writer(tmp_path, max_memtable_rows=10, durable_write=durable) as writer:
        writer.put([rows(range(70)), rows(range(70, 100))])
        writer.wait_for_flush_drain(SECONDS)
        assert [len(found) for found in flushed(tmp_path).values()] == [100]
        assert writer.memtable_stats().row_count == 0


@pytest.mark.parametrize("limit", [{"max_memtable_rows": 10}, {"max_memtable_batches": 3}], ids=["rows", "batches"])
def test_put_that_would_pass_a_limit_freezes_first(tmp_path: Path, limit: dict[str, int]) -> None:
    with open_writer(tmp_path, **limit) as writer:
        writer.put([rows(range(3)), rows(range(3, 6))])
        writer.put([rows(range(100, 103)), rows(range(103, 106))])
        writer.wait_for_flush_drain(SECONDS)
        assert [len(found) for found in flushed(tmp_path).values()] == [6]
        stats = writer.memtable_stats()
        assert (stats.row_count, stats.batch_count, stats.generation) == (6, 2, 2)
        assert [e.generation for e in row_entries(tmp_path)] == [1, 2]


def test_a_memtable_freezes_when_it_reaches_rows_batches_or_bytes(tmp_path: Path) -> None:
    for name, settings in {
        "rows": {"max_memtable_rows": 4},
        "batches": {"max_memtable_batches": 2},
        "size": {"max_memtable_size": 1500},
    }.items():
        with open_writer(tmp_path / name, **settings) as writer:
            writer.put(rows([1, 2]))
            assert writer.memtable_stats().row_count == 2, name
            writer.put(rows([3, 4]))
            assert writer.memtable_stats().row_count == 0, name
            writer.wait_for_flush_drain(SECONDS)
            assert list(flushed(tmp_path / name)) == [1], name


def test_an_entry_never_holds_more_than_the_batch_limit(tmp_path: Path) -> None:
    with open_writer(tmp_path, max_memtable_batches=5) as writer:
        writer.put([rows([k]) for k in range(23)])
        writer.put([rows([k]) for k in range(100, 105)])
        assert [len(e.batches) for e in row_entries(tmp_path)] == [1, 5]  # combined above the limit, kept below it
        writer.close()
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {}
        found = {row["id"] for rows_of in flushed(tmp_path).values() for row in rows_of}
        assert found == {*range(23), *range(100, 105)}


def test_a_group_of_puts_never_passes_the_batch_limit_of_an_entry(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, max_memtable_batches=4)
    first = store.hold("put_new", WAL, 1)
    putting = [in_thread(lambda: writer.put(rows([0])))]
    first.wait_reached()
    acks = [writer.put_nowait(rows([k])) for k in range(1, 12)]
    first.open()
    for ack in acks:
        ack.wait()
    putting[0].result()
    counts = [(e.generation, e.num_rows) for e in row_entries(tmp_path)]  # of one row each
    assert counts == [(1, 1), (1, 3), (2, 4), (3, 4)]
    writer.close()


def test_a_durable_put_never_waits_for_a_timer(tmp_path: Path) -> None:
    with open_writer(tmp_path, max_wal_flush_interval_ms=60_000, max_wal_buffer_size=1 << 30) as writer:
        done = in_thread(lambda: writer.put(rows([1])))
        done.result(timeout=10)
        assert len(row_entries(tmp_path)) == 1


def test_a_durable_put_returns_only_after_its_entry_is_on_storage(tmp_path: Path) -> None:
    """Lesson 4: the acknowledgement did not wait at all."""
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        held = store.hold("put_new", WAL)
        put = in_thread(lambda: writer.put(rows([1])))
        held.wait_reached()
        assert put.running
        assert entries(tmp_path) == []
        held.open()
        put.result()
        assert len(entries(tmp_path)) == 1


def test_a_put_in_a_new_memtable_is_not_acknowledged_by_the_previous_watermark(tmp_path: Path) -> None:
    """Lesson 5: positions inside a memtable start again at 0, the durable watermark does not."""
    store, location = watched(tmp_path)
    with open_writer(location, max_memtable_batches=3) as writer:
        for k in range(3):
            writer.put(rows([k]))  # the third one freezes the memtable
        held = store.hold("put_new", WAL)
        put = in_thread(lambda: writer.put(rows([10])))
        held.wait_reached()
        assert put.running
        ack = writer.put_nowait(rows([11]))
        assert not ack.durable
        held.open()
        put.result()
        ack.wait()
        assert [e.generation for e in row_entries(tmp_path)] == [1, 1, 1, 2, 2]


def test_put_after_close_is_refused_with_a_clear_error(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.close()
    for call in (lambda: writer.put(rows([1])), lambda: writer.delete([1]), lambda: writer.put_nowait(rows([1]))):
        with pytest.raises(RuntimeError, match="is closed; open a new one"):
            call()


def test_a_refused_put_leaves_nothing_behind(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1]))
        with pytest.raises(InvalidInputError):
            writer.put([rows([2]), pa.record_batch({"id": [3], "nope": [1]})])
        writer.put(rows([4]))
        assert scanned(writer) == {1: "a", 4: "a"}
        assert len(row_entries(tmp_path)) == 2


def test_a_put_returns_from_memory_and_is_visible_at_once(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, durable_write=False, max_wal_flush_interval_ms=None)
    store.hold("put_new", WAL)
    writer.put(rows([1]))
    assert scanned(writer) == {1: "a"}
    assert entries(tmp_path) == []
    writer.abort()


def test_time_trigger_drains_an_idle_writer_and_shares_entries(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, durable_write=False, max_wal_flush_interval_ms=300) as writer:
        for k in range(50):
            writer.put(rows([k]))
        store.wait_for("put_new", WAL, 1)
        assert len(row_entries(tmp_path)) < 10
        before = store.count("put_new", WAL)
        writer.put(rows([50]))
        store.wait_for("put_new", WAL, before + 1)
        assert sum(e.num_rows for e in row_entries(tmp_path)) == 51


def test_without_triggers_nothing_is_drained_until_a_caller_waits(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, durable_write=False, max_wal_flush_interval_ms=None, max_wal_buffer_size=0)
    for k in range(100):
        writer.put(rows(range(100 * k, 100 * k + 100)))
    assert not writer._shard.commits.take_due(0.0, None)
    assert store.count("put_new", WAL) == 0
    writer.put_nowait(rows([10_000])).wait()
    assert store.count("put_new", WAL) == 1
    writer.abort()


def test_size_trigger_fires_after_every_drain_and_splits_no_put(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, durable_write=False, max_wal_flush_interval_ms=None, max_wal_buffer_size=1) as writer:
        for k in range(5):
            writer.put([rows(range(1000)), rows(range(1000, 2000))])
            store.wait_for("put_new", WAL, k + 1)
        assert [e.num_rows for e in row_entries(tmp_path)] == [2000] * 5


def test_the_size_trigger_fires_for_what_arrived_during_a_drain(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    size = rows(range(100)).get_total_buffer_size()
    with open_writer(location, durable_write=False, max_wal_flush_interval_ms=None, max_wal_buffer_size=size) as writer:
        held = store.hold("put_new", WAL, 1)
        writer.put(rows(range(100)))
        held.wait_reached()
        writer.put(rows(range(100, 200)))
        held.open()
        store.wait_for("put_new", WAL, 2)
        assert sum(e.num_rows for e in row_entries(tmp_path)) == 200


def test_a_generation_is_flushed_only_after_every_wal_put_of_it_succeeded(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, durable_write=False, max_wal_flush_interval_ms=None, max_memtable_rows=4)
    held = store.hold("put_new", WAL)
    writer.put(rows(range(4)))  # freezes
    held.wait_reached()  # the flush leads the commit of its own entries
    assert writer.memtable_stats().frozen_count == 1
    assert flushed(tmp_path) == {}
    held.open()
    writer.wait_for_flush_drain()
    assert len(flushed(tmp_path)[1]) == 4
    assert writer.manifest().replay_after_wal_entry_position == 1
    writer.close()


def test_rows_that_are_in_no_entry_are_lost_when_the_writer_is_dropped_and_no_others(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, durable_write=False, max_wal_flush_interval_ms=None, max_wal_buffer_size=0)
    writer.put_nowait(rows([1])).wait()
    writer.put(rows([2]))
    writer.abort()
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {1: "a"}


def test_close_drains_what_no_trigger_did(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, durable_write=False, max_wal_flush_interval_ms=None)
    writer.put(rows([1]))
    in_thread(writer.close).result()
    assert [row["id"] for row in flushed(tmp_path)[1]] == [1]
    assert len(row_entries(tmp_path)) == 1


SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.float64())])


def _frame() -> tuple[Any, Callable[[], None]]:
    frame = pd.DataFrame({"id": np.arange(3), "v": np.zeros(3)})

    def change() -> None:
        frame.loc[:, "id"] += 10

    return frame, change


def _numbers() -> tuple[Any, Callable[[], None]]:
    numbers = {"id": np.arange(3), "v": np.zeros(3)}

    def change() -> None:
        numbers["id"] += 10

    return numbers, change


@pytest.mark.parametrize("make", [_frame, _numbers], ids=["pandas", "numpy"])
def test_rows_are_copies_of_numpy_input(tmp_path: Path, make: Callable[[], tuple[Any, Callable[[], None]]]) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    given, change = make()
    with table.writer(fsync=False) as writer:
        writer.put(given)
        change()
        assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 2]
    assert sorted(mw.open_table(table.uri).to_arrow()["id"].to_pylist()) == [0, 1, 2]


def test_a_buffer_that_is_used_again_does_not_reach_the_log(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id")
    sent = pa.record_batch([pa.array([1, 2, 3]), pa.array(["hello"] * 3)], schema=schema).serialize().to_pybytes()
    received = bytearray(sent)
    writer = table.writer(fsync=False)
    ack = put_undrained(writer, pa.ipc.read_record_batch(pa.py_buffer(received), schema))
    received[:] = b"\xff" * len(sent)
    ack.wait()
    writer.abort()
    assert mw.open_table(table.uri).to_arrow()["v"].to_pylist() == ["hello"] * 3


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
