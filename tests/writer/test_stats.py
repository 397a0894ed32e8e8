"""Introspection: counts, times, averages, positions, and the periodic line."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from lance_memwal.write.stats import StatsHandle, WriteStats
from tests.kit.writers import SECONDS, WAL, in_thread, open_writer, row_entries, rows, watched


def test_puts_entries_and_flushes_are_counted(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put([rows([1]), rows([2])])
        writer.put(rows([3]))
        writer.delete([1])
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        stats = writer.stats()
        assert (stats.put_count, stats.wal_flush_count, stats.wal_io_count) == (3, 3, 3)
        assert stats.wal_flush_bytes == sum(entry.size_bytes for entry in row_entries(tmp_path))
        assert (stats.memtable_flush_count, stats.memtable_flush_rows) == (1, 4)
        assert 0 < stats.wal_io_time <= stats.wal_flush_time <= stats.put_time
        assert stats.memtable_flush_time > 0


def test_averages_and_throughputs_follow_from_the_totals() -> None:
    stats = WriteStats(
        put_count=4,
        put_time=2.0,
        wal_flush_count=2,
        wal_flush_time=0.5,
        wal_flush_bytes=1000,
        wal_io_count=2,
        wal_io_time=0.4,
        index_update_count=5,
        index_update_time=1.0,
        index_update_rows=50,
        memtable_flush_count=2,
        memtable_flush_time=3.0,
        memtable_flush_rows=600,
    )
    assert stats.avg_put_latency == 0.5
    assert stats.put_throughput == 2.0
    assert stats.avg_wal_flush_latency == 0.25
    assert stats.avg_wal_flush_bytes == 500
    assert stats.wal_throughput_bytes == 2000.0
    assert stats.avg_wal_io_latency == 0.2
    assert stats.avg_index_update_latency == 0.2
    assert stats.avg_index_update_rows == 10
    assert stats.avg_memtable_flush_latency == 1.5
    assert stats.avg_memtable_flush_rows == 300


def test_averages_are_none_and_throughputs_zero_where_nothing_was_counted() -> None:
    stats = WriteStats()
    averages = [name for name in dir(stats) if name.startswith("avg_")]
    assert len(averages) == 8
    assert [getattr(stats, name) for name in averages] == [None] * 8
    assert (stats.put_throughput, stats.wal_throughput_bytes) == (0.0, 0.0)


def test_a_handle_is_live_and_can_be_reset(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        handle = writer.stats_handle()
        writer.put(rows([1]))
        assert handle.snapshot().put_count == 1
        writer.put(rows([2]))
        assert handle.snapshot().put_count == 2
        handle.reset()
        assert handle.snapshot() == writer.stats() == WriteStats()
        writer.put(rows([3]))
        assert writer.stats().put_count == 1
        assert repr(handle).startswith("StatsHandle(WriteStats(put_count=1")


def test_no_count_is_lost_between_threads(tmp_path: Path) -> None:
    with open_writer(tmp_path, durable_write=False, max_wal_flush_interval_ms=1) as writer:
        threads = [in_thread(lambda t=t: [writer.put(rows([t])) for _ in range(200)]) for t in range(6)]
        for thread in threads:
            thread.result()
        assert writer.stats().put_count == 1200


def test_a_reset_is_not_undone_by_a_count_that_was_under_way() -> None:
    lock = threading.RLock()
    handle = StatsHandle(lock)
    with lock:
        handle.put_count += 5
        resetting = in_thread(handle.reset)
        handle.put_count += 5
    resetting.result()
    assert handle.snapshot().put_count == 0


def test_memtable_stats_tell_buffered_durable_and_pending_positions(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        empty = writer.memtable_stats()
        assert (empty.max_buffered_batch_position, empty.max_flushed_batch_position) == (None, None)
        assert (empty.pending_wal_start_batch_position, empty.pending_wal_end_batch_position) == (None, None)
        assert (empty.row_count, empty.batch_count, empty.estimated_size, empty.index_bytes) == (0, 0, 0, 0)
        assert (empty.generation, empty.frozen_count, empty.frozen_bytes) == (1, 0, 0)
        writer.put([rows([1]), rows([2, 3])])
        held = store.hold("put_new", WAL)
        acks = [writer.put_nowait([rows([4]), rows([5])]), writer.put_nowait(rows([6, 7, 8]))]
        held.wait_reached()
        stats = writer.memtable_stats()
        assert (stats.row_count, stats.batch_count) == (8, 5)
        assert (stats.max_buffered_batch_position, stats.max_flushed_batch_position) == (4, 1)
        assert (stats.pending_wal_start_batch_position, stats.pending_wal_end_batch_position) == (2, 5)
        assert (stats.pending_wal_batch_count, stats.pending_wal_row_count) == (3, 5)
        assert stats.pending_wal_estimated_bytes >= 5 * 8
        held.open()
        for ack in acks:
            ack.wait()
        stats = writer.memtable_stats()
        assert (stats.max_flushed_batch_position, stats.pending_wal_batch_count) == (4, 0)
        assert stats.pending_wal_estimated_bytes == 0
        assert stats.pending_wal_start_batch_position is None


def test_positions_go_on_over_memtables(tmp_path: Path) -> None:
    with open_writer(tmp_path, max_memtable_batches=2) as writer:
        for k in range(5):
            writer.put(rows([k]))
        writer.wait_for_flush_drain(SECONDS)
        stats = writer.memtable_stats()
        assert (stats.generation, stats.batch_count, stats.max_buffered_batch_position) == (3, 1, 4)


def test_frozen_memtables_are_counted_with_their_bytes(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        held = store.hold("put", "bloom_filter")
        for k in range(3):
            writer.put(rows(range(100 * k, 100 * k + 100)))
            writer.force_seal_active()
        stats = writer.memtable_stats()
        assert (stats.frozen_count, stats.row_count) == (3, 0)
        assert stats.frozen_bytes >= 3 * 100 * 8
        held.open()


def test_estimated_size_is_at_least_the_bytes_of_the_rows(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        batches = [rows(range(1000 * k, 1000 * k + 1000), "some text") for k in range(5)]
        for batch in batches:
            writer.put(batch)
        size = sum(batch.nbytes for batch in batches)
        assert size <= writer.memtable_stats().estimated_size < 2 * size


def test_the_periodic_line_is_logged_and_names_the_shard(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logged = threading.Event()

    class Watcher(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "write stats [puts=1," in record.getMessage() and "shard=" in record.getMessage():
                logged.set()

    logger, watcher = logging.getLogger("lance_memwal.write"), Watcher()
    logger.addHandler(watcher)
    try:
        with (
            caplog.at_level(logging.INFO, logger="lance_memwal.write"),
            open_writer(tmp_path, stats_log_interval_ms=5) as writer,
        ):
            writer.put(rows([1]))
            assert logged.wait(SECONDS)
    finally:
        logger.removeHandler(watcher)


def test_the_periodic_line_can_be_switched_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, logger="lance_memwal.write"),
        open_writer(tmp_path, stats_log_interval_ms=None, durable_write=False, max_wal_flush_interval_ms=2) as writer,
    ):
        for k in range(5):
            writer.put_nowait(rows([k])).wait()
    assert not [record for record in caplog.records if "write stats" in record.getMessage()]


def test_summary_and_breakdown_are_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    stats = WriteStats(
        put_count=2, put_time=0.004, wal_flush_count=2, wal_flush_time=0.002, wal_io_count=2, wal_io_time=0.001
    )
    with caplog.at_level(logging.INFO, logger="lance_memwal.write"):
        stats.log_summary("a ")
        stats.log_wal_breakdown("b ")
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "a write stats [puts=2, put_ms=2.000, wal_entries=2, wal_bytes=0, flushes=0, flushed_rows=0]"
    assert second == "b wal breakdown [entries=2, flush_ms=1.000, io_ms=0.500, bytes_per_entry=0]"


def test_the_manifest_is_the_newest_one(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        before = writer.manifest()
        writer.put(rows([1]))
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        after = writer.manifest()
        assert after.version > before.version
        assert [sstable.generation for sstable in after.sstables] == [1]
