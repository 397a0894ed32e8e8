"""Deletes that compaction folded away, and that late rows must still meet.

Owns the files below `memwal_deletes` of a shard: key and sequence of every tombstone that a compaction folds, written
before its commit. A file is created and never changed. Invariants:

1. Whoever reads them does so after it captured the base table: a tombstone is then in an SSTable, or in a file.
2. What stands in a file was deleted, whether or not the compaction that wrote it succeeded: it may be there twice.
3. The age of a delete counts from the creation of its file; after `remember_ms` it is forgotten.

A file is an Arrow stream with the columns k0, k1, … (the key, in key order) and `sequence`, the CRC-32 of it (4 bytes, little
endian), and the letters MWALDEL1.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.clock import Clock
from lance_memwal.errors import CorruptDataError
from lance_memwal.process.cache import CACHE
from lance_memwal.rows.adapt import tombstone_flags
from lance_memwal.rows.ipc_frames import read_stream, stream_of
from lance_memwal.rows.keys import key_array, one_array
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.read import SsTableReader
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import SsTable

_MAGIC = b"MWALDEL1"
_CRC = struct.Struct("<I")
_SEQUENCE = "sequence"


@dataclass(frozen=True, slots=True)
class RememberedDeletes:
    """Keys that were deleted, as columns, and the sequences of the deletes."""

    rows: pa.Table

    @property
    def size_bytes(self) -> int:
        """Resident bytes."""
        return int(self.rows.nbytes)

    @property
    def sequences(self) -> pa.Array:
        """All sequences."""
        return one_array(self.rows.column(_SEQUENCE))

    def find(self, keys: Sequence[pa.Array]) -> tuple[pa.Array, pa.Array]:
        """Of these keys: the numbers of those that were deleted, and the highest sequence at which each was."""
        asked = key_array(keys)
        deleted = key_array([self.rows.column(i) for i in range(self.rows.num_columns - 1)])
        places = pc.index_in(deleted, value_set=asked)
        kind = self.sequences.type
        compared = self.sequences.cast(pa.float32()) if pa.types.is_float16(kind) else self.sequences
        found = pa.table({"at": places, _SEQUENCE: compared}).filter(places.is_valid())
        highest = found.group_by("at", use_threads=False).aggregate([(_SEQUENCE, "max")])
        return one_array(highest.column("at")), one_array(highest.column(f"{_SEQUENCE}_max")).cast(kind)


def remember_deletes(
    location: Location, shard_id: str, sstables: Sequence[SsTable], schema: TableSchema, sequence: str, clock: Clock
) -> None:
    """Write down every tombstone of `sstables` that has a sequence."""
    names = [*schema.primary_key, sequence]
    parts: list[pa.RecordBatch] = []
    for sstable in sstables:
        reader = SsTableReader(location, shard_id, sstable)
        for batch, _ in reader.batches(schema, names, None, reader.stored.part_rows):
            kept = tombstone_flags(batch) & batch.column(sequence).is_valid().to_numpy(zero_copy_only=False)
            if kept.any():
                parts.append(batch.select(names).filter(pa.array(kept)))
    if not parts:
        return
    columns = _columns(schema, sequence)
    table = pa.Table.from_batches([pa.RecordBatch.from_arrays(part.columns, schema=columns) for part in parts])
    path = paths.deletes_path(shard_id, sstables[-1].generation, clock.uuid4()[:8])
    location.store.make_directory(paths.deletes_dir(shard_id))
    location.store.put_new(path, _encode(table), sync=True, make_directory=False)


def remembered_deletes(
    location: Location, shard_id: str, schema: TableSchema, sequence: str, *, since_ms: int
) -> RememberedDeletes:
    """Every delete of the shard in files that were created after `since_ms`."""
    listed = location.store.list(paths.deletes_dir(shard_id))
    names = tuple(sorted(item.path for item in listed if item.modified_ms > since_ms))
    columns = _columns(schema, sequence)

    def read() -> RememberedDeletes:
        tables = [_decode(location.store.get(path), columns, path) for path in names]
        return RememberedDeletes(pa.concat_tables(tables) if tables else columns.empty_table())

    return CACHE.fetch(("deletes", location.key, shard_id), read, (names, columns.to_string()))


def _columns(schema: TableSchema, sequence: str) -> pa.Schema:
    key = [pa.field(f"k{i}", schema.columns.field(name).type) for i, name in enumerate(schema.primary_key)]
    return pa.schema([*key, pa.field(_SEQUENCE, schema.columns.field(sequence).type)])


def _encode(table: pa.Table) -> bytes:
    data = bytes(stream_of(table.schema, table.to_batches()))
    return b"".join([data, _CRC.pack(zlib.crc32(data)), _MAGIC])


def _decode(data: bytes, columns: pa.Schema, path: str) -> pa.Table:
    stream, crc, magic = data[:-12], data[-12:-8], data[-8:]
    if magic != _MAGIC or _CRC.pack(zlib.crc32(stream)) != crc:
        raise CorruptDataError("a file of remembered deletes is damaged", path=path)
    table = read_stream(stream, "a file of remembered deletes", path=path)
    if table.schema.types != columns.types:
        raise CorruptDataError("remembered deletes have other columns than the table", path=path)
    return pa.Table.from_arrays([one_array(column) for column in table.columns], schema=columns)
