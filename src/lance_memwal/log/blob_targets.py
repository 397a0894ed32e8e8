"""Entries with blobs of the second layout: where their bytes are, and what the peer must be told.

Owns `BlobTarget` and `with_blobs`. Such an entry reserves the directory and the data file of its generation, in its schema
metadata; all entries of a generation name the same ones. The peer writes large blobs beside that data file before the entry
(one file per blob, or several in one), and small ones into the entry. RFC 0011 has the bytes. Invariants:

1. We write every blob into the entry: it is whole by itself, and the checksum covers it. The peer takes it so.
2. Our targets follow from table, shard and generation, so that all writers of ours name the same. A generation in which the
   peer has begun to write is not continued by us.
3. An entry is handed on with the bytes of its blobs, whoever wrote it. What its files lack is `CorruptDataError`, a form of
   blobs that we do not know `UnsupportedFormatError`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from lance_memwal.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError
from lance_memwal.rows.blobs import PREPARED_NAME, from_prepared, is_prepared, is_second_layout
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import WalEntry

TARGET_PREFIX = b"mem_wal_target_"
_GENERATION, _DIRECTORY, _DATA_FILE, _EPOCH, _CAPACITY = TARGET_KEYS = tuple(
    TARGET_PREFIX + name
    for name in (b"generation", b"generation_dir", b"data_file", b"creator_epoch", b"batch_capacity")
)
_LARGEST_FILE_BYTES = (1 << 63) - 1
_NAMES = uuid.UUID("b10b5000-0011-4000-8000-000000000000")


@dataclass(frozen=True, slots=True)
class BlobTarget:
    """What the entries of one generation say of its directory."""

    generation: int
    directory: str
    data_file: str
    creator_epoch: int
    batch_capacity: int

    @classmethod
    def of(cls, table: str | None, shard_id: str, generation: int, epoch: int, batch_capacity: int) -> BlobTarget:
        """The one that all our writers name."""
        name = uuid.uuid5(_NAMES, f"{table}/{shard_id}/{generation}").hex
        data_file = f"{int(name[8:14], 16):024b}{name[6:]}.lance"
        return cls(generation, paths.sstable_name(name[:8], generation), data_file, epoch, batch_capacity)

    def metadata(self) -> dict[bytes, str]:
        """The keys of the schema metadata of an entry."""
        return {
            _GENERATION: str(self.generation),
            _DIRECTORY: self.directory,
            _DATA_FILE: self.data_file,
            _EPOCH: str(self.creator_epoch),
            _CAPACITY: str(self.batch_capacity),
        }


def blob_target(
    schema: TableSchema, table: str | None, shard_id: str, epoch: int, batch_capacity: int, generation: int
) -> Mapping[bytes, str]:
    """What our entries of a generation say of its files: nothing, unless the table has blobs of the second layout."""
    if not any(is_second_layout(schema.columns.field(name).type) for name in schema.blobs):
        return {}
    return BlobTarget.of(table, shard_id, generation, epoch, batch_capacity).metadata()


def has_blob_target(entry: WalEntry) -> bool:
    """Whether the entry reserves the directory of its generation."""
    return entry.schema is not None and any(key.startswith(TARGET_PREFIX) for key in entry.schema.metadata or {})


def directory_of(entry: WalEntry) -> str:
    """The directory that an entry with a blob target reserves."""
    metadata: Mapping[bytes, bytes] = entry.schema.metadata if entry.schema is not None else {}
    return metadata[_DIRECTORY].decode(errors="replace")


def with_blobs(location: Location, shard_id: str, entry: WalEntry) -> WalEntry:
    """`entry` with the bytes of its blobs, wherever they are."""
    if not entry.batches or not has_blob_target(entry):
        return entry
    metadata: Mapping[bytes, bytes] = entry.schema.metadata if entry.schema is not None else {}
    directory = directory_of(entry)
    data_file = metadata[_DATA_FILE].decode(errors="replace")

    def load(blob_id: int, start: int, length: int) -> bytes:
        path = paths.blob_path(shard_id, directory, data_file, blob_id)
        if start + length > _LARGEST_FILE_BYTES:
            raise CorruptDataError("the blob of a WAL entry is in no file", path=path, position=entry.position)
        try:
            data = location.store.get_range(path, start, length)
        except ObjectNotFoundError:
            data = b""
        if len(data) != length:
            raise CorruptDataError("a file lacks the blob of a WAL entry", path=path, position=entry.position)
        return data

    batches = []
    for batch in entry.batches:
        fields, columns = [], []
        for field, column in zip(batch.schema, batch.columns, strict=True):
            values = _stored(column, load, entry.position) if is_prepared(field) else column
            fields.append(_field_of(field, values))
            kind = fields[-1].type
            columns.append(kind.wrap_array(values) if kind != values.type else values)
        batches.append(pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, batch.schema.metadata)))
    return replace(entry, batches=tuple(batches), schema=batches[0].schema)


def _stored(column: pa.Array, load: Callable[[int, int, int], bytes], position: int) -> pa.Array:
    try:
        return from_prepared(column, load)
    except UnsupportedFormatError as error:
        raise UnsupportedFormatError(str(error), position=position) from None


def _field_of(field: pa.Field, values: pa.Array) -> pa.Field:
    """The field of a column as other entries have it, whose types pyarrow reads itself."""
    marks = dict(field.metadata or {})
    name = marks.pop(PREPARED_NAME, None)
    if name is None or values.type != field.type:
        return pa.field(field.name, values.type, field.nullable, marks)
    named = pa.schema([field.with_metadata({**marks, b"ARROW:extension:name": name})])
    return pa.ipc.read_schema(named.serialize()).field(0)
