"""The rows of an SSTable straight from its one data file, without opening a dataset.

A generation is small and there may be hundreds of them; planning a scan of a dataset costs several times what reading
its file costs. Owns `simple_file`. Invariants:

1. Only a layout that is understood whole is read this way: one fragment, one data file, no deletion vector or a bitmap,
   no feature or column type that Lance translates while it scans. `None` says that the dataset must be asked.
2. What the newest version of the SSTable says is what is read; rows that its deletion vector names are left out.
3. Columns are known by field id; `_tombstone` is none of them.
4. Memory: one batch, however large the file is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.file import LanceFileReader

from lance_memwal.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError
from lance_memwal.lance.base import lance_options, lance_read, lance_reading
from lance_memwal.lance.deletions import decode_deletions
from lance_memwal.lance.hand_made import hand_commit_is_safe
from lance_memwal.lance.manifest import (
    BITMAP,
    VERSIONS_DIR,
    DeletionFile,
    LanceField,
    LanceManifest,
    deletion_path,
    parse_lance_manifest,
    parse_version_name,
    version_path,
)
from lance_memwal.rows.schema import FieldId
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import TOMBSTONE, SsTable

__all__ = ["SsTableFile", "check_has_flags", "simple_file"]

# What Lance stores in one form and shows in another.
_TRANSLATED = ("ARROW:extension:name", "lance-encoding:blob")
_READ_AHEAD = 1  # batches; what reads ahead are several generations


@dataclass(frozen=True, slots=True)
class SsTableFile:
    """The data file of a generation. `columns` are the ids of its top-level columns and of what is inside them, by name."""

    location: Location
    directory: str
    path: str
    columns: dict[str, FieldId]
    physical_rows: int
    replaced: npt.NDArray[np.uint32]

    def batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """The newest rows with `columns`, in file order, streaming; `ObjectNotFoundError` if the file is gone."""
        uri, options = self.location.child_uri(self.path), lance_options(self.location)
        some = None if len(columns) == len(self.columns) + 1 else list(columns)
        reader: LanceFileReader = lance_read(
            self.location, self.path, lambda: LanceFileReader(uri, storage_options=options, columns=some)
        )
        if reader.num_rows() != self.physical_rows:
            raise CorruptDataError(f"{reader.num_rows()} rows where {self.physical_rows} are listed", path=self.path)
        at = 0
        with lance_reading(self.location, "reading the data file of a generation", self.directory):
            for start in range(0, self.physical_rows, batch_rows):  # a single call would read the whole file ahead
                rows = min(batch_rows, self.physical_rows - start)
                results = reader.read_range(start, rows, batch_size=batch_rows, batch_readahead=_READ_AHEAD)
                for batch in results.to_batches():
                    yield self._without_replaced(batch, at)
                    at += batch.num_rows

    def _without_replaced(self, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        low, high = np.searchsorted(self.replaced, [start, start + batch.num_rows])
        if low == high:
            return batch
        stays = np.ones(batch.num_rows, dtype=np.bool_)
        stays[self.replaced[low:high] - start] = False
        return batch.filter(pa.array(stays))


def simple_file(location: Location, shard_id: str, sstable: SsTable) -> SsTableFile | None:
    """The data file of a generation, or None if only its dataset can tell the rows."""
    directory = paths.sstable_dir(shard_id, sstable.path)
    manifest = _newest_manifest(location, directory)
    if manifest is None or not hand_commit_is_safe(manifest) or any(map(_is_translated, manifest.fields)):
        return None
    fragments = manifest.fragments()
    if len(fragments) != 1 or len(fragments[0].files) != 1 or not fragments[0].physical_rows:
        return None
    fragment, file = fragments[0], fragments[0].files[0]
    if set(file.field_ids) != {field.id for field in manifest.fields}:
        return None
    replaced = np.empty(0, np.uint32)
    if fragment.deletion is not None:
        if fragment.deletion.file_type != BITMAP:
            return None
        path = f"{directory}/{deletion_path(fragment.id, fragment.deletion)}"
        replaced = _read_deletions(location, path, fragment.deletion, fragment.physical_rows)
    columns = _columns(manifest.fields)
    check_has_flags(columns, directory)
    return SsTableFile(
        location,
        directory,
        paths.sstable_data_path(shard_id, sstable.path, file.path),
        {name: ids for name, ids in columns.items() if name != TOMBSTONE},
        fragment.physical_rows,
        replaced,
    )


def _columns(fields: Sequence[LanceField]) -> dict[str, FieldId]:
    def below(field: LanceField) -> FieldId:
        return FieldId(field.id, tuple(below(child) for child in fields if child.parent_id == field.id))

    return {field.name: below(field) for field in fields if field.parent_id == -1}


def check_has_flags(names: Collection[str], directory: str) -> None:
    """Raise if the tombstone flags are not among the columns: every writer stores them, and without them deletes are lost."""
    if TOMBSTONE not in names:
        raise CorruptDataError(f"a generation has no column {TOMBSTONE!r}", path=directory)


def _newest_manifest(location: Location, directory: str) -> LanceManifest | None:
    """The manifest of the newest version; None if it is of a kind that we do not know."""
    names = [name for name in location.store.list_names(f"{directory}/{VERSIONS_DIR}") if name.endswith(".manifest")]
    if not names:
        raise ObjectNotFoundError(directory)
    known = [version for name in names if (version := parse_version_name(name)) is not None]
    if len(known) != len(names):
        return None
    path = f"{directory}/{version_path(max(known))}"
    try:
        return parse_lance_manifest(location.store.get(path), path=path)
    except UnsupportedFormatError:
        return None


def _is_translated(field: LanceField) -> bool:
    return field.logical_type.startswith("dict") or any(key in field.metadata for key in _TRANSLATED)


def _read_deletions(
    location: Location, path: str, deletion: DeletionFile, physical_rows: int
) -> npt.NDArray[np.uint32]:
    try:
        replaced = decode_deletions(location.store.get(path), physical_rows=physical_rows)
    except CorruptDataError as error:
        raise CorruptDataError(str(error), path=path) from error
    if len(replaced) != deletion.num_deleted_rows:
        raise CorruptDataError(f"{len(replaced)} rows are deleted, {deletion.num_deleted_rows} are listed", path=path)
    return replaced
