"""Primary keys of many rows: as one array, the newest row of each, sets of them, and whether each is there once.

Owns all that compares keys of rows; their bytes are `lance_memwal.rows.key_encoding`. A key is one value: that of a
single key column in the form that is compared, or the order-preserving encoding of several. Invariants:

1. Membership and uniqueness are exact, never probabilistic: a code proposes a key, which is then compared.
2. A `KeySet` is built once and asked per batch: nothing that grows with the set is rebuilt per batch.
3. The check for unique keys holds eight bytes per row in memory, and the keys whose hashes repeat; never all rows.
4. `PackedKeys` holds keys in few bytes, for plans that travel: of sorted integers only the steps, compressed. Unpacking gives
   every key once, in no order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.ipc_frames import stream_of
from lance_memwal.rows.key_encoding import (
    comparable,
    encode_composite,
    ending_numbers,
    hash_is_exact,
    key_hashes,
    last_numbers,
)
from lance_memwal.rows.key_slots import SLOT_BYTES_PER_KEY, KeySlots

_INT64 = pa.int64()
_TABLE_SPAN = 1 << 26
_TABLE_SPAN_PER_KEY = 4096
_FEW_SHARE = 2
_SHOWN = 5
_SHOWN_CHARACTERS = 60


def key_array(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Array:
    """One array of keys: the column, in the form that is compared, or the order-preserving encoding of several."""
    arrays = [one_array(column) for column in columns]
    return comparable(arrays[0]) if len(arrays) == 1 else encode_composite(arrays)


def row_numbers(rows: npt.NDArray[np.int64]) -> pa.Int64Array:
    """`rows` for Arrow, which takes half the time of its own conversion; they must not change any more."""
    return pa.Array.from_buffers(_INT64, len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))])


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one contiguous array; what does not fit one is an error of Arrow, never a part of it."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def concat_keys(parts: Sequence[pa.Array]) -> pa.Array:
    """All keys in order."""
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def as_numbers(keys: pa.Array) -> npt.NDArray[np.generic] | None:
    """The keys as numpy numbers, or None if they are no numbers."""
    if pa.types.is_boolean(keys.type):
        return np.asarray(keys.to_numpy(zero_copy_only=False)).astype(np.uint8)
    return np.asarray(keys.to_numpy(zero_copy_only=False)) if pa.types.is_integer(keys.type) else None


# ---------------------------------------------------------------------------------------------------- one row per key


def first_of_each(keys: pa.Array) -> npt.NDArray[np.int64]:
    """The row of the first occurrence of each key: by value for numbers, else in row order."""
    numbers = as_numbers(keys)
    if numbers is not None:
        return np.asarray(np.unique(numbers, return_index=True)[1])
    return KeySlots(keys, keep_first=True).rows


def last_of_each(keys: pa.Array) -> npt.NDArray[np.int64]:
    """The row of the last occurrence of each key, ascending."""
    return np.sort(_last_rows(keys))


def newest_of_each(parts: Sequence[pa.Array]) -> list[npt.NDArray[np.bool_]]:
    """Per part (ascending by recency) the mask of rows that are the last ones of their key over all parts."""
    keys = concat_keys(list(parts))
    mask = np.zeros(len(keys), dtype=np.bool_)
    mask[_last_rows(keys)] = True
    return np.split(mask, np.cumsum([len(part) for part in parts])[:-1])


def _last_rows(keys: pa.Array) -> npt.NDArray[np.int64]:
    """The row of the last occurrence of each key.

    Where the range of numbers leaves enough bits, value and index share one word: sorting words is several times faster
    than a stable argsort.
    """
    codes = as_numbers(keys)
    if codes is None:
        return KeySlots(keys).rows
    if not len(codes):
        return np.empty(0, dtype=np.int64)
    smallest, index_bits = int(codes.min()), (len(codes) - 1).bit_length()
    if (int(codes.max()) - smallest).bit_length() + index_bits > 64:
        _, from_end = np.unique(codes[::-1], return_index=True)
        return np.asarray(len(codes) - 1 - from_end)
    wide = codes.astype(np.uint64 if codes.dtype.kind == "u" else np.int64)
    packed = wide.view(np.uint64)
    packed -= np.uint64(smallest % (1 << 64))
    packed <<= np.uint64(index_bits)
    packed |= np.arange(len(codes), dtype=np.uint64)
    packed.sort()
    differs = (packed[1:] ^ packed[:-1]) >> np.uint64(index_bits) != 0
    chosen = packed[np.append(differs, True)]
    chosen &= np.uint64((1 << index_bits) - 1)
    return np.asarray(chosen.view(np.int64))


# ---------------------------------------------------------------------------------------------------------------- sets


class KeySet:
    """An immutable set of keys. `keys` is what it was made of, some of them perhaps twice."""

    __slots__ = ("_ends", "_low", "_numbers", "_slots", "_table", "keys", "size")

    def __init__(self, keys: pa.Array) -> None:
        numbers = as_numbers(keys)
        self.keys = keys
        self._slots: KeySlots | None = None
        self._ends: KeySet | None = None
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

    @property
    def size_bytes(self) -> int:
        """Resident bytes, with the slots that bytes may need yet."""
        fast = self._numbers if self._table is None else self._table
        return int(self.keys.nbytes + (SLOT_BYTES_PER_KEY * self.size if fast is None else fast.nbytes))

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

    def of_rows(self, rows: pa.Table | pa.RecordBatch, key: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Per row: whether its key, which is in these columns, is in the set."""
        columns = [one_array(rows.column(name)) for name in key]
        some = self._ending_as_ours(columns)
        if some is None or len(some) * _FEW_SHARE > len(columns[0]):
            return self.contains(key_array(columns))
        found = np.zeros(len(columns[0]), dtype=bool)
        found[some] = self.contains(key_array([column.take(row_numbers(some)) for column in columns]))
        return found

    def _ending_as_ours(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.int64] | None:
        """Of composite keys that end with a number: the rows whose number ends a key of the set. To encode others is in vain."""
        numbers = last_numbers(columns[-1]) if len(columns) > 1 and self.size else None
        if numbers is None:
            return None
        if self._ends is None:
            self._ends = KeySet(ending_numbers(self.keys))
        return np.flatnonzero(self._ends.contains(numbers))

    def _ask_bytes(self, keys: pa.Array) -> npt.NDArray[np.bool_]:
        if keys.null_count or self.keys.null_count:
            return np.asarray(pc.is_in(keys, value_set=self.keys).to_numpy(zero_copy_only=False))
        if self._slots is None:
            self._slots = KeySlots(self.keys)
        return self._slots.find(keys) >= 0

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


# ------------------------------------------------------------------------------------------------------ each key once


def check_unique_keys(read: Callable[[], Iterable[pa.RecordBatch]], key: Sequence[str]) -> None:
    """Return only if the rows have `key` as their primary key; `InvalidInputError` names the first that do not.

    `read` gives the batches anew at each call; they hold the key columns at least.
    """
    hashes = [_hashes(batch, key) for batch in read() if batch.num_rows]
    if not hashes:
        return
    repeated = _repeated(np.concatenate(hashes))
    if len(repeated):
        _refuse_equal_keys([_among(batch, key, repeated) for batch in read() if batch.num_rows], key)


def _hashes(batch: pa.RecordBatch, key: Sequence[str]) -> npt.NDArray[np.uint64]:
    for name in key:
        if batch.column(name).null_count:
            rows = batch.filter(pc.is_null(batch.column(name))).select([n for n in key if n != name]).to_pylist()
            beside = f", beside {_listed(rows)}" if len(key) > 1 else ""
            raise InvalidInputError(f"column {name!r} holds nulls{beside}, and cannot be part of the primary key")
    return key_hashes(_hashable(batch, key))


def _hashable(batch: pa.RecordBatch, key: Sequence[str]) -> list[pa.Array]:
    """The key columns in types whose values the hash depends on."""
    columns = [comparable(batch.column(name)) for name in key]
    return columns if hash_is_exact([column.type for column in columns]) else [_widened(column) for column in columns]


def _widened(column: pa.Array) -> pa.Array:
    types = pa.types
    if types.is_uint64(column.type):
        return column.view(pa.int64())
    if types.is_integer(column.type) or types.is_boolean(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.string() if types.is_large_string(column.type) else pa.binary())


def _repeated(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    hashes.sort()
    return np.unique(hashes[1:][hashes[1:] == hashes[:-1]])


def _among(batch: pa.RecordBatch, key: Sequence[str], hashes: npt.NDArray[np.uint64]) -> pa.RecordBatch:
    return batch.select(list(key)).filter(pa.array(np.isin(key_hashes(_hashable(batch, key)), hashes)))


def _refuse_equal_keys(suspects: list[pa.RecordBatch], key: Sequence[str]) -> None:
    rows = pa.Table.from_batches(suspects).combine_chunks()
    keys = key_array(rows.columns)
    counted = keys.value_counts()
    often = counted.field(0).filter(pc.greater(counted.field(1), 1))
    twice = rows.take(pc.index_in(often, value_set=keys))
    if twice.num_rows:
        shown = _listed(twice.slice(0, _SHOWN).to_pylist())
        raise InvalidInputError(
            f"{twice.num_rows} values of the primary key ({', '.join(key)}) are there more than once: {shown}"
            f"{', …' if twice.num_rows > _SHOWN else ''}; a primary key must be unique"
        )


def _listed(rows: list[dict[str, Any]]) -> str:
    texts = (repr(next(iter(row.values())) if len(row) == 1 else tuple(row.values())) for row in rows[:_SHOWN])
    return ", ".join(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…" for text in texts)


_CODEC = "zstd"
_NAME = "key"


@dataclass(frozen=True, slots=True)
class PackedKeys:
    """A set of keys of one type. `first` is None where they are no integers."""

    kind: pa.DataType
    count: int
    first: int | None
    step_bytes: int
    data: bytes

    @classmethod
    def of(cls, keys: pa.Array) -> PackedKeys:
        """All of `keys`, some of which may be there twice."""
        numbers = as_numbers(keys) if pa.types.is_integer(keys.type) else None
        return cls._of_values(keys.unique()) if numbers is None or not len(numbers) else cls._of_numbers(keys, numbers)

    @classmethod
    def _of_numbers(cls, keys: pa.Array, numbers: npt.NDArray[np.generic]) -> PackedKeys:
        distinct = np.unique(numbers)
        wide = distinct.astype(np.uint64 if distinct.dtype.kind == "u" else np.int64).view(np.uint64)
        steps = np.diff(wide)  # modulo 2^64, so that the widest range is one, too
        narrow = steps.astype(np.min_scalar_type(int(steps.max()) if len(steps) else 0))
        data = pa.compress(narrow.tobytes(), codec=_CODEC, asbytes=True)
        return cls(keys.type, len(distinct), int(distinct[0]), narrow.dtype.itemsize, data)

    @classmethod
    def _of_values(cls, keys: pa.Array) -> PackedKeys:
        batch = pa.RecordBatch.from_arrays([keys], [_NAME])
        data = stream_of(batch.schema, [batch], compression=_CODEC)
        return cls(keys.type, len(keys), None, 0, data.to_pybytes())

    @property
    def size_bytes(self) -> int:
        """The bytes that travel."""
        return len(self.data)

    def unpack(self) -> pa.Array:
        """The keys."""
        if self.first is None:
            with pa.ipc.open_stream(self.data) as reader:
                return reader.read_all().column(_NAME).combine_chunks()
        size = (self.count - 1) * self.step_bytes
        raw = pa.decompress(self.data, decompressed_size=size, codec=_CODEC, asbytes=True) if size else b""
        steps = np.frombuffer(raw, dtype=f"u{self.step_bytes}").astype(np.uint64)
        wide = np.concatenate([np.array([self.first % (1 << 64)], np.uint64), steps]).cumsum(dtype=np.uint64)
        signed = pa.types.is_signed_integer(self.kind)
        return pa.array(wide.view(np.int64) if signed else wide).cast(self.kind)
