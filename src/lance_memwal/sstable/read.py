"""SSTables as readers use them: opened once, their keys and small ones' rows kept.

Owns `SsTableReader`. Invariants:

1. A generation directory never changes, so what was read of it stays right for ever.
2. Columns, and the fields inside them, are matched by field id: one that was renamed since reads under its new name, one
   that was added reads as null, one that was dropped is not read.
3. A sidecar that does not list every row (pylance's writer makes one, at times, when a flush overtakes its index) is not
   used: the keys are then read from the rows, which also tells older versions that the deletion vector lacks.
4. A reader counts as what it holds: a handle, keys, rows. When the cache drops it, it lets go of them, also if somebody else
   holds on to it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.file import LanceFileReader

from lance_memwal.errors import (
    CorruptDataError,
    InvalidInputError,
    ObjectNotFoundError,
    UnavailableError,
    UnsupportedFormatError,
)
from lance_memwal.lance.base import lance_options, lance_reading, take_rows
from lance_memwal.lance.manifest import VERSIONS_DIR
from lance_memwal.process.cache import CACHE, Slot
from lance_memwal.rows.field_match import Fit, fit_of
from lance_memwal.rows.filter import FilterLike, Pushdown, RowFilter, pushdown
from lance_memwal.rows.key_encoding import primary_key_columns
from lance_memwal.rows.keys import one_array
from lance_memwal.rows.normal_form import nulls
from lance_memwal.rows.schema import FieldId, TableSchema, tagged
from lance_memwal.sstable.sidecar import PkSidecar, sort_keys
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import TOMBSTONE, SsTable

__all__ = ["SsTableReader", "keeps_rows", "open_sstable"]

_ROW_ADDRESS = "_rowaddr"
_PARTS = frozenset({"data", VERSIONS_DIR})
_KEPT_SHARE = 8
_PART_BYTES = 8 << 20
_HANDLE_BYTES = 16 << 10  # of a dataset and its file, more or less


@dataclass(frozen=True, slots=True)
class _Rows:
    """All newest rows of an SSTable as a table of `schema` holds them, with their offsets."""

    schema: TableSchema
    table: pa.Table
    offsets: npt.NDArray[np.int64]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Stored:
    """One column of a table in a generation: its name there (None: it is not there), and how its values fit."""

    name: str | None
    fit: Fit | UnsupportedFormatError

    @property
    def is_same(self) -> bool:
        """Whether its values are the table's, as they are."""
        return isinstance(self.fit, Fit) and self.fit.is_same

    def values(self, table: pa.Table, column: pa.Field) -> pa.ChunkedArray:
        """The values of the stored rows `table` for the table's `column`."""
        if isinstance(self.fit, UnsupportedFormatError):
            raise self.fit
        if self.name is None:
            return pa.chunked_array([nulls(table.num_rows, column.type)])
        found = self.fit.chunks(table.column(self.name))
        if found.type != column.type:
            raise UnsupportedFormatError(f"column {column.name!r} is read as {found.type}, the table has {column.type}")
        return found


class SsTableReader:
    """One SSTable. Opening reads nothing; threads may share it."""

    def __init__(self, location: Location, shard_id: str, sstable: SsTable) -> None:
        self.location = location
        self.shard_id = shard_id
        self.sstable = sstable
        self.sidecar = PkSidecar.open(location, shard_id, sstable)
        self._dataset: lance.LanceDataset | None = None
        self._entries: tuple[pa.Array, npt.NDArray[np.int64]] | None = None
        self._rows: _Rows | None = None
        self._known: tuple[TableSchema, dict[str, _Stored]] | None = None
        self._reader: LanceFileReader | None = None
        self._file_lock = threading.RLock()
        self._is_translated = False
        self.stale = np.empty(0, dtype=np.int64)  # with the entries: older versions that are not marked as deleted

    @property
    def dataset(self) -> lance.LanceDataset:
        """The Lance dataset; `ObjectNotFoundError` if the directory is gone."""
        if self._dataset is None:
            directory = paths.sstable_dir(self.shard_id, self.sstable.path)
            with self.reading():
                self._dataset = lance.dataset(
                    self.location.child_uri(directory), storage_options=lance_options(self.location)
                )
        return self._dataset

    @contextmanager
    def reading(self, *, given: bool = False) -> Iterator[None]:
        """What Lance raises, as our errors; `ObjectNotFoundError` if the reason is that the SSTable was collected."""
        directory = paths.sstable_dir(self.shard_id, self.sstable.path)
        action = f"reading generation {self.sstable.generation} of shard {self.shard_id}"
        try:
            with lance_reading(self.location, action, directory, given=given):
                yield
        except (InvalidInputError, UnavailableError, CorruptDataError):
            left = {
                meta.path.removeprefix(f"{directory}/").split("/")[0] for meta in self.location.store.list(directory)
            }
            if not left >= _PARTS:
                raise ObjectNotFoundError(directory) from None
            raise

    @property
    def is_open(self) -> bool:
        """Whether the dataset was opened."""
        return self._dataset is not None

    @property
    def has_entries(self) -> bool:
        """Whether the keys are in memory."""
        return self._entries is not None

    @property
    def size_bytes(self) -> int:
        """Bytes that are held now."""
        entries, rows = self._entries, self._rows
        keys = 0 if entries is None else entries[0].nbytes + entries[1].nbytes
        return int(_HANDLE_BYTES + keys + (0 if rows is None else rows.size_bytes))

    def _count(self) -> None:
        """Be kept with what is held now."""
        CACHE.keep(_slot(self.location, self.shard_id, self.sstable), self, self.size_bytes, let_go=self.let_go)

    def let_go(self) -> None:
        """Hold neither keys nor rows; what is asked for is read again."""
        self._entries = self._rows = None

    def entries(self) -> tuple[pa.Array, npt.NDArray[np.int64]]:
        """Every key once, ascending, and the offset of its newest row."""
        found = self._entries
        if found is None:
            rows = self.sstable.physical_rows
            whole = rows is None or self.sidecar.num_rows == rows
            found = self._entries = self.sidecar.all_entries() if whole else self._entries_of_rows()
            self._count()
        return found

    def _entries_of_rows(self) -> tuple[pa.Array, npt.NDArray[np.int64]]:
        dataset = self.dataset
        names = primary_key_columns(dataset.schema)
        if not names:
            raise CorruptDataError(
                "a sidecar does not list every row, and the generation does not say which columns are its key",
                path=paths.sstable_dir(self.shard_id, self.sstable.path),
            )
        with self.reading():
            table = dataset.to_table(columns=names, with_row_address=True)
        keys = sort_keys([one_array(table.column(name)) for name in names])
        offsets = one_array(table.column(_ROW_ADDRESS)).to_numpy().astype(np.int64)
        newest = np.ones(len(offsets), dtype=bool)
        newest[keys.replaced] = False
        self.stale = np.sort(offsets[keys.replaced])
        chosen = newest[keys.order]
        return keys.values.filter(pa.array(chosen)), offsets[keys.order][chosen]

    def names_by_column(self, schema: TableSchema) -> list[str | None]:
        """Per table column the name under which this generation holds it, or None."""
        return [stored.name for stored in self._stored(schema).values()]

    def _stored(self, schema: TableSchema) -> dict[str, _Stored]:
        """Per table column what this generation holds of it; remembered, since a generation never changes."""
        known = self._known
        if known is None or known[0] != schema:
            known = self._known = schema, self._find(schema)
        return known[1]

    def _find(self, schema: TableSchema) -> dict[str, _Stored]:
        # `_tombstone` has the id behind the last column's, which the next column that the table gets has too.
        items = [item for item in self.dataset.lance_schema.fields() if item.name() != TOMBSTONE]
        fields = {item.name(): tagged(self.dataset.schema.field(item.name()), FieldId.of(item)) for item in items}
        by_id = {int(item.id()): item.name() for item in items}
        path, found = paths.sstable_dir(self.shard_id, self.sstable.path), {}
        for column in schema.nullable:
            ids = schema.ids_of(column.name)
            name = by_id.get(ids.id) if ids is not None else column.name if column.name in fields else None
            try:
                fit = fit_of(None if name is None else fields[name], column, ids, path=path)
                found[column.name] = _Stored(None if fit.absent else name, fit)
            except UnsupportedFormatError as error:  # for those who ask for this column
                found[column.name] = _Stored(name, error)
        return found

    def identity_of(self, column: str, schema: TableSchema) -> tuple[str, ...]:
        """What the values of a column in this generation are known by: where they lie, not how the table calls them."""
        stored = self.names_by_column(schema)[schema.columns.names.index(column)]
        return (self.location.key, self.shard_id, self.sstable.path, "absent" if stored is None else f"column {stored}")

    def all_rows(self, schema: TableSchema) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """All newest rows with the table's columns and `_tombstone`, and their offsets; kept in memory."""
        kept = self._rows
        if kept is None or kept.schema != schema:
            parts = list(self.batches(schema, schema.columns.names, None, 1 << 16))
            table = pa.Table.from_batches([batch for batch, _ in parts], schema=schema.memory).combine_chunks()
            offsets = np.concatenate([o for _, o in parts]) if parts else np.empty(0, dtype=np.int64)
            kept = self._rows = _Rows(schema, table, offsets, int(table.nbytes + offsets.nbytes))
            self._count()
        return kept.table, kept.offsets

    def pushdown(self, schema: TableSchema, row_filter: RowFilter | None) -> Pushdown:
        """What Lance is told of a filter: nothing if a column of it has another name or type here, or is not there."""
        others = {name for name, stored in self._stored(schema).items() if stored.name != name or not stored.is_same}
        return pushdown(row_filter, pa.schema([field for field in self.dataset.schema if field.name not in others]))

    def batches(
        self, schema: TableSchema, columns: Sequence[str], row_filter: RowFilter | None, batch_rows: int
    ) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int64]]]:
        """Newest rows that match, `columns` and `_tombstone`, with their offsets, streaming."""
        known = self._stored(schema)
        shared = self.pushdown(schema, row_filter)
        wanted = list(dict.fromkeys([*columns, *shared.columns]))
        stored = [name for c in wanted if (name := known[c].name) is not None]
        with self.reading(given=shared.told is not None):
            for batch in self._stored_batches([*stored, TOMBSTONE], shared.told, batch_rows):
                if batch.num_rows == 0:
                    continue
                table = shared.finish(_conform(pa.Table.from_batches([batch]), wanted, known, schema))
                offsets = one_array(table.column(_ROW_ADDRESS)).to_numpy().astype(np.int64)
                rows = table.select([*columns, TOMBSTONE]).combine_chunks().to_batches()
                if rows:
                    yield rows[0], offsets

    def _stored_batches(
        self, columns: list[str], pushed: FilterLike | None, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Rows with their addresses, part by part: one scan of everything would hold the whole file in memory."""
        dataset, part_rows = self.dataset, max(batch_rows, self._part_rows)
        total = dataset.count_rows()
        options: dict[str, Any] = {"columns": columns, "with_row_address": True, "batch_size": batch_rows}
        if pushed is not None or total <= part_rows:  # how many rows match a filter is not known beforehand
            yield from dataset.scanner(filter=pushed, **options).to_batches()
            return
        for start in range(0, total, part_rows):
            yield from dataset.scanner(limit=part_rows, offset=start, **options).to_batches()

    @property
    def _part_rows(self) -> int:
        size_bytes, rows = self.sstable.in_memory_bytes, self.sstable.physical_rows
        width = size_bytes // rows if size_bytes and rows else 1
        return max(1, _PART_BYTES // max(1, width))

    def take(self, schema: TableSchema, offsets: npt.NDArray[np.int64], columns: Sequence[str]) -> pa.Table:
        """The rows at `offsets`, in that order, `columns` and `_tombstone`."""
        kept = self._rows
        if kept is not None and kept.schema == schema:
            at = np.searchsorted(kept.offsets, offsets)
            return kept.table.select([*columns, TOMBSTONE]).take(pa.array(at))
        known = self._stored(schema)
        order = np.argsort(offsets)  # the file takes ascending offsets only
        with self.reading():
            table = self._taken(offsets[order].tolist())
        if table.num_rows != len(offsets):
            raise CorruptDataError(
                "an SSTable lacks a row that its sidecar names",
                path=paths.sstable_dir(self.shard_id, self.sstable.path),
            )
        found = _conform(table, list(columns), known, schema).select([*columns, TOMBSTONE])
        return found if len(order) < 2 else found.take(pa.array(np.argsort(order)))

    def _taken(self, offsets: list[int]) -> pa.Table:
        """All columns of the rows at ascending offsets."""
        shown = self.dataset.schema
        if not self._is_translated:
            with self._file_lock:  # Lance's file reader serves one caller at a time
                table = self._file().take_rows(offsets).to_table()
            if all(field.type == shown.field(field.name).type for field in table.schema):
                return table
            self._is_translated = True  # the file holds JSON, for one, as other values than the dataset shows
        return take_rows(self.dataset, offsets, shown.names)  # the one fragment is 0: addresses are offsets

    def _file(self) -> LanceFileReader:
        """The one data file of the generation: its rows are the offsets that the sidecar names."""
        if self._reader is None:
            name = self.dataset.get_fragments()[0].metadata.files[0].path
            path = paths.sstable_data_path(self.shard_id, self.sstable.path, name)
            self._reader = LanceFileReader(self.location.child_uri(path), storage_options=lance_options(self.location))
        return self._reader


def _conform(table: pa.Table, columns: Sequence[str], known: Mapping[str, _Stored], schema: TableSchema) -> pa.Table:
    """`table` with the table's column names and types, nulls for columns that it lacks; other columns are kept."""
    arrays, fields = [], []
    for column in columns:
        field = schema.memory.field(column)
        arrays.append(known[column].values(table, field))
        fields.append(field)
    for extra in (TOMBSTONE, _ROW_ADDRESS):
        if extra in table.schema.names:
            flags = table.column(extra)
            arrays.append(flags.fill_null(False) if extra == TOMBSTONE else flags)
            fields.append(schema.memory.field(TOMBSTONE) if extra == TOMBSTONE else table.schema.field(extra))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def open_sstable(location: Location, shard_id: str, sstable: SsTable) -> SsTableReader:
    """The reader of one SSTable, the same one as long as it is kept."""
    return CACHE.fetch(_slot(location, shard_id, sstable), lambda: SsTableReader(location, shard_id, sstable))


def keeps_rows(sstable: SsTable) -> bool:
    """Whether the rows of this SSTable are small enough to be kept."""
    size = sstable.in_memory_bytes
    return size is not None and size * _KEPT_SHARE <= CACHE.limit_bytes


def _slot(location: Location, shard_id: str, sstable: SsTable) -> Slot:
    return ("sstable", location.key, shard_id, sstable.path)
