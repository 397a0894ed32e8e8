"""Ctrl-C anywhere in a put: the write happened or it did not, everything else goes on, and nothing is written twice.

A KeyboardInterrupt is raised at every single line that a put executes, one per scenario, by a trace function.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lance_memwal import ShardWriter, crash_points
from tests.harness.profile import scaled
from tests.kit.interrupts import Interrupter
from tests.kit.writers import (
    BLOOM,
    SECONDS,
    UNKEYED,
    flushed,
    in_thread,
    memwal_threads,
    open_writer,
    row_entries,
    rows,
    wait_for,
    watched,
)


def ids(writer: ShardWriter) -> list[int]:
    return sorted(writer.scan().to_table().column("id").to_pylist())


def one_scenario(root: Path, at: int, settings: dict[str, Any]) -> int | None:
    """Interrupt one put at line `at`; returns the number of lines once `at` is behind the last."""
    writer = open_writer(root, UNKEYED, **settings)  # append-only: a row that is written twice is seen twice
    writer.put(rows([1], schema=UNKEYED))
    interrupter = Interrupter(at)
    interrupted = interrupter.run(lambda: writer.put([rows([2], schema=UNKEYED), rows([3], schema=UNKEYED)]))
    other = in_thread(lambda: writer.put(rows([4], schema=UNKEYED)))  # another thread is not held up
    other.result()
    writer.put(rows([5], schema=UNKEYED), txn=("app", 1))
    assert writer.put(rows([5], schema=UNKEYED), txn=("app", 1)).skipped
    where = interrupter.where
    if settings.get("max_memtable_batches"):
        writer.wait_for_flush_drain(SECONDS)
        writer.abort()
        found = sorted(k for e in row_entries(root) for b in e.batches for k in b.column("id").to_pylist())
    else:
        found = ids(writer)
        stats = writer.memtable_stats()
        assert stats.pending_wal_row_count == 0, where
        assert stats.row_count == len(found), f"memory holds rows that nobody can see {where}"
        writer.abort()
    assert found in ([1, 4, 5], [1, 2, 3, 4, 5]), f"{found} {where}"
    assert 2 in found or interrupted, where
    writer = open_writer(root, UNKEYED, **settings)
    if not settings.get("max_memtable_batches"):
        assert ids(writer) == found, f"replay gives other rows {where}"
    writer.close()
    return None if interrupted else interrupter.lines


MODES: dict[str, dict[str, Any]] = {
    "durable": {"stats_log_interval_ms": None},
    "not durable": {"durable_write": False, "max_wal_flush_interval_ms": None},
    "rotating": {"max_memtable_batches": 2},
}


@pytest.mark.scaled
@pytest.mark.parametrize("mode", MODES)
def test_an_interrupt_at_any_line_of_a_put_leaves_a_writer_that_goes_on(tmp_path: Path, mode: str) -> None:
    step = scaled(ci=3, prove=1)
    at, lines = 1, None
    while lines is None:
        lines = one_scenario(tmp_path / str(at), at, MODES[mode])
        at += step
    assert lines > 40, "the trace did not see the put"


def test_a_memtable_that_is_sealed_after_an_interrupt_can_be_flushed(tmp_path: Path) -> None:
    at, interrupted = 1, True
    while interrupted:
        root = tmp_path / str(at)
        writer = open_writer(root, UNKEYED)
        writer.put(rows([1], schema=UNKEYED))
        interrupted = Interrupter(at).run(partial(writer.put, [rows([2], schema=UNKEYED), rows([3], schema=UNKEYED)]))
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        writer.abort()
        found = [row["id"] for row in flushed(root)[1]]
        assert found in ([1], [1, 2, 3])
        assert found == [k for e in row_entries(root) for b in e.batches for k in b.column("id").to_pylist()]
        at += 7


def test_an_interrupted_wal_only_put_never_skips_a_generation(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"enable_memtable": False, "max_memtable_batches": 2}
    at, interrupted = 1, True
    while interrupted:
        root = tmp_path / str(at)
        writer = open_writer(root, UNKEYED, **settings)
        writer.put(rows([1], schema=UNKEYED))
        interrupted = Interrupter(at).run(partial(writer.put, [rows([2], schema=UNKEYED), rows([3], schema=UNKEYED)]))
        writer.put([rows([4], schema=UNKEYED), rows([5], schema=UNKEYED)])
        writer.put(rows([6], schema=UNKEYED))
        writer.close()
        generations = [e.generation or 0 for e in row_entries(root)]
        assert all(b - a in (0, 1) for a, b in itertools.pairwise(generations)), generations
        open_writer(root, UNKEYED).close()  # and replay agrees
        at += 5


def read(writer: ShardWriter) -> None:
    writer.scan().to_table()


def test_an_interrupted_reader_harms_no_other(tmp_path: Path) -> None:
    at, interrupted = 1, True
    while interrupted:
        writer = open_writer(tmp_path / str(at))
        for k in range(6):
            writer.put(rows([k % 3, 10 + k], str(k)))
            writer.scan().count_rows() if k == 2 else None
        interrupted = Interrupter(at).run(partial(read, writer))
        found = {row["id"]: row["v"] for row in writer.scan().to_table().to_pylist()}
        assert found == {0: "3", 1: "4", 2: "5"} | {10 + k: str(k) for k in range(6)}
        writer.put(rows([0], "last"))
        assert writer.scan().filter("id = 0").to_table().to_pylist() == [{"id": 0, "v": "last"}]
        writer.abort()
        at += 2


@pytest.mark.repro("writer-18")
def test_a_put_that_waits_for_room_can_be_interrupted(tmp_path: Path) -> None:
    """The wait is a condition of the main thread here: the interrupt comes as a signal does."""
    store, location = watched(tmp_path)
    with open_writer(location, max_unflushed_memtable_bytes=1000) as writer:
        held = store.hold("put", BLOOM)
        writer.put(rows(range(100)))

        def interrupt() -> None:
            held.wait_reached()
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                writer.put(rows([1000]))
        finally:
            thread.join()
            held.open()
        writer.put(rows([1001]))
        assert writer.backpressure_stats().total_count >= 1


WAITING = ("lance_memwal/process/waiting.py", "/threading.py")  # what a wait is made of now, and what it was made of
WAITS: dict[str, Callable[[ShardWriter], object]] = {
    "room": lambda writer: writer.put(rows([2], schema=UNKEYED)),
    "drain": lambda writer: writer.wait_for_flush_drain(SECONDS),
    "close": lambda writer: writer.close(),
}


@pytest.mark.repro("writer-18")
@pytest.mark.parametrize("wait", WAITS)
def test_an_interrupt_at_any_line_of_a_wait_comes_out_as_itself(tmp_path: Path, wait: str) -> None:
    """A `RuntimeError` about a lock that is not held came out instead."""
    at, interrupted = 1, True
    while interrupted:
        store, location = watched(tmp_path / str(at))
        writer = open_writer(location, UNKEYED, max_unflushed_memtable_bytes=1, stats_log_interval_ms=None)
        held = store.hold("put", BLOOM)
        writer.put(rows([1], schema=UNKEYED))
        writer.force_seal_active()
        held.wait_reached()
        threading.Timer(0.05, held.open).start()
        interrupted = Interrupter(at, WAITING).run(partial(WAITS[wait], writer))
        held.open()
        writer.close()
        at += 2
    assert at > 5, "the trace did not see the wait"


def test_an_interrupt_at_any_line_of_an_open_leaves_no_thread_behind(tmp_path: Path) -> None:
    traced = (
        "lance_memwal/process/background.py",
        "lance_memwal/clock.py",
        "lance_memwal/write/life.py",
        "lance_memwal/shard_writer.py",
    )
    wait_for(lambda: not memwal_threads())
    interrupted, opened = True, []
    for at in itertools.count(1, scaled(ci=3, prove=1)):
        interrupter = Interrupter(at, traced)
        interrupted = interrupter.run(lambda root=tmp_path / str(at): opened.append(open_writer(root)))
        for writer in opened:
            writer.abort()
        opened.clear()
        if memwal_threads():
            gc.collect()  # finalisers end what nobody has any more
            wait_for(lambda: not memwal_threads())
        if not interrupted:
            return


def test_a_put_that_a_leader_took_before_its_caller_was_interrupted_gets_to_storage(tmp_path: Path) -> None:
    """Its leader led no further than its own put, and nobody else waited for it."""
    writer = open_writer(tmp_path, UNKEYED, commit_linger_ms=200, max_entry_bytes=4096)
    writer.put_nowait(rows([1], schema=UNKEYED)).wait()
    leads, go_on = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "wal.before_put" and not leads.is_set():
            leads.set()
            go_on.wait(SECONDS)

    def interrupt() -> None:
        leads.wait(SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    crash_points.install(hold)
    leader = in_thread(lambda: writer.put(rows([2], schema=UNKEYED)))
    time.sleep(0.05)
    interrupter = in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.put(rows([3], schema=UNKEYED))
    interrupter.result()
    go_on.set()
    leader.result()
    crash_points.install(None)
    wait_for(lambda: ids(writer) == [1, 2, 3])
    writer.abort()


def test_an_interrupt_at_any_line_of_a_wait_for_storage_leaves_nobody_in_a_hurry(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, UNKEYED, commit_linger_ms=10)
    interrupted = True
    for at in itertools.count(1):
        ack = writer.put_nowait(rows([at], schema=UNKEYED), drain=False)
        interrupter = Interrupter(at, ("lance_memwal/write/group_commit.py",))
        interrupted = interrupter.run(ack.wait)
        started = time.monotonic()
        writer.put(rows([0], schema=UNKEYED))
        assert time.monotonic() - started >= 0.01, f"nobody lingers any more {interrupter.where}"
        if not interrupted:
            break
    writer.abort()


LINGERING: dict[str, Callable[[ShardWriter, int], object]] = {
    "delete": lambda writer, number: writer.delete([number]),
    "update": lambda writer, number: writer.update([{"id": 1, "v": str(number)}]),
    "compare and set": lambda writer, number: writer.compare_and_set(number, None, {"id": number, "v": "a"}),
    "put of many bytes": lambda writer, number: writer.put(rows([number], "x" * 300_000)),
    "put that nobody waits for": lambda writer, number: writer.put_nowait(rows([number])),
}


@pytest.mark.scaled
@pytest.mark.parametrize("verb", LINGERING)
def test_a_write_that_was_interrupted_anywhere_waits_for_no_other(tmp_path: Path, verb: str) -> None:
    """It was inserted, and nobody led: it came to storage with whatever was written next."""
    with open_writer(tmp_path, commit_linger_ms=5, stats_log_interval_ms=None) as writer:
        commits = writer._shard.commits
        writer.put_nowait(rows([1]), drain=False).wait()
        for at in itertools.count(2, scaled(ci=5, prove=1)):
            interrupter = Interrupter(at)
            interrupted = interrupter.run(partial(LINGERING[verb], writer, at))
            wait_for(lambda: commits.durable >= commits.buffered, 2)
            if not interrupted:
                break
        assert at > 40, "the trace did not see the write"
