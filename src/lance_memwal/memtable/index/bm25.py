"""BM25 as Lance computes it, over any set of documents.

Owns the corpus statistics, the binding of queries to terms and the combination of scores. Invariants:

1. weight(term, document) = idf * (k1 + 1) * f / (f + k1 * (1 - b + b * length / average length)), with k1 = 1.2,
   b = 0.75, idf = ln(1 + (N - df + 0.5) / (df + 0.5)). N counts documents that have a token; a length is the exact
   number of tokens that the analyzer kept. A term that a query repeats counts as often as it is repeated.
2. Statistics are values that add up. Sources are scored together by binding over all vocabularies and by searching
   each source with the same statistics.
3. Hits are sorted by row position; a row that does not satisfy the query is in no hits, whatever its score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index.fuzzy import auto_fuzziness
from lance_memwal.memtable.index.query import Boolean, Boost, Match, MultiMatch, Phrase, TextQuery

K1, B = 1.2, 0.75
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Pairs = list[tuple[tuple[str, ...], int]]


@dataclass(frozen=True, slots=True)
class CorpusStats:
    """What BM25 needs to know of a set of documents, for one column."""

    doc_count: int = 0
    total_tokens: int = 0
    doc_freq: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: CorpusStats) -> CorpusStats:
        terms = {**self.doc_freq, **other.doc_freq}
        summed = {term: self.doc_freq.get(term, 0) + other.doc_freq.get(term, 0) for term in terms}
        return CorpusStats(self.doc_count + other.doc_count, self.total_tokens + other.total_tokens, summed)

    def idf(self, term: str) -> float:
        """Return the weight of a term by its rarity; 0 for a term that no document has."""
        frequency = self.doc_freq.get(term, 0)
        if frequency == 0:
            return 0.0
        return math.log((self.doc_count - frequency + 0.5) / (frequency + 0.5) + 1.0)

    def weights(self, frequencies: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]) -> Floats:
        """Return the weight of a term in documents by its frequency there and their lengths."""
        average = self.total_tokens / self.doc_count if self.doc_count else 1.0
        norms = K1 * (1.0 - B + B * lengths / average)
        return (K1 + 1.0) * frequencies / (frequencies + norms)


@dataclass(frozen=True, slots=True)
class BoundLeaf:
    """A match or phrase whose terms are decided: one group of alternatives per query position.

    `slop` is None for a match. `offsets` are the query positions, `required` asks for every group.
    """

    column: str
    groups: tuple[tuple[str, ...], ...]
    offsets: tuple[int, ...]
    required: bool
    boost: float = 1.0
    slop: int | None = None


@dataclass(frozen=True, slots=True)
class BoundNode:
    """A compound query over bound parts; `weight` scales the scores of `minus`."""

    must: tuple[BoundQuery, ...] = ()
    should: tuple[BoundQuery, ...] = ()
    must_not: tuple[BoundQuery, ...] = ()
    best: tuple[BoundQuery, ...] = ()
    minus: tuple[BoundQuery, ...] = ()
    weight: float = 0.0


BoundQuery = BoundLeaf | BoundNode


@dataclass(frozen=True, slots=True)
class Hits:
    """Rows that satisfy a query, by ascending position, and their scores."""

    positions: Int64s
    scores: Floats


class Terms(Protocol):
    """How `bind` reaches analyzers and vocabularies."""

    def query_terms(self, column: str, text: str, *, fuzzy: bool) -> list[tuple[str, int]]:
        """Return the terms and positions of a query text, unfiltered words for a fuzzy one."""
        ...

    def candidates(self, column: str, term: str, distance: int, prefix_length: int, limit: int) -> list[str]:
        """Return the first `limit` terms of the vocabulary within `distance` of `term`, in order."""
        ...


def bind(query: TextQuery, terms: Terms) -> BoundQuery:
    """Return `query` with its texts analysed and its fuzzy terms expanded."""
    match query:
        case Match():
            return _bind_match(query, terms)
        case Phrase():
            words = terms.query_terms(_column(query), query.text, fuzzy=False)
            groups, offsets = _group([((term,), position) for term, position in words])
            return BoundLeaf(_column(query), groups, offsets, required=True, slop=query.slop)
        case MultiMatch():
            return BoundNode(best=tuple(_bind_match(match, terms) for match in query.matches()))
        case Boost():
            positive, negative = bind(query.positive, terms), bind(query.negative, terms)
            return BoundNode(must=(positive,), minus=(negative,), weight=query.negative_boost)
        case Boolean():
            return BoundNode(
                must=tuple(bind(part, terms) for part in query.must),
                should=tuple(bind(part, terms) for part in query.should),
                must_not=tuple(bind(part, terms) for part in query.must_not),
            )


def _bind_match(query: Match, terms: Terms) -> BoundLeaf:
    column = _column(query)
    fuzzy = query.fuzziness is not None and query.fuzziness > 0  # not where the term's length decides, as in Lance
    pairs: Pairs = [((term,), position) for term, position in terms.query_terms(column, query.text, fuzzy=fuzzy)]
    if query.fuzziness != 0:
        pairs = _expand(query, column, pairs, terms)
    groups, offsets = _group(pairs)
    return BoundLeaf(column, groups, offsets, query.operator == "and", query.boost)


def _expand(query: Match, column: str, pairs: Pairs, terms: Terms) -> Pairs:
    """Replace every term by its expansions, first come first served; a term without any stays, unmatched."""
    expanded: Pairs = []
    taken: set[tuple[str, int]] = set()
    for (term,), position in pairs:
        distance = auto_fuzziness(term) if query.fuzziness is None else query.fuzziness
        limit = query.max_expansions - len(taken)
        found = terms.candidates(column, term, distance, query.prefix_length, limit) if limit > 0 else []
        new = tuple(candidate for candidate in found if (candidate, position) not in taken)
        taken.update((candidate, position) for candidate in new)
        expanded.append((new, position))
    return expanded


def _group(pairs: Sequence[tuple[tuple[str, ...], int]]) -> tuple[tuple[tuple[str, ...], ...], tuple[int, ...]]:
    """Terms of one position are alternatives of one group, each once (n-grams all share position 0)."""
    groups: dict[int, dict[str, None]] = {}
    for alternatives, position in pairs:
        groups.setdefault(position, {}).update(dict.fromkeys(alternatives))
    return tuple(tuple(group) for group in groups.values()), tuple(groups)


def _column(query: Match | Phrase) -> str:
    if query.column is None:
        raise InvalidInputError("the text query names no column")
    return query.column


def terms_of(query: BoundQuery) -> dict[str, set[str]]:
    """Return the terms of a bound query per column: what statistics are needed for."""
    found: dict[str, set[str]] = {}
    if isinstance(query, BoundLeaf):
        return {query.column: {term for group in query.groups for term in group}}
    for part in (*query.must, *query.should, *query.must_not, *query.best, *query.minus):
        for column, terms in terms_of(part).items():
            found.setdefault(column, set()).update(terms)
    return found


def combine(query: BoundQuery, leaf: Callable[[BoundLeaf], Hits]) -> Hits:
    """Return the hits of a bound query from the hits of its leaves."""
    if isinstance(query, BoundLeaf):
        return leaf(query)
    if query.best:
        return _merge([combine(part, leaf) for part in query.best], np.maximum)
    if query.must:
        hits = _require([combine(part, leaf) for part in query.must])
        for part in query.should:
            hits = _add(hits, combine(part, leaf), 1.0)
    else:
        hits = _merge([combine(part, leaf) for part in query.should], np.add)
    for part in query.must_not:
        banned = np.isin(hits.positions, combine(part, leaf).positions, assume_unique=True)
        hits = Hits(hits.positions[~banned], hits.scores[~banned])
    for part in query.minus:
        hits = _add(hits, combine(part, leaf), -query.weight)
    return hits


def _merge(parts: list[Hits], accumulate: np.ufunc) -> Hits:
    """Rows of any part; scores of a row in several are accumulated."""
    positions = np.unique(np.concatenate([part.positions for part in parts]))
    scores = np.zeros(len(positions))
    seen = np.zeros(len(positions), bool)
    for part in parts:
        where = np.searchsorted(positions, part.positions)
        scores[where] = np.where(seen[where], accumulate(scores[where], part.scores), part.scores)
        seen[where] = True
    return Hits(positions, scores)


def _require(parts: list[Hits]) -> Hits:
    """Rows of every part, scores summed."""
    hits = parts[0]
    for part in parts[1:]:
        positions, ours, theirs = np.intersect1d(
            hits.positions, part.positions, assume_unique=True, return_indices=True
        )
        hits = Hits(positions, hits.scores[ours] + part.scores[theirs])
    return hits


def _add(hits: Hits, extra: Hits, factor: float) -> Hits:
    """The rows of `hits`, with the scores of `extra` added where it has the row."""
    _, ours, theirs = np.intersect1d(hits.positions, extra.positions, assume_unique=True, return_indices=True)
    scores = hits.scores.copy()
    scores[ours] += factor * extra.scores[theirs]
    return Hits(hits.positions, scores)


def top_k(hits: Hits, k: int | None) -> tuple[Int64s, npt.NDArray[np.float32]]:
    """Return positions and scores of the best `k` hits (None: all), best first, ties by position."""
    positions, scores = hits.positions, hits.scores.astype(np.float32)
    if k is not None and 0 < k < len(scores):
        threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
        kept = scores >= threshold
        positions, scores = positions[kept], scores[kept]
    order = np.lexsort((positions, -scores))[:k]
    return positions[order], scores[order]
