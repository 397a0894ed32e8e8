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

__all__ = ["BackpressureStats", "MemTableStats", "StatsHandle", "WalStats", "WriteStats"]

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
        """Log one line with the totals."""
        _LOG.info(
            "%swrite stats [puts=%d, put_ms=%.3f, wal_entries=%d, wal_bytes=%d, flushes=%d, flushed_rows=%d]",
            prefix,
            self.put_count,
            1e3 * (self.avg_put_latency or 0.0),
            self.wal_flush_count,
            self.wal_flush_bytes,
            self.memtable_flush_count,
            self.memtable_flush_rows,
        )

    def log_wal_breakdown(self, prefix: str = "") -> None:
        """Log one line that splits WAL flushing into encoding and storage."""
        _LOG.info(
            "%swal breakdown [entries=%d, flush_ms=%.3f, io_ms=%.3f, bytes_per_entry=%.0f]",
            prefix,
            self.wal_flush_count,
            1e3 * (self.avg_wal_flush_latency or 0.0),
            1e3 * (self.avg_wal_io_latency or 0.0),
            self.avg_wal_flush_bytes or 0.0,
        )


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
    """The memtables of a writer now; batch positions are writer-wide and None where nothing was buffered or flushed."""

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
    """The log of a writer now."""

    next_wal_entry_position: int


@dataclass(frozen=True, slots=True)
class BackpressureStats:
    """Puts that waited for room, and how long in all."""

    total_count: int
    total_wait_ms: float
