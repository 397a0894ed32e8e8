"""One blob of one row, from whichever tier has the newest row of its key.

Owns `BlobFile` and `find_blob`. Invariants:

1. The tiers are asked as for a lookup: newest first, and a tombstone decides as a row does.
2. A read of a range reads that range. Of a blob on storage no more is in memory than what was asked for and what Lance reads
   ahead; one in a memtable is read where it lies, and stays there until the file is closed; of one in the log of another
   process, the entry that has it is held.
3. What was collected since the file was opened is `CollectedError`, never other bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TypeAlias

import lance.blob
import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.key_index import key_values
from lance_memwal.read.fresh import ShardMerge
from lance_memwal.read.tiers import Tiers, missing_is_collected
from lance_memwal.rows.adapt import tombstone_flags
from lance_memwal.rows.blobs import as_stored, blob_column_of, shows_blobs
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.read import SsTableReader
from lance_memwal.sstable.several import find_newest
from lance_memwal.types import TOMBSTONE

_ReadAt: TypeAlias = Callable[[int, int], bytes]
_Guard: TypeAlias = Callable[[], AbstractContextManager[None]]
_READ_AHEAD_BYTES = 512 << 10


class BlobFile(io.BufferedIOBase):
    """The bytes of one blob, as a file that is open for reading; `size()` is how many there are."""

    def __init__(self, size: int, read_at: _ReadAt) -> None:
        """`read_at` gives the bytes from an offset on, as many as are asked for."""
        super().__init__()
        self._size = size
        self._read_at: _ReadAt | None = read_at
        self._at = 0

    def size(self) -> int:
        """The bytes of the blob."""
        return self._size

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        self._source()
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to `offset`, from the start, from here or from the end; returns where that is."""
        self._source()
        begins = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}
        if whence not in begins:
            raise ValueError(f"whence is 0, 1 or 2, not {whence}")
        if begins[whence] + offset < 0:
            raise ValueError("a file has no bytes before its first")
        self._at = begins[whence] + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """The next `size` bytes, or all that are left; fewer at the end."""
        read_at = self._source()
        left = max(0, self._size - self._at)
        length = left if size is None or size < 0 else min(size, left)
        found = read_at(self._at, length) if length else b""
        self._at += len(found)
        return found

    def read1(self, size: int = -1) -> bytes:
        """As `read`."""
        return self.read(size)

    def close(self) -> None:
        """Let go of the bytes."""
        self._read_at = None
        super().close()

    def _source(self) -> _ReadAt:
        if self._read_at is None:
            raise ValueError("the file of a blob is closed")
        return self._read_at

    def __repr__(self) -> str:
        return f"<BlobFile size={self._size}{' closed' if self.closed else ''}>"


def check_blob_column(columns: pa.Schema, column: str) -> None:
    """Return only if `column` is one of blobs; `columns` are those that readers see."""
    blobs = [field.name for field in columns if shows_blobs(field)]
    if column not in blobs:
        listed = ", ".join(blobs) or "none"
        raise InvalidInputError(f"{column!r} is not a blob column of the table; its blob columns: {listed}")


def find_blob(snapshot: Tiers, key: pa.RecordBatch, column: str) -> BlobFile | None:
    """The blob of the live row of one key; None if there is no such row, or its blob is null."""
    decided = False
    for view in snapshot.shards:
        merge = ShardMerge(view, snapshot)
        found = _in_memory(merge, key, column) or _in_sstables(merge, snapshot, key, column)
        if found is not None:
            decided = True
            if found.is_live:
                return found.file
    return None if decided or snapshot.base_table is None else _in_base(snapshot, key, column)


def with_bytes(snapshot: Tiers, rows: pa.Table, columns: Sequence[str], schema: TableSchema) -> pa.Table:
    """`rows`, which a look-up found, with these columns: of those that are named by `bytes_of`, the bytes of the blobs."""
    if all(blob_column_of(name) is None for name in columns):
        return rows
    keys = rows.select(list(schema.primary_key)).combine_chunks()
    one_by_one = [batch.slice(at, 1) for batch in keys.to_batches() for at in range(batch.num_rows)]
    arrays = []
    for name in columns:
        column = blob_column_of(name)
        if column is None:
            arrays.append(rows.column(name))
            continue
        files = [find_blob(snapshot, key, column) for key in one_by_one]
        data = pa.array([None if file is None else file.read() for file in files], pa.large_binary())
        arrays.append(as_stored(data, schema.columns.field(column).type))
    return pa.Table.from_arrays([*arrays, rows.column(TOMBSTONE)], names=[*columns, TOMBSTONE])


class _Found:
    """The row that decides about a key."""

    def __init__(self, *, is_live: bool, file: BlobFile | None = None) -> None:
        self.is_live = is_live
        self.file = file


def _in_memory(merge: ShardMerge, key: pa.RecordBatch, column: str) -> _Found | None:
    values = key_values(key.columns)
    for ref in reversed(merge.view.memory):
        row = int(ref.find(values)[0])
        if row < 0:
            continue
        arrays, at = ref.locate(row)
        if arrays[TOMBSTONE][at].as_py():
            return _Found(is_live=False)
        data = ref.memtable.blob(row, column)
        return _Found(is_live=True, file=None if data is None else BlobFile(data.size, partial(_bytes_at, data)))
    return None


def _bytes_at(data: pa.Buffer, start: int, length: int) -> bytes:
    return bytes(data.slice(start, length).to_pybytes())


def _in_sstables(merge: ShardMerge, snapshot: Tiers, key: pa.RecordBatch, column: str) -> _Found | None:
    if not merge.readers:
        return None
    for reader, _, offsets in find_newest(merge.readers, key.columns):
        if tombstone_flags(reader.take(snapshot.schema, offsets, [])).any():
            return _Found(is_live=False)
        blob = reader.open_blob(snapshot.schema, int(offsets[0]), column)
        return _Found(is_live=True, file=_of_lance(blob, partial(_reading_sstable, reader)))
    return None


@contextmanager
def _reading_sstable(reader: SsTableReader) -> Iterator[None]:
    with missing_is_collected("get the blob again"), reader.stored.reading():
        yield


def _in_base(snapshot: Tiers, key: pa.RecordBatch, column: str) -> BlobFile | None:
    base = snapshot.base
    row_id = snapshot.base_lookup.row_id(base, key)
    if row_id is None:
        return None
    reading = partial(base.reading, "reading a blob of the base table")
    with reading():
        return _of_lance(base.dataset.take_blobs(column, ids=[row_id])[0], reading)


def _of_lance(blob: lance.blob.BlobFile | None, reading: _Guard) -> BlobFile | None:
    if blob is None:
        return None

    def read_at(start: int, length: int) -> bytes:
        with reading():
            if length >= _READ_AHEAD_BYTES:
                return blob.read_range(start, length)
            blob.seek(start)
            return blob.read(length)  # with what Lance reads ahead

    return BlobFile(blob.size(), read_at)
