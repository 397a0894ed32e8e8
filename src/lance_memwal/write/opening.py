"""Owning a shard: its parts, put together.

Owns `open_shard`. Invariants:

1. Everything that can be refused was refused before the claim: a doomed open fences nobody.
2. It returns after replay: a writer that exists shows every acknowledged row of the shard.
"""

from __future__ import annotations

from lance_memwal.clock import Clock
from lance_memwal.config import WriterConfig
from lance_memwal.crash_points import reach
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.tail import LogRun
from lance_memwal.log.understood import KnownColumns
from lance_memwal.log.wal import OpenedLog, PersistPolicy, open_log
from lance_memwal.process.background import Task
from lance_memwal.sstable.target import ShardTarget
from lance_memwal.write.closing import Parked, opened_again
from lance_memwal.write.flush import Flushing, Ticking
from lance_memwal.write.gate import WriteGate
from lance_memwal.write.group_commit import GroupCommit
from lance_memwal.write.health import Health
from lance_memwal.write.indexing import Indexing
from lance_memwal.write.replay import replay
from lance_memwal.write.shard import Columns, Shard
from lance_memwal.write.stats import StatsHandle
from lance_memwal.write.tables import Tables, WalOnly

__all__ = ["open_shard", "start"]


def open_shard(target: ShardTarget, config: WriterConfig, clock: Clock, parked: Parked | None = None) -> Shard:
    """Claim and replay the shard, or take a parked one up again; the caller validated `target` and `config`."""
    shard_id = config.shard_id if config.shard_id is not None else clock.uuid4()
    config = config.replace(shard_id=shard_id, shard_spec_id=config.shard_spec_id or target.spec_id)
    sync = config.fsync and target.location.is_local
    scanned = config.manifest_scan_batch_size
    manifests = ShardManifestStore(target.location, shard_id, scan_batch_size=scanned, fsync=sync, clock=clock)
    if parked is not None:
        opened = opened_again(parked, manifests)
    else:
        opened = open_log(
            manifests,
            spec_id=config.shard_spec_id,
            policy=PersistPolicy.of(config, fsync=sync),
            watch=target.watch,
            known=KnownColumns(target.location, target.schema),
            clock=clock,
        )
        reach("open.after_sentinel")
    shard = _assemble(target, config, clock, opened, manifests, None if parked is None else parked.stats)
    if config.enable_memtable:
        replay(shard, opened)
    return shard


def _assemble(
    target: ShardTarget,
    config: WriterConfig,
    clock: Clock,
    opened: OpenedLog,
    manifests: ShardManifestStore,
    stats: StatsHandle | None,
) -> Shard:
    log, schema = opened.log, target.schema
    columns = Columns(target, config)
    ticker, flusher = Task("ticker"), Task("flush")
    health = Health(log.shard_id, log.epoch, target.watch, clock, ticker, flusher)
    stats = StatsHandle(health.lock) if stats is None else stats
    stats.use_lock(health.lock)
    tables: Tables | WalOnly
    if config.enable_memtable:
        run = LogRun(opened.manifest.current_generation)
        indexing = Indexing(columns.indexes, config, health, stats, clock, ticker)
        tables = Tables(config, schema, health, indexing, flusher)
        tables.begin(run.generation, 0, log.next_position - 1)
    else:
        run = LogRun.of_tail(opened)
        tables = WalOnly(config, schema)
    commits = GroupCommit(
        config=config,
        schema=schema,
        log=log,
        transactions=opened.transactions,
        run=run,
        health=health,
        tables=tables,
        stats=stats,
        clock=clock,
        ticker=ticker,
    )
    return Shard(
        config,
        clock,
        log,
        opened.transactions,
        manifests,
        columns,
        WriteGate(clock),
        health,
        tables,
        commits,
        stats,
        ticker,
        flusher,
    )


def start(shard: Shard) -> None:
    """Begin the background work of a shard."""
    shard.ticker.start(Ticking(shard), shard.clock).poke()
    shard.flusher.start(Flushing(shard), shard.clock).poke()
