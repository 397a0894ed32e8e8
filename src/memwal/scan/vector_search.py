"""The nearest live rows over all tiers.

Owns `nearest`. Memtables use their graph where it has the metric, SSTables and memory without one are searched exactly;
the base table is searched by Lance, over indexed and unindexed fragments. Invariants:

1. A replaced or deleted row neither appears nor takes a place: a tier is asked for more until k live rows are found or it
   has no more.
2. Where an index is missing or has another metric the search is exact: slower, never empty.
3. Distances are computed from the vectors themselves, alike in every tier.

Called by: `memwal.scan.search`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.base_table import lance_errors
from memwal.index import HnswMemIndex, Metric, exact_search
from memwal.row_filter import RowFilter
from memwal.scan.keys import key_array, one_array
from memwal.scan.merge import Merge
from memwal.scan.row_source import MemorySource, SsTableSource

__all__ = ["BaseRows", "nearest_in_base", "nearest_in_source"]

_EXTRA = 16
_ROW_ID = "_rowid"


def nearest_in_source(
    source: MemorySource | SsTableSource,
    column: str,
    query: npt.NDArray[np.float64],
    k: int,
    metric: Metric,
    row_filter: RowFilter | None,
    ef: int | None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Positions and distances of the `k` nearest matching rows of one source above the base table."""
    allowed = source.matching(row_filter)
    if not allowed.any():
        return np.empty(0, np.int64), np.empty(0, np.float32)
    if isinstance(source, MemorySource):
        for index in source.ref.indexes:
            if isinstance(index, HnswMemIndex) and index.column == column and index.metric == metric:
                return index.search(query, k, source.num_rows, ef=ef, allowed=allowed)
    return exact_search(source.column(column), query, k, metric, allowed)


class BaseRows:
    """Rows of the base table by row id; what a search brought along is not read again."""

    def __init__(self, dataset: lance.LanceDataset) -> None:
        self._dataset = dataset
        self._known: pa.Table | None = None

    def remember(self, rows: pa.Table) -> None:
        """Keep `rows`, which have `_rowid`, for `take`."""
        self._known = rows

    def take(self, rows: npt.NDArray[np.int64], columns: Sequence[str]) -> pa.Table:
        """`columns` of the rows with these ids, in that order."""
        if self._known is not None and set(columns) <= set(self._known.schema.names):
            known = one_array(self._known.column(_ROW_ID)).to_numpy().astype(np.int64)
            order = np.argsort(known)
            at = np.searchsorted(known, rows, sorter=order)
            at[at == len(known)] = 0
            if len(known) and (known[order[at]] == rows).all():
                return self._known.select(list(columns)).take(pa.array(order[at]))
        with lance_errors("reading the base table"):
            taken = self._dataset._take_rows(rows.tolist(), columns=list(columns))
        return taken if isinstance(taken, pa.Table) else pa.table(taken)


def nearest_in_base(
    merge: Merge,
    column: str,
    query: npt.NDArray[np.float64],
    k: int,
    metric: Metric,
    columns: Sequence[str],
    *,
    nprobes: int,
    refine_factor: int | None,
    use_index: bool,
) -> tuple[pa.Table, npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The `k` nearest live, matching rows of the base table: the rows that were read, and ids and distances in order."""
    schema = merge.snapshot.schema
    keys = list(schema.primary_key) if merge.fresh_keys is not None else []
    wanted = list(dict.fromkeys([*columns, *keys, column]))
    total = merge.snapshot.base.dataset.count_rows()
    fetch = min(total, k + _EXTRA if merge.fresh_keys is not None else k)
    while True:
        rows = _ask_lance(merge, column, query, fetch, metric, wanted, nprobes, refine_factor, use_index)
        live = np.ones(rows.num_rows, dtype=bool)
        if merge.fresh_keys is not None and rows.num_rows:
            live = ~merge.fresh_keys.contains(key_array([rows.column(name) for name in keys]))
        if live.sum() >= min(k, total) or rows.num_rows < fetch or fetch >= total:
            break
        fetch = min(total, fetch * 4)
    if not live.any():
        return rows, np.empty(0, np.int64), np.empty(0, np.float32)
    positions, distances = exact_search(one_array(rows.column(column)), query, k, metric, live)
    row_ids = one_array(rows.column(_ROW_ID)).to_numpy().astype(np.int64)
    return rows, row_ids[positions], distances


def _ask_lance(
    merge: Merge,
    column: str,
    query: npt.NDArray[np.float64],
    fetch: int,
    metric: Metric,
    wanted: list[str],
    nprobes: int,
    refine_factor: int | None,
    use_index: bool,
) -> pa.Table:
    dataset = merge.snapshot.base.dataset
    if fetch == 0:
        fields = [merge.snapshot.schema.columns.field(name) for name in wanted]
        return pa.schema([*fields, pa.field(_ROW_ID, pa.uint64())]).empty_table()
    kind = merge.snapshot.schema.columns.field(column).type.value_type
    nearest: dict[str, Any] = {
        "column": column,
        "q": pa.array(query, type=kind),
        "k": fetch,
        "metric": metric,
        "nprobes": nprobes,
        "use_index": use_index,
    }
    if refine_factor is not None:
        nearest["refine_factor"] = refine_factor
    source = None if merge.row_filter is None else merge.row_filter.source
    with lance_errors("searching the base table"):
        scanner = dataset.scanner(columns=wanted, nearest=nearest, filter=source, prefilter=True, with_row_id=True)
        return scanner.to_table()
