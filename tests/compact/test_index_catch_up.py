"""Compacted generations stay listed until every maintained index has their rows; our reads never show them twice."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest

import lance_memwal as mw
from lance_memwal.sstable.catch_up import CatchUp
from tests.kit.maintained import DIM, SETTINGS, flush, rows, table_with_indexes

ALL = ["n_btree", "t_fts", "v_ann"]


def compacted(place: Path, maintained: Any = "all", generations: int = 2) -> mw.Table:
    """A table with generations of ten rows that are in the base table and not in its indexes."""
    table = table_with_indexes(place, maintained)
    with table.shard_writer(mw.shard_id_for(mw.Unsharded()), **SETTINGS) as writer:
        for number in range(generations):
            writer.put(rows(range(200 + 10 * number, 210 + 10 * number)))
            flush(writer)
    table.compact()
    return table


def listed(table: mw.Table) -> list[int]:
    return [generation for shard in table.shards() for generation in shard.generations]


@pytest.mark.parametrize(
    ("maintained", "waits"),
    [("all", ALL), (["t_fts"], ["t_fts"]), (None, []), (["n_btree", "v_ann"], ["n_btree", "v_ann"])],
)
def test_generations_wait_for_the_maintained_indexes_and_for_no_others(
    tmp_path: Path, maintained: Any, waits: list[str]
) -> None:
    table = compacted(tmp_path, maintained)
    assert table.stats().waiting_for_indexes == dict.fromkeys(waits, 2)
    assert listed(table) == ([1, 2] if waits else [])
    report = table.gc(grace_seconds=0)
    assert report.waiting == (2 if waits else 0)
    assert (report.count("sstable") == 0) is bool(waits)
    lance.dataset(table.uri).optimize.optimize_indices()
    assert table.compact().waiting_for_indexes == {}
    assert listed(table) == []
    table.gc(grace_seconds=0)
    assert table.count_rows() == 120


def test_one_index_that_lags_keeps_what_the_others_have(tmp_path: Path) -> None:
    table = compacted(tmp_path)
    lance.dataset(table.uri).optimize.optimize_indices(index_names=["n_btree", "t_fts"])
    report = table.compact()
    assert report.waiting_for_indexes == {"v_ann": 2}
    assert "2 kept until index v_ann has their rows" in table.scan().explain()
    assert "t_fts" not in table.scan().explain()
    lance.dataset(table.uri).drop_index("v_ann")  # what is gone holds nothing back
    assert table.compact().waiting_for_indexes == {}
    assert listed(table) == []


def test_the_rule_is_the_smallest_of_the_marks(tmp_path: Path) -> None:
    marks = CatchUp({"a": 7, "b": 3}, {"i": {"a": 5, "b": 9}, "j": {"a": 6}})
    assert (marks.through("a"), marks.through("b"), marks.through("c")) == (5, 0, 0)
    assert CatchUp({"a": 7}, {}).through("a") == 7


def test_kept_generations_are_not_read_twice_and_hide_no_newer_base_row(tmp_path: Path) -> None:
    table = compacted(tmp_path)
    assert listed(table) == [1, 2]
    lance.dataset(table.uri).update({"t": "'changed by lance'", "n": "77"}, where="id = 205")
    lance.dataset(table.uri).delete("id = 206")
    for reader in (table, mw.open_table(table.uri)):
        assert reader.count_rows() == 119
        found = reader.get(205)
        assert found is not None
        assert (found["t"], found["n"]) == ("changed by lance", 77)
        assert reader.get(206) is None
        assert reader.lookup([205, 206, 207])["id"].to_pylist() in ([205, 207], [207, 205])
        assert reader.scan(filter="n = 77").to_table()["id"].to_pylist() == [205]
        assert reader.search(text="changed", k=5)["id"].to_pylist() == [205]
        assert reader.search(text="number205", k=5).num_rows == 0
        assert reader.search(vector=np.eye(DIM)[0] * 206, k=2)["id"].to_pylist() in ([205, 207], [207, 205])
    with table.shard_writer(mw.shard_id_for(mw.Unsharded()), **SETTINGS) as writer:
        writer.put(rows([206]))
        flush(writer)
    table.compact()
    assert table.count_rows() == lance.dataset(table.uri).count_rows() == 120
    assert table.verify().ok


def test_append_only_rows_that_wait_for_an_index_count_once(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(range(50)), uri).create_scalar_index("n", "BTREE", name="n_btree")
    table = mw.enable(uri, writer_defaults={"fsync": False})
    for _ in range(3):
        with table.writer(compaction=None) as writer:
            writer.put(rows(range(10)))
        table.compact()
    assert listed(table) == [1, 2, 3]
    assert table.count_rows() == lance.dataset(uri).count_rows() == 80
    assert mw.open_table(uri).scan(filter="n = 1").count_rows() == 5 + 3
    table.gc(grace_seconds=0, optimize_indices=True)
    assert listed(table) == []
    assert table.count_rows() == 80


def test_deletes_alone_wait_for_the_indexes_and_are_let_go(tmp_path: Path) -> None:
    table = table_with_indexes(tmp_path)
    with table.shard_writer(mw.shard_id_for(mw.Unsharded()), **SETTINGS) as writer:
        writer.delete([1, 2, 3])
        flush(writer)
    assert table.compact().waiting_for_indexes == dict.fromkeys(ALL, 1)
    lance.dataset(table.uri).optimize.optimize_indices()
    assert table.compact().waiting_for_indexes == {}
    assert (listed(table), table.count_rows()) == ([], 97)


@pytest.mark.parametrize("stable", [True, False], ids=["stable row ids", "addresses"])
def test_tables_of_either_kind_of_row_id_catch_up(tmp_path: Path, stable: bool) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(range(50)), uri, enable_stable_row_ids=stable).create_scalar_index(
        "n", "BTREE", name="n_btree"
    )
    table = mw.enable(uri, primary_key="id", writer_defaults={"fsync": False})
    with table.writer(compaction=None) as writer:
        writer.put(rows(range(40, 60)))
    assert table.compact().waiting_for_indexes == {"n_btree": 1}
    table.gc(grace_seconds=0, optimize_indices=True)
    assert (listed(table), table.count_rows(), table.stats().waiting_for_indexes) == ([], 60, {})


def test_verify_looks_at_generations_that_are_kept_for_an_index(tmp_path: Path) -> None:
    table = compacted(tmp_path)
    shard = table.shards()[0].shard_id
    (first, *_) = sorted((Path(table.uri) / "_mem_wal" / shard).glob("*_gen_1"))
    shutil.rmtree(first)
    report = table.verify()
    assert [problem.invariant for problem in report.problems] == ["V-8"]
    assert "Table.maintain" in report.problems[0].remedy
    assert table.count_rows() == 120  # our own reads do not need it
    table.maintain()
    assert table.verify().ok
    assert (table.count_rows(), table.stats().waiting_for_indexes) == (120, {})
