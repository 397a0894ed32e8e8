"""Rows get into the indexes at once or later, are counted and metered, and are found at every moment in between."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.memtable.index import HnswMemIndex
from lance_memwal.write.indexing import Indexing
from tests.kit.maintained import DIM, SETTINGS, flush, rows, table_with_indexes, wait_until

LATER = {**SETTINGS, "sync_indexed_write": False}


def indexed_rows(writer: mw.ShardWriter) -> set[int]:
    """What the indexes of the active memtable hold, without asking them to take in more."""
    return {index.indexed_rows for index in writer.active_memtable_ref().memtable.indexes}


def nearest_ids(writer: mw.ShardWriter, key: int, k: int = 1) -> list[int]:
    found = writer.scan().nearest("v", np.eye(DIM)[0] * key, k).to_table()
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
            assert writer.scan().filter(f"n = {key % 10}" if key % 10 != 9 else "n is null").count_rows() >= 1


def test_deferred_rows_are_indexed_after_the_interval(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    with table.shard_writer(**LATER, async_index_interval_ms=1) as writer:
        writer.put(rows(range(200, 230)))
        assert wait_until(lambda: indexed_rows(writer) == {30})
        assert wait_until(lambda: writer.stats().index_update_rows == 30)
        writer.put(rows(range(230, 240)))
        assert wait_until(lambda: indexed_rows(writer) == {40})


def test_deferred_rows_are_indexed_once_they_are_many(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    with table.shard_writer(**LATER, async_index_interval_ms=600_000, async_index_buffer_rows=25) as writer:
        writer.put(rows(range(200, 220)))
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
                    assert writer.scan().count_rows() == key - 199
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
        writer.scan().filter("n = 3").to_table()
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


def test_an_interrupted_put_leaves_nothing_in_the_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_with_indexes(tmp_path)
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(rows([200]))

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("lance_memwal.write.group_commit.Pending", interrupt)
            with pytest.raises(KeyboardInterrupt):
                writer.put(rows([777]))
        writer.put(rows([201, 202]))
        assert indexed_rows(writer) == {3}
        assert nearest_ids(writer, 777, k=10) == [202, 201, 200]
        assert table.search(text="number777", k=3).num_rows == 0


def test_an_interrupt_between_a_put_and_its_indexing_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_with_indexes(tmp_path)
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(rows([200]))

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Indexing, "inserted", interrupt)
            with pytest.raises(KeyboardInterrupt):
                writer.put(rows([777]))
        writer.put(rows([201]))
        assert indexed_rows(writer) == {3}
        assert nearest_ids(writer, 777, k=10) == [777, 201, 200]


def test_searches_beside_puts_and_graph_building_see_whole_rows(tmp_path: Path) -> None:
    """Lesson 35: readers of an index never see it half made."""
    table = table_with_indexes(tmp_path)
    failures: list[BaseException] = []
    done = threading.Event()
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(rows(range(1000, 3000)))
        acknowledged = [2999]

        def read() -> None:
            try:
                while not done.is_set():
                    newest = acknowledged[0]
                    assert nearest_ids(writer, newest)[0] == newest
                    found = table.search(text=f"number{newest}", k=1, columns=["id"]).column("id").to_pylist()
                    assert found == [newest]
            except BaseException as error:
                failures.append(error)

        def build() -> None:
            while not done.is_set():
                for index in writer.active_memtable_ref().indexes:
                    index.catch_up(100)

        threads = [threading.Thread(target=work) for work in (read, read, build)]
        for thread in threads:
            thread.start()
        for start in range(3000, 5000, 20):
            writer.put(rows(range(start, start + 20)))
            acknowledged[0] = start + 19
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []


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
            writer.scan().nearest("v", np.eye(DIM)[0] * 10_000, 10).to_table(),
            table.search(vector=np.eye(DIM)[0] * 10_000, k=200, filter="id >= 500"),
        ):
            assert sorted(found.column("id").to_pylist()) == [500, 20_001, 30_001]
        assert table.search(text="number10000", k=5).num_rows == 0
        assert table.search(text="number30000", k=5).column("id").to_pylist() == [500]
    wait_until(lambda: writer.memtable_stats().frozen_count == 0)
    writer.close()
