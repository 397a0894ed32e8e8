"""All rows of a shard, read the slow and obvious way, to check the fast one against.

Owns `merged_rows` (base table, listed SSTables as plain Lance datasets, memtables, merged in a dictionary) and
`peer_rows` (the same shard through pylance's own reader). Nothing here uses the engine's read path, sidecars, filters or
indexes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import lance
import pyarrow as pa
from lance.mem_wal import LsmScanner, ShardSnapshot

from lance_memwal.lance.base import BaseTable
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.memtable.memtable import InMemoryMemTables
from lance_memwal.shard_writer import ShardWriter
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.types import ShardManifest

__all__ = ["TOMBSTONE", "merged_rows", "peer_rows", "peer_snapshot", "stored_rows"]

TOMBSTONE = "_tombstone"


def merged_rows(writer: ShardWriter, uri: str) -> pa.Table:
    """The live rows of the writer's shard in all tiers, base table included, in no order."""
    memtables = writer.in_memory_memtable_refs()
    return _merge(resolve(uri), writer.manifest(), memtables)


def stored_rows(uri: str, shard_id: str) -> pa.Table:
    """The live rows of base table and SSTables: what is left of a shard whose writer was closed."""
    location = resolve(uri)
    return _merge(location, _manifest(location, shard_id), None)


def _manifest(location: Location, shard_id: str) -> ShardManifest:
    manifest = ShardManifestStore(location, shard_id).read_latest()
    if manifest is None:
        raise LookupError(f"shard {shard_id} has no manifest")
    return manifest


def _merge(location: Location, manifest: ShardManifest, memtables: InMemoryMemTables | None) -> pa.Table:
    base = BaseTable.open(location)
    if base is None:
        raise LookupError("there is no base table")
    keys, names = base.primary_key, base.schema.names
    compacted = 0 if base.details is None else base.details.compacted.get(manifest.shard_id, 0)
    tiers = [
        base.dataset.to_table(),
        *_sstables(location, manifest, compacted),
        *_memtables(memtables, max(manifest.current_generation, compacted + 1)),
    ]
    rows = [row for tier in tiers for row in tier.to_pylist()]
    if keys:
        rows = list({tuple(row[key] for key in keys): row for row in rows}.values())
    live = [
        {name: row.get(name) for name in names} for row in rows if not row.get(TOMBSTONE)
    ]  # an older tier lacks a new column
    return pa.Table.from_pylist(live, schema=base.schema)


def _sstables(location: Location, manifest: ShardManifest, compacted: int) -> Iterator[pa.Table]:
    for sstable in sorted(manifest.sstables, key=lambda item: item.generation):
        if sstable.generation > compacted:
            yield lance.dataset(location.child_uri(paths.sstable_dir(manifest.shard_id, sstable.path))).to_table()


def _memtables(memtables: InMemoryMemTables | None, first_generation: int) -> Iterator[pa.Table]:
    for ref in memtables.ascending if memtables is not None else ():
        if ref.generation >= first_generation:  # else it was published between the two looks
            yield ref.table()


def peer_rows(uri: str, shard_id: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of base table and SSTables as pylance reads them; it needs a primary key."""
    location = resolve(uri)
    scanner: Any = LsmScanner.from_snapshots(lance.dataset(location.dataset_uri), [peer_snapshot(uri, shard_id)])
    table = scanner.to_table()
    return table if columns is None else table.select(list(columns))


def peer_snapshot(uri: str, shard_id: str) -> ShardSnapshot:
    """What the newest manifest lists, as pylance's readers want to be told."""
    location = resolve(uri)
    manifest = _manifest(location, shard_id)
    snapshot = ShardSnapshot(shard_id).with_spec_id(manifest.shard_spec_id)
    snapshot = snapshot.with_current_generation(manifest.current_generation)
    for sstable in manifest.sstables:
        snapshot = snapshot.with_sstable(sstable.generation, sstable.path)
    return snapshot
