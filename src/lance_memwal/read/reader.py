"""Reads of the newest state of one table.

Owns `Reader`. Invariants:

1. Every read checks for the newest version of the base table. It also follows a table that was dropped and re-created at the
   same URI.
2. A read leaves out only shards in which no row can match.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.memtable import live
from lance_memwal.memtable.memtable import InMemoryMemTables
from lance_memwal.read.blobs import with_bytes
from lance_memwal.read.late_rows import column_parts, highest_of, highest_of_base, with_remembered
from lance_memwal.read.lookup import UNDECIDED, LookupKeys, Undecided, get_from_memory, live_writers, lookup_rows
from lance_memwal.read.readable import Readable
from lance_memwal.read.scan import Pickled, Read, Scan
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.read.tiers import Candidates, Consistency, Tiers, TierSource, with_restarts
from lance_memwal.rows.blobs import blob_column_of
from lance_memwal.rows.filter import FilterLike, RowFilter
from lance_memwal.rows.merging import LastWrite
from lance_memwal.rows.projection import checked_paths
from lance_memwal.rows.schema import TableSchema
from lance_memwal.rows.sharding import shards_of_filter
from lance_memwal.sstable.deletes import RememberedDeletes, remembered_deletes
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest

ScanAt: TypeAlias = Callable[[Location, Snapshot, Read], Scan]
_EVERYTHING: Final = Read()


class Reader(Readable):
    """Scans, lookups and searches of one table. Threads may share it."""

    def __init__(
        self,
        newest: NewestBase,
        clock: Clock = SYSTEM_CLOCK,
        scan_at: ScanAt | None = None,
    ) -> None:
        """`scan_at` is the function that makes a scan where a pickled one arrives."""
        self._newest = newest
        self._scan_at = scan_at
        self._clock = clock
        self._snapshots = TierSource(newest, clock)

    def capture(self, read: Read = _EVERYTHING, keys: LookupKeys | None = None) -> Tiers:
        """The tiers that a read needs."""
        candidates: Candidates = partial(_of_filter, read.filter)
        base: BaseTable | None = None
        if keys is not None:
            base, keys.base = keys.base or self._newest.with_index(), None
            keys.columns(base.columns)
            candidates = keys.shards
        return self._snapshots.capture(
            consistency=read.consistency,
            shards=read.shards,
            in_memory=read.in_memory,
            candidates=candidates,
            before=base,
        )

    _capture = capture

    def snapshot(self, filter: FilterLike | None = None, *, consistency: Consistency = "fresh") -> Snapshot:  # noqa: A002
        """What a read with `filter` needs of storage, as a value that can travel."""
        return self._snapshots.snapshot(consistency=consistency, candidates=partial(_of_filter, filter))

    def pickled(self, read: Read) -> tuple[Any, ...]:
        """How a scan is pickled: as the snapshot of the time when it is."""
        now = self.snapshot(read.filter, consistency=read.consistency)
        if read.shards is not None:
            now = replace(now, shards=tuple(shard for shard in now.shards if shard.shard_id in read.shards))
        return self._scan_at, (self._newest.location, now, replace(read, shards=None, consistency="fresh"))

    def _pickled(self) -> Pickled | None:
        return None if self._scan_at is None else self.pickled

    def find_in_memory(
        self, keys: LookupKeys, columns: Sequence[str] | None, writer: live.LiveShard | None = None
    ) -> dict[str, Any] | Undecided | None:
        """The row of one key in memtables of this process; with `writer` in those of its shard alone."""
        base = keys.base = self._snapshots.base(self._newest.with_index())
        schema = base.columns
        if columns is not None:
            columns = checked_paths(columns, schema.shown.columns)
        key = keys.key(schema)
        writers = live_writers(base, key) if writer is None else [writer]
        row = get_from_memory(writers, base.table_id, schema, key.held, columns, self._newest_manifest)
        if row is None and writer is None and not _is_in_one_shard(base):
            return UNDECIDED
        return row

    _find_in_memory = find_in_memory

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
            found = lookup_rows(snapshot, keys, plain, with_tombstones=True)
            order = snapshot.base.order
            if order is not None and order.sequence in columns and found.num_rows < keys.num_rows:
                remembered = self._remembered(schema, shard_id, order)
                found = with_remembered(found, keys, schema, remembered, order.sequence)
            return with_bytes(snapshot, found, columns, schema)

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

    def _newest_manifest(self, shard_id: str) -> ShardManifest | None:
        return self._snapshots.manifests(shard_id).read_again()


def _is_in_one_shard(base: BaseTable) -> bool:
    """Whether a key that was deleted in one shard cannot live in another."""
    return base.sharding.keeps_keys_together(base.primary_key)


def _of_filter(
    given: FilterLike | RowFilter | None, base: BaseTable, shards: Collection[str]
) -> Collection[str] | None:
    """Those of `shards` in which rows can match, or None for all."""
    base.need_details()
    return shards_of_filter(base.sharding, given, base.schema, base.primary_key, shards)
