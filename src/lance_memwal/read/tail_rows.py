"""The unflushed rows of a shard's log: as memtables, or their keys alone.

Owns `TailRows`, `tail_memtables` and `tail_keys`. Invariants:

1. All see the same rows: those that no SSTable holds, in the columns of the schema that they are given.
2. `tail_keys` holds keys, and no more entries than are read ahead.
3. What this version does not understand is warned of, once the tail was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from lance_memwal.errors import CollectedError
from lance_memwal.log.manifest_codec import unknown_fields
from lance_memwal.log.reading import read_run, read_tail, with_texts
from lance_memwal.log.tail import unflushed
from lance_memwal.log.understood import KnownColumns, warn_unknown
from lance_memwal.memtable.memtable import InMemoryMemTableRef, MemTable
from lance_memwal.rows.adapt import RowAdapter
from lance_memwal.rows.keys import concat_keys, key_array
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest, WalEntry


@dataclass(frozen=True, slots=True)
class TailKeys:
    """What a tail holds: rows and bytes, superseded ones and tombstones included, and every key (None: there is none)."""

    rows: int
    size_bytes: int
    keys: pa.Array | None


class _Looked:
    """Entries that were looked at, and what this version does not understand of them."""

    def __init__(self, location: Location, schema: TableSchema) -> None:
        self._known = KnownColumns(location, schema)
        self._unknown: dict[str, None] = {}
        self.next_position = 0

    def over(self, entries: Iterable[WalEntry]) -> Iterator[WalEntry]:
        """The same entries, each looked at before it is handed on."""
        for entry in entries:
            self._unknown |= dict.fromkeys(self._known.unknown_in(entry))
            self.next_position = entry.position + 1
            yield entry

    def warn(self, manifest: ShardManifest) -> None:
        """Say what was not understood, of the manifest too."""
        of_manifest = (f"manifest {name}" for name in unknown_fields(manifest))
        warn_unknown(manifest.shard_id, tuple(dict.fromkeys([*of_manifest, *self._unknown])))


class TailRows:
    """The rows of the entries after a cursor, in memtables, one per generation. More entries may follow."""

    def __init__(self, location: Location, manifest: ShardManifest, schema: TableSchema, tag: str | None) -> None:
        self._location = location
        self._manifest = manifest
        self._schema = schema
        self._tag = tag
        self._adapter = RowAdapter(schema)
        self._looked = _Looked(location, schema)
        self._looked.next_position = manifest.replay_after_wal_entry_position + 1
        self._tables: list[MemTable] = []
        self._newest = manifest.current_generation

    @property
    def next_position(self) -> int:
        """The position after the last entry that was taken in."""
        return self._looked.next_position

    @property
    def size_bytes(self) -> int:
        """Resident bytes."""
        return sum(table.size_bytes + table.index_bytes for table in self._tables)

    def take(self, entries: Iterable[WalEntry]) -> None:
        """Take in the next entries of the log."""
        rows = unflushed(self._looked.over(entries), self._manifest.current_generation, self._newest)
        for generation, entry in with_texts(rows, self._schema):
            self._newest = max(self._newest, generation)
            if not self._tables or self._tables[-1].generation != generation:
                self._tables.append(MemTable(self._schema, generation, 0, entry.position))
            for number, batch in enumerate(entry.batches):
                again = partial(self._read_again, entry.position, number) if self._schema.blobs else None
                adapted = self._adapter.adapt(batch, entry.base, position=entry.position)
                self._tables[-1].append(*adapted, again=again)

    def captured(self, manifest: ShardManifest) -> tuple[InMemoryMemTableRef, ...]:
        """All rows that were taken in."""
        self._looked.warn(manifest)
        return tuple(table.capture() for table in self._tables)

    def _read_again(self, position: int, number: int) -> pa.RecordBatch:
        """One batch of a tail, whose blobs nobody holds; `CollectedError` if its entry is gone."""
        shard_id = self._manifest.shard_id
        for entry in read_run(self._location, shard_id, position, position + 1, tag=self._tag):
            rows, _ = RowAdapter(self._schema).adapt(entry.batches[number], entry.base, position=position)
            return rows
        raise CollectedError(f"position {position} of shard {shard_id} was collected meanwhile; read again")


def tail_memtables(
    location: Location, manifest: ShardManifest, end: int | None, schema: TableSchema, tag: str | None
) -> tuple[InMemoryMemTableRef, ...]:
    """The unflushed rows of a tail as memtables, one per generation."""
    rows = TailRows(location, manifest, schema, tag)
    rows.take(read_tail(location, manifest, end, tag=tag))
    return rows.captured(manifest)


def tail_keys(
    location: Location, manifest: ShardManifest, end: int | None, schema: TableSchema, tag: str | None, *, above: int
) -> TailKeys:
    """The keys of the unflushed rows of a tail whose generation is above `above`; without a primary key only their number."""
    key = schema.primary_key
    adapter = RowAdapter(schema.of_key)
    rows, size_bytes = 0, 0
    parts: list[pa.Array] = []
    looked = _Looked(location, schema)
    entries = looked.over(read_tail(location, manifest, end, tag=tag))
    for generation, entry in unflushed(entries, manifest.current_generation):
        if generation <= above:
            continue
        rows += entry.num_rows
        size_bytes += entry.size_bytes
        for batch in entry.batches if key else ():
            adapted, _ = adapter.adapt(batch, entry.base, position=entry.position)
            parts.append(key_array(adapted.columns).unique())  # a copy: the entry is let go
    looked.warn(manifest)
    return TailKeys(rows, size_bytes, concat_keys(parts) if parts else None)
