"""A digest of rows that their order, and how they are cut into batches, do not change.

Owns `RowDigest` and its text. Every row becomes a number of 64 bits, and the digest is the sum of these numbers. It is there to
notice that two sets of rows differ, not to withstand somebody who wants them to look alike. Invariants:

1. Equal rows have equal numbers in every process, whatever array, slice or chunk they are in.
2. A null adds nothing: a column without values, such as one that was added later, changes no digest.
3. Work is per column, never per row.

    rows {a: 1, b: "x"}, {a: 2, b: null}: mixed(a=1) + mixed(b="x") is mixed once more to the number of the first row, mixed(a=2)
    to that of the second; the digest is the sum of both, modulo 2**64
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.rows.bucket import bucket_of
from lance_memwal.rows.siphash import hash_messages

__all__ = ["RowDigest", "is_digest"]

_U64: TypeAlias = npt.NDArray[np.uint64]
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_MASK = (1 << 64) - 1
_ALL_BUCKETS = (1 << 31) - 1
_BLOCK_WORDS = 1 << 15  # as many as a processor keeps near
_DIGEST = re.compile(r"[0-9a-f]{16}")
_TEXTS = frozenset({pa.string(), pa.large_string()})


class RowDigest:
    """The digest of the rows that were added."""

    __slots__ = ("_sum",)

    def __init__(self, total: int = 0) -> None:
        self._sum = total

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch]) -> RowDigest:
        """The digest of these rows."""
        made = cls()
        for batch in batches:
            made.add(batch)
        return made

    @property
    def total(self) -> int:
        """The sum, which makes the same digest again."""
        return self._sum

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows of a batch, a few at a time."""
        for start in range(0, batch.num_rows, _BLOCK_WORDS):
            block = batch.slice(start, _BLOCK_WORDS)
            rows = np.zeros(block.num_rows, np.uint64)
            for name, column in zip(block.schema.names, block.columns, strict=True):
                rows += _mixed(_hashes(column), zlib.crc32(name.encode()) + 1)
            self._sum = (self._sum + int(_mixed(rows + _STEP, 0).sum(dtype=np.uint64))) & _MASK

    def __add__(self, other: RowDigest) -> RowDigest:
        return RowDigest((self._sum + other._sum) & _MASK)

    def __str__(self) -> str:
        return f"{self._sum:016x}"


def is_digest(value: object) -> bool:
    """Whether this is the text of a digest."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _mixed(hashes: _U64, salt: int) -> _U64:
    """The hashes, each one spread over all bits; 0, which is null, stays 0."""
    mixed = hashes * np.uint64((int(_STEP) * (2 * salt + 1)) & _MASK)
    mixed ^= mixed >> _HALF
    mixed *= _FACTOR
    mixed ^= mixed >> _HALF
    return mixed


def _hashes(values: Any) -> _U64:
    """A number per value, 0 for nulls."""
    while isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    found = _of_values(values)
    if values.null_count:
        found = np.where(np.asarray(values.is_valid().to_numpy(zero_copy_only=False)), found, np.uint64(0))
    return found


def _of_values(values: Any) -> _U64:
    """A number per value, whatever for nulls."""
    kind = values.type
    if pa.types.is_null(kind):
        return np.zeros(len(values), np.uint64)
    if kind in _TEXTS:
        return bucket_of(values, _ALL_BUCKETS).astype(np.uint64) + np.uint64(1)
    if pa.types.is_struct(kind):
        fields = (values.field(number) for number in range(kind.num_fields))
        total = np.full(len(values), _STEP, np.uint64)
        for number, field in enumerate(fields):
            total += _mixed(_hashes(field), number + 1)
        return total
    if pa.types.is_nested(kind):
        return _of_lists(values)
    if _is_binary(kind):
        return hash_messages([values.cast(pa.large_binary()).fill_null(b"")]) | np.uint64(1)
    return _of_fixed(values)


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    plain = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(plain or types.is_string_view(kind) or types.is_fixed_size_binary(kind))


def _of_fixed(values: Any) -> _U64:
    """Numbers, times, decimals: the words that they are stored in."""
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    width, data = values.type.bit_width // 8, values.buffers()[1]
    stored = np.frombuffer(data, np.uint8)[values.offset * width : (values.offset + len(values)) * width]
    if width <= 8:
        return stored.view(f"u{width}").astype(np.uint64) + _STEP  # 0 is a value, and no null
    words = stored.view(np.uint64).reshape(len(values), width // 8)
    total = np.full(len(values), _STEP, np.uint64)
    for number in range(words.shape[1]):
        total += _mixed(words[:, number] + _STEP, number + 1)
    return total


def _of_lists(values: Any) -> _U64:
    """Lists: their elements, each times a number of its place; the entries of a map have no order."""
    there = values.filter(values.is_valid()) if values.null_count else values
    found = _of_vectors(there) if _is_vector(there.type) else _of_any_lists(there)
    if not values.null_count:
        return found
    whole = np.zeros(len(values), np.uint64)
    whole[np.asarray(values.is_valid().to_numpy(zero_copy_only=False))] = found
    return whole


def _is_vector(kind: pa.DataType) -> bool:
    """Whether lists of this type are vectors of numbers; told by the type alone, since equal rows have equal numbers."""
    if not pa.types.is_fixed_size_list(kind) or isinstance(kind.value_type, pa.BaseExtensionType):
        return False
    return bool(pa.types.is_primitive(kind.value_type)) and kind.value_type.bit_width >= 8


def _of_vectors(vectors: Any) -> _U64:
    """Vectors: the words of each, padded, times numbers of their places; a few rows at a time. Nulls inside are places, too."""
    values, size = vectors.flatten(), vectors.type.list_size
    width = values.type.bit_width // 8
    stored = np.frombuffer(values.buffers()[1], np.uint8)[values.offset * width : (values.offset + len(values)) * width]
    found = np.full(len(vectors), _STEP, np.uint64)
    if values.null_count:
        missing = np.asarray(values.is_null().to_numpy(zero_copy_only=False))
        stored = np.where(missing[:, None], np.uint8(0), stored.reshape(len(values), width))
        found += (missing.reshape(len(vectors), size) * _mixed(_places(size), 5)).sum(axis=1, dtype=np.uint64)
    rows = stored.reshape(len(vectors), size * width)
    words = -(-size * width // 8)
    places, step = _places(words), max(1, _BLOCK_WORDS // max(1, words))
    for start in range(0, len(vectors), step):
        block = rows[start : start + step]
        if size * width % 8:
            block = np.pad(block, ((0, 0), (0, words * 8 - size * width)))
        found[start : start + step] += (np.ascontiguousarray(block).view(np.uint64) * places).sum(
            axis=1, dtype=np.uint64
        )
    return found


def _of_any_lists(lists: Any) -> _U64:
    if pa.types.is_map(lists.type):
        span = slice(lists.offsets[0].as_py(), lists.offsets[-1].as_py()) if len(lists) else slice(0, 0)
        elements = _mixed(_hashes(lists.keys[span]), 1) + _mixed(_hashes(lists.items[span]) + np.uint64(1), 2)
        elements = _mixed(elements, 3)
        lengths = np.diff(np.asarray(lists.offsets.to_numpy())).astype(np.int64)
    else:
        elements = _mixed(_hashes(lists.flatten()), 1) + np.uint64(1)
        lengths = np.asarray(pc.list_value_length(lists).to_numpy(zero_copy_only=False)).astype(np.int64)
        first = np.repeat(np.cumsum(lengths) - lengths, lengths)
        elements *= _places(int(lengths.max(initial=0)))[np.arange(len(elements)) - first]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(elements, dtype=np.uint64)])
    ends = np.cumsum(lengths)
    found: _U64 = sums[ends] - sums[ends - lengths] + _STEP + lengths.astype(np.uint64)
    return found


def _places(count: int) -> _U64:
    """An odd number for each place."""
    return _mixed(np.arange(1, count + 1, dtype=np.uint64), 4) | np.uint64(1)
