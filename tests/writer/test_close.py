"""The end of a writer: close flushes, abort does not, a dropped one flushes nothing; threads end, forks are closed."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lance_memwal as mw
from lance_memwal import ClosedError
from lance_memwal.clock import SystemClock
from lance_memwal.process.waiting import Place
from lance_memwal.write.queue import QueuedPut
from tests.kit.writers import (
    BLOOM,
    SECONDS,
    WAL,
    entries,
    flushed,
    fork,
    in_thread,
    memwal_threads,
    open_writer,
    rows,
    scanned,
    wait_for,
    watched,
)


def test_close_flushes_everything(tmp_path: Path) -> None:
    """Lesson 18: close left the memtable unflushed."""
    writer = open_writer(tmp_path)
    writer.put(rows([1]))
    writer.force_seal_active()
    writer.put(rows([2]))
    writer.close()
    assert {g: [r["id"] for r in found] for g, found in flushed(tmp_path).items()} == {1: [1], 2: [2]}
    manifest = writer.manifest()
    assert (manifest.current_generation, manifest.replay_after_wal_entry_position) == (3, 2)


def test_closing_an_empty_writer_writes_no_generation(tmp_path: Path) -> None:
    open_writer(tmp_path).close()
    assert flushed(tmp_path) == {}
    assert entries(tmp_path) == []


def test_the_context_manager_closes(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1]))
        assert not writer.closed
    assert writer.closed
    assert len(flushed(tmp_path)) == 1


@pytest.mark.parametrize("first", ["close", "abort"])
@pytest.mark.parametrize("second", ["close", "abort"])
def test_close_and_abort_are_idempotent_in_any_order(tmp_path: Path, first: str, second: str) -> None:
    writer = open_writer(tmp_path)
    writer.put(rows([1]))
    getattr(writer, first)()
    getattr(writer, second)()
    getattr(writer, second)()
    assert len(flushed(tmp_path)) == (1 if first == "close" else 0)


def test_abort_stops_without_flushing_and_replay_brings_the_rows_back(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.put(rows([1]))
    writer.abort()
    assert flushed(tmp_path) == {}
    with pytest.raises(ClosedError):
        writer.put(rows([2]))
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {1: "a"}


def test_a_second_close_waits_for_the_first_to_finish(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location)
    writer.put(rows([1]))
    held = store.hold("put", BLOOM)
    closings = [in_thread(writer.close)]
    held.wait_reached()
    closings.append(in_thread(writer.close))
    assert all(closing.running for closing in closings)
    held.open()
    for closing in closings:
        closing.result()
    assert len(flushed(tmp_path)) == 1


def test_an_abort_ends_everybody_who_waits(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, max_unflushed_memtable_bytes=1000)
    writer.put(rows(range(100)))
    held = store.hold("put", BLOOM)
    writer.force_seal_active()
    held.wait_reached()
    waiting = [
        in_thread(writer.wait_for_flush_drain),
        in_thread(lambda: writer.put(rows([1]))),
        in_thread(writer.close),
    ]
    aborting = in_thread(writer.abort)
    for waiter in waiting[:2]:
        with pytest.raises(ClosedError):
            waiter.result()
    held.open()
    aborting.result()
    with pytest.raises(ClosedError):
        waiting[2].result()


def test_puts_that_wait_for_room_are_told_at_once_when_the_writer_closes(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, max_unflushed_memtable_bytes=1000)
    writer.put(rows(range(100)))
    held = store.hold("put", BLOOM)
    waiting = in_thread(lambda: writer.put(rows([1])))
    held.wait_reached()  # the waiting put froze the memtable
    closing = in_thread(writer.close)
    with pytest.raises(ClosedError):
        waiting.result(timeout=10)
    held.open()
    closing.result()


def test_a_put_that_finds_no_room_just_before_the_writer_is_aborted_does_not_wait(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, max_unflushed_memtable_bytes=1000, backpressure_log_interval_ms=600_000)
    writer.put(rows(range(100)))
    held = store.hold("put", BLOOM)
    writer.force_seal_active()
    held.wait_reached()
    commits, lead, aborting = writer._shard.commits, writer._shard.commits._lead, []

    def aborted_meanwhile(put: QueuedPut | None, *given: Any) -> bool:
        room = lead(put, *given)
        assert not room
        aborting.append(in_thread(writer.abort))
        wait_for(lambda: not writer._shard.health.is_alive)
        return room

    commits._lead = aborted_meanwhile  # type: ignore[method-assign]
    with pytest.raises(ClosedError):
        in_thread(lambda: writer.put(rows([1]))).result(timeout=10)
    held.open()
    aborting[0].result()


def test_a_put_that_is_under_way_is_durable_when_close_returns(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location)
    held = store.hold("put_new", WAL)
    put = in_thread(lambda: writer.put(rows([1])))
    held.wait_reached()
    closing = in_thread(writer.close)
    assert closing.running
    held.open()
    closing.result()
    put.result()
    assert [r["id"] for r in flushed(tmp_path)[1]] == [1]


@pytest.mark.parametrize("end", ["close", "abort"])
def test_the_threads_of_a_writer_end_with_it(tmp_path: Path, end: str) -> None:
    before = set(threading.enumerate())
    writer = open_writer(tmp_path, stats_log_interval_ms=60_000)
    writer.put(rows([1]))
    assert len(memwal_threads()) == 2
    getattr(writer, end)()
    assert set(threading.enumerate()) <= before


def test_many_writers_leave_no_thread_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    for k in range(20):
        with open_writer(tmp_path, durable_write=k % 2 == 0) as writer:
            writer.put(rows([k]))
    assert set(threading.enumerate()) <= before


class OneThreadClock(SystemClock):
    """A system that has one thread left."""

    def __init__(self) -> None:
        self.started: list[threading.Thread] = []

    def spawn(self, target: Callable[[], None], name: str) -> threading.Thread:
        if self.started:
            raise RuntimeError("can't start new thread")
        self.started.append(super().spawn(target, name))
        return self.started[0]


def test_an_open_that_gets_no_threads_leaves_none_behind(tmp_path: Path) -> None:
    clock = OneThreadClock()
    with pytest.raises(RuntimeError, match="new thread"):
        open_writer(tmp_path, clock=clock)
    _await_end(set(clock.started))
    with open_writer(tmp_path) as writer:
        writer.put(rows([1]))


def _await_end(threads: set[threading.Thread]) -> None:
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()


def test_a_dropped_writer_flushes_nothing_and_its_threads_end(tmp_path: Path) -> None:
    before = memwal_threads()
    writer = open_writer(tmp_path)
    writer.put(rows([1]))
    threads = memwal_threads() - before
    assert len(threads) == 2
    del writer
    gc.collect()
    _await_end(threads)
    assert flushed(tmp_path) == {}


def test_a_writer_in_a_reference_cycle_ends_its_threads_wherever_it_is_collected(tmp_path: Path) -> None:
    before = memwal_threads()
    writer = open_writer(tmp_path)
    ack = writer.put_nowait(rows([1]))
    threads = memwal_threads() - before
    lock = writer._shard.health.lock
    cycle: list[object] = [writer]
    cycle.append(cycle)
    del cycle, writer
    with lock:  # collected by a thread that holds the writer's lock: the finaliser must not wait for it
        collecting = in_thread(lambda: None)
        gc.collect()
        collecting.result()
    _await_end(threads)
    assert ack is not None


def test_a_writer_dropped_with_rows_pending_flushes_nothing(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, durable_write=False, max_wal_flush_interval_ms=None)
    threads = memwal_threads()
    writer.put(rows([1]))
    del writer
    gc.collect()
    _await_end(threads)
    assert entries(tmp_path) == []


def _in_child(work: object) -> bytes:
    """What `work` returns (as bytes) in a forked child."""
    read, write = os.pipe()
    pid = fork()
    if pid == 0:
        status = 1
        try:
            os.write(write, work())  # type: ignore[operator]
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        found = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0
    return found


def _outcome(call: object) -> str:
    try:
        call()  # type: ignore[operator]
    except mw.MemWalError as error:
        return type(error).__name__
    return "ok"


def test_a_forked_childs_writer_is_closed_and_the_parents_goes_on(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.put(rows([1]))

    def child() -> bytes:
        outcomes = [_outcome(call) for call in (lambda: writer.put(rows([2])), writer.scan, writer.close, writer.abort)]
        outcomes.append(str(writer.stats().put_count))
        return ",".join(outcomes).encode()

    assert _in_child(child) == b"ClosedError,ClosedError,ok,ok,1"
    writer.put(rows([3]))
    assert scanned(writer) == {1: "a", 3: "a"}
    writer.close()
    assert len(flushed(tmp_path)) == 1


def test_a_fork_while_another_thread_holds_the_locks_hangs_nobody(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location)
    held = store.hold("put_new", WAL)
    put = in_thread(lambda: writer.put(rows([1])))
    held.wait_reached()
    with writer._shard.health.lock:
        found = _in_child(lambda: _outcome(lambda: writer.put(rows([2]))).encode())
    assert found == b"ClosedError"
    held.open()
    put.result()
    writer.close()


def test_statistics_stay_usable_after_close(tmp_path: Path) -> None:
    """Lesson E1.10: after close the flush was not counted."""
    writer = open_writer(tmp_path)
    handle = writer.stats_handle()
    writer.put(rows([1]))
    writer.close()
    for stats in (handle.snapshot(), writer.stats()):
        assert (stats.put_count, stats.memtable_flush_count, stats.memtable_flush_rows) == (1, 1, 1)
        assert stats.put_time > 0
    handle.reset()
    assert handle.snapshot().put_count == 0


def test_an_abort_wakes_everybody_although_a_leader_settles_writes_meanwhile(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, durable_write=False, max_wal_flush_interval_ms=None)
    for k in range(3):
        writer.put_nowait(rows([k]), drain=False)
    pending = writer._shard.commits.pending

    class SettledMeanwhile(Place):
        """Another thread gives the oldest write up at the very moment at which this caller is woken."""

        def wake(self) -> None:
            pending.popleft()

    for item in pending:
        item.put = QueuedPut([], 0, writer._shard.columns.fitting.fit, False, 0.0)
        item.put.place = SettledMeanwhile()
    writer.abort()
    assert not pending
