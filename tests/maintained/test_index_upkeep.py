"""Rows get into the indexes at once or later, filters use them; the maintained set of a live table changes alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import lancedb
import numpy as np
import pyarrow as pa
import pytest
from lance.mem_wal import CompactedSsTable

import lance_memwal as mw
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.commit import commit_details
from lance_memwal.lance.hand_made import hand_commit_is_safe
from lance_memwal.memtable.index import Equals, HnswMemIndex, In, IsNotNull, IsNull, Range
from lance_memwal.rows.sql import parse
from lance_memwal.table import newest_base
from lance_memwal.testing.clocks import SkippingClock
from tests.harness.profile import scaled
from tests.kit.maintained import (
    DIM,
    SETTINGS,
    flush,
    index_names,
    memtable_indexes,
    rows,
    sstables,
    table_with_indexes,
    wait_until,
)
from tests.kit.writers import SECONDS, in_thread

LATER = {**SETTINGS, "sync_indexed_write": False}


def indexed_rows(writer: mw.ShardWriter) -> set[int]:
    """What the indexes of the active memtable hold, without asking them to take in more."""
    return {index.indexed_rows for index in writer.active_memtable_ref().memtable.indexes}


def nearest_ids(writer: mw.ShardWriter, key: int, k: int = 1) -> list[int]:
    found = writer.memtable_scanner().nearest("v", np.eye(DIM)[0] * key, k).to_table()
    return [int(row) for row in found.column("id").to_pylist()]


def test_rows_are_in_the_indexes_when_a_put_returns(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    with table.shard_writer(**SETTINGS) as writer:
        for number in range(1, 6):
            writer.put(rows(range(200 + number * 10, 210 + number * 10)))
            assert indexed_rows(writer) == {number * 10}
        stats = writer.stats()
        assert (stats.index_update_count, stats.index_update_rows) == (5, 50)
        assert stats.index_update_time > 0
        assert stats.avg_index_update_rows == 10


def test_deferred_rows_are_found_before_they_are_indexed(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    with table.shard_writer(**LATER, async_index_interval_ms=600_000) as writer:
        for key in range(200, 220):
            writer.put(rows([key]))
            assert key == 200 or indexed_rows(writer) != {key - 199}
            assert nearest_ids(writer, key) == [key]
            assert table.search(text=f"number{key}", k=1).column("id").to_pylist() == [key]
            assert (
                writer.memtable_scanner().filter(f"n = {key % 10}" if key % 10 != 9 else "n is null").count_rows() >= 1
            )


@pytest.mark.parametrize("trigger", ["interval", "rows"])
def test_deferred_rows_are_indexed_after_the_interval_or_once_they_are_many(tmp_path: Path, trigger: str) -> None:
    table = table_with_indexes(tmp_path)
    late = {"async_index_interval_ms": 600_000, "async_index_buffer_rows": 25}
    options = {"async_index_interval_ms": 1} if trigger == "interval" else late
    with table.shard_writer(**LATER, **options) as writer:
        writer.put(rows(range(200, 220)))
        if trigger == "interval":
            assert wait_until(lambda: indexed_rows(writer) == {20})
            assert wait_until(lambda: writer.stats().index_update_rows == 20)
        else:
            assert indexed_rows(writer) == {0}
        writer.put(rows(range(220, 240)))
        assert wait_until(lambda: indexed_rows(writer) == {40})


def test_rows_are_visible_whatever_the_indexes_are(tmp_path: Path) -> None:
    """Lesson 12: visibility does not depend on the presence or the progress of an index."""
    settings: list[dict[str, Any]] = [SETTINGS, LATER]
    for number, maintained in enumerate(["all", None, ["v_ann"]]):
        for how, options in enumerate(settings):
            path = tmp_path / f"{number}-{how}"
            table = table_with_indexes(path, maintained)
            with table.shard_writer(**options) as writer:
                for key in range(200, 230):
                    writer.put(rows([key]))
                    assert writer.memtable_scanner().count_rows() == key - 199
                    assert nearest_ids(writer, key) == [key]


def test_index_memory_is_metered_and_grows_with_the_rows(tmp_path: Path) -> None:
    """Lesson 37: resident bytes of indexes count, and one row costs one row, not a capacity."""
    table = table_with_indexes(tmp_path)
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(rows([200]))
        nearest_ids(writer, 200)
        small = writer.memtable_stats().index_bytes
        assert 0 < small < 20_000
        writer.put(rows(range(1000, 6000)))
        nearest_ids(writer, 1000)
        table.search(text="number1000", k=1)
        writer.memtable_scanner().filter("n = 3").to_table()
        stats = writer.memtable_stats()
        assert stats.index_bytes > 5000 * (4 * DIM + 8 + 50)
        assert stats.estimated_size >= stats.index_bytes
        assert writer._shard.commits.held_bytes == stats.estimated_size
        flush(writer)
        assert writer._shard.commits.held_bytes == 0
        assert writer.memtable_stats().index_bytes == 0


def test_index_memory_freezes_a_memtable(tmp_path: Path) -> None:
    """Lesson 37: a memtable whose indexes fill its budget is frozen by the next put."""
    table = table_with_indexes(tmp_path)
    batch = rows(range(1000, 3000))
    with table.shard_writer(**SETTINGS, max_memtable_size=batch.nbytes + 120_000) as writer:
        writer.put(batch)
        assert writer.manifest().sstables == ()
        assert writer.memtable_stats().row_count == 2000
        nearest_ids(writer, 1000)
        table.search(text="number1000", k=1)
        assert writer.memtable_stats().row_count == 2000
        writer.put(rows([5000]))
        writer.wait_for_flush_drain(100)
        assert len(writer.manifest().sstables) == 1


def test_a_graph_is_built_in_the_background_once_searches_ask_for_it(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(rows(range(1000, 4000)))
        (graph,) = [i for i in writer.active_memtable_ref().indexes if isinstance(i, HnswMemIndex)]
        nearest_ids(writer, 1000)
        assert graph.graph_rows == 0, "one search is no reason to build a graph"
        for _ in range(100):
            nearest_ids(writer, 2000)
        assert wait_until(lambda: graph.graph_rows == 3000)
        assert nearest_ids(writer, 2222) == [2222]
        assert wait_until(lambda: writer.memtable_stats().index_bytes > 3000 * 4 * 33)


@pytest.mark.parametrize(
    "step", ["lance_memwal.write.group_commit.Pending", "lance_memwal.write.indexing.Indexing.inserted"]
)
def test_interrupted_put_leaves_indexes_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    table = table_with_indexes(tmp_path)
    writer = table.shard_writer(**SETTINGS)
    writer.put(rows([200]))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.put(rows([777]))
    with pytest.raises(mw.WriterPoisonedError):
        writer.put(rows([201]))
    writer.abort()
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(rows([201, 202]))
        assert indexed_rows(writer) == {3}
        assert nearest_ids(writer, 777, k=10) == [202, 201, 200]
        assert table.search(text="number777", k=3).num_rows == 0


def test_searches_beside_puts_and_graph_building_see_whole_rows(tmp_path: Path) -> None:
    """Lesson 35: readers of an index never see it half made."""
    table = table_with_indexes(tmp_path)
    done = threading.Event()
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(rows(range(1000, 3000)))
        acknowledged = [2999]

        def read() -> None:
            while not done.is_set():
                newest = acknowledged[0]
                assert nearest_ids(writer, newest)[0] == newest
                found = table.search(text=f"number{newest}", k=1, columns=["id"]).column("id").to_pylist()
                assert found == [newest]

        def build() -> None:
            while not done.is_set():
                for index in writer.active_memtable_ref().indexes:
                    index.catch_up(100)

        threads = [in_thread(work) for work in (read, read, build)]
        for start in range(3000, 5000, 20):
            writer.put(rows(range(start, start + 20)))
            acknowledged[0] = start + 19
        done.set()
        for thread in threads:
            thread.result(4 * SECONDS)


def test_frozen_memtables_hide_each_others_older_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lesson 24: a key in several frozen memtables is found once, in its newest version."""
    table = table_with_indexes(tmp_path)
    writer = table.shard_writer(**SETTINGS)
    with monkeypatch.context() as patch:

        def full(*_: object, **__: object) -> None:
            raise OSError("no space left")

        patch.setattr("lance_memwal.sstable.target.write_sstable", full)
        for key in (10_000, 20_000, 30_000):
            moved = rows([key]).set_column(0, table.schema.field("id"), pa.array([500], pa.int64()))
            writer.put(moved)
            writer.put(rows([key + 1]))
            writer.force_seal_active()
        writer.delete([10_001])
        assert writer.memtable_stats().frozen_count == 3
        for found in (
            writer.memtable_scanner().nearest("v", np.eye(DIM)[0] * 10_000, 10).to_table(),
            table.search(vector=np.eye(DIM)[0] * 10_000, k=200, filter="id >= 500"),
        ):
            assert sorted(found.column("id").to_pylist()) == [500, 20_001, 30_001]
        assert table.search(text="number10000", k=5).num_rows == 0
        assert table.search(text="number30000", k=5).column("id").to_pylist() == [500]
    wait_until(lambda: writer.memtable_stats().frozen_count == 0)
    writer.close()


COLUMNS = ["id", "v", "t", "n", "x"]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("n = 3", [("n", Equals(3))]),
        ("3 = n", [("n", Equals(3))]),
        ("N >= -3", [("n", Range(lower=-3))]),
        ("5 > n", [("n", Range(upper=5, upper_inclusive=False))]),
        ("n IN (1, -2,3)", [("n", In((1, -2, 3)))]),
        ("n is null", [("n", IsNull())]),
        ("n IS NOT NULL AND x < 1.5", [("n", IsNotNull()), ("x", Range(upper=1.5, upper_inclusive=False))]),
        ("n between 2 and 4 and t = 'it''s'", [("n", Range(2, 4)), ("t", Equals("it's"))]),
        ("(n = 1 AND (x > 2))", [("n", Equals(1)), ("x", Range(lower=2, lower_inclusive=False))]),
        ("`n` = 1 AND t LIKE 'a%'", [("n", Equals(1))]),
        ('t = "a and b"', [("t", Equals("a and b"))]),
        ("n = 1 OR n = 2", []),
        ("(n = 1 OR n = 2) AND x = 1", [("x", Equals(1))]),
        ("NOT n = 1 AND x = 2", [("x", Equals(2))]),
        ("case when n = 1 and x = 2 and n = 3 then true else true end", []),
        ("n = 1 + 1", []),
        ("n + 1 = 2", []),
        ("abs(n) = 1", []),
        ("n = 1 -- and x = 2", []),
        ("n = 1 /* and */ and x = 2", []),
        ("t = e'a'", []),
        ("n <> 1", []),
        ("n != 1 and n = 2", [("n", Equals(2))]),
        ("n not between 1 and 2 and x = 3", [("x", Equals(3))]),
        ("n not in (1, 2)", []),
        ("n = null", []),
        ("n in (1, null)", []),
        ("s.n = 1", []),
        ("n = 1 = true", []),
        ("n = cast('1' as int)", []),
        ("", []),
    ],
)
def test_only_what_the_top_level_conjunction_certainly_says_is_used(sql: str, expected: list[object]) -> None:
    assert parse(sql).predicates(COLUMNS) == expected


def indexed_and_plain(path: Path) -> tuple[mw.ShardWriter, mw.ShardWriter]:
    """Two writers with the same rows, updates and deletes: one with BTree indexes, one without."""
    made = []
    for name, indexes in (("plain", ()), ("indexed", [mw.BTreeIndex(c) for c in ("id", "n", "t", "x")])):
        table = mw.create_table(str(path / name), rows(range(1)), primary_key="id")
        writer = mw.ShardWriter.open(table.dataset.uri, indexes=indexes, **SETTINGS)
        writer.put(rows(range(100)))
        writer.put(rows(range(50, 150)))
        writer.delete(range(0, 150, 7))
        made.append(writer)
    return made[1], made[0]


def random_filter(chance: random.Random) -> str:
    def atom() -> str:
        column = chance.choice(["id", "n", "x", "t"])
        if chance.random() < 0.15:
            return f"{column} is {chance.choice(['', 'not '])}null"
        if column == "t":
            return chance.choice(["t = 'row number{}'", "t > 'row number{}'", "t in ('row number{}')"]).format(
                chance.randrange(150)
            )
        low = chance.randrange(40) / 4 if column == "x" and chance.random() < 0.5 else chance.randrange(-5, 160)
        shape = chance.choice(["{c} = {a}", "{c} < {a}", "{a} <= {c}", "{c} between {a} and {b}", "{c} in ({a}, {b})"])
        return shape.format(c=column, a=low, b=low + chance.randrange(30))

    parts = [atom() for _ in range(chance.randint(1, 3))]
    return chance.choice([" AND ", " and ", " OR "]).join(parts)


@pytest.mark.scaled
def test_random_filters_select_the_same_rows_with_and_without_indexes(tmp_path: Path) -> None:
    indexed, plain = indexed_and_plain(tmp_path)
    chance = random.Random(5)
    used = 0
    for _ in range(scaled(ci=150, prove=5_000)):
        sql = random_filter(chance)
        expected = sorted(plain.memtable_scanner().filter(sql).to_table().column("id").to_pylist())
        assert sorted(indexed.memtable_scanner().filter(sql).to_table().column("id").to_pylist()) == expected, sql
        assert sorted(indexed.scan(filter=sql).to_table().column("id").to_pylist()) == sorted(
            plain.scan(filter=sql).to_table().column("id").to_pylist()
        ), sql
        used += "BTree index" in indexed.memtable_scanner().filter(sql).explain()
    assert used > 30
    indexed.close()
    plain.close()


def test_explain_names_the_index_that_a_filter_uses(tmp_path: Path) -> None:
    indexed, plain = indexed_and_plain(tmp_path)
    assert "BTree index n_idx on n, id_idx on id" in indexed.scan(filter="n = 3 and id < 50").explain()
    assert "BTree index n_idx on n" in indexed.memtable_scanner().filter("n is null").explain()
    for sql in ("n = 3 or id = 1", "n = 1 + 1", "v is null"):
        assert "BTree index" not in indexed.scan(filter=sql).explain()
    assert "BTree" not in plain.scan(filter="n = 3").explain()
    indexed.close()
    plain.close()


def test_a_filter_with_an_index_still_decides_recency_first(tmp_path: Path) -> None:
    """Lesson 23, with the index in the way: the newer row that does not match hides the older one that does."""
    indexed, plain = indexed_and_plain(tmp_path)
    for writer in (indexed, plain):
        writer.put(rows([14]).set_column(3, "n", [[99]]).cast(rows([1]).schema))
        assert writer.memtable_scanner().filter("n = 4 and id = 14").count_rows() == 0
        assert writer.memtable_scanner().filter("n = 99").count_rows() == 1
        writer.close()


ALL = ["n_btree", "t_fts", "v_ann"]
SHARD = mw.shard_id_for(mw.Unsharded())


def test_a_live_writer_follows_the_new_set(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path, ["n_btree"])
    with table.shard_writer(SHARD, **SETTINGS) as writer:
        writer.put(rows([200]))
        assert memtable_indexes(writer) == ["n_btree"]
        for choice, expected in [
            ("all", ALL),
            (["t_fts"], ["t_fts"]),
            (None, []),
            (["v_ann", "n_btree"], ["n_btree", "v_ann"]),
        ]:
            details = table.indexes.maintain(choice)
            assert details.maintain_all_indexes is (choice == "all")
            assert sorted(details.maintained_indexes) == expected
            flush(writer)
            writer.put(rows([201]))
            flush(writer)
            assert index_names(sstables(table, writer)[-1]) == expected
            writer.put(rows([202]))
            assert memtable_indexes(writer) == expected
    assert table.count_rows() == 103
    assert table.verify().ok


def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    table.dataset.create_scalar_index("x", "BITMAP", name="x_bitmap")
    version = table.dataset.version
    for names, reason in [(["none"], "no index"), (["x_bitmap"], "no mirror"), ("some", "'all'")]:
        with pytest.raises(mw.InvalidInputError, match=reason):
            table.indexes.maintain(names)
    table.indexes.maintain("all")  # as it is
    assert table.dataset.version == version


def test_only_the_details_of_the_entry_change(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    before = newest_base(table)
    table.indexes.maintain(["t_fts"])
    after = newest_base(table)
    assert after.version == before.version + 1
    assert after.fragment_messages == before.fragment_messages
    assert {entry.name: entry.raw for entry in after.index_entries if entry.name in ALL} == {
        entry.name: entry.raw for entry in before.index_entries if entry.name in ALL
    }
    old, new = before.need_details(), after.need_details()
    assert (new.compacted, new.index_catchup, new.sharding_specs) == (
        old.compacted,
        old.index_catchup,
        old.sharding_specs,
    )
    assert new.writer_config_defaults == old.writer_config_defaults
    dataset = lance.dataset(table.uri)
    dataset.validate()
    assert dataset.mem_wal_index_details()["maintained_indexes"] == ["t_fts"]
    assert dataset.to_table().num_rows == 100


def _append(dataset: lance.LanceDataset) -> None:
    dataset.insert(rows([900]).cast(dataset.schema))


def _delete(dataset: lance.LanceDataset) -> None:
    dataset.delete("id = 5")


def _update(dataset: lance.LanceDataset) -> None:
    dataset.update({"x": "1.5"}, where="id = 6")


def _mark(dataset: lance.LanceDataset) -> None:
    merging = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merging.mark_sstables_as_compacted([CompactedSsTable(SHARD, 1)]).execute(rows([7]).cast(dataset.schema))


def _optimize(dataset: lance.LanceDataset) -> None:
    dataset.optimize.optimize_indices()


def _create_index(dataset: lance.LanceDataset) -> None:
    dataset.create_scalar_index("x", "BTREE", name="x_btree")


def _compact_files(dataset: lance.LanceDataset) -> None:
    dataset.optimize.compact_files()


@pytest.mark.parametrize("commit", [_append, _delete, _update, _mark, _optimize, _create_index, _compact_files])
def test_earlier_commits_of_lance_land_on_top(tmp_path: Path, commit: Callable[[lance.LanceDataset], None]) -> None:
    table = table_with_indexes(tmp_path)
    with table.shard_writer(SHARD, **SETTINGS) as writer:
        writer.put(rows([300]))
    lance.dataset(table.uri).insert(rows([800]).cast(table.dataset.schema))
    stale = lance.dataset(table.uri)
    table.indexes.maintain(["t_fts"])
    commit(stale)
    details = table.details()
    assert (details.maintained_indexes, details.maintain_all_indexes) == (("t_fts",), False)
    assert details.compacted == ({SHARD: 1} if commit is _mark else {})
    lance.dataset(table.uri).validate()


def test_marks_survive_changes_beside_compactions(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)

    def change() -> None:
        for number in range(12):
            mw.open_table(table.uri).indexes.maintain([ALL[number % 3]] if number % 2 else "all")

    changing = in_thread(change)
    with table.shard_writer(SHARD, **SETTINGS) as writer:
        for number in range(8):
            writer.put(rows([500 + number]))
            flush(writer)
            table.compact()
    changing.result(60)
    assert table.details().compacted == {SHARD: 8}
    assert table.count_rows() == lance.dataset(table.uri).count_rows() == 108


def test_a_version_that_somebody_else_committed_is_never_overwritten(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    stale = BaseTable.need(table.location)
    lance.dataset(table.uri).delete("id = 1")
    with pytest.raises(mw.ConflictError):
        commit_details(stale, stale.need_details(), SkippingClock(), fsync=False)
    assert lance.dataset(table.uri).count_rows() == 99
    left = [
        path.name for path in (Path(table.uri) / "_transactions").iterdir() if path.name.startswith(f"{stale.version}-")
    ]
    assert len(left) == 1  # that of the delete


def test_a_table_with_stable_row_ids_changes_its_set_too(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(range(50)), uri, enable_stable_row_ids=True).create_scalar_index(
        "n", "BTREE", name="n_btree"
    )
    table = mw.enable(uri, primary_key="id", writer_defaults={"fsync": False})
    assert hand_commit_is_safe(newest_base(table).manifest)
    ids = lance.dataset(uri).to_table(with_row_id=True)["_rowid"].to_pylist()
    table.indexes.maintain([])
    table.indexes.maintain(["n_btree"])
    assert lance.dataset(uri).to_table(with_row_id=True)["_rowid"].to_pylist() == ids
    lance.dataset(uri).insert(rows([60]).cast(table.dataset.schema))
    assert max(lance.dataset(uri).to_table(with_row_id=True)["_rowid"].to_pylist()) == 50
    lance.dataset(uri).validate()


def test_names_follow_the_indexes_when_a_writer_opens(tmp_path: Path) -> None:
    """LanceDB 0.40 knows only the list: an index that was made after the table must be in it."""
    place = tmp_path / "db"
    table = mw.create_table(
        str(place / "t.lance"), rows(range(300)), primary_key="id", writer_defaults={"fsync": False}
    )
    assert table.details().maintained_indexes == ()
    table.dataset.create_index("v", "IVF_FLAT", name="v_ann", num_partitions=2)
    with table.writer(compaction=None) as writer:
        assert table.details().maintained_indexes == ("v_ann",)
        version = table.dataset.version
        writer.put(rows([1_000]))
    with table.writer(compaction=None):
        assert table.dataset.version == version
    theirs: Any = lancedb.connect(str(place)).open_table("t")
    found = theirs.search(np.eye(DIM, dtype=np.float32)[0] * 1_000).limit(1).to_arrow()
    assert found["id"].to_pylist() == [1_000]
    peer: Any = lance.dataset(table.uri).mem_wal_writer(SHARD)
    peer.put(pa.table(rows([1_001])).cast(table.dataset.schema))
    peer.close()
    assert table.count_rows() == 302
    table.dataset.drop_index("v_ann")
    table.indexes.maintain("all")
    assert table.details().maintained_indexes == ()


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.float16()], ids=str)
def test_lancedb_and_pylance_write_a_table_whatever_its_vectors_are(tmp_path: Path, kind: pa.DataType) -> None:
    """LanceDB 0.40 opens no writer if the list names an index of vectors that are not of 32 bits: "all" does not."""
    key = {"lance-schema:unenforced-primary-key": "true"}
    schema = pa.schema([pa.field("id", pa.int64(), False, key), ("v", pa.list_(kind, DIM))])
    values = pa.array(np.random.default_rng(0).normal(size=300 * DIM).astype(kind.to_pandas_dtype()), kind)
    data = pa.table([pa.array(range(300)), pa.FixedSizeListArray.from_arrays(values, DIM)], schema=schema)
    dataset = lance.write_dataset(data, str(tmp_path / "t.lance"))
    dataset.create_index("v", "IVF_FLAT", name="v_ann", num_partitions=2)
    table = mw.enable(dataset.uri, writer_defaults={"fsync": False})
    assert table.details().maintained_indexes == (("v_ann",) if kind == pa.float32() else ())
    theirs: Any = lancedb.connect(str(tmp_path)).open_table("t")
    theirs.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(data.slice(0, 5))
    theirs.close_lsm_writers()
    with lance.dataset(table.uri).mem_wal_writer(SHARD) as peer:
        peer.put(data.slice(5, 5))
    assert table.count_rows() == 300
    assert table.compact().waiting_for_indexes == {"v_ann": 2}  # by the flag, it is maintained all the same
