"""Sets of primary keys, for finding the rows that newer ones replaced.

Owns `KeySet`. Integers (and booleans) are numpy arrays: a lookup table where their range is narrow, else a sorted array;
other keys are bytes, found by their hashes. Invariants:

1. Membership is exact, never probabilistic: a hash proposes a key, which is then compared.
2. The set is built once and asked per batch: nothing that grows with the set is rebuilt per batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.rows.siphash import hash_messages

__all__ = ["KeySet", "as_numbers"]

_TABLE_SPAN = 1 << 26
_TABLE_SPAN_PER_KEY = 4096
_SMALL_SHARE = 4  # Arrow builds a table of the whole set for every batch: too much for one that is so much smaller


def as_numbers(keys: pa.Array) -> npt.NDArray[np.generic] | None:
    """The keys as numpy numbers, or None if they are no numbers."""
    if pa.types.is_boolean(keys.type):
        return np.asarray(keys.to_numpy(zero_copy_only=False)).astype(np.uint8)
    return np.asarray(keys.to_numpy(zero_copy_only=False)) if pa.types.is_integer(keys.type) else None


class KeySet:
    """An immutable set of keys. `keys` is what it was made of, some of them perhaps twice."""

    __slots__ = ("_hashed", "_low", "_numbers", "_table", "keys", "size")

    def __init__(self, keys: pa.Array) -> None:
        numbers = as_numbers(keys)
        self.keys = keys
        self._hashed: _Hashed | None = None
        self._numbers: npt.NDArray[np.generic] | None = None
        self._table: npt.NDArray[np.bool_] | None = None
        self._low = 0
        self.size = len(keys)
        if numbers is not None and len(numbers):
            low, high = int(numbers.min()), int(numbers.max())
            span = high - low + 1
            if span <= min(_TABLE_SPAN, _TABLE_SPAN_PER_KEY * len(numbers) + 65_536):
                self._low = low
                self._table = np.zeros(span + 1, dtype=bool)  # the last one answers for everything out of range
                self._table[_shifted(numbers, low)] = True
            else:
                self._numbers = np.unique(numbers)

    def contains(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        """Per key: whether it is in the set."""
        if not self.size:
            return np.zeros(len(keys), dtype=bool)
        numbers = as_numbers(keys)
        if numbers is None:
            return self._ask_bytes(keys)
        if self._table is not None:
            return self._ask_table(numbers)
        if self._numbers is None:
            raise AssertionError("a set of numbers holds numbers")
        at = np.searchsorted(self._numbers, numbers)
        at[at == len(self._numbers)] = 0
        return np.asarray(self._numbers[at] == numbers)

    def _ask_bytes(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        if len(keys) * _SMALL_SHARE < self.size and not keys.null_count:
            if self._hashed is None:
                self._hashed = _Hashed.build(self.keys)
            if self._hashed.is_exact:
                return self._hashed.contains(keys)
        return np.asarray(pc.is_in(keys, value_set=self.keys).to_numpy(zero_copy_only=False))

    def _ask_table(self, numbers: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
        table = self._table
        if table is None:
            raise AssertionError("no table")
        last = len(table) - 1
        shifted = _shifted(numbers, self._low)
        return np.asarray(table[np.minimum(shifted, np.uint64(last)).astype(np.intp)])


class _Hashed:
    """Distinct keys as bytes, in the order of their hashes."""

    __slots__ = ("_hashes", "_keys", "is_exact")

    def __init__(self, hashes: npt.NDArray[np.uint64], keys: pa.Array, *, is_exact: bool) -> None:
        """`is_exact`: no two of the keys have the same hash (somebody may have searched for such keys)."""
        self._hashes = hashes
        self._keys = keys
        self.is_exact = is_exact

    @classmethod
    def build(cls, keys: pa.Array) -> _Hashed:
        distinct = keys.drop_null().cast(pa.large_binary()).unique()
        hashes = hash_messages([distinct])
        order = np.argsort(hashes)
        ordered = hashes[order]
        return cls(ordered, distinct.take(pa.array(order)), is_exact=not (ordered[1:] == ordered[:-1]).any())

    def contains(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        """Per key: whether it is one of these. A hash that is none of theirs decides; else the keys are compared."""
        asked = keys.cast(pa.large_binary())
        hashes = hash_messages([asked])
        at = np.searchsorted(self._hashes, hashes)
        at[at == len(self._hashes)] = 0
        found = np.asarray(self._hashes[at] == hashes)
        if found.any():
            rows = pa.array(np.flatnonzero(found))
            same = pc.equal(asked.take(rows), self._keys.take(pa.array(at[found])))
            found[found] = same.to_numpy(zero_copy_only=False)
        return found


def _shifted(numbers: npt.NDArray[np.generic], low: int) -> npt.NDArray[np.uint64]:
    """Distance from `low`, modulo 2^64: what lies below wraps around to a huge number."""
    wide = numbers.astype(np.uint64) if numbers.dtype.kind == "u" else numbers.astype(np.int64).view(np.uint64)
    return np.asarray(wide - np.uint64(low % (1 << 64)))
