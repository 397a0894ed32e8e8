"""The end of a writer: close, abort, a dropped writer, a forked child, and a program that did not close its writers."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import ClosedError
from lance_memwal.clock import SystemClock
from lance_memwal.process.waiting import Place
from lance_memwal.write.once import OnceAppender
from lance_memwal.write.queue import QueuedPut
from tests.harness.profile import scaled
from tests.kit.writers import (
    BLOOM,
    SECONDS,
    WAL,
    base_table,
    entries,
    flushed,
    fork,
    in_thread,
    memwal_threads,
    open_writer,
    put_undrained,
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


def test_the_context_manager_closes_and_an_empty_writer_leaves_no_generation(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        assert not writer.closed
    assert writer.closed
    assert flushed(tmp_path) == {}
    assert entries(tmp_path) == []


@pytest.mark.parametrize("first", ["close", "abort"])
@pytest.mark.parametrize("second", ["close", "abort"])
def test_close_and_abort_are_idempotent_in_any_order(tmp_path: Path, first: str, second: str) -> None:
    """Only `close` flushes; after `abort` replay brings the rows back."""
    writer = open_writer(tmp_path)
    writer.put(rows([1]))
    getattr(writer, first)()
    getattr(writer, second)()
    getattr(writer, second)()
    assert len(flushed(tmp_path)) == (1 if first == "close" else 0)
    with pytest.raises(ClosedError):
        writer.put(rows([2]))
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == ({} if first == "close" else {1: "a"})


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
    for k in range(10):
        writer = open_writer(tmp_path, stats_log_interval_ms=60_000, durable_write=k % 2 == 0)
        writer.put(rows([1]))
        assert len(memwal_threads()) == 2
        getattr(writer, end)()
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


@pytest.mark.parametrize("pending", [False, True])
def test_a_dropped_writer_flushes_nothing_and_its_threads_end(tmp_path: Path, pending: bool) -> None:
    before = memwal_threads()
    writer = open_writer(tmp_path, durable_write=not pending, max_wal_flush_interval_ms=None)
    writer.put(rows([1]))
    threads = memwal_threads() - before
    assert len(threads) == 2
    del writer
    gc.collect()
    _await_end(threads)
    assert flushed(tmp_path) == {}
    assert len(entries(tmp_path)) == (0 if pending else 1)


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


CHILD_SECONDS = 10.0  # "at once", on a machine that does other things too


def outcome(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "ok"


def in_child(*calls: Callable[[], Any]) -> list[str]:
    """The outcomes of `calls` in a forked child; a child that hangs is an error."""
    read, write = os.pipe()
    pid = fork()
    if pid == 0:
        try:
            os.write(write, ",".join(outcome(call) for call in calls).encode())
        finally:
            os._exit(0)
    os.close(write)
    deadline = time.monotonic() + CHILD_SECONDS
    ended = 0
    while not ended and time.monotonic() < deadline:
        ended, _ = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with os.fdopen(read, "rb") as pipe:
        found = pipe.read().decode()
    assert ended, f"the child hangs after {found!r}"
    return found.split(",")


def test_writer_of_a_forked_child_is_closed_although_another_thread_holds_its_locks(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location)
    writer.put(rows([1]))
    held = store.hold("put_new", WAL)
    put = in_thread(lambda: writer.put(rows([3])))
    held.wait_reached()

    def stats_are_readable() -> None:
        assert writer.stats().put_count == 1

    calls = (lambda: writer.put(rows([2])), writer.memtable_scanner, writer.close, writer.abort, stats_are_readable)
    with writer._shard.health.lock:
        assert in_child(*calls) == ["ClosedError", "ClosedError", "ok", "ok", "ok"]
    held.open()
    put.result()
    assert scanned(writer) == {1: "a", 3: "a"}
    writer.close()
    assert len(flushed(tmp_path)) == 1


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
        put_undrained(writer, rows([k]))
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


@pytest.mark.repro("writer-10")
def test_every_kind_of_writer_is_closed_in_a_child_although_threads_of_the_parent_are_inside(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t", sharding=mw.Bucket("id", 2))
    log = base_table(tmp_path / "log")
    shard = "11111111-2222-4333-8444-555555555555"
    appender = mw.WalAppender.open(log.uri, shard, fsync=False)
    once = OnceAppender(log.uri)
    claim = once.claim("22222222-2222-4333-8444-555555555555")
    policy = mw.CompactionPolicy(max_generations=1, check_interval_seconds=0.01)
    writer = table.writer(fsync=False, max_memtable_rows=200, compaction=policy)
    batch = rows(range(100))
    stop, puts = threading.Event(), [0, 0]

    def put_on(n: int) -> None:
        while not stop.is_set():
            writer.put(batch)
            appender.append(batch)
            table.get(5)
            puts[n] += 1

    threads = [threading.Thread(target=put_on, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    wait_for(lambda: min(puts) > 2)
    (held, *_) = writer.shard_writers.values()
    for _ in range(scaled(ci=6, prove=200)):
        assert (
            in_child(
                lambda: writer.put(batch),
                lambda: writer.put_nowait(batch),
                lambda: writer.delete([1]),
                lambda: held.put(batch),
                lambda: appender.append(batch),
                lambda: once.append(claim, [batch]),
            )
            == ["ClosedError"] * 6
        )
        assert in_child(writer.close, held.close, held.abort, writer.abort) == ["ok"] * 4
        before = sum(puts)
        wait_for(lambda before=before: sum(puts) > before)  # type: ignore[misc]
    stop.set()
    for thread in threads:
        thread.join(SECONDS)
    writer.close()
    assert sorted(table.scan().to_table().column("id").to_pylist()) == list(range(100))


def test_a_child_of_a_process_that_used_lance_is_told_so_when_it_reads_or_writes(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t", data=[{"id": 1, "v": "a"}])
    with table.writer(fsync=False) as writer:
        writer.put(rows([2]))
        calls: list[Callable[[], Any]] = [
            lambda: table.get(1),
            lambda: table.lookup([1]),
            lambda: table.scan().to_table(),
            lambda: table.count_rows(),
            lambda: mw.open_table(table.uri),
            lambda: mw.create_table(str(tmp_path / "new"), pa.schema([("a", pa.int64())])),
            table.compact,
            table.writer,
        ]
        assert in_child(*calls) == ["UnavailableError"] * len(calls)
        assert table.get(2) == {"id": 2, "v": "a"}


def test_a_program_that_forks_first_may_use_tables_in_its_children(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = """
import os, sys, warnings
warnings.simplefilter("ignore")
import pyarrow as pa
import pytest
import lance_memwal as mw
children = []
for n in range(2):
    pid = os.fork()
    if pid == 0:
        schema = pa.schema([pa.field("id", pa.int64(), False)])
        table = mw.create_table(f"{sys.argv[1]}/{n}", schema, primary_key=["id"], sharding=mw.Unsharded())
        with table.writer() as writer:
            writer.put([{"id": 1}])
        sys.exit(0 if table.count_rows(consistency="flushed") == 1 else 1)
    children.append(pid)
sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in children))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


HEAD = """
import atexit, sys, threading, time
import pyarrow as pa
import lance_memwal as mw
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("v", pa.string())])
TABLE = mw.create_table(sys.argv[1], SCHEMA, primary_key=["id"], sharding=SHARDING)
BATCH = pa.record_batch({"id": pa.array(range(1000), pa.int64()), "v": ["x" * 200] * 1000})
SMALL = {"fsync": False, "max_memtable_rows": 2000}
"""
FILL = "\nfor _ in range(12):\n    w.put(BATCH)\n"
ONE, FOUR = "SHARDING = mw.Unsharded()", "SHARDING = mw.Bucket('id', 4)"

ENDS: dict[str, tuple[str, str, int]] = {
    "normal": (ONE, "w = TABLE.shard_writer(**SMALL)" + FILL, 0),
    "SystemExit": (ONE, "w = TABLE.writer(**SMALL)" + FILL + "raise SystemExit(3)", 3),
    "exception": (FOUR, "w = TABLE.writer(**SMALL)" + FILL + "raise ValueError('mine')", 1),
    "many writers": (
        ONE,
        "others = [mw.create_table(f'{sys.argv[1]}-{n}', SCHEMA, primary_key=['id'], sharding=SHARDING) for n in range(5)]\n"
        "ws = [t.writer(**SMALL) for t in [TABLE, *others]]\n"
        "for w in ws:\n    for _ in range(4):\n        w.put(BATCH)\n"
        "sys.exit(4)",
        4,
    ),
    "compaction": (
        ONE,
        "policy = mw.CompactionPolicy(max_generations=1, check_interval_seconds=0.01)\n"
        "w = TABLE.writer(compaction=policy, **SMALL)" + FILL + "sys.exit(5)",
        5,
    ),
    "daemon threads that put": (
        FOUR,
        "w = TABLE.writer(**SMALL)\n"
        "def run():\n    while True:\n        w.put(BATCH)\n"
        "for _ in range(3):\n    threading.Thread(target=run, daemon=True).start()\n"
        "time.sleep(0.3)\nsys.exit(6)",
        6,
    ),
    "not durable": (
        ONE,
        "w = TABLE.shard_writer(durable_write=False, max_wal_flush_interval_ms=5, **SMALL)" + FILL + "sys.exit(7)",
        7,
    ),
    "closed by a hook": (ONE, "w = TABLE.shard_writer(**SMALL)\natexit.register(w.close)" + FILL, 0),
    "closed by a hook that came first": (
        ONE,
        "atexit.register(lambda: w.close())\nw = TABLE.shard_writer(durable_write=False, **SMALL)" + FILL,
        0,
    ),
    "SIGTERM": (
        FOUR,
        "import os, signal\nw = TABLE.writer(**SMALL)\n"
        "def stop(*_):\n    w.close()\n    sys.exit(9)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
        "while True:\n    w.put(BATCH)",
        9,
    ),
    "in a with block": (ONE, "with TABLE.writer(**SMALL) as w:\n    for _ in range(12):\n        w.put(BATCH)", 0),
}


def script(name: str) -> str:
    sharding, body, _ = ENDS[name]
    return "import lance_memwal as mw\n" + sharding + HEAD + body


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Path, int, str]]]:
    """Every program, some at once."""
    root, done = tmp_path_factory.mktemp("ends"), {name: [] for name in ENDS}  # type: ignore[var-annotated]
    for run in range(scaled(ci=1, prove=8)):
        waiting = [(name, root / f"{number}-{run}") for number, name in enumerate(ENDS)]
        while waiting:
            pair, waiting = waiting[:3], waiting[3:]
            programs = [
                (
                    name,
                    place,
                    subprocess.Popen([sys.executable, "-c", script(name), str(place)], stderr=subprocess.PIPE),
                )
                for name, place in pair
            ]
            for name, place, program in programs:
                _, errors = program.communicate(timeout=60)
                done[name].append((place, program.returncode, errors.decode()))
    return done


@pytest.mark.repro("writer-08", "writer-08b")
@pytest.mark.scaled
@pytest.mark.parametrize("name", ENDS)
def test_a_program_ends_with_its_own_status(ended: dict[str, list[tuple[Path, int, str]]], name: str) -> None:
    for place, status, errors in ended[name]:
        assert status == ENDS[name][2], errors
        assert errors == "" or name == "exception", "an end makes no noise"
        assert "Fatal" not in errors
        if name != "not durable":
            assert mw.open_table(str(place)).count_rows() == 1000
    if "hook" in name or "with" in name:  # a SIGTERM may have interrupted a commit: the log has its rows
        assert mw.open_table(str(place)).count_rows(consistency="flushed") == 1000
