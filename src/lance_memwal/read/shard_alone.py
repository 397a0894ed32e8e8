"""Reads of a shard that has no base table yet.

Owns `ShardAlone`, which captures the SSTables of one shard and the memtables of its writer. Invariants:

1. Memtables are captured before the manifest: a read may meet a row twice, but never misses it.
2. The manifest of the shard lists everything that is flushed: without a base table, no generation was compacted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.memtable.live import LiveShard
from lance_memwal.memtable.memtable import InMemoryMemTables
from lance_memwal.read.blobs import with_bytes
from lance_memwal.read.lookup import LookupKeys, Undecided, get_from_memory, lookup_rows
from lance_memwal.read.scan import Read
from lance_memwal.read.tiers import ShardView, Tiers, captures_by_shard, with_restarts
from lance_memwal.rows.blobs import blob_column_of
from lance_memwal.rows.projection import checked_paths
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store.location import Location


class ShardAlone:
    """One shard without a base table, for its writer."""

    def __init__(self, location: Location, shard_id: str, schema: TableSchema, manifests: ShardManifestStore) -> None:
        self._location = location
        self._shard_id = shard_id
        self._schema = schema
        self._manifests = manifests

    def capture(self, read: Read, keys: LookupKeys | None = None) -> Tiers:
        """The tiers of the shard."""
        if keys is not None:
            keys.columns(self._schema)
        memory = InMemoryMemTables.merged(captures_by_shard(read.in_memory)[self._shard_id])
        return self._tiers(memory, is_fresh=read.consistency == "fresh")

    def _tiers(self, memory: InMemoryMemTables, *, is_fresh: bool = True) -> Tiers:
        manifest = self._manifests.read_latest()
        if not is_fresh:
            views = () if manifest is None else (ShardView(manifest).above(0, self._schema),)
            return Tiers(self._location, self._schema.shown, None, views)
        if manifest is None:
            return Tiers.of_memory(self._location, self._schema, memory)
        return Tiers.of_shard(self._location, self._schema, manifest, memory)

    def find_in_memory(
        self, keys: LookupKeys, columns: Sequence[str] | None, writer: LiveShard
    ) -> dict[str, Any] | Undecided | None:
        """The row of one key in the memtables of `writer`."""
        if columns is not None:
            columns = checked_paths(columns, self._schema.shown.columns)
        held = keys.key(self._schema).held
        return get_from_memory([writer], None, self._schema, held, columns, lambda _: self._manifests.read_latest())

    def newest_rows(
        self,
        keys: pa.RecordBatch,
        columns: Sequence[str],
        schema: TableSchema,
        memory: InMemoryMemTables,
    ) -> pa.Table:
        """The newest row of each key: `columns` and `_tombstone`. The bytes of blobs have the names of `bytes_of`."""

        def read(snapshot: Tiers) -> pa.Table:
            plain = [name for name in columns if blob_column_of(name) is None]
            found = lookup_rows(snapshot, keys, plain, with_tombstones=True)
            return with_bytes(snapshot, found, columns, schema)

        return with_restarts(lambda: self._tiers(memory), read)
