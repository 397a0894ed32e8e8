"""Which base indexes are mirrored, when, and how in SSTables; `Table.indexes`; indexes that have no mirror."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.mem_wal import LsmScanner, LsmVectorSearchPlanner, ShardSnapshot

import lance_memwal as mw
from lance_memwal.errors import InvalidInputError, UnavailableError
from lance_memwal.lance.manifest import parse_lance_manifest
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
from tests.kit.tables import FAST, create

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
def test_memtables_and_sstables_have_maintained_indexes(tmp_path: Path, maintained: Any, expected: list[str]) -> None:
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


def test_dropped_listed_index_is_skipped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
        found = writer.memtable_scanner().nearest("v", np.ones(DIM), 1).to_table()
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
        assert "BTree index n_idx on n" in writer.memtable_scanner().filter("n = 4").explain()
        assert writer.memtable_scanner().filter("n = 4").count_rows() == 5


def test_replay_fills_the_indexes(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    writer = table.shard_writer(**SETTINGS)
    writer.put(rows(range(200, 230)))
    writer.delete([205])
    writer.abort()
    with table.shard_writer(writer.shard_id, **SETTINGS) as again:
        assert {index.indexed_rows for index in again.active_memtable_ref().indexes} == {31}
        assert again.memtable_scanner().nearest("v", np.eye(DIM)[0] * 205, 2).to_table().column("id").to_pylist() == [
            204,
            206,
        ]


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


def test_storage_failure_keeps_the_known_maintained_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


KEY = {b"lance-schema:unenforced-primary-key": b"true"}
KEYED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        ("text", pa.string()),
        ("size", pa.int64()),
        ("vector", pa.list_(pa.float32(), 8)),
    ]
)


def keyed_rows(start: int, end: int) -> pa.Table:
    values = np.random.default_rng(start).random((end - start) * 8)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values, pa.float32()), 8)
    texts = [f"word{i % 7} common" for i in range(start, end)]
    return pa.table([pa.array(range(start, end)), texts, pa.array(range(start, end)), vectors], schema=KEYED)


def made(uri: Path) -> mw.Table:
    lance.write_dataset(keyed_rows(0, 200), uri)
    for column, kind in (("size", "BTREE"), ("text", "INVERTED")):
        lance.dataset(str(uri)).create_scalar_index(column, kind, name=f"{column}_index")
    lance.dataset(str(uri)).create_index("vector", "IVF_FLAT", num_partitions=2, name="vector_index")
    return mw.enable(
        str(uri), maintained_indexes=["size_index", "text_index", "vector_index"], writer_defaults={"fsync": False}
    )


TABLE_CONFIGURATION = 16  # of a Lance manifest: ours name the base version that their columns are of (RFC 0036)


def shape(generation: Path) -> tuple[list[str], list[int], list[str]]:
    """The versions of a generation, which parts its manifest has, and its indexes."""
    (manifest,) = (generation / "_versions").glob("*.manifest")
    parsed = parse_lance_manifest(manifest.read_bytes())
    indexes = sorted(index.name for index in lance.dataset(str(generation)).describe_indices())
    return [manifest.name], sorted({field.number for field in parsed.message}), indexes


def test_a_generation_of_ours_is_one_version_with_the_parts_that_the_peer_writes(tmp_path: Path) -> None:
    table, other = made(tmp_path / "ours"), made(tmp_path / "peer")
    with table.shard_writer() as writer:
        writer.put(keyed_rows(200, 260))
        writer.put(keyed_rows(230, 270))
    with lance.dataset(other.uri).mem_wal_writer(mw.shard_id_for(other.sharding)) as peer:
        for part in (keyed_rows(200, 260), keyed_rows(230, 270)):
            peer.put(part.combine_chunks().to_batches()[0])
    (ours,), (theirs,) = ((tmp_path / name).glob("_mem_wal/*/*_gen_1") for name in ("ours", "peer"))
    (versions, parts, indexes) = shape(theirs)
    assert shape(ours) == (versions, [*parts, TABLE_CONFIGURATION], indexes)
    assert not list(ours.glob("_transactions/*"))
    generation = lance.dataset(str(ours))
    assert (generation.version, generation.count_rows()) == (1, 70)
    wanted = keyed_rows(230, 270)["vector"][11].values
    near = {"column": "vector", "q": wanted, "k": 1, "use_index": True}
    assert generation.to_table(columns=["id"], nearest=near)["id"].to_pylist() == [241]
    assert len(generation.to_table(columns=["id"], full_text_query="word3")) == 10
    assert "ScalarIndexQuery" in generation.scanner(filter="size = 241").explain_plan()
    found = mw.open_table(table.uri).search(vector=wanted.to_numpy(), k=1)
    assert found["id"].to_pylist() == [241]
    assert table.verify().ok
    table.compact()
    assert mw.open_table(table.uri).count_rows() == 270


INDEXED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("t", pa.string()),
        ("n", pa.int64()),
        ("v", pa.list_(pa.float32(), 4)),
    ]
)


def some_rows(start: int, count: int) -> list[dict[str, Any]]:
    vectors = np.random.default_rng(start).random((count, 4), dtype=np.float32)
    return [
        {"id": start + i, "t": f"word{start + i} red", "n": (start + i) % 7, "v": vectors[i].tolist()}
        for i in range(count)
    ]


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return create(str(tmp_path / "t"), INDEXED)


@pytest.mark.parametrize(
    ("asked", "index_type", "expected"),
    [
        ("n", None, "BTree"),
        ("t", None, "BTree"),
        ("t", "fts", "Inverted"),
        ("t", "INVERTED", "Inverted"),
        ("n", "bitmap", "Bitmap"),
        ("v", None, "IVF_HNSW_SQ"),
        ("v", "IVF_FLAT", "IVF_FLAT"),
        (mw.BTreeIndex("n"), None, "BTree"),
        (mw.FtsIndex("t", stem=False), None, "Inverted"),
        (mw.HnswIndex("v", metric="cosine"), None, "IVF_HNSW_SQ"),
    ],
    ids=str,
)
def test_it_is_made_by_lance_and_mirrored(table: mw.Table, asked: Any, index_type: str | None, expected: str) -> None:
    with table:
        table.put(some_rows(0, 40))
        table.compact(flush=True)
        made = table.indexes.create(asked, index_type)
        column = asked if isinstance(asked, str) else asked.column
        assert (made.name, made.index_type, made.columns, made.rows) == (f"{column}_idx", expected, (column,), 40)
        assert made.maintained is (expected != "Bitmap")
        assert table.indexes.list() == [made]
        assert f"{column}_idx" in {index.name for index in lance.dataset(table.uri).describe_indices()}
        table.put(some_rows(40, 10))
        table.close()
        assert table.count_rows("n = 3") == 7
        assert table.search(text="word45", column="t")["id"].to_pylist()[0] == 45
        assert table.search(some_rows(40, 10)[5]["v"], k=1)["id"].to_pylist() == [45]


def test_a_vector_index_is_made_of_fresh_rows_too(table: mw.Table) -> None:
    with table:
        table.put(some_rows(0, 300))
        made = table.indexes.create("v", "IVF_PQ", metric="cosine", num_partitions=2, num_sub_vectors=2)
        assert (made.rows, made.maintained) == (300, True)
        table.put(some_rows(300, 10))
        found = table.search(some_rows(300, 10)[3]["v"], k=3)  # by the metric of the index
        assert found["id"].to_pylist()[0] == 303
        assert found["_distance"].to_pylist()[0] == pytest.approx(0, abs=1e-6)


def test_a_table_that_names_its_indexes_names_the_new_one(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), INDEXED, maintained_indexes=None)
    assert table.indexes.create("n").maintained
    assert table.indexes.create("t", "FTS", name="texts").maintained
    assert not table.indexes.create("n", "BITMAP", name="bits").maintained
    assert table.details().maintained_indexes == ("n_idx", "texts")
    table.indexes.drop("n_idx")
    assert table.details().maintained_indexes == ("texts",)
    assert [index.name for index in table.indexes.list()] == ["bits", "texts"]
    with table.writer(**FAST) as writer:
        writer.put(some_rows(0, 3))
        assert table.search(text="word1")["id"].to_pylist()[0] == 1


def test_an_index_is_replaced_or_not_and_only_dropped_if_it_exists(table: mw.Table) -> None:
    with pytest.raises(mw.InvalidInputError, match="no index 'x'; its indexes: none"):
        table.indexes.drop("x")
    with table:
        table.put(some_rows(0, 3))
        table.indexes.create("t", "BTREE")
        with pytest.raises(mw.InvalidInputError, match="'t_idx'"):
            table.indexes.create("t", "FTS", replace=False)
        assert table.indexes.create("t", "FTS").index_type == "Inverted"
        assert len(table.indexes.list()) == 1


@pytest.mark.parametrize(
    ("asked", "options", "why"),
    [
        ("nope", {}, "'nope' is not in the table"),
        ("n", {"index_type": "IVF_PQ"}, "index_type must be one of"),
        ("v", {"index_type": "BTREE"}, "index_type must be one of"),
        ("n", {"index_type": 3}, "index_type"),
        (3, {}, "column"),
        (mw.FtsIndex("n"), {}, "cannot have a full-text index"),
        (mw.BTreeIndex("n"), {"index_type": "BTREE"}, "give an index, or a column"),
        ("v", {"index_type": "IVF_PQ"}, "creating the index 'v_idx': num_partitions and num_sub_vectors"),
        ("n", {"replace": 1}, "replace"),
    ],
)
def test_what_cannot_be_is_refused(table: mw.Table, asked: Any, options: dict[str, Any], why: str) -> None:
    with pytest.raises(mw.InvalidInputError, match=why):
        table.indexes.create(asked, **options)
    assert table.indexes.list() == []


def test_it_is_made_beside_a_writer(table: mw.Table) -> None:
    with table.writer(**FAST) as writer:
        writer.put(some_rows(0, 20))
        table.indexes.create("t", "FTS")
        table.indexes.create("v")
        writer.put(some_rows(20, 20))
        assert table.search(text="word25")["id"].to_pylist()[0] == 25
        assert len(table) == 40
    assert table.verify().ok


def test_maintain_moves_fresh_rows_into_base_and_indexes(table: mw.Table) -> None:
    with table:
        table.put(some_rows(0, 20))
        table.indexes.create("t", "FTS")
        table.put(some_rows(20, 20))
        report = table.maintain()
        assert report.indexes == ("t_idx",)
        assert table.dataset.count_rows() == 40
        assert [index.rows for index in table.indexes.list()] == [40]
        table.put(some_rows(40, 1))
        assert len(table) == 41


OTHER = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("color", pa.string()),
        ("labels", pa.list_(pa.string())),
        ("title", pa.string()),
        ("size", pa.int64()),
        ("doc", pa.string()),
    ]
)
INDEXES = {"color": "BITMAP", "labels": "LABEL_LIST", "title": "NGRAM", "size": "ZONEMAP", "doc": "BLOOMFILTER"}
FILTERS = {
    "color": ["color = 'red'", "color in ('red', 'blue')", "color is null", "color != 'red'", "not color = 'red'"],
    "labels": ["array_has_any(labels, ['a', 'c'])", "array_has_all(labels, ['a', 'b'])", "array_contains(labels, 'b')"],
    "title": ["contains(title, 'ppl')", "contains(title, 'banana') and id < 150", "title like '%cherr%'"],
    "size": ["size > 90", "size between 10 and 20", "size = 55", "size is null"],
    "doc": ["doc = 'doc 7'", "doc in ('doc 3', 'doc 4')"],
}
FRUIT = ["apple", "banana split", "cherry", "pineapple", "grape", None]


def row(i: int, rng: random.Random) -> dict[str, Any]:
    return {
        "id": i,
        "color": rng.choice(["red", "green", "blue", None]),
        "labels": rng.choice([None, [], ["a"], ["a", "b"], ["b", "c"], ["c"]]),
        "title": rng.choice(FRUIT),
        "size": rng.choice([None, *range(100)]),
        "doc": f"doc {rng.randint(0, 9)}",
    }


def answers(table: mw.Table, filters: list[str], **options: Any) -> dict[str, list[int]]:
    return {f: sorted(table.scan(["id"], f, **options).to_table()["id"].to_pylist()) for f in filters}


def without_indexes(some_rows: pa.Table, filters: list[str]) -> dict[str, list[int]]:
    plain = lance.write_dataset(some_rows, "memory://")
    return {f: sorted(plain.to_table(columns=["id"], filter=f)["id"].to_pylist()) for f in filters}


def uses_an_index(uri: str, asked: str) -> bool:
    return "ScalarIndexQuery" in lance.dataset(uri).scanner(filter=asked).explain_plan()


@pytest.mark.parametrize(("column", "maintained"), [*((column, "all") for column in INDEXES), ("color", None)])
def test_filters_are_equal_with_and_without_the_index(tmp_path: Path, column: str, maintained: str | None) -> None:
    rng, uri, filters = random.Random(column), str(tmp_path / "t"), FILTERS[column]
    first = pa.Table.from_pylist([row(i, rng) for i in range(200)], OTHER)
    lance.write_dataset(first, uri, max_rows_per_file=80).create_scalar_index(column, INDEXES[column])
    table = mw.enable(uri, primary_key="id", maintained_indexes=maintained, writer_defaults={"fsync": False})
    assert uses_an_index(uri, filters[0])
    for stage in range(3):
        with table.shard_writer() as writer:
            writer.put([row(i, rng) for i in rng.sample(range(260), 60)])
            writer.delete(rng.sample(range(260), 15))
            expected = without_indexes(table.scan().to_table(), filters)
            assert answers(table, filters) == expected, f"memtable {stage}"
        fresh = mw.open_table(uri)
        assert answers(fresh, filters) == expected, f"SSTable {stage}"
        assert {f: table.count_rows(f) for f in filters} == {f: len(found) for f, found in expected.items()}
        table.compact()
        assert answers(mw.open_table(uri), filters) == expected, f"compacted {stage}"
        assert without_indexes(lance.dataset(uri).to_table(), filters) == expected
        plain = {f: sorted(lance.dataset(uri).to_table(["id"], f)["id"].to_pylist()) for f in filters}
        assert plain == expected, "plain Lance, with its index"
        if stage:
            lance.dataset(uri).optimize.optimize_indices()
            assert answers(mw.open_table(uri), filters) == expected, f"optimized {stage}"
            assert uses_an_index(uri, filters[0])
    with table.shard_writer() as writer:
        writer.put([row(i, rng) for i in rng.sample(range(300), 40)])
    expected = without_indexes(table.scan().to_table(), filters)
    table.maintain()
    assert answers(mw.open_table(uri), filters) == expected, "maintained"
    assert table.verify().ok
