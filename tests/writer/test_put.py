"""put: what it refuses, what it returns, how a write lies in memtable and log."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import InvalidInputError
from tests.kit.writers import (
    KEYED,
    SECONDS,
    WAL,
    contents,
    entries,
    flushed,
    in_thread,
    open_writer,
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
        assert writer.put(rows([1])).batch_positions == range(1)
        assert writer.put([rows([2]), rows([3])]).batch_positions == range(1, 3)
        assert writer.put([rows([4]), rows([5])]).batch_positions == range(3, 5)  # in the next memtable
        assert writer.delete([1]).batch_positions == range(5, 6)
        assert not writer.put(rows([6])).skipped


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


def test_a_put_that_would_pass_the_row_limit_freezes_first_and_goes_whole_into_the_next(tmp_path: Path) -> None:
    with open_writer(tmp_path, max_memtable_rows=10) as writer:
        writer.put(rows(range(6)))
        writer.put(rows(range(100, 106)))
        writer.wait_for_flush_drain(SECONDS)
        assert [len(found) for found in flushed(tmp_path).values()] == [6]
        assert (writer.memtable_stats().row_count, writer.memtable_stats().generation) == (6, 2)
        assert [e.generation for e in row_entries(tmp_path)] == [1, 2]


def test_a_put_that_would_pass_the_batch_limit_freezes_first(tmp_path: Path) -> None:
    with open_writer(tmp_path, max_memtable_batches=3) as writer:
        writer.put([rows([1]), rows([2])])
        writer.put([rows([3]), rows([4])])
        writer.wait_for_flush_drain(SECONDS)
        assert [len(found) for found in flushed(tmp_path).values()] == [2]
        assert writer.memtable_stats().batch_count == 2


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


def test_duplicate_keys_in_one_batch_resolve_to_the_last(tmp_path: Path) -> None:
    batch = pa.record_batch([pa.array([1, 2, 1, 1]), pa.array(["a", "b", "c", "d"])], schema=KEYED)
    with open_writer(tmp_path) as writer:
        writer.put(batch)
        assert scanned(writer) == {1: "d", 2: "b"}
    live = {row["id"]: row["v"] for row in flushed(tmp_path)[1]}
    assert live == {1: "d", 2: "b"}


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


def test_a_sharded_table_refuses_rows_of_another_shard(tmp_path: Path) -> None:
    spec = mw.Bucket("id", 8)
    table = mw.create_table(str(tmp_path / "t"), KEYED, sharding=spec)
    home = mw.shard_id_for(spec, 3)
    [mine] = [batch for shard, batch in mw.route(rows(range(50)), spec, KEYED) if shard == home]
    with table.shard_writer(home) as writer:
        writer.put(mine)
        with pytest.raises(InvalidInputError):
            writer.put(rows(range(50)))
        with pytest.raises(InvalidInputError):
            writer.delete(list(range(50)))
        assert contents(writer.scan().to_table()) == contents(pa.Table.from_batches([mine]))
