"""Scalar index of a memtable: positions by equality, membership, range and nullness.

Owns sorted runs of (key, position) for one column, merged like the levels of an LSM tree. Invariants:

1. Runs are immutable and published together as one tuple; a reader works on the tuple that it took.
2. Run sizes fall by at least half from one run to the next, so a query searches O(log rows) runs.
3. Order and equality are those of Lance's filters: -0.0 equals 0.0; a NaN equals only a NaN of the same bits and
   sorts above infinity (one with its sign bit set below minus infinity); strings and binaries sort by bytes.
4. Nulls are in no run; they have a list of their own.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index.pending import PendingColumn
from lance_memwal.process.waiting import refuse_on_top
from lance_memwal.rows.sql import Equals, In, IsNotNull, IsNull, Predicate, Range

Positions = npt.NDArray[np.int64]
_NO_POSITIONS: Positions = np.empty(0, dtype=np.int64)


def is_indexable(data_type: pa.DataType) -> bool:
    """Return whether a column of this type can have a BTree index."""
    if pa.types.is_dictionary(data_type):
        return is_indexable(data_type.value_type)
    return _has_number_keys(data_type) or _has_arrow_keys(data_type)


def _has_number_keys(data_type: pa.DataType) -> bool:
    t = pa.types
    return bool(
        t.is_integer(data_type)
        or t.is_floating(data_type)
        or t.is_boolean(data_type)
        or t.is_date(data_type)
        or t.is_time(data_type)
        or t.is_timestamp(data_type)
        or t.is_duration(data_type)
    )


def _has_arrow_keys(data_type: pa.DataType) -> bool:
    t = pa.types
    return bool(
        t.is_string(data_type)
        or t.is_large_string(data_type)
        or t.is_string_view(data_type)
        or t.is_binary(data_type)
        or t.is_large_binary(data_type)
        or t.is_binary_view(data_type)
        or t.is_fixed_size_binary(data_type)
        or t.is_decimal(data_type)
    )


def _number_keys(values: pa.Array) -> npt.NDArray[Any]:
    """Integers that order like `values`, which has no nulls."""
    data_type = values.type
    if pa.types.is_floating(data_type):
        floats = values.to_numpy(zero_copy_only=False).astype(np.float64) + 0.0  # -0.0 becomes 0.0
        bits = floats.view(np.int64)
        ordered: npt.NDArray[Any] = bits ^ ((bits >> 63) & np.int64(0x7FFF_FFFF_FFFF_FFFF))
        return ordered
    if pa.types.is_temporal(data_type):
        values = values.view(pa.int32() if data_type.bit_width == 32 else pa.int64())
    numbers: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return numbers.astype(np.uint64 if pa.types.is_unsigned_integer(data_type) else np.int64, copy=False)


@dataclass(frozen=True, slots=True)
class _NumberRun:
    """Keys as a sorted NumPy array."""

    keys: npt.NDArray[Any]
    positions: Positions

    @classmethod
    def build(cls, values: pa.Array, positions: Positions) -> _NumberRun:
        return cls._sorted(_number_keys(values), positions)

    @classmethod
    def _sorted(cls, keys: npt.NDArray[Any], positions: Positions) -> _NumberRun:
        order = np.argsort(keys, kind="stable")
        return cls(keys[order], positions[order])

    def merge(self, other: _NumberRun) -> _NumberRun:
        return self._sorted(np.concatenate((self.keys, other.keys)), np.concatenate((self.positions, other.positions)))

    def cut(self, value: pa.Scalar, side: str) -> int:
        key = _number_keys(pa.array([value], type=value.type))
        return int(np.searchsorted(self.keys, key, side="left" if side == "left" else "right")[0])

    def matches(self, values: pa.Array) -> Positions:
        keys = np.unique(_number_keys(values))
        first, last = np.searchsorted(self.keys, keys, "left"), np.searchsorted(self.keys, keys, "right")
        return self.positions[_expand(first, last)]

    @property
    def size_bytes(self) -> int:
        return self.keys.nbytes + self.positions.nbytes


@dataclass(frozen=True, slots=True)
class _ArrowRun:
    """Keys as a sorted Arrow array, for types without a fixed-width integer key."""

    keys: pa.Array
    positions: Positions

    @classmethod
    def build(cls, values: pa.Array, positions: Positions) -> _ArrowRun:
        order = pc.array_sort_indices(values)
        return cls(values.take(order), positions[order.to_numpy()])

    def merge(self, other: _ArrowRun) -> _ArrowRun:
        return self.build(pa.concat_arrays([self.keys, other.keys]), np.concatenate((self.positions, other.positions)))

    def cut(self, value: pa.Scalar, side: str) -> int:
        bisect = bisect_left if side == "left" else bisect_right
        return bisect(range(len(self.keys)), value.as_py(), key=lambda i: self.keys[i].as_py())

    def matches(self, values: pa.Array) -> Positions:
        wanted = values.unique().cast(self.keys.type)
        if len(wanted) > 8 + len(self.keys) // 4000:  # one pass with a hash table beats that many binary searches
            found: npt.NDArray[np.bool_] = pc.is_in(self.keys, value_set=wanted).to_numpy(zero_copy_only=False)
            return self.positions[found]
        first = np.array([self.cut(value, "left") for value in wanted], dtype=np.int64)
        last = np.array([self.cut(value, "right") for value in wanted], dtype=np.int64)
        return self.positions[_expand(first, last)]

    @property
    def size_bytes(self) -> int:
        return int(self.keys.nbytes) + self.positions.nbytes


def _expand(first: npt.NDArray[Any], last: npt.NDArray[Any]) -> Positions:
    """Concatenate the ranges [first, last)."""
    counts = last - first
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(first - (ends - counts), counts) + np.arange(total, dtype=np.int64)


class BTreeMemIndex(PendingColumn):
    """Finds the positions of rows by the value of one scalar column."""

    def __init__(self, name: str, column: str, data_type: pa.DataType) -> None:
        if not is_indexable(data_type):
            raise InvalidInputError(f"column {column!r} of type {data_type} cannot have a BTree index")
        super().__init__(name, column)
        self._type = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
        self._run_type = _NumberRun if _has_number_keys(self._type) else _ArrowRun
        self._runs: tuple[Any, ...] = ()
        self._nulls: tuple[Positions, ...] = ()
        self._built_bytes = 0
        self._build_lock = threading.RLock()

    @property
    def size_bytes(self) -> int:
        """Resident bytes of runs and bookkeeping."""
        return self._built_bytes + self._pending_bytes()

    def catch_up(self, max_rows: int | None = None) -> int:
        """Sort every pending row into the runs; `max_rows` is not needed, as sorting is quick."""
        del max_rows
        refuse_on_top(self._build_lock, "a search")
        with self._build_lock:
            count = len(self._pending)
            if count:
                self._absorb(self._pending[:count])
                del self._pending[:count]
        return 0

    def positions(self, predicate: Predicate, n: int) -> Positions:
        """Return the sorted positions below `n` of the rows that satisfy `predicate`, exactly."""
        self.catch_up()
        refuse_on_top(self._build_lock, "a search")
        with self._build_lock:
            runs, nulls = self._runs, self._nulls
        match predicate:
            case IsNull():
                found: Sequence[Positions] = nulls
            case IsNotNull():
                found = [run.positions for run in runs]
            case Range():
                found = self._in_range(runs, predicate)
            case Equals():
                found = self._among(runs, (predicate.value,))
            case In():
                found = self._among(runs, predicate.values)
        return _below(found, n)

    def _among(self, runs: tuple[Any, ...], values: Sequence[object]) -> list[Positions]:
        scalars = [scalar for value in values if (scalar := self._scalar(value)).is_valid]
        wanted = pa.array(scalars, type=self._type)
        return [run.matches(wanted) for run in runs] if scalars else []

    def _in_range(self, runs: tuple[Any, ...], bounds: Range) -> list[Positions]:
        lower = None if bounds.lower is None else self._scalar(bounds.lower)
        upper = None if bounds.upper is None else self._scalar(bounds.upper)
        found = []
        for run in runs:
            first = 0 if lower is None else run.cut(lower, "left" if bounds.lower_inclusive else "right")
            last = (
                len(run.positions) if upper is None else run.cut(upper, "right" if bounds.upper_inclusive else "left")
            )
            found.append(run.positions[first:last])
        return found

    def _scalar(self, value: object) -> pa.Scalar:
        """`value` as the column's type, or an error: the caller then evaluates its filter without the index."""
        try:
            if isinstance(value, pa.Scalar) or (isinstance(value, float) and pa.types.is_integer(self._type)):
                return pa.scalar(value).cast(self._type)  # refuses to truncate, as pa.scalar(1.5, pa.int64()) does not
            return pa.scalar(value, type=self._type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            kind = type(value).__name__
            raise InvalidInputError(
                f"a {kind} cannot be compared with column {self._column!r} ({self._type})"
            ) from error

    def _absorb(self, pending: list[tuple[int, pa.Array]]) -> None:
        """Sort `pending`, which is contiguous, into a new run and restore invariant 2."""
        values = pa.concat_arrays([_plain(array) for _, array in pending])
        positions = np.arange(pending[0][0], pending[0][0] + len(values), dtype=np.int64)
        nulls = self._nulls
        if values.null_count:
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            nulls = _collapse((*nulls, positions[~valid]))
            values, positions = values.drop_null(), positions[valid]
        runs = list(self._runs)
        if len(values):
            runs.append(self._run_type.build(values, positions))
        while len(runs) > 1 and 2 * len(runs[-1].positions) > len(runs[-2].positions):
            newest = runs.pop()
            runs[-1] = runs[-1].merge(newest)
        self._runs, self._nulls = tuple(runs), nulls
        self._built_bytes = sum(run.size_bytes for run in runs) + sum(part.nbytes for part in nulls)


def _plain(array: pa.Array) -> pa.Array:
    """Decoded, and with 64-bit offsets where there are offsets, so that runs of any size can be joined."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    t = pa.types
    if t.is_string(array.type) or t.is_string_view(array.type):
        return array.cast(pa.large_string())
    if t.is_binary(array.type) or t.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    return array


def _collapse(parts: tuple[Positions, ...]) -> tuple[Positions, ...]:
    """Concatenate the tail of `parts` so that sizes fall by half, as runs do."""
    kept = list(parts)
    while len(kept) > 1 and 2 * len(kept[-1]) > len(kept[-2]):
        newest = kept.pop()
        kept[-1] = np.concatenate((kept[-1], newest))
    return tuple(kept)


def _below(found: Sequence[Positions], n: int) -> Positions:
    positions = np.concatenate(found) if found else _NO_POSITIONS
    positions = positions[positions < n]
    positions.sort()
    return positions
