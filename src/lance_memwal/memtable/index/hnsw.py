"""Vector index of a memtable: an HNSW graph over the settled rows, exact search over the rest.

Owns the vector blocks and the graph of one column. Invariants:

1. Every row below the watermark is searched: rows that the graph holds through it, all others exactly (also the few
   settled ones that it cannot hold, with infinite values). A put never waits for the graph; `catch_up` grows it in
   the background, and only once there are enough rows for it to pay.
2. The graph only proposes rows. Distances and order are recomputed from the column's own values.
3. What the graph cannot answer well (another metric, a narrow mask, too few proposals) is searched exactly:
   slower, never short and never empty.
4. The graph points into blocks, which are immutable and never moved once they are in it.
5. At most one thread is inside the graph at a time (growing needs it alone); slices are small and waiting is in turn,
   so that a search waits for one slice at most.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index.pending import PendingColumn
from lance_memwal.memtable.index.vectors import (
    Metric,
    Nearest,
    VectorBlock,
    check_search,
    is_vector,
    nearest_of,
    query_vector,
)
from lance_memwal.process.turns import Taking
from lance_memwal.process.waiting import refuse_on_top

_GRAPH_METRICS = {"l2": "l2sq", "cosine": "cos", "dot": "ip"}
_DEFAULT_EF = 128
_SEAL_ROWS = 1024  # below this many rows, exact search is as fast as the graph
_SLICE_ROWS = 64
_SPARE = 16  # proposals beyond k, for the exact ranking to choose from
_WORTH_SCANS = 64  # a row costs about a thousand comparisons to put into the graph; searches wait for theirs
_NARROW_ROWS = 4096
_NARROW_SHARE = 0.05
Mask = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]


class HnswMemIndex(PendingColumn):
    """Finds the nearest rows of one vector column."""

    def __init__(
        self,
        name: str,
        column: str,
        data_type: pa.DataType,
        *,
        metric: Metric = "l2",
        m: int = 16,
        ef_construction: int = 100,
    ) -> None:
        if not is_vector(data_type):
            raise InvalidInputError(f"column {column!r} of type {data_type} cannot have a vector index")
        super().__init__(name, column)
        self._dimension = int(data_type.list_size)
        self._precision = data_type.value_type.to_pandas_dtype()
        self._narrow = self._precision != np.float64
        self._metric: Metric = metric
        self._m = m
        self._ef_construction = ef_construction
        self._blocks: tuple[VectorBlock, ...] = ()
        self._sealed_rows = 0
        self._graph: Any = None  # usearch.index.Index; its annotations hide the setter of `expansion_search`
        self._graph_rows = 0
        self._scanned_rows = 0
        self._scanned_before = 0
        self._outside: Int64s = np.empty(0, np.int64)
        # reentrant, these three: so that a signal handler finds out that it must not wait
        self._state = threading.RLock()
        self._building = threading.Lock()
        self._turn = threading.RLock()
        self._inside = threading.RLock()

    def __repr__(self) -> str:
        return (
            f"HnswMemIndex(name={self._name!r}, column={self._column!r}, metric={self._metric!r}, "
            f"indexed_rows={self._indexed_rows}, graph_rows={self._graph_rows})"
        )

    @property
    def metric(self) -> Metric:
        """The metric of the graph."""
        return self._metric

    @property
    def graph_rows(self) -> int:
        """Rows that are searched through the graph; the others are searched exactly."""
        return self._graph_rows

    @property
    def scanned_rows(self) -> int:
        """Rows that searches compared one by one so far: the demand that says whether `catch_up` is worth its work."""
        return self._scanned_rows

    @property
    def wants_graph(self) -> bool:
        """Whether searches compared so many rows one by one that building their graph is worth its work."""
        backlog = self._indexed_rows - self._graph_rows
        return backlog >= _SEAL_ROWS and self._scanned_rows - self._scanned_before >= _WORTH_SCANS * backlog

    @property
    def size_bytes(self) -> int:
        """Resident bytes of vectors, graph and bookkeeping."""
        per_node = 4 * (2 * self._m + 1) + 64 + (0 if self._narrow else 4 * self._dimension)
        vectors = sum(block.size_bytes for block in self._blocks)
        return vectors + per_node * self._graph_rows + self._pending_bytes()

    def catch_up(self, max_rows: int | None = None) -> int:
        """Grow the graph (by all settled rows, or about `max_rows`); return the rows that are worth another call.

        The last rows, fewer than a thousand or so, stay outside: exact search is as fast there.
        """
        with self._building:
            self._scanned_before = self._scanned_rows
            self._seal()
            target = self._sealed_rows if max_rows is None else min(self._sealed_rows, self._graph_rows + max_rows)
            for block in self._blocks:
                while block.start <= self._graph_rows < min(block.end, target):
                    self._grow(block, min(self._graph_rows + _SLICE_ROWS, block.end, target))
        backlog = self._indexed_rows - self._graph_rows
        return backlog if backlog >= _SEAL_ROWS or self._graph_rows < self._sealed_rows else 0

    def search(
        self,
        query: npt.ArrayLike | pa.Array,
        k: int,
        n: int,
        *,
        ef: int | None = None,
        allowed: Mask | None = None,
        metric: Metric | None = None,
    ) -> Nearest:
        """Return positions and distances of the `k` nearest rows below `n` that `allowed` admits, nearest first.

        A `metric` other than the graph's is searched exactly. `allowed` is indexed by position.
        """
        vector = query_vector(query, self._dimension, self._precision)
        metric = metric or self._metric
        check_search(metric, allowed, n)
        blocks = self._settle()
        positions = None
        settled = min(self._graph_rows, n)
        if k > 0 and settled > 0 and metric == self._metric:
            positions = self._propose(vector, k, settled, ef or _DEFAULT_EF, allowed)
        found, distances = [np.empty(0, np.int64)], [np.empty(0, np.float64)]
        for block in blocks if k > 0 else ():
            rows = block.rows(0 if positions is None else settled, n, allowed)
            self._scanned_rows += len(rows)
            rows = block.candidates(vector, k, metric, rows)
            if positions is not None:
                proposed = positions[(positions >= block.start) & (positions < block.end)] - block.start
                rows = np.concatenate((proposed, rows))
            found.append(rows + block.start)
            distances.append(block.distances(vector, metric, rows))
        return nearest_of(np.concatenate(found), np.concatenate(distances), k)

    def _settle(self) -> tuple[VectorBlock, ...]:
        """Copy pending vectors into blocks, keep the movable blocks few, and return all blocks."""
        refuse_on_top(self._state, "a search")
        with self._state:
            count = len(self._pending)
            if count:
                pending = self._pending[:count]
                newest = VectorBlock.build(pending[0][0], [array for _, array in pending])
                blocks = [*self._blocks, newest]
                while (
                    len(blocks) > 1 and blocks[-2].start >= self._sealed_rows and 2 * len(blocks[-1]) > len(blocks[-2])
                ):
                    blocks[-2:] = [VectorBlock.join(blocks[-2:])]
                self._blocks = tuple(blocks)
                del self._pending[:count]
            return self._blocks

    def _seal(self) -> None:
        """Make one immovable block of the rows after the sealed ones, if they are enough."""
        self._settle()
        with self._state:
            movable = [block for block in self._blocks if block.start >= self._sealed_rows]
            if sum(len(block) for block in movable) >= _SEAL_ROWS:
                sealed = VectorBlock.join(movable)
                self._blocks = (*self._blocks[: len(self._blocks) - len(movable)], sealed)
                self._sealed_rows = sealed.end

    def _grow(self, block: VectorBlock, end: int) -> None:
        """Put the rows from `graph_rows` to `end`, which `block` holds, into the graph."""
        rows, outside = self._graphable(block, self._graph_rows, end)
        keys = (rows + block.start).astype(np.uint64)
        with self._alone():
            if self._graph is None:
                self._graph = self._new_graph()
            if self._narrow and len(rows) == end - self._graph_rows:
                self._graph.add(keys, block.matrix[rows[0] : rows[0] + len(rows)], copy=False, threads=1)
            elif len(rows):
                self._graph.add(keys, block.matrix[rows].astype(np.float32), copy=True, threads=1)
            self._outside = np.concatenate((self._outside, outside + block.start))
            self._graph_rows = end

    def _graphable(self, block: VectorBlock, low: int, high: int) -> tuple[Int64s, Int64s]:
        """Rows that can be in the graph, and rows that have a distance but are not finite there."""
        rows = block.rows(low, high, None)
        with np.errstate(over="ignore"):
            finite = np.isfinite(block.squares[rows].astype(np.float32))
        inside = rows[finite]
        if self._metric == "cosine":
            inside = inside[block.squares[inside] > 0]
        return inside, rows[~finite]

    def _new_graph(self) -> Any:
        from usearch.index import Index  # only tables with vectors need it, and it takes a while to load

        return Index(
            ndim=self._dimension,
            metric=_GRAPH_METRICS[self._metric],
            dtype="f32",
            connectivity=self._m,
            expansion_add=self._ef_construction,
            enable_key_lookups=False,
        )

    def _propose(
        self, vector: npt.NDArray[np.float64], k: int, settled: int, ef: int, allowed: Mask | None
    ) -> Int64s | None:
        """Positions below `settled` that hold the nearest admitted rows, or None where exact search is better."""
        admitted = settled if allowed is None else int(np.count_nonzero(allowed[:settled]))
        narrow = vector.astype(np.float32)
        if admitted == 0 or not np.isfinite(narrow).all():
            return None
        if admitted < settled and (admitted <= _NARROW_ROWS or admitted < _NARROW_SHARE * self._graph_rows):
            return None
        wanted = int((1.0 if admitted == self._graph_rows else 1.3) * k * self._graph_rows / admitted) + _SPARE
        while wanted <= max(self._graph_rows // 4, 4 * (k + _SPARE)):
            positions = self._ask(narrow, wanted, max(ef, wanted))
            exhausted = len(positions) < wanted
            positions = positions[positions < settled]
            if allowed is not None:
                positions = positions[allowed[positions]]
            if len(positions) >= k:
                return np.concatenate((positions, self._admitted_outside(settled, allowed)))
            if exhausted:
                return None
            wanted *= 4
        return None

    def _admitted_outside(self, settled: int, allowed: Mask | None) -> Int64s:
        outside = self._outside[self._outside < settled]
        return outside if allowed is None else outside[allowed[outside]]

    def _ask(self, vector: npt.NDArray[np.float32], count: int, ef: int) -> Int64s:
        with self._alone():
            graph = self._graph
            if graph is None or len(graph) == 0:
                return np.empty(0, np.int64)
            graph.expansion_search = ef
            matches = graph.search(vector, min(count, len(graph)), threads=1)
            return np.asarray(matches.keys).astype(np.int64)

    def _alone(self) -> Taking:
        """Hold the graph."""
        refuse_on_top(self._turn, "a search")
        refuse_on_top(self._inside, "a search")
        return Taking(self._inside, self._in_line)

    def _in_line(self) -> bool:
        """Whoever waits next holds the turn, so a busy builder cannot starve a search."""
        with self._turn:
            self._inside.acquire()
        return True
