"""Where keys are in their order, in 64 bits: enough to tell that two groups of keys have nothing in common.

Owns `places`. A number is its own place, of bytes the first eight count: b"ab" is before b"b", and b"longer-key-1" where
b"longer-key-2" is.
Invariant: places never fall while keys rise, so that equal keys have equal places.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.rows.keys import as_numbers

__all__ = ["places"]

_SIGN = np.uint64(1 << 63)
_BYTES = 8


def places(keys: pa.Array) -> npt.NDArray[np.uint64]:
    """The place of each key; `keys` are what `key_array` made, none of them null."""
    numbers = as_numbers(keys)
    if numbers is None:
        return _of_bytes(keys.cast(pa.large_binary()))
    if numbers.dtype.kind == "u":
        return numbers.astype(np.uint64)
    return numbers.astype(np.int64).view(np.uint64) ^ _SIGN


def _of_bytes(keys: pa.LargeBinaryArray) -> npt.NDArray[np.uint64]:
    _, offsets, data = keys.buffers()
    starts = np.frombuffer(offsets or b"\0" * _BYTES, np.int64)[keys.offset : keys.offset + len(keys) + 1]
    held = np.frombuffer(data or b"", np.uint8)
    at = np.arange(_BYTES)
    is_there = at < np.diff(starts)[:, None]
    first = np.zeros((len(keys), _BYTES), np.uint8)
    first[is_there] = held[(starts[:-1, None] + at)[is_there]]
    return first.view(">u8").ravel().astype(np.uint64)
