"""Search of a table: vector, text, or both, over every tier of one snapshot.

Owns `search`: which column, which metric, and the shape of the answer. Invariants:

1. Recency is decided before top-k, in every tier.
2. BM25 statistics are those of the live rows of all tiers, so that scores of different tiers compare.
3. A hybrid answer is the reciprocal rank fusion of the two rankings of the same snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from lance_memwal.arguments import check_choice, check_number
from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index import (
    METRICS,
    FtsIndex,
    FtsMemIndex,
    HnswMemIndex,
    MemIndex,
    Metric,
    TextQuery,
    analyzer_for,
    as_query,
    bind_over,
    terms_of,
)
from lance_memwal.memtable.index.analyzer import AnalyzerOptions, is_text
from lance_memwal.memtable.index.bm25 import CorpusStats
from lance_memwal.memtable.index.fts import search_texts
from lance_memwal.memtable.index.query import columns_of
from lance_memwal.memtable.index.vectors import is_vector, query_vector
from lance_memwal.read.base_rows import BaseRows
from lance_memwal.read.merge import Merge, Projection
from lance_memwal.read.ranked import Ranked, fuse, to_table
from lance_memwal.read.row_source import FragmentSource, LargeSsTableSource, MemorySource, RowSource, fresh_sources
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.read.vector_search import VectorQuery, nearest_in_base, nearest_in_source
from lance_memwal.rows.filter import FilterLike, RowFilter, as_filter
from lance_memwal.rows.schema import checked_columns
from lance_memwal.sstable.mirrors import index_facts

__all__ = ["SearchRequest", "search"]

_HYBRID_DEPTH = 4


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What to search for."""

    vector: Any = None
    text: str | TextQuery | Any = None
    column: str | None = None
    k: int = 10
    filter: FilterLike | RowFilter | None = None
    columns: Sequence[str] | None = None
    metric: Metric | None = None
    nprobes: int = 20
    refine_factor: int | None = None
    ef: int | None = None


def search(snapshot: Snapshot, request: SearchRequest) -> pa.Table:
    """The best `k` live rows, best first, with `_distance`, `_score` or (hybrid) `_relevance`."""
    _check(request, snapshot.schema.columns)
    table = snapshot.schema.columns
    columns = list(checked_columns(request.columns, table))
    row_filter = as_filter(request.filter, table)
    merge = Merge(snapshot, Projection(tuple(columns)), row_filter)
    merge.prepare()
    if request.text is None:
        ranked, sources = _vector(merge, request, columns)
        return to_table(ranked, sources, columns, table, "_distance")
    if request.vector is None:
        ranked, sources = _text(merge, request)
        return to_table(ranked, sources, columns, table, "_score")
    return _hybrid(merge, request, columns)


def _check(request: SearchRequest, table: pa.Schema) -> None:
    if request.vector is None and request.text is None:
        raise InvalidInputError("search needs a vector, a text, or both")
    check_number("k", request.k, least=1)
    if request.metric is not None:
        check_choice("metric", request.metric, METRICS)
    if request.column is not None:
        checked_columns([request.column], table)


# ---------------------------------------------------------------------------------------------------------- vector


def _vector_column(snapshot: Snapshot, named: str | None) -> str:
    columns = snapshot.schema.columns
    if named is not None and is_vector(columns.field(named).type):
        return named
    candidates = [field.name for field in columns if is_vector(field.type)]
    if named is None and len(candidates) == 1:
        return str(candidates[0])
    listed = ", ".join(candidates) or "none"
    raise InvalidInputError(f"name the vector column to search (column=...); the vector columns are: {listed}")


def _indexed_metric(snapshot: Snapshot, column: str) -> Metric | None:
    """The metric of the base table's vector index on `column`, or of the memtables' where there is no base table."""
    if snapshot.base_table is None:
        indexes = _memory_indexes(snapshot)
        return next((i.metric for i in indexes if isinstance(i, HnswMemIndex) and i.column == column), None)
    number = snapshot.base.column_ids[column]
    known: dict[str, Metric] = {metric: metric for metric in METRICS}
    for entry in snapshot.base.index_entries:
        if tuple(entry.field_ids) == (number,):
            metric = index_facts(snapshot.base, entry).metric
            if metric in known:
                return known[metric]
    return None


def _vector(merge: Merge, request: SearchRequest, columns: Sequence[str]) -> tuple[Ranked, list[Any]]:
    snapshot, k = merge.snapshot, request.k
    column = _vector_column(snapshot, request.column)
    kind = snapshot.schema.columns.field(column).type
    query = query_vector(request.vector, kind.list_size, kind.value_type.to_pandas_dtype())
    indexed = _indexed_metric(snapshot, column)
    metric: Metric = request.metric or indexed or "l2"
    asked = VectorQuery(
        column, kind, query, k, metric, merge.row_filter, request.ef, request.nprobes, request.refine_factor
    )
    sources: list[Any] = list(fresh_sources(merge))
    parts = [(number, *nearest_in_source(source, asked)) for number, source in enumerate(sources)]
    if snapshot.base_table is None:
        return Ranked.merge(parts, k, ascending=True), sources
    base = BaseRows(snapshot.base)
    rows, positions, distances = nearest_in_base(merge, asked, columns, use_index=indexed == metric)
    base.remember(rows)
    parts.append((len(sources), positions, distances))
    return Ranked.merge(parts, k, ascending=True), [*sources, base]


# ---------------------------------------------------------------------------------------------------------- text


def _text_column(snapshot: Snapshot, named: str | None) -> tuple[str, AnalyzerOptions]:
    """The column to search and the analyzer of the index on it (the default one where there is none)."""
    columns = snapshot.schema.columns
    analyzers, unknown = _analyzers(snapshot)
    if named is not None and is_text(columns.field(named).type):
        if named in unknown and named not in analyzers:
            raise unknown[named]
        return named, analyzers.get(named, AnalyzerOptions())
    texts = [field.name for field in columns if is_text(field.type)]
    for candidates in (list(analyzers), texts):
        if named is None and len(candidates) == 1:
            return candidates[0], analyzers.get(candidates[0], AnalyzerOptions())
    listed = ", ".join(analyzers or texts) or "none"
    raise InvalidInputError(f"name the text column to search (column=...); the candidates are: {listed}")


def _memory_indexes(snapshot: Snapshot) -> list[MemIndex]:
    """The indexes of the memtables, newest first."""
    return [index for view in snapshot.shards for ref in reversed(view.memory) for index in ref.indexes]


def _analyzers(snapshot: Snapshot) -> tuple[dict[str, AnalyzerOptions], dict[str, InvalidInputError]]:
    """The analyzers of the base table's text indexes by column (of the newest memtable's, where there is no base table),
    and why some columns' cannot be had."""
    if snapshot.base_table is None:
        texts = [index for index in reversed(_memory_indexes(snapshot)) if isinstance(index, FtsMemIndex)]
        return {index.column: index.analyzer.options for index in texts}, {}
    found: dict[str, AnalyzerOptions] = {}
    unknown: dict[str, InvalidInputError] = {}
    by_id = {number: name for name, number in snapshot.base.column_ids.items()}
    for entry in snapshot.base.index_entries:
        if len(entry.field_ids) == 1 and "Inverted" in entry.details_type and entry.field_ids[0] in by_id:
            column = by_id[entry.field_ids[0]]
            try:
                params = index_facts(snapshot.base, entry).params or {}
                found[column] = FtsIndex.from_lance(column, params).analyzer_options()
            except InvalidInputError as error:
                unknown[column] = error
    return found, unknown


def _text(merge: Merge, request: SearchRequest) -> tuple[Ranked, list[Any]]:
    k, (query, named) = request.k, _text_query(merge.snapshot, request.text, request.column)
    column, options = _text_column(merge.snapshot, named)
    analyzer = analyzer_for(options)
    fresh = fresh_sources(merge)
    base = merge.snapshot.base_table
    fragments = [] if base is None else [FragmentSource(item, merge) for item in base.dataset.get_fragments()]
    sources: list[RowSource] = [*fresh, *fragments]
    indexes = [source.text_index(column, analyzer) for source in sources]
    views = [index.view(source.num_rows, source.live) for index, source in zip(indexes, sources, strict=True)]
    answers: list[Any] = [*fresh] if base is None else [*fresh, BaseRows(base)]
    if not views:
        return Ranked.merge([], k, ascending=False), answers
    bound = bind_over(query, {column: views}, column=column)
    terms = terms_of(bound).get(column, set())
    stats = sum((view.stats(terms) for view in views), CorpusStats())
    parts = []
    for number, (source, index) in enumerate(zip(sources, indexes, strict=True)):
        allowed = source.matching(merge.row_filter)
        if not allowed.any():
            continue
        positions, scores = search_texts(
            {column: index}, bound, source.num_rows, k, stats={column: stats}, allowed=allowed, live=source.live
        )
        if isinstance(source, FragmentSource):
            number, positions = len(fresh), source.row_ids[positions].astype(np.int64)
        elif isinstance(source, LargeSsTableSource):
            positions = source.offsets[positions]
        elif isinstance(source, MemorySource):
            source.ref.memtable.searched()
        parts.append((number, positions, scores))
    return Ranked.merge(parts, k, ascending=False), answers


def _text_query(snapshot: Snapshot, text: Any, column: str | None) -> tuple[TextQuery, str | None]:
    """The query, and the column to search if `column` or the query itself names one."""
    texts = [field.name for field in snapshot.schema.columns if is_text(field.type)]
    query = as_query(text, texts if column is None else [column])
    named = columns_of(query) - {None}
    if column is None and len(named) > 1:
        raise InvalidInputError(f"a search is of one column, the query names {', '.join(sorted(map(str, named)))}")
    return query, column if column is not None else next(iter(named), None)


# ---------------------------------------------------------------------------------------------------------- hybrid


def _hybrid(merge: Merge, request: SearchRequest, columns: Sequence[str]) -> pa.Table:
    """Both rankings, deeper than k, fused; a row is the same in both by its source and position (or row id)."""
    deeper = replace(request, k=request.k * _HYBRID_DEPTH)
    vectors, texts = _hybrid_columns(merge.snapshot, request.column)
    near, _ = _vector(merge, replace(deeper, column=vectors), columns)
    matching, sources = _text(merge, replace(deeper, column=texts))
    return to_table(fuse([near, matching], request.k), sources, columns, merge.snapshot.schema.columns, "_relevance")


def _hybrid_columns(snapshot: Snapshot, named: str | None) -> tuple[str | None, str | None]:
    """The vector and the text column: one of them may be named, the other must be the only one."""
    if named is None:
        return None, None
    return (named, None) if is_vector(snapshot.schema.columns.field(named).type) else (None, named)
