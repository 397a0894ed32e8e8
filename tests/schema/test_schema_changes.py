"""Columns are added, renamed and dropped while rows are in every tier: everybody reads them by field id."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw

SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.int64())])


def make(place: Path, key: str | None) -> mw.Table:
    return mw.create_table(
        str(place), SCHEMA, primary_key=key, sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )


def rows_in_every_tier(table: mw.Table) -> mw.TableWriter:
    """One row in the base table, one in an SSTable, one in the log and the memtable; the writer lives."""
    writer = table.writer(compaction=None)
    writer.put({"id": [1], "a": ["base"], "b": [10]})
    writer.flush()
    table.compact()
    writer.put({"id": [2], "a": ["sstable"], "b": [20]})
    writer.flush()
    writer.put({"id": [3], "a": ["memtable"], "b": [30]})
    return writer


def add(dataset: lance.LanceDataset) -> None:
    dataset.add_columns(pa.schema([("c", pa.string())]))


def add_flag(dataset: lance.LanceDataset) -> None:
    """A boolean gets the field id that `_tombstone` has in SSTables."""
    dataset.add_columns(pa.schema([("c", pa.bool_())]))


def rename(dataset: lance.LanceDataset) -> None:
    dataset.alter_columns({"path": "a", "name": "z"})


def drop(dataset: lance.LanceDataset) -> None:
    dataset.drop_columns(["a"])


def drop_last_and_add(dataset: lance.LanceDataset) -> None:
    dataset.drop_columns(["b"])
    lance.dataset(dataset.uri).add_columns(pa.schema([("b", pa.int64())]))


def swap_names(dataset: lance.LanceDataset) -> None:
    dataset.alter_columns({"path": "a", "name": "t"})
    lance.dataset(dataset.uri).add_columns(pa.schema([("a", pa.string())]))


TEXT = ("base", "sstable", "memtable")
OLD = [{"id": i + 1, "a": TEXT[i], "b": (i + 1) * 10} for i in range(3)]
Change = Callable[[lance.LanceDataset], None]
CHANGES: list[tuple[Change, list[dict[str, Any]]]] = [
    (add, [{**row, "c": None} for row in OLD]),
    (add_flag, [{**row, "c": None} for row in OLD]),
    (rename, [{"id": row["id"], "z": row["a"], "b": row["b"]} for row in OLD]),
    (drop, [{"id": row["id"], "b": row["b"]} for row in OLD]),
    (drop_last_and_add, [{"id": row["id"], "a": row["a"], "b": None} for row in OLD]),
    (swap_names, [{"id": row["id"], "t": row["a"], "b": row["b"], "a": None} for row in OLD]),
]


def by_id(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("key", ["id", None])
@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_rows_of_every_tier_are_read_by_field_id(
    tmp_path: Path, key: str | None, change: Change, expected: list[dict[str, Any]]
) -> None:
    table = make(tmp_path / "t", key)
    writer = rows_in_every_tier(table)
    change(table.dataset)
    assert by_id(table.scan().to_table()) == expected  # the writer's own memtable
    writer.abort()
    assert by_id(mw.open_table(table.uri).scan().to_table()) == expected  # the log
    table.flush(idle_seconds=0)
    assert by_id(mw.open_table(table.uri).scan().to_table()) == expected
    assert table.verify().ok
    table.compact()
    assert by_id(lance.dataset(table.uri).to_table()) == expected
    assert table.gc(grace_seconds=0).refused == {}


@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_a_writer_that_has_not_moved_goes_on_under_the_old_columns(
    tmp_path: Path, change: Change, expected: list[dict[str, Any]]
) -> None:
    table = make(tmp_path / "t", "id")
    with rows_in_every_tier(table) as writer:
        change(table.dataset)
        for row in OLD:
            writer.put([row])
        assert by_id(table.scan().to_table()) == expected
    table.compact()
    assert by_id(lance.dataset(table.uri).to_table()) == expected


def new_rows(table: mw.Table) -> list[dict[str, Any]]:
    """Rows with a value in every column that the table has now."""
    values = {pa.int64(): 7, pa.string(): "new", pa.bool_(): True}
    return [{field.name: values[field.type] for field in table.schema}]


@pytest.mark.parametrize("key", ["id", None])
@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_a_live_writer_moves_to_the_new_columns(
    tmp_path: Path, key: str | None, change: Change, expected: list[dict[str, Any]]
) -> None:
    table = make(tmp_path / "t", key)
    writer = rows_in_every_tier(table)
    change(table.dataset)
    writer.evolve_schema()
    fresh = new_rows(table)
    writer.put(fresh)
    assert by_id(writer.scan().to_table()) == expected + fresh
    epochs = [w.epoch for w in writer.shard_writers.values()]
    writer.abort()
    assert by_id(mw.open_table(table.uri).scan().to_table()) == expected + fresh
    with table.writer(compaction=None) as again:
        again.put(fresh if key else [{**fresh[0], "id": 8}])
    assert epochs == [1]
    table.compact()
    left = by_id(lance.dataset(table.uri).to_table())
    assert left == expected + (fresh if key else [*fresh, {**fresh[0], "id": 8}])


def test_puts_of_other_threads_wait_for_the_move_and_none_is_lost(tmp_path: Path) -> None:
    table = make(tmp_path / "t", "id")
    writer = table.shard_writer()
    stop = threading.Event()
    written: list[int] = []
    failures: list[BaseException] = []

    def put(thread: int) -> None:
        number = thread
        try:
            while not stop.is_set():
                writer.put({"id": [number], "b": [number]}, missing="null")  # columns that stay
                written.append(number)
                number += 4
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=put, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(6):
        table.dataset.add_columns(pa.schema([(f"c{turn}", pa.string())]))
        writer.evolve_schema()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert writer.schema.names == ["id", "a", "b", *(f"c{turn}" for turn in range(6))]
    assert sorted(table.scan().to_table()["id"].to_pylist()) == sorted(written)
    writer.close()
    table.compact()
    assert sorted(lance.dataset(table.uri).to_table()["id"].to_pylist()) == sorted(written)


def test_a_log_only_writer_moves_too(tmp_path: Path) -> None:
    table = make(tmp_path / "t", "id")
    writer = table.shard_writer(enable_memtable=False)
    writer.put({"id": [1], "a": ["old"], "b": [1]})
    rename(table.dataset)
    writer.evolve_schema()
    writer.put({"id": [2], "z": ["new"], "b": [2]})
    assert by_id(table.scan(columns=["id", "z"]).to_table()) == [{"id": 1, "z": "old"}, {"id": 2, "z": "new"}]
    writer.close()


def test_evolving_without_a_change_flushes_nothing(tmp_path: Path) -> None:
    table = make(tmp_path / "t", "id")
    with table.shard_writer() as writer:
        writer.put({"id": [1], "a": ["x"], "b": [1]})
        writer.evolve_schema()
        assert writer.manifest().sstables == ()


def test_pylance_opens_a_log_with_entries_of_two_schemas(tmp_path: Path) -> None:
    table = make(tmp_path / "t", "id")
    writer = table.shard_writer()
    writer.put({"id": [1], "a": ["old"], "b": [1]})
    rename(table.dataset)
    writer.put({"id": [2], "a": ["still old"], "b": [2]})
    writer.evolve_schema()
    writer.put({"id": [3], "z": ["new"], "b": [3]})
    shard = writer.shard_id
    writer.abort()
    peer: Any = lance.dataset(table.uri).mem_wal_writer(shard)
    rows = {row["id"]: row["z"] for row in peer.lsm_scanner().to_table().to_pylist()}
    peer.close()
    assert rows == {1: "old", 2: "still old", 3: "new"}
