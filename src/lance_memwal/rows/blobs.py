"""Blob columns: which they are, what readers see of them, and how their bytes are handed on in parts.

Owns `is_blob`, `shown_field`, `described` and `by_bytes`. A blob column has two forms. *Stored*, its values are bytes: input,
log, memtable, what is written to files. *Shown*, they are what Lance's own scan gives, where the bytes are and how many;
the bytes themselves are read by `get_blob`. Two layouts exist: the first is a `large_binary` with `lance-encoding:blob` in
its metadata (files before 2.2), the second the extension type `lance.blob.v2`. Invariants:

1. The shown type of a column is the same in every tier, and it is Lance's.
2. A fresh row (not yet in the base table) has no place in a file of the base table: its size is right, its position is
   null (in the second layout, whose fields are never null: zero, and the kind is that of bytes in the data file).
3. A null blob is shown as null. (Files of version 2.0 hold it as position 1, size 0, and Lance shows that.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "PART_BYTES",
    "FileVersion",
    "SECOND_LAYOUT",
    "as_fresh",
    "as_stored",
    "blob_buffer",
    "by_bytes",
    "described",
    "is_blob",
    "is_described",
    "one_blob",
    "shown_batch",
    "shown_field",
    "sizes_of",
    "unmarked",
    "version_of_new_files",
]

SECOND_LAYOUT = "lance.blob.v2"
PART_BYTES = 8 << 20  # of blobs that are handed on together
FileVersion: TypeAlias = Literal["2.1"]
_MARK = b"lance-encoding:blob"
_FIRST = pa.struct([("position", pa.uint64()), ("size", pa.uint64())])
_SECOND = pa.struct(
    [
        pa.field("kind", pa.uint8(), False),
        pa.field("position", pa.uint64(), False),
        pa.field("size", pa.uint64(), False),
        pa.field("blob_id", pa.uint32(), False),
        pa.field("blob_uri", pa.string(), False),
    ]
)
_NULL_OF_FILES_2_0 = 1  # the position of a null
_INLINE, _EXTERNAL = 0, 3  # kinds: in the data file, and in an object that somebody else owns


def is_blob(field: pa.Field) -> bool:
    """Whether the values of this column are blobs, in stored form."""
    return _is_second(field.type) or (
        pa.types.is_large_binary(field.type) and (field.metadata or {}).get(_MARK) == b"true"
    )


def _is_second(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == SECOND_LAYOUT


def shown_field(field: pa.Field) -> pa.Field:
    """The column as readers see it, as Lance's own scan gives it."""
    if not is_blob(field):
        return field
    if not _is_second(field.type):
        return field.with_type(_FIRST)
    marks = {_MARK: b"true", b"lance-encoding:packed": b"true"}
    return field.with_type(_SECOND).with_metadata({**(field.metadata or {}), **marks})


def version_of_new_files(schema: pa.Schema) -> FileVersion | None:
    """The version of the files of a new table; None: Lance's own choice. Files from 2.2 on know the second layout only."""
    return "2.1" if any(is_blob(field) and not _is_second(field.type) for field in schema) else None


def is_described(field: pa.Field) -> bool:
    """Whether this column shows blobs."""
    return pa.types.is_struct(field.type) and _MARK in (field.metadata or {})


def unmarked(rows: pa.Table) -> pa.Table:
    """`rows` without the metadata by which Lance would take what is shown of blobs for blobs."""
    if not any(map(is_described, rows.schema)):
        return rows
    fields = [field.remove_metadata() if is_described(field) else field for field in rows.schema]
    return pa.Table.from_arrays(rows.columns, schema=pa.schema(fields))


def described(values: pa.Array) -> pa.Array:
    """Blobs in stored form as readers see those of fresh rows."""
    if _is_second(values.type):
        return _described_second(values.storage)
    missing = values.is_null()
    return _struct(_FIRST, [pa.nulls(len(values), pa.uint64()), _lengths(values)], missing)


def shown_batch(batch: pa.RecordBatch, shown: pa.Schema) -> pa.RecordBatch:
    """Fresh rows in stored form as readers see them; `shown` is the schema of the result."""
    columns = [
        described(column) if is_described(field) else column for column, field in zip(batch.columns, shown, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=shown)


def _described_second(values: pa.StructArray) -> pa.Array:
    data, uri, position, size = (pc.struct_field(values, i) for i in range(values.type.num_fields))
    external = pc.and_(data.is_null(), uri.is_valid())
    kinds = pc.if_else(external, pa.scalar(_EXTERNAL, pa.uint8()), pa.scalar(_INLINE, pa.uint8()))
    columns = [
        kinds,
        position.fill_null(0),
        pc.if_else(external, size.fill_null(0), _lengths(data).fill_null(0)),
        pa.array(np.zeros(len(values), np.uint32)),
        uri.fill_null(""),
    ]
    return _struct(_SECOND, columns, values.is_null())


def _lengths(values: pa.Array) -> pa.Array:
    return pc.binary_length(values).cast(pa.uint64())


def _struct(kind: pa.DataType, columns: list[pa.Array], missing: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=missing if missing.true_count else None)


def as_fresh(shown: pa.Array, *, fresh: bool) -> pa.Array:
    """What Lance shows of blobs, as it is shown: nulls as nulls, and of `fresh` rows no place in a file."""
    position, size = pc.struct_field(shown, "position"), pc.struct_field(shown, "size")
    if shown.type.num_fields == _FIRST.num_fields:
        gone = pc.and_(pc.equal(position, _NULL_OF_FILES_2_0), pc.equal(size, 0)).fill_null(True)
        missing = pc.or_(shown.is_null(), gone)
        return _struct(_FIRST, [pa.nulls(len(shown), pa.uint64()) if fresh else position, size], missing)
    if not fresh:
        return shown
    external = pc.equal(pc.struct_field(shown, "kind"), _EXTERNAL)
    zero = pa.array(np.zeros(len(shown), np.uint64))
    kinds = pc.if_else(external, pa.scalar(_EXTERNAL, pa.uint8()), pa.scalar(_INLINE, pa.uint8()))
    columns = [
        kinds.fill_null(_INLINE),
        pc.if_else(external, position, zero).fill_null(0),
        size.fill_null(0),
        zero.cast(pa.uint32()),
        pc.struct_field(shown, "blob_uri").fill_null(""),
    ]
    return _struct(_SECOND, columns, shown.is_null())


def as_stored(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The bytes of blobs as values of a column of type `kind`, without a copy."""
    if not _is_second(kind):
        return values.cast(kind)
    empty = [pa.nulls(len(values), field.type) for field in list(kind.storage_type)[1:]]
    columns = [values.cast(pa.large_binary()), *empty]
    mask = values.is_null() if values.null_count else None
    return kind.wrap_array(pa.StructArray.from_arrays(columns, fields=list(kind.storage_type), mask=mask))


def blob_buffer(values: pa.Array, at: int) -> pa.Buffer | None:
    """The bytes of one of these blobs, in stored form, without a copy (a scalar of Arrow is one); None if it is null."""
    one = values.slice(at, 1)
    if _is_second(one.type):
        one = pa.nulls(1, pa.large_binary()) if one.null_count else pc.struct_field(one.storage, 0)
    if one.null_count:
        return None
    _, offsets, data = one.buffers()
    start, end = np.frombuffer(offsets, np.int64, count=2, offset=one.offset * 8).tolist()
    return pa.py_buffer(b"") if data is None else data.slice(start, end - start)


def one_blob(data: bytes | None) -> pa.Array:
    """One blob as an array, without a copy."""
    if data is None:
        return pa.nulls(1, pa.large_binary())
    offsets = pa.py_buffer(np.array([0, len(data)], np.int64))
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(data)])


def sizes_of(shown: list[pa.ChunkedArray], rows: int) -> npt.NDArray[np.int64]:
    """Per row the bytes of all its blobs, from what is shown of them."""
    total = np.zeros(rows, dtype=np.int64)
    for column in shown:
        size = pc.struct_field(column, "size").fill_null(0)
        total += np.asarray(size.to_numpy()).astype(np.int64)
    return total


def by_bytes(sizes: npt.NDArray[np.int64], limit_bytes: int = PART_BYTES) -> Iterator[tuple[int, int]]:
    """Ranges that cover all rows in order, each of at most `limit_bytes` or of one row.

    Sizes [3, 3, 9, 1], limit 6: (0, 2), (2, 3), (3, 4).
    """
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + limit_bytes, side="right")))
        yield start, end
        start = end
