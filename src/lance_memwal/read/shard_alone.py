"""Reads of a shard whose base table is not there yet.

Owns `ShardAlone`: what `Reader` answers of a table, of one shard: its SSTables and the memtables of its writer. Invariants:

1. Memtables are captured before the manifest: a row may be met twice, never missed.
2. What the shard's manifest lists is all that is flushed: no base table means that nothing was compacted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.memtable.live import LiveShard
from lance_memwal.memtable.memtable import InMemoryMemTables
from lance_memwal.read.base_rows import BaseLookup
from lance_memwal.read.lookup import Undecided, get_from_memory, lookup_rows
from lance_memwal.read.scan import Scan
from lance_memwal.read.tiers import Tiers, with_restarts
from lance_memwal.rows.filter import FilterLike
from lance_memwal.rows.ingest import key_batch
from lance_memwal.rows.projection import checked_paths
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store.location import Location

__all__ = ["ShardAlone"]


class ShardAlone:
    """Scans and lookups of one shard without a base table, for its writer."""

    def __init__(self, location: Location, schema: TableSchema, manifests: ShardManifestStore) -> None:
        self._location = location
        self._schema = schema
        self._manifests = manifests

    def _capture(self, memtables: InMemoryMemTables) -> Tiers:
        manifest = self._manifests.read_latest()
        if manifest is None:
            return Tiers.of_memory(self._location, self._schema, memtables)
        return Tiers.of_shard(self._location, self._schema, manifest, memtables)

    def scan(
        self,
        columns: Sequence[str] | None,
        filter: FilterLike | None,  # noqa: A002
        limit: int | None,
        offset: int | None,
        *,
        shards: Collection[str],  # noqa: ARG002
        in_memory: InMemoryMemTables,
        **options: Any,
    ) -> Scan:
        """All live rows of the shard."""
        return Scan(
            lambda: self._capture(in_memory), columns=columns, filter=filter, limit=limit, offset=offset, **options
        )

    def lookup(
        self,
        keys: Any,
        columns: Sequence[str] | None = None,
        *,
        with_tombstones: bool = False,
        shards: Collection[str],  # noqa: ARG002
        in_memory: InMemoryMemTables,
    ) -> pa.Table:
        """The live rows of many keys, each once and in no order."""
        named = key_batch(keys, self._schema)

        def read(snapshot: Tiers) -> pa.Table:
            wanted = snapshot.schema.columns.names if columns is None else columns
            return lookup_rows(snapshot, BaseLookup(), named, wanted, with_tombstones=with_tombstones)

        return with_restarts(lambda: self._capture(in_memory), read)

    def newest_rows(
        self,
        keys: pa.RecordBatch,
        columns: Sequence[str],
        schema: TableSchema,  # noqa: ARG002
        memory: InMemoryMemTables,
    ) -> pa.Table:
        """The newest row of each key: `columns` and `_tombstone`."""
        return with_restarts(
            lambda: self._capture(memory), lambda s: lookup_rows(s, BaseLookup(), keys, columns, with_tombstones=True)
        )

    def get(self, key: Any, columns: Sequence[str] | None = None, *, writer: LiveShard) -> dict[str, Any] | None:
        """The live row of one key, or None."""
        memtables = writer.capture()
        if memtables is None:
            raise InvalidInputError("this writer has no memtables (WAL-only mode): open it with enable_memtable=True")
        if columns is not None:
            columns = checked_paths(columns, self._schema.shown.columns)
        row = get_from_memory([writer], None, self._schema, key, columns, lambda _: self._manifests.read_latest())
        if not isinstance(row, Undecided):
            return row
        found = self.lookup([key], columns, shards=[writer.shard_id], in_memory=memtables)
        return found.to_pylist()[0] if found.num_rows else None
