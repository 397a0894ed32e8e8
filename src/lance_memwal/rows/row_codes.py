"""Whether rows are equal, whatever types their columns have: equal numbers for equal values.

Owns `value_codes`, `row_codes` and `occurrences`. Arrow compares neither lists nor structs. Invariants:

1. Two values have the same number if, and only if, they are equal: nothing is hashed into a number. A null equals a null,
   and a NaN of a column a NaN.
2. Inside of lists numbers are compared bit by bit.

    [1, null, 1] has [0, 1, 0];  [[a, b], [a], [a, b]]: a, b, a, a, b have 0, 1, 0, 0, 1, and the rows, as bytes of
    those, 0, 1, 0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.rows.keys import one_array

Codes: TypeAlias = npt.NDArray[np.int64]


def row_codes(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Codes:
    """One number per row of some columns, at least one."""
    codes = [value_codes(column) for column in columns]
    found = codes[0]
    for more in codes[1:]:
        found = _pairs(found, more)
    return found


def value_codes(column: pa.Array | pa.ChunkedArray) -> Codes:
    """One number per value."""
    values = one_array(column)
    while isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_struct(values.type):
        return row_codes([values.is_valid(), *values.flatten()])
    if pa.types.is_nested(values.type):
        return _list_codes(values)
    return _numbered(values)


def _numbered(values: pa.Array) -> Codes:
    try:
        found = values.dictionary_encode(null_encoding="encode")
    except pa.ArrowNotImplementedError:
        found = pa.array([repr(value) for value in values.to_pylist()]).dictionary_encode()
    return np.asarray(found.indices.to_numpy()).astype(np.int64)


def _list_codes(values: pa.Array) -> Codes:
    """One number per list: lists become bytes, and those are numbered."""
    valid = np.asarray(values.is_valid().to_numpy(zero_copy_only=False))
    there = values.filter(pa.array(valid))
    codes = np.full(len(values), -1, dtype=np.int64)
    if pa.types.is_map(there.type):
        elements: Any = _pairs(value_codes(there.keys), value_codes(there.items))
    else:
        elements = _elements(there.flatten())
    lengths = _lengths(there)
    ends = np.concatenate([[0], np.cumsum(lengths)]) * elements.dtype.itemsize
    data = pa.py_buffer(np.ascontiguousarray(elements))
    rows = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(there), [None, pa.py_buffer(ends.astype(np.int64)), data]
    )
    codes[valid] = _numbered(rows)
    return codes


def _lengths(lists: pa.Array) -> Codes:
    if pa.types.is_map(lists.type):
        return np.diff(np.asarray(lists.offsets.to_numpy())).astype(np.int64)
    return np.asarray(pc.list_value_length(lists).to_numpy(zero_copy_only=False)).astype(np.int64)


def _elements(values: pa.Array) -> npt.NDArray[Any]:
    """The elements of lists as numbers of a fixed width: themselves, or what `value_codes` makes of them."""
    kind = values.type
    if values.null_count == 0 and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    return value_codes(values)


def _pairs(left: Codes, right: Codes) -> Codes:
    """One number per pair."""
    if not len(left):
        return left
    low = int(right.min())
    wide = (left - int(left.min())) * (int(right.max()) - low + 1) + (right - low)
    return np.asarray(np.unique(wide, return_inverse=True)[1]).astype(np.int64)


def occurrences(codes: Codes) -> Codes:
    """Per row, how often its number came before: [7, 8, 7, 7] gives [0, 0, 1, 2]."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    lengths = np.diff(np.append(starts, len(codes)))
    before = np.empty(len(codes), dtype=np.int64)
    before[order] = np.arange(len(codes)) - np.repeat(starts, lengths)
    return before
