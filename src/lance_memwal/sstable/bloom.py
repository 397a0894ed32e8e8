"""The bloom filter of an SSTable: which keys it may hold.

Owns the split-block filter: 1024 blocks of eight 32-bit words, raw and little-endian, without a header, always 32768
bytes. A hash selects a block by its upper half and one bit in each word by its lower half times that word's salt.
Invariants:

1. A key whose hash was given to `build_bloom` is never denied by `might_contain`.
2. A filter of any other size is refused, not guessed at: a denial from wrong bytes would hide a row.

Where the hash ignores the value (`lance_memwal.rows.key_encoding.hash_is_exact`), the caller must not ask.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lance_memwal.errors import CorruptDataError

BLOOM_BYTES = 32768
_WORDS = 8
_BLOCKS = BLOOM_BYTES // (4 * _WORDS)
_SALTS = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], np.uint32
)


def build_bloom(hashes: npt.NDArray[np.uint64]) -> bytes:
    """The 32768 bytes of a filter that holds every one of `hashes`."""
    blocks, bits = _places(hashes)
    flags = np.zeros(BLOOM_BYTES * 8, np.bool_)
    flags[((blocks * _WORDS)[:, None] + np.arange(_WORDS)) * 32 + bits] = True
    return np.packbits(flags, bitorder="little").tobytes()


def might_contain(filter_bytes: bytes, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """False only for hashes that are certainly not in the filter."""
    blocks, bits = _places(hashes)
    found: npt.NDArray[np.bool_] = np.all((_words(filter_bytes)[blocks] >> bits) & np.uint32(1), axis=-1)
    return found


def _places(hashes: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """The block of every hash, and its bit in each of the block's words."""
    chosen = ((hashes >> np.uint64(32)) * np.uint64(_BLOCKS)) >> np.uint64(32)
    lower = hashes.astype(np.uint32)
    return chosen.astype(np.int64), (lower[:, None] * _SALTS) >> np.uint32(27)


def _words(filter_bytes: bytes) -> npt.NDArray[np.uint32]:
    if len(filter_bytes) != BLOOM_BYTES:
        raise CorruptDataError(f"bloom filter has {len(filter_bytes)} bytes instead of {BLOOM_BYTES}")
    return np.frombuffer(filter_bytes, "<u4").reshape(_BLOCKS, _WORDS)
