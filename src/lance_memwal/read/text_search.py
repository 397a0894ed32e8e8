"""The best live rows for a text over all tiers; Lance searches the base table.

Entry points: `best_texts`, and `best_in_base_alone` for an analyzer that this package does not have.
Invariants:

1. Lance ranks the rows of the base table that its text index covers, live rows only: superseded rows are excluded before it
   ranks. Rows that were superseded since the list for Lance was made are left out afterwards. If too few rows are left, more are
   requested.
2. A row counts once, and only if its text matches. On tables with stable row ids, Lance (14.0.2) can also return a row for the
   text that it had before, and the same row twice.
3. A phrase is found without positions in the index: Lance finds the rows with all its words, and their texts are checked.
4. All other rows are ranked here, by the text index of their source: memtables, SSTables, and fragments that the index does not
   cover.
5. All rows are scored with the statistics of the base table's index, so scores of all tiers compare. A term that the index does
   not have counts as often as it does in the other sources. Without an index, the statistics are those of all sources.
6. A filter restricts the rows that are returned, never the statistics.
7. Of several columns the best one counts: a row's score is its greatest over the columns (as in a multi-match of Lance).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.errors import SearchIncompleteWarning
from lance_memwal.memtable.index import (
    Analyzer,
    CorpusStats,
    FtsMemIndex,
    FtsView,
    Match,
    Phrase,
    TextQuery,
    bind_over,
    search_texts,
    terms_of,
    to_lance,
)
from lance_memwal.memtable.index.query import MultiMatch, columns_of, on_column
from lance_memwal.read.base_rows import BaseRows, row_ids_of, shown_rows
from lance_memwal.read.merge import Merge
from lance_memwal.read.ranked import Ranked
from lance_memwal.read.row_source import FragmentSource, FreshSource, LargeSsTableSource, MemorySource, fresh_sources
from lance_memwal.read.superseded_rows import RowIds, SupersededRows, blocklist, superseded_rows
from lance_memwal.read.text_index import SCORE, TextIndex
from lance_memwal.rows.filter import pushdown
from lance_memwal.rows.keys import one_array
from lance_memwal.types import ROW_ID

_PHRASES_AT_ONCE = 64


class BaseTexts:
    """Some text columns of the base table, in one snapshot."""

    def __init__(self, merge: Merge, hidden: SupersededRows, analyzers: Mapping[str, Analyzer]) -> None:
        """Without `analyzers`, Lance searches all rows, and their texts are not checked."""
        self._merge = merge
        self._base = merge.snapshot.base
        self._hidden = hidden
        self._analyzers = analyzers
        self._indexes = {name: TextIndex.find(self._base, name, how) for name, how in analyzers.items()}
        indexed = [frozenset() if index is None else index.fragments for index in self._indexes.values()]
        self.covered = frozenset.intersection(*indexed) if indexed else frozenset(self._base.fragment_messages)

    @cached_property
    def other_fragments(self) -> list[FragmentSource]:
        """The fragments that `best` does not search."""
        numbers = [number for number in self._base.fragment_messages if number not in self.covered]
        return [FragmentSource(self._base.dataset.get_fragment(n), self._merge, self._hidden) for n in numbers]

    def best(self, query: TextQuery, k: int) -> pa.Table:
        """The rows of covered fragments with `_rowid` and `_score`, each once: at least the `k` best that match, or all."""
        shared = pushdown(self._merge.row_filter)
        blocked, unblocked = blocklist(self._base, self._hidden)
        asked, fetch, checked = query, k, self._base.has_stable_row_ids
        if isinstance(query, Phrase) and not all(index and index.has_positions for index in self._indexes.values()):
            asked, fetch, checked = Match(query.text, query.column, operator="and"), max(k, _PHRASES_AT_ONCE), True
        texts = self._analyzers if checked else {}
        columns = [*self._merge.projection.columns, *texts, *shared.columns, SCORE]
        while True:
            with self._base.reading("searching the base table", given=True):
                scanner = self._base.dataset.scanner(
                    columns=list(dict.fromkeys(columns)),
                    full_text_query=to_lance(asked),
                    filter=shared.told,
                    prefilter=True,
                    with_row_id=True,
                    limit=fetch,
                    fast_search=bool(self._analyzers),
                    row_addr_blocklist=blocked,
                )
                rows = scanner.to_table()
            found = shared.finish(shown_rows(self._base, rows))
            found = found.take(pa.array(self._chosen(found, query, texts, unblocked)))
            if found.num_rows >= k or rows.num_rows < fetch:
                return found
            fetch *= 4

    def _chosen(
        self, rows: pa.Table, query: TextQuery, texts: Mapping[str, Analyzer], unblocked: RowIds
    ) -> npt.NDArray[np.intp]:
        """The positions of the rows that count, each row once, the best first. `texts` are the columns to check."""
        row_ids = row_ids_of(rows)
        order = np.lexsort((row_ids, -one_array(rows.column(SCORE)).to_numpy()))
        if texts:
            indexes = {
                name: FtsMemIndex.of_texts(name, one_array(rows.column(name)), how) for name, how in texts.items()
            }
            order = order[np.isin(order, search_texts(indexes, query, rows.num_rows, None)[0])]
        if len(self._analyzers) > 1:  # each index may cover other fragments
            unblocked = np.concatenate([unblocked, *(source.row_ids for source in self.other_fragments)])
        if len(unblocked):
            order = order[~np.isin(row_ids[order], unblocked)]
        _, first = np.unique(row_ids[order], return_index=True)
        return order[np.sort(first)]

    def stats(self, column: str, terms: Iterable[str]) -> CorpusStats | None:
        """The statistics of the index on a column for some terms; None if there are none."""
        index = self._indexes[column]
        return None if index is None or not self.covered else index.stats(terms)


# -------------------------------------------------------------------------------------------------------- text search


_Found: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
"""Positions in a source (for the base table, row ids), and scores."""


@dataclass(frozen=True, slots=True)
class TextSearch:
    """The `k` best rows for `query` are wanted; it is over `columns` (each, where it names none), with their analyzers."""

    query: TextQuery
    columns: Mapping[str, Analyzer]
    k: int

    def by_column(self) -> Iterator[TextSearch]:
        """Searches whose queries name their columns; a row's score is its best score in one of them."""
        queries: Sequence[TextQuery] = [self.query]
        if None in columns_of(self.query):
            queries = [on_column(self.query, column) for column in self.columns]
        elif isinstance(self.query, MultiMatch):
            queries = self.query.matches()
        for query in queries:
            named = columns_of(query)
            yield TextSearch(query, {name: how for name, how in self.columns.items() if name in named}, self.k)


def best_texts(merge: Merge, asked: TextSearch) -> tuple[Ranked, list[Any]]:
    """The best rows, and the sources that they are in."""
    fresh = fresh_sources(merge)
    has_base = merge.snapshot.base_table is not None
    hidden = superseded_rows(merge.snapshot, merge.shards) if has_base else None
    parts: list[tuple[int, *_Found]] = []
    tables: list[pa.Table] = []
    for one in asked.by_column():
        base = None if hidden is None else BaseTexts(merge, hidden, one.columns)
        if base is not None and base.covered:
            tables.append(base.best(one.query, one.k))
            parts.append((len(fresh), row_ids_of(tables[-1]), _scores(tables[-1])))
        sources: list[FreshSource | FragmentSource] = [*fresh, *(base.other_fragments if base is not None else ())]
        found = _search(merge, one, sources, base)
        parts += ((min(number, len(fresh)), *rows) for number, rows in enumerate(found))
    ranked = Ranked.merge(parts, asked.k * len(asked.columns), ascending=False)
    ranked = ranked if len(asked.columns) == 1 else ranked.distinct(asked.k)
    return ranked, [*fresh, *_base_rows(merge, tables)]


def best_in_base_alone(merge: Merge, query: TextQuery, column: str, k: int, why: str) -> tuple[Ranked, list[Any]]:
    """The best live rows of the base table, by Lance alone. Warns about fresh rows, which are not searched, and `why`."""
    fresh = fresh_sources(merge)
    left_out = sum(int(np.count_nonzero(source.live)) for source in fresh)
    if left_out:
        text = f"{left_out} fresh rows were not searched ({why}); compact the table to have them searched"
        warnings.warn(SearchIncompleteWarning(text, left_out), stacklevel=2)
    base = BaseTexts(merge, superseded_rows(merge.snapshot, merge.shards), {})
    rows = base.best(on_column(query, column), k)
    part = (len(fresh), row_ids_of(rows), _scores(rows))
    return Ranked.merge([part], k, ascending=False), [*fresh, *_base_rows(merge, [rows])]


def _base_rows(merge: Merge, found: Sequence[pa.Table]) -> list[BaseRows]:
    """The base table as a source, which remembers the rows that were found; nothing without a base table."""
    if merge.snapshot.base_table is None:
        return []
    base = BaseRows(merge.snapshot.base)
    if found:
        base.remember(pa.concat_tables([rows.select([*merge.projection.columns, ROW_ID]) for rows in found]))
    return [base]


def _scores(rows: pa.Table) -> npt.NDArray[np.float32]:
    return np.asarray(one_array(rows.column(SCORE)).to_numpy())


# ---------------------------------------------------------------------------------------------------- the other sources


def _search(
    merge: Merge, asked: TextSearch, sources: Sequence[FreshSource | FragmentSource], base: BaseTexts | None
) -> Iterator[_Found]:
    """The best rows of each source."""
    if not sources:
        return
    indexes = [{name: source.text_index(name, how) for name, how in asked.columns.items()} for source in sources]
    pairs = list(zip(sources, indexes, strict=True))
    views = {
        name: [index[name].view(source.num_rows, source.live) for source, index in pairs] for name in asked.columns
    }
    bound = bind_over(asked.query, views)
    stats = {name: _statistics(base, name, views[name], terms) for name, terms in terms_of(bound).items()}
    for source, index in pairs:
        allowed = source.matching(merge.row_filter)
        found = search_texts(index, bound, source.num_rows, asked.k, stats=stats, allowed=allowed, live=source.live)
        yield _as_places(source, found)


def _statistics(base: BaseTexts | None, column: str, views: Sequence[FtsView], terms: set[str]) -> CorpusStats:
    """The statistics of the base table's index for terms that the sources have; those of the sources without an index."""
    own = sum((view.stats(terms) for view in views), CorpusStats())
    present = [term for term in terms if own.doc_freq[term]]
    known = None if base is None else base.stats(column, present)
    if known is None:
        return own
    frequencies = {term: known.doc_freq.get(term) or own.doc_freq[term] for term in present}
    for term in present:
        if term not in known.doc_freq:
            frequencies[term] = -(-own.doc_freq[term] * known.doc_count // own.doc_count)
    return CorpusStats(known.doc_count, known.total_tokens, frequencies)


def _as_places(source: FreshSource | FragmentSource, found: _Found) -> _Found:
    """Positions as the source takes them."""
    match source:
        case MemorySource():
            source.ref.memtable.searched()
        case LargeSsTableSource():
            return source.offsets[found[0]], found[1]
        case FragmentSource():
            return source.row_ids[found[0]], found[1]
    return found
