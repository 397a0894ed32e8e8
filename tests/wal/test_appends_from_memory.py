"""An append from what a sink knows of its log: others appended, flushed, collected or claimed since (RFC 0023)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.store.location import resolve
from lance_memwal.store.metering import Recorder
from lance_memwal.types import Transaction
from lance_memwal.write.joining import Given, Sink
from lance_memwal.write.once import OnceAppender

SHARD = mw.shard_id_for(mw.Unsharded())


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    uri = str(tmp_path / "t")
    return mw.create_table(uri, pa.schema([pa.field("id", pa.int64())]), sharding=mw.Unsharded())


def rows(*ids: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"id": pa.array(ids, pa.int64())})]


def ids(table: mw.Table) -> list[int]:
    return sorted(table.scan().to_table().column("id").to_pylist())


def living(table: mw.Table) -> Sink:
    """A sink that has appended row 0, and knows its log."""
    sink = Sink(OnceAppender(table.location))
    sink.append(SHARD, rows(0), txn=("stream", 0))
    return sink


def test_an_append_in_peace_is_a_create_and_a_look_at_the_manifest(table: mw.Table) -> None:
    recorder = Recorder()
    sink = Sink(OnceAppender(resolve(table.uri, metrics=recorder)))
    sink.append(SHARD, rows(0), txn=("stream", 0))
    recorder.reset()
    list(sink.append_all([SHARD], lambda _: Given(rows(1), Transaction("stream", 1))))
    assert {kind: stats.count for kind, stats in recorder.snapshot().items()} == {"put_new": 1, "get": 1, "head": 2}
    assert ids(table) == [0, 1]


def test_what_others_appended_is_met_and_a_repeat_of_it_is_skipped(table: mw.Table) -> None:
    sink, other = living(table), Sink(OnceAppender(table.location))
    other.append(SHARD, rows(1), txn=("stream", 1))
    assert sink.append(SHARD, rows(1), txn=("stream", 1)).skipped
    other.append(SHARD, rows(2), txn=("other", 1))
    assert sink.append(SHARD, rows(3), txn=("stream", 3)).rows == 1
    assert ids(table) == [0, 1, 2, 3]


@pytest.mark.parametrize("repeats", [True, False])
def test_a_slot_that_collection_emptied_is_not_taken_for_the_tip(table: mw.Table, repeats: bool) -> None:
    sink, other = living(table), Sink(OnceAppender(table.location))
    for number in (1, 2, 3):
        other.append(SHARD, rows(number), txn=("stream", number))
    assert other.flush(SHARD) == 1
    other.append(SHARD, rows(4), txn=("stream", 4))
    assert other.flush(SHARD) == 1
    assert any(item.kind == "entry" for item in table.gc(grace_seconds=0).objects)
    number = 4 if repeats else 5
    sink.append(SHARD, rows(number), txn=("stream", number))
    assert ids(table) == ([0, 1, 2, 3, 4] if repeats else [0, 1, 2, 3, 4, 5])
    assert table.verify().problems == []


def test_a_writer_that_came_and_went_is_noticed(table: mw.Table) -> None:
    sink = living(table)
    with table.shard_writer() as writer:
        writer.put(rows(1))
    assert sink.append(SHARD, rows(2), txn=("stream", 2)).rows == 1
    with table.shard_writer() as writer:
        writer.put(rows(3))
    table.gc(grace_seconds=0)
    assert sink.append(SHARD, rows(2), txn=("stream", 2)).skipped
    assert ids(table) == [0, 1, 2, 3]


def test_conditions_are_decided_by_what_others_wrote_since(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
    table = mw.create_table(str(tmp_path / "k"), schema, primary_key="id", sharding=mw.Unsharded())

    def row(n: int) -> list[pa.RecordBatch]:
        return [pa.record_batch({"id": [1], "n": [n]}, schema=schema)]

    from lance_memwal.lance.base import BaseTable, NewestBase
    from lance_memwal.read.reader import Reader
    from lance_memwal.write.changes import Terms

    look_up = Reader(NewestBase(BaseTable.need(table.location))).stored_rows
    sink = Sink(OnceAppender(table.location, look_up=look_up))
    other = Sink(OnceAppender(table.location))
    sink.append(SHARD, row(1))
    other.append(SHARD, row(9))
    result = sink.append(SHARD, row(5), terms=Terms(where="excluded.n > n"))
    assert result.rejected_rows == 1
    assert table.scan().to_table().to_pylist() == [{"id": 1, "n": 9}]
