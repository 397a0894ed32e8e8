"""The text index of the base table on one column: which fragments it covers, and the statistics that Lance scores by.

Entry point: `TextIndex`.

Invariants:

1. Lance has no call for the statistics of a text index. They follow from its scores: BM25 of a row whose text is known has two
   unknowns, the average length and the weight of the term. The average is fitted once per index, over rows of different
   lengths. Then one query per new term gives its frequency.
2. Statistics belong to the segments of the index, which never change. Deletes and other commits do not change them.
3. If the scores do not fit the formula, Lance has changed its scoring, and the index has no statistics.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from lance.dataset import serialize_row_addrs

from lance_memwal.lance.base import BaseTable
from lance_memwal.memtable.index import Analyzer, CorpusStats, Match, to_lance
from lance_memwal.memtable.index.bm25 import K1, B
from lance_memwal.process.cache import CACHE
from lance_memwal.read.analyzers import is_over_rows
from lance_memwal.read.base_rows import row_ids_of
from lance_memwal.rows.keys import one_array
from lance_memwal.rows.sql import IsNotNull, demand_text
from lance_memwal.sstable.mirrors import index_facts

SCORE = "_score"
_LOG = logging.getLogger(__name__)
_SAMPLE = 256
_PER_TERM = 8
_MAX_ERROR = 0.01
_MAX_TERMS = 10_000
_MAX_FUZZY_LENGTH = 64  # Lance refuses words of some hundred characters
_READING = "reading the text index of the base table"
Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class _Learned:
    """The statistics of an index, as far as they were requested. The average is None if the scores do not fit."""

    doc_count: int
    average: float | None
    frequencies: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 100 * _MAX_TERMS


@dataclass(frozen=True, slots=True)
class TextIndex:
    """An index in one version of the base table; `fragments` are those that it covers."""

    base: BaseTable
    column: str
    analyzer: Analyzer
    name: str
    uuids: tuple[str, ...]
    fragments: frozenset[int]
    has_positions: bool

    @classmethod
    def find(cls, base: BaseTable, column: str, analyzer: Analyzer) -> TextIndex | None:
        """The index on `column`. None if there is none, or several: Lance does not report which one it uses."""
        number = base.column_ids[column]
        entries = [e for e in base.index_entries if tuple(e.field_ids) == (number,) and is_over_rows(base, e)]
        if len({entry.name for entry in entries}) != 1:
            return None
        name, params = entries[0].name, index_facts(base, entries[0]).params or {}
        with base.reading(_READING):
            segments = [
                part for index in base.dataset.describe_indices() if index.name == name for part in index.segments
            ]
        covered = frozenset(n for part in segments for n in part.fragment_ids) & frozenset(base.fragment_messages)
        uuids = tuple(sorted(entry.uuid for entry in entries))
        return cls(base, column, analyzer, name, uuids, covered, bool(params.get("with_position")))

    def stats(self, terms: Iterable[str]) -> CorpusStats | None:
        """The statistics for some terms. A term that the index lacks has frequency 0.

        Terms that Lance cannot search alone have no frequency: n-grams of several words, say.
        """
        slot = ("text statistics", self.base.location.key, self.uuids, repr(self.analyzer))
        learned = CACHE.fetch(slot, lambda: _Learned(self._doc_count(), self._average()))
        if learned.average is None:
            return None
        known = learned.frequencies  # shared with other threads
        found: dict[str, int] = {}
        for term in terms:
            frequency = known.get(term)
            query = self._query(term) if frequency is None else None
            if query is not None:
                frequency = known[term] = self._frequency(term, query, learned.doc_count, learned.average)
            if frequency is not None:
                found[term] = frequency
        if len(known) > _MAX_TERMS:
            known.clear()
        return CorpusStats(learned.doc_count, round(learned.average * learned.doc_count), found)

    def _query(self, term: str) -> Match | None:
        """The query that scores rows by one term alone."""
        if [word for word, _ in self.analyzer.query_terms(term)] == [term]:
            return Match(term, self.column)
        if [word for word, _ in self.analyzer.fuzzy_terms(term)] != [term] or len(term) > _MAX_FUZZY_LENGTH:
            return None
        # An analyzer stems some stems again. Lance takes the words of a fuzzy query as they are.
        return Match(term, self.column, fuzziness=1, prefix_length=len(term), max_expansions=1)

    def _doc_count(self) -> int:
        with self.base.reading(_READING):
            segments = self.base.dataset.stats.index_stats(self.name)["segments"]
        return sum(int(segment["num_docs"]) for segment in segments if segment)  # {} for a segment made over no rows

    def _average(self) -> float | None:
        """The average length that explains the scores of some rows for a term that many of them have.

        score * (count + K1 * (1 - B)) + score * K1 * B * length / average == (K1 + 1) * count * weight
        """
        fragments = [f for f in self.base.dataset.get_fragments() if f.fragment_id in self.fragments]
        with self.base.reading(_READING):
            rows = self.base.dataset.scanner(
                columns=[self.column],
                filter=demand_text(self.column, IsNotNull(), pa.null()),
                fragments=fragments,
                limit=_SAMPLE,
                with_row_id=True,
            ).to_table()
        tokens = self.analyzer.documents(one_array(rows.column(self.column)))
        by_count = (tokens.terms[i] for i in np.argsort(-np.bincount(tokens.codes), kind="stable"))
        term, query = next(((term, query) for term in by_count if (query := self._query(term)) is not None), ("", None))
        if query is None:
            return None
        among = serialize_row_addrs(row_ids_of(rows).tolist())
        scores, counts, lengths = self._scored(term, query, 2 * _SAMPLE, row_addr_allowlist=among)
        known = np.stack([scores * K1 * B * lengths, -(K1 + 1) * counts], axis=1)
        (inverse, weight), _, rank, _ = np.linalg.lstsq(known, -scores * (counts + K1 * (1 - B)), rcond=1e-6)
        if rank < 2:  # all these rows have one length
            return len(tokens.codes) / len(np.unique(tokens.documents))
        expected = (K1 + 1) * counts * weight / (counts + K1 * (1 - B) + K1 * B * lengths * inverse)
        if inverse > 0 and np.allclose(scores, expected, rtol=_MAX_ERROR):
            return float(1 / inverse)
        _LOG.warning(
            "Lance does not score by BM25: new rows are scored by their own statistics [column=%s]", self.column
        )
        return None

    def _frequency(self, term: str, query: Match, doc_count: int, average: float) -> int:
        """In how many documents a term is, from the weight that explains the scores of its best rows."""
        scores, counts, lengths = self._scored(term, query, _PER_TERM)
        if not len(scores):
            return 0
        weights = scores * (counts + K1 * (1 - B + B * lengths / average)) / ((K1 + 1) * counts)
        return max(1, round((doc_count + 1) / math.exp(float(np.median(weights))) - 0.5))

    def _scored(self, term: str, query: Match, limit: int, **rows: Any) -> tuple[Floats, Floats, Floats]:
        """The scores of the best rows for one term, how often they have it, and their lengths."""
        with self.base.reading(_READING):
            scanner = self.base.dataset.scanner(
                columns=[self.column, SCORE],
                full_text_query=to_lance(query),
                limit=limit,
                with_row_id=True,
                fast_search=True,
                **rows,
            )
            found = scanner.to_table()
        tokens = self.analyzer.documents(one_array(found.column(self.column)))
        mine = tokens.codes == tokens.terms.index(term) if term in tokens.terms else np.zeros(len(tokens.codes), bool)
        counts = np.bincount(tokens.documents[mine], minlength=found.num_rows)
        lengths = np.bincount(tokens.documents, minlength=found.num_rows)
        scores = one_array(found.column(SCORE)).to_numpy()
        _, number, times = np.unique(row_ids_of(found), return_inverse=True, return_counts=True)
        sure = (counts > 0) & (times[number] == 1)  # the index has two texts of a row that is found twice
        return scores[sure].astype(float), counts[sure].astype(float), lengths[sure].astype(float)
