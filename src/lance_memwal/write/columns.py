"""Switching a live writer to new columns.

Entry point: `evolve`. Invariants:

1. No write is inserted while the columns change. A write whose rows were fitted to the old columns is fitted again.
2. Everything written before is durable and flushed under the old columns, so that one memtable, one entry and one
   SSTable have one set of columns.
3. A change that fails leaves the writer with the old columns and with all its rows. A flush that does not end is given up
   at its deadline.
"""

from __future__ import annotations

from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.process.deadline import Deadline
from lance_memwal.sstable.target import ShardTarget
from lance_memwal.write.life import drain
from lance_memwal.write.shard import Shard
from lance_memwal.write.table_target import target_of


def evolve(shard: Shard) -> None:
    """Switch to the columns that the base table has now; everything before is flushed under the old ones."""
    old = shard.columns.target
    base = BaseTable.open(old.location) if old.watch is None else old.watch.look()
    if base is None:
        raise InvalidInputError("there is no base table whose columns this writer could take over")
    given = old.indexes.given if old.indexes is not None else ()
    kept = [spec for spec in given if spec.column in base.schema.names]
    routed, fsync = old.check_rows is None, shard.config.fsync
    new = target_of(old.location, base, None, fsync=fsync, routed=routed, indexes=kept, watch=old.watch)
    if new.schema.is_like(old.schema):
        return
    if new.schema.primary_key != old.schema.primary_key:
        raise InvalidInputError("the primary key of the table changed; close this writer and open a new one")
    shard.commits.alone(lambda: _switch(shard, new, Deadline(shard.clock)))


def _switch(shard: Shard, target: ShardTarget, deadline: Deadline) -> None:
    health, commits = shard.health, shard.commits
    with health.lock:
        health.refuse_writes()
    if not commits.wait_durable(commits.buffered, deadline.left_seconds):
        raise deadline.error("a write that began before has not ended; retry")
    shard.seal()
    drain(shard, deadline, "the writer goes on with its old columns, retry")
    with health.lock:
        health.refuse_writes()
        commits.use_columns(target.schema)
        shard.columns.use(target)
        shard.tables.use_columns(target.schema, shard.columns.indexes)
