"""A put that is too large for one WAL entry: published as a generation of its own.

Owns `publish_bulk`. Invariants:

1. Other writes wait; everything that came before is flushed first, as generation g, so that g + 1 can follow it. A put that
   is interrupted anywhere, or gives up on a flush that hangs, lets them in again.
2. The rows are never in the log. A mark at the tip says that they come, and carries the transaction; the manifest commit is
   their acknowledgement, with the cursor at the mark. So the log has a place for them, and a reader of changes finds them.
3. A commit whose outcome is unknown poisons the writer: if it landed, the next flush would take its generation number
   for its own, and be skipped. So there is never a second mark before the first one is decided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from lance_memwal.crash_points import reach
from lance_memwal.errors import FencedError, TableReplacedError
from lance_memwal.memtable.memtable import MemTable
from lance_memwal.process.deadline import Deadline
from lance_memwal.rows.adapt import live_flags
from lance_memwal.sstable.write import not_published
from lance_memwal.types import EntryTransaction, SsTable, Transaction
from lance_memwal.write.flush import publish
from lance_memwal.write.life import drain
from lance_memwal.write.queue import WriteRows
from lance_memwal.write.shard import Shard


@dataclass(frozen=True, slots=True)
class Published:
    """What was published: its batch numbers, and its rows."""

    positions: range
    num_rows: int


def publish_bulk(shard: Shard, decide: Callable[[], WriteRows | None], txn: Transaction | None) -> Published | None:
    """Publish the rows that `decide` gives as one generation; returns None if `txn` was there already.

    They are asked for when nobody else writes, and everything that came before is in SSTables. None: there is nothing to
    publish.
    """
    return shard.commits.alone(lambda: _publish(shard, decide, txn))


def _publish(shard: Shard, decide: Callable[[], WriteRows | None], txn: Transaction | None) -> Published | None:
    health, commits = shard.health, shard.commits
    commits.make_durable(commits.buffered)
    if txn is not None:
        with health.lock:
            if not commits.admit(txn):
                return None
    active = _flush_all(shard)
    rows = decide()
    if rows is None:
        return Published(range(active.first_batch, active.first_batch), 0)
    health.look_at_table()
    started = shard.clock.monotonic()
    sstable = shard.write_sstable(active.generation, _table(shard.columns.target.schema.memory, rows))
    with not_published(shard.manifests.location, shard.log.shard_id, sstable.path):
        reach("bulk.before_mark")
        with health.lock:
            health.refuse_commits()
        health.look_at_table()
    end = active.first_batch + len(rows.batches)
    txns = () if txn is None else (EntryTransaction(txn, 0, rows.num_rows),)
    try:
        _commit(shard, sstable, txns, end)
    except (FencedError, TableReplacedError) as error:
        health.fail(error)
        raise
    except BaseException as error:
        poison = health.poisoned("whether a large put was published is unknown", error)
        if isinstance(error, Exception):
            raise poison from error
        raise  # an interrupt stays one
    with health.lock:
        shard.stats.count_flush(rows.num_rows, shard.clock.monotonic() - started)
    return Published(range(active.first_batch, end), rows.num_rows)


def _flush_all(shard: Shard) -> MemTable:
    """Flush what came before; returns the empty active memtable."""
    tables = shard.tables.need()
    shard.seal()
    drain(shard, Deadline(shard.clock), "nothing of the put was written, retry")
    with shard.health.lock:
        shard.health.refuse_writes()
        return tables.active


def _commit(shard: Shard, sstable: SsTable, txns: tuple[EntryTransaction, ...], end: int) -> None:
    footer = shard.commits.mark_bulk(sstable, txns)
    covered = shard.log.next_position - 1
    reach("bulk.before_commit")
    shard.health.look_at_table()
    publish(shard.manifests, shard.log.epoch, sstable, covered)
    reach("bulk.after_commit")
    with shard.health.lock:
        shard.tables.need().begin(sstable.generation + 1, end, covered)
        shard.commits.skip_to(end, footer)


def _table(memory: pa.Schema, rows: WriteRows) -> pa.Table:
    """All rows with `_tombstone`, uncombined: together they may be more than one Arrow array can hold."""
    batches = [
        pa.RecordBatch.from_arrays(
            [*batch.columns, live_flags(batch.num_rows) if flags is None else flags],
            schema=memory,
        )
        for batch, flags in zip(rows.batches, rows.flags, strict=True)
    ]
    return pa.Table.from_batches(batches)
