"""Reads of one table, always of its newest state.

Owns `Reader`. Invariants:

1. Every read looks at the newest version of the base table. It also follows a table that was dropped and made anew at the
   same place.
2. Shards in which no row can match are left out, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from lance_memwal.arguments import check_flag
from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.memtable import live
from lance_memwal.memtable.memtable import InMemoryMemTables
from lance_memwal.process.telemetry import spanned
from lance_memwal.read.asked_key import AskedKey
from lance_memwal.read.base_rows import BaseLookup
from lance_memwal.read.blobs import BlobFile, check_blob_column, find_blob, with_bytes
from lance_memwal.read.late_rows import column_parts, highest_of, highest_of_base, with_remembered
from lance_memwal.read.lookup import Undecided, get_from_memory, lookup_rows
from lance_memwal.read.one_row import find_row, live_writers
from lance_memwal.read.scan import Scan
from lance_memwal.read.search import SearchRequest, search
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.read.tiers import Consistency, Tiers, TierSource, with_restarts
from lance_memwal.rows.blobs import blob_column_of
from lance_memwal.rows.filter import FilterLike
from lance_memwal.rows.ingest import key_batch
from lance_memwal.rows.merging import LastWrite
from lance_memwal.rows.projection import checked_paths
from lance_memwal.rows.schema import TableSchema
from lance_memwal.rows.sharding import Sharding, shards_of_filter, shards_of_keys
from lance_memwal.sstable.deletes import RememberedDeletes, remembered_deletes
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest

__all__ = ["MemTables", "Reader", "ScanAt"]

T = TypeVar("T")
ScanAt: TypeAlias = Callable[[Location, Snapshot, dict[str, Any]], Scan]
MemTables = InMemoryMemTables | Iterable[InMemoryMemTables]


class Reader:
    """Scans, lookups and searches of one table. Threads may share it."""

    def __init__(
        self,
        newest: NewestBase,
        clock: Clock = SYSTEM_CLOCK,
        lookup: BaseLookup | None = None,
        scan_at: ScanAt | None = None,
    ) -> None:
        """`scan_at` is the function that makes a scan where a pickled one arrives."""
        self._newest = newest
        self._scan_at = scan_at
        self._clock = clock
        self._snapshots = TierSource(newest, clock)
        self._lookup = lookup if lookup is not None else BaseLookup()

    def capture(
        self,
        filter: FilterLike | None = None,  # noqa: A002
        *,
        consistency: Consistency = "fresh",
        shards: Collection[str] | None = None,
        in_memory: MemTables | None = None,
    ) -> Tiers:
        """A snapshot of what a read with `filter` needs."""
        candidates = partial(_of_filter, filter)
        return self._snapshots.capture(
            consistency=consistency, shards=shards, in_memory=in_memory, candidates=candidates
        )

    def snapshot(self, filter: FilterLike | None = None, *, consistency: Consistency = "fresh") -> Snapshot:  # noqa: A002
        """What a read with `filter` needs of storage, as a value that can travel."""
        return self._snapshots.snapshot(consistency=consistency, candidates=partial(_of_filter, filter))

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: FilterLike | None = None,  # noqa: A002
        limit: int | None = None,
        offset: int | None = None,
        *,
        order_by: Sequence[str] | None = None,
        with_row_address: bool = False,
        with_generation: bool = False,
        with_row_id: bool = False,
        consistency: Consistency = "fresh",
        shards: Collection[str] | None = None,
        in_memory: MemTables | None = None,
    ) -> Scan:
        """All live rows of all tiers as of now."""
        travel = partial(self._travel, filter, consistency, shards)
        return Scan(
            lambda: self.capture(filter, consistency=consistency, shards=shards, in_memory=in_memory),
            travel=None if self._scan_at is None or in_memory is not None else travel,
            columns=columns,
            filter=filter,
            limit=limit,
            offset=offset,
            order_by=order_by,
            with_row_address=with_row_address,
            with_generation=with_generation,
            with_row_id=with_row_id,
        )

    def _travel(
        self,
        filter: FilterLike | None,  # noqa: A002
        consistency: Consistency,
        shards: Collection[str] | None,
        query: dict[str, Any],
    ) -> tuple[Any, ...]:
        """How a scan is pickled."""
        now = self.snapshot(filter, consistency=consistency)
        if shards is not None:
            now = replace(now, shards=tuple(shard for shard in now.shards if shard.shard_id in shards))
        return self._scan_at, (self._newest.location, now, query)

    @spanned("memwal.get", "get")
    def get(
        self, key: Any, columns: Sequence[str] | None = None, *, writer: live.LiveShard | None = None
    ) -> dict[str, Any] | None:
        """The live row of one key, or None; with `writer` only its shard and the base table are asked."""
        base = self._snapshots.base(self._newest.with_index())
        schema = base.columns
        if columns is not None:
            columns = checked_paths(columns, schema.shown.columns)
        one = AskedKey(key, schema)
        writers = live_writers(base, one) if writer is None else [writer]
        row = get_from_memory(writers, base.table_id, schema, one.held, columns, self._newest_manifest)
        if not isinstance(row, Undecided) and (row is not None or writer is not None or _is_in_one_shard(base)):
            return row
        shards = None if writer is None else [writer.shard_id]
        if one.held is not None:
            return self._row_of(base, one, columns, shards)
        found = self._rows_of(base, [key], columns, shards)
        return found.to_pylist()[0] if found.num_rows else None

    def _row_of(
        self, base: BaseTable, key: AskedKey, columns: Sequence[str] | None, shards: Collection[str] | None
    ) -> dict[str, Any] | None:
        def of_key(base: BaseTable, listed: Collection[str]) -> Collection[str] | None:
            return key.shards(_sharding(base), base.primary_key, listed)

        def read(snapshot: Tiers) -> dict[str, Any] | None:
            return find_row(snapshot, self._lookup, key, checked_paths(columns, snapshot.schema.columns))

        return with_restarts(lambda: self._snapshots.capture(shards=shards, candidates=of_key, before=base), read)

    def get_blob(self, key: Any, column: str, *, writer: live.LiveShard | None = None) -> BlobFile | None:
        """The blob of the live row of one key, as a file; None if there is no row, or its blob is null."""
        base = self._newest.with_index()
        check_blob_column(base.columns.shown.columns, column)
        memtables = None if writer is None else writer.capture()
        shards = None if writer is None else [writer.shard_id]

        def read(snapshot: Tiers, named: pa.RecordBatch) -> BlobFile | None:
            return find_blob(snapshot, self._lookup, named, column)

        return self._of_keys(base, [key], read, shards, memtables)

    @spanned("memwal.lookup", "lookup")
    def lookup(
        self,
        keys: Any,
        columns: Sequence[str] | None = None,
        *,
        with_tombstones: bool = False,
        shards: Collection[str] | None = None,
        in_memory: MemTables | None = None,
    ) -> pa.Table:
        """The live rows of many keys, each once and in no order; keys without a row are left out."""
        check_flag("with_tombstones", with_tombstones)
        base = self._newest.with_index()
        return self._rows_of(base, keys, columns, shards, in_memory, with_tombstones=with_tombstones)

    def newest_rows(
        self,
        keys: pa.RecordBatch,
        columns: Sequence[str],
        schema: TableSchema,
        memory: InMemoryMemTables,
    ) -> pa.Table:
        """The newest row of each key in the shard of `memory`, else in the base table: `columns`, the key among them, and
        `_tombstone`. The bytes of blobs have the names of `bytes_of`.

        If the sequence of the table is asked for, a key that has none may have a tombstone that was compacted, and is
        remembered.

        `InvalidInputError` if the table has other columns than `schema` by now: a row that is made of what is found here
        would not have them.
        """

        return self._newest_rows(keys, columns, schema, memory.shard_id, memory)

    def stored_rows(self, shard_id: str, keys: pa.RecordBatch, columns: Sequence[str], schema: TableSchema) -> pa.Table:
        """As `newest_rows`, for somebody who appends to the shard without memory: its whole log is read."""
        return self._newest_rows(keys, columns, schema, shard_id, None)

    def _newest_rows(
        self,
        keys: pa.RecordBatch,
        columns: Sequence[str],
        schema: TableSchema,
        shard_id: str,
        memory: InMemoryMemTables | None,
    ) -> pa.Table:
        def capture() -> Tiers:
            return self._snapshots.capture(shards=[shard_id], in_memory=memory)

        def read(snapshot: Tiers) -> pa.Table:
            if snapshot.schema != schema.shown:
                raise InvalidInputError("the table has other columns by now: call evolve_schema(), and write again")
            plain = [name for name in columns if blob_column_of(name) is None]
            found = lookup_rows(snapshot, self._lookup, keys, plain, with_tombstones=True)
            order = snapshot.base.order
            if order is not None and order.sequence in columns and found.num_rows < keys.num_rows:
                remembered = self._remembered(schema, shard_id, order)
                found = with_remembered(found, keys, schema, remembered, order.sequence)
            return found if len(plain) == len(columns) else with_bytes(snapshot, self._lookup, found, columns, schema)

        return with_restarts(capture, read)

    def _remembered(self, schema: TableSchema, shard_id: str, merge: LastWrite) -> RememberedDeletes:
        """The deletes that are remembered; asked for after the base table was captured."""
        location, since_ms = self._newest.location, self._clock.now_ms() - merge.remember_ms
        return remembered_deletes(location, shard_id, schema, merge.sequence, since_ms=since_ms)

    def highest_sequence(self, schema: TableSchema, merge: LastWrite, memory: InMemoryMemTables) -> Any:
        """The highest sequence in the shard of `memory` and the base table, tombstones and remembered deletes too; None if
        there is none."""
        name = merge.sequence

        def read(snapshot: Tiers) -> Any:
            deleted = self._remembered(schema, memory.shard_id, merge).sequences
            fresh = highest_of([*column_parts(snapshot, name), deleted])
            base = highest_of_base(snapshot.base, name)
            return max((found for found in (fresh, base) if found is not None), default=None)

        return with_restarts(lambda: self._snapshots.capture(shards=[memory.shard_id], in_memory=memory), read)

    def _rows_of(
        self,
        base: BaseTable,
        keys: Any,
        columns: Sequence[str] | None,
        shards: Collection[str] | None = None,
        in_memory: MemTables | None = None,
        *,
        with_tombstones: bool = False,
    ) -> pa.Table:
        def read(snapshot: Tiers, named: pa.RecordBatch) -> pa.Table:
            wanted = snapshot.schema.columns.names if columns is None else columns
            return lookup_rows(snapshot, self._lookup, named, wanted, with_tombstones=with_tombstones)

        return self._of_keys(base, keys, read, shards, in_memory)

    def _of_keys(
        self,
        base: BaseTable,
        keys: Any,
        read: Callable[[Tiers, pa.RecordBatch], T],
        shards: Collection[str] | None,
        in_memory: MemTables | None,
    ) -> T:
        """What `read` finds of `keys` in the shards that can hold them, and in the base table."""
        named = key_batch(keys, base.columns)

        def of_keys(base: BaseTable, listed: Collection[str]) -> Collection[str] | None:
            return shards_of_keys(_sharding(base), base.primary_key, named.column, listed)

        def capture() -> Tiers:
            return self._snapshots.capture(shards=shards, in_memory=in_memory, candidates=of_keys, before=base)

        return with_restarts(capture, lambda snapshot: read(snapshot, named))

    @spanned("memwal.search", "search")
    def search(self, request: SearchRequest, consistency: Consistency = "fresh") -> pa.Table:
        """The best live rows for a vector, a text, or both, best first."""
        return with_restarts(lambda: self._snapshots.capture(consistency=consistency), lambda s: search(s, request))

    def _newest_manifest(self, shard_id: str) -> ShardManifest | None:
        return self._snapshots.manifests(shard_id).read_again()


def _is_in_one_shard(base: BaseTable) -> bool:
    """Whether a key that was deleted in one shard cannot live in another."""
    return base.sharding.keeps_keys_together(base.primary_key)


def _of_filter(filter: FilterLike | None, base: BaseTable, shards: Collection[str]) -> Collection[str] | None:  # noqa: A002
    """Those of `shards` in which rows can match, or None for all."""
    return shards_of_filter(_sharding(base), filter, base.schema, base.primary_key, shards)


def _sharding(base: BaseTable) -> Sharding:
    base.need_details()
    return base.sharding
