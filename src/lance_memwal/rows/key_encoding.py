"""Primary keys: which columns they are, which types they may have, how they compare, and their two byte layouts.

Owns discovery from schema metadata, the form in which keys are compared, the order-preserving encoding of composite keys
(the `values` of an SSTable's sidecar) and the hashes behind its bloom filter. Invariants:

1. `encode_composite` preserves order: rows compare like their encodings, bytewise; nulls come first.
2. No two keys have the same encoding (our tests decode it).
3. `key_hashes` follows the reference layout also where that layout ignores the value; `hash_is_exact` says where, and
   there a filter may only ever answer "maybe".
4. `comparable` keeps order and equality: numbers compare like the dates and timestamps that they stand for, bytes like the
   UUIDs and decimals.

Composite encoding, per key column: `00` for null, else `01` and the value: integers, dates and timestamps as 8 bytes
big-endian (signed ones plus 2^63), booleans as one byte, decimals as 16 or 32 bytes big-endian with the sign bit turned,
strings and binaries (UUIDs and those of a fixed size too) with `00` escaped as `00 ff`, ended by `00 00`.

Hash layout, per key column: `01` for null, else `00` and the value: int32 and int64 little-endian in their width,
strings as bytes plus `ff`, binaries as u64 length plus bytes. Every other type contributes nothing after the `00`.

A new key type begins in the tables of this module. What follows from it: the form that is compared (`comparable`), its
Python class (`rows.one_key`) and its literal (`rows.sql`); `tests/format/test_keys.py` goes through all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.arguments import digits_of
from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.key_codes import last_words
from lance_memwal.rows.siphash import hash_messages, hash_words

_KEY = "lance-schema:unenforced-primary-key"
_POSITION = _KEY + ":position"
_TRUE = frozenset({b"true", b"1", b"yes", b"on", b"y"})
_KEY_TYPES = frozenset(
    {pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()}
    | {pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()}
)
_HASHED_TYPES = frozenset({pa.int32(), pa.int64(), pa.string(), pa.binary()})
_SIGN = np.uint64(1 << 63)
_BINARY = pa.large_binary()


def primary_key_columns(schema: pa.Schema) -> list[str]:
    """The primary key of a schema, in key order; empty for an append-only table. A nested key field is refused."""
    placed: list[tuple[int, int, str]] = []
    for index, field in enumerate(schema):
        position = _key_position(field)
        if position is not None:
            # The reference compares positions as signed 32-bit numbers, so that the upper half comes first.
            signed = position - (1 << 32) if position >> 31 else position
            placed.append((signed or 1 << 32, index, field.name))
        nested = _nested_key(field.type)
        if nested is not None:
            raise InvalidInputError(f"primary key field {nested!r} is nested in column {field.name!r}")
    return [name for _, _, name in sorted(placed)]


def key_marks(name: str, key: Sequence[str]) -> dict[str, str]:
    """The metadata that makes column `name` a part of the primary key `key`."""
    return {_KEY: "true"} if len(key) == 1 else {_KEY: "true", _POSITION: str(key.index(name) + 1)}


def is_key_mark(entry: bytes) -> bool:
    """Whether an entry of a column's metadata is one of the marks of a primary key."""
    return entry.startswith(_KEY.encode())


def is_key_type(data_type: pa.DataType) -> bool:
    """Whether a primary key column may have this type."""
    return is_key_type_of_others(data_type) or _is_own_key_type(data_type)


def is_key_type_of_others(data_type: pa.DataType) -> bool:
    """Whether other implementations write tables whose key has this type, too."""
    return data_type in _KEY_TYPES


def _is_own_key_type(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        isinstance(kind, pa.UuidType)
        or types.is_date(kind)
        or types.is_timestamp(kind)
        or ((types.is_decimal128(kind) or types.is_decimal256(kind)) and kind.scale >= 0)
        or (types.is_fixed_size_binary(kind) and kind.byte_width)
    )


def check_primary_key(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raise `InvalidInputError` unless `columns` can be the primary key: present, not nullable, of a key type."""
    for name in columns:
        if len(schema.get_all_field_indices(name)) != 1:
            raise InvalidInputError(f"primary key column {name!r} is not in the schema")
        field = schema.field(name)
        if not is_key_type(field.type):
            known = "integers, booleans, strings, binaries, UUIDs, dates, timestamps and decimals of 128 or 256 bits"
            raise InvalidInputError(f"primary key column {name!r} has type {field.type}; allowed are {known}")
        if field.nullable:
            raise InvalidInputError(f"primary key column {name!r} must not be nullable")


def comparable(array: pa.Array) -> pa.Array:
    """A key column as it is compared: integers, booleans, texts or binaries; `array` itself if it is one of these.

    2020-01-02 becomes 18263, a UUID its 16 bytes, the decimal -0.01 the bytes 7f ff .. ff.
    """
    kind = array.type
    if kind in _KEY_TYPES:
        return array
    if isinstance(kind, pa.BaseExtensionType):
        return array.storage
    if pa.types.is_date32(kind):
        return array.view(pa.int32())
    if pa.types.is_temporal(kind):
        return array.view(pa.int64())
    return _ordered_decimals(array) if pa.types.is_decimal(kind) else array


def _ordered_decimals(array: pa.Array) -> pa.FixedSizeBinaryArray:
    """Little-endian two's complements as big-endian bytes of which the first bit says "not negative"."""
    width, start = array.type.byte_width, array.offset
    data = np.frombuffer(array.buffers()[1] or b"", np.uint8, len(array) * width, start * width)
    cells = data.reshape(len(array), width)[:, ::-1].copy()
    cells[:, 0] ^= 0x80
    valid = array.is_valid().buffers()[1] if array.null_count else None
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(array), [valid, pa.py_buffer(cells)])


def encode_composite(arrays: Sequence[pa.Array]) -> pa.BinaryArray:
    """The order-preserving encoding of one key per row; `arrays` are the key columns in key order."""
    parts = [part for array in arrays for part in _encoded_parts(array)]
    return _join(*parts).cast(pa.binary())


def encoder_of(kind: pa.DataType) -> Callable[[Any], bytes]:
    """How `encode_composite` encodes one value of such a column, given in the form that is compared.

    The value must fit the column; see `lance_memwal.rows.one_key`.
    """
    compared = comparable(pa.array([], kind)).type
    if pa.types.is_decimal(kind):
        return lambda value: b"\1" + value
    if pa.types.is_boolean(compared):
        return lambda value: b"\1\1" if value else b"\1\0"
    if pa.types.is_integer(compared):
        shift = int(_SIGN) if pa.types.is_signed_integer(compared) else 0
        return lambda value: b"\1" + (value + shift).to_bytes(8, "big")
    return lambda value: b"\1" + value.replace(b"\0", b"\0\xff") + b"\0\0"


def last_numbers(array: pa.Array) -> pa.UInt64Array | None:
    """The numbers that end the encodings of composite keys whose last column this is; None if they end otherwise."""
    column = comparable(array)
    if column.null_count or not pa.types.is_integer(column.type):
        return None
    return pa.array(_as_words(column))


def ending_numbers(keys: pa.BinaryArray) -> pa.UInt64Array:
    """What `last_numbers` says of the last column, from the encodings themselves."""
    return pa.array(last_words(keys)[0].byteswap())


def key_hashes(arrays: Sequence[pa.Array]) -> npt.NDArray[np.uint64]:
    """The filter hash of one key per row; `arrays` are the key columns in key order, none at all hash as no bytes."""
    if not any(array.null_count for array in arrays):
        if not any(array.type in _HASHED_TYPES for array in arrays):
            same = hash_messages([pa.array([bytes(len(arrays))], _BINARY)])
            return same.repeat(len(arrays[0])) if arrays else same
        if len(arrays) == 1 and pa.types.is_integer(arrays[0].type):
            return _hash_integers(arrays[0])
    return hash_messages([part for array in arrays for part in _hash_parts(array)])


def hash_is_exact(types: Sequence[pa.DataType]) -> bool:
    """Whether the hash depends on the value of every key column; if not, a filter says "maybe" to every key."""
    return bool(types) and all(data_type in _HASHED_TYPES for data_type in types)


def _key_position(field: pa.Field) -> int | None:
    """None for an ordinary field, 0 for a key field without a position, else the position."""
    metadata = field.metadata or {}
    position = digits_of(metadata.get(_POSITION.encode(), b"").removeprefix(b"+"), most=(1 << 32) - 1)
    if position is not None:
        return position
    return 0 if metadata.get(_KEY.encode(), b"").lower() in _TRUE else None


def _nested_key(data_type: pa.DataType) -> str | None:
    for index in range(data_type.num_fields):
        child = data_type.field(index)
        found = child.name if _key_position(child) is not None else _nested_key(child.type)
        if found is not None:
            return str(found)
    return None


def _scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, _BINARY)


def _join(*parts: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _scalar(b""))


def _fixed(tag: bytes, values: npt.NDArray[np.generic]) -> pa.Array:
    """A one-byte tag and the bytes of the number, for every number, as a binary array."""
    width = 1 + values.dtype.itemsize
    cells = np.empty((len(values), width), np.uint8)
    cells[:, 0] = tag[0]
    cells[:, 1:] = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), width - 1)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(cells), [None, pa.py_buffer(cells)]).cast(_BINARY)


def _numbers(array: pa.Array, data_type: pa.DataType) -> npt.NDArray[np.generic]:
    values: npt.NDArray[np.generic] = array.cast(data_type).fill_null(0).to_numpy(zero_copy_only=False)
    return values


def _hash_integers(array: pa.Array) -> npt.NDArray[np.uint64]:
    """The common case without a byte buffer: words of `00` and the value, the length in the top byte of the last."""
    values = array.cast(pa.int64()).to_numpy().view(np.uint64)
    shifted = values << np.uint64(8)
    if array.type == pa.int64():
        return hash_words([shifted, values >> np.uint64(56) | np.uint64(9 << 56)])
    return hash_words([shifted & np.uint64(0xFFFFFFFF00) | np.uint64(5 << 56)])


def _hash_parts(array: pa.Array) -> list[pa.Array | pa.Scalar]:
    kind = array.type
    parts: list[pa.Array | pa.Scalar] = [_scalar(b"\0")]
    if kind in {pa.int32(), pa.int64()}:
        parts = [_fixed(b"\0", _numbers(array, kind))]
    elif kind == pa.string():
        parts += [array.cast(_BINARY), _scalar(b"\xff")]
    elif kind == pa.binary():
        lengths = pc.binary_length(array).fill_null(0).cast(pa.uint64()).to_numpy()
        parts = [_fixed(b"\0", lengths), array.cast(_BINARY)]
    return _or_null(array, parts, b"\1")


def _as_words(array: pa.Array) -> npt.NDArray[np.uint64]:
    """Integers as words that compare like them; a null is some word."""
    if pa.types.is_signed_integer(array.type):
        return _numbers(array, pa.int64()).view(np.uint64) ^ _SIGN
    return _numbers(array, pa.uint64()).view(np.uint64)


def _encoded_parts(column: pa.Array) -> list[pa.Array | pa.Scalar]:
    array = comparable(column)
    kind = array.type
    if pa.types.is_decimal(column.type):
        cells = np.frombuffer(array.buffers()[1] or b"", np.dtype((np.void, kind.byte_width)), len(array))
        parts = [_fixed(b"\1", cells)]
    elif pa.types.is_boolean(kind):
        parts = [_fixed(b"\1", _numbers(array, pa.uint8()))]
    elif pa.types.is_integer(kind):
        parts = [_fixed(b"\1", _as_words(array).astype(">u8"))]
    else:
        parts = [_scalar(b"\1"), _escape(array.cast(_BINARY)), _scalar(b"\0\0")]
    return _or_null(array, parts, b"\0")


def _or_null(array: pa.Array, parts: list[pa.Array | pa.Scalar], null: bytes) -> list[pa.Array | pa.Scalar]:
    """The parts as they are; where the array has nulls, one part that is `null` in those rows."""
    if not array.null_count:
        return parts
    known = _join(*parts) if any(isinstance(part, pa.Array) for part in parts) else parts[0]
    return [pc.if_else(array.is_valid(), known, _scalar(null))]


def _escape(array: pa.Array) -> pa.Array:
    if not (np.frombuffer(array.buffers()[2] or b"", np.uint8) == 0).any():
        return array
    return pc.replace_substring(array, b"\0", b"\0\xff")
