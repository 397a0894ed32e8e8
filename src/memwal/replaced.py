"""Which rows of the base table newer rows replace, found by one pass over its keys.

Owns `replaced_rows`. Invariants:

1. What it finds is about the one version that it is given; whoever commits it does so on that version only.
2. Every live row whose key is asked for is found, however often the key is there.
3. Memory: one batch of keys and one flag per row of one fragment.

Called by: compaction (through `memwal.base_commit`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.base_table import BaseTable, lance_errors
from memwal.errors import CorruptDataError
from memwal.format.keys import encode_composite
from memwal.key_set import KeySet

__all__ = ["replaced_rows"]

_ROW_ADDRESS = "_rowaddr"
_OFFSET_BITS = np.uint64(32)
_OFFSET = np.uint64((1 << 32) - 1)
_BATCH_ROWS = 1 << 18
_READ_AHEAD_BYTES = 64 << 20

_Offsets = npt.NDArray[np.uint32]
_Part = tuple[int, npt.NDArray[np.uint64], npt.NDArray[np.bool_]]  # a fragment, some of its live rows, which of them go


def replaced_rows(base: BaseTable, keys: KeySet) -> dict[int, _Offsets | None]:
    """Per fragment that loses a row, the offsets of all rows that are deleted then, earlier ones too.

    None for a fragment of which no row is left.
    """
    found: dict[int, _Offsets | None] = {}
    if not keys.size:
        return found
    physical_rows = {fragment.id: fragment.physical_rows for fragment in base.manifest.fragments()}
    for number, parts in groupby(_parts(base, keys), key=lambda part: part[0]):
        if number in found:
            raise AssertionError("a scan in order came back to a fragment")
        stays = np.zeros(physical_rows.get(number, 0), dtype=np.bool_)
        loses = False
        for _, offsets, goes in parts:
            if offsets[-1] >= len(stays):
                raise CorruptDataError(f"fragment {number} of the base table has more rows than its manifest says")
            first, last = int(offsets[0]), int(offsets[-1])
            stays[slice(first, last + 1) if last - first + 1 == len(goes) else offsets] = ~goes
            loses = loses or bool(goes.any())
        if loses:
            found[number] = np.flatnonzero(~stays).astype(np.uint32) if stays.any() else None
    return found


def _parts(base: BaseTable, keys: KeySet) -> Iterator[_Part]:
    names = list(base.primary_key)
    with lance_errors("finding replaced rows in the base table"):
        scanner = base.dataset.scanner(
            columns=names,
            with_row_address=True,
            batch_size=_BATCH_ROWS,
            scan_in_order=True,
            io_buffer_size=_READ_AHEAD_BYTES,
        )
        for batch in scanner.to_batches():
            if batch.num_rows:
                yield from _by_fragment(batch, names, keys)


def _by_fragment(batch: pa.RecordBatch, names: list[str], keys: KeySet) -> Iterator[_Part]:
    columns = [batch.column(name) for name in names]
    goes = keys.contains(columns[0] if len(columns) == 1 else encode_composite(columns))
    addresses: npt.NDArray[Any] = batch.column(_ROW_ADDRESS).to_numpy()
    numbers = addresses >> _OFFSET_BITS
    if numbers[0] == numbers[-1]:  # rows come in order
        yield int(numbers[0]), addresses & _OFFSET, goes
        return
    bounds = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
    for start, end in pairwise(bounds):
        yield int(numbers[start]), addresses[start:end] & _OFFSET, goes[start:end]
