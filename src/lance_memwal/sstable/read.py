"""The rows of an SSTable: newest only, with the table's present columns, part by part. The one reader of generations.

Owns `SsTableReader`. Invariants:

1. A generation directory never changes, so what was read of it stays right for ever.
2. Columns, and the fields inside them, are matched by field id (`lance_memwal.rows.field_match`): one that was renamed since
   reads under its new name, one that was added reads as null, one that was dropped is not read. `_tombstone` is none of
   them: it has the id after the last column's, which the next column that the table gets has too.
3. Rows are read from the data file itself, which costs a fraction of planning a scan, if that is all there is to them: one
   fragment, one data file, no deletion vector or a bitmap, no feature or type that Lance translates while it scans. All
   other layouts, filters that Lance is told, and indexes are left to the dataset.
4. Memory of a stream: one part of about eight megabytes, however large the file is. Where a table has blobs, it is asked
   for with `TableSchema.shown`, and no blob is read, or with its stored form, and parts are as large as their blobs.
5. Few keys of an SSTable whose keys are not in memory cost one small read, of its bloom filter, and more only if that says
   "maybe": the one page of the sidecar that can have the key. Filters and pages are kept.
6. A sidecar that does not list every row (pylance's writer makes one, at times, when a flush overtakes its index) is not
   used: the keys are then read from the rows, which also tells older versions that the deletion vector lacks.
7. A reader counts as what it holds: a handle, filter, keys, rows. When the cache drops it, it lets go of them, also if
   somebody else holds on to it.
8. Where many generations are cold, their small files are taken from roll-ups (`lance_memwal.sstable.roll_up`), if there are any.
9. What is gone is `ObjectNotFoundError` (it was collected), what is damaged is `CorruptDataError` with its path.
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
from lance.blob import BlobFile
from lance.file import LanceFileReader

from lance_memwal.errors import (
    CorruptDataError,
    InvalidInputError,
    ObjectNotFoundError,
    UnavailableError,
    UnsupportedFormatError,
)
from lance_memwal.lance.base import lance_reading, take_rows
from lance_memwal.lance.damage import version_names
from lance_memwal.lance.deletions import decode_deletions
from lance_memwal.lance.door import lance_at
from lance_memwal.lance.hand_made import hand_commit_is_safe
from lance_memwal.lance.manifest import (
    BITMAP,
    VERSIONS_DIR,
    DeletionFile,
    Fragment,
    LanceField,
    LanceManifest,
    deletion_path,
    parse_lance_manifest,
    version_path,
)
from lance_memwal.process.cache import CACHE, Slot
from lance_memwal.rows.adapt import tombstone_flags
from lance_memwal.rows.blobs import (
    PART_BYTES,
    as_shown,
    as_stored,
    by_bytes,
    is_blob,
    one_blob,
    shown_field,
    shows_blobs,
    sizes_of,
)
from lance_memwal.rows.field_match import ColumnMatch
from lance_memwal.rows.filter import FilterLike, Pushdown, RowFilter, pushdown
from lance_memwal.rows.key_encoding import primary_key_columns
from lance_memwal.rows.keys import one_array
from lance_memwal.rows.projection import roots_of, value_at
from lance_memwal.rows.schema import FieldId, TableSchema, tagged
from lance_memwal.rows.sorted_keys import find_sorted, searchable
from lance_memwal.sstable.roll_up import Keys, Rolled
from lance_memwal.sstable.sidecar import PkSidecar, WantedKeys, sort_keys
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import ROW_ADDRESS, TOMBSTONE, SsTable

__all__ = ["DataFile", "SsTableReader", "keeps_rows", "open_sstable"]

Offsets = npt.NDArray[np.int64]
_PARTS = frozenset({"data", VERSIONS_DIR})
_KEPT_SHARE = 8
_PART_BYTES = 8 << 20
_HANDLE_BYTES = 16 << 10  # of a dataset and its file, more or less
_SMALL_BYTES = 16 << 20
_FLAG_ROWS = 1 << 20  # of one column with two values
_PART_ROWS = 1 << 16  # where nobody knows how wide rows are
# What Lance stores in one form and shows in another.
_TRANSLATED = ("ARROW:extension:name", "lance-encoding:blob")


@dataclass(frozen=True, slots=True)
class _Rows:
    """All newest rows of an SSTable as a table of `schema` holds them, with their offsets."""

    schema: TableSchema
    table: pa.Table
    offsets: Offsets
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file that is all there is to the rows of a generation, but for the deletion vector of its fragment."""

    path: str
    columns: dict[str, FieldId]
    fragment: Fragment

    @property
    def physical_rows(self) -> int:
        """The rows in the file, replaced ones too."""
        return self.fragment.physical_rows


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the rows of a generation lie: its data file, where they can be read from it alone."""

    file: DataFile | None


class SsTableReader:
    """One SSTable. Opening reads nothing; threads may share it."""

    def __init__(self, location: Location, shard_id: str, sstable: SsTable, *, shared: bool = False) -> None:
        """`shared`: it is the one of the process, and counts in its cache."""
        self._is_shared = shared
        self.location = location
        self.shard_id = shard_id
        self.sstable = sstable
        self.directory = paths.sstable_dir(shard_id, sstable.path)
        self.sidecar = PkSidecar(location, shard_id, sstable)
        # Threads may fill or empty these at the same time: they read the same immutable bytes, and hold what they use.
        self._dataset: lance.LanceDataset | None = None
        self._place: _Place | None = None
        self._columns: pa.Schema | None = None
        self._file: LanceFileReader | None = None  # with all columns, for `take`
        self._mask: npt.NDArray[np.bool_] | None = None
        self._entries: tuple[pa.Array, Offsets] | None = None
        self._rows: _Rows | None = None
        self._tombstones: Offsets | None = None
        self._known: tuple[TableSchema, ColumnMatch] | None = None
        self._file_lock = threading.RLock()  # a file reader of Lance serves one caller at a time
        self.rolled: Rolled | None = None  # where copies of its small files are
        self.asked_keys = 0  # that were looked up without having all keys in memory
        self.stale = np.empty(0, dtype=np.int64)  # with the entries: older versions that are not marked as deleted

    @contextmanager
    def reading(self, *, given: bool = False) -> Iterator[None]:
        """What Lance raises, as our errors; `ObjectNotFoundError` if the reason is that the SSTable was collected."""
        action = f"reading generation {self.sstable.generation} of shard {self.shard_id}"
        try:
            with lance_reading(self.location, action, self.directory, given=given):
                yield
        except (InvalidInputError, UnavailableError, CorruptDataError):
            start = len(self.directory) + 1
            left = {meta.path[start:].split("/")[0] for meta in self.location.store.list(self.directory)}
            if not left >= _PARTS:
                raise ObjectNotFoundError(self.directory) from None
            raise

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
        self._entries = self._rows = self._file = self._tombstones = None
        self.sidecar.let_go()

    # ------------------------------------------------------------------------------------------------------------- keys

    def entries(self) -> tuple[pa.Array, Offsets]:
        """Every key once, ascending, and the offset of its newest row."""
        found = self._entries
        if found is None:
            found = self._entries = self._find_entries()
            self._count()
        return found

    def _find_entries(self) -> tuple[pa.Array, Offsets]:
        keys = self._rolled_keys()
        if keys is not None:
            return keys.values, keys.offsets
        return self.sidecar.all_entries() if self._lists_every_row else self._entries_of_rows()

    def _rolled_keys(self) -> Keys | None:
        return None if self.rolled is None else self.rolled.facts().keys

    @property
    def has_rolled_keys(self) -> bool:
        """Whether a roll-up has its keys."""
        return self._rolled_keys() is not None

    @property
    def rolled_as(self) -> tuple[object, int] | None:
        """The same for SSTables whose rows are in one roll-up, with the same columns; None if they are in none."""
        columns = None if self.rolled is None else self.rolled.facts().columns
        return None if self.rolled is None or columns is None else (self.rolled.roll_up, id(columns))

    @property
    def knows_every_key(self) -> bool:
        """Whether its keys can be had without its rows."""
        return self._rolled_keys() is not None or self._lists_every_row

    @property
    def is_cold(self) -> bool:
        """Whether whatever is asked of it next must open files of its own."""
        return self.rolled is None and self._entries is None and not self.sidecar.has_filter

    def keys_alone(self) -> pa.Array:
        """Every key once, ascending; not kept."""
        if self._entries is not None or self._rolled_keys() is not None or not self._lists_every_row:
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
        if (keys.hashes is None and self._rolled_keys() is not None) or not self._lists_every_row:
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
        dataset = self.dataset
        names = primary_key_columns(dataset.schema)
        if not names:
            raise CorruptDataError(
                "a sidecar does not list every row, and the generation does not say which columns are its key",
                path=self.directory,
            )
        with self.reading():
            table = dataset.to_table(columns=names, with_row_address=True)
        keys = sort_keys([one_array(table.column(name)) for name in names])
        offsets = one_array(table.column(ROW_ADDRESS)).to_numpy().astype(np.int64)
        newest = np.ones(len(offsets), dtype=bool)
        newest[keys.replaced] = False
        self.stale = np.sort(offsets[keys.replaced])
        chosen = newest[keys.order]
        return keys.values.filter(pa.array(chosen)), offsets[keys.order][chosen]

    # ---------------------------------------------------------------------------------------------------------- columns

    @property
    def dataset(self) -> lance.LanceDataset:
        """The Lance dataset; `ObjectNotFoundError` if the directory is gone."""
        if self._dataset is None:
            with self.reading():
                self._dataset = lance_at(self.location).dataset(self.directory)
        return self._dataset

    @property
    def is_open(self) -> bool:
        """Whether it is known what the generation holds."""
        return self._columns is not None

    @property
    def data_file(self) -> DataFile | None:
        """The data file, if the rows can be read from it alone; None says that the dataset must be asked."""
        found = self._place
        if found is None:
            found = self._place = _Place(self._find_file())
        return found.file

    @property
    def columns(self) -> pa.Schema:
        """The columns of the generation with the ids of all fields in their metadata, without `_tombstone`."""
        return self.open()

    def open(self, *, streams: bool = False) -> pa.Schema:
        """Find out what the generation holds; `ObjectNotFoundError` if it is gone.

        `streams`: all of it is read next, so that the file stays open until then. Else it does not: a descriptor per SSTable
        is too many.
        """
        found = self._columns
        if found is None and self.rolled is not None:
            found = self._columns = self.rolled.facts().columns
        if found is None:
            file = self.data_file
            if file is None:
                ids = {field.name(): FieldId.of(field) for field in self.dataset.lance_schema.fields()}
                found = self._with_ids(self.dataset.schema, ids)
            else:
                with self.reading():
                    reader = self._open_file(file)
                found = self._with_ids(reader.metadata().schema, file.columns)
                if streams:
                    self._file = reader
            self._columns = found
        return found

    def _with_ids(self, columns: pa.Schema, ids: Mapping[str, FieldId]) -> pa.Schema:
        if TOMBSTONE not in ids:  # every writer stores the flags, and without them deletes are lost
            raise CorruptDataError(f"a generation has no column {TOMBSTONE!r}", path=self.directory)
        return pa.schema([tagged(field, ids[field.name]) for field in columns if field.name != TOMBSTONE])

    def _find_file(self) -> DataFile | None:
        manifest = self._newest_manifest()
        if manifest is None or not hand_commit_is_safe(manifest) or any(map(_is_translated, manifest.fields)):
            return None
        fragments = manifest.fragments()
        if len(fragments) != 1 or len(fragments[0].files) != 1 or not fragments[0].physical_rows:
            return None
        fragment, file, deletion = fragments[0], fragments[0].files[0], fragments[0].deletion
        if set(file.field_ids) != {field.id for field in manifest.fields}:
            return None
        if deletion is not None and deletion.file_type != BITMAP:
            return None
        path = paths.sstable_data_path(self.shard_id, self.sstable.path, file.path)
        return DataFile(path, _columns(manifest.fields), fragment)

    def _newest_manifest(self) -> LanceManifest | None:
        """The manifest of the newest version; None if it is of a kind that we do not know."""
        found = self.newest_manifest_bytes()
        if found is None:
            return None
        try:
            return parse_lance_manifest(found, path=self.directory)
        except UnsupportedFormatError:
            return None

    def newest_manifest_bytes(self) -> bytes | None:
        """The manifest of the newest version as it is stored; None if it is named in a way that we do not know."""
        rolled = None if self.rolled is None else self.rolled.facts().manifest
        if rolled is not None:
            return rolled
        names = version_names(self.location, self.directory)
        if not names:
            raise ObjectNotFoundError(self.directory)
        newest = max(names)
        is_known = names[newest] == f"{self.directory}/{version_path(newest)}"
        return self.location.store.get(names[newest]) if is_known else None

    def _match(self, schema: TableSchema) -> ColumnMatch:
        """Which column is which; remembered, since a generation never changes."""
        known = self._known
        if known is None or known[0] != schema:
            shows = any(map(shows_blobs, schema.columns))
            stored = pa.schema(map(shown_field, self.columns)) if shows else self.columns
            known = self._known = schema, ColumnMatch(stored, schema, path=self.directory)
        return known[1]

    def name_of(self, column: str, schema: TableSchema) -> str | None:
        """The name under which this generation holds a column of the table, or None."""
        at, _ = self._match(schema).find(column)
        return str(self.columns.field(at).name) if at >= 0 else None

    def identity_of(self, column: str, schema: TableSchema) -> tuple[str, ...]:
        """What the values of a column in this generation are known by: where they lie, not how the table calls them."""
        stored = self.name_of(column, schema)
        return (self.location.key, self.shard_id, self.sstable.path, "absent" if stored is None else f"column {stored}")

    def pushdown(self, schema: TableSchema, row_filter: RowFilter | None) -> Pushdown:
        """What Lance is told of a filter: nothing if a column of it has another name or type here, or is not there."""
        if row_filter is None:
            return pushdown(None)
        others = {name for name in schema.columns.names if not self._has_same(name, schema)}
        return pushdown(row_filter, pa.schema([field for field in self.columns if field.name not in others]))

    def _has_same(self, column: str, schema: TableSchema) -> bool:
        try:
            at, fit = self._match(schema).find(column)
        except UnsupportedFormatError:
            return False
        return fit.is_same and self.columns.field(at).name == column

    # ------------------------------------------------------------------------------------------------------------- rows

    @property
    def part_rows(self) -> int:
        """Rows that make about eight megabytes."""
        size_bytes, rows = self.sstable.in_memory_bytes, self.sstable.physical_rows
        return max(1, _PART_BYTES * rows // size_bytes) if size_bytes and rows else _PART_ROWS

    def all_rows(self, schema: TableSchema) -> tuple[pa.Table, Offsets]:
        """All newest rows with the table's columns and `_tombstone`, and their offsets; kept in memory."""
        kept = self._rows
        if kept is None or kept.schema != schema:
            parts = list(self.batches(schema, schema.columns.names, None, 1 << 16))
            table = pa.Table.from_batches([batch for batch, _ in parts], schema=schema.memory).combine_chunks()
            offsets = np.concatenate([o for _, o in parts]) if parts else np.empty(0, dtype=np.int64)
            kept = self._rows = _Rows(schema, table, offsets, int(table.nbytes + offsets.nbytes))
            self._count()
        return kept.table, kept.offsets

    @property
    def num_rows(self) -> int:
        """Its rows, replaced ones too."""
        known = self.sstable.physical_rows
        return int(self.dataset.count_rows()) if known is None else known

    @property
    def knows_tombstones(self) -> bool:
        """Whether it was asked for its tombstones before."""
        return self._tombstones is not None

    def tombstones(self, schema: TableSchema) -> Offsets:
        """The offsets of its tombstones, ascending; kept."""
        found = self._tombstones
        if found is None:
            keys = self._rolled_keys()
            found = self._tombstones = self._find_tombstones(schema) if keys is None else keys.tombstones
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
            self.open(streams=True)
        shared = self.pushdown(schema, row_filter)
        wanted = list(dict.fromkeys([*columns, *shared.columns]))
        stored = [name for column in wanted if (name := self.name_of(column, schema)) is not None]
        with self.reading(given=shared.told is not None):
            names = [name for column in wanted if column in schema.blobs and (name := self.name_of(column, schema))]
            found = (
                self._blob_batches([*stored, TOMBSTONE], names)
                if names
                else self._stored_batches([*stored, TOMBSTONE], shared.told, batch_rows)
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

    def _stored_batches(
        self, columns: list[str], told: FilterLike | None, batch_rows: int
    ) -> Iterator[tuple[pa.RecordBatch, Offsets]]:
        """Newest rows as they are stored and their offsets, part by part: one call for all would read far ahead."""
        part_rows = max(batch_rows, self.part_rows)
        rolled = self.rolled_rows() if told is None else None
        if rolled is not None:
            rows, offsets = rolled
            for batch in rows.select(columns).to_batches():
                yield batch, offsets
            return
        if told is None and self.data_file is not None:
            yield from self._file_batches(self.data_file, columns, batch_rows, part_rows)
            return
        options: dict[str, Any] = {"columns": columns, "with_row_address": True, "batch_size": batch_rows}
        total = self.dataset.count_rows()
        if told is not None or total <= part_rows:  # how many rows match a filter is not known beforehand
            limits: list[dict[str, Any]] = [{"filter": told}]
        else:
            limits = [{"limit": part_rows, "offset": start} for start in range(0, total, part_rows)]
        for limit in limits:
            for batch in self.dataset.scanner(**limit, **options).to_batches():
                yield batch, batch.column(ROW_ADDRESS).to_numpy().astype(np.int64)

    def _blob_batches(self, columns: list[str], blobs: list[str]) -> Iterator[tuple[pa.RecordBatch, Offsets]]:
        """All newest rows with the bytes of their blobs, and their offsets, in parts of about as many bytes."""
        shown = self.dataset.to_table(columns=blobs)
        sizes = sizes_of(shown.columns, shown.num_rows)
        for start, end in by_bytes(sizes):
            rows: dict[str, Any] = {"columns": columns, "limit": end - start, "offset": start, "with_row_address": True}
            if sizes[start] > PART_BYTES:
                batch = self._with_large_blobs(self.dataset.to_table(**rows), blobs)
                yield batch, batch.column(ROW_ADDRESS).to_numpy().astype(np.int64)
                continue
            scanner = self.dataset.scanner(**rows, batch_size=end - start, blob_handling="all_binary")
            for batch in scanner.to_batches():
                yield batch, batch.column(ROW_ADDRESS).to_numpy().astype(np.int64)

    def _with_large_blobs(self, row: pa.Table, blobs: list[str]) -> pa.RecordBatch:
        """One row, with the bytes of its blobs: a scan would hold them several times."""
        columns = {name: one_array(row.column(name)) for name in row.schema.names}
        address = columns[ROW_ADDRESS][0].as_py()
        for name in blobs:
            file = self.dataset.take_blobs(name, addresses=[address])[0]
            columns[name] = one_blob(None if file is None else file.readall())
        return pa.RecordBatch.from_pydict(columns)

    def open_blob(self, schema: TableSchema, offset: int, column: str) -> BlobFile | None:
        """The blob of the row at `offset`; None if it is null, or the generation does not have the column."""
        name = self.name_of(column, schema)
        if name is None:
            return None
        with self.reading():
            return self.dataset.take_blobs(name, addresses=[offset])[0]  # the fragment is 0

    def _file_batches(
        self, file: DataFile, columns: list[str], batch_rows: int, part_rows: int
    ) -> Iterator[tuple[pa.RecordBatch, Offsets]]:
        newest = None if file.fragment.deletion is None else self._newest_of(file.fragment, file.fragment.deletion)
        with self._file_lock:  # a stream takes the open file: a descriptor per SSTable is too many
            reader, self._file = self._file, None
        some = columns if len(columns) < len(file.columns) else None
        if reader is None or some is not None:
            reader = self._open_file(file, some)
        at = 0
        for start in range(0, file.physical_rows, part_rows):
            rows = min(part_rows, file.physical_rows - start)
            for batch in reader.read_range(start, rows, batch_size=batch_rows).to_batches():
                offsets = np.arange(at, at + batch.num_rows)
                at += batch.num_rows
                stays = None if newest is None else newest[offsets]
                if stays is None or stays.all():
                    yield batch, offsets
                else:
                    yield batch.filter(pa.array(stays)), offsets[stays]

    def rolled_rows(self) -> tuple[pa.Table, Offsets] | None:
        """The newest rows as they are stored, in one piece, and their offsets, if a roll-up has them."""
        keys = self._rolled_keys()
        rows = None if keys is None or self.rolled is None else self.rolled.rows()
        if keys is None or rows is None:
            return None
        offsets = np.sort(keys.offsets)
        newest = rows if len(offsets) == rows.num_rows else rows.take(pa.array(offsets))
        return newest.combine_chunks(), offsets

    def _newest_of(self, fragment: Fragment, deletion: DeletionFile) -> npt.NDArray[np.bool_]:
        """Per row of the data file: whether the deletion vector leaves it."""
        if self._mask is None:
            path = f"{self.directory}/{deletion_path(fragment.id, deletion)}"
            try:
                replaced = decode_deletions(self.location.store.get(path), physical_rows=fragment.physical_rows)
            except CorruptDataError as error:
                raise CorruptDataError(str(error), path=path) from error
            if len(replaced) != deletion.num_deleted_rows:
                raise CorruptDataError(
                    f"{len(replaced)} rows are deleted, {deletion.num_deleted_rows} are listed", path=path
                )
            newest = np.ones(fragment.physical_rows, dtype=np.bool_)
            newest[replaced] = False
            self._mask = newest
        return self._mask

    def stored_rows(self) -> pa.Table | None:
        """All rows of its data file, as they are stored; None if they are more than that."""
        file = self.data_file
        rolled = None if self.rolled is None else self.rolled.rows()
        if file is None or rolled is not None:
            return rolled
        with self.reading():
            return self._open_file(file).read_all().to_table().combine_chunks()

    def keep_if_small(self, schema: TableSchema) -> None:
        """Keep all its rows, unless they are many: then every key of it is a look into memory."""
        if self._rows is None and (self.sstable.in_memory_bytes or _SMALL_BYTES + 1) <= _SMALL_BYTES:
            self.all_rows(schema)

    def row_at(self, schema: TableSchema, offset: int, columns: Sequence[str]) -> dict[str, Any] | None:
        """One row, `columns` or fields of it; None if it is a tombstone."""
        kept = self._rows
        if kept is not None and (kept.schema is schema or kept.schema == schema):
            table, at = kept.table, int(kept.offsets.searchsorted(offset))
        else:
            table, at = self.take(schema, np.array([offset]), roots_of(columns)), 0
        if table.column(TOMBSTONE)[at].as_py():
            return None
        return {name: value_at(name, table, at) for name in columns}

    def take(self, schema: TableSchema, offsets: Offsets, columns: Sequence[str]) -> pa.Table:
        """The rows at `offsets`, in that order, `columns` and `_tombstone`."""
        kept = self._rows
        if kept is not None and kept.schema == schema:
            at = np.searchsorted(kept.offsets, offsets)
            return kept.table.select([*columns, TOMBSTONE]).take(pa.array(at))
        order = np.argsort(offsets)  # the file takes ascending offsets only
        with self.reading():
            table = self._taken(offsets[order].tolist())
        if table.num_rows != len(offsets):
            raise CorruptDataError("an SSTable lacks a row that its sidecar names", path=self.directory)
        found = self.conformed(table, columns, schema)
        return found if len(order) < 2 else found.take(pa.array(np.argsort(order)))

    def _taken(self, offsets: list[int]) -> pa.Table:
        """All columns of the rows at ascending offsets."""
        file = self.data_file
        if file is not None:
            with self._file_lock:  # until the rows are there: a stream may take the open file
                reader = self._file = self._file or self._open_file(file)
                return reader.take_rows(offsets).to_table()
        return take_rows(self.dataset, offsets, self.dataset.schema.names)  # offsets are addresses: the fragment is 0

    def _open_file(self, file: DataFile, columns: list[str] | None = None) -> LanceFileReader:
        reader: LanceFileReader = lance_at(self.location).reader(file.path, columns)
        if reader.num_rows() != file.physical_rows:
            raise CorruptDataError(f"{reader.num_rows()} rows where {file.physical_rows} are listed", path=file.path)
        return reader

    def conformed(self, table: pa.Table, columns: Sequence[str], schema: TableSchema) -> pa.Table:
        """Stored rows as `columns` of the table and `_tombstone`."""
        arrays = []
        for column in columns:
            at, fit = self._match(schema).find(column)
            values = table.column(self.columns.field(at).name if at >= 0 else TOMBSTONE)
            arrays.append(fit.chunks(values if at < 0 else _as_asked(values, schema.nullable.field(column))))
            if arrays[-1].type != fit.kind:
                raise UnsupportedFormatError(f"column {column!r} is read as {arrays[-1].type}, not {fit.kind}")
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


def _is_translated(field: LanceField) -> bool:
    return field.logical_type.startswith("dict") or any(key in field.metadata for key in _TRANSLATED)


def _columns(fields: Sequence[LanceField]) -> dict[str, FieldId]:
    def below(field: LanceField) -> FieldId:
        return FieldId(field.id, tuple(below(child) for child in fields if child.parent_id == field.id))

    return {field.name: below(field) for field in fields if field.parent_id == -1}


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
