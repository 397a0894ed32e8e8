"""Full-text index of a memtable: BM25 over the rows below a watermark.

Owns the vocabulary and the segments of one column. Invariants:

1. Segments are immutable and published as one tuple, after the vocabulary that they use has grown.
2. Term numbers are never reused or changed.
3. Positions are always kept, so phrases work whatever the base index stores; nothing falls back to "no result".
4. Statistics count exactly the documents below the watermark that the caller calls live.

Called by: memtable (insert), scan (search), `score_texts` by scan for rows that no index covers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.errors import InvalidInputError
from memwal.index.analyzer import Analyzer
from memwal.index.bm25 import BoundLeaf, BoundNode, BoundQuery, CorpusStats, Hits, bind, combine, terms_of, top_k
from memwal.index.fuzzy import within_distance
from memwal.index.pending import PendingColumn
from memwal.index.postings import Occurrences, Segment, merge_tail
from memwal.index.query import TextQuery, on_column, parse

__all__ = ["FtsMemIndex", "score_texts", "search_texts"]

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
        self._build_lock = threading.Lock()

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

    def candidates(
        self, term: str, distance: int, prefix_length: int, limit: int, *, n: int, live: Mask | None = None
    ) -> list[str]:
        """Return the first `limit` terms within `distance` of `term` that a live row below `n` has, sorted."""
        self.catch_up()
        near = within_distance(list(self._term_ids), term, distance, prefix_length)
        present = (other for other in near if self._reader(n, live).frequency(other) > 0)
        return list(islice(present, limit))

    def bind(self, query: str | TextQuery, n: int, *, live: Mask | None = None) -> BoundQuery:
        """Return `query` with its terms decided from this index's own vocabulary below `n`."""
        return bind_over(query, {self._column: [self]}, n, live=live, column=self._column)

    def stats(self, terms: Iterable[str], n: int, *, live: Mask | None = None) -> CorpusStats:
        """Return the statistics of the documents below `n` (of those, the live ones)."""
        self.catch_up()
        reader = self._reader(n, live)
        doc_count = total_tokens = 0
        for segment in reader.segments:
            documents, tokens = segment.corpus(n, live)
            doc_count, total_tokens = doc_count + documents, total_tokens + tokens
        return CorpusStats(doc_count, total_tokens, {term: reader.frequency(term) for term in terms})

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
        """Return positions and scores of the best `k` rows below `n` that `allowed` admits, best first.

        `stats` scores by other statistics than this index's own (which are over the `live` rows). Masks are
        indexed by position.
        """
        all_stats = None if stats is None else {self._column: stats}
        bound = query if isinstance(query, BoundLeaf | BoundNode) else self.bind(query, n, live=live)
        return search_texts({self._column: self}, bound, n, k, stats=all_stats, allowed=allowed, live=live)

    def hits(self, leaf: BoundLeaf, n: int, stats: CorpusStats) -> Hits:
        """Return every row below `n` that satisfies a bound leaf, with its score by `stats`."""
        self._check_column(leaf.column)
        self.catch_up()
        return self._reader(n, None).hits(leaf, stats)

    def _reader(self, n: int, live: Mask | None) -> _Reader:
        with self._build_lock:
            return _Reader(self._segments, self._term_ids.get, n, live)

    def _check_column(self, column: str) -> None:
        if column != self._column:
            raise InvalidInputError(f"text query names column {column!r}, but the index is on {self._column!r}")


class _Reader:
    """One query's view: fixed segments, watermark and live rows."""

    def __init__(
        self, segments: tuple[Segment, ...], term_id: Callable[[str], int | None], n: int, live: Mask | None
    ) -> None:
        self.segments = segments
        self._term_id = term_id
        self._n = n
        self._live = live

    def occurrences(self, term: str) -> Occurrences | None:
        """Where a term occurs, over all segments."""
        number = self._term_id(term)
        if number is None:
            return None
        found = [o for segment in self.segments if (o := segment.occurrences(number, self._n)) is not None]
        if len(found) < 2:
            return found[0] if found else None
        return Occurrences(
            np.concatenate([o.documents for o in found]),
            np.concatenate([o.positions for o in found]),
            np.concatenate([o.lengths for o in found]),
        )

    def frequency(self, term: str) -> int:
        """In how many live documents a term occurs."""
        found = self.occurrences(term)
        if found is None or len(found.documents) == 0:
            return 0
        documents = found.documents[_firsts(found.documents)]
        return int(np.count_nonzero(self._live[documents])) if self._live is not None else len(documents)

    def hits(self, leaf: BoundLeaf, stats: CorpusStats) -> Hits:
        """Rows that satisfy a leaf, scored."""
        groups = [[(term, o) for term in group if (o := self.occurrences(term)) is not None] for group in leaf.groups]
        satisfied = np.zeros(self._n, dtype=np.int32)
        scores = np.zeros(self._n)
        for group in groups:
            in_group = np.zeros(self._n, bool)
            for term, found in group:
                first = np.flatnonzero(_firsts(found.documents))
                documents = found.documents[first]
                frequencies = np.diff(first, append=len(found.documents))
                scores[documents] += leaf.boost * stats.idf(term) * stats.weights(frequencies, found.lengths[first])
                in_group[documents] = True
            satisfied += in_group
        matched = satisfied >= (max(len(groups), 1) if leaf.required else 1)
        if leaf.slop is not None and len(groups) > 1:
            places = [np.concatenate([_places(o, matched) for _, o in group]) for group in groups if group]
            matched = self._in_order(places, leaf) if len(places) == len(groups) else np.zeros_like(matched)
        positions = np.flatnonzero(matched)
        return Hits(positions, scores[positions])

    def _in_order(self, places: list[npt.NDArray[np.int64]], leaf: BoundLeaf) -> Mask:
        """Documents in which every group follows the one before at its distance, up to `slop` later."""
        reached = np.sort(places[0])
        for later, before, offset in zip(places[1:], leaf.offsets, leaf.offsets[1:], strict=False):
            latest = later - (offset - before)
            earliest = np.maximum(latest - (leaf.slop or 0), later >> 32 << 32)
            follows = np.searchsorted(reached, latest, "right") > np.searchsorted(reached, earliest, "left")
            reached = np.sort(later[follows])
        in_order = np.zeros(self._n, bool)
        in_order[reached >> 32] = True
        return in_order


def _places(found: Occurrences, matched: Mask) -> npt.NDArray[np.int64]:
    """The places of a term in matched documents, as document << 32 | position."""
    kept = matched[found.documents]
    return found.documents[kept].astype(np.int64) << 32 | found.positions[kept]


def _firsts(documents: npt.NDArray[np.int32]) -> Mask:
    """Where a new document begins in an ascending array."""
    first = np.ones(len(documents), bool)
    first[1:] = documents[1:] != documents[:-1]
    return first


class _Vocabularies:
    """The vocabularies of several indexes per column, as `bind` wants them."""

    def __init__(self, indexes: Mapping[str, list[FtsMemIndex]], n: int, live: Mask | None) -> None:
        self._indexes = indexes
        self._n = n
        self._live = live

    def query_terms(self, column: str, text: str, *, fuzzy: bool) -> list[tuple[str, int]]:
        analyzer = self._of(column)[0].analyzer
        return analyzer.fuzzy_terms(text) if fuzzy else analyzer.query_terms(text)

    def candidates(self, column: str, term: str, distance: int, prefix_length: int, limit: int) -> list[str]:
        merged: set[str] = set()
        for index in self._of(column):
            merged.update(index.candidates(term, distance, prefix_length, limit, n=self._n, live=self._live))
        return sorted(merged)[:limit]

    def _of(self, column: str) -> list[FtsMemIndex]:
        if column not in self._indexes:
            raise InvalidInputError(f"text query names column {column!r}, which has no full-text index here")
        return self._indexes[column]


def bind_over(
    query: str | TextQuery,
    indexes: Mapping[str, list[FtsMemIndex]],
    n: int,
    *,
    live: Mask | None = None,
    column: str | None = None,
) -> BoundQuery:
    """Return `query` with its terms decided over the vocabularies of `indexes`."""
    parsed = parse(query)
    return bind(parsed if column is None else on_column(parsed, column), _Vocabularies(indexes, n, live))


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
    for mask in (allowed, live):
        if mask is not None and len(mask) < n:
            raise InvalidInputError(f"the mask has {len(mask)} entries for {n} rows")
    if not isinstance(query, BoundLeaf | BoundNode):
        only = next(iter(indexes)) if len(indexes) == 1 else None
        query = bind_over(query, {name: [index] for name, index in indexes.items()}, n, live=live, column=only)
    if stats is None:
        wanted = terms_of(query)
        stats = {column: indexes[column].stats(terms, n, live=live) for column, terms in wanted.items()}
    known = stats
    hits = combine(query, lambda leaf: indexes[leaf.column].hits(leaf, n, known[leaf.column]))
    if allowed is not None:
        admitted = allowed[hits.positions]
        hits = Hits(hits.positions[admitted], hits.scores[admitted])
    return top_k(hits, k)


def score_texts(
    texts: pa.Array, query: str | TextQuery | BoundQuery, analyzer: Analyzer, stats: CorpusStats | None = None
) -> Found:
    """Return the rows of `texts` that satisfy `query` and their scores, best first, without an index at hand."""
    column = "text" if not isinstance(query, BoundLeaf | BoundNode) else next(iter(terms_of(query)))
    index = FtsMemIndex("", column, analyzer)
    index.insert(pa.record_batch([texts], names=[column]), 0)
    return index.search(query, len(texts), None, stats=stats)
