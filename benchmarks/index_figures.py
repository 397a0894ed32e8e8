"""How fast the in-memory indexes are: inserts, first and later queries, resident bytes.

Prints one line per figure. Run with `python benchmarks/index_figures.py [rows]`; the default takes under a minute.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from lance_memwal.memtable.index import (
    BTreeIndex,
    BTreeMemIndex,
    Equals,
    FtsIndex,
    HnswIndex,
    In,
    IndexSpec,
    Match,
    MemIndex,
    Phrase,
    Predicate,
    Range,
)

BATCH_ROWS = 20


def _report(what: str, value: float, unit: str) -> None:
    print(f"{what:<52} {value:>12,.1f} {unit}")


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _p50_us(query: Callable[[int], object], times: int = 50) -> float:
    return 1e6 * float(np.median([_seconds(partial(query, i)) for i in range(times)]))


def _insert(spec: IndexSpec, column: pa.Array) -> MemIndex:
    """Put `column` in by small batches and report the cost of a batch and of building what was put off."""
    batch = pa.record_batch([column], names=[spec.column])
    batches = [batch.slice(start, BATCH_ROWS) for start in range(0, len(column), BATCH_ROWS)]
    index = spec.build(batch.schema)

    def insert() -> None:
        for i, part in enumerate(batches):
            index.insert(part, i * BATCH_ROWS)

    kind = type(spec).__name__
    _report(f"{kind}: insert of {BATCH_ROWS} rows", 1e6 * _seconds(insert) / len(batches), "us")
    return index


def _build(index: MemIndex, rows: int) -> None:
    kind = type(index).__name__
    _report(f"{kind}: build", rows / _seconds(index.catch_up), "rows/s")
    _report(f"{kind}: resident", index.size_bytes / rows, "bytes/row")


def bench_btree(rows: int) -> None:
    """Numbers and strings."""
    values = np.random.default_rng(0).integers(0, rows, rows)
    for name, column in (("int64", pa.array(values)), ("string", pa.array([f"key-{v}" for v in values.tolist()]))):
        index = BTreeIndex("x").build(pa.schema([("x", column.type)]))
        for start in range(0, rows, BATCH_ROWS):
            index.insert(pa.record_batch([column.slice(start, BATCH_ROWS)], names=["x"]), start)
        _build(index, rows)
        some = [column[i].as_py() for i in range(100)]
        low, high = sorted(some[:2])
        equality = [Equals(value) for value in some]
        for what, asked in (("equality", equality), ("IN of 100", [In(some)]), ("range", [Range(low, high)])):
            _report(f"BTree {name}: {what}", _p50_us(partial(_positions, index, asked, rows)), "us p50")


def _positions(index: BTreeMemIndex, asked: Sequence[Predicate], rows: int, number: int) -> object:
    return index.positions(asked[number % len(asked)], rows)


def bench_text(rows: int) -> None:
    """Twelve words a row, frequencies as in natural text."""
    rng = random.Random(0)
    words = [f"w{i}" for i in range(30_000)]
    weights = [1 / (i + 1) for i in range(len(words))]
    column = pa.array([" ".join(line) for line in _lines(rng, words, weights, rows)])
    index = _insert(FtsIndex("t"), column)
    _build(index, rows)
    assert hasattr(index, "search")
    queries: dict[str, object] = {
        "rare term": "w2000",
        "common term": "w5",
        "three terms": "w10 w200 w3000",
        "two terms, and": Match("w10 w200", operator="and"),
        "phrase": Phrase("w10 w20"),
        "fuzzy": Match("w100", fuzziness=1),
    }
    for name, query in queries.items():
        _report(f"Text: {name}", _p50_us(partial(_search_text, index, query, rows)), "us p50")


def _search_text(index: Any, query: object, rows: int, _: int) -> object:
    return index.search(query, rows, 10)


def _lines(rng: random.Random, words: list[str], weights: list[float], rows: int) -> Sequence[list[str]]:
    drawn = rng.choices(words, weights, k=12 * rows)
    return [drawn[i : i + 12] for i in range(0, len(drawn), 12)]


def bench_vectors(rows: int, dimension: int) -> None:
    """Clustered vectors: brute force, then the graph, then the graph behind masks."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(200, dimension))
    noise = 0.5 * rng.normal(size=(rows, dimension))
    vectors = (centres[rng.integers(200, size=rows)] + noise).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dimension)
    index = _insert(HnswIndex("v"), column)
    assert hasattr(index, "search")
    queries = vectors[rng.integers(rows, size=100)] + 0.2 * rng.normal(size=(100, dimension)).astype(np.float32)
    first = 1e3 * _seconds(lambda: index.search(queries[0], 10, rows))
    _report(f"Vectors {dimension}d: first search, copies the vectors", first, "ms")
    _report(f"Vectors {dimension}d: brute force", _p50_us(lambda i: index.search(queries[i], 10, rows)), "us p50")
    exact = [set(index.search(query, 10, rows)[0].tolist()) for query in queries]
    _build(index, rows)
    _report(f"Vectors {dimension}d: graph", _p50_us(lambda i: index.search(queries[i], 10, rows)), "us p50")
    found = [set(index.search(query, 10, rows)[0].tolist()) for query in queries]
    recall = np.mean([len(a & b) / 10 for a, b in zip(exact, found, strict=True)])
    _report(f"Vectors {dimension}d: recall@10", 100 * float(recall), "%")
    for share in (0.5, 0.01):
        mask = rng.random(rows) < share
        what = f"Vectors {dimension}d: {share:.0%} of the rows allowed"
        _report(what, _p50_us(partial(_search_masked, index, queries, rows, mask)), "us p50")


def _search_masked(index: Any, queries: np.ndarray, rows: int, mask: np.ndarray, number: int) -> object:
    return index.search(queries[number], 10, rows, allowed=mask)


def main() -> None:
    """Run everything."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    bench_btree(rows)
    bench_text(rows)
    bench_vectors(rows, 128)
    bench_vectors(rows // 5, 512)


if __name__ == "__main__":
    main()
