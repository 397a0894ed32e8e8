"""What a writer counts, and the values in which it reports.

Owns the public statistics values and the live counter behind them. Invariants:

1. Counting costs no lock on the put path beyond the writer's own. OpenTelemetry is told where the application measures.
2. A stats handle stays usable after close.
3. Averages are None and throughputs 0.0 where nothing was counted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields

from lance_memwal.process.telemetry import UNMEASURED, Latencies, Percentiles, Telemetry, active

_LOG = logging.getLogger("lance_memwal.write")


@dataclass(frozen=True, slots=True)
class WriteStats:
    """Totals of one writer since it was opened or reset; times in seconds."""

    put_count: int = 0
    put_time: float = 0.0
    wal_flush_count: int = 0
    wal_flush_time: float = 0.0
    wal_flush_bytes: int = 0
    wal_flush_rows: int = 0
    wal_io_count: int = 0
    wal_io_time: float = 0.0
    index_update_count: int = 0
    index_update_time: float = 0.0
    index_update_rows: int = 0
    memtable_flush_count: int = 0
    memtable_flush_time: float = 0.0
    memtable_flush_rows: int = 0
    put_latency: Percentiles = UNMEASURED

    @property
    def avg_put_latency(self) -> float | None:
        """Seconds per put."""
        return _ratio(self.put_time, self.put_count)

    @property
    def put_throughput(self) -> float:
        """Puts per second spent in put."""
        return _ratio(self.put_count, self.put_time) or 0.0

    @property
    def avg_wal_flush_latency(self) -> float | None:
        """Seconds per WAL entry, encoding included."""
        return _ratio(self.wal_flush_time, self.wal_flush_count)

    @property
    def avg_wal_flush_bytes(self) -> float | None:
        """Bytes per WAL entry."""
        return _ratio(self.wal_flush_bytes, self.wal_flush_count)

    @property
    def wal_throughput_bytes(self) -> float:
        """Bytes per second of WAL flushing."""
        return _ratio(self.wal_flush_bytes, self.wal_flush_time) or 0.0

    @property
    def avg_wal_io_latency(self) -> float | None:
        """Seconds per WAL put, storage alone."""
        return _ratio(self.wal_io_time, self.wal_io_count)

    @property
    def avg_index_update_latency(self) -> float | None:
        """Seconds per index update."""
        return _ratio(self.index_update_time, self.index_update_count)

    @property
    def avg_index_update_rows(self) -> float | None:
        """Rows per index update."""
        return _ratio(self.index_update_rows, self.index_update_count)

    @property
    def avg_memtable_flush_latency(self) -> float | None:
        """Seconds per memtable flush."""
        return _ratio(self.memtable_flush_time, self.memtable_flush_count)

    @property
    def avg_memtable_flush_rows(self) -> float | None:
        """Rows per memtable flush."""
        return _ratio(self.memtable_flush_rows, self.memtable_flush_count)

    def log_summary(self, prefix: str = "") -> None:
        """Log one line: totals, put throughput, and the mean latencies of puts, WAL flushes and memtable flushes."""
        _LOG.info("%swrite stats [%s]", prefix, _summary(self))

    def log_wal_breakdown(self, prefix: str = "") -> None:
        """Log one line with the mean latency of a WAL flush, of its storage request and of an index update.

        Logs nothing if no WAL entry was written.
        """
        if self.wal_flush_count:
            _LOG.info(
                "%swal breakdown [wal_ms=%s, io_ms=%s, index_ms=%s, index_rows=%d]",
                prefix,
                _ms(self.avg_wal_flush_latency),
                _ms(self.avg_wal_io_latency),
                _ms(self.avg_index_update_latency),
                self.index_update_rows,
            )


class StatsLine:
    """The periodic statistics line of one writer: its totals, its throughput since the last line, and its memory."""

    __slots__ = ("_before", "_shard_id", "_since")

    def __init__(self, shard_id: str, stats: WriteStats, now: float) -> None:
        """The first line reports the throughput since `now` (`monotonic`), when the totals were `stats`."""
        self._shard_id = shard_id
        self._before = stats
        self._since = now

    def log(self, stats: WriteStats, now: float, waits: int, memtable_bytes: int, queued_bytes: int) -> None:
        """Log the line; `waits` counts the puts that waited for room, `queued_bytes` are not in the log yet."""
        before, seconds = self._before, now - self._since
        if stats.wal_flush_count < before.wal_flush_count:  # the counters were reset
            before = WriteStats()
        _LOG.info(
            "write stats [shard=%s, %s, rows_per_second=%.1f, bytes_per_second=%.0f, backpressure_waits=%d, "
            "memtable_bytes=%d, queued_bytes=%d]",
            self._shard_id,
            _summary(stats),
            _ratio(stats.wal_flush_rows - before.wal_flush_rows, seconds) or 0.0,
            _ratio(stats.wal_flush_bytes - before.wal_flush_bytes, seconds) or 0.0,
            waits,
            memtable_bytes,
            queued_bytes,
        )
        self._before, self._since = stats, now


def _summary(stats: WriteStats) -> str:
    return (
        f"puts={stats.put_count}, puts_per_second={stats.put_throughput:.1f}, put_ms={_ms(stats.avg_put_latency)}, "
        f"wal_entries={stats.wal_flush_count}, wal_bytes={stats.wal_flush_bytes}, "
        f"wal_ms={_ms(stats.avg_wal_flush_latency)}, flushes={stats.memtable_flush_count}, "
        f"flushed_rows={stats.memtable_flush_rows}, flush_ms={_ms(stats.avg_memtable_flush_latency)}"
    )


def _ms(seconds: float | None) -> str:
    return f"{1000 * (seconds or 0.0):.3f}"


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


_NAMES = tuple(field.name for field in fields(WriteStats) if field.name != "put_latency")


class StatsHandle:
    """Live counters of one writer; usable after close."""

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        """`lock` is the writer's own; who counts holds it."""
        self._lock = lock
        self.reset()

    def use_lock(self, lock: AbstractContextManager[object]) -> None:
        """Go on with another lock (in a forked child)."""
        self._lock = lock

    def reset(self) -> None:
        """Start again from zero."""
        with self._lock:
            self.put_count = self.wal_flush_count = self.wal_flush_bytes = self.wal_io_count = 0
            self.wal_flush_rows = 0
            self.index_update_count = self.index_update_rows = self.memtable_flush_count = self.memtable_flush_rows = 0
            self.put_time = self.wal_flush_time = self.wal_io_time = 0.0
            self.index_update_time = self.memtable_flush_time = 0.0
            self._latencies = Latencies()

    def count_put(self, seconds: float) -> None:
        """Count one put or delete; the lock is held, as for all counts."""
        self._count_puts(seconds, 1, active())

    def _count_puts(self, seconds: float, puts: int, told: Telemetry | None) -> None:
        """Count `puts` that took so long, each."""
        self.put_count += puts
        self.put_time += puts * seconds
        self._latencies.add(seconds, puts)
        if told is not None:
            told.note("lance_mem_wal_puts_total", puts)
            for _ in range(puts):
                told.note("lance_mem_wal_put_duration_seconds", seconds)

    def count_entry(
        self, size_bytes: int, seconds: float, io_seconds: float, puts: Sequence[tuple[float, int]] = (), rows: int = 0
    ) -> None:
        """Count one entry of the log, its rows, and the puts that it ended: how long they took, and how many took so long."""
        told = active()
        for put_seconds, count in puts:
            self._count_puts(put_seconds, count, told)
        if told is not None:
            told.note("lance_mem_wal_entries_total")
            told.note("lance_mem_wal_entry_bytes", size_bytes)
            told.note("lance_mem_wal_entry_rows_total", rows)
            told.note("lance_mem_wal_group_puts", sum(count for _, count in puts))
            told.note("lance_mem_wal_flush_duration_seconds", seconds, kind="wal")
        self.wal_flush_count += 1
        self.wal_flush_bytes += size_bytes
        self.wal_flush_rows += rows
        self.wal_flush_time += seconds
        self.wal_io_count += 1
        self.wal_io_time += io_seconds

    def count_indexed(self, rows: int, seconds: float) -> None:
        """Count one update of indexes."""
        self.index_update_count += 1
        self.index_update_rows += rows
        self.index_update_time += seconds
        if (told := active()) is not None:
            told.note("lance_mem_wal_index_update_duration_seconds", seconds)

    def count_flush(self, rows: int, seconds: float) -> None:
        """Count one published generation."""
        self.memtable_flush_count += 1
        self.memtable_flush_rows += rows
        self.memtable_flush_time += seconds
        if (told := active()) is not None:
            told.note("lance_mem_wal_flush_duration_seconds", seconds, kind="memtable")
            told.note("lance_mem_wal_flush_rows_total", rows)

    def snapshot(self) -> WriteStats:
        """The totals now."""
        with self._lock:
            counted = {name: getattr(self, name) for name in _NAMES}
            return WriteStats(**counted, put_latency=self._latencies.percentiles())

    def __repr__(self) -> str:
        return f"StatsHandle({self.snapshot()!r})"


@dataclass(frozen=True, slots=True)
class MemTableStats:
    """What the memtables of a writer hold now, active and frozen. Sizes are resident bytes.

    Batch positions count the batches that the writer has inserted since it was opened; None if there is no such batch.
    Pending batches are inserted, and not in the log yet.
    """

    row_count: int
    batch_count: int
    estimated_size: int
    generation: int
    max_buffered_batch_position: int | None
    max_flushed_batch_position: int | None
    pending_wal_start_batch_position: int | None
    pending_wal_end_batch_position: int | None
    pending_wal_batch_count: int
    pending_wal_row_count: int
    pending_wal_estimated_bytes: int
    frozen_count: int
    frozen_bytes: int
    index_bytes: int


@dataclass(frozen=True, slots=True)
class WalStats:
    """The log of a writer now: the position of the next entry."""

    next_wal_entry_position: int


@dataclass(frozen=True, slots=True)
class BackpressureStats:
    """How many puts waited because buffers were full, and for how many milliseconds in all."""

    total_count: int
    total_wait_ms: float
