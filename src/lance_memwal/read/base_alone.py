"""Text search of the base table alone, by Lance: for an index whose analyzer is not to be had here.

Owns `best_in_base_alone`. Invariants:

1. A superseded row neither appears nor takes a place: Lance is asked for more until k live rows are found or it has no more.
2. What is left out is said: fresh rows are not searched, a `SearchIncompleteWarning` counts them. Scores are those of the base
   table's own statistics.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from lance_memwal.errors import SearchIncompleteWarning
from lance_memwal.memtable.index import TextQuery, to_lance
from lance_memwal.memtable.index.query import on_column
from lance_memwal.read.base_rows import BaseRows, row_ids_of, shown_rows
from lance_memwal.read.merge import Merge
from lance_memwal.read.ranked import Ranked
from lance_memwal.read.row_source import fresh_sources
from lance_memwal.read.superseded_rows import superseded_rows
from lance_memwal.rows.filter import pushdown
from lance_memwal.rows.keys import one_array

__all__ = ["best_in_base_alone"]

_EXTRA = 32


def best_in_base_alone(merge: Merge, query: TextQuery, column: str, k: int, why: str) -> tuple[Ranked, list[Any]]:
    """The best live rows of the base table; warns of the fresh rows that are not searched, and says `why`."""
    fresh = fresh_sources(merge)
    left_out = sum(int(np.count_nonzero(source.live)) for source in fresh)
    if left_out:
        text = f"{left_out} fresh rows were not searched ({why}); compact the table to have them searched"
        warnings.warn(SearchIncompleteWarning(text, left_out), stacklevel=2)
    base, hidden, shared = (
        merge.snapshot.base,
        superseded_rows(merge.snapshot, merge.shards),
        pushdown(merge.row_filter),
    )
    total = base.dataset.count_rows()
    fetch = min(total, k + _EXTRA)
    while fetch:
        with base.reading("searching the base table", given=True):
            rows = base.dataset.scanner(
                columns=[*shared.columns, "_score"],
                full_text_query=to_lance(on_column(query, column)),
                filter=shared.told,
                prefilter=True,
                with_row_id=True,
                limit=fetch,
            ).to_table()
        found = shared.finish(shown_rows(base, rows))
        row_ids = row_ids_of(found)
        alive = ~hidden.hides(row_ids)
        if alive.sum() >= k or rows.num_rows < fetch or fetch == total:
            scores = one_array(found.column("_score")).to_numpy()
            part = (len(fresh), row_ids[alive], scores[alive])
            return Ranked.merge([part], k, ascending=False), [*fresh, BaseRows(base)]
        fetch = min(total, fetch * 4)
    return Ranked.merge([], k, ascending=False), [*fresh, BaseRows(base)]
