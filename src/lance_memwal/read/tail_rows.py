"""The unflushed rows of a shard's log: as memtables, or their keys alone.

Owns `tail_memtables` and `tail_keys`. Invariants:

1. Both see the same rows: those that no SSTable holds, in the columns of the schema that they are given.
2. `tail_keys` holds keys, and no more entries than are read ahead.
3. What this version does not understand is warned of, once the tail was read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from lance_memwal.errors import CollectedError
from lance_memwal.log.json_texts import with_texts
from lance_memwal.log.manifest_codec import unknown_fields
from lance_memwal.log.tail import unflushed
from lance_memwal.log.understood import KnownColumns, warn_unknown
from lance_memwal.log.wal import read_run, read_tail
from lance_memwal.memtable.memtable import InMemoryMemTableRef, MemTable
from lance_memwal.rows.adapt import RowAdapter
from lance_memwal.rows.keys import concat_keys, key_array
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest, WalEntry

__all__ = ["TailKeys", "tail_keys", "tail_memtables"]


@dataclass(frozen=True, slots=True)
class TailKeys:
    """What a tail holds: rows and bytes, superseded ones and tombstones included, and every key (None: there is none)."""

    rows: int
    size_bytes: int
    keys: pa.Array | None


def _unflushed(
    location: Location, manifest: ShardManifest, end: int | None, schema: TableSchema, tag: str | None
) -> Iterator[tuple[int, WalEntry]]:
    """The entries of a tail whose rows no SSTable holds, each with its generation."""
    known = KnownColumns(location, schema)
    unknown = [f"manifest {name}" for name in unknown_fields(manifest)]

    def looked_at() -> Iterator[WalEntry]:
        for entry in read_tail(location, manifest, end, tag=tag):
            unknown.extend(known.unknown_in(entry))
            yield entry

    yield from unflushed(looked_at(), manifest.current_generation)
    warn_unknown(manifest.shard_id, tuple(dict.fromkeys(unknown)))


def tail_memtables(
    location: Location, manifest: ShardManifest, end: int | None, schema: TableSchema, tag: str | None
) -> tuple[InMemoryMemTableRef, ...]:
    """The unflushed rows of a tail as memtables, one per generation."""
    adapter = RowAdapter(schema)
    tables: list[MemTable] = []
    for generation, entry in with_texts(_unflushed(location, manifest, end, schema, tag), schema):
        if not tables or tables[-1].generation != generation:
            tables.append(MemTable(schema, generation, 0, entry.position))
        for number, batch in enumerate(entry.batches):
            again = partial(_read_again, location, manifest, schema, tag, entry.position, number)
            tables[-1].append(*adapter.adapt(batch, position=entry.position), again=again if schema.blobs else None)
    return tuple(table.capture() for table in tables)


def tail_keys(
    location: Location, manifest: ShardManifest, end: int | None, schema: TableSchema, tag: str | None, *, above: int
) -> TailKeys:
    """The keys of the unflushed rows of a tail whose generation is above `above`; without a primary key only their number."""
    key = schema.primary_key
    adapter = RowAdapter(schema.of_key)
    rows, size_bytes = 0, 0
    parts: list[pa.Array] = []
    for generation, entry in _unflushed(location, manifest, end, schema, tag):
        if generation <= above:
            continue
        rows += entry.num_rows
        size_bytes += entry.size_bytes
        for batch in entry.batches if key else ():
            adapted, _ = adapter.adapt(batch, position=entry.position)
            parts.append(key_array(adapted.columns).unique())  # a copy: the entry is let go
    return TailKeys(rows, size_bytes, concat_keys(parts) if parts else None)


def _read_again(
    location: Location, manifest: ShardManifest, schema: TableSchema, tag: str | None, position: int, number: int
) -> pa.RecordBatch:
    """One batch of a tail, whose blobs nobody holds; `CollectedError` if its entry is gone."""
    for entry in read_run(location, manifest.shard_id, position, position + 1, tag=tag):
        rows, _ = RowAdapter(schema).adapt(entry.batches[number], position=position)
        return rows
    raise CollectedError(f"position {position} of shard {manifest.shard_id} was collected meanwhile; read again")
