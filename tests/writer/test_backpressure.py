"""Backpressure: a put waits while the bytes held reach the limit; it is counted, warned of, and never fails for it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from lance_memwal import ShardWriter
from tests.kit.writers import (
    BLOOM,
    SECONDS,
    WAL,
    everything,
    in_thread,
    open_writer,
    rows,
    scanned,
    wait_for,
    watched,
)

LIMIT = {"max_unflushed_memtable_bytes": 5000}


def wait_for_waits(writer: ShardWriter, count: int) -> None:
    """Return once `count` puts have begun to wait; nothing is notified of that, so look."""
    wait_for(lambda: writer.backpressure_stats().total_count >= count)


def test_a_put_over_budget_waits_for_a_flush_and_is_counted_once(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, **LIMIT) as writer:
        held = store.hold("put", BLOOM)
        writer.put(rows(range(500)))
        writer.force_seal_active()
        held.wait_reached()
        waiting = [in_thread(lambda k=k: writer.put(rows([1000 + k]))) for k in range(3)]
        wait_for_waits(writer, 3)
        assert all(put.running for put in waiting)
        assert 1000 not in scanned(writer)
        held.open()
        for put in waiting:
            put.result()
        stats = writer.backpressure_stats()
        assert stats.total_count == 3
        assert stats.total_wait_ms > 0
        assert len(everything(writer, tmp_path)) == 503


def test_puts_below_the_limit_do_not_wait(tmp_path: Path) -> None:
    with open_writer(tmp_path, max_unflushed_memtable_bytes=1_000_000) as writer:
        for k in range(20):
            writer.put(rows([k]))
        assert writer.backpressure_stats().total_count == 0
        assert writer.backpressure_stats().total_wait_ms == 0


def test_a_put_over_budget_with_nothing_frozen_freezes_the_active_memtable(tmp_path: Path) -> None:
    with open_writer(tmp_path, **LIMIT) as writer:
        writer.put(rows(range(500)))  # taken whole, now the limit is reached
        assert writer.memtable_stats().frozen_count == 0
        writer.put(rows([1000]))
        assert writer.backpressure_stats().total_count == 1
        assert scanned(writer) == {1000: "a"}
        assert len(everything(writer, tmp_path)) == 501


def test_a_put_larger_than_the_whole_budget_is_taken(tmp_path: Path) -> None:
    with open_writer(tmp_path, max_unflushed_memtable_bytes=1) as writer:
        for k in range(5):
            writer.put(rows(range(100 * k, 100 * k + 100)))
        assert len(everything(writer, tmp_path)) == 500
        assert writer.backpressure_stats().total_count == 4


def test_a_put_that_waits_for_room_again_and_again_is_counted_once(tmp_path: Path) -> None:
    with open_writer(tmp_path, max_unflushed_memtable_bytes=1) as writer:
        running = [in_thread(lambda n=n: [writer.put(rows([10 * n + k])) for k in range(5)]) for n in range(8)]
        for puts in running:
            puts.result()
        assert writer.stats().put_count == 40
        assert 0 < writer.backpressure_stats().total_count <= 39, "the first one finds room"


def test_a_waiting_put_warns_at_the_interval(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, backpressure_log_interval_ms=10, **LIMIT) as writer:
        held = store.hold("put", BLOOM)
        writer.put(rows(range(500)))
        with caplog.at_level(logging.WARNING, logger="lance_memwal.write.group_commit"):
            put = in_thread(lambda: writer.put(rows([1000])))
            held.wait_reached()
            wait_for(lambda: len(caplog.records) >= 3)
            held.open()
            put.result()
        assert len(caplog.records) >= 3
        assert all("put waits for room" in record.getMessage() for record in caplog.records)
        assert "limit_bytes=5000" in caplog.records[0].getMessage()


def test_indexes_count_as_held_bytes(tmp_path: Path) -> None:
    """Lesson 37: the meter ignored index memory."""
    with open_writer(tmp_path) as writer:
        writer.put(rows(range(10_000)))
        before = writer._shard.commits.held_bytes
        assert writer.memtable_stats().index_bytes == 0  # made when a reader first needs it
        assert len(scanned(writer)) == 10_000
        stats = writer.memtable_stats()
        assert stats.index_bytes >= 10_000 * 100
        assert writer._shard.commits.held_bytes == before + stats.index_bytes
        assert stats.estimated_size >= stats.index_bytes
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        assert writer._shard.commits.held_bytes == 0


def test_a_reader_that_indexes_a_released_memtable_leaves_no_bytes_behind(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows(range(1000)))
        refs = writer.in_memory_memtable_refs()
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        assert refs.active.newest_mask().all()
        assert refs.active.memtable.index_bytes > 0
        assert writer._shard.commits.held_bytes == 0


def test_index_memory_grows_with_the_rows_not_with_the_capacity(tmp_path: Path) -> None:
    """Lesson 37: an index was sized for its capacity with the first row."""
    with open_writer(tmp_path, max_memtable_rows=2_000_000) as writer:
        writer.put(rows([1]))
        assert len(scanned(writer)) == 1
        assert writer.memtable_stats().index_bytes < 50_000


def test_the_budget_of_wal_only_mode_is_its_queue(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    settings = {"enable_memtable": False, "durable_write": False, "max_wal_flush_interval_ms": None}
    with open_writer(location, max_unflushed_memtable_bytes=3000, max_wal_buffer_size=0, **settings) as writer:
        held = store.hold("put_new", WAL)
        while writer._shard.commits.held_bytes < 3000:
            writer.put(rows(range(10)))
        assert store.count("put_new", WAL) == 0
        waiting = in_thread(lambda: writer.put(rows([1])))
        held.wait_reached()  # the waiting put asks for a drain
        assert waiting.running
        assert writer.backpressure_stats().total_count == 1
        held.open()
        waiting.result()
        assert writer._shard.commits.held_bytes < 3000


def test_a_put_that_fails_while_it_waits_has_its_wait_counted(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, **LIMIT)
    held = store.hold("put", BLOOM)
    writer.put(rows(range(500)))
    put = in_thread(lambda: writer.put(rows([1000])))
    held.wait_reached()
    aborting = in_thread(writer.abort)
    with pytest.raises(RuntimeError):
        put.result()
    held.open()
    aborting.result()
    assert writer.backpressure_stats().total_count == 1
    assert writer.backpressure_stats().total_wait_ms > 0


def test_memory_is_bounded_while_many_threads_write_faster_than_flushes(tmp_path: Path) -> None:
    with open_writer(tmp_path, max_unflushed_memtable_bytes=60_000, max_memtable_rows=200) as writer:
        largest = 0

        def work(thread: int) -> None:
            nonlocal largest
            for k in range(40):
                writer.put(rows(range(1000 * thread + 10 * k, 1000 * thread + 10 * k + 10)))
                largest = max(largest, writer._shard.commits.held_bytes)

        threads = [in_thread(lambda t=t: work(t)) for t in range(4)]
        for thread in threads:
            thread.result(timeout=60)
        assert largest < 60_000 + 10_000  # at most one put of each thread above the limit
        assert len(everything(writer, tmp_path)) == 1600
