"""Search of a table: vector, text, or both, over every tier of one snapshot.

Owns `search`: which column, which metric, and the shape of the answer. Invariants:

1. Recency is decided before top-k, in every tier.
2. BM25 statistics are those of the base table's text index in every tier, so scores of different tiers compare.
3. A hybrid answer is the reciprocal rank fusion of the two rankings of the same snapshot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lance_memwal.arguments import check_choice, check_column, check_names, check_number
from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index import SEARCH_METRICS, HnswMemIndex, Metric, TextQuery, as_query
from lance_memwal.memtable.index.analyzer import is_text
from lance_memwal.memtable.index.query import columns_of
from lance_memwal.memtable.index.vectors import ANY_DISTANCE, DistanceRange, is_searchable, query_vector
from lance_memwal.read.analyzers import memory_indexes, text_analyzers
from lance_memwal.read.base_rows import BaseRows
from lance_memwal.read.merge import Merge, Projection
from lance_memwal.read.ranked import Ranked, fuse, to_table
from lance_memwal.read.row_source import fresh_sources
from lance_memwal.read.text_search import TextSearch, best_in_base_alone, best_texts
from lance_memwal.read.tiers import Tiers
from lance_memwal.read.vector_search import VectorQuery, nearest_in_base, nearest_in_source
from lance_memwal.rows.filter import FilterLike, RowFilter, as_filter
from lance_memwal.rows.projection import check_free, checked_paths, column_at, field_at, roots_of
from lance_memwal.sstable.mirrors import index_facts

_HYBRID_DEPTH = 4


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What to search for."""

    vector: Any = None
    text: str | TextQuery | Any = None
    column: str | Sequence[str] | None = None
    k: int = 10
    offset: int = 0
    distance_range: tuple[float | None, float | None] | None = None
    filter: FilterLike | RowFilter | None = None
    columns: Sequence[str] | None = None
    metric: Metric | None = None
    nprobes: int = 20
    refine_factor: int | None = None
    ef: int | None = None


def search(snapshot: Tiers, request: SearchRequest) -> pa.Table:
    """The `k` live rows after the first `offset`, best first, with `_distance`, `_score` or (hybrid) `_relevance`."""
    request = _checked(request, snapshot.schema.columns)
    table = snapshot.schema.columns
    paths = checked_paths(request.columns, table)
    columns = list(roots_of(paths))
    row_filter = as_filter(request.filter, table)
    score = "_distance" if request.text is None else "_score" if request.vector is None else "_relevance"
    check_free(score, [*paths, *columns])
    merge = Merge(snapshot, Projection(tuple(columns)), row_filter)
    merge.prepare()
    deep = replace(request, k=request.k + request.offset)
    if request.text is None:
        ranked, sources = _vector(merge, deep, columns)
    elif request.vector is None:
        ranked, sources = _text(merge, deep)
    else:
        ranked, sources = _hybrid(merge, deep, columns)
    found = to_table(ranked.after(request.offset), sources, columns, table, score)
    if paths == tuple(columns):
        return found
    answer = pa.schema([*(field_at(path, table) for path in paths), found.schema.field(score)])
    return pa.Table.from_arrays([column_at(path, found) for path in answer.names], schema=answer)


def _checked(request: SearchRequest, table: pa.Schema) -> SearchRequest:
    """The request with the metric as we spell it; `InvalidInputError` if it makes no sense."""
    if request.vector is None and request.text is None:
        raise InvalidInputError("search needs a vector, a text, or both")
    check_number("k", request.k, least=1)
    check_number("offset", request.offset)
    if isinstance(request.metric, str):
        request = replace(request, metric=request.metric.lower())  # type: ignore[arg-type]
    if request.metric is not None:
        check_choice("metric", request.metric, SEARCH_METRICS)
    if request.column is not None:
        for name in _names(request.column):
            check_column(name, table.names)
    if request.distance_range is not None and request.vector is None:
        raise InvalidInputError("a distance_range restricts a search by vector: give one")
    return request


def _names(column: str | Sequence[str] | None) -> list[str]:
    """The columns that the caller named."""
    if column is None:
        return []
    names = [column] if isinstance(column, str) else list(check_names("column", column))
    if not names:
        raise InvalidInputError("column names no column: leave it out, or name one or several")
    return names


# ---------------------------------------------------------------------------------------------------------- vector


def _vector_column(snapshot: Tiers, named: Sequence[str]) -> str:
    columns = snapshot.schema.columns
    if len(named) == 1 and is_searchable(columns.field(named[0]).type):
        return named[0]
    candidates = [field.name for field in columns if is_searchable(field.type)]
    if not named and len(candidates) == 1:
        return str(candidates[0])
    if not candidates:
        raise InvalidInputError("the table has no vector column to search")
    listed = ", ".join(candidates)
    raise InvalidInputError(f"name the vector column to search (column=...); the vector columns are: {listed}")


def _indexed(snapshot: Tiers, column: str) -> tuple[Metric | None, bool]:
    """The metric of the base table's vector index on `column`, or of the memtables' where there is no base table.

    And whether that index is a compressed one.
    """
    if snapshot.base_table is None:
        indexes = memory_indexes(snapshot)
        metrics = [i.metric for i in indexes if isinstance(i, HnswMemIndex) and i.column == column]
        return next(iter(metrics), None), False
    number = snapshot.base.column_ids[column]
    known: dict[str, Metric] = {metric: metric for metric in SEARCH_METRICS}
    for entry in snapshot.base.index_entries:
        if tuple(entry.field_ids) == (number,):
            facts = index_facts(snapshot.base, entry)
            if facts.metric in known:
                return known[facts.metric], facts.compressed
    return None, False


def _metric(named: Metric | None, kind: pa.FixedSizeListType, column: str) -> Metric:
    """The metric of a search; vectors of unsigned bytes are compared by their bits, as in Lance, unless one is named."""
    are_bits = kind.value_type == pa.uint8()
    if named == "hamming" and not are_bits:
        raise InvalidInputError(f"hamming counts the bits of uint8 vectors; column {column!r} is {kind}")
    return named or ("hamming" if are_bits else "l2")


def _distances(given: tuple[float | None, float | None] | None) -> DistanceRange:
    if given is None:
        return ANY_DISTANCE
    try:
        lower, upper = given
        found = DistanceRange(-math.inf if lower is None else float(lower), math.inf if upper is None else float(upper))
    except (TypeError, ValueError) as error:
        raise InvalidInputError("distance_range is a pair of numbers, or of None where there is no bound") from error
    if not found.lower < found.upper:
        raise InvalidInputError(f"distance_range is empty: {found.lower} to {found.upper}")
    return found


def _vector(merge: Merge, request: SearchRequest, columns: Sequence[str]) -> tuple[Ranked, list[Any]]:
    snapshot, k = merge.snapshot, request.k
    column = _vector_column(snapshot, _names(request.column))
    kind = snapshot.schema.columns.field(column).type
    query = query_vector(request.vector, kind.list_size, kind.value_type.to_pandas_dtype())
    indexed, is_compressed = _indexed(snapshot, column)
    metric = _metric(request.metric or indexed, kind, column)
    if metric == "cosine" and not query.any():
        raise InvalidInputError("the query vector is zero: it has no direction, and by cosine no row is near it")
    asked = VectorQuery(
        column,
        kind,
        query,
        k,
        metric,
        merge.row_filter,
        request.ef,
        request.nprobes,
        request.refine_factor,
        is_compressed and metric == indexed,
        _distances(request.distance_range),
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


def _text(merge: Merge, request: SearchRequest) -> tuple[Ranked, list[Any]]:
    snapshot = merge.snapshot
    texts = [field.name for field in snapshot.schema.columns if is_text(field.type)]
    known = text_analyzers(snapshot)
    given = _names(request.column)
    query = as_query(request.text, given or texts)
    named = given or sorted(name for name in columns_of(query) if name is not None)
    columns = _text_columns(named, texts, known.names)
    if len(columns) == 1 and columns[0] in known.only_in_base:
        return best_in_base_alone(merge, query, columns[0], request.k, known.only_in_base[columns[0]])
    return best_texts(merge, TextSearch(query, {name: known.of(name) for name in columns}, request.k))


def _text_columns(named: Sequence[str], texts: Sequence[str], indexed: Sequence[str]) -> list[str]:
    """The columns to search: those that were named, else the only one with an index, else the only one with texts."""
    if named and all(name in texts for name in named):
        return list(dict.fromkeys(named))
    for candidates in (indexed, texts):
        if not named and len(candidates) == 1:
            return [candidates[0]]
    listed = ", ".join(indexed or texts) or "none"
    raise InvalidInputError(f"name the text column to search (column=...); the candidates are: {listed}")


# ---------------------------------------------------------------------------------------------------------- hybrid


def _hybrid(merge: Merge, request: SearchRequest, columns: Sequence[str]) -> tuple[Ranked, list[Any]]:
    """Both rankings, deeper than k, fused; a row is the same in both by its source and position (or row id)."""
    deeper = replace(request, k=request.k * _HYBRID_DEPTH)
    vectors, texts = _hybrid_columns(merge.snapshot, _names(request.column))
    near, _ = _vector(merge, replace(deeper, column=vectors), columns)
    matching, sources = _text(merge, replace(deeper, column=texts))
    return fuse([near, matching], request.k), sources


def _hybrid_columns(snapshot: Tiers, named: Sequence[str]) -> tuple[list[str] | None, list[str] | None]:
    """The vector and the text columns of those that were named; where none was, it must be the only one."""
    schema = snapshot.schema.columns
    vectors = [name for name in named if is_searchable(schema.field(name).type)]
    return vectors or None, [name for name in named if name not in vectors] or None
