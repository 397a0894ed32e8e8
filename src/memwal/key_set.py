"""Sets of primary keys, for finding the rows that newer ones replaced.

Owns `KeySet`. Integers (and booleans) are numpy arrays: a lookup table where their range is narrow, else a sorted array;
other keys are Arrow arrays. Invariants:

1. Membership is exact, never probabilistic.
2. The set is built once and asked per batch: nothing is rebuilt per batch for integer keys.

Called by: the read path, compaction.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["KeySet", "as_numbers"]

_TABLE_SPAN = 1 << 26
_TABLE_SPAN_PER_KEY = 4096


def as_numbers(keys: pa.Array) -> npt.NDArray[np.generic] | None:
    """The keys as numpy numbers, or None if they are no numbers."""
    if pa.types.is_boolean(keys.type):
        return np.asarray(keys.to_numpy(zero_copy_only=False)).astype(np.uint8)
    return np.asarray(keys.to_numpy(zero_copy_only=False)) if pa.types.is_integer(keys.type) else None


class KeySet:
    """An immutable set of keys."""

    __slots__ = ("_keys", "_low", "_numbers", "_table", "size")

    def __init__(self, keys: pa.Array) -> None:
        numbers = as_numbers(keys)
        self._keys = keys if numbers is None else None
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
        if self._keys is not None:
            return np.asarray(pc.is_in(keys, value_set=self._keys).to_numpy(zero_copy_only=False))
        numbers = as_numbers(keys)
        if numbers is None:
            raise AssertionError("keys of one table have one type")
        if self._table is not None:
            return self._ask_table(numbers)
        if self._numbers is None:
            raise AssertionError("a set of numbers holds numbers")
        at = np.searchsorted(self._numbers, numbers)
        at[at == len(self._numbers)] = 0
        return np.asarray(self._numbers[at] == numbers)

    def _ask_table(self, numbers: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
        table = self._table
        if table is None:
            raise AssertionError("no table")
        last = len(table) - 1
        shifted = _shifted(numbers, self._low)
        return np.asarray(table[np.minimum(shifted, np.uint64(last)).astype(np.intp)])


def _shifted(numbers: npt.NDArray[np.generic], low: int) -> npt.NDArray[np.uint64]:
    """Distance from `low`, modulo 2^64: what lies below wraps around to a huge number."""
    wide = numbers.astype(np.uint64) if numbers.dtype.kind == "u" else numbers.astype(np.int64).view(np.uint64)
    return np.asarray(wide - np.uint64(low % (1 << 64)))
