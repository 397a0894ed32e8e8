"""Frozen memtables become published SSTables: several are prepared side by side, and committed one after the other.

Owns `flush_once`, `flush_frozen` and the background tasks of a writer. Invariants:

1. A generation is flushed only after every WAL put of it succeeded, and only as the manifest's next generation: if N
   fails, what was prepared of N + 1 goes, and N + 1 waits.
2. The SSTable is complete before the manifest commit that lists it; the replay cursor moves in that commit, to the last
   entry of the generation, never further.
3. A memtable leaves the read set after that commit succeeded, not before.
4. A failure never ends a worker and never hangs a waiter: it is recorded, waiters are woken, the flush is tried again.
5. A commit is judged by content: it landed if the newest manifest lists our path, or has our epoch and a generation
   above ours.
6. The memory of what is prepared in the whole process has a limit; the number of threads has, too.
7. The table is looked at before an SSTable is written and before it is committed: nothing is published into another one.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import accumulate

from lance_memwal.clock import POLL, side_by_side
from lance_memwal.crash_points import reach
from lance_memwal.log.manifest import ShardManifestStore, with_generation
from lance_memwal.memtable.memtable import MemTable
from lance_memwal.process.room import Room
from lance_memwal.process.telemetry import spanned
from lance_memwal.sstable.write import commit_sstable, discard_sstable, not_published
from lance_memwal.types import FlushResult, ShardManifest, SsTable
from lance_memwal.write.shard import Shard
from lance_memwal.write.stats import StatsLine

_LOG = logging.getLogger(__name__)
_SIDE_BY_SIDE = 3
_SIDE_BY_SIDE_BYTES = 256 << 20  # of the rows of one shard
_ROOM = Room(512 << 20)  # for the rows that are being prepared in this process: they are copied


def publish(
    manifests: ShardManifestStore,
    epoch: int,
    sstable: SsTable,
    covered_position: int,
    *,
    shared: bool = False,
    announced: bool = False,
) -> bool:
    """Commit `sstable` as the manifest's next generation and move the cursor with it; False if another one is that.

    Whether a commit with an unknown outcome landed is answered by the newest manifest: it lists our path, or it is past
    our generation under our epoch, which only we publish in, unless it is `shared`. `announced`: others may commit it, too.
    """

    def landed(newest: ShardManifest) -> bool:
        listed = any(item.path == sstable.path for item in newest.sstables)
        is_past = newest.writer_epoch == epoch and newest.current_generation > sstable.generation
        return listed or (is_past and not shared)

    def update(latest: ShardManifest) -> ShardManifest:
        over = latest.current_generation > sstable.generation
        return latest if over or landed(latest) else with_generation(latest, sstable, covered_position)

    return landed(commit_sstable(manifests, epoch, sstable, update, landed, announced=announced))


def flush_once(shard: Shard) -> FlushResult | None:
    """Publish the oldest frozen memtable; None if there is none."""
    return next(iter(flush_frozen(shard, 1)), None)


def flush_frozen(shard: Shard, most: int) -> list[FlushResult]:
    """Publish the oldest frozen memtables: as many as may be prepared side by side, `most` at most, in order."""
    frozen = shard.tables.frozen
    sizes = accumulate(memtable.size_bytes for memtable in frozen[:most])
    fitting = sum(1 for size_bytes in sizes if size_bytes <= _SIDE_BY_SIDE_BYTES)
    return _flush(shard, frozen[: max(1, fitting)]) if frozen else []


def _about_flush(shard: Shard, memtables: tuple[MemTable, ...], **_: object) -> dict[str, str | int]:
    known = shard.span_attributes(sum(memtable.num_rows for memtable in memtables))
    return {**known, "generation": memtables[-1].generation}


@spanned("memwal.flush", about=_about_flush)
def _flush(shard: Shard, memtables: tuple[MemTable, ...]) -> list[FlushResult]:
    tables, started = shard.tables.need(), shard.clock.monotonic()
    unpublished: dict[int, SsTable] = {}

    def prepare(memtable: MemTable) -> None:
        unpublished[memtable.generation] = _prepared(shard, memtable)

    tables.indexing.refresh(tables.active)
    try:
        with _ROOM.taken(sum(memtable.size_bytes for memtable in memtables), shard.health.refuse_commits):
            side_by_side([partial(prepare, m) for m in memtables], len(memtables) - 1, "memwal-prepare", shard.clock)
        return [_committed(shard, m, unpublished.pop(m.generation), started) for m in memtables]
    finally:
        for sstable in unpublished.values():
            discard_sstable(shard.manifests.location, shard.log.shard_id, sstable.path)


def _prepared(shard: Shard, memtable: MemTable) -> SsTable:
    """The SSTable of a frozen memtable, complete and not published."""
    shard.commits.make_durable(memtable.end_batch)
    shard.health.look_at_table()  # before anything is written: that would bring a removed table's directories back
    reach("flush.before_write")
    rows = memtable.capture()
    return shard.write_sstable(memtable.generation, rows.stored() if memtable.schema.blobs else rows.table())


def _committed(shard: Shard, memtable: MemTable, sstable: SsTable, started: float) -> FlushResult:
    """Publish the SSTable of the oldest memtable, which then leaves the read set."""
    health = shard.health
    with not_published(shard.manifests.location, shard.log.shard_id, sstable.path):
        reach("flush.before_commit")
        with health.lock:
            health.refuse_commits()
        health.look_at_table()
    publish(shard.manifests, shard.log.epoch, sstable, memtable.covered_position)
    reach("flush.after_commit")
    shard.tables.need().release(memtable)
    seconds = shard.clock.monotonic() - started
    with health.lock:
        shard.stats.count_flush(memtable.num_rows, seconds)
    _LOG.info(
        "flushed generation [shard=%s, generation=%d, rows=%d, path=%s, seconds=%.3f]",
        shard.log.shard_id,
        memtable.generation,
        memtable.num_rows,
        sstable.path,
        seconds,
    )
    return FlushResult(sstable, memtable.num_rows, memtable.covered_position, seconds)


# ------------------------------------------------------------------------------------------------------ the tasks


class Flushing:
    """The flusher's work: publish what is frozen, a few generations per step."""

    __slots__ = ("_failures", "_logged", "_not_before", "_shard")

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._failures = 0
        self._not_before = 0.0
        self._logged = 0  # the newest generation whose freeze was logged

    def __call__(self) -> float | None:
        """Flush a few generations if there are any; returns when to come again."""
        shard = self._shard
        if not self._has_work():
            return None
        self._log_frozen()
        now = shard.clock.monotonic()
        if now < self._not_before:
            return self._not_before - now
        shard.health.flush_attempts += 1  # only this task changes it
        try:
            most = 1 if self._failures else _SIDE_BY_SIDE  # what waits for a failure is not prepared in vain
            flush_frozen(shard, most)
            self._failures = 0
        except BaseException as error:  # a panic of native code is no Exception, and must not end the worker either
            if not shard.health.flush_failed(error):
                return None
            delay = POLL.seconds(self._failures, 0.0)
            self._failures += 1
            self._not_before = shard.clock.monotonic() + delay
            return delay
        return 0.0 if self._has_work() else None

    def _log_frozen(self) -> None:
        # Here and not in the freeze: a log handler may wait, and the thread that freezes holds the writer's lock.
        for pending, memtable in enumerate(self._shard.tables.frozen, 1):
            if memtable.generation > self._logged:
                self._logged = memtable.generation
                _LOG.info(
                    "froze memtable [shard=%s, generation=%d, rows=%d, pending=%d]",
                    self._shard.log.shard_id,
                    memtable.generation,
                    memtable.num_rows,
                    pending,
                )

    def _has_work(self) -> bool:
        with self._shard.health.lock:
            return bool(self._shard.tables.frozen) and self._shard.health.is_alive


class Ticking:
    """The ticker's work: drain the log by time and size triggers, freeze what is old, index what waits, log the statistics
    line."""

    __slots__ = ("_interval", "_line", "_next_stats", "_shard", "_stats_every")

    def __init__(self, shard: Shard) -> None:
        config, now = shard.config, shard.clock.monotonic()
        self._shard = shard
        self._stats_every = _seconds(config.stats_log_interval_ms)
        self._next_stats = now + (self._stats_every or 0.0)
        self._line = StatsLine(shard.log.shard_id, shard.stats.snapshot(), now)
        self._interval = None if config.durable_write else _seconds(config.max_wal_flush_interval_ms)

    def __call__(self) -> float | None:
        """Do what is due; returns when to come again."""
        health, commits, tables = self._shard.health, self._shard.commits, self._shard.tables
        close = health.take_close_request()
        if close is not None:
            close()
        now = self._shard.clock.monotonic()
        with health.lock:
            if not health.is_alive:
                return None
            end = commits.take_due(now, self._interval)
            work = tables.due_work(now, commits.buffered)
        self._log_stats(now)
        try:
            commits.make_durable(end)
            for step in work:
                step()
        except Exception as error:  # a failed log is remembered by the writer; whoever writes next is told
            if not health.has_failed:
                _LOG.warning("background work failed [shard=%s]: %s", health.shard_id, error)
        return self._next_due()

    def _log_stats(self, now: float) -> None:
        if self._stats_every and now >= self._next_stats:
            self._next_stats = now + self._stats_every
            shard = self._shard
            with shard.health.lock:
                waits = shard.commits.backpressure().total_count
                held = shard.tables.held_bytes(0), shard.commits.pending_bytes
            self._line.log(shard.stats.snapshot(), now, waits, *held)

    def _next_due(self) -> float | None:
        shard = self._shard
        with shard.health.lock:
            due = (shard.commits.next_due(self._interval), shard.tables.next_due)
        deadlines = [moment for moment in due if moment is not None]
        if self._stats_every:
            deadlines.append(self._next_stats)
        return max(0.0, min(deadlines) - shard.clock.monotonic()) if deadlines else None


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
