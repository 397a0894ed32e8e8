"""Vectors in memory: exact where exact, good recall through the graph, never a wrong row."""

from __future__ import annotations

import linecache
import sys
import threading
from functools import partial
from types import FrameType
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_memwal.errors import InvalidInputError, UnavailableError
from lance_memwal.memtable.index import METRICS, HnswIndex, HnswMemIndex, MemIndex, Metric, exact_search
from tests.kit.interrupts import interrupted_everywhere
from tests.kit.writers import SECONDS, in_thread

WIDTHS = {"float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64()}


def _clustered(rows: int, dimension: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(60, dimension))
    return (centres[rng.integers(60, size=rows)] + 0.4 * rng.normal(size=(rows, dimension))).astype(np.float32)


def _array(vectors: np.ndarray, width: pa.DataType = pa.float32()) -> pa.Array:  # noqa: B008
    values = pa.array(vectors.astype(width.to_pandas_dtype()).ravel(), width)
    return pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])


def _index(vectors: np.ndarray, width: pa.DataType = pa.float32(), **options: Any) -> HnswMemIndex:  # noqa: B008
    index = HnswIndex("v", **options).build(pa.schema([("v", pa.list_(width, vectors.shape[1]))]))
    for start in range(0, len(vectors), 50):
        index.insert(pa.record_batch([_array(vectors[start : start + 50], width)], names=["v"]), start)
    return index


def _distances(vectors: np.ndarray, query: np.ndarray, metric: Metric) -> np.ndarray:
    vectors, query = vectors.astype(np.float64), query.astype(np.float64)
    with np.errstate(all="ignore"):
        if metric == "l2":
            return ((vectors - query) ** 2).sum(axis=1)
        products = vectors @ query
        if metric == "dot":
            return 1 - products
        return 1 - products / np.sqrt((vectors**2).sum(axis=1) * (query**2).sum())


def _recall(index: HnswMemIndex, vectors: np.ndarray, queries: np.ndarray, **options: Any) -> float:
    allowed = options.get("allowed")
    shares = []
    for query in queries:
        distances = _distances(vectors, query, index.metric)
        if allowed is not None:
            distances = np.where(allowed, distances, np.inf)
        positions, found = index.search(query, 10, len(vectors), **options)
        assert np.allclose(found, distances[positions], rtol=1e-4, atol=1e-4)
        assert list(found) == sorted(found)
        shares.append(len(set(positions.tolist()) & set(np.argsort(distances, kind="stable")[:10].tolist())) / 10)
    return float(np.mean(shares))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("metric", METRICS)
def test_distances_and_rows_are_those_of_a_flat_search_in_lance(metric: Metric, width: str) -> None:
    data_type = WIDTHS[width]
    vectors = np.random.default_rng(1).normal(size=(40, 8)).astype(np.float32)
    vectors[3], vectors[4], vectors[5, 2], vectors[6, 1] = 0, np.nan, np.nan, np.inf
    rows = [None if i == 7 else row for i, row in enumerate(vectors.astype(data_type.to_pandas_dtype()))]
    column = pa.array(rows, pa.list_(data_type, 8))
    dataset = lance.write_dataset(pa.table({"i": range(40), "v": column}), f"memory://vectors-{metric}-{width}")
    index = HnswIndex("v", metric=metric).build(pa.schema([("v", column.type)]))
    index.insert(pa.record_batch([column], names=["v"]), 0)
    for query in (vectors[0] * 1.1, np.zeros(8, np.float32)):
        nearest = {"column": "v", "q": query, "k": 40, "metric": metric, "use_index": False}
        table = dataset.scanner(nearest=nearest, columns=["i", "_distance"]).to_table()
        expected = dict(zip(table["i"].to_pylist(), table["_distance"].to_pylist(), strict=True))
        for positions, distances in (index.search(query, 40, 40), exact_search(column, query, 40, metric)):
            found = dict(zip(positions.tolist(), distances.tolist(), strict=True))
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_exact_search_equals_sorting_all_distances(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    rows, dimension = data.draw(st.integers(1, 300)), data.draw(st.integers(1, 40))
    scale = data.draw(st.sampled_from([1e-3, 1.0, 1e3]))
    vectors = (rng.integers(-2, 3, size=(rows, dimension)) * scale + data.draw(st.sampled_from([0.0, 100.0]))).astype(
        np.float32
    )
    metric: Metric = data.draw(st.sampled_from(METRICS))
    k = data.draw(st.integers(0, rows + 5))
    allowed = rng.random(rows) < data.draw(st.sampled_from([0.1, 0.5, 1.1]))
    query = vectors[rng.integers(rows)]
    distances = _distances(vectors, query, metric)
    expected = [i for i in np.lexsort((np.arange(rows), distances)) if allowed[i] and not np.isnan(distances[i])][:k]
    positions, found = exact_search(vectors, query, k, metric, allowed)
    assert np.allclose(found, distances[expected], rtol=1e-5, atol=1e-5)
    assert np.allclose(distances[positions], distances[expected], rtol=1e-12, atol=1e-12)
    assert allowed[positions].all()


@pytest.mark.parametrize("metric", METRICS)
def test_graph_finds_nearly_all_of_the_ten_nearest_of_clustered_vectors(metric: Metric) -> None:
    vectors = _clustered(6000, 128)
    index = _index(vectors, metric=metric)
    queries = _clustered(40, 128, seed=0) + 0.1
    assert _recall(index, vectors, queries) == 1.0
    assert index.catch_up() == 0
    assert index.graph_rows == 6000
    assert _recall(index, vectors, queries) >= 0.95


def test_rows_outside_the_graph_are_found_exactly() -> None:
    vectors = _clustered(3000, 32)
    index = _index(vectors[:2000])
    index.catch_up()
    for start in range(2000, 3000, 20):
        index.insert(pa.record_batch([_array(vectors[start : start + 20])], names=["v"]), start)
    assert index.graph_rows == 2000
    for row in range(2000, 3000, 37):
        positions, distances = index.search(vectors[row], 1, 3000)
        assert (positions[0], distances[0]) == (row, 0.0)


def test_graph_is_built_in_portions_and_only_where_it_pays() -> None:
    index = _index(_clustered(3000, 16))
    assert index.catch_up(100) == 2900
    assert index.graph_rows == 100
    assert index.catch_up() == 0
    small = _index(_clustered(900, 16))
    assert small.catch_up() == 0
    assert small.graph_rows == 0


def test_searches_report_how_many_rows_they_had_to_scan() -> None:
    vectors = _clustered(2500, 16)
    index = _index(vectors)
    index.search(vectors[0], 10, 2500)
    assert index.scanned_rows == 2500
    index.catch_up()
    index.search(vectors[0], 10, 2500)
    assert index.scanned_rows == 2500


@pytest.mark.parametrize("share", [0.9, 0.5, 0.2, 0.02, 0.0])
def test_mask_is_respected_and_k_is_filled_from_admitted_rows(share: float) -> None:
    vectors = _clustered(8000, 32)
    index = _index(vectors)
    index.catch_up()
    allowed = np.random.default_rng(2).random(8000) < share
    queries = vectors[:20] + 0.05
    if share > 0:
        assert _recall(index, vectors, queries, allowed=allowed) >= 0.95
    for query in queries:
        positions, _ = index.search(query, 10, 8000, allowed=allowed)
        assert allowed[positions].all()
        assert len(positions) == min(10, int(allowed.sum()))


def test_k_is_filled_when_all_admitted_rows_are_far_away() -> None:
    vectors = _clustered(8000, 16)
    vectors[:5000] += 50
    index = _index(vectors)
    index.catch_up()
    allowed = np.arange(8000) < 5000
    positions, _ = index.search(vectors[7000], 10, 8000, allowed=allowed)
    expected = np.argsort(np.where(allowed, _distances(vectors, vectors[7000], "l2"), np.inf), kind="stable")[:10]
    assert sorted(positions.tolist()) == sorted(expected.tolist())


def test_rows_above_the_watermark_are_not_found() -> None:
    vectors = _clustered(6000, 16)
    index = _index(vectors)
    index.catch_up()
    for n in (0, 1, 700, 3000, 5999):
        positions, _ = index.search(vectors[5999], 10, n)
        assert len(positions) == min(10, n)
        assert (positions < n).all()


def test_other_metric_than_the_graphs_is_searched_exactly() -> None:
    vectors = _clustered(4000, 16)
    index = _index(vectors, metric="l2")
    index.catch_up()
    for metric in METRICS:
        positions, distances = index.search(vectors[5], 10, 4000, metric=metric)
        expected = _distances(vectors, vectors[5], metric)
        assert len(positions) == 10
        assert np.allclose(distances, expected[positions], rtol=1e-4, atol=1e-5)
        if metric != "l2":
            assert positions.tolist() == np.argsort(expected, kind="stable")[:10].tolist()


def test_larger_ef_looks_at_more_candidates() -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(8000, 64)).astype(np.float32)
    index = _index(vectors, m=8, ef_construction=40)
    index.catch_up()
    queries = rng.normal(size=(60, 64)).astype(np.float32)
    assert _recall(index, vectors, queries, ef=400) > _recall(index, vectors, queries, ef=10) + 0.05


@pytest.mark.parametrize("metric", METRICS)
def test_null_nan_zero_and_infinite_rows_do_not_disturb_the_graph(metric: Metric) -> None:
    vectors = _clustered(3000, 16)
    vectors[10:20], vectors[30:40, 3], vectors[50] = np.nan, np.nan, 0.0
    vectors[60, 0] = np.inf
    rows = [None if 100 <= i < 110 else row for i, row in enumerate(vectors)]
    index = HnswIndex("v", metric=metric).build(pa.schema([("v", pa.list_(pa.float32(), 16))]))
    index.insert(pa.record_batch([pa.array(rows, pa.list_(pa.float32(), 16))], names=["v"]), 0)
    before = [index.search(vectors[row], 3000, 3000) for row in (0, 200)]
    index.catch_up()
    assert index.graph_rows == 3000
    for row, (positions, _) in zip((0, 200), before, strict=True):
        again, _ = index.search(vectors[row], 3000, 3000)
        assert again.tolist() == positions.tolist()
        assert not {*range(10, 20), *range(30, 40), *range(100, 110)} & set(again.tolist())
        assert (50 in again) == (metric != "cosine")


def test_infinite_row_that_the_graph_cannot_hold_is_found_beside_it() -> None:
    vectors = _clustered(3000, 16)
    vectors[60, 0] = np.inf
    index = _index(vectors, metric="dot")
    index.catch_up()
    query = np.ones(16, np.float32)
    positions, distances = index.search(query, 10, 3000)
    assert (positions[0], distances[0]) == (60, -np.inf)
    assert index.scanned_rows == 0
    allowed = np.arange(3000) != 60
    assert 60 not in index.search(query, 10, 3000, allowed=allowed)[0]


def test_doubles_keep_their_precision_and_are_ranked_again_behind_the_graph() -> None:
    close = np.full((2000, 4), 1.0) + np.arange(2000)[:, None] * 1e-12
    assert _index(close, pa.float64()).search(close[1234], 1, 2000)[0].tolist() == [1234]
    assert exact_search(_array(close, pa.float64()), close[1234], 1)[0].tolist() == [1234]
    vectors = _clustered(3000, 16).astype(np.float64)
    vectors[1500:1504] = vectors[1500] + np.arange(4)[:, None] * 1e-12
    index = _index(vectors, pa.float64())
    index.catch_up()
    for row in range(1500, 1504):
        nearest, _ = index.search(vectors[row], 4, 3000)
        assert nearest[0] == row
        assert set(nearest.tolist()) == {1500, 1501, 1502, 1503}


def test_query_of_another_dimension_metric_or_mask_length_is_refused() -> None:
    index = _index(_clustered(10, 4))
    for query in ([1.0, 2.0], [[1.0, 2.0, 3.0, 4.0]], "text", [None] * 4 + ["x"]):
        with pytest.raises(InvalidInputError):
            index.search(query, 1, 10)
    with pytest.raises(InvalidInputError, match="metric"):
        index.search([0.0] * 4, 1, 10, metric="hamming")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="mask"):
        index.search([0.0] * 4, 1, 10, allowed=np.ones(9, bool))


def test_query_vector_may_be_a_list_an_array_or_arrow() -> None:
    vectors = _clustered(10, 4)
    index = _index(vectors)
    for query in (vectors[3], vectors[3].tolist(), pa.array(vectors[3]), vectors[3].astype(np.float64)):
        assert index.search(query, 1, 10)[0].tolist() == [3]


def test_memory_grows_with_rows_not_with_a_capacity() -> None:
    raw = 4 * 64
    for rows in (1, 100, 4000):
        index = _index(_clustered(rows, 64))
        index.search([0.0] * 64, 1, rows)
        index.catch_up()
        assert rows * raw <= index.size_bytes <= rows * (raw + 400)


def test_index_keeps_the_protocol_and_ignores_replayed_rows() -> None:
    vectors = _clustered(100, 4)
    index = _index(vectors)
    assert isinstance(index, MemIndex)
    index.insert(pa.record_batch([_array(vectors)], names=["v"]), 0)
    assert index.indexed_rows == 100
    assert len(index.search(vectors[0], 1000, 100)[0]) == 100


def test_searches_see_their_rows_while_rows_come_in_and_the_graph_grows() -> None:
    vectors = _clustered(6000, 24)
    index = HnswIndex("v").build(pa.schema([("v", pa.list_(pa.float32(), 24))]))
    searched = [0]
    written = threading.Event()

    def write() -> None:
        for start in range(0, len(vectors), 20):
            index.insert(pa.record_batch([_array(vectors[start : start + 20])], names=["v"]), start)
        written.set()

    def grow() -> None:
        while not written.is_set() or index.catch_up():
            index.catch_up()

    def search(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while True:
            n = index.indexed_rows
            if n:
                row = int(rng.integers(n))
                positions, distances = index.search(vectors[row], 5, n)
                assert (positions < n).all()
                assert len(positions) == min(5, n)
                assert np.allclose(distances, _distances(vectors, vectors[row], "l2")[positions], atol=1e-4)
                assert positions[0] == row
                searched[0] += 1
            if n == len(vectors) and index.graph_rows > 3000:
                return

    threads = [in_thread(action) for action in (write, grow)]
    threads += [in_thread(partial(search, seed)) for seed in (1, 2)]
    for thread in threads:
        thread.result(4 * SECONDS)
    assert searched[0] > 10


def test_an_interrupted_search_keeps_no_other_from_the_graph() -> None:
    vectors = _clustered(1500, 8)
    index = _index(vectors)
    index.catch_up()
    assert index.graph_rows

    def search() -> list[int]:
        return index.search(vectors[7], 1, len(vectors))[0].tolist()

    def check(where: str) -> None:
        assert in_thread(search).result(10) == [7], where

    assert interrupted_everywhere(search, check, "memtable/index/hnsw.py") > 20


def test_a_search_on_top_of_one_that_has_the_graph_is_refused() -> None:
    """As a signal handler does it: it cannot wait for what it interrupted."""
    vectors = _clustered(1500, 8)
    index, told = _index(vectors), []
    index.catch_up()
    before = sys.gettrace()

    def on_top(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_name != "_ask":
            return None
        return lambda frame, event, arg: None if told or "search(" not in line_of(frame) else told.append(again())

    def line_of(frame: FrameType) -> str:
        return linecache.getline(frame.f_code.co_filename, frame.f_lineno)

    def again() -> str:
        sys.settrace(before)
        with pytest.raises(UnavailableError) as refused:
            index.search(vectors[7], 1, len(vectors))
        return str(refused.value)

    sys.settrace(on_top)
    try:
        assert index.search(vectors[7], 1, len(vectors))[0].tolist() == [7]
    finally:
        sys.settrace(before)
    assert "on top of another call" in told[0]
