"""A table travels to other processes: pools of workers open it where it arrives."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import lance_memwal as mw
from lance_memwal.store.location import resolve
from tests.kit.tables import FAST, create, ids_of


def count(table: mw.Table) -> int:
    return table.count_rows()


def test_a_table_travels_to_a_worker_process_and_is_read_fresh_there(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with (
        table.writer(**FAST) as writer,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        writer.put({"id": [1, 2], "v": [1, 1], "s": ["a", "b"]})
        assert pool.submit(count, table).result(30) == 2
        writer.put({"id": [3], "v": [1], "s": ["c"]})
        assert pool.submit(count, table).result(30) == 3


def test_its_options_travel_with_it() -> None:
    location = resolve("s3://bucket/t", {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region": "x"})
    again = pickle.loads(pickle.dumps(location))
    assert (again.key, again.storage_options) == (location.key, location.storage_options)
    assert "secret" not in repr(again)


def rows(scan: mw.Scan) -> list[dict[str, Any]]:
    return scan.to_table().to_pylist()


def test_a_scan_travels_with_its_query_and_its_moment(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with (
        table.writer(**FAST) as writer,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        writer.put({"id": [1], "v": [1], "s": ["a"]})
        writer.flush(20)
        table.compact()
        writer.put({"id": [2], "v": [2], "s": ["b"]})
        writer.flush(20)
        writer.put({"id": [3, 4], "v": [3, 4], "s": ["c", "d"]})
        scan = writer.scan(["id", "s"], "v > 1", 2, order_by=["-id"])
        sent = pickle.dumps(scan)
        expected = [{"id": 4, "s": "d"}, {"id": 3, "s": "c"}]
        writer.put({"id": [5], "v": [5], "s": ["e"]})
        writer.delete([3])
        copy = pickle.loads(sent)
        assert rows(copy) == rows(pickle.loads(pickle.dumps(copy))) == expected
        assert copy.schema == scan.schema
        assert pool.submit(rows, copy).result(30) == expected
        assert rows(pickle.loads(pickle.dumps(scan))) == [{"id": 5, "s": "e"}, {"id": 4, "s": "d"}]


def test_a_scan_of_a_moment_travels_as_that_moment(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table:
        table.add({"id": [1], "v": [1], "s": ["a"]})
        view = table.at(table.snapshot())
        table.add({"id": [2], "v": [1], "s": ["b"]})
        assert rows(pickle.loads(pickle.dumps(view.scan(["id"])))) == [{"id": 1}]


def test_scans_with_expressions_shards_and_consistency_travel(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=mw.Bucket("id", 2))
    with table:
        table.add({"id": [1, 2, 3, 4], "v": [1, 2, 3, 4], "s": ["a"] * 4})
        shard = table.shards()[0].shard_id
        for options in ({"filter": pc.field("v") > 2}, {"shards": [shard]}, {"consistency": "flushed"}):
            scan = table.scan(["id"], **options)
            assert ids_of(pickle.loads(pickle.dumps(scan))) == ids_of(scan)


def test_a_scan_of_memory_says_that_it_cannot_travel(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table.shard_writer(**FAST) as writer:
        writer.put({"id": [1], "v": [1], "s": ["a"]})
        scan = table.scan(in_memory=writer.in_memory_memtable_refs())
        with pytest.raises(mw.InvalidInputError, match="send the table"):
            pickle.dumps(scan)
