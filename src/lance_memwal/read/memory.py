"""Rows in memory as reads see them: which are the newest of their key, and for which a filter is true.

Owns `winners` and `matching_rows`, and the use of BTree indexes by filters. Invariants:

1. Recency is decided before the filter: a newer row that does not match still hides the older one that does.
2. A BTree index only narrows the rows down; the filter itself is evaluated on what is left.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index import BTreeMemIndex, Predicate, Range
from lance_memwal.memtable.key_index import key_values
from lance_memwal.memtable.memtable import InMemoryMemTableRef
from lance_memwal.rows.filter import RowFilter
from lance_memwal.rows.keys import one_array
from lance_memwal.types import TOMBSTONE

Mask = npt.NDArray[np.bool_]


def winners(memtables: Sequence[InMemoryMemTableRef]) -> list[tuple[InMemoryMemTableRef, np.ndarray]]:
    """Per memtable (ascending by generation) the mask of rows that no newer row of the same key hides, tombstones included."""
    masks: list[tuple[InMemoryMemTableRef, np.ndarray]] = []
    for i, ref in enumerate(memtables):
        mask = ref.newest_mask().copy()
        keys = ref.memtable.schema.primary_key
        newer = [other for other in memtables[i + 1 :] if other.num_rows]
        if keys and newer and mask.any():
            rows = np.flatnonzero(mask)
            table = ref.table().select(list(keys)).take(pa.array(rows))
            values = key_values([one_array(column) for column in table.columns])
            for other in newer:
                mask[rows[other.find(values) >= 0]] = False
        masks.append((ref, mask))
    return masks


def _usable(ref: InMemoryMemTableRef, row_filter: RowFilter | None) -> list[tuple[BTreeMemIndex, Predicate]]:
    """The BTree indexes that say something about a filter, with what it asks of their columns."""
    if row_filter is None or not ref.memtable.indexes:
        return []
    trees = {index.column: index for index in ref.indexes if isinstance(index, BTreeMemIndex)}
    return [(trees[column], predicate) for column, predicate in row_filter.predicates() if column in trees]


def _positions(ref: InMemoryMemTableRef, index: BTreeMemIndex, predicate: Predicate) -> npt.NDArray[np.int64] | None:
    """Positions of all rows that satisfy `predicate`, perhaps of a few more; None if the index cannot tell."""
    kind = ref.memtable.schema.columns.field(index.column).type
    if isinstance(predicate, Range) and pa.types.is_floating(kind):
        # filters tell -0.0 from 0.0 and may compare in double precision: the bound itself is left to them
        predicate = Range(predicate.lower, predicate.upper)
    try:
        return index.positions(predicate, ref.num_rows)
    except InvalidInputError:
        return None


def narrowed(ref: InMemoryMemTableRef, row_filter: RowFilter | None, alive: Mask) -> Mask:
    """`alive` without rows of which the memtable's BTree indexes say that the filter is not true."""
    for index, predicate in _usable(ref, row_filter):
        found = _positions(ref, index, predicate)
        if found is not None:
            kept = np.zeros(len(alive), dtype=bool)
            kept[found] = True
            alive = alive & kept
            ref.memtable.searched()
    return alive


def indexes_used(ref: InMemoryMemTableRef, row_filter: RowFilter | None) -> list[str]:
    """The BTree indexes that narrow a filter down, for people."""
    used = [
        f"{index.name} on {index.column}"
        for index, predicate in _usable(ref, row_filter)
        if _positions(ref, index, predicate) is not None
    ]
    return list(dict.fromkeys(used))


def matching_rows(parts: Sequence[tuple[pa.Table, Mask]], row_filter: RowFilter | None) -> list[Mask]:
    """Per table the rows that live (by its mask) and for which the filter is true; it is evaluated once for all."""
    if row_filter is None or not any(alive.any() for _, alive in parts):
        return [alive for _, alive in parts]
    columns = row_filter.columns or [TOMBSTONE]  # tables without columns lose their rows when they are joined
    living = [table.select(columns).filter(pa.array(alive)) for table, alive in parts]
    found = np.split(row_filter.mask(pa.concat_tables(living)), np.cumsum([table.num_rows for table in living])[:-1])
    masks = [alive.copy() for _, alive in parts]
    for mask, (_, alive), matching in zip(masks, parts, found, strict=True):
        mask[alive] = matching
    return masks
