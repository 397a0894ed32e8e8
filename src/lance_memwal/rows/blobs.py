"""Blob columns: which they are, what readers see of them, and how their bytes are handed on in parts.

Owns `is_blob`, the two forms of a blob column and the ways between them, and `by_bytes`. *Stored*, its values are bytes:
input, log, memtable, what is written to files. *Shown*, they are what Lance's own scan gives, where the bytes are and how
many; the bytes themselves are read by `get_blob`. Two layouts exist: the first is a `large_binary` with
`lance-encoding:blob` in its metadata (files before 2.2), the second the extension type `lance.blob.v2`. Invariants:

1. The shown type of a column is the same in every tier, and it is Lance's.
2. A fresh row (not yet in the base table) has no place in a file of the base table: its size is right, its position is
   null (in the second layout, whose fields are never null: zero, and the kind is that of bytes in the data file).
3. Nothing here copies the bytes of a blob, but for those of an entry that has some of them elsewhere.
4. A null blob is shown as null. (Files of version 2.0 hold it as position 1, size 0, and Lance shows that.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance.blob import BlobType

from lance_memwal.errors import InvalidInputError, UnsupportedFormatError

SECOND_LAYOUT = "lance.blob.v2"
PART_BYTES = 8 << 20  # of blobs that are handed on together
FileVersion: TypeAlias = Literal["2.1"]
BLOB_MARK = b"lance-encoding:blob"
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
# Kinds: in the data file (or entry), in a file with others, in a file of its own, in an object that somebody else owns.
_INLINE, _PACKED, _DEDICATED, _EXTERNAL = 0, 1, 2, 3
PREPARED_NAME = b"memwal:extension_nam"  # as long as the key of Arrow that it stands for, which pyarrow would act on
_BYTES = "\0bytes"  # no column has such a name
_FIELD_ID = b"lance:field_id"
_PREPARED = (
    pa.field("kind", pa.uint8()),
    pa.field("data", pa.large_binary()),
    pa.field("uri", pa.string()),
    pa.field("blob_id", pa.uint32()),
    pa.field("blob_size", pa.uint64()),
    pa.field("position", pa.uint64()),
)


def is_blob(field: pa.Field) -> bool:
    """Whether the values of this column are blobs, in stored form."""
    return is_second_layout(field.type) or (
        pa.types.is_large_binary(field.type) and (field.metadata or {}).get(BLOB_MARK) == b"true"
    )


def is_second_layout(kind: pa.DataType) -> bool:
    """Whether values of this type are blobs of the second layout."""
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == SECOND_LAYOUT


def shown_field(field: pa.Field) -> pa.Field:
    """The column as readers see it, as Lance's own scan gives it."""
    if not is_blob(field):
        return field
    if not is_second_layout(field.type):
        return field.with_type(_FIRST)
    marks = {BLOB_MARK: b"true", b"lance-encoding:packed": b"true"}
    return field.with_type(_SECOND).with_metadata({**(field.metadata or {}), **marks})


def version_of_new_files(schema: pa.Schema) -> FileVersion | None:
    """The version of the files of a new table; None: Lance's own choice. Files from 2.2 on know the second layout only."""
    return "2.1" if any(is_blob(field) and not is_second_layout(field.type) for field in schema) else None


def shows_blobs(field: pa.Field) -> bool:
    """Whether this column shows blobs."""
    return pa.types.is_struct(field.type) and BLOB_MARK in (field.metadata or {})


def unmarked(rows: pa.Table) -> pa.Table:
    """`rows` without the metadata by which Lance would take what is shown of blobs for blobs."""
    if not any(map(shows_blobs, rows.schema)):
        return rows
    fields = [field.remove_metadata() if shows_blobs(field) else field for field in rows.schema]
    return pa.Table.from_arrays(rows.columns, schema=pa.schema(fields))


def shown_blobs(values: pa.Array) -> pa.Array:
    """Blobs in stored form as readers see those of fresh rows."""
    if is_second_layout(values.type):
        return _shown_second(values.storage)
    missing = values.is_null()
    return _struct(_FIRST, [pa.nulls(len(values), pa.uint64()), _lengths(values)], missing)


def shown_batch(batch: pa.RecordBatch, shown: pa.Schema) -> pa.RecordBatch:
    """Fresh rows in stored form as readers see them; `shown` is the schema of the result."""
    columns = [
        shown_blobs(column) if shows_blobs(field) else column
        for column, field in zip(batch.columns, shown, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=shown)


def _shown_second(values: pa.StructArray) -> pa.Array:
    data, uri, position, size = _parts_of(values)
    external = _are_references(data, uri)
    columns = [
        _kinds(external),
        position.fill_null(0),
        pc.if_else(external, size.fill_null(0), _lengths(data).fill_null(0)),
        pa.array(np.zeros(len(values), np.uint32)),
        uri.fill_null(""),
    ]
    return _struct(_SECOND, columns, values.is_null())


def _parts_of(values: pa.StructArray) -> list[pa.Array]:
    """Bytes, reference, and the range of the reference; a short form of the type has no ranges."""
    found = [pc.struct_field(values, i) for i in range(values.type.num_fields)]
    return [*found, *(pa.nulls(len(values), pa.uint64()) for _ in range(4 - len(found)))]


def _are_references(data: pa.Array, uri: pa.Array) -> pa.BooleanArray:
    """Which of these blobs are not bytes, but say where they are."""
    return pc.and_(data.is_null(), uri.is_valid())


def _kinds(external: pa.BooleanArray) -> pa.Array:
    return pc.if_else(external, pa.scalar(_EXTERNAL, pa.uint8()), pa.scalar(_INLINE, pa.uint8()))


def check_inline(values: pa.Array, name: str) -> None:
    """Return only if these blobs of the second layout are bytes, or null; `InvalidInputError` names the column otherwise.

    Lance writes no file with a blob that is neither, or that is bytes and something beside them.
    """
    if has_references(values):
        raise InvalidInputError(f"column {name!r} holds a reference (a URI); give the bytes of the blob")
    data, *beside = _parts_of(values.storage)
    if data.null_count != values.null_count or any(part.null_count != len(part) for part in beside):
        raise InvalidInputError(
            f"column {name!r} holds a blob that is not its bytes alone: set data, and no uri, position or size; a blob that "
            "is not there is null"
        )


def has_references(values: pa.Array) -> bool:
    """Whether one of these blobs of the second layout is not bytes but says where they are."""
    data, uri, _, _ = _parts_of(values.storage)
    return bool(_are_references(data, uri).true_count)


def _lengths(values: pa.Array) -> pa.Array:
    return pc.binary_length(values).cast(pa.uint64())


def _struct(kind: pa.DataType, columns: list[pa.Array], missing: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=missing if missing.true_count else None)


def as_shown(shown: pa.Array, *, fresh: bool) -> pa.Array:
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
    columns = [
        _kinds(external).fill_null(_INLINE),
        pc.if_else(external, position, zero).fill_null(0),
        size.fill_null(0),
        zero.cast(pa.uint32()),
        pc.struct_field(shown, "blob_uri").fill_null(""),
    ]
    return _struct(_SECOND, columns, shown.is_null())


def bytes_of(column: str) -> str:
    """What whoever looks up both calls the bytes of a blob column, whose own name is what is shown of it."""
    return f"{column}{_BYTES}"


def blob_column_of(name: str) -> str | None:
    """The column whose bytes `name` calls for; None if it is the name of a column."""
    return name.removesuffix(_BYTES) if name.endswith(_BYTES) else None


def as_stored(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The bytes of blobs as values of a column of type `kind`, without a copy."""
    if not is_second_layout(kind):
        return values.cast(kind)
    empty = [pa.nulls(len(values), field.type) for field in list(kind.storage_type)[1:]]
    columns = [values.cast(pa.large_binary()), *empty]
    mask = values.is_null() if values.null_count else None
    return kind.wrap_array(pa.StructArray.from_arrays(columns, fields=list(kind.storage_type), mask=mask))


def same_blobs(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Blobs of the second layout as values of `kind`: the type has a short and a long form."""
    if values.type == kind:
        return values
    fields = list(kind.storage_type)
    missing = values.storage.is_null()
    return kind.wrap_array(_struct(kind.storage_type, _parts_of(values.storage)[: len(fields)], missing))


def blob_buffer(values: pa.Array, at: int) -> pa.Buffer | None:
    """The bytes of one of these blobs, in stored form, without a copy (a scalar of Arrow is one); None if it is null."""
    one = values.slice(at, 1)
    if is_second_layout(one.type):
        if has_references(one):
            raise UnsupportedFormatError("the blob is a reference, which is not followed here; open it with Lance")
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


# ------------------------------------------------------------------------------------- the second layout, in an entry


def prepared_field(field: pa.Field, ids: Mapping[str, bytes]) -> pa.Field:
    """A column of the second layout as entries hold it. `ids` are the metadata of the fields inside it that have any.

    Its type is no type of Arrow to pyarrow: the metadata that says so is what others read.
    """
    inner = [part.with_metadata({_FIELD_ID: ids[part.name]}) if part.name in ids else part for part in _PREPARED]
    name = {b"ARROW:extension:name": SECOND_LAYOUT.encode(), b"ARROW:extension:metadata": b""}
    return field.with_type(pa.struct(inner)).with_metadata({**(field.metadata or {}), **name})


def is_prepared(field: pa.Field) -> bool:
    """Whether this is a column of the second layout as an entry holds it; `PREPARED_NAME` is where a decoder says so."""
    marks = field.metadata or {}
    return SECOND_LAYOUT.encode() in (
        marks.get(PREPARED_NAME),
        marks.get(b"ARROW:extension:name"),
    ) and pa.types.is_struct(field.type)


def as_prepared(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Blobs of the second layout as an entry holds them: bytes in it, references as they are."""
    storage = values.storage
    data, uri, position, size = _parts_of(storage)
    external = _are_references(data, uri)
    zeros = pa.array(np.zeros(len(values), np.uint64))
    nothing = pa.nulls(len(values), pa.uint64())
    columns = [
        _kinds(external),
        data,
        uri,
        pc.if_else(external, zeros, nothing).cast(pa.uint32()),
        pc.if_else(external, size.fill_null(0), nothing),
        pc.if_else(external, position.fill_null(0), nothing),
    ]
    return _struct(kind, columns, storage.is_null())


def from_prepared(values: pa.Array, load: Callable[[int, int, int], bytes]) -> pa.Array:
    """Blobs of an entry in stored form; `load` reads those that are elsewhere, by number, start and length.

    `UnsupportedFormatError` if the entry holds them in a form, or one in a way, that this version does not know.
    """
    if [(part.name, part.type) for part in values.type] != [(part.name, part.type) for part in _PREPARED]:
        raise UnsupportedFormatError(f"blobs in a form that this version does not know: {values.type}")
    kind, kinds = BlobType(), pc.struct_field(values, 0).fill_null(_INLINE)
    if len(kinds) == pc.sum(pc.equal(kinds, _INLINE)).as_py():  # as in our own entries: no copy
        return as_stored(pc.struct_field(values, 1), kind)
    rows = values.to_pylist()
    data = [None if row is None else _data_of(row, load) for row in rows]
    external = [row if row is not None and row["kind"] == _EXTERNAL else None for row in rows]
    columns = [
        pa.array(data, pa.large_binary()),
        pa.array([row and row["uri"] for row in external], pa.string()),
        pa.array([row["position"] if row and row["blob_size"] else None for row in external], pa.uint64()),
        pa.array([row["blob_size"] if row and row["blob_size"] else None for row in external], pa.uint64()),
    ]
    return kind.wrap_array(_struct(kind.storage_type, columns, values.is_null()))


def _data_of(row: Mapping[str, Any], load: Callable[[int, int, int], bytes]) -> bytes | None:
    if row["kind"] in (_PACKED, _DEDICATED):
        return load(row["blob_id"] or 0, row["position"] or 0, row["blob_size"] or 0)
    if row["kind"] not in (None, _INLINE, _EXTERNAL):
        raise UnsupportedFormatError(f"a blob of the kind {row['kind']} is not understood by this version")
    return row["data"] if row["kind"] != _EXTERNAL else None


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
