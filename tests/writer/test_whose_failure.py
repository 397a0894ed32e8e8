"""A failure is told to those whom it concerns, and to nobody else; what waits is not forgotten."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.process.room import Room
from lance_memwal.table import writers
from tests.harness.points import run_once_at

PLAIN = pa.schema([("id", pa.int64()), ("v", pa.int64())])
KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


def taken_over_after_one_entry(table: mw.Table) -> list[str]:
    """Let another writer claim the table when the next entry is on storage; the list tells whether it did."""

    def take_over() -> None:
        crash_points.install(None)
        other = mw.open_table(table.uri).writer(fsync=False)
        other.put({"id": [99], "v": [99]})
        other.abort()

    return run_once_at("wal.after_put", take_over)


def test_a_leader_whose_rows_are_on_storage_writes_them_once(tmp_path: Path) -> None:
    """The next entry, of another thread, met the fence; told of it, the writer wrote the rows of the first one again."""
    table = mw.create_table(str(tmp_path / "t"), PLAIN)
    writer = table.writer(on_fenced="retake", max_memtable_rows=1, fsync=False, commit_linger_ms=300)
    writer.put({"id": [0], "v": [0]})
    taken = taken_over_after_one_entry(table)
    threads = [threading.Thread(target=writer.put, args=({"id": [key], "v": [key]},)) for key in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    writer.close()
    assert taken
    assert Counter(mw.open_table(table.uri).to_arrow()["id"].to_pylist()) == dict.fromkeys((0, 1, 2, 99), 1)


def test_all_threads_of_a_writer_that_was_fenced_go_on_after_it_claimed_the_shard_back(tmp_path: Path) -> None:
    """The first that met the fence ended the writer under the others, who were told that it is closed."""
    table = mw.create_table(str(tmp_path / "t"), KEYED, primary_key="id", merge=mw.FirstRow())
    writer = table.writer(on_fenced="retake", fsync=False)
    writer.put({"id": [0], "v": [0]})
    with table.writer(fsync=False) as other:
        other.put({"id": [99], "v": [99]})
    first, met = threading.Event(), threading.Event()
    failures: list[Exception] = []

    def hold(point: str) -> None:
        """The first thread waits in its write until another one has met the fence."""
        if point == "resolve.before_insert" and not first.is_set():
            first.set()
            met.wait(30)

    def write(key: int) -> None:
        try:
            writer.put({"id": [key], "v": [key]})
        except Exception as error:
            failures.append(error)

    crash_points.install(hold)
    threads = [threading.Thread(target=write, args=(key,)) for key in (1, 2)]
    threads[0].start()
    assert first.wait(30)
    threads[1].start()
    threads[1].join(30)
    met.set()
    threads[0].join(30)
    crash_points.install(None)
    writer.close()
    assert failures == []
    assert sorted(mw.open_table(table.uri).to_arrow()["id"].to_pylist()) == [0, 1, 2, 99]


def test_a_write_that_is_on_storage_is_not_told_of_the_fence_that_the_next_one_met(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), PLAIN)
    writer = table.writer(max_memtable_rows=1, fsync=False)
    writer.put({"id": [0], "v": [0]})
    first, second = (writer.put_nowait({"id": [key], "v": [key]}, drain=False) for key in (1, 2))
    assert taken_over_after_one_entry(table) == []
    first.wait()
    with pytest.raises(mw.FencedError):
        second.wait()
    writer.abort()
    assert Counter(mw.open_table(table.uri).to_arrow()["id"].to_pylist()) == dict.fromkeys((0, 1, 99), 1)


def test_a_parked_shard_that_was_claimed_is_taken_back(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), KEYED, primary_key="id", sharding=mw.Bucket("id", 2))
    keys = list(range(16))
    with table.writer(max_open_shards=1, on_fenced="retake", fsync=False) as writer:
        writer.put({"id": keys, "v": [0] * 16})
        with table.writer(fsync=False) as other:
            other.put({"id": keys, "v": [1] * 16})
        writer.put({"id": keys, "v": [2] * 16})
    assert set(mw.open_table(table.uri).to_arrow()["v"].to_pylist()) == {2}


def test_new_columns_reach_a_shard_that_is_being_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = KEYED.append(pa.field("x", pa.int64()))
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id", sharding=mw.Bucket("id", 1))
    writer = table.writer(fsync=False)
    looked, may_claim, honest = threading.Event(), threading.Event(), writers.ShardWriter.of_table

    def slow(*given: Any, **named: Any) -> Any:
        looked.set()
        may_claim.wait(30)
        return honest(*given, **named)

    monkeypatch.setattr(writers.ShardWriter, "of_table", slow)
    first = threading.Thread(target=writer.put, args=({"id": [1], "v": [1], "x": [1]},))
    first.start()
    assert looked.wait(30)
    lance.dataset(table.uri).drop_columns(["v"])
    lance.dataset(table.uri).add_columns(pa.field("v", pa.int64()))
    evolving = threading.Thread(target=writer.evolve_schema)
    evolving.start()
    evolving.join(0.3)
    may_claim.set()
    first.join(30)
    evolving.join(30)
    writer.put({"id": [2], "v": [2], "x": [2]})
    writer.close()
    assert mw.open_table(table.uri).get(2) == {"id": 2, "v": 2, "x": 2}


def test_a_wait_with_a_limit_lets_the_write_begin(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), KEYED, primary_key="id")
    with table.writer(fsync=False) as writer:
        writer.put_nowait({"id": [1], "v": [1]}, drain=False).wait(30)


def test_those_who_wait_for_room_have_it_in_their_order() -> None:
    room, got, over = Room(100), threading.Event(), threading.Event()

    def small(offset: float) -> None:
        time.sleep(offset)
        while not over.is_set():
            with room.taken(40):
                time.sleep(0.02)

    def large() -> None:
        with room.taken(90):
            got.set()

    threads = [threading.Thread(target=small, args=(offset,)) for offset in (0, 0.01)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    waiting = threading.Thread(target=large)
    waiting.start()
    came = got.wait(10)
    over.set()
    for thread in (*threads, waiting):
        thread.join(30)
    assert came


def test_who_waits_for_room_is_told_when_there_is_no_point_any_more() -> None:
    room = Room(100)

    def refuse() -> None:
        raise mw.ClosedError("over")

    with room.taken(100), pytest.raises(mw.ClosedError), room.taken(100, refuse):
        raise AssertionError("there was no room")
    assert room.taken_bytes == 0
