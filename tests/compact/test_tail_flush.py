"""Tails of shards that nobody writes become SSTables; shards that somebody writes are left alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHARD = "aa48498d-ac91-59e2-8452-69f46010ace2"


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return mw.create_table(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )


def crash(table: mw.Table, *ids: int) -> None:
    writer = table.writer(compaction=None)
    writer.put({"id": list(ids), "v": ["x"] * len(ids)})
    writer.abort()


def test_a_crashed_writer_s_tail_becomes_a_generation(table: mw.Table) -> None:
    crash(table, 1, 2, 3)
    report = table.flush(idle_seconds=0)
    assert (report.rows, report.generations, report.skipped) == (3, 1, {})
    info = table.shards()[0]
    assert (info.generations, info.wal_tail) == ((1,), 1)  # the mark by which it left its epoch to sinks
    assert sorted(table.scan(consistency="flushed").to_table()["id"].to_pylist()) == [1, 2, 3]


def test_a_tail_of_a_log_only_writer_becomes_generations_as_numbered(table: mw.Table) -> None:
    writer = table.shard_writer(enable_memtable=False, max_memtable_rows=2)
    for number in range(5):
        writer.put({"id": [number], "v": ["x"]})
    writer.close()
    report = table.flush(idle_seconds=0)
    assert (report.rows, report.shards[0].generations) == (5, (1, 2, 3))
    table.compact()
    assert table.dataset.count_rows() == 5


def test_a_young_shard_is_skipped_and_reported(table: mw.Table) -> None:
    crash(table, 1)
    report = table.flush()
    assert list(report.skipped) == [SHARD]
    assert "seconds old" in report.skipped[SHARD]
    assert table.shards()[0].epoch == 1


def test_a_writer_of_this_process_is_not_fenced_unless_forced(table: mw.Table) -> None:
    with table.writer(compaction=None) as writer:
        writer.put({"id": [1], "v": ["x"]})
        report = table.flush(idle_seconds=0)
        assert "writer of this process" in report.skipped[SHARD]
        writer.put({"id": [2], "v": ["y"]})
        assert table.flush(force=True).rows == 2
        with pytest.raises(mw.FencedError):
            writer.put({"id": [3], "v": ["z"]})
        writer.abort()


def test_a_shard_without_rows_in_its_tail_is_not_claimed(table: mw.Table) -> None:
    with table.writer(compaction=None) as writer:
        writer.put({"id": [1], "v": ["x"]})
    for _ in range(2):
        table.shard_writer(SHARD).abort()  # leaves a sentinel
    epoch = table.shards()[0].epoch
    assert table.flush(idle_seconds=0, force=True).shards == ()
    assert table.shards()[0].epoch == epoch


def test_only_the_named_shards_are_flushed_and_unknown_ones_are_refused(table: mw.Table) -> None:
    crash(table, 1)
    with pytest.raises(mw.InvalidInputError, match="no shard"):
        table.flush(shards=["00000000-0000-4000-8000-000000000000"])
    assert table.flush(shards=[SHARD], idle_seconds=0).rows == 1
