"""The nearest live rows over all tiers.

Owns the search of one tier. Memtables use their graph where it has the metric; memory without one and SSTables that are
kept in memory are searched exactly; large SSTables are searched by Lance through their mirror of the index, or exactly as a
stream; the base table is searched by Lance, over indexed and unindexed fragments. Invariants:

1. A replaced or deleted row neither appears nor takes a place: a tier is asked for more until k live rows are found or it
   has no more.
2. Where an index is missing or has another metric the search is exact: slower, never empty.
3. Distances are computed from the vectors themselves, alike in every tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.lance.vector_metric import vector_metric
from lance_memwal.memtable.index import HnswMemIndex, Metric, exact_search
from lance_memwal.memtable.index.vectors import Nearest, nearest_in_block
from lance_memwal.process.cache import CACHE
from lance_memwal.read.base_rows import BLOB_HANDLING, refuse_unreadable
from lance_memwal.read.fresh import live_rows, not_in
from lance_memwal.read.merge import Merge
from lance_memwal.read.row_source import FreshSource, LargeSsTableSource, SsTableSource
from lance_memwal.rows.filter import FilterLike, RowFilter, pushdown
from lance_memwal.rows.keys import one_array
from lance_memwal.rows.normal_form import no_rows
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.read import SsTableReader

__all__ = ["nearest_in_base", "nearest_in_source"]

_EXTRA = 16
_DOT_REFINE = 5  # quantised inner products rank worse than distances: of 50,000 rows 0.88 were found without, 0.99 with
_LARGE_EF = 256
_STREAM_BYTES = 32 << 20
_ROW_ID = "_rowid"
_ROW_ADDRESS = "_rowaddr"
_NOTHING = (np.empty(0, np.int64), np.empty(0, np.float32))


def nearest_in_source(
    source: FreshSource,
    column: str,
    query: npt.NDArray[np.float64],
    k: int,
    metric: Metric,
    row_filter: RowFilter | None,
    ef: int | None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Positions and distances of the `k` nearest matching rows of one source above the base table."""
    if isinstance(source, LargeSsTableSource):
        return _nearest_in_large(source, column, query, k, metric, row_filter, ef)
    allowed = source.matching(row_filter)
    if not allowed.any():
        return _NOTHING
    if isinstance(source, SsTableSource):
        return nearest_in_block(source.vectors(column), query, k, metric, allowed)
    for index in source.ref.indexes:
        if isinstance(index, HnswMemIndex) and index.column == column:
            found = index.search(query, k, source.num_rows, ef=ef, allowed=allowed, metric=metric)
            source.ref.memtable.searched()
            return found
    return exact_search(source.column(column), query, k, metric, allowed)


# ---------------------------------------------------------------------------------------------------- large SSTables


def _nearest_in_large(
    source: LargeSsTableSource,
    column: str,
    query: npt.NDArray[np.float64],
    k: int,
    metric: Metric,
    row_filter: RowFilter | None,
    ef: int | None,
) -> Nearest:
    """By the SSTable's own index if it has one of this metric and finds `k` live rows, else exactly."""
    stored = source.reader.name_of(column, source.schema)
    if stored is None:
        return _NOTHING
    shared = source.reader.pushdown(source.schema, row_filter)
    if shared.late is None and _mirror_metric(source.reader, stored) == metric:
        fetch, rows_left = k + _EXTRA, source.reader.sstable.physical_rows or 0
        while fetch <= max(k + _EXTRA, rows_left // 4):
            found = _ask_mirror(source, stored, query, fetch, metric, shared.told, ef)
            if found is None:
                break
            offsets, vectors = found
            alive = not_in(offsets, source.hidden)
            if alive.sum() >= k:
                positions, distances = exact_search(vectors, query, k, metric, alive)
                return offsets[positions], distances
            fetch *= 4
    return _stream_nearest(source, column, query, k, metric, row_filter)


def _mirror_metric(reader: SsTableReader, stored: str) -> str | None:
    """The metric of the SSTable's vector index on a column, if it has one; a generation never changes."""

    def read() -> str | None:
        with reader.reading():
            for index in reader.dataset.describe_indices():
                if list(index.field_names) == [stored] and index.type_url.endswith("VectorIndexDetails"):
                    return vector_metric(reader.dataset, index.name)
        return None

    return CACHE.fact(("mirror", reader.location.key, reader.shard_id, reader.sstable.path, stored), read)


def _ask_mirror(
    source: LargeSsTableSource,
    stored: str,
    query: npt.NDArray[np.float64],
    fetch: int,
    metric: Metric,
    told: FilterLike | None,
    ef: int | None,
) -> tuple[npt.NDArray[np.int64], pa.Array] | None:
    """Offsets and vectors that the index proposes; None if it has fewer than were asked for."""
    dataset = source.reader.dataset
    kind = dataset.schema.field(stored).type.value_type
    nearest: dict[str, Any] = {
        "column": stored,
        "q": pa.array(query, type=kind),
        "k": fetch,
        "metric": metric,
        "ef": max(ef or _LARGE_EF, 2 * fetch),
        "use_index": True,
    }
    with source.reader.reading(given=True):
        rows = dataset.scanner(
            columns=[stored], nearest=nearest, filter=told, prefilter=True, with_row_address=True
        ).to_table()
    if rows.num_rows < fetch:
        return None
    return one_array(rows.column(_ROW_ADDRESS)).to_numpy().astype(np.int64), one_array(rows.column(stored))


def _stream_nearest(
    source: LargeSsTableSource,
    column: str,
    query: npt.NDArray[np.float64],
    k: int,
    metric: Metric,
    row_filter: RowFilter | None,
) -> Nearest:
    """Exactly, batch by batch: memory holds one batch of one column."""
    best = _NOTHING
    for batch, offsets in source.reader.batches(
        source.schema, [column], row_filter, _stream_rows(source.schema, column)
    ):
        alive = live_rows(batch, offsets, source.hidden)
        best = _better(best, batch.column(column), offsets, alive, query, k, metric)
    return best


def _stream_rows(schema: TableSchema, column: str) -> int:
    kind = schema.columns.field(column).type
    return int(max(256, _STREAM_BYTES // max(1, kind.list_size * kind.value_type.bit_width // 8)))


def _better(
    best: Nearest,
    vectors: pa.Array | pa.ChunkedArray,
    rows: npt.NDArray[np.int64],
    alive: npt.NDArray[np.bool_],
    query: npt.NDArray[np.float64],
    k: int,
    metric: Metric,
) -> Nearest:
    """The `k` nearest of what is known and of `rows`, which have `vectors`, as far as they are `alive`."""
    if not alive.any():
        return best
    positions, distances = exact_search(one_array(vectors), query, k, metric, alive)
    merged = np.concatenate((best[1], distances))
    order = np.argsort(merged, kind="stable")[:k]
    return np.concatenate((best[0], rows[positions]))[order], merged[order]


# --------------------------------------------------------------------------------------------------------- the base


def nearest_in_base(
    merge: Merge,
    column: str,
    query: npt.NDArray[np.float64],
    k: int,
    metric: Metric,
    columns: Sequence[str],
    *,
    nprobes: int,
    refine_factor: int | None,
    use_index: bool,
) -> tuple[pa.Table, npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The `k` nearest live, matching rows of the base table: the rows that were read, and ids and distances in order."""
    shared = pushdown(merge.row_filter)
    if shared.late is not None:  # Lance cannot be told what the search is restricted to
        return pa.schema([pa.field(_ROW_ID, pa.uint64())]).empty_table(), *_stream_base(merge, column, query, k, metric)
    wanted = list(dict.fromkeys([*columns, *merge.hiding_columns, column]))
    refuse_unreadable([merge.snapshot.base.schema.field(name) for name in wanted])
    total = merge.snapshot.base.dataset.count_rows()
    fetch = min(total, k + _EXTRA if merge.fresh_keys is not None else k)
    while True:
        rows = _ask_lance(merge, shared.told, column, query, fetch, metric, wanted, nprobes, refine_factor, use_index)
        live = merge.live_in_base(rows)
        if live.sum() >= min(k, total):
            break
        if rows.num_rows < fetch or fetch >= total:
            if not use_index:
                break
            use_index = False  # the index has no more, or missed some: slower, never short
        else:
            fetch = min(total, fetch * 4)
    if not live.any():
        return rows, *_NOTHING
    positions, distances = exact_search(one_array(rows.column(column)), query, k, metric, live)
    row_ids = one_array(rows.column(_ROW_ID)).to_numpy().astype(np.int64)
    return rows, row_ids[positions], distances


def _stream_base(merge: Merge, column: str, query: npt.NDArray[np.float64], k: int, metric: Metric) -> Nearest:
    """Exactly, batch by batch."""
    schema, shared = merge.snapshot.schema, pushdown(merge.row_filter)
    best = _NOTHING
    with merge.snapshot.base.reading("searching the base table", given=shared.told is not None):
        scanner = merge.snapshot.base.dataset.scanner(
            columns=list(dict.fromkeys([column, *merge.hiding_columns, *shared.columns])),
            filter=shared.told,
            with_row_id=True,
            batch_size=_stream_rows(schema, column),
        )
        for batch in scanner.to_batches():
            rows = shared.finish(pa.Table.from_batches([batch]))
            alive = merge.live_in_base(rows)
            row_ids = one_array(rows.column(_ROW_ID)).to_numpy().astype(np.int64)
            best = _better(best, rows.column(column), row_ids, alive, query, k, metric)
    return best


def _ask_lance(
    merge: Merge,
    told: FilterLike | None,
    column: str,
    query: npt.NDArray[np.float64],
    fetch: int,
    metric: Metric,
    wanted: list[str],
    nprobes: int,
    refine_factor: int | None,
    use_index: bool,
) -> pa.Table:
    dataset = merge.snapshot.base.dataset
    if fetch == 0:
        fields = [merge.snapshot.schema.columns.field(name) for name in wanted]
        return no_rows(pa.schema([*fields, pa.field(_ROW_ID, pa.uint64())]))
    kind = merge.snapshot.schema.columns.field(column).type.value_type
    nearest: dict[str, Any] = {
        "column": column,
        "q": pa.array(query, type=kind),
        "k": fetch,
        "metric": metric,
        "minimum_nprobes": nprobes,  # more are probed only where these do not hold enough matching rows
        "use_index": use_index,
    }
    if refine_factor is None and metric == "dot" and use_index:
        refine_factor = _DOT_REFINE
    if refine_factor is not None:
        nearest["refine_factor"] = refine_factor
    with merge.snapshot.base.reading("searching the base table", given=True):
        scanner = dataset.scanner(
            columns=wanted,
            nearest=nearest,
            filter=told,
            prefilter=True,
            with_row_id=True,
            blob_handling=BLOB_HANDLING,
            disable_scoring_autoprojection=True,
        )
        return scanner.to_table()
