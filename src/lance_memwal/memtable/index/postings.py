"""Which documents hold which terms, and where: immutable segments.

Owns the layout: tokens sorted by (term, document, position), with offsets per term. Invariants:

1. A segment covers the rows [start, end) and never changes; merging two neighbours makes a new one.
2. Documents are absolute row positions and ascend within a term, so a watermark is a cut.
3. `lengths` counts the tokens of every document; a document without tokens is no document for BM25.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lance_memwal.memtable.index.analyzer import DocumentTokens

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Occurrences:
    """Every place of one term below a watermark: documents (ascending), positions, document lengths."""

    documents: Int32s
    positions: Int32s
    lengths: Int32s


@dataclass(frozen=True, slots=True)
class Segment:
    """The postings of the rows [start, end)."""

    start: int
    end: int
    lengths: Int32s
    terms: Int32s
    offsets: Int64s
    documents: Int32s
    positions: Int32s
    doc_count: int

    @classmethod
    def build(cls, start: int, rows: int, tokens: DocumentTokens, term_ids: Int32s) -> Segment:
        """Return the segment of documents that begin at row `start`; `term_ids` number `tokens.terms`."""
        by_id = np.argsort(term_ids, kind="stable")
        small = len(term_ids) <= 1 << 16
        rank = np.empty(len(term_ids), dtype=np.uint16 if small else np.int32)  # 16 bits sort by radix
        rank[by_id] = np.arange(len(term_ids))
        ranks = rank[tokens.codes]
        order = np.argsort(ranks, kind="stable")
        counts = np.bincount(ranks, minlength=len(term_ids))
        lengths = np.bincount(tokens.documents, minlength=rows).astype(np.int32)
        return cls(
            start=start,
            end=start + rows,
            lengths=lengths,
            terms=term_ids[by_id],
            offsets=_offsets(counts),
            documents=tokens.documents[order] + np.int32(start),
            positions=tokens.positions[order],
            doc_count=int(np.count_nonzero(lengths)),
        )

    def occurrences(self, term_id: int, n: int) -> Occurrences | None:
        """Return where the term occurs in rows below `n`, or None."""
        slot = int(np.searchsorted(self.terms, np.int32(term_id)))  # a plain int would widen the whole array
        if slot == len(self.terms) or self.terms[slot] != term_id:
            return None
        first, last = int(self.offsets[slot]), int(self.offsets[slot + 1])
        documents = self.documents[first:last]
        if n < self.end:
            documents = documents[: np.searchsorted(documents, np.int32(n))]
        positions = self.positions[first : first + len(documents)]
        return Occurrences(documents, positions, self.lengths[documents - self.start])

    def merge(self, later: Segment) -> Segment:
        """Return this segment and the one that follows it as one, in linear time."""
        terms = np.union1d(self.terms, later.terms).astype(np.int32)
        ours, theirs = np.searchsorted(terms, self.terms), np.searchsorted(terms, later.terms)
        our_counts, their_counts = np.diff(self.offsets), np.diff(later.offsets)
        counts = np.zeros(len(terms), dtype=np.int64)
        counts[ours] += our_counts
        counts[theirs] += their_counts
        offsets = _offsets(counts)
        their_begin = offsets[:-1].copy()
        their_begin[ours] += our_counts
        our_places = _places(offsets[:-1][ours], our_counts)
        their_places = _places(their_begin[theirs], their_counts)
        documents = np.empty(len(self.documents) + len(later.documents), dtype=np.int32)
        positions = np.empty_like(documents)
        documents[our_places], documents[their_places] = self.documents, later.documents
        positions[our_places], positions[their_places] = self.positions, later.positions
        lengths = np.concatenate((self.lengths, later.lengths))
        doc_count = self.doc_count + later.doc_count
        return Segment(self.start, later.end, lengths, terms, offsets, documents, positions, doc_count)

    def corpus(self, n: int, live: npt.NDArray[np.bool_] | None) -> tuple[int, int]:
        """Return how many (live) rows below `n` have tokens, and how many tokens they have."""
        if live is None and n >= self.end:
            return self.doc_count, len(self.documents)
        lengths = self.lengths[: max(n - self.start, 0)]
        if live is not None:
            lengths = lengths[live[self.start : self.start + len(lengths)]]
        return int(np.count_nonzero(lengths)), int(lengths.sum(dtype=np.int64))

    @property
    def size_bytes(self) -> int:
        """Resident bytes."""
        arrays = (self.lengths, self.terms, self.offsets, self.documents, self.positions)
        return sum(array.nbytes for array in arrays)


def merge_tail(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Merge from the newest on until sizes fall by half from segment to segment."""
    kept = list(segments)
    while len(kept) > 1 and 2 * _weight(kept[-1]) > _weight(kept[-2]):
        newest = kept.pop()
        kept[-1] = kept[-1].merge(newest)
    return tuple(kept)


def _weight(segment: Segment) -> int:
    return len(segment.documents) + segment.end - segment.start


def _offsets(counts: npt.NDArray[np.integer]) -> Int64s:
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _places(begins: Int64s, counts: Int64s) -> Int64s:
    """begin, begin + 1, ... for every (begin, count)."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(begins - (ends - counts), counts) + np.arange(total, dtype=np.int64)
