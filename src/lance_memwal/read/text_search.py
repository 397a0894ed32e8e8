"""The best live rows for a text over all tiers.

Owns the search of one text query. Memtables and SSTables bring an index of their own or get one made; the base table answers
through its inverted index (`base_texts`). Invariants:

1. Terms are decided over the vocabularies of all tiers, statistics are the sum over all tiers: a row scores what it would
   score in one index over the live rows, whichever tier it is in.
2. A filter restricts the rows that are returned, never the statistics.
3. Of several columns the best one counts: a row's score is its greatest over the columns (as in a multi-match of Lance).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lance_memwal.memtable.index import Analyzer, BoundQuery, CorpusStats, TextQuery, bind_over, search_texts, terms_of
from lance_memwal.memtable.index.bm25 import BoundLeaf, BoundNode, Hits, combine, top_k
from lance_memwal.memtable.index.query import columns_of, on_column
from lance_memwal.read.base_rows import BaseRows, row_ids_of, rows_by_id, shown_rows
from lance_memwal.read.base_texts import BaseTexts
from lance_memwal.read.merge import Merge
from lance_memwal.read.ranked import Ranked
from lance_memwal.read.row_source import FreshSource, LargeSsTableSource, MemorySource, fresh_sources
from lance_memwal.read.superseded_rows import superseded_rows
from lance_memwal.rows.filter import RowFilter, pushdown

__all__ = ["TextSearch", "best_texts"]

_TRIED_FIRST = 64  # rows whose filter is looked at one by one, times k at most
_TRIED_AT_MOST = 1024
Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class TextSearch:
    """The `k` best rows for `query` are wanted; it is over `columns` (each, where it names none), with their analyzers."""

    query: TextQuery
    columns: Mapping[str, Analyzer]
    k: int

    def bind(self, views: Mapping[str, Sequence[Any]]) -> BoundQuery:
        """The query with its terms decided over the vocabularies of all tiers."""
        if None not in columns_of(self.query):
            return bind_over(self.query, views)
        bound = tuple(bind_over(on_column(self.query, column), views) for column in self.columns)
        return bound[0] if len(bound) == 1 else BoundNode(best=bound)


def best_texts(merge: Merge, asked: TextSearch) -> tuple[Ranked, list[Any]]:
    """The best rows, and the sources that they are in."""
    fresh = fresh_sources(merge)
    indexes = [{name: source.text_index(name, how) for name, how in asked.columns.items()} for source in fresh]
    views: dict[str, list[Any]] = {name: [] for name in asked.columns}
    for source, mine in zip(fresh, indexes, strict=True):
        for name, index in mine.items():
            views[name].append(index.view(source.num_rows, source.live))
    base, answers = None, list[Any](fresh)
    if merge.snapshot.base_table is not None:
        hidden = superseded_rows(merge.snapshot, merge.shards)
        base = {name: BaseTexts(merge, hidden, name, how) for name, how in asked.columns.items()}
        for name, texts in base.items():
            views[name].append(texts)
        answers.append(BaseRows(merge.snapshot.base))
    if not answers:
        return Ranked.merge([], asked.k, ascending=False), answers
    bound = asked.bind(views)
    stats = {
        name: sum((view.stats(terms) for view in views[name]), CorpusStats()) for name, terms in terms_of(bound).items()
    }
    parts: list[tuple[int, npt.NDArray[np.int64], npt.NDArray[Any]]] = []
    for number, (source, mine) in enumerate(zip(fresh, indexes, strict=True)):
        allowed = source.matching(merge.row_filter)
        if allowed.any():
            found = search_texts(mine, bound, source.num_rows, asked.k, stats=stats, allowed=allowed, live=source.live)
            parts.append((number, *_places(source, found)))
    if base is not None:
        parts.append((len(fresh), *_search_base(merge, base, bound, stats, asked.k)))
    return Ranked.merge(parts, asked.k, ascending=False), answers


def _places(source: FreshSource, found: Found) -> Found:
    """Positions as the source takes them."""
    if isinstance(source, MemorySource):
        source.ref.memtable.searched()
    return (source.offsets[found[0]], found[1]) if isinstance(source, LargeSsTableSource) else found


# --------------------------------------------------------------------------------------------------------- the base


def _search_base(
    merge: Merge, base: Mapping[str, BaseTexts], bound: BoundQuery, stats: Mapping[str, CorpusStats], k: int
) -> Found:
    """Row ids and scores of the best rows of the base table for which the filter is true."""

    def hits(leaf: BoundLeaf, depth: int | None) -> Hits:
        return base[leaf.column].hits(leaf, stats[leaf.column], depth)

    def best(depth: int | None) -> Hits:
        return combine(bound, lambda leaf: hits(leaf, depth if _is_ranked_by_leaves(bound) else None))

    if merge.row_filter is None:
        return top_k(best(k), k)
    return _filtered(merge, merge.row_filter, best, k)


def _is_ranked_by_leaves(bound: BoundQuery) -> bool:
    """Whether the best rows of the query are among the best of its leaves: one leaf, or the best of several."""
    if isinstance(bound, BoundLeaf):
        return True
    return bool(bound.best) and all(isinstance(part, BoundLeaf) for part in bound.best)


def _filtered(merge: Merge, row_filter: RowFilter, best: Callable[[int | None], Hits], k: int) -> Found:
    """The best are looked at first; if too few of them match, the filter is asked for all rows that do."""
    depth = k + _TRIED_FIRST
    while depth <= max(_TRIED_AT_MOST, k + _TRIED_FIRST):
        row_ids, scores = top_k(best(depth), depth)
        kept = _matching(merge, row_filter, row_ids)
        if kept.sum() >= k or len(row_ids) < depth:
            return row_ids[kept][:k], scores[kept][:k]
        depth *= 4
    found = best(None)
    kept = np.isin(found.positions, _all_matching(merge, row_filter))
    return top_k(Hits(found.positions[kept], found.scores[kept]), k)


def _matching(merge: Merge, row_filter: RowFilter, row_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    if not len(row_ids):
        return np.zeros(0, bool)
    columns = row_filter.columns or merge.snapshot.schema.columns.names[:1]
    return np.asarray(row_filter.mask(rows_by_id(merge.snapshot.base, row_ids, columns)))


def _all_matching(merge: Merge, row_filter: RowFilter) -> npt.NDArray[np.int64]:
    shared = pushdown(row_filter)
    base = merge.snapshot.base
    with base.reading("filtering the base table", given=True):
        found = base.dataset.scanner(columns=shared.columns, filter=shared.told, with_row_id=True).to_table()
    return row_ids_of(shared.finish(shown_rows(base, found)))
