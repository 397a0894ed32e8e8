"""Which rows of the base table newer rows replace, found by one pass over its keys, or by an index on them.

Owns `replaced_rows` and `stable_ids`. Invariants:

1. What it finds is about the one version that it is given; whoever commits it does so on that version only.
2. Every live row whose key is asked for is found, however often the key is there.
3. Memory: one batch of keys and one flag per row of one fragment; by an index, also the addresses of what was found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.errors import CorruptDataError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.manifest import parse_fragment
from lance_memwal.rows.keys import KeySet, key_array, one_array
from lance_memwal.rows.sql import in_list
from lance_memwal.types import ROW_ADDRESS, ROW_ID

_CREATED = "_row_created_at_version"
_OFFSET_BITS = np.uint64(32)
_OFFSET = np.uint64((1 << 32) - 1)
_BATCH_ROWS = 1 << 18
_ROWS_PER_KEY = 64  # to ask an index for one key costs about as much as to read so many
_KEYS_AT_ONCE = 4096
_READ_AHEAD_BYTES = 64 << 20


class Keys(Protocol):
    """Keys that rows are compared with: how many there are at most, all of them, and which rows have one."""

    @property
    def size(self) -> int:
        """At least the number of keys."""
        ...

    @property
    def keys(self) -> pa.Array:
        """All keys."""
        ...

    def of_rows(self, rows: pa.Table | pa.RecordBatch, key: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which rows have one of the keys."""
        ...


_Offsets = npt.NDArray[np.uint32]
_Part = tuple[int, npt.NDArray[np.uint64], npt.NDArray[np.bool_]]  # a fragment, some of its live rows, which of them go


def replaced_rows(base: BaseTable, keys: Keys, fragments: Collection[int] | None = None) -> dict[int, _Offsets | None]:
    """Per fragment that loses a row, the offsets of all rows that are deleted then, earlier ones too.

    None for a fragment of which no row is left. `fragments` restricts which ones are looked at.
    """
    found: dict[int, _Offsets | None] = {}
    wanted = base.fragment_messages if fragments is None else {n: base.fragment_messages[n] for n in fragments}
    if not keys.size or not wanted:
        return found
    physical_rows = {number: parse_fragment(message).physical_rows for number, message in wanted.items()}
    chosen = None if len(wanted) == len(base.fragment_messages) else sorted(wanted)
    if base.is_key_indexed and keys.size * _ROWS_PER_KEY <= sum(physical_rows.values()):
        parts = _parts_by_index(base, keys, chosen)
    else:
        parts = _parts(base, keys, chosen)
    for number, live in groupby(parts, key=lambda part: part[0]):
        if number in found:
            raise AssertionError("a scan in order came back to a fragment")
        stays = np.zeros(physical_rows.get(number, 0), dtype=np.bool_)
        loses = False
        for _, offsets, goes in live:
            if offsets[-1] >= len(stays):
                raise CorruptDataError(f"fragment {number} of the base table has more rows than its manifest says")
            first, last = int(offsets[0]), int(offsets[-1])
            stays[slice(first, last + 1) if last - first + 1 == len(goes) else offsets] = ~goes
            loses = loses or bool(goes.any())
        if loses:
            found[number] = np.flatnonzero(~stays).astype(np.uint32) if stays.any() else None
    return found


def stable_ids(
    base: BaseTable, keys: KeySet, fragments: Sequence[int]
) -> tuple[pa.Array, npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Of the rows in `fragments` that are replaced: key, stable row id, and the version in which each was inserted."""
    names, found = list(base.primary_key), []
    with base.reading("finding the ids of replaced rows in the base table"):
        scanner = base.dataset.scanner(
            columns=[*names, ROW_ID, _CREATED],
            fragments=_fragments(base, fragments),
            batch_size=_BATCH_ROWS,
            io_buffer_size=_READ_AHEAD_BYTES,
        )
        for batch in scanner.to_batches():
            found.append(batch.filter(pa.array(keys.of_rows(batch, names))))
    rows = pa.Table.from_batches(found).combine_chunks()
    numbers = (one_array(rows.column(name)).to_numpy().astype(np.uint64) for name in (ROW_ID, _CREATED))
    return (key_array([rows.column(name) for name in names]), *numbers)


def _parts_by_index(base: BaseTable, keys: Keys, fragments: Sequence[int] | None) -> Iterator[_Part]:
    """The live rows of the fragments in which the index finds a key."""
    (name,) = base.primary_key
    found = []
    with base.reading("finding replaced rows in the base table"):
        chosen = _fragments(base, fragments)
        for start in range(0, len(keys.keys), _KEYS_AT_ONCE):
            asked = in_list(name, keys.keys.slice(start, _KEYS_AT_ONCE), base.schema.field(name).type)
            scanner = base.dataset.scanner(columns=[], filter=asked, with_row_address=True, fragments=chosen)
            found.append(scanner.to_table().column(ROW_ADDRESS).to_numpy())
        addresses = np.unique(np.concatenate(found))
        for number in np.unique(addresses >> _OFFSET_BITS).tolist():
            fragment: Any = base.dataset.get_fragment(number)
            live = fragment.scanner(columns=[], with_row_address=True).to_table().column(ROW_ADDRESS).to_numpy()
            yield number, live & _OFFSET, np.isin(live, addresses)


def _fragments(base: BaseTable, numbers: Sequence[int] | None) -> Any:
    return None if numbers is None else [base.dataset.get_fragment(number) for number in numbers]


def _parts(base: BaseTable, keys: Keys, fragments: Sequence[int] | None) -> Iterator[_Part]:
    names = list(base.primary_key)
    with base.reading("finding replaced rows in the base table"):
        scanner = base.dataset.scanner(
            columns=names,
            fragments=_fragments(base, fragments),
            with_row_address=True,
            batch_size=_BATCH_ROWS,
            scan_in_order=True,
            io_buffer_size=_READ_AHEAD_BYTES,
        )
        for batch in scanner.to_batches():
            if batch.num_rows:
                yield from _by_fragment(batch, names, keys)


def _by_fragment(batch: pa.RecordBatch, names: list[str], keys: Keys) -> Iterator[_Part]:
    goes = keys.of_rows(batch, names)
    addresses: npt.NDArray[Any] = batch.column(ROW_ADDRESS).to_numpy()
    numbers = addresses >> _OFFSET_BITS
    if numbers[0] == numbers[-1]:  # rows come in order
        yield int(numbers[0]), addresses & _OFFSET, goes
        return
    bounds = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
    for start, end in pairwise(bounds):
        yield int(numbers[start]), addresses[start:end] & _OFFSET, goes[start:end]
