"""Writing one generation: the rows of a frozen memtable become an SSTable directory, complete, not yet published.

Owns the content of an SSTable: the Lance dataset, the deletion vector of older duplicates, the primary-key sidecar and
the bloom filter. Invariants:

1. Every attempt writes a new random directory, so that a repeated or racing attempt never mixes files with another.
2. When `write_sstable` returns, everything exists (and with `fsync` survives power loss); whoever publishes the
   generation publishes it whole.
3. The dataset has one fragment of all rows in insert order, at version 1, with the base table's field ids (readers
   match by id) and file version. Its configuration names the base version that these ids are of (RFC 0036).
   `_tombstone` is the last column and has the id after the largest one.
4. Of the rows of one key, all but the last are in the deletion vector; a tombstone counts as a row. The sidecar and
   the filter list all rows.
5. Of rows that come as a stream, memory holds a few batches, and the keys of all. Rows with blobs always do.
6. An attempt that failed, or that will certainly never be published, removes its own directory; the first error is the
   one that is raised, whatever becomes of the removal. One whose commit has an unknown outcome is left to collection.

Order of effects: the data file is written while keys are sorted and hashed and sidecar, filter and deletion vector are
written (of a stream, before them: its keys are known at its end); then the manifest of version 1, made by us because
Lance's API cannot commit chosen field ids or a deletion vector there, so that an attempt that died is no dataset at all;
then `after_data` (indexes) runs on the finished
dataset. That order is not free: an index records field ids and adds a version, so it needs the final manifest, and
built after it, it leaves out the replaced rows by itself. Readers accept the versions that indexes add.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import lance
import pyarrow as pa

from lance_memwal.clock import SYSTEM_CLOCK, Clock, side_by_side
from lance_memwal.crash_points import reach
from lance_memwal.errors import (
    CorruptDataError,
    FencedError,
    InvalidInputError,
    UnavailableError,
    UnsupportedFormatError,
)
from lance_memwal.lance.base import lance_errors
from lance_memwal.lance.damage import version_names
from lance_memwal.lance.deletions import encode_deletions
from lance_memwal.lance.door import lance_at
from lance_memwal.lance.hand_made import fragment_of
from lance_memwal.lance.manifest import (
    BITMAP,
    DeletionFile,
    Fragment,
    deletion_path,
    generation_manifest,
    parse_lance_manifest,
    removal_order,
    version_path,
    with_indexes_of,
)
from lance_memwal.log.manifest import ManifestUpdate, ShardManifestStore
from lance_memwal.memtable.memtable import aligned_array
from lance_memwal.rows.blobs import by_bytes, shown_blobs, sizes_of
from lance_memwal.rows.key_encoding import key_hashes
from lance_memwal.rows.keys import concat_keys, one_array
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.bloom import build_bloom
from lance_memwal.sstable.sidecar import sort_keys, write_sidecar
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest, SsTable

_LOG = logging.getLogger(__name__)
_VERSION_HINT = "/latest_version_hint.json"
# The reference counts this much per batch beside the buffers when it estimates memory.
_BATCH_OVERHEAD_BYTES = 36
_SMALL_ROWS = 10_000
# More than this and Lance writes one fragment per chunk.
_ONE_FRAGMENT_ROWS = 2**31 - 1
_ONE_FRAGMENT_BYTES = 2**50


def write_sstable(
    location: Location,
    shard_id: str,
    generation: int,
    table: pa.Table | Sequence[pa.RecordBatch] | Iterator[pa.RecordBatch],
    *,
    schema: TableSchema,
    storage_version: str,
    fsync: bool,
    clock: Clock = SYSTEM_CLOCK,
    after_data: Callable[[lance.LanceDataset], None] | None = None,
) -> SsTable:
    """Write all rows as a complete SSTable and return what the shard manifest should list; nothing is published.

    `table` holds the base columns in base order and `_tombstone`, in insert order; an iterator is never in memory as a
    whole.
    """
    attempt = _Attempt(location, shard_id, paths.sstable_name(clock.token_hex(4), generation), schema, clock)
    with not_published(location, shard_id, attempt.name):
        return _write(attempt, generation, table, storage_version, after_data, fsync=fsync)


@contextmanager
def not_published(location: Location, shard_id: str, name: str) -> Iterator[None]:
    """Whatever fails in here fails before the SSTable `name` can be published: its directory goes."""
    try:
        yield
    except BaseException:
        discard_sstable(location, shard_id, name)
        raise


def commit_sstable(
    manifests: ShardManifestStore,
    epoch: int,
    sstable: SsTable,
    update: ManifestUpdate,
    landed: Callable[[ShardManifest], bool],
    *,
    announced: bool = False,
) -> ShardManifest:
    """The manifest after `update`, which lists `sstable`, was committed, or was found to be in vain.

    The directory goes if it certainly is not published: its generation is listed under another name; or nobody was asked
    to list it, or every slot that we tried holds the bytes of others. The last two only say something where nobody else
    knows of it: not if it was `announced` in the log. A doubt leaves it to collection.
    """
    proposed = False

    def noted(latest: ShardManifest) -> ShardManifest:
        nonlocal proposed
        updated = update(latest)
        proposed = proposed or updated is not latest
        return updated

    try:
        manifest = manifests.commit_update(epoch, noted, landed=landed)
    except BaseException as error:
        if not announced and (not proposed or isinstance(error, FencedError)):
            discard_sstable(manifests.location, manifests.shard_id, sstable.path)
        raise
    listed = {item.generation: item.path for item in manifest.sstables}.get(sstable.generation)
    if listed not in (None, sstable.path):
        discard_sstable(manifests.location, manifests.shard_id, sstable.path)
    return manifest


def discard_sstable(location: Location, shard_id: str, name: str) -> None:
    """Remove an SSTable that was not and never will be published. A failure is logged: collection takes what stays."""
    directory = paths.sstable_dir(shard_id, name)
    try:
        for item in sorted(location.store.list(directory), key=lambda item: removal_order(item.path)):
            location.store.delete(item.path)
        location.store.delete(directory)  # what is left of it, where a store has directories
    except Exception as error:
        _LOG.warning("a failed attempt could not be removed [shard=%s, path=%s]: %s", shard_id, name, error)


def _write(
    attempt: _Attempt,
    generation: int,
    table: pa.Table | Sequence[pa.RecordBatch] | Iterator[pa.RecordBatch],
    storage_version: str,
    after_data: Callable[[lance.LanceDataset], None] | None,
    *,
    fsync: bool,
) -> SsTable:
    location, shard_id, name = attempt.location, attempt.shard_id, attempt.name
    schema, clock = attempt.schema, attempt.clock

    def shared(*work: Callable[[], Any]) -> list[Any]:
        """Small generations on a local disk are written faster than a thread is begun."""
        helpers = 0 if location.is_local and rows.num_rows <= _SMALL_ROWS else 1
        return side_by_side(work, helpers, f"memwal-flush-{generation}", clock)

    if isinstance(table, Iterator) or schema.blobs:
        rows: pa.Table | _Stream = _Stream(table if isinstance(table, Iterator) else _in_parts(table, schema), schema)
        data = attempt.write_data(rows.reader, "2.1" if storage_version == "2.0" else storage_version)
        keys = rows.keys()
        deletion, _ = shared(lambda: attempt.write_keys(keys), lambda: attempt.write_filter(keys))
    else:
        rows = whole = _conform(table, schema)
        version = _file_version(whole, storage_version)
        keys = [one_array(whole.column(column)) for column in schema.primary_key]
        data, deletion, _ = shared(
            lambda: attempt.write_data(whole, version),
            lambda: attempt.write_keys(keys),
            lambda: attempt.write_filter(keys),
        )
    reach("flush.before_dataset")
    attempt.write_manifest(data, deletion)
    if after_data is not None:
        attempt.run_on_dataset(after_data)
    if fsync:
        location.store.sync_tree(paths.sstable_dir(shard_id, name))
    _LOG.debug("wrote SSTable [shard=%s, generation=%d, rows=%d, path=%s]", shard_id, generation, rows.num_rows, name)
    batches = rows.batches if isinstance(rows, _Stream) else len(table) if isinstance(table, Sequence) else 1
    return SsTable(
        generation=generation,
        path=name,
        in_memory_bytes=rows.nbytes + _BATCH_OVERHEAD_BYTES * batches,
        physical_rows=rows.num_rows,
        primary_key_bytes=sum(column.nbytes for column in keys) if schema.primary_key else None,
    )


def _in_parts(table: pa.Table | Sequence[pa.RecordBatch], schema: TableSchema) -> Iterator[pa.RecordBatch]:
    """All rows, in parts of which none has more than a few megabytes of blobs, or it has one row."""
    for batch in table.to_batches() if isinstance(table, pa.Table) else table:
        shown = [pa.chunked_array([shown_blobs(batch.column(name))]) for name in schema.blobs]
        for start, end in by_bytes(sizes_of(shown, batch.num_rows)):
            yield batch.slice(start, end - start)


class _Stream:
    """Rows that are read once, for the data file; their keys and their size are known when it is written."""

    def __init__(self, batches: Iterable[pa.RecordBatch], schema: TableSchema) -> None:
        self.num_rows = self.nbytes = self.batches = 0
        self._schema = schema
        self._keys: list[list[pa.Array]] = [[] for _ in schema.primary_key]
        self.reader = pa.RecordBatchReader.from_batches(schema.memory, self._counted(batches))

    def _counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for given in batches:
            for batch in _conform([given], self._schema).to_batches():
                self.num_rows += batch.num_rows
                self.nbytes += batch.nbytes
                self.batches += 1
                for pieces, name in zip(self._keys, self._schema.primary_key, strict=True):
                    pieces.append(pa.concat_arrays([batch.column(name), batch.column(name).slice(0, 0)]))  # a copy
                yield batch

    def keys(self) -> list[pa.Array]:
        """The key columns, once the data file is written."""
        return [concat_keys(pieces) for pieces in self._keys]


def _conform(table: pa.Table | Sequence[pa.RecordBatch], schema: TableSchema) -> pa.Table:
    """The rows as one chunk per column (more where one would pass 2 GiB), with exactly the schema that is written."""
    written = schema.memory
    parts = [table] if isinstance(table, pa.Table) else table
    if any(part.schema.names != written.names for part in parts):
        raise InvalidInputError(f"a generation has the columns {', '.join(written.names)}, in this order")
    if not any(part.num_rows for part in parts):
        raise InvalidInputError("a generation without rows is not written")
    columns = [_conform_column(parts, index, field) for index, field in enumerate(written)]
    return pa.Table.from_arrays(columns, schema=written)


def _conform_column(parts: Sequence[pa.Table | pa.RecordBatch], index: int, field: pa.Field) -> pa.ChunkedArray:
    pieces = [part.column(index) for part in parts]
    chunks = [chunk for piece in pieces for chunk in (piece.chunks if isinstance(piece, pa.ChunkedArray) else [piece])]
    try:
        column = pa.table([pa.chunked_array(chunks)], names=[field.name]).combine_chunks().column(0)
        if column.type != field.type:  # Arrow breaks lists of nulls that it casts to their own type
            column = column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise InvalidInputError(f"column {field.name!r} does not fit the type {field.type}") from None
    if column.null_count and not field.nullable:
        raise InvalidInputError(f"column {field.name!r} must not hold nulls")
    return pa.chunked_array([aligned_array(chunk) for chunk in column.chunks], field.type)


def _file_version(rows: pa.Table, storage_version: str) -> str:
    """The base table's file version, or the next one where that cannot hold the rows.

    Version 2.0 has no null structs, but a tombstone is null in every column outside the key. Readers open a generation
    as a dataset of its own, so that its version is free.
    """
    chunks = (chunk for column in rows.columns for chunk in column.chunks)
    return "2.1" if storage_version == "2.0" and any(map(has_null_struct, chunks)) else storage_version


def has_null_struct(array: pa.Array) -> bool:
    """Whether a struct in `array` is null."""
    kind = array.type
    if pa.types.is_struct(kind):
        return bool(array.null_count) or any(has_null_struct(child) for child in array.flatten())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return has_null_struct(_items(array))
    return False


def _items(array: pa.Array) -> pa.Array:
    try:
        return array.flatten()
    except pa.ArrowNotImplementedError:  # extension types inside: with what null lists hide, which is never too little
        return array.values


@dataclass(frozen=True, slots=True)
class _Data:
    """A data file on storage: its version, the fields in it, and the fragment that it makes."""

    storage_version: str
    fields: tuple[bytes, ...]
    fragment: Fragment


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The directory of one flush attempt and what goes into it."""

    location: Location
    shard_id: str
    name: str
    schema: TableSchema
    clock: Clock

    def _path(self, relative: str) -> str:
        return f"{self._directory}/{relative}"

    @property
    def _directory(self) -> str:
        return paths.sstable_dir(self.shard_id, self.name)

    def write_data(self, rows: pa.Table | pa.RecordBatchReader, storage_version: str) -> _Data:
        """Write the rows as one fragment that no version holds yet."""
        with lance_errors("writing a generation"):
            written = lance_at(self.location).write_fragments(
                rows,
                self._directory,
                data_storage_version=storage_version,
                max_rows_per_file=_ONE_FRAGMENT_ROWS,
                max_bytes_per_file=_ONE_FRAGMENT_BYTES,
            )
        if len(written.fragments) != 1:
            raise CorruptDataError(f"Lance wrote {len(written.fragments)} fragments instead of one")
        reach("flush.after_data")
        return _Data(storage_version, _field_messages(written.new_schema), fragment_of(written.fragments[0]))

    def write_filter(self, keys: list[pa.Array]) -> None:
        """Write the bloom filter; without a primary key it holds the hash of no bytes, as the reference's does."""
        with lance_errors("hashing the keys of a generation"):
            filter_bytes = build_bloom(key_hashes(keys))
        self.location.store.put(paths.bloom_path(self.shard_id, self.name), filter_bytes)

    def write_keys(self, columns: list[pa.Array]) -> DeletionFile | None:
        """Write the sidecar, and the deletion vector if a later row of the same key replaces any."""
        if not self.schema.primary_key:
            return None
        with lance_errors("sorting the keys of a generation"):
            keys = sort_keys(columns)
        reach("flush.before_sidecar")
        write_sidecar(self.location, self.shard_id, self.name, keys)
        if not len(keys.replaced):
            return None
        deletion = DeletionFile(BITMAP, 1, self.clock.randbits(64), len(keys.replaced))
        self.location.store.put(self._path(deletion_path(0, deletion)), encode_deletions(keys.replaced))
        return deletion

    def write_manifest(self, data: _Data, deletion: DeletionFile | None) -> None:
        """Make the directory a dataset."""
        ids = self._field_ids(len(data.fields))
        manifest = generation_manifest(
            data.fields,
            replace(data.fragment, deletion=deletion),
            field_ids=dict(enumerate(ids)),  # Lance numbers a new dataset from zero, in pre-order
            schema_metadata=self.schema.columns.metadata or {},
            storage_version=data.storage_version,
            lance_version=lance.__version__,
            now_ms=self.clock.now_ms(),
            base=self.schema.base,
        )
        made = parse_lance_manifest(manifest).fields
        columns = [field.name for field in made if field.parent_id == -1]
        if [field.id for field in made] != ids or columns != self.schema.memory.names:
            raise UnsupportedFormatError("this version of Lance numbers the fields of a new dataset in another way")
        self.location.store.put(self._path(version_path(1)), manifest)

    def _field_ids(self, count: int) -> list[int]:
        if self.schema.field_ids is None:  # as a new base table would number them
            return list(range(count))
        present = [number for ids in self.schema.field_ids for number in ids.in_order()]
        wanted = [*present, max(present) + 1]
        if len(wanted) != count:
            raise InvalidInputError(f"the rows have {count - 1} fields, the base table has {len(wanted) - 1}")
        return wanted

    def run_on_dataset(self, action: Callable[[lance.LanceDataset], None]) -> None:
        """Open the finished dataset and hand it over."""
        try:
            with lance_errors("opening a generation"):
                dataset = lance_at(self.location).dataset(self._directory)
        except (InvalidInputError, UnavailableError):
            self._versions()  # which says if it was collected
            raise
        action(dataset)
        self._make_one_version()

    def _versions(self) -> dict[int, str]:
        """The manifests of the dataset by version; `UnavailableError` if the first one is gone: only collection removes it."""
        names = version_names(self.location, self._directory)
        if 1 not in names:
            raise UnavailableError(
                f"generation {self.name} was collected while it was written: the shard moved on meanwhile; try again",
                ambiguous=False,
            )
        return names

    def _make_one_version(self) -> None:
        """Put what later versions added (indexes) into the first one, and remove them: a generation has one version.

        Nobody knows of the directory yet, so that files may be replaced here.
        """
        store, root, names = self.location.store, self._directory, self._versions()
        if len(names) == 1:
            return
        whole = with_indexes_of(store.get(names[1]), store.get(names[max(names)]))
        store.put(names[1], whole)
        for item in store.list(root):
            later = item.path in names.values() and item.path != names[1]
            if later or item.path.endswith((".txn", _VERSION_HINT)):
                store.delete(item.path)


def _field_messages(schema: Any) -> tuple[bytes, ...]:
    """The Field messages of a Lance schema, in pre-order: what it is pickled as, behind its metadata."""
    messages = tuple(schema.__reduce__()[1][1:])
    if not all(isinstance(message, bytes) for message in messages):
        raise UnsupportedFormatError("this version of Lance does not tell the fields of a schema")
    return messages
