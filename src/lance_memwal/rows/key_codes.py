"""Keys that are bytes, in forms of a fixed width that numpy handles: numbers that propose, cells that sort.

Owns `hash_codes` (and `hash_code`), `tail_codes`, `last_words` and `sort_cells`. None is ever stored. Invariants:

1. Equal keys have equal codes. Keys with equal codes may differ: whoever uses codes compares the keys.
2. Cells compare like their keys, bytewise, and are equal if, and only if, the keys are. Where they would be far larger than
   the keys (one long key among short ones), there are none.
3. Work is proportional to the bytes of the keys.

A code takes a key in words of eight bytes; a cell is a key filled up with zeros, and its length behind them where the keys
differ in it:

    "ab", "ab\\0" become "ab000000" 2 and "ab000000" 3, in bytes of eight and eight
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.rows.siphash import hash_messages

U64Array = npt.NDArray[np.uint64]

_WORD = 8
_START = np.uint64(0x9E3779B97F4A7C15)
_FACTOR = np.uint64(0xFF51AFD7ED558CCD)
_LAST_FACTOR = np.uint64(0xC4CEB9FE1A85EC53)
_HALF = np.uint64(32)
_LONG_BYTES = 256  # a step for every word of a longer key is too much for the few keys that have it
_CELL_BYTES = 128
_CELL_SHARE = 4
_MASK = (1 << 64) - 1
BLOCK_ROWS = 1 << 15  # what a step works on stays in the processor's cache
# The bytes of a word that belong to a key of which n bytes are left, n up to 8.
# How far a word is shifted that has n bytes of a key at its end; 64 would be none, and the mask is 0 then.
_UNUSED = np.array([min(63, 8 * (_WORD - n)) for n in range(_WORD + 1)], np.uint64)
_KEPT = np.array([(1 << 8 * n) - 1 for n in range(_WORD + 1)], np.uint64)


def hash_codes(keys: pa.Array) -> U64Array:
    """One number per key, which are texts or binaries without nulls."""
    codes = np.empty(len(keys), np.uint64)
    for start in range(0, len(keys), BLOCK_ROWS):
        part = keys.slice(start, BLOCK_ROWS)
        codes[start : start + len(part)] = _hash_block(_Bytes.of(part), part)
    return codes


def hash_code(key: bytes) -> int:
    """`hash_codes` for one key, step by step in Python's numbers: an array of one would cost more than a whole look-up."""
    if len(key) > _LONG_BYTES:
        return int(hash_codes(pa.array([key], pa.large_binary()))[0])
    factor = int(_FACTOR)
    code = len(key) * factor & _MASK ^ int(_START)
    for at in range(0, len(key), _WORD):
        code = (code ^ int.from_bytes(key[at : at + _WORD], "little")) * factor & _MASK
        code ^= code >> int(_HALF)
    code = code * int(_LAST_FACTOR) & _MASK
    code ^= code >> int(_HALF)
    return code * factor & _MASK


def _hash_block(block: _Bytes, keys: pa.Array) -> U64Array:
    lengths = block.lengths
    codes = lengths.astype(np.uint64) * _FACTOR ^ _START
    longest = int(lengths.max(initial=0))
    long = None
    if longest > _LONG_BYTES:
        long = np.flatnonzero(lengths > _LONG_BYTES)
        block = block.without(long)
        longest = int(block.lengths.max(initial=0))
    for at in range(0, longest, _WORD):
        active, words = block.words(at)
        mixed = (codes if active is None else codes[active]) ^ words
        mixed *= _FACTOR
        mixed ^= mixed >> _HALF
        if active is None:
            codes = mixed
        else:
            codes[active] = mixed
    codes *= _LAST_FACTOR
    codes ^= codes >> _HALF
    codes *= _FACTOR  # the upper bits choose a slot
    if long is not None:
        codes[long] = hash_messages([keys.take(pa.array(long)).cast(pa.large_binary())])
    return codes


def tail_codes(keys: pa.Array) -> U64Array:
    """One number per key, made of its length and its last eight bytes alone: cheap, and the same for more keys."""
    words, lengths = last_words(keys)
    words ^= lengths.astype(np.uint64) * _FACTOR
    words *= _LAST_FACTOR
    words ^= words >> _HALF
    return words


def last_words(keys: pa.Array) -> tuple[U64Array, npt.NDArray[np.int64]]:
    """The last eight bytes of every key, little-endian, those of a shorter one with zeros behind them; and their lengths."""
    bounds, buffer = _bounds(keys)
    data = np.frombuffer(buffer or b"", np.uint8)
    if len(data) < _WORD:
        data = np.concatenate([data, np.zeros(_WORD, np.uint8)])
    anywhere = np.ndarray((len(data) - _WORD + 1,), "<u8", data, strides=(1,))
    ends, lengths = bounds[1:], np.diff(bounds)
    words: U64Array = anywhere[np.maximum(ends - _WORD, 0)]
    early = np.flatnonzero(ends < _WORD)  # of which there are at most a few: their words begin before the buffer does
    words[early] = words[early] << (np.uint64(8) * (np.uint64(_WORD) - ends[early].astype(np.uint64)))
    short = np.flatnonzero(lengths < _WORD)
    words[short] = words[short] >> _UNUSED[lengths[short]] & _KEPT[lengths[short]]
    return words, lengths


def sort_cells(keys: pa.Array) -> npt.NDArray[np.bytes_] | None:
    """The keys, texts or binaries without nulls, as cells; None if those would be too large."""
    if not len(keys):
        return None
    bounds, buffer = _bounds(keys)
    lengths = np.diff(bounds)
    shortest, longest = int(lengths.min()), int(lengths.max())
    if longest == 0 or longest > _CELL_BYTES:
        return None
    if shortest == longest:
        return np.ndarray((len(keys),), f"S{longest}", buffer, int(bounds[0]))
    block, width = _Bytes.of(keys), -(-longest // _WORD)
    if len(keys) * width * _WORD > _CELL_SHARE * max(int(block.lengths.sum()), len(keys) * _WORD):
        return None
    cells = np.zeros((len(keys), width + 1), np.uint64)
    for number in range(width):
        active, words = block.words(number * _WORD)
        cells[slice(None) if active is None else active, number] = words
    cells[:, width] = block.lengths.astype(np.uint64).byteswap()
    return cells.view(f"S{_WORD * (width + 1)}").reshape(len(keys))


def _bounds(keys: pa.Array) -> tuple[npt.NDArray[np.int64], pa.Buffer | None]:
    """Where each key begins and the last one ends in the buffer of their bytes, and that buffer."""
    if pa.types.is_fixed_size_binary(keys.type):
        numbers = np.arange(keys.offset, keys.offset + len(keys) + 1, dtype=np.int64)
        return numbers * int(keys.type.byte_width), keys.buffers()[1]
    kind: Any = np.int64 if pa.types.is_large_string(keys.type) or pa.types.is_large_binary(keys.type) else np.int32
    item = np.dtype(kind).itemsize
    _, offsets, buffer = keys.buffers()
    return np.frombuffer(offsets or bytes(item), kind, len(keys) + 1, keys.offset * item).astype(np.int64), buffer


@dataclass(frozen=True, slots=True)
class _Bytes:
    """The bytes of some keys, one after the other, with a word of zeros behind them; where each begins, and its length."""

    data: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    @classmethod
    def of(cls, keys: pa.Array) -> _Bytes:
        bounds, buffer = _bounds(keys)
        first, last = int(bounds[0]), int(bounds[-1])
        data = np.zeros(last - first + _WORD, np.uint8)
        data[:-_WORD] = np.frombuffer(buffer or b"", np.uint8)[first:last]
        bounds = bounds - first
        return cls(data, bounds[:-1], np.diff(bounds))

    def without(self, rows: npt.NDArray[np.int64]) -> _Bytes:
        """The same with no bytes in these rows."""
        lengths = self.lengths.copy()
        lengths[rows] = 0
        return _Bytes(self.data, self.starts, lengths)

    def words(self, at: int) -> tuple[npt.NDArray[np.int64] | None, U64Array]:
        """The keys that have a byte `at` (None: all of them), and their next eight bytes from there, zeros behind the last."""
        left = self.lengths - at
        active = None if left.min(initial=1) > 0 else np.flatnonzero(left > 0)
        starts = self.starts if active is None else self.starts[active]
        left = left if active is None else left[active]
        anywhere = np.ndarray((len(self.data) - _WORD + 1,), "<u8", self.data, strides=(1,))
        found: U64Array = anywhere[starts + at]
        if left.min(initial=_WORD) < _WORD:
            found &= _KEPT[np.minimum(left, _WORD)]
        return active, found
