"""Appends without a writer to tables with a merge: rows are looked up after the log was read, and before the entry."""

from __future__ import annotations

import multiprocessing
import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.lance.base import NewestBase
from lance_memwal.read.reader import Reader
from lance_memwal.write.claim import ShardClaim
from lance_memwal.write.once import OnceAppender

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), ("ts", pa.int64())])


def make(place: Path, merge: Any) -> mw.Table:
    return mw.create_table(str(place), SCHEMA, primary_key="id", merge=merge, writer_defaults={"fsync": False})


def appender(table: mw.Table, **options: Any) -> OnceAppender:
    return OnceAppender(table.location, look_up=Reader(NewestBase(table.base)).stored_rows, **options)


def rows(*given: tuple[int, int | None, str]) -> list[pa.RecordBatch]:
    """(key, sequence, value); the value "" is a delete."""
    return [
        pa.record_batch(
            {
                "id": pa.array([key for key, _, _ in given], pa.int64()),
                "v": pa.array([v or None for _, _, v in given], pa.string()),
                "ts": pa.array([ts for _, ts, _ in given], pa.int64()),
                "_tombstone": pa.array([not v for _, _, v in given]),
            }
        )
    ]


def contents(table: mw.Table) -> dict[int, tuple[str, int]]:
    return {row["id"]: (row["v"], row["ts"]) for row in table.scan().to_table().to_pylist()}


@pytest.mark.parametrize("max_entry_bytes", [None, 10])
@pytest.mark.parametrize("move", ["log", "sstable", "base"])
def test_late_rows_and_deletes_are_left_out(tmp_path: Path, move: str, max_entry_bytes: int | None) -> None:
    table = make(tmp_path / "t", mw.LastWrite(sequence="ts"))
    once = appender(table, max_entry_bytes=max_entry_bytes)
    shard_id = table.sharding.default_shard()
    assert shard_id is not None
    claim = once.claim(shard_id)
    assert once.append(claim, rows((1, 10, "a"), (2, 10, "a"), (2, 20, ""), (1, 5, "late")), txn=("app", 1)).rows == 3
    if move != "log":
        once.flush_tail(claim)
    if move == "base":
        table.compact()
    result = once.append(claim, rows((1, 9, "late"), (2, 15, "late"), (3, 1, "new"), (1, 9, "")), txn=("app", 2))
    assert (result.rows, result.skipped) == (1, False)
    assert once.append(claim, rows((1, 9, "late")), txn=("app", 3)).rows == 0
    assert once.append(claim, rows((1, 11, "b")), txn=("app", 3)).rows == 1, "nothing was written, and no mark"
    assert once.append(claim, rows((1, 99, "c")), txn=("app", 3)).skipped
    assert contents(table) == {1: ("b", 11), 3: ("new", 1)}
    with table.writer() as writer:
        assert writer.put([{"id": 2, "v": "late", "ts": 19}]).written == 0
        assert writer.put([{"id": 2, "v": "c", "ts": 21}]).written == 1


def test_an_append_that_lost_its_place_looks_again(tmp_path: Path) -> None:
    table = make(tmp_path / "t", mw.LastWrite(sequence="ts"))
    one, other = appender(table), appender(table)
    shard_id = table.sharding.default_shard()
    assert shard_id is not None
    claim = one.claim(shard_id)
    beaten = False

    def act(point: str) -> None:
        nonlocal beaten
        if point == "once.before_put" and not beaten:
            beaten = True
            other.append(claim, rows((1, 20, "other")), txn=("other", 1))

    crash_points.install(act)
    try:
        result = one.append(claim, rows((1, 10, "late"), (2, 10, "mine")), txn=("one", 1))
    finally:
        crash_points.install(None)
    assert beaten
    assert result.rows == 1
    assert contents(table) == {1: ("other", 20), 2: ("mine", 10)}


def test_the_first_row_stays_and_a_delete_makes_room(tmp_path: Path) -> None:
    table = make(tmp_path / "t", mw.FirstRow())
    once = appender(table)
    shard_id = table.sharding.default_shard()
    assert shard_id is not None
    claim = once.claim(shard_id)
    assert once.append(claim, rows((1, 1, "a"), (1, 2, "b"), (2, 1, "c"))).rows == 2
    assert once.append(claim, rows((1, 3, "no"), (1, 4, ""), (1, 5, "next"), (3, 1, "d"))).rows == 3
    assert contents(table) == {1: ("next", 5), 2: ("c", 1), 3: ("d", 1)}


def test_rows_without_a_sequence_and_appenders_without_a_look_up_are_refused(tmp_path: Path) -> None:
    table = make(tmp_path / "t", mw.LastWrite(sequence="ts"))
    shard_id = table.sharding.default_shard()
    assert shard_id is not None
    once, blind = appender(table), OnceAppender(table.location)
    claim = once.claim(shard_id)
    for wrong in (rows((1, None, "a")), rows((1, None, ""))):
        with pytest.raises(mw.InvalidInputError, match="sequence"):
            once.append(claim, wrong)
    with pytest.raises(mw.InvalidInputError, match="merge="):
        blind.append(claim, rows((1, 1, "a")))
    assert contents(table) == {}


Event = tuple[int, int, str]


def _append_all(uri: str, claim: ShardClaim, events: list[Event], number: int) -> None:
    """What one process does: append its share of the events, some at a time, each of them twice."""
    once = appender(mw.open_table(uri), max_entry_bytes=400)
    for start in range(0, len(events), 3):
        some = rows(*events[start : start + 3])
        for _ in range(2):
            once.append(claim, some, txn=(f"process {number}", start))
        if start % 9 == 0:
            once.flush_tail(claim)


def race(place: Path, seed: int, worker: Any) -> None:
    """Events of a few keys, deletes among them, in any order, through three workers at once, and compactions between."""
    draw = random.Random(seed)
    events = [(draw.randrange(5), ts, draw.choice(["a", "b", ""])) for ts in draw.sample(range(1000), 45)]
    newest = {key: (value, ts) for key, ts, value in sorted(events, key=lambda event: event[1])}
    table = make(place, mw.LastWrite(sequence="ts"))
    claim = appender(table).claim(str(table.sharding.default_shard()))
    shares = [(str(place), claim, events[number::3], number) for number in range(3)]
    workers = [worker(target=_append_all, args=share) for share in shares]
    for one in workers:
        one.start()
    while any(one.is_alive() for one in workers):
        table.compact()
        for one in workers:
            one.join(0.05)
    assert all(getattr(one, "exitcode", 0) == 0 for one in workers)
    assert contents(table) == {key: found for key, found in newest.items() if found[0]}
    assert table.verify().ok


@pytest.mark.parametrize("seed", range(2))
def test_appenders_that_race_leave_the_table_that_any_order_leaves(tmp_path: Path, seed: int) -> None:
    race(tmp_path / "t", seed, threading.Thread)


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(20))
def test_processes_that_race_leave_the_table_that_any_order_leaves(tmp_path: Path, seed: int) -> None:
    race(tmp_path / "t", seed, multiprocessing.get_context("spawn").Process)
