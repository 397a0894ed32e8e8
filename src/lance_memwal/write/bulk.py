"""A put that is too large for one WAL entry: published as a generation of its own.

Owns `publish_bulk`. Invariants:

1. Other writes wait; everything that came before is flushed first, as generation g, so that g + 1 can follow it.
2. The rows are never in the log: the manifest commit is their acknowledgement, with the cursor at the tip.
3. A transaction lies beside the generation, as a map of its own, since no entry carries it. The first entry of the next
   generation carries it in the whole map.
4. A commit whose outcome is unknown poisons the writer: if it landed, the next flush would take its generation number
   for its own, and be skipped.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lance_memwal.crash_points import reach
from lance_memwal.errors import FencedError
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.transactions import encode_map
from lance_memwal.memtable.memtable import MemTable
from lance_memwal.sstable.write import not_published
from lance_memwal.store import paths
from lance_memwal.types import SeenTransaction, SsTable, Transaction
from lance_memwal.write.flush import SsTableWriter, count_flush, publish
from lance_memwal.write.group_commit import ShardCore
from lance_memwal.write.pending import WriteRows

__all__ = ["publish_bulk"]


def publish_bulk(
    core: ShardCore,
    manifests: ShardManifestStore,
    write: SsTableWriter,
    rows: WriteRows,
    txn: Transaction | None,
) -> range | None:
    """Publish `rows` as one generation; returns their batch numbers, or None if `txn` was there already."""
    core.wait_until(lambda: _take_turn(core), None)
    try:
        return _publish(core, manifests, write, rows, txn)
    finally:
        with core.lock:
            core.exclusive = False
            core.changed.wake_all()


def _take_turn(core: ShardCore) -> bool:
    """Keep other writes out, unless another large one does; `lock` is held."""
    if core.exclusive:
        return False
    core.refuse_writes()
    core.exclusive = True
    return True


def _publish(
    core: ShardCore, manifests: ShardManifestStore, write: SsTableWriter, rows: WriteRows, txn: Transaction | None
) -> range | None:
    core.make_durable(core.buffered)
    if txn is not None:
        with core.lock:
            if core.transactions.is_repeat(txn):
                return None
            core.transactions.admit(txn)
    active = _flush_all(core)
    core.look_at_table()
    started = core.clock.monotonic()
    sstable = write(active.generation, _table(core.schema.memory, rows))
    beside: dict[str, SeenTransaction] = {}
    with not_published(manifests.location, manifests.shard_id, sstable.path):
        if txn is not None:
            beside[txn.app] = SeenTransaction(txn.version, core.transactions.time.next_ms(), txn.query)
            reach("bulk.before_map")
            _put_map(core, sstable, beside)
        reach("bulk.before_commit")
        with core.lock:
            core.refuse_commits()
        core.look_at_table()
    try:
        _commit(core, manifests, sstable, beside, active, active.first_batch + len(rows.batches))
    except FencedError as error:
        core.fail(fenced=error)
        raise
    except BaseException as error:
        raise core.poisoned("whether a large put was published is unknown", error) from error
    count_flush(core, rows.num_rows, core.clock.monotonic() - started)
    return range(active.first_batch, active.first_batch + len(rows.batches))


def _flush_all(core: ShardCore) -> MemTable:
    """Flush what came before; returns the empty active memtable."""
    core.seal()
    core.wait_until(lambda: not core.frozen, None)
    with core.lock:
        core.refuse_writes()
        if core.active is None:
            raise AssertionError("bulk writes need a memtable")
        return core.active


def _commit(
    core: ShardCore,
    manifests: ShardManifestStore,
    sstable: SsTable,
    beside: dict[str, SeenTransaction],
    active: MemTable,
    end_batch: int,
) -> None:
    covered = core.log.next_position - 1
    publish(manifests, core.log.epoch, sstable, covered)
    reach("bulk.after_commit")
    with core.lock:
        fresh = core.new_memtable(active.generation + 1, end_batch, covered)
        core.transactions.merge(beside)
        core.active, core.durable = fresh, end_batch


def _table(memory: pa.Schema, rows: WriteRows) -> pa.Table:
    """All rows with `_tombstone`, uncombined: together they may be more than one Arrow array can hold."""
    batches = [
        pa.RecordBatch.from_arrays(
            [*batch.columns, pa.array(np.zeros(batch.num_rows, dtype=bool)) if flags is None else flags],
            schema=memory,
        )
        for batch, flags in zip(rows.batches, rows.flags, strict=True)
    ]
    return pa.Table.from_batches(batches)


def _put_map(core: ShardCore, sstable: SsTable, beside: dict[str, SeenTransaction]) -> None:
    path = paths.txn_map_path(core.log.shard_id, sstable.path)
    core.log.location.store.put(path, encode_map(beside), sync=core.config.fsync)
