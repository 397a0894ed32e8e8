"""The best documents for some terms, without looking at every document that has one of them.

Owns `TermDocuments` and `best_documents`. A posting list is cut into blocks, and for each is known what a document in it can
score at most. Invariants:

1. What is returned holds the `k` best documents that are alive, with their whole scores; it may hold more.
2. A document is left out only if what it has, and all that it could still get, is less than what `k` others have already.
   Bounds are those of the index's own average length; `CorpusStats` of more documents move them by the ratio of the averages at
   most, which is added to every bound.

Example: of "rare common", with the 10 best wanted, all documents with "rare" are scored. If the tenth of them has more than
"common" can give, then of the documents with "common" only those are looked at that also have "rare".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lance_memwal.memtable.index import CorpusStats

__all__ = ["Scored", "TermDocuments", "Wanted", "all_documents", "best_documents", "common_documents"]

_BLOCK = 128
_FIRST_BLOCKS, _MANY_BLOCKS = 16, 512
_FEW_OF = 8
_SLACK = 1.0 - 1e-9  # sums in another order may differ in their last digits
Int32s = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Scored = tuple[Int32s, Floats]
_NONE: Scored = (np.empty(0, np.int32), np.empty(0))


@dataclass(frozen=True, slots=True)
class TermDocuments:
    """The documents that have a term, ascending, at least one.

    `bounds` is the greatest weight in each block, by the `average` length.
    """

    documents: Int32s
    frequencies: npt.NDArray[np.unsignedinteger]
    lengths: Int32s
    bounds: Floats
    average: float

    @classmethod
    def build(
        cls, documents: Int32s, frequencies: npt.NDArray[np.unsignedinteger], lengths: Int32s, own: CorpusStats
    ) -> TermDocuments:
        """`lengths` are of all documents of the index, `own` its statistics."""
        mine = lengths[documents]
        weights = own.weights(frequencies, mine)
        bounds = np.maximum.reduceat(weights, np.arange(0, len(weights), _BLOCK))
        return cls(documents, frequencies, mine, bounds, own.total_tokens / max(own.doc_count, 1))

    @property
    def size_bytes(self) -> int:
        """Resident bytes."""
        return self.documents.nbytes + self.frequencies.nbytes + self.lengths.nbytes + self.bounds.nbytes

    def __len__(self) -> int:
        return len(self.documents)

    def inflation(self, stats: CorpusStats) -> float:
        """How much greater a weight can be by `stats` than by the index's own average."""
        return max(1.0, stats.total_tokens / max(stats.doc_count, 1) / self.average) if self.average else 1.0

    def weights(self, stats: CorpusStats, at: npt.NDArray[np.int64] | slice) -> Floats:
        """The weights of some of the documents."""
        return stats.weights(self.frequencies[at], self.lengths[at])

    def find(self, documents: Int32s) -> tuple[npt.NDArray[np.int64], Mask]:
        """Per document where it is in the list, and whether it is."""
        return _locate(self.documents, documents)

    def blocks(self, chosen: Mask) -> npt.NDArray[np.int64] | slice:
        """The places of the documents of some blocks."""
        if chosen.all():
            return slice(None)
        places = (np.flatnonzero(chosen)[:, None] * _BLOCK + np.arange(_BLOCK)).reshape(-1)
        return places[places < len(self.documents)]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A term and what its weight counts (its rarity, times a boost)."""

    term: TermDocuments
    factor: float

    def most(self, stats: CorpusStats) -> float:
        """What a document can get at most."""
        return float(self.bounds(stats).max(initial=0.0))

    def bounds(self, stats: CorpusStats) -> Floats:
        """What a document can get at most, per block."""
        return self.term.bounds * (self.factor * self.term.inflation(stats))

    def scored(self, stats: CorpusStats, alive: Mask, at: npt.NDArray[np.int64] | slice) -> Scored:
        """The living ones of some documents of the list."""
        documents = self.term.documents[at]
        scores = self.factor * self.term.weights(stats, at)
        living = alive[documents]
        return (documents, scores) if living.all() else (documents[living], scores[living])

    def added(self, stats: CorpusStats, documents: Int32s) -> Floats:
        """What the term adds to these documents."""
        scores = np.zeros(len(documents))
        if len(documents):
            at, there = self.term.find(documents)
            scores[there] = self.factor * self.term.weights(stats, at[there])
        return scores


def best_documents(wanted: Sequence[Wanted], stats: CorpusStats, k: int, alive: Mask) -> Scored:
    """The documents that can be among the `k` best by the sum of their weights, ascending, with their scores."""
    ordered = sorted(wanted, key=lambda one: len(one.term))
    most = [one.most(stats) for one in ordered]
    documents, scores = _NONE
    floor = _first_floor(ordered, stats, k, alive)
    for i, one in enumerate(ordered):
        rest = sum(most[i + 1 :])
        scores = scores + one.added(stats, documents)
        if most[i] + rest >= floor:
            blocks = one.term.blocks(one.bounds(stats) + rest >= floor)
            documents, scores = _joined((documents, scores), one.scored(stats, alive, blocks))
        floor = max(floor, _at_least(scores, k))
        kept = scores + rest >= floor
        documents, scores = documents[kept], scores[kept]
    return documents, scores


def _first_floor(ordered: Sequence[Wanted], stats: CorpusStats, k: int, alive: Mask) -> float:
    """What the k-th best of a few promising documents has; minus infinity where a short list will say it soon."""
    if not ordered or len(ordered[0].term.bounds) <= _MANY_BLOCKS:
        return -np.inf
    some = [one.term.documents[one.term.blocks(_best_blocks(one.bounds(stats)))] for one in ordered]
    documents = np.unique(np.concatenate(some))
    documents = documents[alive[documents]]
    return _at_least(_sums(ordered, stats, documents), k)


def _best_blocks(bounds: Floats) -> Mask:
    best = np.zeros(len(bounds), bool)
    best[np.argpartition(bounds, len(bounds) - _FIRST_BLOCKS)[len(bounds) - _FIRST_BLOCKS :]] = True
    return best


def _joined(known: Scored, found: Scored) -> Scored:
    """`known`, and what of `found` is not in it."""
    if not len(known[0]):
        return found
    new = ~_locate(known[0], found[0])[1]
    documents = np.concatenate((known[0], found[0][new]))
    order = np.argsort(documents, kind="stable")
    return documents[order], np.concatenate((known[1], found[1][new]))[order]


def _locate(known: Int32s, documents: Int32s) -> tuple[npt.NDArray[np.int64], Mask]:
    """Per document where it is among the `known` ones, which ascend and are not none, and whether it is."""
    if len(documents) * _FEW_OF < len(known):
        at = np.searchsorted(known, documents)
        at[at == len(known)] = 0
        return at, np.asarray(known[at] == documents)
    places = np.zeros(
        int(known[-1]) + 2, np.int64
    )  # many: a table of all costs less; the last place is for those above
    places[known] = np.arange(1, len(known) + 1)
    at = places[np.minimum(documents, len(places) - 1)]
    return np.maximum(at - 1, 0), at > 0


def _at_least(scores: Floats, k: int) -> float:
    """What the k-th best has; minus infinity if there are fewer."""
    if len(scores) < k:
        return -np.inf
    return float(np.partition(scores, len(scores) - k)[len(scores) - k]) * _SLACK


def common_documents(groups: Sequence[Sequence[Wanted]], stats: CorpusStats, alive: Mask) -> Scored:
    """The documents that have a term of every group, ascending, with their scores."""
    if not groups or not all(groups):
        return _NONE
    ordered = sorted(groups, key=lambda group: sum(len(one.term) for one in group))
    documents = _union(ordered[0], alive)
    for group in ordered[1:]:
        there = np.zeros(len(documents), bool)
        for one in group:
            there |= one.term.find(documents)[1]
        documents = documents[there]
    return documents, _sums([one for group in groups for one in group], stats, documents)


def all_documents(wanted: Sequence[Wanted], stats: CorpusStats, alive: Mask) -> Scored:
    """The documents that have any of the terms, ascending, with their scores."""
    if not wanted:
        return _NONE
    documents = _union(wanted, alive)
    return documents, _sums(wanted, stats, documents)


def _union(wanted: Sequence[Wanted], alive: Mask) -> Int32s:
    lists = [one.term.documents for one in wanted]
    documents = lists[0] if len(lists) == 1 else np.unique(np.concatenate(lists))
    return np.asarray(documents[alive[documents]])


def _sums(wanted: Sequence[Wanted], stats: CorpusStats, documents: Int32s) -> Floats:
    scores = np.zeros(len(documents))
    for one in wanted:
        scores += one.added(stats, documents)
    return scores
