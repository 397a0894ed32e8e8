"""One query's view of a full-text index: fixed segments, one watermark, one set of live rows.

Owns the lookup and scoring of single matches and phrases. Invariants:

1. A view never changes: rows that come in later, merges and other readers do not touch it.
2. A row above the watermark neither matches nor counts; a row that is not live does not count (whether it may be
   returned is the search's mask).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

import numpy as np
import numpy.typing as npt

from lance_memwal.memtable.index.analyzer import Analyzer
from lance_memwal.memtable.index.bm25 import BoundLeaf, CorpusStats, Hits
from lance_memwal.memtable.index.fuzzy import within_distance
from lance_memwal.memtable.index.postings import Occurrences, Segment

Mask = npt.NDArray[np.bool_]


class FtsView:
    """The rows of one index below `n`; `live` (indexed by position) says which of them count in statistics."""

    def __init__(
        self,
        analyzer: Analyzer,
        segments: tuple[Segment, ...],
        term_ids: Mapping[str, int],
        vocabulary: Callable[[], list[str]],
        n: int,
        live: Mask | None,
    ) -> None:
        self.analyzer = analyzer
        self._segments = segments
        self._term_ids = term_ids
        self._vocabulary = vocabulary
        self._n = n
        self._live = live

    def candidates(self, term: str, distance: int, prefix_length: int, limit: int) -> list[str]:
        """Return the first `limit` terms within `distance` of `term` that a live row has, in alphabetic order."""
        near = within_distance(self._vocabulary(), term, distance, prefix_length)
        return list(islice((other for other in near if self.frequency(other) > 0), limit))

    def stats(self, terms: Iterable[str]) -> CorpusStats:
        """Return the statistics of the live documents."""
        doc_count = total_tokens = 0
        for segment in self._segments:
            documents, tokens = segment.corpus(self._n, self._live)
            doc_count, total_tokens = doc_count + documents, total_tokens + tokens
        return CorpusStats(doc_count, total_tokens, {term: self.frequency(term) for term in terms})

    def occurrences(self, term: str) -> Occurrences | None:
        """Return where a term occurs, over all segments, or None."""
        number = self._term_ids.get(term)
        if number is None:
            return None
        found = [o for segment in self._segments if (o := segment.occurrences(number, self._n)) is not None]
        if len(found) < 2:
            return found[0] if found else None
        return Occurrences(
            np.concatenate([o.documents for o in found]),
            np.concatenate([o.positions for o in found]),
            np.concatenate([o.lengths for o in found]),
        )

    def frequency(self, term: str) -> int:
        """Return in how many live documents a term occurs."""
        found = self.occurrences(term)
        if found is None or len(found.documents) == 0:
            return 0
        documents = found.documents[_firsts(found.documents)]
        return int(np.count_nonzero(self._live[documents])) if self._live is not None else len(documents)

    def hits(self, leaf: BoundLeaf, stats: CorpusStats) -> Hits:
        """Return every row that satisfies a bound leaf, with its score by `stats`."""
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
