"""The rows of published generations folded into one: newest per key, streaming. What compaction writes.

Owns `fold`; how rows are read is `lance_memwal.sstable.read`. Invariants:

1. The deletion vector of a generation is applied first, then the newest generation of the shard decides per key; a
   tombstone that decides is a delete, never a row.
2. Keys and tombstone flags are held in memory; rows only of generations that fit the given limit, the others are read
   again as a stream. Of generations that are streamed one after the other, the next ones are read ahead, within a limit.
   Rows with blobs are neither kept nor read ahead.
3. A key that several shards hold (tables that allow it) is folded once: a row beats a tombstone, the last shard wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.clock import in_order
from lance_memwal.errors import CorruptDataError, UndecidedColumnsError
from lance_memwal.rows.adapt import tombstone_flags
from lance_memwal.rows.blobs import is_blob
from lance_memwal.rows.keys import concat_keys, key_array, last_of_each, newest_of_each, one_array
from lance_memwal.rows.normal_form import no_rows
from lance_memwal.rows.past_columns import undecided_text
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.read import SsTableReader
from lance_memwal.store.location import Location
from lance_memwal.types import SsTable

_Mask = npt.NDArray[np.bool_]
_Chosen = tuple[pa.RecordBatch, _Mask | None]
_LOAD_AT_ONCE = 8  # a read waits for several threads of Lance in turn; more at once fill the gaps
_MAX_BATCH_ROWS = 1 << 16
_JOINED_BYTES = 2 << 20
_UNKNOWN_SIZE_BYTES = 64 << 20


class Generation:
    """One SSTable to fold. Its rows are kept once they were read, if `keep` says so. Batches end with `_tombstone`."""

    def __init__(self, reader: SsTableReader, schema: TableSchema, *, keep: bool) -> None:
        self.reader = reader
        self._schema = schema
        self._keep = keep
        self._rows: list[pa.RecordBatch] | None = None
        self.keys: list[pa.Array] = []
        self.flags: _Mask = np.empty(0, dtype=np.bool_)

    def load(self) -> None:
        """Read keys and flags, and the rows if they are kept."""
        key = self._schema.primary_key
        batches = list(self._batches(self._schema.columns.names if self._keep else key))
        self.flags = _one_mask([tombstone_flags(batch) for batch in batches])
        for name in key:
            column = pa.chunked_array([batch.column(name) for batch in batches], self._schema.memory.field(name).type)
            self.keys.append(one_array(column))
        if any(column.null_count for column in self.keys):
            raise CorruptDataError("a key of a generation is null", path=self.reader.stored.directory)
        if self._keep:
            self._rows = batches

    def chosen(self, mask: _Mask | None) -> Iterator[_Chosen]:
        """All rows with the table's columns, streaming, and which of them `mask` chooses (None: every one)."""
        start = 0
        for batch in self._batches(self._schema.columns.names) if self._rows is None else self._rows:
            yield batch, None if mask is None else mask[start : start + batch.num_rows]
            start += batch.num_rows
        if mask is not None and start != len(mask):
            raise CorruptDataError("two reads of a generation differ", path=self.reader.stored.directory)

    @property
    def is_in_memory(self) -> bool:
        """Whether the rows are kept."""
        return self._rows is not None

    def _batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self.reader.stored.open(streams=len(columns) == len(self._schema.columns))
        if undecided := self.reader.undecided(self._schema):
            shard_id, generation = self.reader.shard_id, self.reader.sstable.generation
            raise UndecidedColumnsError(undecided_text(undecided), shard_id=shard_id, generation=generation)
        batch_rows = min(_MAX_BATCH_ROWS, self.reader.stored.part_rows)
        yield from (batch for batch, _ in self.reader.batches(self._schema, columns, None, batch_rows))


@dataclass(frozen=True, slots=True)
class Folded:
    """Newest rows of several generations: what to delete in the base table, and what to insert or replace there.

    `keys` are those of both, some of them twice, composite ones encoded; none without a primary key.
    """

    deletes: pa.Table
    keys: pa.Array
    _parts: tuple[tuple[Generation, _Mask | None], ...]
    rows: int

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows to write, as batches of the base table's schema; many small ones are joined, which Lance likes."""
        waiting: list[_Chosen] = []
        size_bytes = 0
        has_blobs = any(map(is_blob, schema))
        apart = has_blobs or any(_has_dictionary(field.type) for field in schema)  # which Arrow cannot join, or copies
        enough = 1 if apart else _JOINED_BYTES
        parts = [(part, mask) for part, mask in self._parts if mask is None or mask.any()]
        for batch, mask in _one_by_one(parts) if has_blobs else _read_ahead(parts):
            waiting.append((pa.RecordBatch.from_arrays(batch.columns[:-1], schema=schema), mask))
            size_bytes += batch.nbytes
            if size_bytes >= enough:
                yield from _joined(waiting)
                waiting, size_bytes = [], 0
        if waiting:
            yield from _joined(waiting)


def _joined(parts: Sequence[_Chosen]) -> Iterator[pa.RecordBatch]:
    """The chosen rows of all parts as one batch; nothing if there are none."""
    whole = pa.concat_batches([batch for batch, _ in parts]) if len(parts) > 1 else parts[0][0]
    mask = _one_mask([np.ones(len(batch), dtype=np.bool_) if mask is None else mask for batch, mask in parts])
    chosen = whole if mask.all() else whole.filter(pa.array(mask))
    if chosen.num_rows:
        yield chosen


def _has_dictionary(kind: pa.DataType) -> bool:
    return pa.types.is_dictionary(kind) or any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))


def _read_ahead(parts: Sequence[tuple[Generation, _Mask | None]]) -> Iterator[_Chosen]:
    """The rows of all parts in order; while one is consumed, the next ones are read.

    Several generations are only ever folded together if they fit the memory limit together.
    """
    if len(parts) < 2 or all(generation.is_in_memory for generation, _ in parts):
        yield from _one_by_one(parts)
        return
    for rows in in_order(lambda part: list(part[0].chosen(part[1])), parts, _LOAD_AT_ONCE, "memwal-fold"):
        yield from rows


def _one_by_one(parts: Sequence[tuple[Generation, _Mask | None]]) -> Iterator[_Chosen]:
    for generation, mask in parts:
        yield from generation.chosen(mask)


def fold(location: Location, members: Iterable[tuple[str, SsTable]], schema: TableSchema, memory_bytes: int) -> Folded:
    """Merge `members` (shard and SSTable, ascending in each shard): the newest row of each key, or every row without a key.

    The rows of members that fit `memory_bytes` together are kept. This or `Folded.batches` raises `UndecidedColumnsError` for a
    member with undecided columns: they read as null, so their values would be lost.
    """
    readers = [SsTableReader(location, shard_id, sstable) for shard_id, sstable in members]
    left = memory_bytes if schema.primary_key and not schema.blobs else 0
    generations = []
    for reader in readers:
        size = size_of(reader.sstable)
        keep = size <= left
        left -= size if keep else 0
        generations.append(Generation(reader, schema, keep=keep))
    return _newest(generations, schema) if schema.primary_key else _all(generations)


def size_of(sstable: SsTable) -> int:
    """The bytes of a generation in memory, or a guess where its manifest does not say."""
    return _UNKNOWN_SIZE_BYTES if sstable.in_memory_bytes is None else sstable.in_memory_bytes


def _all(generations: Sequence[Generation]) -> Folded:
    rows = sum(generation.reader.sstable.physical_rows or 0 for generation in generations)
    return Folded(pa.table({}), pa.nulls(0), tuple((generation, None) for generation in generations), rows)


def _newest(generations: Sequence[Generation], schema: TableSchema) -> Folded:
    list(in_order(Generation.load, generations, _LOAD_AT_ONCE, "memwal-fold"))
    by_shard: dict[str, list[Generation]] = {}
    for generation in generations:
        by_shard.setdefault(generation.reader.shard_id, []).append(generation)
    live: list[tuple[Generation, _Mask]] = []
    dead: list[tuple[Generation, _Mask]] = []
    keys: list[pa.Array] = []
    for members in by_shard.values():
        own = [key_array(member.keys) for member in members]
        keys += own
        for member, mask in zip(members, newest_of_each(own), strict=True):
            live.append((member, mask & ~member.flags))
            dead.append((member, mask & member.flags))
    if len(by_shard) > 1:
        live = _once_over_shards(live)
    key_schema = pa.schema([schema.columns.field(name) for name in schema.primary_key])
    deletes = [
        pa.Table.from_arrays([column.filter(pa.array(mask)) for column in member.keys], schema=key_schema)
        for member, mask in dead
        if mask.any()
    ]
    return Folded(
        deletes=_each_once(pa.concat_tables(deletes).combine_chunks()) if deletes else no_rows(key_schema),
        keys=concat_keys(keys),
        _parts=tuple(live),
        rows=sum(int(mask.sum()) for _, mask in live),
    )


def _once_over_shards(live: list[tuple[Generation, _Mask]]) -> list[tuple[Generation, _Mask]]:
    """`live` without the rows of a key that a later member has too."""
    chosen = [key_array(member.keys).filter(pa.array(mask)) for member, mask in live]
    kept = []
    for (member, mask), stays in zip(live, newest_of_each(chosen), strict=True):
        thinned = mask.copy()
        thinned[np.flatnonzero(mask)] = stays
        kept.append((member, thinned))
    return kept


def _each_once(keys: pa.Table) -> pa.Table:
    """`keys` without repetitions: several shards may have deleted one."""
    last = last_of_each(key_array(keys.columns))
    return keys if len(last) == keys.num_rows else keys.take(pa.array(last))


def _one_mask(parts: Sequence[_Mask]) -> _Mask:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.bool_)
