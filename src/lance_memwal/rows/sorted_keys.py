"""Keys in order: sorted runs merged, and keys found in them.

Owns `merge_runs`, `union_of_runs`, `searchable`, `last_at_most`, `find_sorted` and `find_one_sorted`. Keys are as
`lance_memwal.rows.keys.key_array` makes them, without nulls. Invariants:

1. The order is that of numbers, and of bytes. All comparisons are of the keys themselves.
2. Runs that are sorted already are merged, not sorted again, whatever type the keys have.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.rows.key_codes import sort_cells
from lance_memwal.rows.keys import as_numbers, concat_keys, first_of_each

Searchable: TypeAlias = npt.NDArray[np.generic] | pa.Array
"""Keys in the form that can be searched: numbers, or bytes."""


def merge_runs(runs: Sequence[pa.Array]) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Every key of some sorted runs, in which it is once, ascending, and its row, that in the first run that has it.

    Rows count through all runs: of [1, 3] and [1, 2] the keys 1, 2, 3 have the rows 0, 3, 1.
    """
    if _are_same(runs):
        return runs[0], np.arange(len(runs[0]))
    keys = concat_keys(list(runs))
    numbers = as_numbers(keys)
    sortable = sort_cells(keys) if numbers is None else numbers
    if sortable is None:
        first = first_of_each(keys)
        each = keys.take(pa.array(first))
        order = pc.array_sort_indices(searchable(each)).to_numpy().astype(np.int64)
        return each.take(pa.array(order)), first[order]
    order = np.argsort(sortable, kind="stable")  # which is a merge, where there are runs
    if numbers is None:
        ordered = keys.take(pa.array(order))
        repeated = pc.equal(ordered.slice(1), ordered.slice(0, len(order) - 1)).to_numpy(zero_copy_only=False)
    else:
        in_order = numbers[order]
        repeated = in_order[1:] == in_order[:-1]
    first = order[~np.append(False, repeated)] if len(order) else order
    return keys.take(pa.array(first)), first


def union_of_runs(runs: Sequence[pa.Array]) -> pa.Array:
    """Every key of some sorted runs once, ascending."""
    if _are_same(runs):
        return runs[0]
    known = [numbers for run in runs if (numbers := as_numbers(run)) is not None]
    if len(known) < len(runs):
        return merge_runs(runs)[0]
    together = np.concatenate(known)
    together.sort(kind="stable")  # which is a merge, where there are runs
    distinct = together[np.append(together[1:] != together[:-1], True)] if len(together) else together
    return pa.array(distinct).cast(runs[0].type)


def _are_same(runs: Sequence[pa.Array]) -> bool:
    """Whether all runs have the same keys, as those of a table that is written whole again and again have."""
    return all(run.equals(runs[0]) for run in runs[1:])


def searchable(keys: pa.Array) -> Searchable:
    """Keys as they can be searched, and searched for; a null becomes a value that is never asked for alone."""
    if pa.types.is_boolean(keys.type):
        keys = keys.cast(pa.uint8())
    if pa.types.is_integer(keys.type):
        numbers: npt.NDArray[np.generic] = keys.fill_null(0).to_numpy()
        return numbers
    return keys.cast(pa.large_binary()).fill_null(b"")


def last_at_most(ascending: Searchable, wanted: Searchable) -> npt.NDArray[np.int64]:
    """For every wanted key the index of the last one that is not greater, or -1."""
    if isinstance(ascending, np.ndarray):
        return np.searchsorted(ascending, np.asarray(wanted), side="right") - 1
    if not hasattr(pc, "search_sorted"):  # older ones of Arrow have none
        return np.fromiter((_last_at_most(ascending, key.as_py()) for key in wanted), np.int64, len(wanted))
    found = pc.search_sorted(ascending, wanted, side="right")
    return np.asarray(found.to_numpy()).astype(np.int64) - 1


def _last_at_most(ascending: pa.Array, wanted: bytes) -> int:
    return bisect_right(ascending, wanted, key=lambda at: at.as_py()) - 1


def find_one_sorted(ascending: Searchable, wanted: int | bytes) -> int:
    """`find_sorted` for one key, which is as `key_array` has it."""
    if isinstance(wanted, bytes):
        at = _last_at_most(ascending, wanted)
        return at if at >= 0 and ascending[at].as_py() == wanted else -1
    number = np.asarray(ascending).dtype.type(wanted)
    at = int(ascending.searchsorted(number, side="right")) - 1
    return at if at >= 0 and ascending[at] == number else -1


def find_sorted(ascending: Searchable, wanted: Searchable) -> npt.NDArray[np.int64]:
    """For every wanted key the index of the last one that is the same, or -1."""
    at = last_at_most(ascending, wanted)
    if not len(ascending):
        return at
    nearest = pick(ascending, np.maximum(at, 0))
    same = nearest == wanted if isinstance(nearest, np.ndarray) else pc.equal(nearest, wanted).to_numpy(False)
    return np.where(same, at, -1)


def pick(keys: Searchable, rows: npt.NDArray[np.int64]) -> Searchable:
    """Some of them."""
    return keys[rows] if isinstance(keys, np.ndarray) else keys.take(pa.array(rows))
