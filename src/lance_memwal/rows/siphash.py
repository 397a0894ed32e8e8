"""SipHash-1-3 with the zero key over many messages at once.

Owns the hash behind the bloom filter of an SSTable (the public layout uses the default hasher of the reference
implementation, which is this one). Invariants:

1. The result equals the scalar definition for every length, zero included.
2. Work is proportional to the bytes hashed: one very long message among short ones does not slow the short ones down.

Each message is padded to whole 64-bit words, the last word holding the tail and, in its top byte, the length modulo
256; then word `j` of all messages that have one is mixed in one step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

U64Array = npt.NDArray[np.uint64]

_SEEDS = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
_MASK = (1 << 64) - 1
_LEFT = {bits: np.uint64(bits) for bits in (13, 16, 17, 21, 32)}
_RIGHT = {bits: np.uint64(64 - bits) for bits in _LEFT}
# Below this many rows a numpy step costs more than the same step in plain Python.
_SCALAR_ROWS = 4
# Rows per block: small enough for the processor's cache, large enough to hide the cost of a call.
_BLOCK_ROWS = 16_384
_EMPTY = pa.scalar(b"", pa.large_binary())
# What follows a message of length n, by n modulo 256: zeros up to the word's last byte, which is the length.
_PADDING = pa.array([bytes(7 - n % 8) + bytes([n]) for n in range(256)], pa.large_binary())


def hash_messages(parts: Sequence[pa.Array | pa.Scalar]) -> U64Array:
    """The hash of every row, whose message is its parts in order: `large_binary` arrays without nulls, or scalars."""
    rows = max(len(part) for part in parts if isinstance(part, pa.Array))
    out = np.empty(rows, np.uint64)
    for start in range(0, rows, _BLOCK_ROWS):
        block = [part.slice(start, _BLOCK_ROWS) if isinstance(part, pa.Array) else part for part in parts]
        out[start : start + _BLOCK_ROWS] = _hash_block(block, min(_BLOCK_ROWS, rows - start))
    return out


def hash_words(words: Sequence[U64Array]) -> U64Array:
    """The hash of every row, whose padded message is given as words; all rows have the same number of them."""
    out = np.empty(len(words[0]), np.uint64)
    for start in range(0, len(out), _BLOCK_ROWS):
        block = [word[start : start + _BLOCK_ROWS] for word in words]
        state = _State(len(block[0]))
        for word in block:
            state.mix(word, len(word))
        out[start : start + _BLOCK_ROWS] = state.finish()
    return out


def _hash_block(parts: list[pa.Array | pa.Scalar], rows: int) -> U64Array:
    lengths = np.zeros(rows, np.int64)
    for part in parts:
        lengths += pc.binary_length(part).to_numpy() if isinstance(part, pa.Array) else len(part.as_py())
    padded = pc.binary_join_element_wise(*parts, _PADDING.take(pa.array(lengths & 255)), _EMPTY)
    words = np.frombuffer(padded.buffers()[2], np.uint64)
    counts = lengths // 8 + 1
    if (counts == counts[0]).all():
        return hash_words(list(np.ascontiguousarray(words.reshape(rows, -1).T)))
    return _hash_ragged(words, counts)


def _hash_ragged(words: U64Array, counts: npt.NDArray[np.int64]) -> U64Array:
    starts = np.cumsum(counts) - counts
    order = np.argsort(-counts, kind="stable")
    starts, counts = starts[order], counts[order]
    state = _State(len(counts))
    step, active = 0, len(counts)
    while active > _SCALAR_ROWS:
        state.mix(words[starts[:active] + step], active)
        step += 1
        active = int(np.searchsorted(-counts, -step))  # counts descend; the first `active` have more than `step` words
    for row in range(active):
        state.mix_row(row, words[starts[row] + step : starts[row] + counts[row]].tolist())
    out = np.empty(len(counts), np.uint64)
    out[order] = state.finish()
    return out


class _State:
    """The four lanes of many hashes; what was mixed in so far."""

    def __init__(self, rows: int) -> None:
        self._lanes = [np.full(rows, seed, np.uint64) for seed in _SEEDS]
        self._scratch = np.empty(rows, np.uint64)

    def mix(self, word: U64Array, rows: int) -> None:
        """Take in the next word of the first `rows` messages."""
        lanes = [lane[:rows] for lane in self._lanes]
        lanes[3] ^= word
        _round(lanes, self._scratch[:rows])
        lanes[0] ^= word

    def mix_row(self, row: int, words: list[int]) -> None:
        """Take in all further words of one message."""
        a, b, c, d = (int(lane[row]) for lane in self._lanes)
        for word in words:
            d ^= word
            a = (a + b) & _MASK
            b = (b << 13 | b >> 51) & _MASK ^ a
            a = (a << 32 | a >> 32) & _MASK
            c = (c + d) & _MASK
            d = (d << 16 | d >> 48) & _MASK ^ c
            a = (a + d) & _MASK
            d = (d << 21 | d >> 43) & _MASK ^ a
            c = (c + b) & _MASK
            b = (b << 17 | b >> 47) & _MASK ^ c
            c = (c << 32 | c >> 32) & _MASK
            a ^= word
        for lane, value in zip(self._lanes, (a, b, c, d), strict=True):
            lane[row] = value

    def finish(self) -> U64Array:
        """The hashes; the state is used up."""
        self._lanes[2] ^= np.uint64(0xFF)
        for _ in range(3):
            _round(self._lanes, self._scratch)
        a, b, c, d = self._lanes
        return a ^ b ^ c ^ d


def _round(lanes: list[U64Array], scratch: U64Array) -> None:
    a, b, c, d = lanes
    a += b
    _rotate(b, 13, scratch)
    b ^= a
    _rotate(a, 32, scratch)
    c += d
    _rotate(d, 16, scratch)
    d ^= c
    a += d
    _rotate(d, 21, scratch)
    d ^= a
    c += b
    _rotate(b, 17, scratch)
    b ^= c
    _rotate(c, 32, scratch)


def _rotate(lane: U64Array, bits: int, scratch: U64Array) -> None:
    np.left_shift(lane, _LEFT[bits], out=scratch)
    np.right_shift(lane, _RIGHT[bits], out=lane)
    np.bitwise_or(lane, scratch, out=lane)
