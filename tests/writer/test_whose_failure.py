"""A failure is told to those whom it concerns, and to nobody else; what waits is not forgotten."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.clock import SystemClock
from lance_memwal.process import waiting
from lance_memwal.process.room import Room
from lance_memwal.table import writers
from lance_memwal.write import group_commit
from tests.harness.points import run_once_at
from tests.kit.writers import (
    BLOOM,
    SECONDS,
    UNKEYED,
    in_thread,
    in_threads,
    open_writer,
    put_undrained,
    row_entries,
    rows,
    take_over_shared,
    wait_for,
    watched,
)

PLAIN = pa.schema([("id", pa.int64()), ("v", pa.int64())])
KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


def made(place: Path, schema: pa.Schema = KEYED, **options: Any) -> mw.Table:
    return mw.create_table(str(place / "t"), schema, primary_key=None if schema is PLAIN else "id", **options)


def put_shared(table: mw.Table, *keys: int) -> None:
    """A shared writer takes the shard over and appends."""
    take_over_shared(mw.open_table(table.uri), pa.record_batch({"id": list(keys), "v": list(keys)}))


def put_elsewhere(table: mw.Table, *keys: int) -> None:
    """Another writer claims the table, and leaves without a flush."""
    other = mw.open_table(table.uri).writer(fsync=False)
    other.put({"id": list(keys), "v": list(keys)})
    other.abort()


def taken_over_after_one_entry(table: mw.Table, put: Callable[..., None] = put_elsewhere) -> list[str]:
    """Let another writer claim the table when the next entry is on storage; the list tells whether it did."""

    def take_over() -> None:
        crash_points.install(None)
        put(table, 99)

    return run_once_at("wal.after_put", take_over)


def test_a_leader_whose_rows_are_on_storage_writes_them_once(tmp_path: Path) -> None:
    """The next entry, of another thread, met the fence; told of it, the writer wrote the rows of the first one again."""
    table = made(tmp_path, PLAIN)
    writer = table.writer(max_memtable_rows=1, fsync=False, commit_linger_ms=300)
    writer.put({"id": [0], "v": [0]})
    taken = taken_over_after_one_entry(table, put_shared)
    in_threads(lambda key: writer.put({"id": [key], "v": [key]}), (1, 2))
    writer.close()
    assert taken
    assert Counter(mw.open_table(table.uri).to_arrow()["id"].to_pylist()) == dict.fromkeys((0, 1, 2, 99), 1)


def test_all_threads_of_a_writer_that_was_fenced_go_on_after_it_claimed_the_shard_back(tmp_path: Path) -> None:
    """The first that met the fence ended the writer under the others, who were told that it is closed."""
    table = made(tmp_path, merge=mw.FirstRow())
    writer = table.writer(fsync=False)
    writer.put({"id": [0], "v": [0]})
    put_shared(table, 99)
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
    table = made(tmp_path, PLAIN)
    writer = table.writer(max_memtable_rows=1, fsync=False)
    writer.put({"id": [0], "v": [0]})
    first, second = (put_undrained(writer, {"id": [key], "v": [key]}) for key in (1, 2))
    assert taken_over_after_one_entry(table) == []
    first.wait()
    with pytest.raises(mw.FencedError):
        second.wait()
    writer.abort()
    assert Counter(mw.open_table(table.uri).to_arrow()["id"].to_pylist()) == dict.fromkeys((0, 1, 99), 1)


def test_a_parked_shard_that_was_claimed_is_taken_back(tmp_path: Path) -> None:
    table = made(tmp_path, sharding=mw.Bucket("id", 2))
    keys = list(range(16))
    with table.writer(max_open_shards=1, fsync=False) as writer:
        writer.put({"id": keys, "v": [0] * 16})
        for shard_id, own in mw.route(pa.record_batch({"id": keys, "v": [1] * 16}), table.sharding):
            take_over_shared(table, own, shard_id)
        writer.put({"id": keys, "v": [2] * 16})
    assert set(mw.open_table(table.uri).to_arrow()["v"].to_pylist()) == {2}


def test_new_columns_reach_a_shard_that_is_being_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = KEYED.append(pa.field("x", pa.int64()))
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id", sharding=mw.Bucket("id", 1))
    writer = table.writer(fsync=False)
    looked, may_claim, honest = threading.Event(), threading.Event(), writers.open_shard_of

    def slow(*given: Any, **named: Any) -> Any:
        looked.set()
        may_claim.wait(30)
        return honest(*given, **named)

    monkeypatch.setattr(writers, "open_shard_of", slow)
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


class LingerClock(SystemClock):
    """Knows which threads lingered."""

    def __init__(self) -> None:
        self.lingered: set[int] = set()

    def sleep(self, seconds: float) -> None:  # type: ignore[override]
        if seconds > 0:
            self.lingered.add(threading.get_ident())
        super().sleep(seconds)


@pytest.mark.parametrize("between", [False, True])
def test_handed_over_put_leads_at_once(tmp_path: Path, between: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lingered once more, or slept until it looked again behind a write that nobody waits for."""
    for module in (waiting, group_commit):
        monkeypatch.setattr(module, "LOOK_AGAIN_SECONDS", 2 * SECONDS)
    table, clock = made(tmp_path), LingerClock()
    settings = {"fsync": False, "max_entry_bytes": 4096, "commit_linger_ms": 400}
    with mw.ShardWriter.open(table.uri, clock=clock, **settings) as writer:
        writer.put_nowait([{"id": 0, "v": 0}]).wait()
        clock.lingered.clear()
        first = in_thread(lambda: (writer.delete([7]), threading.get_ident())[1])
        wait_for(lambda: bool(clock.lingered))
        if between:
            put_undrained(writer, [{"id": 1, "v": 1}])
        second = in_thread(lambda: (writer.put([{"id": 2, "v": 2}]), threading.get_ident())[1])
        lingering, handed_over = first.result(), second.result()
        assert lingering in clock.lingered
        assert handed_over not in clock.lingered


def test_fenced_writer_is_replaced_after_a_claim_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "lance_memwal")  # pytest keeps what is logged, errors and their frames included
    table = made(tmp_path)
    with table.writer(fsync=False) as writer:
        writer.put({"id": [0], "v": [0]})
        lost = weakref.ref(next(iter(writer.shard_writers.values())))
        put_shared(table, 99)
        writer.put({"id": [1], "v": [1]})
        gc.collect()
        assert lost() is None, "it holds all its memtables"


def test_a_leader_whose_own_rows_are_wrong_is_told_that_and_no_failure_of_others(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id")
    writer = mw.ShardWriter.open(table.uri, fsync=False, commit_linger_ms=200)
    buffers = [None, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")]
    wrong = pa.record_batch([pa.array([1]), pa.Array.from_buffers(pa.string(), 1, buffers)], schema=schema)
    told: dict[str, Exception] = {}

    def put(name: str, rows: Any) -> None:
        try:
            writer.put(rows)
        except Exception as error:
            told[name] = error

    def fail(point: str) -> None:
        if point == "wal.before_put":
            raise OSError("the store is down")

    threads = [
        threading.Thread(target=put, args=given) for given in (("wrong", wrong), ("right", [{"id": 2, "v": "b"}]))
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    crash_points.install(fail)
    for thread in threads:
        thread.join(30)
    crash_points.install(None)
    writer.abort()
    assert {name: type(error) for name, error in told.items()} == {
        "wrong": mw.InvalidInputError,
        "right": mw.WriterPoisonedError,
    }


def test_a_flush_claims_no_shard_back(tmp_path: Path) -> None:
    table = made(tmp_path)
    writer = table.writer(fsync=False)
    writer.put({"id": [0], "v": [0]})
    put_shared(table, 99)
    with pytest.raises(mw.FencedError):
        writer.flush()
    put_shared(table, 98)
    writer.put({"id": [1], "v": [1]})
    writer.flush()
    writer.close()
    assert sorted(mw.open_table(table.uri).to_arrow()["id"].to_pylist()) == [0, 1, 98, 99]


def test_new_columns_pass_by_a_writer_that_is_lost_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(tmp_path)
    writer = table.writer(fsync=False)
    writer.put({"id": [0], "v": [0]})
    began, go_on, honest = threading.Event(), threading.Event(), mw.ShardWriter.evolve_schema

    def hold() -> None:
        crash_points.install(None)
        began.set()
        go_on.wait(30)

    reached = run_once_at("wal.before_put", hold)
    late = threading.Thread(target=writer.put, args=({"id": [1], "v": [1]},))
    late.start()
    assert began.wait(30)
    put_shared(table, 99)
    lance.dataset(table.uri).add_columns(pa.field("x", pa.int64()))

    def evolve(shard: mw.ShardWriter) -> None:
        go_on.set()
        late.join(30)
        honest(shard)

    monkeypatch.setattr(mw.ShardWriter, "evolve_schema", evolve)
    writer.evolve_schema()
    writer.close()
    assert reached


def test_an_entry_that_met_a_fence_is_not_sent_again_for_each_who_waits(tmp_path: Path) -> None:
    table = made(tmp_path, PLAIN)
    writer = table.writer(fsync=False, commit_linger_ms=100)
    put_undrained(writer, {"id": [0], "v": [0]}).wait(30)  # a wait with a limit lets the write begin
    put_elsewhere(table, 99)
    told: list[type[Exception]] = []
    sent: list[str] = []

    def put(key: int) -> None:
        try:
            writer.put({"id": [key], "v": [key]})
        except Exception as error:
            told.append(type(error))

    crash_points.install(lambda point: sent.append(point) if point == "wal.before_put" else None)
    in_threads(put, (1, 2, 3))
    crash_points.install(None)
    writer.abort()
    assert told == [mw.FencedError] * 3
    assert len(sent) == 1


class HeldClock(SystemClock):
    """Time in which one thread gets no further, as if the machine had forgotten it."""

    def __init__(self) -> None:
        self.thread = 0
        self.go_on = threading.Event()

    def monotonic(self) -> float:
        if threading.get_ident() == self.thread:
            self.go_on.wait(30)
        return super().monotonic()


def test_a_put_that_waited_for_room_and_was_taken_is_not_told_of_a_fence(tmp_path: Path) -> None:
    """It was in the log, led by another, when it looked again: told of the fence, it was written twice after a retake."""
    store, location = watched(tmp_path)
    clock, ident = HeldClock(), []
    writer = open_writer(location, UNKEYED, max_unflushed_memtable_bytes=5000, clock=clock)
    held = store.hold("put", BLOOM)
    writer.put(rows(range(500), schema=UNKEYED))
    writer.force_seal_active()
    held.wait_reached()

    def put() -> object:
        ident.append(threading.get_ident())
        return writer.put(rows([1000], schema=UNKEYED))

    waits = in_thread(put)
    wait_for(lambda: writer.backpressure_stats().total_count == 1)
    clock.thread = ident[0]  # it goes on when everything has happened
    held.open()
    writer.wait_for_flush_drain(30)
    put_undrained(writer, rows([1001], schema=UNKEYED)).wait()  # leads, for the one that waits, too
    open_writer(tmp_path, UNKEYED).abort()
    with pytest.raises(mw.FencedError):
        writer.put(rows([1002], schema=UNKEYED))
    clock.go_on.set()
    assert waits.result().written == 1
    writer.abort()
    logged = [key for entry in row_entries(tmp_path) for batch in entry.batches for key in batch["id"].to_pylist()]
    assert sorted(logged) == [*range(500), 1000, 1001]


@pytest.mark.parametrize("is_in_the_log", [True, False])
def test_timed_wait_raises_fenced_only_if_its_write_is_not_in_the_log(tmp_path: Path, is_in_the_log: bool) -> None:
    """The entry was on storage, and its leader had not said so yet: one who waits was told of a fence, the other of success."""
    writer = open_writer(tmp_path, UNKEYED)
    ack = put_undrained(writer, rows([1], schema=UNKEYED))
    reached, go_on, asked = threading.Event(), threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == ("wal.after_put" if is_in_the_log else "wal.before_put") and not reached.is_set():
            reached.set()
            go_on.wait(SECONDS)

    def wait() -> None:
        asked.set()
        ack.wait(SECONDS)

    crash_points.install(hold)
    leader = in_thread(ack.wait)
    assert reached.wait(SECONDS)
    with open_writer(tmp_path, UNKEYED) as successor:
        with pytest.raises(mw.FencedError):
            writer.check_fenced()
        waits = in_thread(wait)
        assert asked.wait(SECONDS)
        time.sleep(0.1)
        with pytest.raises(mw.UnavailableError, match="wait again"):
            ack.wait(0.1)
        go_on.set()
        for each in (leader, waits):
            if is_in_the_log:
                each.result()
            else:
                with pytest.raises(mw.FencedError):
                    each.result()
        assert successor.memtable_scanner().to_table().num_rows == is_in_the_log
    crash_points.install(None)
    writer.abort()
