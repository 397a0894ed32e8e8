"""The rows of an SSTable: newest only, with the table's present columns, part by part. The one reader of generations.

Owns `SsTableReader`. Invariants:

1. Columns, and the fields inside them, are matched by field id (`lance_memwal.rows.field_match`): one that was renamed since
   reads under its new name, one that was added reads as null, one that was dropped is not read. `_tombstone` is none of
   them: it has the id after the last column's, which the next column that the table gets has too.
2. Where a table has blobs, it is asked for with `TableSchema.shown`, and no blob is read, or with its stored form.
3. Few keys of an SSTable whose keys are not in memory cost one small read, of its bloom filter, and more only if that says
   "maybe": the one page of the sidecar that can have the key. Filters and pages are kept.
4. A sidecar that does not list every row (pylance's writer makes one, at times, when a flush overtakes its index) is not
   used: the keys are then read from the rows, which also tells older versions that the deletion vector lacks.
5. A reader counts as what it holds: a handle, filter, keys, rows. When the cache drops it, it lets go of them, also if
   somebody else holds on to it.

How rows lie on storage, and how they are read from there, is `lance_memwal.sstable.stored_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.blob import BlobFile

from lance_memwal.errors import CorruptDataError, UnsupportedFormatError
from lance_memwal.process.cache import CACHE, Slot
from lance_memwal.rows.adapt import tombstone_flags
from lance_memwal.rows.blobs import as_shown, as_stored, is_blob, shown_field, shows_blobs
from lance_memwal.rows.field_match import ColumnMatch
from lance_memwal.rows.filter import Pushdown, RowFilter, pushdown
from lance_memwal.rows.key_encoding import primary_key_columns
from lance_memwal.rows.keys import one_array
from lance_memwal.rows.past_columns import Undecided
from lance_memwal.rows.projection import roots_of, value_at
from lance_memwal.rows.schema import TableSchema
from lance_memwal.rows.sorted_keys import find_sorted, searchable
from lance_memwal.sstable.sidecar import PkSidecar, WantedKeys, sort_keys
from lance_memwal.sstable.stored_rows import Offsets, StoredRows
from lance_memwal.store.location import Location
from lance_memwal.types import ROW_ADDRESS, TOMBSTONE, SsTable

_KEPT_SHARE = 8
_HANDLE_BYTES = 16 << 10  # of a dataset and its file, more or less
_SMALL_BYTES = 16 << 20
_BYTES_OF_A_ROW = 1 << 20  # that are read in the time that finding one row takes
_FLAG_ROWS = 1 << 20  # of one column with two values


@dataclass(frozen=True, slots=True)
class _Rows:
    """All newest rows of an SSTable as a table of `schema` holds them, with their offsets."""

    schema: TableSchema
    table: pa.Table
    offsets: Offsets
    size_bytes: int


class SsTableReader:
    """One SSTable. Opening reads nothing; threads may share it."""

    def __init__(self, location: Location, shard_id: str, sstable: SsTable, *, shared: bool = False) -> None:
        """`shared`: it is the one of the process, and counts in its cache."""
        self._is_shared = shared
        self.location = location
        self.shard_id = shard_id
        self.sstable = sstable
        self.stored = StoredRows(location, shard_id, sstable)
        self.sidecar = PkSidecar(location, shard_id, sstable)
        # Threads may fill or empty these at the same time: they read the same immutable bytes, and hold what they use.
        self._entries: tuple[pa.Array, Offsets] | None = None
        self._rows: _Rows | None = None
        self._tombstones: Offsets | None = None
        self._known: tuple[TableSchema, ColumnMatch] | None = None
        self._asked_rows = 0  # that were looked for without having all rows in memory
        self.asked_keys = 0  # that were looked up without having all keys in memory
        self.stale = np.empty(0, dtype=np.int64)  # with the entries: older versions that are not marked as deleted

    # ---------------------------------------------------------------------------------------------------- what it holds

    @property
    def size_bytes(self) -> int:
        """Bytes that are held now."""
        entries, rows = self._entries, self._rows
        keys = 0 if entries is None else entries[0].nbytes + entries[1].nbytes
        keys += 0 if self._tombstones is None else self._tombstones.nbytes
        return int(_HANDLE_BYTES + self.sidecar.size_bytes + keys + (0 if rows is None else rows.size_bytes))

    def _count(self) -> None:
        """Be kept with what is held now."""
        if self._is_shared:
            CACHE.keep(_slot(self.location, self.shard_id, self.sstable), self, self.size_bytes, let_go=self.let_go)

    def let_go(self) -> None:
        """Hold neither keys nor rows; what is asked for is read again."""
        self._entries = self._rows = self._tombstones = None
        self.sidecar.let_go()
        self.stored.let_go()

    # ------------------------------------------------------------------------------------------------------------- keys

    def entries(self) -> tuple[pa.Array, Offsets]:
        """Every key once, ascending, and the offset of its newest row."""
        found = self._entries
        if found is None:
            found = self._entries = self._find_entries()
            self._count()
        return found

    def _find_entries(self) -> tuple[pa.Array, Offsets]:
        return self.sidecar.all_entries() if self._lists_every_row else self._entries_of_rows()

    def keys_alone(self) -> pa.Array:
        """Every key once, ascending; not kept."""
        if self._entries is not None or not self._lists_every_row:
            return self.entries()[0]
        return self.sidecar.all_keys()

    def forget_entries(self) -> None:
        """Let go of the keys: somebody holds them in another form."""
        if self._entries is not None:
            self._entries = None
            self._count()

    def might_contain(self, keys: WantedKeys) -> npt.NDArray[np.bool_]:
        """False only for keys that are certainly not here; reads the filter, once."""
        held = self.sidecar.size_bytes
        found = self.sidecar.might_contain(keys)
        self._count_since(held)
        return found

    def locate(self, keys: WantedKeys) -> Offsets:
        """Per key the offset of its newest row, or -1; reads the pages of the sidecar that can have them."""
        if not self._lists_every_row:
            values, offsets = self.entries()
            at = find_sorted(searchable(values), searchable(keys.values))
            return np.where(at >= 0, offsets[at], -1)
        held = self.sidecar.size_bytes
        found = self.sidecar.offsets_of(keys)
        self._count_since(held)
        return found

    def _count_since(self, held: int) -> None:
        if self.sidecar.size_bytes != held:
            self._count()

    @property
    def _lists_every_row(self) -> bool:
        rows = self.sstable.physical_rows
        return rows is None or self.sidecar.num_rows == rows

    def _entries_of_rows(self) -> tuple[pa.Array, Offsets]:
        dataset = self.stored.dataset
        names = primary_key_columns(dataset.schema)
        if not names:
            raise CorruptDataError(
                "a sidecar does not list every row, and the generation does not say which columns are its key",
                path=self.stored.directory,
            )
        with self.stored.reading():
            table = dataset.to_table(columns=names, with_row_address=True)
        keys = sort_keys([one_array(table.column(name)) for name in names])
        offsets = one_array(table.column(ROW_ADDRESS)).to_numpy().astype(np.int64)
        newest = np.ones(len(offsets), dtype=bool)
        newest[keys.replaced] = False
        self.stale = np.sort(offsets[keys.replaced])
        chosen = newest[keys.order]
        return keys.values.filter(pa.array(chosen)), offsets[keys.order][chosen]

    # ---------------------------------------------------------------------------------------------------------- columns

    def _match(self, schema: TableSchema) -> ColumnMatch:
        """Which column is which; remembered, since a generation never changes."""
        known = self._known
        if known is None or not schema.is_like(known[0]):
            shows = any(map(shows_blobs, schema.columns))
            stored = pa.schema(map(shown_field, self.stored.columns)) if shows else self.stored.columns
            known = self._known = schema, ColumnMatch(stored, schema, self.stored.written, path=self.stored.directory)
        return known[1]

    def undecided(self, schema: TableSchema) -> Mapping[str, Undecided]:
        """The columns of the table that may be others than the stored ones; `UnsupportedFormatError` if one cannot be read."""
        match = self._match(schema)
        for name in schema.columns.names:
            match.find(name)
        return match.undecided

    def name_of(self, column: str, schema: TableSchema) -> str | None:
        """The name under which this generation holds a column of the table, or None."""
        at, _ = self._match(schema).find(column)
        return str(self.stored.columns.field(at).name) if at >= 0 else None

    def identity_of(self, column: str, schema: TableSchema) -> tuple[str, ...]:
        """What the values of a column in this generation are known by: where they lie, not how the table calls them."""
        stored = self.name_of(column, schema)
        return (self.location.key, self.shard_id, self.sstable.path, "absent" if stored is None else f"column {stored}")

    def pushdown(self, schema: TableSchema, row_filter: RowFilter | None) -> Pushdown:
        """What Lance is told of a filter: nothing if a column of it has another name or type here, or is not there."""
        if row_filter is None:
            return pushdown(None)
        others = {name for name in schema.columns.names if not self._has_same(name, schema)}
        return pushdown(row_filter, pa.schema([field for field in self.stored.columns if field.name not in others]))

    def _has_same(self, column: str, schema: TableSchema) -> bool:
        try:
            at, fit = self._match(schema).find(column)
        except UnsupportedFormatError:
            return False
        return fit.is_same and self.stored.columns.field(at).name == column

    # ------------------------------------------------------------------------------------------------------------- rows

    def all_rows(self, schema: TableSchema) -> tuple[pa.Table, Offsets]:
        """All newest rows with the table's columns and `_tombstone`, and their offsets; kept in memory."""
        kept = self._rows
        if kept is None or not schema.is_like(kept.schema):
            table, offsets = self._read_rows(schema)
            kept = self._rows = _Rows(schema, table, offsets, int(table.nbytes + offsets.nbytes))
            self._count()
        return kept.table, kept.offsets

    def _read_rows(self, schema: TableSchema) -> tuple[pa.Table, Offsets]:
        columns = schema.columns.names
        parts = list(self.batches(schema, columns, None, 1 << 16))
        table = pa.Table.from_batches([batch for batch, _ in parts], schema=schema.memory).combine_chunks()
        return table, np.concatenate([o for _, o in parts]) if parts else np.empty(0, dtype=np.int64)

    @property
    def knows_tombstones(self) -> bool:
        """Whether it was asked for its tombstones before."""
        return self._tombstones is not None

    def tombstones(self, schema: TableSchema) -> Offsets:
        """The offsets of its tombstones, ascending; kept."""
        found = self._tombstones
        if found is None:
            found = self._tombstones = self._find_tombstones(schema)
            self._count()
        return found

    def _find_tombstones(self, schema: TableSchema) -> Offsets:
        kept = self._rows
        parts = self.batches(schema, (), None, _FLAG_ROWS) if kept is None else [(kept.table, kept.offsets)]
        dead = [offsets[tombstone_flags(rows)] for rows, offsets in parts]
        return np.concatenate(dead) if dead else np.empty(0, dtype=np.int64)

    def batches(
        self, schema: TableSchema, columns: Sequence[str], row_filter: RowFilter | None, batch_rows: int
    ) -> Iterator[tuple[pa.RecordBatch, Offsets]]:
        """Newest rows that match, `columns` and `_tombstone`, with their offsets, streaming."""
        if row_filter is None and len(columns) == len(schema.columns):
            self.stored.open(streams=True)
        shared = self.pushdown(schema, row_filter)
        wanted = list(dict.fromkeys([*columns, *shared.columns]))
        stored = [name for column in wanted if (name := self.name_of(column, schema)) is not None]
        with self.stored.reading(given=shared.told is not None):
            names = [name for column in wanted if column in schema.blobs and (name := self.name_of(column, schema))]
            found = (
                self.stored.blob_batches([*stored, TOMBSTONE], names)
                if names
                else self.stored.batches([*stored, TOMBSTONE], shared.told, batch_rows)
            )
            for batch, offsets in found:
                if batch.num_rows == 0:
                    continue
                table = self.conformed(pa.Table.from_batches([batch]), wanted, schema)
                if shared.late is not None:
                    mask = shared.late.mask(table)
                    table, offsets = table.filter(pa.array(mask)), offsets[mask]
                rows = table.select([*columns, TOMBSTONE]).combine_chunks().to_batches()
                if rows:
                    yield rows[0], offsets

    def open_blob(self, schema: TableSchema, offset: int, column: str) -> BlobFile | None:
        """The blob of the row at `offset`; None if it is null, or the generation does not have the column."""
        name = self.name_of(column, schema)
        if name is None:
            return None
        with self.stored.reading():
            return self.stored.dataset.take_blobs(name, addresses=[offset])[0]  # the fragment is 0

    def keep_if_small(self, schema: TableSchema) -> None:
        """Keep all its rows, unless they are many: then every key of it is a look into memory.

        They are read once that costs less than the rows that were asked for so far: at once if they are as few as one.
        """
        size_bytes = self.sstable.in_memory_bytes
        if self._rows is None and size_bytes is not None and size_bytes <= _SMALL_BYTES:
            self._asked_rows += 1
            if size_bytes <= _BYTES_OF_A_ROW * self._asked_rows:
                self.all_rows(schema)

    def row_at(self, schema: TableSchema, offset: int, columns: Sequence[str]) -> dict[str, Any] | None:
        """One row, `columns` or fields of it; None if it is a tombstone."""
        kept = self._rows
        if kept is not None and schema.is_like(kept.schema):
            table, at = kept.table, int(kept.offsets.searchsorted(offset))
        else:
            table, at = self.take(schema, np.array([offset]), roots_of(columns)), 0
        if table.column(TOMBSTONE)[at].as_py():
            return None
        return {name: value_at(name, table, at) for name in columns}

    def take(self, schema: TableSchema, offsets: Offsets, columns: Sequence[str]) -> pa.Table:
        """The rows at `offsets`, in that order, `columns` and `_tombstone`."""
        kept = self._rows
        if kept is not None and schema.is_like(kept.schema):
            at = np.searchsorted(kept.offsets, offsets)
            return kept.table.select([*columns, TOMBSTONE]).take(pa.array(at))
        order = np.argsort(offsets)  # the file takes ascending offsets only
        with self.stored.reading():
            table = self.stored.take(offsets[order].tolist())
        if table.num_rows != len(offsets):
            raise CorruptDataError("an SSTable lacks a row that its sidecar names", path=self.stored.directory)
        found = self.conformed(table, columns, schema)
        return found if len(order) < 2 else found.take(pa.array(np.argsort(order)))

    def conformed(self, table: pa.Table, columns: Sequence[str], schema: TableSchema) -> pa.Table:
        """Stored rows as `columns` of the table and `_tombstone`."""
        arrays, match = [], self._match(schema)
        for column in columns:
            at, fit = match.find(column)
            values = table.column(self.stored.columns.field(at).name if at >= 0 else TOMBSTONE)
            arrays.append(fit.chunks(values if at < 0 else _as_asked(values, schema.nullable.field(column))))
            if arrays[-1].type != fit.kind:
                raise UnsupportedFormatError(f"column {column!r} is read as {arrays[-1].type}, not {fit.kind}")
        match.warn_undecided()
        arrays.append(table.column(TOMBSTONE).fill_null(False))
        return pa.Table.from_arrays(
            arrays, schema=pa.schema([schema.memory.field(name) for name in (*columns, TOMBSTONE)])
        )


def _as_asked(values: pa.ChunkedArray, column: pa.Field) -> pa.ChunkedArray:
    """What Lance read of a column, in the form in which it was asked for: of blobs, what is shown of them or the bytes."""
    if shows_blobs(column):
        return pa.chunked_array([as_shown(chunk, fresh=True) for chunk in values.chunks], column.type)
    if is_blob(column):
        return pa.chunked_array([as_stored(chunk, column.type) for chunk in values.chunks], column.type)
    return values


def open_sstable(location: Location, shard_id: str, sstable: SsTable) -> SsTableReader:
    """The reader of one SSTable, the same one as long as it is kept."""
    slot = _slot(location, shard_id, sstable)
    return CACHE.fetch(slot, lambda: SsTableReader(location, shard_id, sstable, shared=True))


def keeps_rows(sstable: SsTable) -> bool:
    """Whether the rows of this SSTable are small enough to be kept."""
    size = sstable.in_memory_bytes
    return size is not None and size * _KEPT_SHARE <= CACHE.limit_bytes


def _slot(location: Location, shard_id: str, sstable: SsTable) -> Slot:
    return ("sstable", location.key, shard_id, sstable.path)
