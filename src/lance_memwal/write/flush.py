"""Frozen memtables become published SSTables, one generation after the other.

Owns `flush_once` and the background tasks of a writer. Invariants:

1. A generation is flushed only after every WAL put of it succeeded, and only as the manifest's next generation: if N
   fails, N + 1 waits.
2. The SSTable is complete before the manifest commit that lists it; the replay cursor moves in that commit, to the last
   entry of the generation, never further.
3. A memtable leaves the read set after that commit succeeded, not before.
4. A failure never ends a worker and never hangs a waiter: it is recorded, waiters are woken, the flush is tried again.
5. A commit is judged by content: it landed if the newest manifest lists our path, or has our epoch and a generation
   above ours.
6. The table is looked at before an SSTable is written and before it is committed: nothing is published into another one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pyarrow as pa

from lance_memwal.clock import BackOff
from lance_memwal.crash_points import reach
from lance_memwal.errors import FencedError, MemWalError, UnavailableError
from lance_memwal.log.manifest import ShardManifestStore, with_generation
from lance_memwal.process.background import is_ending
from lance_memwal.sstable.write import commit_sstable, not_published
from lance_memwal.types import FlushResult, ShardManifest, SsTable
from lance_memwal.write.group_commit import ShardCore
from lance_memwal.write.indexing import index_deferred, start_growing, use_newest_indexes
from lance_memwal.write.state import CLOSED

__all__ = ["Flushing", "SsTableWriter", "Ticking", "count_flush", "flush_once", "publish"]

_LOG = logging.getLogger(__name__)
_BACK_OFF = BackOff(0.05, 5.0, jitter=0.0)


SsTableWriter = Callable[[int, pa.Table | Iterator[pa.RecordBatch]], SsTable]
"""Writes all rows of a generation (`_tombstone` last) as a complete, unpublished SSTable, in a new directory per call."""


def publish(manifests: ShardManifestStore, epoch: int, sstable: SsTable, covered_position: int) -> ShardManifest:
    """Commit `sstable` as the manifest's next generation and move the cursor with it."""

    def landed(newest: ShardManifest) -> bool:
        listed = any(item.path == sstable.path for item in newest.sstables)
        return listed or (newest.writer_epoch == epoch and newest.current_generation > sstable.generation)

    def update(latest: ShardManifest) -> ShardManifest:
        return latest if landed(latest) else with_generation(latest, sstable, covered_position)

    return commit_sstable(manifests, epoch, sstable, update, landed)


def flush_once(core: ShardCore, manifests: ShardManifestStore, write: SsTableWriter) -> FlushResult | None:
    """Publish the oldest frozen memtable; None if there is none."""
    with core.lock:
        memtable = core.frozen[0] if core.frozen else None
    if memtable is None:
        return None
    started = core.clock.monotonic()
    core.make_durable(memtable.end_batch)
    core.look_at_table()  # before anything is written, since that would bring a removed table's directories back
    use_newest_indexes(core)
    reach("flush.before_write")
    sstable = write(memtable.generation, memtable.capture().table())
    with not_published(manifests.location, manifests.shard_id, sstable.path):
        reach("flush.before_commit")
        with core.lock:
            core.refuse_commits()
        core.look_at_table()
    publish(manifests, core.log.epoch, sstable, memtable.covered_position)
    reach("flush.after_commit")
    core.release(memtable)
    seconds = core.clock.monotonic() - started
    count_flush(core, memtable.num_rows, seconds)
    _LOG.info(
        "flushed generation [shard=%s, generation=%d, rows=%d, path=%s, seconds=%.3f]",
        core.log.shard_id,
        memtable.generation,
        memtable.num_rows,
        sstable.path,
        seconds,
    )
    return FlushResult(sstable, memtable.num_rows, memtable.covered_position, seconds)


def count_flush(core: ShardCore, rows: int, seconds: float) -> None:
    """Count one published generation."""
    with core.lock:
        core.stats.memtable_flush_count += 1
        core.stats.memtable_flush_time += seconds
        core.stats.memtable_flush_rows += rows


# ------------------------------------------------------------------------------------------------------ the tasks


class Flushing:
    """The flusher's work: publish what is frozen, one generation per step."""

    __slots__ = ("_core", "_failures", "_not_before", "_step")

    def __init__(self, core: ShardCore, step: Callable[[], object]) -> None:
        self._core = core
        self._step = step
        self._failures = 0
        self._not_before = 0.0

    def __call__(self) -> float | None:
        """Flush one generation if there is one; returns when to come again."""
        core = self._core
        if not _has_work(core):
            return None
        now = core.clock.monotonic()
        if now < self._not_before:
            return self._not_before - now
        try:
            self._step()
            self._failures = 0
        except BaseException as error:  # a panic of native code is no Exception, and must not end the worker either
            if not _record_failure(core, error):
                return None
            delay = _BACK_OFF.seconds(self._failures, 0.0)
            self._failures += 1
            self._not_before = core.clock.monotonic() + delay
            return delay
        return 0.0 if _has_work(core) else None


def _has_work(core: ShardCore) -> bool:
    with core.lock:
        return bool(core.frozen) and core.state != CLOSED and not core.has_failed


def _record_failure(core: ShardCore, error: BaseException) -> bool:
    """Remember why a flush failed and wake the waiters; False if trying again makes no sense."""
    if isinstance(error, FencedError):
        core.fail(fenced=error)
    with core.lock:
        if core.has_failed or core.state == CLOSED or is_ending():
            return False
        if not isinstance(error, MemWalError):
            cause, error = (
                error,
                UnavailableError(f"flushing shard {core.log.shard_id} failed: {error}", ambiguous=False),
            )
            error.__cause__ = cause
        core.flush_error = error
        core.flush_failures += 1
        core.changed.wake_all()
    _LOG.warning("flush failed [shard=%s, failures=%d]: %s", core.log.shard_id, core.flush_failures, error)
    return True


class Ticking:
    """The ticker's work: drain the log by time and size triggers, index what waits, log the statistics line."""

    __slots__ = ("_core", "_interval", "_next_stats", "_stats_every")

    def __init__(self, core: ShardCore) -> None:
        self._core = core
        self._stats_every = _seconds(core.config.stats_log_interval_ms)
        self._next_stats = core.clock.monotonic() + (self._stats_every or 0.0)
        self._interval = _seconds(core.config.max_wal_flush_interval_ms) if not core.config.durable_write else None

    def __call__(self) -> float | None:
        """Do what is due; returns when to come again."""
        core = self._core
        errand, core.errand = core.errand, None
        if errand is not None:
            errand()
        with core.lock:
            if core.state == CLOSED or core.has_failed:
                return None
            end = core.buffered if core.pending and self._is_drain_due() else 0
            core.drain_wanted = False
            deferred, core.index_wanted = core.index_wanted or _is_index_due(core), False
            graph, core.graph_wanted = core.graph_wanted, False
        self._log_stats()
        try:
            if end:
                core.make_durable(end)
            if graph:
                start_growing(core)
            if deferred:
                index_deferred(core)
        except Exception as error:  # a failed log is recorded by the core; whoever writes next is told
            if not core.has_failed:
                _LOG.warning("background work failed [shard=%s]: %s", core.log.shard_id, error)
        return self._next_due()

    def _is_drain_due(self) -> bool:
        core = self._core
        if core.drain_wanted:
            return True
        return self._interval is not None and core.clock.monotonic() >= core.pending_since + self._interval

    def _log_stats(self) -> None:
        now = self._core.clock.monotonic()
        if self._stats_every and now >= self._next_stats:
            self._next_stats = now + self._stats_every
            self._core.stats.snapshot().log_summary(f"[shard={self._core.log.shard_id}] ")

    def _next_due(self) -> float | None:
        core = self._core
        with core.lock:
            if (core.drain_wanted and core.pending) or core.index_wanted or core.graph_wanted:
                return 0.0
            deadlines = [self._next_stats] if self._stats_every else []
            if core.unindexed_since is not None:
                deadlines.append(core.unindexed_since + core.config.async_index_interval_ms / 1000)
            if self._interval is not None and core.pending:
                deadlines.append(core.pending_since + self._interval)
        return max(0.0, min(deadlines) - core.clock.monotonic()) if deadlines else None


def _is_index_due(core: ShardCore) -> bool:
    since = core.unindexed_since
    return since is not None and core.clock.monotonic() >= since + core.config.async_index_interval_ms / 1000


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
