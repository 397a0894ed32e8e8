"""A put that is too large for one WAL entry: published as a generation of its own.

Owns `publish_bulk`. Invariants:

1. Other writes wait; everything that came before is flushed first, as generation g, so that g + 1 can follow it.
2. The rows are never in the log: the manifest commit is their acknowledgement, with the cursor at the tip.
3. A transaction's map lies beside the generation, since no entry carries it.

Called by: the shard engine.
"""

from __future__ import annotations

from memwal.manifest import ShardManifestStore
from memwal.memtable import MemTable
from memwal.store import paths
from memwal.transactions import encode_map, is_repeat, with_transaction
from memwal.types import SeenTransaction, SsTable, Transaction
from memwal.writer.core import ShardCore, WriteRows
from memwal.writer.flusher import SsTableWriter, publish

__all__ = ["publish_bulk"]


def publish_bulk(
    core: ShardCore,
    manifests: ShardManifestStore,
    write: SsTableWriter,
    rows: WriteRows,
    txn: Transaction | None,
) -> range | None:
    """Publish `rows` as one generation; returns their batch numbers, or None if `txn` was there already."""
    with core.lock:
        core.wait_until(lambda: not core.exclusive, None)
        core.refuse_writes()
        core.exclusive = True
    try:
        return _publish(core, manifests, write, rows, txn)
    finally:
        with core.lock:
            core.exclusive = False
            core.changed.notify_all()


def _publish(
    core: ShardCore, manifests: ShardManifestStore, write: SsTableWriter, rows: WriteRows, txn: Transaction | None
) -> range | None:
    core.make_durable(core.buffered)
    if txn is not None and is_repeat(txn, core.seen):
        return None
    core.seal()
    with core.lock:
        core.wait_until(lambda: not core.frozen, None)
        core.refuse_writes()
        active = core.active
    if active is None:
        raise AssertionError("bulk writes need a memtable")
    bulk = MemTable(core.schema, active.generation, active.first_batch, core.log.next_position - 1)
    for batch, flags in zip(rows.batches, rows.flags, strict=True):
        bulk.append(batch, flags)
    sstable = write(bulk.generation, bulk.capture().table())
    seen = core.seen
    if txn is not None:
        seen = with_transaction(seen, txn, core.clock.now_ms())
        _put_map(core, sstable, seen)
    publish(manifests, core.log.epoch, sstable, bulk.covered_position)
    with core.lock:
        core.seen = seen
        core.buffered = core.durable = bulk.end_batch
        core.active = MemTable(core.schema, bulk.generation + 1, bulk.end_batch, bulk.covered_position)
    return range(bulk.first_batch, bulk.end_batch)


def _put_map(core: ShardCore, sstable: SsTable, seen: dict[str, SeenTransaction]) -> None:
    path = paths.txn_map_path(core.log.shard_id, sstable.path)
    core.log.location.store.put(path, encode_map(seen), sync=core.config.fsync)
