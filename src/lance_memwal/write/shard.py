"""The parts of one shard writer, as the functions take them that do its work.

Owns `Shard`, which only puts them together, and `Columns`. Invariants:

1. A part writes its own fields only; what several parts do in one step is done under the lock of `health`.
2. Nothing here refers to the public writer, so that one that is dropped can be collected while its tasks still run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa

from lance_memwal.clock import Clock
from lance_memwal.config import WriterConfig
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.tail import LogRun
from lance_memwal.log.wal import OpenedLog
from lance_memwal.memtable.memtable import InMemoryMemTables
from lance_memwal.process.background import Kind, Task
from lance_memwal.process.telemetry import spanned
from lance_memwal.process.waiting import refuse_on_top
from lance_memwal.sstable.mirrors import IndexSet
from lance_memwal.sstable.target import ShardTarget
from lance_memwal.types import SsTable
from lance_memwal.write.fitting import Fitting
from lance_memwal.write.group_commit import GroupCommit
from lance_memwal.write.health import Health
from lance_memwal.write.indexing import Indexing
from lance_memwal.write.sequences import HighestSequence
from lance_memwal.write.stats import MemTableStats, StatsHandle
from lance_memwal.write.tables import Tables, WalOnly

_LOG = logging.getLogger(__name__)
_TASKS: tuple[Kind, ...] = ("ticker", "flush", "index")


class Columns:
    """The columns that a shard has now: what it writes to, and how input becomes its rows."""

    __slots__ = ("_config", "fitting", "target")

    def __init__(self, target: ShardTarget, config: WriterConfig) -> None:
        self._config = config
        self.use(target)

    def use(self, target: ShardTarget) -> None:
        """Go on with the columns of `target`; nobody is between fitting and inserting."""
        self.target = target
        self.fitting = Fitting(target, self._config)

    @property
    def indexes(self) -> IndexSet:
        """The indexes that memtables with these columns have."""
        return self.target.indexes if self.target.indexes is not None else IndexSet(self.target.schema)


class Shard:
    """One claimed shard: its settings, its log, and the parts of its writer."""

    def __init__(
        self,
        target: ShardTarget,
        config: WriterConfig,
        clock: Clock,
        opened: OpenedLog,
        manifests: ShardManifestStore,
        stats: StatsHandle | None = None,
        run: LogRun | None = None,
    ) -> None:
        """Put the parts together; nothing runs yet. `stats` go on counting where the writer was put away. `run` is what the
        tail of the log says, where it was read."""
        self.config = config
        self.clock = clock
        self.log = log = opened.log
        self.transactions = opened.transactions
        self.manifests = manifests
        self.columns = Columns(target, config)
        self.sequences = HighestSequence()
        self.ticker, self.flusher, self.grower = (Task(kind, clock) for kind in _TASKS)
        self.health = health = Health(log.shard_id, log.epoch, target.watch, clock, self.ticker, self.flusher)
        self.stats = StatsHandle(health.lock) if stats is None else stats
        self.stats.use_lock(health.lock)
        self.tables: Tables | WalOnly
        if config.enable_memtable:
            run = LogRun(opened.manifest.current_generation)
            indexes = self.columns.indexes
            indexing = Indexing(indexes, config, health, self.stats, clock, self.ticker, self.grower)
            self.tables = Tables(config, target.schema, health, indexing, self.flusher, self.ticker, clock)
            self.tables.begin(run.generation, 0, log.next_position - 1)
        else:
            run = LogRun.of_tail(opened) if run is None else run
            self.tables = WalOnly(config, target.schema, run.generation)
        self.commits = GroupCommit(
            config=config,
            schema=target.schema,
            log=log,
            transactions=opened.transactions,
            run=run,
            health=health,
            tables=self.tables,
            stats=self.stats,
            clock=clock,
            ticker=self.ticker,
        )

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What runs beside the callers, in the order in which it ends."""
        return self.grower, self.flusher, self.ticker

    def write_sstable(self, generation: int, rows: pa.Table | Iterator[pa.RecordBatch]) -> SsTable:
        """Write all rows of a generation (`_tombstone` last) as a complete, unpublished SSTable, in a new directory."""
        return self.columns.target.write_sstable(self.log.shard_id, self.config, self.clock, generation, rows)

    def span_attributes(self, rows: int | None = None) -> dict[str, str | int]:
        """What a span says of this shard, and of `rows` of its newest generation."""
        known = {**self.commits.span_attributes, "generation": self.tables.generation}
        return known if rows is None else {**known, "rows": rows}

    @spanned("memwal.seal", about=lambda shard, **_: shard.span_attributes(shard.tables.active_rows))
    def seal(self) -> None:
        """Freeze the active memtable if it holds rows."""
        with self.health.lock:
            self.tables.freeze(self.commits.buffered)

    def capture(self) -> InMemoryMemTables:
        """What readers may see now: active and frozen memtables together, one watermark for all."""
        tables, health = self.tables.need(), self.health
        refuse_on_top(health.lock, "a read")
        with health.lock:
            health.refuse()
            return tables.capture(self.commits.visible)

    def count_put(self, started: float) -> None:
        """Count a put that began at `started` (`monotonic`), and ends now."""
        seconds = self.clock.monotonic() - started
        with self.health.lock:
            self.stats.count_put(seconds)

    def is_unflushed(self) -> bool:
        """Whether something that was written is in no SSTable yet, and must be."""
        return bool(self.commits.pending or self.tables.frozen or self.tables.active_rows)

    def memtable_stats(self) -> MemTableStats:
        """The memtables now."""
        tables, commits = self.tables.need(), self.commits
        with self.health.lock:
            active, pending = tables.active, commits.pending
            return MemTableStats(
                row_count=active.num_rows,
                batch_count=active.num_batches,
                estimated_size=active.size_bytes + active.index_bytes,
                generation=active.generation,
                max_buffered_batch_position=commits.buffered - 1 if commits.buffered else None,
                max_flushed_batch_position=commits.durable - 1 if commits.durable else None,
                pending_wal_start_batch_position=pending[0].start if pending else None,
                pending_wal_end_batch_position=pending[-1].end if pending else None,
                pending_wal_batch_count=sum(len(item.rows.batches) for item in pending),
                pending_wal_row_count=sum(item.rows.num_rows for item in pending),
                pending_wal_estimated_bytes=commits.pending_bytes,
                frozen_count=len(tables.frozen),
                frozen_bytes=sum(m.size_bytes + m.index_bytes for m in tables.frozen),
                index_bytes=active.index_bytes,
            )

    # --------------------------------------------------------------------------------------------------------- ending

    def abandon(self) -> None:
        """End the background work without touching storage; may be called anywhere, and waits for nothing."""
        self.health.close()
        for task in self.tasks:
            task.cancel()

    def stop(self, seconds: float) -> None:
        """End the background work, and wait for what of it runs, for some time."""
        level = logging.DEBUG if self.health.is_parked else logging.INFO
        _LOG.log(level, "stopping background tasks [shard=%s, tasks=%d]", self.log.shard_id, len(self.tasks))
        self.abandon()
        for task in self.tasks:
            task.stop(seconds)

    def orphan(self) -> None:
        """Become closed in a forked child, where the threads and locks of this writer do not exist."""
        self.health.orphan()
        self.commits.make_locks()
        self.stats.use_lock(self.health.lock)
        for task in self.tasks:
            task.orphan()
