"""A table travels to other processes: pools of workers open it where it arrives."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import lance_memwal as mw
from lance_memwal.store.location import resolve
from tests.kit.tables import FAST, create


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
