"""Frozen memtables become published SSTables, one generation after the other.

Owns `flush_once` and the background threads of a writer. Invariants:

1. A generation is flushed only after every WAL put of it succeeded, and only as the manifest's next generation: if N
   fails, N + 1 waits.
2. The SSTable is complete before the manifest commit that lists it; the replay cursor moves in that commit, to the last
   entry of the generation, never further.
3. A memtable leaves the read set after that commit succeeded, not before.
4. A failure never ends a worker and never hangs a waiter: it is recorded, waiters are woken, the flush is tried again.
5. A commit is judged by content: it landed if the newest manifest lists our path, or has our epoch and a generation
   above ours.
6. The table is looked at before an SSTable is written and before it is committed: nothing is published into another one.

Called by: the shard engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pyarrow as pa

from memwal.errors import FencedError, MemWalError, UnavailableError
from memwal.flush import commit_sstable, not_published
from memwal.hooks import reach
from memwal.manifest import ShardManifestStore, with_generation
from memwal.types import FlushResult, ShardManifest, SsTable
from memwal.writer.core import ShardCore
from memwal.writer.indexing import index_deferred, start_growing, use_newest_indexes
from memwal.writer.state import CLOSED

__all__ = ["SsTableWriter", "count_flush", "flush_once", "publish", "run_flusher", "run_ticker"]

_LOG = logging.getLogger(__name__)
_FIRST_DELAY_SECONDS = 0.05
_LONGEST_DELAY_SECONDS = 5.0


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


# ------------------------------------------------------------------------------------------------------ the threads


def run_flusher(core: ShardCore, step: Callable[[], object]) -> None:
    """Flush what is frozen until the writer is closed, poisoned or fenced."""
    delay = _FIRST_DELAY_SECONDS
    while _wait_for_work(core):
        try:
            step()
            delay = _FIRST_DELAY_SECONDS
        except BaseException as error:  # a panic of native code is no Exception, and must not end the worker either
            if not _record_failure(core, error):
                return
            with core.lock:
                if core.state != CLOSED:
                    core.work.wait_for(lambda: core.state == CLOSED, delay)
            delay = min(_LONGEST_DELAY_SECONDS, delay * 2)


def _wait_for_work(core: ShardCore) -> bool:
    with core.lock:
        while not core.frozen:
            if core.state == CLOSED or core.poison is not None:
                return False
            core.work.wait()
        return core.state != CLOSED


def _record_failure(core: ShardCore, error: BaseException) -> bool:
    """Remember why a flush failed and wake the waiters; False if trying again makes no sense."""
    if isinstance(error, FencedError):
        core.fail(fenced=error)
    with core.lock:
        if core.is_stopped or core.poison is not None or core.state == CLOSED:
            return False
        if not isinstance(error, MemWalError):
            cause, error = (
                error,
                UnavailableError(f"flushing shard {core.log.shard_id} failed: {error}", ambiguous=False),
            )
            error.__cause__ = cause
        core.flush_error = error
        core.flush_failures += 1
        core.changed.notify_all()
    _LOG.warning("flush failed [shard=%s, failures=%d]: %s", core.log.shard_id, core.flush_failures, error)
    return True


def run_ticker(core: ShardCore) -> None:
    """Drain the log by time and size triggers and log the statistics line, until the writer is closed."""
    stats_every = _seconds(core.config.stats_log_interval_ms)
    next_stats = core.clock.monotonic() + (stats_every or 0.0)
    while True:
        with core.lock:
            if not _wait_for_tick(core, next_stats if stats_every else None):
                return
            end, core.drain_wanted = core.buffered if core.pending else 0, False
            deferred, core.index_wanted = core.index_wanted or _is_index_due(core), False
            graph, core.graph_wanted = core.graph_wanted, False
        if stats_every and core.clock.monotonic() >= next_stats:
            next_stats = core.clock.monotonic() + stats_every
            core.stats.snapshot().log_summary(f"[shard={core.log.shard_id}] ")
        try:
            if end:
                core.make_durable(end)
            if graph:
                start_growing(core)
            if deferred:
                index_deferred(core)
        except Exception as error:  # a failed log is recorded by the core; whoever writes next is told
            _LOG.warning("background work failed [shard=%s]: %s", core.log.shard_id, error)


def _wait_for_tick(core: ShardCore, next_stats: float | None) -> bool:
    """Wait, holding the lock, until there is something to do; False once the writer is closed or cannot write."""
    interval = _seconds(core.config.max_wal_flush_interval_ms) if not core.config.durable_write else None
    while True:
        if core.state == CLOSED or core.poison is not None or core.is_stopped:
            return False
        if (core.drain_wanted and core.pending) or core.index_wanted or core.graph_wanted:
            return True
        deadlines = [] if next_stats is None else [next_stats]
        if core.unindexed_since is not None:
            deadlines.append(core.unindexed_since + core.config.async_index_interval_ms / 1000)
        if interval is not None and core.pending:
            deadlines.append(core.pending_since + interval)
        now = core.clock.monotonic()
        if deadlines and min(deadlines) <= now:
            return True
        core.tick.wait(min(deadlines) - now if deadlines else None)


def _is_index_due(core: ShardCore) -> bool:
    since = core.unindexed_since
    return since is not None and core.clock.monotonic() >= since + core.config.async_index_interval_ms / 1000


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
