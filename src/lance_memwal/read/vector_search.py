"""The nearest live rows over all tiers.

Owns the search of one tier. Memtables use their graph where it has the metric; memory without one and SSTables that are
kept in memory are searched exactly; large SSTables are searched by Lance through their mirror of the index, or exactly as a
stream; the base table is searched by Lance, over indexed and unindexed fragments. Invariants:

1. A superseded or deleted row neither appears nor takes a place: a tier is asked for more until k live rows are found or it
   has no more. If two answers of the base table have too few live rows, Lance gets the list of superseded rows.
2. Where an index is missing or has another metric the search is exact: slower, never empty.
3. Distances are computed from the vectors themselves, alike in every tier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.lance.vector_metric import vector_metric
from lance_memwal.memtable.index import HnswMemIndex, Metric, exact_search
from lance_memwal.memtable.index.vectors import DistanceRange, Nearest, is_vector, nearest_in_block
from lance_memwal.process.cache import CACHE
from lance_memwal.read.base_rows import row_ids_of, shown_rows
from lance_memwal.read.fresh import live_rows, not_in
from lance_memwal.read.merge import Merge
from lance_memwal.read.row_source import FreshSource, LargeSsTableSource, SsTableSource
from lance_memwal.rows.filter import RowFilter, pushdown
from lance_memwal.rows.keys import one_array
from lance_memwal.rows.normal_form import no_rows
from lance_memwal.sstable.read import SsTableReader
from lance_memwal.types import ROW_ADDRESS, ROW_ID

_EXTRA = 16
# Compressed vectors rank worse: of the nearest ten 0.5 to 0.9 were found without, 0.95 to 1 with so many candidates for each.
# What Lance adds to an index for dot later, it takes for nearer or farther than the rest: 0.2 were found with ten for each.
_REFINE: dict[Metric, int] = {"l2": 10, "cosine": 10, "dot": 100}
_LARGE_EF = 256
_ROUNDING = 1e-5
_STREAM_BYTES = 32 << 20
_NOTHING = (np.empty(0, np.int64), np.empty(0, np.float32))


@dataclass(frozen=True, slots=True)
class VectorQuery:
    """The `k` rows nearest to `query` are wanted, of those for which the filter is true; `kind` is the column's type.

    `is_compressed` says that the base table's index ranks by something shorter than the vectors.
    """

    column: str
    kind: pa.FixedSizeListType
    query: npt.NDArray[np.float64]
    k: int
    metric: Metric
    row_filter: RowFilter | None
    ef: int | None
    nprobes: int
    refine_factor: int | None
    is_compressed: bool
    within: DistanceRange

    @property
    def lance_can(self) -> bool:
        """Whether Lance searches such vectors by this metric; it does not know int8, and uint8 only by hamming."""
        return is_vector(self.kind) or self.metric == "hamming"

    @property
    def skips_near_ones(self) -> bool:
        """Whether rows that are too near do not count: then the nearest rows say nothing about the others."""
        return not math.isinf(self.within.lower)

    def exact(self, vectors: pa.Array | pa.ChunkedArray, allowed: npt.NDArray[np.bool_]) -> Nearest:
        """Row numbers and distances of the nearest of `vectors`."""
        return exact_search(vectors, self.query, self.k, self.metric, allowed, self.within)

    def to_lance(self, column: str, k: int, **options: Any) -> dict[str, Any]:
        """The query for the `k` nearest rows as Lance takes it; the column may have another name there."""
        query = pa.array(self.query.astype(self.kind.value_type.to_pandas_dtype()), type=self.kind.value_type)
        if self.skips_near_ones:  # a little wider: Lance computes in single precision, what it returns is cut exactly
            lower, upper = self.within.lower, self.within.upper
            slack = _ROUNDING * (float(self.query @ self.query) + abs(lower))
            options["distance_range"] = (lower - slack, None if math.isinf(upper) else upper + slack)
        return {"column": column, "q": query, "k": k, "metric": self.metric, **options}

    @property
    def stream_rows(self) -> int:
        """The rows of one batch of an exact search."""
        return int(max(256, _STREAM_BYTES // max(1, self.kind.list_size * self.kind.value_type.bit_width // 8)))

    def better(
        self,
        best: Nearest,
        vectors: pa.Array | pa.ChunkedArray,
        rows: npt.NDArray[np.int64],
        alive: npt.NDArray[np.bool_],
    ) -> Nearest:
        """The nearest of what is known and of `rows`, which have `vectors`, as far as they are `alive`."""
        if not alive.any():
            return best
        positions, distances = self.exact(vectors, alive)
        merged = np.concatenate((best[1], distances))
        order = np.argsort(merged, kind="stable")[: self.k]
        return np.concatenate((best[0], rows[positions]))[order], merged[order]


def nearest_in_source(source: FreshSource, asked: VectorQuery) -> Nearest:
    """Positions and distances of the nearest matching rows of one source above the base table."""
    if isinstance(source, LargeSsTableSource):
        return _nearest_in_large(source, asked)
    allowed = source.matching(asked.row_filter)
    if not allowed.any():
        return _NOTHING
    if isinstance(source, SsTableSource):
        vectors = source.vectors(asked.column)
        return nearest_in_block(vectors, asked.query, asked.k, asked.metric, allowed, asked.within)
    for index in source.ref.indexes:
        if isinstance(index, HnswMemIndex) and index.column == asked.column and not asked.skips_near_ones:
            rows = source.num_rows
            found = index.search(asked.query, asked.k, rows, ef=asked.ef, allowed=allowed, metric=asked.metric)
            source.ref.memtable.searched()
            near = asked.within.holds(found[1])
            return found[0][near], found[1][near]
    return asked.exact(source.column(asked.column), allowed)


# ---------------------------------------------------------------------------------------------------- large SSTables


def _nearest_in_large(source: LargeSsTableSource, asked: VectorQuery) -> Nearest:
    """By the SSTable's own index if it has one of this metric and finds `k` live rows, else exactly."""
    stored = source.reader.name_of(asked.column, source.schema)
    if stored is None:
        return _NOTHING
    shared = source.reader.pushdown(source.schema, asked.row_filter)
    if shared.late is None and _mirror_metric(source.reader, stored) == asked.metric:
        fetch, rows_left = asked.k + _EXTRA, source.reader.sstable.physical_rows or 0
        while fetch <= max(asked.k + _EXTRA, rows_left // 4):
            found = _ask_mirror(source, stored, asked, fetch, shared.told)
            if found is None:
                break
            offsets, vectors = found
            alive = not_in(offsets, source.hidden)
            positions, distances = asked.exact(vectors, alive)
            if (len(positions) if asked.skips_near_ones else alive.sum()) >= asked.k:
                return offsets[positions], distances
            fetch *= 4
    return _stream_nearest(source, asked)


def _mirror_metric(reader: SsTableReader, stored: str) -> str | None:
    """The metric of the SSTable's vector index on a column, if it has one; a generation never changes."""

    def read() -> str | None:
        with reader.stored.reading():
            for index in reader.stored.dataset.describe_indices():
                if list(index.field_names) == [stored] and index.type_url.endswith("VectorIndexDetails"):
                    return vector_metric(reader.stored.dataset, index.name)
        return None

    return CACHE.fact(("mirror", reader.location.key, reader.shard_id, reader.sstable.path, stored), read)


def _ask_mirror(
    source: LargeSsTableSource, stored: str, asked: VectorQuery, fetch: int, told: str | None
) -> tuple[npt.NDArray[np.int64], pa.Array] | None:
    """Offsets and vectors that the index proposes; None if it has fewer than were asked for."""
    nearest = asked.to_lance(stored, fetch, ef=max(asked.ef or _LARGE_EF, 2 * fetch), use_index=True)
    with source.reader.stored.reading(given=True):
        scanner = source.reader.stored.dataset.scanner(
            columns=[stored], nearest=nearest, filter=told, prefilter=True, with_row_address=True
        )
        rows = scanner.to_table()
    if rows.num_rows < fetch:
        return None
    return one_array(rows.column(ROW_ADDRESS)).to_numpy().astype(np.int64), one_array(rows.column(stored))


def _stream_nearest(source: LargeSsTableSource, asked: VectorQuery) -> Nearest:
    """Exactly, batch by batch: memory holds one batch of one column."""
    best = _NOTHING
    parts = source.reader.batches(source.schema, [asked.column], asked.row_filter, asked.stream_rows)
    for batch, offsets in parts:
        best = asked.better(best, batch.column(asked.column), offsets, live_rows(batch, offsets, source.hidden))
    return best


# --------------------------------------------------------------------------------------------------------- the base


def nearest_in_base(
    merge: Merge, asked: VectorQuery, columns: Sequence[str], *, use_index: bool
) -> tuple[pa.Table, npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The `k` nearest live, matching rows of the base table: the rows that were read, and ids and distances in order."""
    shared, k = pushdown(asked.row_filter), asked.k
    if shared.late is not None or not asked.lance_can:  # or Lance cannot be told what the search is restricted to
        return pa.schema([pa.field(ROW_ID, pa.uint64())]).empty_table(), *_stream_base(merge, asked)
    wanted = list(dict.fromkeys([*columns, *merge.hiding_columns, asked.column]))
    total = merge.snapshot.base.dataset.count_rows()
    fetch = min(total, k + _EXTRA if merge.fresh_keys is not None else k)
    blocked: bytes | None = None
    while True:
        rows = _ask_lance(merge, shared.told, asked, fetch, wanted, use_index=use_index, blocked=blocked)
        live = merge.live_in_base(rows)
        positions, distances = asked.exact(rows.column(asked.column), live) if live.any() else _NOTHING
        if (len(positions) if asked.skips_near_ones else live.sum()) >= min(k, total):
            break
        if rows.num_rows < fetch or fetch >= total:
            if not use_index:
                break
            use_index = False  # the index has no more, or missed some: slower, never short
        else:
            if fetch > k + _EXTRA:  # asked twice: now it pays to find the ids of all superseded rows
                blocked = merge.blocklist()
            fetch = min(total, fetch * 4)
    return rows, row_ids_of(rows)[positions], distances


def _stream_base(merge: Merge, asked: VectorQuery) -> Nearest:
    """Exactly, batch by batch."""
    shared, best = pushdown(asked.row_filter), _NOTHING
    with merge.snapshot.base.reading("searching the base table", given=shared.told is not None):
        scanner = merge.snapshot.base.dataset.scanner(
            columns=list(dict.fromkeys([asked.column, *merge.hiding_columns, *shared.columns])),
            filter=shared.told,
            with_row_id=True,
            batch_size=asked.stream_rows,
        )
        for batch in scanner.to_batches():
            rows = shared.finish(pa.Table.from_batches([shown_rows(merge.snapshot.base, batch)]))
            best = asked.better(best, rows.column(asked.column), row_ids_of(rows), merge.live_in_base(rows))
    return best


def _ask_lance(
    merge: Merge,
    told: str | None,
    asked: VectorQuery,
    fetch: int,
    wanted: list[str],
    *,
    use_index: bool,
    blocked: bytes | None,
) -> pa.Table:
    if fetch == 0:
        fields = [merge.snapshot.schema.columns.field(name) for name in wanted]
        return no_rows(pa.schema([*fields, pa.field(ROW_ID, pa.uint64())]))
    # more than these are probed only where they do not hold enough matching rows
    nearest = asked.to_lance(asked.column, fetch, minimum_nprobes=asked.nprobes, use_index=use_index)
    refine_factor = asked.refine_factor
    if refine_factor is None and asked.is_compressed and use_index:
        refine_factor = -(-_REFINE.get(asked.metric, 1) * asked.k // fetch)
    if refine_factor is not None:
        nearest["refine_factor"] = refine_factor
    with merge.snapshot.base.reading("searching the base table", given=True):
        scanner = merge.snapshot.base.dataset.scanner(
            columns=wanted,
            nearest=nearest,
            filter=told,
            prefilter=True,
            with_row_id=True,
            disable_scoring_autoprojection=True,
            row_addr_blocklist=blocked,
        )
        return shown_rows(merge.snapshot.base, scanner.to_table())
