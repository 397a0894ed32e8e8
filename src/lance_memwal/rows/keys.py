"""Primary keys as one array: a single column as it is, several in their order-preserving encoding.

Owns joining, comparing and thinning out such arrays. Sets of them are `lance_memwal.rows.key_set`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.rows.key_encoding import encode_composite
from lance_memwal.rows.key_set import KeySet, as_numbers

__all__ = ["KeySet", "as_numbers", "concat_keys", "distinct", "key_array", "one_array"]


def key_array(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Array:
    """One array of keys: the column itself, or the order-preserving encoding of several."""
    arrays = [one_array(column) for column in columns]
    return arrays[0] if len(arrays) == 1 else encode_composite(arrays)


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one contiguous array; what does not fit one is an error of Arrow, never a part of it."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def concat_keys(parts: Sequence[pa.Array]) -> pa.Array:
    """All keys in order."""
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def distinct(keys: pa.Array) -> npt.NDArray[np.int64]:
    """The row of the first occurrence of each key."""
    numbers = as_numbers(keys)
    codes = keys.dictionary_encode().indices.to_numpy() if numbers is None else numbers
    return np.asarray(np.unique(codes, return_index=True)[1])
