"""Introspection: counts, times, positions, log lines, the registry of live writers, and what a put costs."""

from __future__ import annotations

import gc
import logging
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pyarrow as pa
import pytest

from lance_memwal import FencedError, ShardWriter
from lance_memwal.memtable import live
from lance_memwal.store.location import resolve
from lance_memwal.write.stats import StatsHandle, WriteStats
from tests.harness.profile import scaled
from tests.kit.effort import cpu_seconds
from tests.kit.writers import (
    BLOOM,
    KEYED,
    MANIFEST,
    SECONDS,
    SHARD,
    WAL,
    in_thread,
    in_threads,
    key_field,
    open_writer,
    row_entries,
    rows,
    wait_for,
    watched,
)


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
        in_threads(lambda t: [writer.put(rows([t])) for _ in range(200)], range(6))
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


def test_positions_and_bytes_are_counted_over_memtables(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, max_memtable_batches=2) as writer:
        held = store.hold("put", BLOOM)
        batches = [rows(range(1000 * k, 1000 * k + 1000), "some text") for k in range(5)]
        for batch in batches:
            writer.put(batch)
        stats = writer.memtable_stats()
        assert (stats.generation, stats.batch_count, stats.max_buffered_batch_position) == (3, 1, 4)
        assert (stats.frozen_count, stats.row_count) == (2, 1000)
        assert sum(batch.nbytes for batch in batches[:4]) <= stats.frozen_bytes
        assert batches[4].nbytes <= stats.estimated_size < 2 * sum(batch.nbytes for batch in batches)
        held.open()


@contextmanager
def stats_lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], dict[str, float]]]:
    """Returns the numbers of the next periodic line that contains a given text."""
    lines: Queue[str] = Queue()

    class Watcher(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if f"write stats [shard={SHARD}, " in record.getMessage():
                lines.put(record.getMessage())

    def next_line(wanted: str) -> dict[str, float]:
        while wanted not in (line := lines.get(timeout=SECONDS)):
            pass
        pairs = line.rstrip("]").split(", ")[1:]
        return {name: float(value) for name, _, value in (pair.partition("=") for pair in pairs)}

    logger, watcher = logging.getLogger("lance_memwal.write"), Watcher()
    caplog.set_level(logging.INFO, logger=logger.name)
    logger.addHandler(watcher)
    try:
        yield next_line
    finally:
        logger.removeHandler(watcher)


def test_stats_line_has_throughput_backpressure_and_sizes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        stats_lines(caplog) as next_line,
        open_writer(tmp_path, stats_log_interval_ms=20, max_unflushed_memtable_bytes=2000) as writer,
    ):
        writer.put(rows(range(100)))
        writer.put(rows(range(100, 300)))  # waits for the flush of the first
        line = next_line("[shard=" + SHARD + ", puts=2,")
        assert (line["wal_entries"], line["backpressure_waits"]) == (2, 1)
        assert line["rows_per_second"] > 0
        assert line["bytes_per_second"] > line["rows_per_second"] * 8
        assert line["put_ms"] > line["wal_ms"] > 0
        assert line["memtable_bytes"] == writer.memtable_stats().estimated_size > 0
        assert line["queued_bytes"] == 0
        idle = next_line("rows_per_second=0.0, bytes_per_second=0,")
        assert (idle["puts"], idle["wal_entries"]) == (2, 2)
        writer.stats_handle().reset()
        writer.put(rows([1]))
        assert next_line("puts=1,")["rows_per_second"] > 0


def test_stats_line_without_memtable_has_the_queue(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    quiet = {"durable_write": False, "max_wal_flush_interval_ms": None, "stats_log_interval_ms": 5}
    with stats_lines(caplog) as next_line, open_writer(tmp_path, enable_memtable=False, **quiet) as writer:
        writer.put(rows(range(100)))
        line = next_line("puts=1,")
        assert (line["memtable_bytes"], line["wal_entries"], line["wal_ms"]) == (0, 0, 0)
        assert line["queued_bytes"] > 100 * 8


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
        put_count=2,
        put_time=0.004,
        wal_flush_count=2,
        wal_flush_time=0.002,
        wal_flush_bytes=800,
        wal_io_count=2,
        wal_io_time=0.001,
        index_update_count=4,
        index_update_time=0.01,
        index_update_rows=70,
        memtable_flush_count=1,
        memtable_flush_time=0.3,
        memtable_flush_rows=60,
    )
    with caplog.at_level(logging.INFO, logger="lance_memwal.write"):
        stats.log_summary("a ")
        stats.log_wal_breakdown("b ")
    first, second = (record.getMessage() for record in caplog.records)
    assert first == (
        "a write stats [puts=2, puts_per_second=500.0, put_ms=2.000, wal_entries=2, wal_bytes=800, wal_ms=1.000, "
        "flushes=1, flushed_rows=60, flush_ms=300.000]"
    )
    assert second == "b wal breakdown [wal_ms=1.000, io_ms=0.500, index_ms=2.500, index_rows=70]"


def test_the_breakdown_of_a_writer_without_entries_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="lance_memwal.write"):
        WriteStats(put_count=3, put_time=1.0).log_wal_breakdown()
    assert caplog.records == []


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    """The lines about the life of a writer, in order."""
    events = ("opened", "froze", "backpressure", "closing", "stopping", "closed")
    found = [r for r in caplog.records if r.name.startswith("lance_memwal.write") and r.levelno >= level]
    return [r.getMessage() for r in found if r.getMessage().startswith(events)]


def test_open_freeze_and_close_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lance_memwal")
    for epoch in (1, 2):
        with open_writer(tmp_path) as writer:
            writer.put(rows(range(7)))
        assert lines(caplog) == [
            f"opened writer [shard={SHARD}, epoch={epoch}, generation={epoch}, mode=memtable]",
            f"closing writer [shard={SHARD}, epoch={epoch}]",
            f"froze memtable [shard={SHARD}, generation={epoch}, rows=7, pending=1]",
            f"stopping background tasks [shard={SHARD}, tasks=3]",
            f"closed writer [shard={SHARD}, epoch={epoch}]",
        ]
        caplog.clear()


def test_wal_only_writer_logs_its_mode_and_generation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lance_memwal")
    for generation in (1, 3):
        with open_writer(tmp_path, enable_memtable=False, max_memtable_rows=4) as writer:
            for k in range(3):
                writer.put(rows(range(4 * k, 4 * k + 4)))
        first, *_, last = lines(caplog)
        assert first.endswith(f"generation={generation}, mode=wal-only]")
        assert last.startswith("closed writer")
        caplog.clear()


def test_each_freeze_logs_how_many_memtables_wait(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lance_memwal")
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        held = store.hold("put", BLOOM)
        writer.put(rows(range(3)))
        writer.force_seal_active()
        held.wait_reached()
        for k in (10, 20):
            writer.put(rows([k]))
            writer.force_seal_active()
        held.open()
    froze = [line for line in lines(caplog) if line.startswith("froze")]
    assert [line.rpartition("generation=")[2].split(",")[0] for line in froze] == ["1", "2", "3"]
    assert "rows=3, pending=1]" in froze[0]


def test_backpressure_is_logged_once_when_it_begins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "lance_memwal")
    store, location = watched(tmp_path)
    with open_writer(location, max_unflushed_memtable_bytes=5000) as writer:
        held = store.hold("put", BLOOM)
        writer.put(rows(range(500)))
        writer.force_seal_active()
        held.wait_reached()
        waiting = in_thread(lambda: writer.put(rows([1000])))
        wait_for(lambda: any("backpressure" in line for line in lines(caplog, logging.DEBUG)))
        assert waiting.running
        held.open()
        waiting.result()
    (line,) = (line for line in lines(caplog, logging.DEBUG) if "backpressure" in line)
    assert line.startswith(f"backpressure began [shard={SHARD}, held_bytes=")
    assert line.endswith(", limit_bytes=5000]")
    assert not any("backpressure" in line for line in lines(caplog))


def test_abort_logs_no_close(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lance_memwal")
    open_writer(tmp_path).abort()
    assert [line.split(" [")[0] for line in lines(caplog)] == ["opened writer", "stopping background tasks"]


def test_close_that_fails_is_logged_to_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lance_memwal")
    first = open_writer(tmp_path)
    first.put(rows([1]))
    with open_writer(tmp_path):
        caplog.clear()
        with pytest.raises(FencedError):
            first.close()
        assert lines(caplog)[0] == f"closing writer [shard={SHARD}, epoch=1]"
        assert lines(caplog)[-1].startswith(f"closed writer with an error [shard={SHARD}, epoch=1]: Writer fenced")


def key(root: Path) -> str:
    return resolve(str(root)).key


def test_a_writer_is_found_while_it_lives(tmp_path: Path) -> None:
    assert live.find(key(tmp_path), SHARD) is None
    writer = open_writer(tmp_path)
    spelled = resolve(f"{tmp_path}/../{tmp_path.name}/").key
    assert live.find(key(tmp_path), SHARD) is live.find(spelled, SHARD) is writer._live
    assert live.all_of(key(tmp_path)) == [writer._live]
    assert live.find(key(tmp_path / "other"), SHARD) is None
    writer.close()
    assert live.find(key(tmp_path), SHARD) is None
    assert live.all_of(key(tmp_path)) == []


def test_of_several_writers_the_newest_epoch_is_found(tmp_path: Path) -> None:
    first = open_writer(tmp_path)
    second = open_writer(tmp_path)
    assert live.find(key(tmp_path), SHARD) is second._live
    second.abort()
    assert live.find(key(tmp_path), SHARD) is first._live
    first.abort()


def test_the_registry_keeps_no_writer_alive(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    del writer
    gc.collect()
    assert live.find(key(tmp_path), SHARD) is None
    open_writer(tmp_path).abort()
    assert live.count_of(key(tmp_path)) == 0


def test_what_a_registered_writer_shows_is_its_capture(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1]))
        found = live.find(key(tmp_path), SHARD)
        assert found is not None
        capture = found.capture()
        assert capture is not None
        assert (capture.shard_id, capture.epoch) == (SHARD, writer.epoch)
        assert capture.active.num_rows == 1
    assert found.capture() is None


def test_a_durable_put_is_one_request(tmp_path: Path) -> None:
    """Lesson 39: reads of the manifest were paid again and again."""
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows([1]))
        before = len(store.calls)
        for k in range(10):
            writer.put(rows([k]))
        assert [kind for kind, _ in store.calls[before:]] == ["put_new"] * 10


def test_looking_at_a_writer_writes_nothing(tmp_path: Path) -> None:
    """Lesson 40: a reader that updates a manifest races with the writer's claim."""
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows([1]))
        before = sum(kind.startswith("put") for kind, _ in store.calls)
        writer.memtable_scanner().to_table()
        writer.manifest()
        writer.check_fenced()
        writer.memtable_stats()
        writer.wal_stats()
        assert sum(kind.startswith("put") for kind, _ in store.calls) == before


@pytest.mark.parametrize("fsync", [True, False])
def test_entries_and_generations_are_synced_before_they_count_if_that_is_asked_for(tmp_path: Path, fsync: bool) -> None:
    """Lesson E1.8: a durable write that never reached the disk."""
    store, location = watched(tmp_path)
    with open_writer(location, fsync=fsync) as writer:
        writer.put(rows([1]))
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        assert [sync for path, sync in store.synced if WAL in path] == [fsync]
        assert {sync for path, sync in store.synced if MANIFEST in path} == {fsync}
        flushed = [i for i, (kind, _) in enumerate(store.calls) if kind == "sync_tree"]
        commit = max(i for i, (kind, path) in enumerate(store.calls) if kind == "put_new" and MANIFEST in path)
        assert bool(flushed) is fsync
        assert max(flushed, default=0) < commit, "the manifest lists what power loss could take back"


@pytest.mark.parametrize("schema", [KEYED, pa.schema([key_field()])], ids=["two columns", "the key alone"])
def test_a_generation_is_complete_before_the_manifest_lists_it(tmp_path: Path, schema: pa.Schema) -> None:
    """Lesson 20: a generation of a table with key columns only was published before its sidecar existed."""
    store, location = watched(tmp_path)
    with open_writer(location, schema) as writer:
        writer.put(pa.table({"id": [1, 2]}), missing="null")
        held = store.hold("put_new", MANIFEST)
        writer.force_seal_active()
        held.wait_reached()
        [directory] = [path for path in (tmp_path / "_mem_wal" / writer.shard_id).iterdir() if "_gen_1" in path.name]
        found = {
            path.relative_to(directory).as_posix().split("/")[0] for path in directory.rglob("*") if path.is_file()
        }
        assert {"_versions", "data", "_pk_index", "bloom_filter.bin"} <= found
        held.open()


def test_a_flushed_memtable_is_let_go(tmp_path: Path) -> None:
    """Lesson 15: memtables that were flushed long ago stayed in memory under load."""
    with open_writer(tmp_path, max_memtable_batches=2) as writer:
        before = pa.total_allocated_bytes()
        for k in range(20):
            writer.put(rows(range(10_000 * k, 10_000 * k + 10_000)))
        writer.wait_for_flush_drain(SECONDS)
        gc.collect()
        assert pa.total_allocated_bytes() - before < 500_000  # of about four million that went through
        assert writer._shard.commits.held_bytes == writer.memtable_stats().estimated_size == 0


def growth(writer: ShardWriter, puts: int, rows_per_put: int, put: Callable[[pa.RecordBatch], object]) -> float:
    """How much longer the last tenth of the puts takes than the second tenth, in processor time.

    The quick ones of each are compared: whatever else the machine does only makes puts slower.
    """
    batches = [rows(range(k * rows_per_put, (k + 1) * rows_per_put)) for k in range(20)]
    times = [cpu_seconds(lambda k=k: put(batches[k % 20]), clock=time.thread_time) for k in range(puts)]
    tenth = puts // 10
    return statistics.quantiles(times[-tenth:], n=10)[0] / statistics.quantiles(times[tenth : 2 * tenth], n=10)[0]


@pytest.mark.scaled
def test_the_cost_of_a_put_does_not_grow_with_the_rows_that_are_there(tmp_path: Path) -> None:
    rows_in_all = scaled(ci=200_000, prove=1_000_000)
    limits = {"max_memtable_rows": 1 << 40, "max_memtable_batches": 1 << 40, "max_memtable_size": 1 << 40}
    with open_writer(
        tmp_path,
        durable_write=False,
        max_wal_flush_interval_ms=None,
        max_wal_buffer_size=0,
        max_unflushed_memtable_bytes=1 << 40,
        **limits,
    ) as writer:
        assert growth(writer, rows_in_all // 100, 100, writer.put) < 2.5
        assert writer.memtable_stats().row_count == rows_in_all
        writer.abort()


def test_the_cost_of_a_put_does_not_grow_with_the_writes_that_are_pending(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    limits = {"max_memtable_rows": 1 << 40, "max_memtable_batches": 1 << 40}
    writer = open_writer(location, **limits)
    held = store.hold("put_new", WAL)
    assert growth(writer, 10_000, 1, writer.put_nowait) < 2.5
    held.open()
    writer.abort()


def test_a_frozen_memtable_frees_the_put_path_of_its_size(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, max_memtable_batches=2, max_unflushed_memtable_bytes=1 << 40) as writer:
        held = store.hold("put", BLOOM)
        ratio = growth(writer, 1000, 1, writer.put)  # five hundred frozen memtables, none of them flushed
        assert writer.memtable_stats().frozen_count > 400
        assert ratio < 4
        held.open()
        writer.abort()
