"""Vector search of a table: right rows, live rows, k rows, in every tier and with every index or none."""

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.errors import InvalidInputError
from tests.harness.profile import scaled
from tests.kit.effort import calls_of
from tests.kit.search import SETTINGS, Row, Spread, distances, ids, schema_of, spread, to_table


def queries(made: Spread, count: int) -> list[np.ndarray]:
    return [made.make.vector() for _ in range(count)]


def recall(made: Spread, metric: str, count: int, **options: Any) -> float:
    hits = 0
    for query in queries(made, count):
        found = ids(made.table.search(vector=query, k=10, columns=["id"], **options))
        assert len(found) == 10
        hits += len(set(found) & set(made.exact(query, 10, metric)))
    return hits / (10 * count)


@pytest.mark.scaled
@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_recall_at_10_is_over_95_percent_over_all_tiers_with_updates_and_deletes(tmp_path: Path, metric: str) -> None:
    rows, dim = scaled(ci=3_000, prove=50_000), scaled(ci=32, prove=128)
    index = {"index_type": "IVF_PQ", "num_partitions": scaled(ci=4, prove=64), "num_sub_vectors": dim // 4}
    made = spread(tmp_path, rows=rows, dim=dim, metric=metric, index=index)
    for memtable in made.writer.in_memory_memtable_refs().ascending:
        for graph in memtable.indexes:
            graph.catch_up()
    assert recall(made, metric, scaled(ci=30, prove=300)) >= 0.95
    made.writer.close()


@pytest.mark.parametrize(("index", "metric"), [(None, "l2"), (None, "cosine"), (None, "dot"), ("l2", "cosine")])
def test_search_without_an_index_of_its_metric_is_exact(tmp_path: Path, index: str | None, metric: str) -> None:
    """Lessons 32 and 34, E1.3: no index means slower, never empty; the metric of the query is compared with every index."""
    made = spread(tmp_path, metric=index)
    for query in queries(made, 20):
        assert ids(made.table.search(vector=query, k=10, metric=metric)) == made.exact(query, 10, metric)
    made.writer.close()


def test_the_metric_of_the_base_index_is_the_default(tmp_path: Path) -> None:
    made = spread(tmp_path, metric="cosine")
    query = made.make.vector()
    found = made.table.search(vector=query, k=5)
    rows = [made.live[key] for key in ids(found)]
    expected = distances(np.stack([row.vector for row in rows]), query, "cosine")  # type: ignore[arg-type]
    np.testing.assert_allclose(found.column("_distance").to_numpy(), expected, atol=1e-5)
    made.writer.close()


def test_rows_in_unindexed_base_fragments_are_found(tmp_path: Path) -> None:
    """E1.3: a row that was appended to the base after its index is found."""
    made = spread(tmp_path, nulls=0.0)
    made.append_to_base(range(9_000_000, 9_000_005))
    for key in range(9_000_000, 9_000_005):
        vector = made.live[key].vector
        assert vector is not None
        assert ids(made.table.search(vector=vector, k=1)) == [key]
    made.writer.close()


def test_a_stale_copy_never_stands_in_when_the_new_one_is_far_away(tmp_path: Path) -> None:
    """Lesson 22: the fresh version falls out of the top k; the old one must not take its place, in any tier."""
    schema = schema_of(4)
    near, far = np.zeros(4, np.float32), np.full(4, 100, np.float32)
    rows = [Row(i, near + i * 0.001, None, 0) for i in range(50)]
    table = mw.create_table(str(tmp_path / "t"), to_table(rows, schema), primary_key="id")
    table.dataset.create_index("v", "IVF_FLAT", num_partitions=1, name="v_ann")
    with table.shard_writer(**SETTINGS) as writer:
        for step in range(3):  # from the base to an SSTable, to the next one, to memory
            moved = range(step * 10, step * 10 + 10)
            writer.put(to_table([Row(i, far + i, None, 0) for i in moved], schema))
            expected = list(range(step * 10 + 10, step * 10 + 20))
            assert ids(table.search(vector=near, k=10)) == expected
            if step < 2:
                writer.force_seal_active()
                writer.wait_for_flush_drain(100)
            assert ids(table.search(vector=near, k=10)) == expected


def test_duplicates_of_a_key_in_one_memtable_count_once(tmp_path: Path) -> None:
    """Lesson 21: several versions in one memtable, in one put and in several; lesson 24: and in frozen ones."""
    schema = schema_of(4)
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id")
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(to_table([Row(1, np.full(4, i, np.float32), None, i) for i in range(5)], schema))
        writer.put(to_table([Row(2, np.full(4, 3, np.float32), None, 0)], schema))
        writer.put(to_table([Row(1, np.full(4, 9, np.float32), None, 9)], schema))
        found = table.search(vector=np.zeros(4), k=10)
        assert list(zip(ids(found), found.column("tag").to_pylist(), strict=True)) == [(2, 0), (1, 9)]


def test_recency_is_decided_before_the_filter(tmp_path: Path) -> None:
    """Lesson 23: the newer row does not match the filter; the older one that does is still hidden."""
    schema = schema_of(4)
    rows = [Row(i, np.full(4, i, np.float32), "amber", 1) for i in range(20)]
    table = mw.create_table(str(tmp_path / "t"), to_table(rows, schema), primary_key="id")
    with table.shard_writer(**SETTINGS) as writer:
        for step in range(3):
            changed = [Row(i, np.full(4, i, np.float32), "amber", 2) for i in range(step * 2, step * 2 + 2)]
            writer.put(to_table(changed, schema))
            first = step * 2 + 2
            assert ids(table.search(vector=np.zeros(4), k=3, filter="tag = 1")) == [first, first + 1, first + 2]
            assert set(ids(table.search(text="amber", column="t", k=50, filter="tag = 1"))) == set(range(first, 20))
            writer.force_seal_active()
            writer.wait_for_flush_drain(100)


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
@pytest.mark.parametrize("key", [int, "{:04}".format], ids=["numbers", "texts"])
def test_superseded_rows_take_no_places_and_make_few_requests_more(tmp_path: Path, key: Any, stable: bool) -> None:
    """Lesson 25: what is nearest, or first in an order, does not depend on how much before it was deleted; nor does the work."""
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(np.arange(6_000, dtype=np.float32), 4)), 4)
    keys = pa.array([key(i) for i in range(6_000)])
    schema = pa.schema(
        [pa.field("id", keys.type, nullable=False), pa.field("v", vectors.type), pa.field("n", pa.int64())]
    )
    uri = str(tmp_path / "t")
    base = lance.write_dataset(
        pa.table([keys, vectors, range(6_000)], schema=schema), uri, enable_stable_row_ids=stable
    )
    base.create_index("v", "IVF_FLAT", num_partitions=4, name="v_ann")
    table, calls = mw.enable(uri, primary_key="id"), list[tuple[int, int]]()
    with table.shard_writer(**SETTINGS) as writer:
        for start, end in ((0, 500), (500, 2_500), (2_500, 5_000)):
            writer.delete(keys.slice(start, end - start))
            if end == 2_500:
                writer.force_seal_active()
                writer.wait_for_flush_drain(100)

            def nearest(end: int = end) -> None:
                found = table.search(vector=np.zeros(4), k=10, columns=["n"], nprobes=1)
                assert found["n"].to_pylist() == list(range(end, end + 10))

            def first(end: int = end) -> None:
                found = table.scan(["n"], order_by=["n"], limit=10).to_table()
                assert found["n"].to_pylist() == list(range(end, end + 10))

            nearest()  # also finds the ids of superseded rows, once
            first()
            calls.append((calls_of(nearest), calls_of(first)))
    for few, *_, many in zip(*calls, strict=True):
        assert many < 1.17 * few


def test_k_is_filled_although_few_rows_match_the_filter(tmp_path: Path) -> None:
    made = spread(tmp_path, rows=2_000, index={"num_partitions": 8})
    for query in queries(made, 10):
        found = made.table.search(vector=query, k=10, filter="tag = 3 AND id % 7 = 0", nprobes=1)
        expected = sum(row.tag == 3 and row.id % 7 == 0 for row in made.live.values())
        assert found.num_rows == min(10, expected)
        assert set(ids(found)) <= {row.id for row in made.live.values() if row.tag == 3 and row.id % 7 == 0}
    made.writer.close()


@pytest.mark.parametrize("value_type", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_every_float_width_is_searched_in_every_tier(tmp_path: Path, value_type: pa.DataType) -> None:
    """Lesson 31: float64 and float16 vectors are no reason to refuse a table or to find nothing."""
    made = spread(tmp_path, value_type=value_type, metric="l2", nulls=0.1)
    for row in list(made.live.values()):  # the oracle sees what the column holds
        if row.vector is not None:
            rounded = row.vector.astype(value_type.to_pandas_dtype())
            made.live[row.id] = Row(row.id, rounded, row.text, row.tag)
    for query in queries(made, 10):
        found = made.table.search(vector=query, k=10, nprobes=2)
        assert set(ids(found)) == set(made.exact(query.astype(value_type.to_pandas_dtype()), 10))
    made.writer.close()


def test_rows_with_null_or_nan_vectors_are_stored_and_never_found(tmp_path: Path) -> None:
    """Lesson 36: null vectors are accepted, skipped by every index, and come back by a scan."""
    schema = schema_of(4)
    table = mw.create_table(str(tmp_path / "t"), to_table([Row(0, np.ones(4), "a", 0)] * 1, schema), primary_key="id")
    table.dataset.create_index("v", "IVF_FLAT", num_partitions=1, name="v_ann")
    broken = np.array([0, np.nan, 0, 0])
    rows = [
        Row(1, None, None, 0),
        Row(2, broken, "a", 0),
        Row(3, np.zeros(4), "a", 0),
        Row(4, np.full(4, np.inf), "", 0),
    ]
    with table.shard_writer(**SETTINGS) as writer:
        for _ in range(2):
            writer.put(to_table(rows, schema))
            assert ids(table.search(vector=np.zeros(4), k=10))[:2] == [3, 0]
            assert not {1, 2} & set(ids(table.search(vector=np.zeros(4), k=10)))
            assert table.count_rows() == 5
            writer.force_seal_active()
            writer.wait_for_flush_drain(100)


@pytest.mark.parametrize("indexed", [True, False], ids=["with its index", "as a stream"])
def test_large_sstable_is_searched_without_a_load(
    tmp_path: Path, indexed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = spread(tmp_path, rows=3_000, dim=16, metric="l2" if indexed else None)
    monkeypatch.setattr("lance_memwal.read.row_source.keeps_rows", lambda _: False)

    def refuse(*_: object) -> None:
        raise AssertionError("all rows of a large SSTable were loaded")

    monkeypatch.setattr("lance_memwal.sstable.read.SsTableReader.all_rows", refuse)
    hits = 0
    for query in queries(made, 20):
        found = ids(made.table.search(vector=query, k=10, nprobes=2))
        exact = made.exact(query, 10)
        assert len(found) == 10
        assert set(found) <= set(made.live)
        assert indexed or found == exact
        hits += len(set(found) & set(exact))
        tagged = made.table.search(vector=query, k=5, filter="tag = 4", nprobes=2)
        assert tagged.num_rows == 5
        assert tagged.column("tag").to_pylist() == [4] * 5
    assert hits >= 190
    both = made.table.search(vector=made.make.vector(), text="cedar otter", k=10)
    assert both.num_rows == 10
    assert set(ids(both)) <= set(made.live)
    made.writer.close()


def test_nearest_within_a_memtable_ranks_live_rows_only(tmp_path: Path) -> None:
    made = spread(tmp_path, metric="cosine")
    scanner = made.writer.memtable_scanner
    in_memory = {int(key) for key in scanner().project(["id"]).to_table().column("id").to_pylist()}
    for query in queries(made, 10):
        for metric in ("cosine", "l2"):
            found = scanner().filter("tag < 5").project(["id"]).nearest("v", query, 5, metric=metric).to_table()
            assert found.schema.names == ["id", "_distance"]
            rows = [r for r in made.live.values() if r.id in in_memory and r.tag < 5 and r.vector is not None]
            order = np.argsort(distances(np.stack([r.vector for r in rows]), query, metric), kind="stable")  # type: ignore[arg-type]
            assert ids(found) == [rows[i].id for i in order[:5]]
    with pytest.raises(InvalidInputError, match="not a vector column"):
        scanner().nearest("t", [1.0], 3)
    with pytest.raises(InvalidInputError, match="one search"):
        scanner().nearest("v", made.make.vector(), 3).full_text_search("t", "amber")
    made.writer.close()


def test_a_search_that_makes_no_sense_is_refused_with_the_reason(tmp_path: Path) -> None:
    made = spread(tmp_path, metric=None)
    for options, reason in [
        ({}, "needs a vector"),
        ({"vector": [1.0]}, "dimensions"),
        ({"vector": made.make.vector(), "k": 0}, "k must be"),
        ({"vector": made.make.vector(), "metric": "manhattan"}, "metric must be"),
        ({"vector": made.make.vector(), "metric": "hamming"}, "uint8"),
        ({"vector": made.make.vector(), "column": "t"}, "vector columns are: v"),
        ({"text": "amber", "column": "v"}, "candidates are"),
        ({"vector": made.make.vector(), "columns": ["none"]}, "not in the table"),
    ]:
        with pytest.raises(InvalidInputError, match=reason):
            made.table.search(**options)  # type: ignore[arg-type]
    made.writer.close()


def test_rows_from_another_process_tail_are_searched(tmp_path: Path) -> None:
    """Rows that are in the log only, without a writer in this process, are found by vector and by text."""
    made = spread(tmp_path, text_options={})
    made.writer.abort()
    reopened = mw.open_table(made.table.dataset.uri)
    for query in queries(made, 5):
        assert ids(reopened.search(vector=query, k=10, nprobes=2)) == made.exact(query, 10)
    flushed = reopened.search(vector=made.make.vector(), k=10, consistency="flushed")
    assert flushed.num_rows == 10
    assert lance.dataset(made.table.dataset.uri).count_rows() < len(made.live)


@pytest.mark.parametrize("query", [[0, math.nan], [0, None], pa.array([0.0, None])], ids=["NaN", "None", "null"])
def test_a_query_that_nothing_can_be_near_to_is_refused(tmp_path: Path, query: Any) -> None:
    table = mw.create_table(str(tmp_path / "t"), schema_of(2), primary_key="id")
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(to_table([Row(1, np.ones(2), "a", 0)], schema_of(2)))
        with pytest.raises(mw.InvalidInputError, match="NaN or a null"):
            table.search(vector=query)
        with pytest.raises(mw.InvalidInputError, match="NaN or a null"):
            writer.memtable_scanner().nearest("v", query, 1).to_table()


def test_a_search_answers_with_the_columns_that_were_asked_for(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), to_table([Row(0, np.ones(2), "a", 0)], schema_of(2)), primary_key="id")
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(to_table([Row(1, np.zeros(2), "a", 0)], schema_of(2)))
        assert table.search(vector=[0, 0], columns=[]).to_pydict() == {"_distance": [0.0, 2.0]}
        assert table.search(vector=[0, 0], columns=["id"]).to_pydict() == {"id": [1, 0], "_distance": [0.0, 2.0]}
        for columns in ("v", ["id", "id"], ["_distance"], ["nope"]):
            with pytest.raises(mw.InvalidInputError, match="column"):
                table.search(vector=[0, 0], columns=columns)


@pytest.mark.parametrize("stage", ["memtable", "base", "index"])
def test_by_cosine_nothing_is_near_a_query_without_a_direction(tmp_path: Path, stage: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.list_(pa.float32(), 2))])
    with mw.create_table(str(tmp_path / "t"), schema, primary_key="id", writer_defaults={"fsync": False}) as table:
        table.put([{"id": 1, "v": [0, 0]}, {"id": 2, "v": [1, 0]}, {"id": 3, "v": [0, 1]}])
        if stage != "memtable":
            table.compact(flush=True)
        if stage == "index":
            table.indexes.create("v", "IVF_FLAT", metric="cosine")
        with pytest.raises(InvalidInputError, match="no direction"):
            table.search([0.0, 0.0], metric="cosine")
        assert ids(table.search([0.5, 0.0], metric="cosine")) == [2, 3]  # nor is a row without one near any query
        assert ids(table.search([0.0, 0.0], metric="l2", k=1)) == [1]


# Vector search through a base index finds at least 95 % of the ten nearest rows, with and without filters, at every
# stage.

METRICS = ["l2", "cosine", "dot"]
FILTERS: dict[str, int | None] = {"": None, "tag = 3": 3}


def recall_of(made: Spread, metric: str, queries: int) -> float:
    """The least recall@10 over the filters, against brute force."""
    found = []
    for text, tag in FILTERS.items():
        hits = 0
        for _ in range(queries):
            query = made.make.vector()
            answer = ids(made.table.search(vector=query, k=10, columns=["id"], filter=text or None))
            assert len(answer) == 10
            hits += len(set(answer) & set(made.exact(query, 10, metric, tag)))
        found.append(hits / (10 * queries))
    return min(found)


def until_done(work: Callable[[], object], check: Callable[[], None]) -> None:
    """Run `check` again and again while `work` runs, at least once."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        while True:
            check()
            if not thread.is_alive():
                return
    finally:
        thread.join(60)


@pytest.mark.scaled
@pytest.mark.parametrize("metric", METRICS)
def test_recall_stays_before_during_and_after_compaction(tmp_path: Path, metric: str) -> None:
    rows, dim, queries = scaled(ci=2_000, prove=20_000), scaled(ci=32, prove=128), scaled(ci=15, prove=40)
    index = {"index_type": "IVF_PQ", "num_partitions": scaled(ci=4, prove=32), "num_sub_vectors": dim // 4}
    made = spread(tmp_path, rows=rows, dim=dim, metric=metric, index=index)
    made.change(8_000_000, rows // 8)
    made.flush()
    made.writer.close()
    table = made.table
    assert recall_of(made, metric, queries) >= 0.95
    table.compact(max_generations=1)
    assert recall_of(made, metric, queries) >= 0.95
    seen: list[float] = []
    until_done(table.compact, lambda: seen.append(recall_of(made, metric, queries)))
    assert min(seen) >= 0.95
    until_done(table.maintain, lambda: seen.append(recall_of(made, metric, queries)))
    assert min(seen) >= 0.95
    table.gc(grace_seconds=0)
    assert recall_of(made, metric, queries) >= 0.95
    assert table.count_rows() == len(made.live) == table.dataset.count_rows()


def test_text_scores_change_only_with_the_index(tmp_path: Path) -> None:
    """The rows are the same in every stage. Scores stay through compaction, and change little once rows are in the index."""
    made = spread(tmp_path, rows=600, text_options={}, metric=None)
    made.flush()
    made.writer.close()
    texts = ["cedar", "otter pine", "amber basalt maple"]

    def answers() -> list[dict[int, float]]:
        table = mw.open_table(made.table.uri)
        found = [table.search(text=text, k=10_000, columns=["id"]) for text in texts]
        return [dict(zip(ids(rows), rows["_score"].to_pylist(), strict=True)) for rows in found]

    expected = answers()

    def check(tolerance: float) -> None:
        for scores, before in zip(answers(), expected, strict=True):
            assert scores == pytest.approx(before, rel=tolerance)

    made.table.compact(max_generations=1)
    check(1e-4)
    until_done(made.table.compact, lambda: check(1e-4))
    until_done(made.table.dataset.optimize.optimize_indices, lambda: check(0.15))
    until_done(made.table.dataset.optimize.compact_files, lambda: check(0.15))
    check(0.15)
