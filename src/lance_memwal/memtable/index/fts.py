"""Full-text index of a memtable: BM25 over the rows below a watermark.

Owns the vocabulary and the segments of one column. Invariants:

1. Segments are immutable and published as one tuple, after the vocabulary that they use has grown.
2. Term numbers are never reused or changed.
3. Positions are always kept, so phrases work whatever the base index stores; nothing falls back to "no result".

To search several sources together: take a `view` of each, `bind_over` all of them, and search each with the same statistics.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index.analyzer import Analyzer
from lance_memwal.memtable.index.bm25 import (
    BoundLeaf,
    BoundNode,
    BoundQuery,
    CorpusStats,
    Hits,
    bind,
    combine,
    terms_of,
    top_k,
)
from lance_memwal.memtable.index.pending import PendingColumn
from lance_memwal.memtable.index.postings import Segment, merge_tail
from lance_memwal.memtable.index.query import TextQuery, on_column, parse
from lance_memwal.memtable.index.text_view import FtsView
from lance_memwal.process.waiting import refuse_on_top

_TERM_BYTES = 200  # a term: its string, its dictionary entry, its list slot
_BUILD_ROWS = 65_536
_BUILD_BYTES = 64 << 20
Mask = npt.NDArray[np.bool_]
Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


class FtsMemIndex(PendingColumn):
    """Finds and scores the rows of one text column."""

    def __init__(self, name: str, column: str, analyzer: Analyzer) -> None:
        super().__init__(name, column)
        self._analyzer = analyzer
        self._segments: tuple[Segment, ...] = ()
        self._term_ids: dict[str, int] = {}
        self._term_chars = 0
        self._build_lock = threading.RLock()

    @classmethod
    def of_texts(cls, column: str, texts: pa.Array, analyzer: Analyzer) -> FtsMemIndex:
        """An index over `texts`, whose positions begin at 0."""
        index = cls("", column, analyzer)
        if len(texts):
            index.insert(pa.record_batch([texts], names=[column]), 0)
        index.catch_up()
        return index

    @property
    def analyzer(self) -> Analyzer:
        """The analyzer of documents and queries."""
        return self._analyzer

    @property
    def size_bytes(self) -> int:
        """Resident bytes of postings, vocabulary and bookkeeping."""
        vocabulary = _TERM_BYTES * len(self._term_ids) + self._term_chars
        postings = sum(segment.size_bytes for segment in self._segments)
        return vocabulary + postings + self._pending_bytes()

    def catch_up(self, max_rows: int | None = None) -> int:
        """Tokenise pending rows (all, or about `max_rows`), and return how many are still pending."""
        refuse_on_top(self._build_lock, "a search")
        with self._build_lock:
            rows = 0
            while self._pending and (max_rows is None or rows < max_rows):
                rows += self._absorb()
            built = self._segments[-1].end if self._segments else 0
        return self._indexed_rows - built

    def _absorb(self) -> int:
        """Build one segment from the oldest pending batches, return its rows."""
        count = rows = size = 0
        for _, array in self._pending:
            if count and (rows + len(array) > _BUILD_ROWS or size + array.nbytes > _BUILD_BYTES):
                break
            count, rows, size = count + 1, rows + len(array), size + array.nbytes
        pending = self._pending[:count]
        tokens = self._analyzer.documents(pa.concat_arrays([array for _, array in pending]))
        ids = self._term_ids
        before = len(ids)
        term_ids = np.fromiter((ids.setdefault(term, len(ids)) for term in tokens.terms), np.int32, len(tokens.terms))
        self._term_chars += sum(len(term) for term in islice(ids, before, None))
        segment = Segment.build(pending[0][0], rows, tokens, term_ids)
        self._segments = merge_tail((*self._segments, segment))
        del self._pending[:count]
        return rows

    def view(self, n: int, live: Mask | None = None) -> FtsView:
        """Return the rows below `n` as they are now and stay, built in."""
        if live is not None and len(live) < n:
            raise InvalidInputError(f"the mask has {len(live)} entries for {n} rows")
        self.catch_up()
        refuse_on_top(self._build_lock, "a search")
        with self._build_lock:
            return FtsView(self._analyzer, self._segments, self._term_ids, self._vocabulary, n, live)

    def _vocabulary(self) -> list[str]:
        refuse_on_top(self._build_lock, "a search")
        with self._build_lock:
            return list(self._term_ids)

    def bind(self, query: str | TextQuery, n: int, *, live: Mask | None = None) -> BoundQuery:
        """Return `query` with its terms decided from this index's own vocabulary below `n`."""
        return bind_over(query, {self._column: [self.view(n, live)]}, column=self._column)

    def stats(self, terms: Iterable[str], n: int, *, live: Mask | None = None) -> CorpusStats:
        """Return the statistics of the documents below `n` (of those, the live ones)."""
        return self.view(n, live).stats(terms)

    def search(
        self,
        query: str | TextQuery | BoundQuery,
        n: int,
        k: int | None,
        *,
        stats: CorpusStats | None = None,
        allowed: Mask | None = None,
        live: Mask | None = None,
    ) -> Found:
        """Return positions and scores of the best `k` rows (None: all) below `n` that `allowed` admits, best first.

        `stats` scores by other statistics than this index's own (which are over the `live` rows). Masks are
        indexed by position.
        """
        all_stats = None if stats is None else {self._column: stats}
        return search_texts({self._column: self}, query, n, k, stats=all_stats, allowed=allowed, live=live)


class _Vocabularies:
    """Analyzers and vocabularies per column, as `bind` wants them."""

    def __init__(self, views: Mapping[str, Sequence[FtsView]]) -> None:
        self._views = views

    def query_terms(self, column: str, text: str, *, fuzzy: bool) -> list[tuple[str, int]]:
        analyzer = self._of(column)[0].analyzer
        return analyzer.fuzzy_terms(text) if fuzzy else analyzer.query_terms(text)

    def candidates(self, column: str, term: str, distance: int, prefix_length: int, limit: int) -> list[str]:
        merged: set[str] = set()
        for view in self._of(column):
            merged.update(view.candidates(term, distance, prefix_length, limit))
        return sorted(merged)[:limit]

    def _of(self, column: str) -> Sequence[FtsView]:
        if column not in self._views:
            raise InvalidInputError(f"text query names column {column!r}, which has no full-text index here")
        return self._views[column]


def bind_over(
    query: str | TextQuery, views: Mapping[str, Sequence[FtsView]], *, column: str | None = None
) -> BoundQuery:
    """Return `query` with its terms decided over several vocabularies per column, as one index of all would.

    `column` is searched where the query names none.
    """
    parsed = parse(query)
    return bind(parsed if column is None else on_column(parsed, column), _Vocabularies(views))


def search_texts(
    indexes: Mapping[str, FtsMemIndex],
    query: str | TextQuery | BoundQuery,
    n: int,
    k: int | None,
    *,
    stats: Mapping[str, CorpusStats] | None = None,
    allowed: Mask | None = None,
    live: Mask | None = None,
) -> Found:
    """Search several columns of one memtable together; otherwise as `FtsMemIndex.search`."""
    if allowed is not None and len(allowed) < n:
        raise InvalidInputError(f"the mask has {len(allowed)} entries for {n} rows")
    views = {column: index.view(n, live) for column, index in indexes.items()}
    if not isinstance(query, BoundLeaf | BoundNode):
        only = next(iter(views)) if len(views) == 1 else None
        query = bind_over(query, {column: [view] for column, view in views.items()}, column=only)
    wanted = terms_of(query)
    for missing in sorted(set(wanted) - set(views)):
        raise InvalidInputError(f"text query names column {missing!r}, which has no full-text index here")
    known = stats if stats is not None else {column: views[column].stats(terms) for column, terms in wanted.items()}
    hits = combine(query, lambda leaf: views[leaf.column].hits(leaf, known[leaf.column]))
    if allowed is not None:
        admitted = allowed[hits.positions]
        hits = Hits(hits.positions[admitted], hits.scores[admitted])
    return top_k(hits, k)
