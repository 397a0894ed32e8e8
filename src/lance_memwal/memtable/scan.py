"""Reading memtables alone: active and frozen of one writer, captured together.

Owns `MemTableScanner`, the newest-wins merge of memtables, and the use of BTree indexes by their filters. Invariants:

1. Recency is decided before filter, ranking and limit: a newer row that does not match still hides the older one that does.
2. Tombstones never appear and never count.
3. A scanner reads the capture with which it was made, however often it is run.
4. A BTree index only narrows the rows down; the filter itself is evaluated on what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.arguments import check_number, check_text
from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index import (
    BTreeMemIndex,
    CorpusStats,
    FtsMemIndex,
    HnswMemIndex,
    Metric,
    Predicate,
    Range,
    TextQuery,
    analyzer_for,
    as_query,
    bind_over,
    exact_search,
    search_texts,
    terms_of,
)
from lance_memwal.memtable.index.analyzer import AnalyzerOptions, is_text
from lance_memwal.memtable.index.vectors import check_search, is_vector
from lance_memwal.memtable.memtable import InMemoryMemTableRef, InMemoryMemTables, key_values
from lance_memwal.rows.dictionaries import take_rows
from lance_memwal.rows.filter import FilterLike, RowFilter
from lance_memwal.rows.keys import one_array
from lance_memwal.rows.normal_form import no_rows
from lance_memwal.rows.schema import TableSchema, checked_columns
from lance_memwal.types import TOMBSTONE

__all__ = ["MemTableScanner", "indexes_used", "matching_rows", "narrowed", "newest_of", "winners"]

Mask = npt.NDArray[np.bool_]


def winners(memtables: Sequence[InMemoryMemTableRef]) -> list[tuple[InMemoryMemTableRef, np.ndarray]]:
    """Per memtable (ascending by generation) the mask of rows that no newer row of the same key hides, tombstones included."""
    masks: list[tuple[InMemoryMemTableRef, np.ndarray]] = []
    for i, ref in enumerate(memtables):
        mask = ref.newest_mask().copy()
        keys = ref.memtable.schema.primary_key
        newer = [other for other in memtables[i + 1 :] if other.num_rows]
        if keys and newer and mask.any():
            rows = np.flatnonzero(mask)
            table = ref.table().select(list(keys)).take(pa.array(rows))
            values = key_values([one_array(column) for column in table.columns])
            for other in newer:
                mask[rows[other.find(values) >= 0]] = False
        masks.append((ref, mask))
    return masks


def newest_of(memtables: Sequence[InMemoryMemTableRef], schema: TableSchema) -> pa.Table:
    """The newest row of every key over `memtables`, tombstones included, older generations first."""
    parts = [
        table if mask.all() else table.filter(pa.array(mask))
        for ref, mask in winners(memtables)
        if (table := ref.table()).num_rows
    ]
    return pa.concat_tables(parts) if parts else no_rows(schema.memory)


def _usable(ref: InMemoryMemTableRef, row_filter: RowFilter | None) -> list[tuple[BTreeMemIndex, Predicate]]:
    """The BTree indexes that say something about a filter, with what it asks of their columns."""
    if row_filter is None or not ref.memtable.indexes:
        return []
    trees = {index.column: index for index in ref.indexes if isinstance(index, BTreeMemIndex)}
    return [(trees[column], predicate) for column, predicate in row_filter.predicates() if column in trees]


def _positions(ref: InMemoryMemTableRef, index: BTreeMemIndex, predicate: Predicate) -> npt.NDArray[np.int64] | None:
    """Positions of all rows that satisfy `predicate`, perhaps of a few more; None if the index cannot tell."""
    kind = ref.memtable.schema.columns.field(index.column).type
    if isinstance(predicate, Range) and pa.types.is_floating(kind):
        # filters tell -0.0 from 0.0 and may compare in double precision: the bound itself is left to them
        predicate = Range(predicate.lower, predicate.upper)
    try:
        return index.positions(predicate, ref.num_rows)
    except InvalidInputError:
        return None


def narrowed(ref: InMemoryMemTableRef, row_filter: RowFilter | None, alive: Mask) -> Mask:
    """`alive` without rows of which the memtable's BTree indexes say that the filter is not true."""
    for index, predicate in _usable(ref, row_filter):
        found = _positions(ref, index, predicate)
        if found is not None:
            kept = np.zeros(len(alive), dtype=bool)
            kept[found] = True
            alive = alive & kept
            ref.memtable.searched()
    return alive


def indexes_used(ref: InMemoryMemTableRef, row_filter: RowFilter | None) -> list[str]:
    """The BTree indexes that narrow a filter down, for people."""
    used = [
        f"{index.name} on {index.column}"
        for index, predicate in _usable(ref, row_filter)
        if _positions(ref, index, predicate) is not None
    ]
    return list(dict.fromkeys(used))


def matching_rows(parts: Sequence[tuple[pa.Table, Mask]], row_filter: RowFilter | None) -> list[Mask]:
    """Per table the rows that live (by its mask) and for which the filter is true; it is evaluated once for all."""
    if row_filter is None or not any(alive.any() for _, alive in parts):
        return [alive for _, alive in parts]
    columns = row_filter.columns or [TOMBSTONE]  # tables without columns lose their rows when they are joined
    living = [table.select(columns).filter(pa.array(alive)) for table, alive in parts]
    found = np.split(row_filter.mask(pa.concat_tables(living)), np.cumsum([table.num_rows for table in living])[:-1])
    masks = [alive.copy() for _, alive in parts]
    for mask, (_, alive), matching in zip(masks, parts, found, strict=True):
        mask[alive] = matching
    return masks


@dataclass(frozen=True, slots=True)
class _Nearest:
    """A vector search to be done."""

    column: str
    query: Any
    k: int
    metric: Metric | None
    ef: int | None


@dataclass(frozen=True, slots=True)
class _FullText:
    """A text search to be done."""

    column: str
    query: TextQuery
    k: int | None


class MemTableScanner:
    """A scan of one writer's memtables; the builder methods return the scanner."""

    def __init__(self, memtables: InMemoryMemTables, schema: TableSchema) -> None:
        self._memtables = memtables
        self._schema = schema
        self._columns: tuple[str, ...] | None = None
        self._filters: list[RowFilter] = []
        self._limit: int | None = None
        self._ranking: _Nearest | _FullText | None = None

    def project(self, columns: Sequence[str]) -> MemTableScanner:
        """Return only `columns`, in this order (and the score of a search)."""
        self._columns = checked_columns(columns, self._schema.columns)
        return self

    def filter(self, expr: FilterLike) -> MemTableScanner:
        """Return only rows for which `expr` (SQL or a pyarrow expression) is true; several filters must all be true."""
        self._filters.append(RowFilter(expr, self._schema.columns))
        return self

    def limit(self, n: int) -> MemTableScanner:
        """Return at most `n` rows."""
        self._limit = check_number("limit", n)
        return self

    def nearest(
        self, column: str, query: Any, k: int, *, metric: Metric | None = None, ef: int | None = None
    ) -> MemTableScanner:
        """Return the `k` live, matching rows nearest to `query`, nearest first, with `_distance`.

        `metric` is by default that of the memtable's index on the column, or l2. Another one is searched exactly.
        """
        self._check_column(column, is_vector, "vector")
        check_number("k", k, least=1)
        if metric is not None:
            check_search(metric, None, 0)
        self._ranking = _Nearest(column, query, k, metric, ef)
        return self

    def full_text_search(self, column: str, query: Any, k: int | None = None) -> MemTableScanner:
        """Return the live rows that match a text query (the best `k`), best first, with their BM25 `_score`.

        The query is a string or a query object: one of `lance.query`, or memwal's own.

        The analyzer is that of the memtable's index on the column, or Lance's default one.
        """
        self._check_column(column, is_text, "text")
        self._ranking = _FullText(column, as_query(query, [column]), k)
        return self

    def _check_column(self, column: str, fits: Any, kind: str) -> None:
        if check_text("column", column) not in self._schema.columns.names or not fits(
            self._schema.columns.field(column).type
        ):
            raise InvalidInputError(f"{column!r} is not a {kind} column of the table")
        if self._ranking is not None:
            raise InvalidInputError("a scan ranks by one search: either nearest or full_text_search, once")

    def to_table(self) -> pa.Table:
        """The rows as a table."""
        if self._ranking is not None:
            rows = self._ranked(self._ranking)
        else:
            parts = [ref.table().filter(pa.array(mask)) for ref, mask in self._matching() if mask.any()]
            rows = pa.concat_tables(parts) if parts else no_rows(self._schema.memory)
            rows = rows.drop_columns([TOMBSTONE])
        if self._limit is not None:
            rows = rows.slice(0, self._limit)
        if self._columns is None:
            return rows
        return rows.select([*self._columns, *rows.schema.names[len(self._schema.columns.names) :]])

    def _matching(self) -> list[tuple[InMemoryMemTableRef, Mask]]:
        """Per memtable the rows that are live and for which every filter is true."""
        found = []
        for ref, mask in self._live():
            for row_filter in self._filters:
                mask = narrowed(ref, row_filter, mask)
            for row_filter in self._filters:
                [mask] = matching_rows([(ref.table(), mask)], row_filter)
            found.append((ref, mask))
        return found

    def _live(self) -> list[tuple[InMemoryMemTableRef, Mask]]:
        flags = [(ref, mask, ref.table().column(TOMBSTONE)) for ref, mask in winners(self._memtables.ascending)]
        return [(ref, mask & ~dead.to_numpy().astype(bool)) for ref, mask, dead in flags]

    # ------------------------------------------------------------------------------------------------------- ranking

    def _ranked(self, ranking: _Nearest | _FullText) -> pa.Table:
        if isinstance(ranking, _Nearest):
            hits, score, sign = self._nearest_rows(ranking), "_distance", 1.0
        else:
            hits, score, sign = self._text_rows(ranking), "_score", -1.0
        tables = [ref.table().drop_columns([TOMBSTONE]).take(pa.array(rows)) for ref, rows, _ in hits if len(rows)]
        empty = no_rows(self._schema.memory).drop_columns([TOMBSTONE])
        found = pa.concat_tables(tables) if tables else empty
        scores = np.concatenate([scores for _, _, scores in hits] or [np.empty(0, np.float32)])
        best = np.argsort(sign * scores, kind="stable")[: ranking.k]
        found = take_rows(found, best)
        return found.append_column(pa.field(score, pa.float32()), pa.array(scores[best].astype(np.float32)))

    def _nearest_rows(self, asked: _Nearest) -> list[tuple[InMemoryMemTableRef, npt.NDArray[np.int64], Any]]:
        graphs = {
            ref: index
            for ref in self._memtables.ascending
            for index in ref.indexes
            if isinstance(index, HnswMemIndex) and index.column == asked.column
        }
        active = graphs.get(self._memtables.active) or next(iter(graphs.values()), None)
        metric: Metric = asked.metric or (active.metric if active is not None else "l2")
        found = []
        for ref, mask in self._matching():
            graph = graphs.get(ref)
            if graph is not None:
                rows, distances = graph.search(
                    asked.query, asked.k, ref.num_rows, ef=asked.ef, allowed=mask, metric=metric
                )
                ref.memtable.searched()
            else:
                vectors = ref.table().column(asked.column)
                rows, distances = exact_search(vectors, asked.query, asked.k, metric, mask)
            found.append((ref, rows, distances))
        return found

    def _text_rows(self, asked: _FullText) -> list[tuple[InMemoryMemTableRef, npt.NDArray[np.int64], Any]]:
        live = self._live()
        indexes = self._text_indexes(asked.column)
        views = [index.view(ref.num_rows, mask) for index, (ref, mask) in zip(indexes, live, strict=True)]
        bound = bind_over(asked.query, {asked.column: views}, column=asked.column)
        terms = terms_of(bound).get(asked.column, set())
        stats = sum((view.stats(terms) for view in views), CorpusStats())
        found = []
        for index, (ref, mask), (_, alive) in zip(indexes, self._matching(), live, strict=True):
            rows, scores = search_texts(
                {asked.column: index},
                bound,
                ref.num_rows,
                asked.k,
                stats={asked.column: stats},
                allowed=mask,
                live=alive,
            )
            ref.memtable.searched()
            found.append((ref, rows, scores))
        return found

    def _text_indexes(self, column: str) -> list[FtsMemIndex]:
        """Per memtable an index with the newest memtable's analyzer: its own, or one made for this search."""
        refs = self._memtables.ascending
        own = [
            next((i for i in ref.indexes if isinstance(i, FtsMemIndex) and i.column == column), None) for ref in refs
        ]
        known = [index.analyzer for index in own if index is not None]
        analyzer = known[-1] if known else analyzer_for(AnalyzerOptions())
        indexes = []
        for ref, index in zip(refs, own, strict=True):
            if index is None or index.analyzer != analyzer:
                index = FtsMemIndex("", column, analyzer)
                start = 0
                for batch in ref.batches:
                    index.insert(batch, start)
                    start += batch.num_rows
            indexes.append(index)
        return indexes

    def count_rows(self) -> int:
        """The number of rows."""
        return int(self.to_table().num_rows)

    def explain(self) -> str:
        """What this scan reads, and which indexes narrow it down, for people."""
        lines = [f"scan of {len(self._memtables.ascending)} memtables"]
        lines += [f"  filter:  {row_filter} (after recency)" for row_filter in self._filters]
        for ref in reversed(self._memtables.ascending):
            used = [name for row_filter in self._filters for name in indexes_used(ref, row_filter)]
            how = f", BTree index {', '.join(dict.fromkeys(used))}" if used else ""
            lines.append(f"  memtable generation {ref.generation}: {ref.num_rows} rows{how}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"MemTableScanner(columns={self._columns}, filters={self._filters}, limit={self._limit})"
