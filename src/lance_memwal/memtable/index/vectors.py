"""Vectors in memory: distances as Lance defines them, and exact search.

Owns immutable blocks of vectors and brute-force search over them. Invariants:

1. l2 is the squared Euclidean distance, cosine is 1 - cos, dot is 1 - dot product, hamming is the number of bits that
   differ (of bytes). A row whose distance is not a number (a NaN anywhere, a zero vector under cosine) is no result, as in
   Lance.
2. Exact search is exact: the products only narrow the rows down, with a bound on its rounding error;
   order and distances come from the differences themselves, in double precision.
3. Ties are ordered by row.
4. Graphs are over vectors of floating numbers; vectors of bytes (int8, uint8) are always searched exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.keys import one_array

Metric = Literal["l2", "cosine", "dot", "hamming"]
METRICS: tuple[Metric, ...] = ("l2", "cosine", "dot")  # of graphs
SEARCH_METRICS: tuple[Metric, ...] = (*METRICS, "hamming")
_SHOWN = 1e-6  # how far a distance can be off when it is shown in single precision
Matrix = npt.NDArray[np.floating]
Mask = npt.NDArray[np.bool_]
Nearest = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


def is_vector(data_type: pa.DataType) -> bool:
    """Return whether a column of this type can have a vector index."""
    is_list = pa.types.is_fixed_size_list(data_type) and data_type.list_size > 0
    return bool(is_list and pa.types.is_floating(data_type.value_type))


def is_searchable(data_type: pa.DataType) -> bool:
    """Return whether a column of this type can be searched by vector."""
    is_list = pa.types.is_fixed_size_list(data_type) and data_type.list_size > 0
    return is_vector(data_type) or bool(is_list and data_type.value_type in (pa.int8(), pa.uint8()))


@dataclass(frozen=True, slots=True)
class DistanceRange:
    """Distances from `lower` up to, not including, `upper`."""

    lower: float = -math.inf
    upper: float = math.inf

    def holds(self, distances: npt.NDArray[np.floating]) -> Mask:
        """Per distance, as it is shown: whether it is within."""
        shown = distances.astype(np.float32)
        return np.asarray((shown >= np.float32(self.lower)) & (shown < np.float32(self.upper)))


ANY_DISTANCE = DistanceRange()


def check_search(metric: str, allowed: Mask | None, n: int, metrics: Sequence[Metric] = METRICS) -> None:
    """Raise InvalidInputError for a metric that is none of these, or a mask that does not reach row `n`."""
    if metric not in metrics:
        raise InvalidInputError(f"metric must be one of {', '.join(metrics)}, not {metric!r}")
    if allowed is not None and len(allowed) < n:
        raise InvalidInputError(f"the mask has {len(allowed)} entries for {n} rows")


def query_vector(query: npt.ArrayLike | pa.Array, dimension: int, precision: npt.DTypeLike) -> npt.NDArray[np.float64]:
    """Return `query` as one vector of `dimension` numbers, rounded to the column's `precision` as Lance does.

    Nothing is rounded to a byte: a query for bytes has whole numbers within their range.
    """
    try:
        values = query.to_numpy(zero_copy_only=False) if isinstance(query, pa.Array) else query
        given = np.asarray(values, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            vector = given.astype(precision).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError("the query vector is not a list of numbers") from error
    if vector.shape != (dimension,):
        raise InvalidInputError(f"the query vector has shape {vector.shape}, the column has {dimension} dimensions")
    if np.isnan(given).any():
        raise InvalidInputError("the query vector holds a NaN or a null: no row is near it")
    if np.issubdtype(precision, np.integer) and not (vector == given).all():
        raise InvalidInputError(f"the query vector holds numbers that are no {np.dtype(precision).name}")
    return vector


@dataclass(frozen=True, slots=True)
class VectorBlock:
    """The vectors of the rows [start, start + len): a contiguous matrix in float32 (float64 for float64 columns).

    `squares` are the squared norms. `valid` marks rows that are neither null nor hold a NaN; None means all.
    """

    start: int
    matrix: Matrix
    squares: npt.NDArray[np.floating]
    valid: Mask | None

    @classmethod
    def build(cls, start: int, arrays: Sequence[pa.Array]) -> VectorBlock:
        """Return the block of consecutive fixed-size-list arrays; their values are copied."""
        array = pa.concat_arrays(arrays)
        valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
        precision = np.float64 if array.type.value_type == pa.float64() else np.float32
        return cls.of_matrix(start, _values(array).astype(precision, copy=False), valid)

    @classmethod
    def of_matrix(cls, start: int, matrix: Matrix, valid: Mask | None = None) -> VectorBlock:
        """Return a block over `matrix`, which must not change afterwards."""
        with np.errstate(over="ignore", invalid="ignore"):
            squares = _squares(matrix)
        numbers = ~np.isnan(squares)
        valid = numbers if valid is None else valid & numbers
        return cls(start, matrix, squares, None if valid.all() else valid)

    @classmethod
    def join(cls, blocks: Sequence[VectorBlock]) -> VectorBlock:
        """Return consecutive blocks as one."""
        if len(blocks) == 1:
            return blocks[0]
        valid = None
        if any(block.valid is not None for block in blocks):
            valid = np.concatenate([np.ones(len(b), bool) if b.valid is None else b.valid for b in blocks])
        matrix = np.concatenate([block.matrix for block in blocks])
        return cls(blocks[0].start, matrix, np.concatenate([block.squares for block in blocks]), valid)

    def __len__(self) -> int:
        return len(self.matrix)

    @property
    def end(self) -> int:
        """The position after the last row."""
        return self.start + len(self.matrix)

    @property
    def size_bytes(self) -> int:
        """Resident bytes."""
        return self.matrix.nbytes + self.squares.nbytes + (0 if self.valid is None else self.valid.nbytes)

    def rows(self, low: int, high: int, allowed: Mask | None) -> npt.NDArray[np.int64]:
        """Return the valid rows of this block with positions in [low, high) that `allowed` admits."""
        first, last = max(low - self.start, 0), min(high - self.start, len(self))
        if last <= first:
            return np.empty(0, np.int64)
        kept = np.ones(last - first, bool) if self.valid is None else self.valid[first:last].copy()
        if allowed is not None:
            kept &= allowed[self.start + first : self.start + last]
        return np.flatnonzero(kept) + first

    def candidates(
        self,
        vector: npt.NDArray[np.float64],
        k: int,
        metric: Metric,
        rows: npt.NDArray[np.int64],
        within: DistanceRange = ANY_DISTANCE,
    ) -> npt.NDArray[np.int64]:
        """Return a part of `rows` that certainly holds the `k` nearest of them that are `within`."""
        if len(rows) <= k or metric == "hamming":
            return rows
        everything = len(rows) == len(self)
        matrix = self.matrix if everything else self.matrix[rows]
        squares = (self.squares if everything else self.squares[rows]).astype(np.float64)
        with np.errstate(all="ignore"):
            # one thread: a product over all cores would spin against the writer's
            products = np.vecdot(matrix, vector.astype(matrix.dtype)).astype(np.float64)
            estimate, error = _estimate(products, squares, float(vector @ vector), metric, _rounding(matrix))
            lowest, highest = estimate - error, estimate + error
        unsure = ~np.isfinite(lowest) | ~np.isfinite(highest)
        lowest[unsure], highest[unsure] = -np.inf, np.inf
        slack = abs(within.lower) * _SHOWN if within.lower > -np.inf else 0.0
        certain = highest[lowest >= within.lower + slack]  # surely not too near
        limit = np.partition(certain, k - 1)[k - 1] if len(certain) >= k else np.inf
        kept: npt.NDArray[np.int64] = rows[(lowest <= limit) & (highest >= within.lower - slack)]
        return kept

    def distances(
        self, vector: npt.NDArray[np.float64], metric: Metric, rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return the exact distances of `rows`; NaN where there is none."""
        matrix = self.matrix[rows].astype(np.float64)
        with np.errstate(all="ignore"):
            if metric == "l2":
                return _squares(matrix - vector)
            if metric == "hamming":
                return _bits(matrix.astype(np.uint8) ^ vector.astype(np.uint8))
            products: npt.NDArray[np.float64] = matrix @ vector
            if metric == "cosine":
                products = products / np.sqrt(_squares(matrix) * (vector @ vector))
            return 1.0 - products


def _squares(matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The squared norm of every row."""
    squares: npt.NDArray[Any] = np.einsum("ij,ij->i", matrix, matrix)
    return squares


def _bits(matrix: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """How many bits every row has."""
    return np.asarray(np.bitwise_count(matrix).sum(axis=1), np.float64)


def _values(array: pa.Array) -> Matrix:
    """The values of a fixed-size-list array as rows, NaN for null elements; null rows hold anything."""
    size = array.type.list_size
    values = array.values.slice(array.offset * size, len(array) * size)
    rows: Matrix = values.to_numpy(zero_copy_only=False).reshape(len(array), size)
    return rows


def _rounding(matrix: Matrix) -> float:
    """A bound on the relative rounding error of a product of two rows."""
    return float(np.finfo(matrix.dtype).eps) * float(matrix.shape[1] + 8)


def _estimate(
    products: npt.NDArray[np.float64], squares: npt.NDArray[np.float64], square: float, metric: Metric, rounding: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Distances from products and squared norms, and how far they can be off."""
    if metric == "l2":
        return squares + square - 2.0 * products, rounding * (squares + square)
    norms = np.sqrt(squares * square)
    if metric == "dot":
        return 1.0 - products, rounding * norms
    return 1.0 - products / norms, np.full(len(products), 4.0 * rounding)


def nearest_of(
    positions: npt.NDArray[np.int64],
    distances: npt.NDArray[np.float64],
    k: int,
    within: DistanceRange = ANY_DISTANCE,
) -> Nearest:
    """Return the `k` nearest of scored positions that are `within`, nearest first; those without a distance are left out."""
    known = ~np.isnan(distances)
    if within != ANY_DISTANCE:
        known &= within.holds(distances)
    positions, distances = positions[known], distances[known]
    order = np.lexsort((positions, distances))[:k]
    return positions[order], distances[order].astype(np.float32)


def exact_search(
    vectors: pa.Array | Matrix,
    query: npt.ArrayLike | pa.Array,
    k: int,
    metric: Metric = "l2",
    allowed: Mask | None = None,
    within: DistanceRange = ANY_DISTANCE,
) -> Nearest:
    """Return row numbers and distances of the `k` nearest of `vectors` that `allowed` admits and are `within`, exactly."""
    if isinstance(vectors, pa.Array | pa.ChunkedArray):
        vectors = one_array(vectors)
        block, precision = VectorBlock.build(0, [vectors]), vectors.type.value_type.to_pandas_dtype()
    else:
        precision = vectors.dtype
        block = VectorBlock.of_matrix(
            0, vectors.astype(np.float64 if precision == np.float64 else np.float32, copy=False)
        )
    check_search(metric, allowed, len(block), SEARCH_METRICS if precision == np.uint8 else METRICS)
    return nearest_in_block(block, query_vector(query, block.matrix.shape[1], precision), k, metric, allowed, within)


def nearest_in_block(
    block: VectorBlock,
    vector: npt.NDArray[np.float64],
    k: int,
    metric: Metric,
    allowed: Mask | None,
    within: DistanceRange = ANY_DISTANCE,
) -> Nearest:
    """Return row numbers and distances of the `k` nearest rows `within`, of a block that begins with row 0, exactly."""
    rows = block.rows(0, len(block), allowed)
    rows = block.candidates(vector, k, metric, rows, within) if k > 0 else rows[:0]
    return nearest_of(rows, block.distances(vector, metric, rows), k, within)
