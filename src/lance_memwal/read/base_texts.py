"""Texts of the base table: through its inverted index where that has them, through one made here for the other fragments.

Owns `BaseTexts`, one column of the base table in one snapshot: a vocabulary, statistics and hits, as every tier has them. Rows
are known by their row id. Invariants:

1. A row counts, in statistics and answers, if the version has it and no fresh tier hides it: what the index says of rows that
   were deleted, replaced or moved since is taken off again, exactly.
2. A fragment belongs to the index if every segment that names it can be read; to one index here otherwise. None is left out,
   none counts twice.
3. An index whose layout is not known, or that has two texts of one row, is as good as none: slower, the same answer.
4. Phrases are decided by the texts: the index only proposes rows that have all the words.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lance_memwal.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.text_index import TextPart, TextSegment, open_segment
from lance_memwal.memtable.index import Analyzer, CorpusStats, FtsMemIndex
from lance_memwal.memtable.index.bm25 import BoundLeaf, Hits
from lance_memwal.process.cache import CACHE, SMALL_BYTES
from lance_memwal.read.analyzers import is_over_rows
from lance_memwal.read.base_rows import row_ids_of, rows_by_id, version_of
from lance_memwal.read.best_texts import (
    Scored,
    TermDocuments,
    Wanted,
    all_documents,
    best_documents,
    common_documents,
)
from lance_memwal.read.merge import Merge
from lance_memwal.read.row_source import FragmentSource
from lance_memwal.read.superseded_rows import SupersededRows
from lance_memwal.rows.keys import one_array

__all__ = ["BaseTexts"]

_LOG = logging.getLogger(__name__)
_FRAGMENT_BITS = 32
_REUSED = "__lance_frag_reuse"  # row ids in the index are those before files were compacted
_CHECKED_AT_ONCE = 256
_FREQUENCIES = 100_000  # remembered per part
Mask = npt.NDArray[np.bool_]


class BaseTexts:
    """One text column of the base table, as of one snapshot."""

    def __init__(self, merge: Merge, hidden: SupersededRows, column: str, analyzer: Analyzer) -> None:
        self.analyzer = analyzer
        base = merge.snapshot.base
        segments = _segments(base, column)
        covered = frozenset().union(*(segment.fragments for segment in segments))
        self._pieces: list[_IndexedTexts | _FragmentTexts] = [
            _IndexedTexts(part, live, hidden, base, column, analyzer)
            for part, live in _live_parts(base, segments, hidden)
        ]
        for number in base.fragment_messages:
            if number not in covered:
                source = FragmentSource(base.dataset.get_fragment(number), merge, hidden)
                self._pieces.append(_FragmentTexts(source, column, analyzer))

    def candidates(self, term: str, distance: int, prefix_length: int, limit: int) -> list[str]:
        """The first `limit` terms within `distance` of `term` that a live row has, in alphabetic order."""
        found: set[str] = set()
        for piece in self._pieces:
            found.update(piece.candidates(term, distance, prefix_length, limit))
        return sorted(found)[:limit]

    def stats(self, terms: Iterable[str]) -> CorpusStats:
        """The statistics of the live rows."""
        wanted = list(terms)
        return sum((piece.stats(wanted) for piece in self._pieces), CorpusStats())

    def hits(self, leaf: BoundLeaf, stats: CorpusStats, k: int | None) -> Hits:
        """The live rows that satisfy a bound leaf, by row id, with their scores; with `k` at least the best so many."""
        found = [piece.hits(leaf, stats, k) for piece in self._pieces]
        if not found:
            return Hits.none()
        row_ids = np.concatenate([hits.positions for hits in found])
        order = np.argsort(row_ids, kind="stable")
        return Hits(row_ids[order], np.concatenate([hits.scores for hits in found])[order])


# -------------------------------------------------------------------------------------------------- what is in the index


def _segments(base: BaseTable, column: str) -> list[TextSegment]:
    """The segments of the base table's text index on `column` that can be read."""
    number = base.column_ids[column]
    entries = [e for e in base.index_entries if tuple(e.field_ids) == (number,) and is_over_rows(base, e)]
    names = {entry.name for entry in entries}
    if not entries or len(names) > 1 or base.manifest.index(_REUSED) is not None:
        return []
    try:
        with _reading_index(base):
            segments = [open_segment(base, entry) for entry in entries]
    except UnsupportedFormatError as error:
        _LOG.info("the text index on %r is not used: %s", column, error)
        return []
    covered = [number for segment in segments for number in segment.fragments]
    if len(covered) != len(set(covered)):
        return []
    changed = _changed_in_place(base)
    sound = [segment for segment in segments if not segment.has_a_row_twice()]
    return [replace(segment, fragments=segment.fragments - changed) for segment in sound]


@contextmanager
def _reading_index(base: BaseTable) -> Iterator[None]:
    """Files of the index that are missing are damage, or were collected together with the version."""
    with base.reading("reading the text index of the base table"):
        try:
            yield
        except ObjectNotFoundError as error:
            raise CorruptDataError(
                "a file of a text index is not there: make the index anew", path=error.path
            ) from error


def _changed_in_place(base: BaseTable) -> frozenset[int]:
    """The fragments of which some values lie in other files than the rows: an index may not know of them."""

    def look() -> _Fragments:
        with base.reading("reading the fragments of the base table"):
            told = [fragment.metadata.to_json() for fragment in base.dataset.get_fragments()]
        return _Fragments(frozenset(fragment["id"] for fragment in told if fragment.get("overlays")))

    return CACHE.fetch(("overlaid", base.location.key), look, version_of(base)).numbers


@dataclass(frozen=True, slots=True)
class _Fragments:
    numbers: frozenset[int]

    @property
    def size_bytes(self) -> int:
        return SMALL_BYTES + 64 * len(self.numbers)


@dataclass(slots=True)
class _LivePart:
    """Which documents of a part count, SSTables considered; `frequencies` remembers in how many of them terms are."""

    mask: Mask
    doc_count: int
    total_tokens: int
    frequencies: dict[str, int] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Resident bytes, once some terms are remembered."""
        return self.mask.nbytes + 100 * _FREQUENCIES // 10


def _live_parts(
    base: BaseTable, segments: Sequence[TextSegment], hidden: SupersededRows
) -> list[tuple[TextPart, _LivePart]]:
    found = []
    for segment in segments:
        for part in segment.parts:
            slot = ("live texts", *part.identity)
            live = CACHE.fetch(slot, lambda: _live_part(base, segment, part, hidden), hidden.made_of)  # noqa: B023
            found.append((part, live))
    return found


def _live_part(base: BaseTable, segment: TextSegment, part: TextPart, hidden: SupersededRows) -> _LivePart:
    mask = _in_version(base, segment, part)
    mask[part.documents_of(hidden.by_sstables)] = False
    lengths = part.lengths[mask]
    return _LivePart(mask, int(np.count_nonzero(lengths)), int(lengths.sum(dtype=np.int64)))


def _in_version(base: BaseTable, segment: TextSegment, part: TextPart) -> Mask:
    """Per document of the part: whether this version has its row, in a fragment that the segment covers."""
    stable = base.manifest.has_stable_row_ids
    fragments = [f for f in base.dataset.get_fragments() if f.fragment_id in segment.fragments]
    asked: list[Any] = fragments if stable else [f for f in fragments if f.metadata.deletion_file is not None]
    mask = np.zeros(len(part.row_ids), bool)
    if not stable:
        whole = {f.fragment_id for f in fragments} - {f.fragment_id for f in asked}
        mask |= np.isin(part.row_ids >> _FRAGMENT_BITS, np.array(sorted(whole), np.int64))
    if asked:
        with base.reading("reading the rows of the base table"):
            rows = base.dataset.scanner(columns=[], with_row_id=True, fragments=asked).to_table()
        mask[part.documents_of(row_ids_of(rows))] = True
    return mask


class _IndexedTexts:
    """The rows of one part of the index."""

    def __init__(
        self,
        part: TextPart,
        live: _LivePart,
        hidden: SupersededRows,
        base: BaseTable,
        column: str,
        analyzer: Analyzer,
    ) -> None:
        self._part = part
        self._live = live
        self._base = base
        self._column = column
        self._analyzer = analyzer
        documents = part.documents_of(hidden.by_memory)
        self._minus = np.sort(documents[live.mask[documents]])

    @cached_property
    def _alive(self) -> Mask:
        if not len(self._minus):
            return self._live.mask
        alive = self._live.mask.copy()
        alive[self._minus] = False
        return alive

    def candidates(self, term: str, distance: int, prefix_length: int, limit: int) -> list[str]:
        """The first `limit` terms within `distance` of `term` that a live row has, in alphabetic order."""
        found: list[str] = []
        for other in self._part.near(term, distance, prefix_length):
            if len(found) == limit:
                break
            if self._frequency(other):
                found.append(other)
        return found

    def stats(self, terms: Iterable[str]) -> CorpusStats:
        """The statistics of the live rows."""
        lengths = self._part.lengths[self._minus]
        return CorpusStats(
            self._live.doc_count - int(np.count_nonzero(lengths)),
            self._live.total_tokens - int(lengths.sum(dtype=np.int64)),
            {term: self._frequency(term) for term in terms},
        )

    def hits(self, leaf: BoundLeaf, stats: CorpusStats, k: int | None) -> Hits:
        """The live rows that satisfy a leaf, with their scores; with `k` at least the best so many. In no order."""
        groups = [self._wanted(group, leaf, stats) for group in leaf.groups]
        flat = [one for group in groups for one in group]
        if leaf.slop is not None and len(groups) > 1:
            found = self._phrases(leaf, common_documents(groups, stats, self._alive), k)
        elif leaf.required:
            found = common_documents(groups, stats, self._alive)
        elif k is None:
            found = all_documents(flat, stats, self._alive)
        else:
            found = best_documents(flat, stats, k, self._alive)
        return Hits(self._part.row_ids[found[0]], found[1])

    def _wanted(self, terms: Iterable[str], leaf: BoundLeaf, stats: CorpusStats) -> list[Wanted]:
        known = [(self._term(term), leaf.boost * stats.idf(term)) for term in terms]
        return [Wanted(found, factor) for found, factor in known if found is not None]

    def _term(self, term: str) -> TermDocuments | None:
        """Where a term is, kept: the index never changes."""
        slot = ("term", *self._part.identity, term)
        found: TermDocuments | None = CACHE.find(slot)
        if found is None:
            with _reading_index(self._base):
                postings = self._part.postings(term)
            if postings is None or not len(postings):
                return None
            lengths = self._part.lengths
            own = CorpusStats(len(lengths), int(lengths.sum(dtype=np.int64)))
            found = TermDocuments.build(postings.documents, postings.frequencies, lengths, own)
            CACHE.keep(slot, found, found.size_bytes)
        return found

    def _frequency(self, term: str) -> int:
        """In how many live rows a term is."""
        found = self._term(term)
        if found is None:
            return 0
        known = self._live.frequencies  # shared with other threads, which may empty it
        frequency = known.get(term)
        if frequency is None:
            if len(known) >= _FREQUENCIES:
                known.clear()
            frequency = known[term] = int(np.count_nonzero(self._live.mask[found.documents]))
        return frequency - (int(np.count_nonzero(found.find(self._minus)[1])) if len(self._minus) else 0)

    def _phrases(self, leaf: BoundLeaf, proposed: Scored, k: int | None) -> Scored:
        """Of the proposed documents those that have the words in order, the best first, until there are `k`."""
        documents, scores = proposed
        order = np.lexsort((documents, -scores))
        kept: list[npt.NDArray[np.int64]] = []
        start, step = 0, _CHECKED_AT_ONCE
        while start < len(order) and (k is None or sum(map(len, kept)) < k):
            some = order[start : start + step]
            kept.append(some[self._in_order(leaf, self._part.row_ids[documents[some]])])
            start, step = start + step, step * 4
        chosen = np.concatenate(kept) if kept else order[:0]
        return documents[chosen], scores[chosen]

    def _in_order(self, leaf: BoundLeaf, row_ids: npt.NDArray[np.int64]) -> Mask:
        texts = one_array(rows_by_id(self._base, row_ids, [self._column]).column(0))
        view = FtsMemIndex.of_texts(self._column, texts, self._analyzer).view(len(row_ids))
        mask = np.zeros(len(row_ids), bool)
        mask[view.hits(leaf, CorpusStats()).positions] = True
        return mask


# ------------------------------------------------------------------------------------------------------- what is not


class _FragmentTexts:
    """The rows of one fragment that no index covers."""

    def __init__(self, source: FragmentSource, column: str, analyzer: Analyzer) -> None:
        self._row_ids = source.row_ids.astype(np.int64)
        self._live = source.live
        self._view = source.text_index(column, analyzer).view(source.num_rows, source.live)

    def candidates(self, term: str, distance: int, prefix_length: int, limit: int) -> list[str]:
        """The first `limit` terms within `distance` of `term` that a live row has, in alphabetic order."""
        return self._view.candidates(term, distance, prefix_length, limit)

    def stats(self, terms: Iterable[str]) -> CorpusStats:
        """The statistics of the live rows."""
        return self._view.stats(terms)

    def hits(self, leaf: BoundLeaf, stats: CorpusStats, _: int | None) -> Hits:
        """The live rows that satisfy a leaf, with their scores."""
        found = self._view.hits(leaf, stats)
        living = self._live[found.positions]
        return Hits(self._row_ids[found.positions[living]], found.scores[living])
