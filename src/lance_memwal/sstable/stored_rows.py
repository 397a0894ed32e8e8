"""The rows of a generation as they are stored: where they lie, which columns they have, part by part.

Owns `StoredRows`: the directory of one generation. Invariants:

1. A generation directory never changes, so what was read of it stays right for ever.
2. Rows are read from the data file itself, which costs a fraction of planning a scan, if that is all there is to them: one
   fragment, one data file, no deletion vector or a bitmap, no feature or type that Lance translates while it scans. All
   other layouts, filters that Lance is told, and indexes are left to the dataset.
3. Memory of a stream: one part of about eight megabytes, however large the file is, or as large as its blobs.
5. What is gone is `ObjectNotFoundError` (it was collected), what is damaged is `CorruptDataError` with its path.
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

from lance_memwal.arguments import digits_of
from lance_memwal.errors import (
    CorruptDataError,
    InvalidInputError,
    ObjectNotFoundError,
    UnavailableError,
    UnsupportedFormatError,
)
from lance_memwal.lance.base import lance_reading, take_rows
from lance_memwal.lance.column_past import named_fields
from lance_memwal.lance.damage import version_names
from lance_memwal.lance.deletions import decode_deletions
from lance_memwal.lance.door import lance_at
from lance_memwal.lance.hand_made import hand_commit_is_safe
from lance_memwal.lance.manifest import (
    BASE_FRAGMENTS_KEY,
    BASE_VERSION_KEY,
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
from lance_memwal.lance.transaction import TRANSACTIONS_DIR, read_version_of
from lance_memwal.rows.blobs import PART_BYTES, by_bytes, one_blob, sizes_of
from lance_memwal.rows.keys import one_array
from lance_memwal.rows.past_columns import NOT_RECORDED, Written
from lance_memwal.rows.schema import FieldId, tagged
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import ROW_ADDRESS, TOMBSTONE, BaseMark, SsTable

Offsets = npt.NDArray[np.int64]

_PARTS = frozenset({"data", VERSIONS_DIR})
_PART_BYTES = 8 << 20
_PART_ROWS = 1 << 16  # where nobody knows how wide rows are
# What Lance stores in one form and shows in another.
_TRANSLATED = ("ARROW:extension:name", "lance-encoding:blob")


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


class StoredRows:
    """The directory of one generation. Opening reads nothing; threads may share it."""

    def __init__(self, location: Location, shard_id: str, sstable: SsTable) -> None:
        self.location = location
        self.shard_id = shard_id
        self.sstable = sstable
        self.directory = paths.sstable_dir(shard_id, sstable.path)
        # Threads may fill or empty these at the same time: they read the same immutable bytes, and hold what they use.
        self._dataset: lance.LanceDataset | None = None
        self._place: _Place | None = None
        self._written: Written | None = None
        self._columns: pa.Schema | None = None
        self._file: LanceFileReader | None = None  # with all columns, for `take`
        self._mask: npt.NDArray[np.bool_] | None = None
        self._file_lock = threading.RLock()  # a file reader of Lance serves one caller at a time

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

    def let_go(self) -> None:
        """Hold no open file."""
        self._file = None

    # --------------------------------------------------------------------------------------- where, and which columns

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

    @property
    def written(self) -> Written:
        """What its directory records of how it was written."""
        found = self._written
        if found is None:
            manifest = self._newest_manifest()
            found = self._written = NOT_RECORDED if manifest is None else self._written_of(manifest)
        return found

    def _written_of(self, manifest: LanceManifest) -> Written:
        """What a manifest records. If pylance rewrote it, it does not name its transaction, so the files decide."""
        version = digits_of(manifest.config(BASE_VERSION_KEY) or "")
        fragments = digits_of(manifest.config(BASE_FRAGMENTS_KEY) or "")
        is_named = manifest.transaction_file is not None or manifest.transaction is not None
        fields = named_fields(manifest.fields)
        is_positional = version is None and [field.id for field in fields] == list(range(len(fields)))
        columns = tuple(field for field in fields if field.path != (TOMBSTONE,))
        return Written(
            None if version is None else BaseMark(version, fragments),
            columns if is_positional else None,
            lambda: is_named or self._has_first_transaction(),
            self.directory,
        )

    def _has_first_transaction(self) -> bool:
        """Whether a transaction made version 1: lance-memwal creates the manifest of a generation without one."""
        return any(
            read_version_of(name) == 0
            for name in self.location.store.list_names(f"{self.directory}/{TRANSACTIONS_DIR}")
        )

    def _find_file(self) -> DataFile | None:
        manifest = self._newest_manifest()
        self._written = NOT_RECORDED if manifest is None else self._written_of(manifest)
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
        names = version_names(self.location, self.directory)
        if not names:
            raise ObjectNotFoundError(self.directory)
        newest = max(names)
        if names[newest] != f"{self.directory}/{version_path(newest)}":
            return None
        try:
            return parse_lance_manifest(self.location.store.get(names[newest]), path=self.directory)
        except UnsupportedFormatError:
            return None

    # ------------------------------------------------------------------------------------------------------------- rows

    @property
    def part_rows(self) -> int:
        """Rows that make about eight megabytes."""
        size_bytes, rows = self.sstable.in_memory_bytes, self.sstable.physical_rows
        return max(1, _PART_BYTES * rows // size_bytes) if size_bytes and rows else _PART_ROWS

    @property
    def num_rows(self) -> int:
        """Its rows, replaced ones too."""
        known = self.sstable.physical_rows
        return int(self.dataset.count_rows()) if known is None else known

    def batches(
        self, columns: list[str], told: str | None, batch_rows: int
    ) -> Iterator[tuple[pa.RecordBatch, Offsets]]:
        """Newest rows and their offsets, part by part: one call for all would read far ahead."""
        part_rows = max(batch_rows, self.part_rows)
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

    def blob_batches(self, columns: list[str], blobs: list[str]) -> Iterator[tuple[pa.RecordBatch, Offsets]]:
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

    def _file_batches(
        self, file: DataFile, columns: list[str], batch_rows: int, part_rows: int
    ) -> Iterator[tuple[pa.RecordBatch, Offsets]]:
        with self._file_lock:  # a stream takes the open file: a descriptor per SSTable is too many
            reader, self._file = self._file, None
        some = columns if len(columns) < len(file.columns) else None
        if reader is None or some is not None:
            # which proves how many rows there are, before there is a mask for so many
            reader = self._open_file(file, some)
        newest = None if file.fragment.deletion is None else self._newest_of(file.fragment, file.fragment.deletion)
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

    def take(self, offsets: list[int]) -> pa.Table:
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


def _is_translated(field: LanceField) -> bool:
    return field.logical_type.startswith("dict") or any(key in field.metadata for key in _TRANSLATED)


def _columns(fields: Sequence[LanceField]) -> dict[str, FieldId]:
    def below(field: LanceField) -> FieldId:
        return FieldId(field.id, tuple(below(child) for child in fields if child.parent_id == field.id))

    return {field.name: below(field) for field in fields if field.parent_id == -1}
