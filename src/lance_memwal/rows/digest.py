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
        """Count the rows of a batch."""
        if batch.num_rows:
            rows = np.zeros(batch.num_rows, np.uint64)
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
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
    """Lists: their elements and places; the entries of a map have no order."""
    is_map = pa.types.is_map(values.type)
    filled = values.filter(values.is_valid()) if values.null_count else values
    if is_map:
        starts, ends = filled.offsets[0].as_py(), filled.offsets[-1].as_py()
        span = slice(starts, ends)
        elements = _mixed(_hashes(filled.keys[span]), 1) + _mixed(_hashes(filled.items[span]) + np.uint64(1), 2)
        lengths = np.diff(np.asarray(filled.offsets.to_numpy())).astype(np.int64)
    else:
        elements = _hashes(filled.flatten())
        lengths = np.asarray(pc.list_value_length(filled).to_numpy(zero_copy_only=False)).astype(np.int64)
        first = np.repeat(np.cumsum(lengths) - lengths, lengths)
        elements = elements + (np.arange(len(elements)) - first).astype(np.uint64) * _FACTOR
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_mixed(elements + np.uint64(1), 3), dtype=np.uint64)])
    ends_at = np.cumsum(lengths)
    found: _U64 = sums[ends_at] - sums[ends_at - lengths] + _STEP + lengths.astype(np.uint64)
    if not values.null_count:
        return found
    whole = np.zeros(len(values), np.uint64)
    whole[np.asarray(values.is_valid().to_numpy(zero_copy_only=False))] = found
    return whole
