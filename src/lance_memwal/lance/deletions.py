"""Deletion vectors of SSTables: which rows a newer row of the same generation has replaced.

Owns the portable RoaringBitmap serialisation of row offsets, the content of `_deletions/{fragment}-{version}-{id}.bin`.
Arrow deletion files, which Lance itself writes for small vectors, are Lance's own business. Invariants:

1. Offsets are unsigned 32-bit and survive a round trip, sorted and unique.
2. Bytes that are no complete bitmap are `CorruptDataError`, never a shorter vector.
3. A vector is expanded only if it fits the rows that it belongs to: a few hostile bytes can name four billion.
"""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from lance_memwal.errors import CorruptDataError


def encode_deletions(offsets: npt.NDArray[np.integer]) -> bytes:
    """The bytes of a deletion vector; the same that the reference writes for the same rows."""
    values = array("I")
    values.frombytes(offsets.astype(np.uint32).tobytes())
    return bytes(BitMap(values).serialize())


def decode_deletions(data: bytes, *, physical_rows: int) -> npt.NDArray[np.uint32]:
    """The deleted row offsets, ascending, all below `physical_rows`."""
    try:
        bitmap = BitMap.deserialize(data)  # checks bounds and order of everything it reads; runs stay runs
    except (ValueError, IndexError) as error:
        raise CorruptDataError("deletion vector is not a portable RoaringBitmap") from error
    if not bitmap:
        return np.empty(0, np.uint32)
    if bitmap.max() >= physical_rows:
        raise CorruptDataError(f"deletion vector names row {bitmap.max()}, there are {physical_rows}")
    return np.frombuffer(bitmap.to_array(), np.uint32)
