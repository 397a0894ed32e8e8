"""Repair brings back what can be brought back, keeps every byte, and leaves the rest to people."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.log.entry import decode_entry
from lance_memwal.log.reading import list_positions
from lance_memwal.store import paths
from lance_memwal.store.location import resolve

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHARD = "aa48498d-ac91-59e2-8452-69f46010ace2"


def make(place: Path) -> mw.Table:
    return mw.create_table(
        str(place), SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )


def ids(table: mw.Table) -> list[int]:
    return sorted(table.scan().to_table()["id"].to_pylist())


def _tear_last(table: mw.Table, keep: int) -> tuple[Path, bytes]:
    last = list_positions(resolve(table.uri), SHARD)[-1]
    path = Path(table.uri) / paths.wal_entry_path(SHARD, last)
    torn = path.read_bytes()[:keep]
    path.write_bytes(torn)
    return path, torn


@pytest.mark.parametrize("keep", [0, 1, 100, 500])
def test_a_torn_last_entry_is_put_aside_and_the_shard_opens_again(tmp_path: Path, keep: int) -> None:
    table = make(tmp_path / "t")
    writer = table.writer(compaction=None)
    writer.put({"id": [1], "v": ["a"]}, txn=("app", 4))
    writer.put({"id": [2], "v": ["b"]})
    writer.abort()
    path, torn = _tear_last(table, keep)
    with pytest.raises(mw.CorruptDataError):
        table.writer().put({"id": [3], "v": ["c"]})
    assert path.read_bytes() == torn

    planned = table.repair()
    assert [action.done for action in planned.actions] == [False]
    assert path.read_bytes() == torn

    done = table.repair(dry_run=False)
    assert [action.done for action in done.actions] == [True]
    assert done.problems == []
    aside = list((Path(table.uri) / paths.shard_dir(SHARD) / "memwal_quarantine").iterdir())
    assert [item.read_bytes() for item in aside] == [torn]
    mark = decode_entry(path.read_bytes())
    assert (mark.batches, mark.is_sentinel) == ((), False)
    assert table.verify().ok
    assert ids(table) == [1]
    with table.writer() as again:
        assert again.put({"id": [9], "v": ["z"]}, txn=("app", 4))[SHARD].skipped
        again.put({"id": [3], "v": ["c"]})
    assert ids(table) == [1, 3]
    assert table.gc(grace_seconds=0).refused == {}
    assert [item.read_bytes() for item in aside] == [torn]


def test_pylance_opens_a_repaired_shard(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    writer = table.writer(compaction=None)
    for number in (1, 2):
        writer.put({"id": [number], "v": ["a"]})
    writer.abort()
    _tear_last(table, 300)
    table.repair(dry_run=False)
    peer = lance.dataset(table.uri).mem_wal_writer(SHARD)
    assert peer.lsm_scanner().to_table()["id"].to_pylist() == [1]
    peer.close()


def test_damage_in_the_middle_is_left_to_people(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    writer = table.writer(compaction=None)
    for number in range(3):
        writer.put({"id": [number], "v": ["a"]})
    writer.abort()
    path = Path(table.uri) / paths.wal_entry_path(SHARD, 2)
    path.write_bytes(path.read_bytes()[:100])
    report = table.repair(dry_run=False)
    assert report.actions == ()
    assert [(problem.invariant, problem.position) for problem in report.problems] == [("V-3", 2)]
    assert len(path.read_bytes()) == 100


def test_the_index_of_an_overwritten_base_comes_back_with_the_rows_of_the_shards(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer(compaction=None) as writer:
        writer.put({"id": [1, 2], "v": ["old", "old"]})
        writer.flush()
        table.compact()
        writer.put({"id": [3], "v": ["sstable"]})
        writer.flush()
        writer.put({"id": [4], "v": ["tail"]})
        writer.abort()
    lance.write_dataset(
        pa.table({"id": [1, 50], "v": ["new", "new"]}, schema=table.schema), table.uri, mode="overwrite"
    )
    with pytest.raises(mw.InvalidInputError):
        mw.open_table(table.uri)
    broken = mw.open_table(table.uri, for_repair=True)
    assert not broken.verify().ok
    assert [action.done for action in broken.repair().actions] == [False]
    report = broken.repair(dry_run=False)
    assert [action.done for action in report.actions] == [True]
    assert report.problems == []
    again = mw.open_table(table.uri)
    rows = {row["id"]: row["v"] for row in again.scan().to_table().to_pylist()}
    assert rows == {1: "new", 50: "new", 3: "sstable", 4: "tail"}  # what was compacted before does not come back
    assert again.sharding == mw.Unsharded()
    again.flush(idle_seconds=0)
    again.compact()
    assert sorted(lance.dataset(table.uri).to_table()["id"].to_pylist()) == [1, 3, 4, 50]


def test_an_overwrite_with_other_columns_is_refused_with_the_reason(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer() as writer:
        writer.put({"id": [1], "v": ["a"]})
    other = pa.schema([table.schema.field("id"), pa.field("v", pa.int64())])
    lance.write_dataset(other.empty_table(), table.uri, mode="overwrite")
    report = mw.open_table(table.uri, for_repair=True).repair(dry_run=False)
    assert [action.done for action in report.actions] == [False]
    assert "another type" in report.actions[0].what
    assert report.problems


def test_repair_of_a_sound_table_does_nothing(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    with table.writer() as writer:
        writer.put({"id": [1], "v": ["a"]})
    version = table.dataset.version
    report = table.repair(dry_run=False)
    assert (report.actions, report.problems) == ((), [])
    assert table.dataset.version == version
