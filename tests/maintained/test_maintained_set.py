"""Which base indexes are mirrored, when, and how in SSTables; what pylance makes of them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.mem_wal import LsmScanner, LsmVectorSearchPlanner, ShardSnapshot

import lance_memwal as mw
from lance_memwal.errors import InvalidInputError, UnavailableError
from lance_memwal.sstable.mirrors import IndexSet
from tests.kit.maintained import (
    DIM,
    SCHEMA,
    SETTINGS,
    flush,
    index_all,
    index_names,
    memtable_indexes,
    rows,
    sstables,
    table_with_indexes,
)

ALL = ["n_btree", "t_fts", "v_ann"]


def snapshot_of(writer: mw.ShardWriter) -> ShardSnapshot:
    manifest = writer.manifest()
    snapshot = ShardSnapshot(writer.shard_id).with_current_generation(manifest.current_generation)
    for sstable in manifest.sstables:
        snapshot = snapshot.with_sstable(sstable.generation, sstable.path)
    return snapshot


@pytest.mark.parametrize(
    ("maintained", "expected"), [("all", ALL), (["t_fts"], ["t_fts"]), (ALL, ALL), (None, []), ([], [])]
)
def test_memtables_and_sstables_have_the_maintained_indexes(
    tmp_path: Path, maintained: Any, expected: list[str]
) -> None:
    table = table_with_indexes(tmp_path, maintained)
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(rows(range(200, 240)))
        assert memtable_indexes(writer) == expected
        assert all(index.indexed_rows == 40 for index in writer.active_memtable_ref().indexes)
        flush(writer)
        (generation,) = sstables(table, writer)
        assert index_names(generation) == expected


def test_mirrors_agree_with_the_base_index(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path, metric="cosine", stem=False, with_position=True, custom_stop_words=["row"])
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(rows(range(200, 240)))
        flush(writer)
        (generation,) = sstables(table, writer)
        mine, theirs = (d.stats.index_stats("t_fts")["indices"][0]["params"] for d in (generation, table.dataset))
        assert mine == theirs
        vectors = generation.stats.index_stats("v_ann")
        assert vectors["index_type"] == "IVF_FLAT"
        assert vectors["indices"][0]["metric_type"] == "cosine"
        assert len(vectors["indices"][0]["partitions"]) == 1
        assert "ScalarIndexQuery" in generation.scanner(filter="n = 3").explain_plan()


def test_small_mirrors_of_vectors_leave_no_row_out_and_large_ones_are_graphs(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(rows(range(1_000, 11_001)))
        flush(writer)
        writer.put(rows(range(20_000, 20_200)))
        flush(writer)
        graph, small = sstables(table, writer)
        assert graph.stats.index_stats("v_ann")["index_type"] == "IVF_HNSW_SQ"
        assert small.stats.index_stats("v_ann")["index_type"] == "IVF_FLAT"
        for number in range(20_000, 20_200, 7):
            nearest = {"column": "v", "q": np.eye(DIM, dtype=np.float32)[0] * number, "k": 1, "ef": 10}
            assert small.to_table(columns=["id"], nearest=nearest)["id"].to_pylist() == [number]


def test_an_index_that_has_no_mirror_is_skipped_under_all_and_refused_in_a_list(tmp_path: Path) -> None:
    """Lesson 31: an unmaintainable index does not make a table unwritable; a list is checked when it is installed."""
    table = table_with_indexes(tmp_path)
    uri = table.dataset.uri
    table.dataset.create_scalar_index("x", "BITMAP", name="x_bitmap")
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(rows([300]))
        assert memtable_indexes(writer) == ALL
        flush(writer)
    lance.write_dataset(lance.dataset(uri).to_table(), str(tmp_path / "second"), schema=table.dataset.schema)
    other = lance.dataset(str(tmp_path / "second"))
    other.create_scalar_index("x", "BITMAP", name="x_bitmap")
    for names, reason in [(["x_bitmap"], "no mirror"), (["none"], "no index")]:
        with pytest.raises(InvalidInputError, match=reason):
            mw.enable(str(tmp_path / "second"), maintained_indexes=names)
    assert lance.dataset(str(tmp_path / "second")).version == other.version


def test_a_list_that_another_implementation_installed_is_refused_before_the_claim(tmp_path: Path) -> None:
    """Lesson 31: refused at open, and nobody is fenced by it."""
    created = mw.create_table(str(tmp_path / "t"), rows(range(10)), primary_key="id")
    lance.write_dataset(rows(range(10)).cast(created.dataset.schema), str(tmp_path / "p"))
    dataset = lance.dataset(str(tmp_path / "p"))
    dataset.create_scalar_index("n", "BTREE", name="n_index")
    dataset.initialize_mem_wal(maintained_indexes=["n_index"])
    table = mw.open_table(str(tmp_path / "p"))
    first = table.shard_writer(**SETTINGS)
    dataset = table.dataset
    dataset.drop_index("n_index")
    dataset.create_scalar_index("n", "BITMAP", name="n_index")
    with pytest.raises(InvalidInputError, match="n_index"):
        table.shard_writer(first.shard_id, **SETTINGS)
    first.check_fenced()
    first.put(rows([20]))
    first.close()


def test_a_listed_index_that_was_dropped_is_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_with_indexes(tmp_path, ["n_btree", "t_fts"])
    table.dataset.drop_index("t_fts")
    with caplog.at_level(logging.WARNING), table.shard_writer(**SETTINGS) as writer:
        writer.put(rows([300]))
        assert memtable_indexes(writer) == ["n_btree"]
    assert "t_fts" in caplog.text


def test_an_index_made_later_is_in_the_next_memtable_and_sstable_and_a_dropped_one_is_not(tmp_path: Path) -> None:
    """Lesson 32 and E2: the set is resolved anew for each memtable."""
    table = mw.create_table(str(tmp_path / "t"), rows(range(100)), primary_key="id")
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(rows([200, 201]))
        assert memtable_indexes(writer) == []
        index_all(table.dataset)
        writer.force_seal_active()
        writer.put(rows([202, 203]))  # before or after the new set is known: it has these rows either way
        writer.wait_for_flush_drain(100)
        assert memtable_indexes(writer) == ALL
        assert {index.indexed_rows for index in writer.active_memtable_ref().indexes} == {2}
        assert index_names(sstables(table, writer)[-1]) == ALL
        table.dataset.drop_index("t_fts")
        flush(writer)
        assert memtable_indexes(writer) == ["n_btree", "v_ann"]
        assert index_names(sstables(table, writer)[-1]) == ["n_btree", "v_ann"]
        writer.put(rows([204]))
        flush(writer)
        assert index_names(sstables(table, writer)[-1]) == ["n_btree", "v_ann"]


def test_the_users_own_indexes_come_on_top(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path, ["n_btree"])
    own = [mw.HnswIndex("v", metric="dot"), mw.FtsIndex("t", name="mine", stem=False)]
    with mw.ShardWriter.open(table.dataset.uri, indexes=own, **SETTINGS) as writer:
        writer.put(rows(range(200, 210)))
        assert memtable_indexes(writer) == ["mine", "n_btree", "v_idx"]
        found = writer.scan().nearest("v", np.ones(DIM), 1).to_table()
        assert found.column("id").to_pylist() == [209]
        flush(writer)
        assert index_names(sstables(table, writer)[0]) == ["mine", "n_btree", "v_idx"]
    for indexes, reason in [
        ([mw.HnswIndex("t")], "cannot have a vector index"),
        ([mw.BTreeIndex("none")], "not in the schema"),
        (["n_btree"], "an index is a"),
        ([mw.BTreeIndex("n"), mw.BTreeIndex("x", name="n_idx")], "same name 'n_idx'"),
    ]:
        with pytest.raises(InvalidInputError, match=reason):
            mw.ShardWriter.open(table.dataset.uri, indexes=indexes, **SETTINGS)
    with pytest.raises(InvalidInputError, match="enable_memtable"):
        mw.ShardWriter.open(table.dataset.uri, indexes=own, enable_memtable=False)


def test_a_shard_without_a_base_table_has_the_users_indexes(tmp_path: Path) -> None:
    schema = SCHEMA.set(0, SCHEMA.field(0).with_metadata({"lance-schema:unenforced-primary-key": "true"}))
    with mw.ShardWriter.open(str(tmp_path / "t"), schema, indexes=[mw.BTreeIndex("n")], **SETTINGS) as writer:
        writer.put(rows(range(50)))
        assert "BTree index n_idx on n" in writer.scan().filter("n = 4").explain()
        assert writer.scan().filter("n = 4").count_rows() == 5


def test_replay_fills_the_indexes(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    writer = table.shard_writer(**SETTINGS)
    writer.put(rows(range(200, 230)))
    writer.delete([205])
    writer.abort()
    with table.shard_writer(writer.shard_id, **SETTINGS) as again:
        assert {index.indexed_rows for index in again.active_memtable_ref().indexes} == {31}
        assert again.scan().nearest("v", np.eye(DIM)[0] * 205, 2).to_table().column("id").to_pylist() == [204, 206]


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_generations_of_deletes_and_of_null_vectors_flush(tmp_path: Path, metric: str) -> None:
    """Lesson 36: an index over nothing is no reason for a flush to fail."""
    table = table_with_indexes(tmp_path, metric=metric)
    with table.shard_writer(**SETTINGS) as writer:
        writer.delete([1, 2, 3])
        flush(writer)
        writer.put(rows(range(200, 205), vectors=False))
        flush(writer)
        writer.put(rows([205]))
        flush(writer)
        assert [index_names(dataset) for dataset in sstables(table, writer)] == [ALL] * 3
        assert table.count_rows() == 103
        found = table.search(vector=np.ones(DIM), k=200, nprobes=2, columns=["id"]).column("id").to_pylist()
        missing = {1, 2, 3, *range(200, 205)} | ({0} if metric == "cosine" else set())
        assert set(found) == set(range(100)) - missing | {205}


def test_pylance_finds_our_flushed_rows_through_the_mirrors(tmp_path: Path) -> None:
    """Its vector planner sees an SSTable only through an index of the base index's name and metric."""
    table = table_with_indexes(tmp_path)
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(rows(range(200, 260)))
        flush(writer)
        writer.put(rows([0], vectors=False))
        writer.delete([230, 231])
        flush(writer)
        snapshot = snapshot_of(writer)
        dataset = lance.dataset(table.dataset.uri)
        planner = LsmVectorSearchPlanner(dataset, [snapshot], "v")
        query = pa.array((np.eye(DIM)[0] * 231).astype(np.float32))
        found = planner.plan_search(query, k=4, nprobes=2, overfetch_factor=4.0).to_table()
        assert set(found.column("id").to_pylist()) == {229, 232, 228, 233}
        scanned = LsmScanner.from_snapshots(dataset, [snapshot]).filter("n = 4").to_table()
        assert set(scanned.column("id").to_pylist()) == {k for k in [*range(100), *range(200, 260)] if k % 10 == 4}


def test_an_index_that_cannot_be_built_delays_a_flush_but_never_prevents_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_with_indexes(tmp_path)
    attempts: list[str] = []
    build = IndexSet._build_mirror

    def failing(self: IndexSet, spec: Any, dataset: lance.LanceDataset) -> None:
        if spec.index_name == "t_fts":
            attempts.append(spec.index_name)
            raise RuntimeError("out of luck")
        build(self, spec, dataset)

    monkeypatch.setattr(IndexSet, "_build_mirror", failing)
    with caplog.at_level(logging.WARNING), table.shard_writer(**SETTINGS) as writer:
        writer.put(rows(range(200, 210)))
        flush(writer)
        assert len(attempts) == 3
        assert index_names(sstables(table, writer)[0]) == ["n_btree", "v_ann"]
        assert "goes without index 't_fts'" in caplog.text
        assert table.search(text="number205", k=1).column("id").to_pylist() == [205]


def test_a_storage_failure_while_the_set_is_looked_up_keeps_the_known_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_with_indexes(tmp_path)
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(rows([200]))

        def out_of_reach(_: object) -> None:
            raise UnavailableError("gone", ambiguous=False)

        with monkeypatch.context() as patch:
            patch.setattr("lance_memwal.lance.base.BaseTable.refresh", out_of_reach)
            flush(writer)
        assert memtable_indexes(writer) == ALL
        assert index_names(sstables(table, writer)[0]) == ALL
