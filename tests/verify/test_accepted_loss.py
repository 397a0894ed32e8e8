"""`repair(accept_loss=True)`: damage in the middle of a log is given up, written down, and the rest opens."""

from __future__ import annotations

import json
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.cli import main
from lance_memwal.log.entry import decode_entry
from lance_memwal.log.reading import list_positions
from lance_memwal.store import paths
from lance_memwal.store.location import resolve

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
SHARD = "aa48498d-ac91-59e2-8452-69f46010ace2"


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})


def put(table: mw.Table, *numbers: int) -> None:
    """Each number as an entry of its own, in no SSTable; the writer is gone then."""
    writer = table.writer(compaction=None)
    for number in numbers:
        writer.put({"id": [number], "v": ["x"]}, txn=("app", number))
    writer.abort()


def damage(table: mw.Table, position: int) -> bytes:
    path = Path(table.uri) / paths.wal_entry_path(SHARD, position)
    torn = path.read_bytes()[:200]
    path.write_bytes(torn)
    return torn


def ids(table: mw.Table) -> list[int]:
    return sorted(table.scan(["id"]).to_table()["id"].to_pylist())


def test_without_a_word_nothing_is_given_up_and_a_dry_run_changes_nothing(table: mw.Table) -> None:
    put(table, 1, 2, 3)
    torn = damage(table, 2)
    assert table.repair(dry_run=False).actions == ()
    planned = table.repair(accept_loss=True)
    assert [action.done for action in planned.actions] == [False]
    assert "entry 2 is damaged, and rows that only this entry holds are lost" in planned.actions[0].what
    assert (Path(table.uri) / paths.wal_entry_path(SHARD, 2)).read_bytes() == torn
    with pytest.raises(mw.CorruptDataError):
        ids(table)


def test_the_rest_opens_and_what_is_lost_is_written_down(table: mw.Table) -> None:
    put(table, 1, 2, 3)
    torn = damage(table, 2)
    done = table.repair(dry_run=False, accept_loss=True)
    assert [action.done for action in done.actions] == [True]
    assert done.problems == []
    assert table.verify().ok
    assert ids(table) == [1, 3]
    aside = Path(table.uri) / paths.shard_dir(SHARD) / "memwal_quarantine"
    (record,) = aside.glob("*.json")
    told = json.loads(record.read_text())
    assert (told["position"], told["size_bytes"], told["rows_are_in_sstables"]) == (2, len(torn), False)
    assert record.with_suffix("").read_bytes() == torn
    with table.writer() as writer:
        assert writer.put({"id": [1], "v": ["y"]}, txn=("app", 3))[SHARD].skipped
        writer.put({"id": [4], "v": ["x"]})
    assert table.settle(timeout=20, idle_seconds=0).converged
    assert sorted(lance.dataset(table.uri).to_table()["id"].to_pylist()) == [1, 3, 4]
    assert table.gc(grace_seconds=0).refused == {}
    assert record.with_suffix("").read_bytes() == torn


def test_entries_of_later_epochs_stay_and_none_becomes_stale(table: mw.Table) -> None:
    put(table, 1, 2)
    put(table, 3, 4)
    put(table, 5, 6)
    damage(table, 2)
    table.repair(dry_run=False, accept_loss=True)
    mark = decode_entry((Path(table.uri) / paths.wal_entry_path(SHARD, 2)).read_bytes())
    assert (mark.batches, mark.writer_epoch, mark.is_sentinel) == ((), 2, False)
    assert ids(table) == [1, 3, 4, 5, 6]
    with table.writer(compaction=None):
        pass
    assert ids(table) == [1, 3, 4, 5, 6]


def test_a_damaged_sentinel_and_a_torn_end_are_given_up_together(table: mw.Table) -> None:
    put(table, 1)
    put(table, 2, 3)
    damage(table, 2)
    damage(table, list_positions(resolve(table.uri), SHARD)[-1])
    done = table.repair(dry_run=False, accept_loss=True)
    assert [action.done for action in done.actions] == [True, True]
    assert ids(table) == [1, 2]
    assert table.verify().ok


def test_a_generation_that_would_be_skipped_is_left_to_people(table: mw.Table) -> None:
    def stop(point: str) -> None:
        if point == "flush.before_commit":
            raise OSError("the flush never ends")

    writer = table.shard_writer(stats_log_interval_ms=None)
    writer.put({"id": [1], "v": ["x"]})
    crash_points.install(stop)
    try:
        writer.force_seal_active()
        writer.put({"id": [2], "v": ["x"]})
        writer.abort()
    finally:
        crash_points.install(None)
    torn = damage(table, 1)
    done = table.repair(dry_run=False, accept_loss=True)
    assert [action.done for action in done.actions] == [False]
    assert "cannot follow without it" in done.actions[0].what
    assert (Path(table.uri) / paths.wal_entry_path(SHARD, 1)).read_bytes() == torn


def test_pylance_opens_what_is_left(table: mw.Table) -> None:
    put(table, 1, 2, 3)
    damage(table, 2)
    table.repair(dry_run=False, accept_loss=True)
    peer = lance.dataset(table.uri).mem_wal_writer(SHARD)
    assert sorted(peer.lsm_scanner().to_table()["id"].to_pylist()) == [1, 3]
    peer.close()


def test_the_command_line_says_what_is_lost(table: mw.Table, capsys: pytest.CaptureFixture[str]) -> None:
    put(table, 1, 2, 3)
    damage(table, 2)
    assert main(["repair", table.uri, "--accept-loss", "--apply", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["problems"] == []
    assert "rows that only this entry holds are lost" in told["actions"][0]["what"]
    assert ids(table) == [1, 3]
