"""Signal handlers that use a writer on top of whatever the same thread was doing with it: nothing hangs, nothing lies."""

from __future__ import annotations

import faulthandler
import itertools
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.clock import SystemClock
from lance_memwal.memtable.memtable import MemTable
from lance_memwal.write.group_commit import GroupCommit
from tests.harness.points import run_once_at
from tests.harness.profile import scaled
from tests.kit.writers import (
    KEYED,
    SECONDS,
    UNKEYED,
    base_table,
    flushed,
    in_thread,
    open_writer,
    put_undrained,
    row_entries,
    rows,
    scanned,
)

ROUNDS = scaled(ci=8, prove=400)
MODES: dict[str, dict[str, Any]] = {
    "durable": {},
    "not durable": {"durable_write": False},
    "rotating": {"max_memtable_batches": 2},
    "little room": {"max_unflushed_memtable_bytes": 2000},
}


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@contextmanager
def alarm(handler: Callable[[], Any], seconds: float) -> Iterator[None]:
    """Call `handler` in this thread, wherever it is after `seconds`."""
    before = signal.signal(signal.SIGALRM, lambda *_: handler())
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def row(k: int) -> pa.RecordBatch:
    return rows([k], "x" * 100, schema=UNKEYED)  # append-only: a row that is written twice is seen twice


def stored(root: Path, *, in_log: bool = False) -> list[int]:
    """The keys that are flushed, or in the log."""
    if in_log:
        return sorted(k for e in row_entries(root) for b in e.batches for k in b.column("id").to_pylist())
    return sorted(item["id"] for found in flushed(root).values() for item in found)


def put_until_closed(writer: mw.ShardWriter | mw.TableWriter, make: Callable[[int], pa.RecordBatch]) -> list[int]:
    """The keys that were acknowledged before the writer was closed."""
    for k in itertools.count():
        try:
            writer.put(make(k))
        except mw.ClosedError:
            return list(range(k))
    raise AssertionError


@pytest.mark.repro("writer-09")
@pytest.mark.scaled
@pytest.mark.parametrize("mode", [*MODES, "wal only", "abort"])
def test_a_handler_may_end_the_writer_that_it_interrupts(tmp_path: Path, mode: str) -> None:
    settings = {"wal only": {"enable_memtable": False}, "abort": {}, **MODES}[mode]
    rng = random.Random(mode)
    for number in range(ROUNDS):
        root = tmp_path / str(number)
        writer = open_writer(root, UNKEYED, **settings)
        end = writer.abort if mode == "abort" else writer.close
        with alarm(end, rng.random() * 0.02 + 1e-4):
            acked = put_until_closed(writer, row)
        assert writer.closed
        end()  # returns when the closing that the handler began has ended
        assert stored(root, in_log=mode in ("wal only", "abort")) in (acked, [*acked, len(acked)])


def _calls(writer: mw.ShardWriter, k: int, acked: list[int]) -> list[Callable[[], Any]]:
    def put() -> None:
        writer.put(row(k))
        acked.append(k)

    def put_nowait() -> None:
        writer.put_nowait(row(k))
        acked.append(k)

    def put_once() -> None:
        writer.put(row(k), txn=("app", k))
        acked.append(k)

    return [
        put,
        put_nowait,
        put_once,
        writer.force_seal_active,
        lambda: writer.wait_for_flush_drain(SECONDS),
        lambda: writer.memtable_scanner().to_table(),
        writer.memtable_stats,
        writer.stats,
        writer.check_fenced,
    ]


@pytest.mark.scaled
@pytest.mark.parametrize("mode", MODES)
def test_whatever_a_handler_calls_works_or_says_that_it_cannot(tmp_path: Path, mode: str) -> None:
    rng = random.Random(mode)
    writer = open_writer(tmp_path, UNKEYED, **MODES[mode])
    acked: list[int] = []
    refused = 0

    def handle(k: int) -> None:
        nonlocal refused
        try:
            rng.choice(_calls(writer, k, acked))()
        except mw.UnavailableError:
            refused += 1

    for number in range(ROUNDS * (10 if mode == "durable" else 2)):
        with alarm(lambda k=1_000_000 + number: handle(k), rng.random() * 0.003 + 1e-5):  # type: ignore[misc]
            for step in range(rng.randrange(1, 8)):
                k = number * 10 + step
                writer.put_nowait(row(k)).wait() if rng.random() < 0.2 else writer.put(row(k))
                acked.append(k)
                if rng.random() < 0.1:
                    writer.memtable_scanner().to_table()
                if rng.random() < 0.05:
                    writer.force_seal_active()
    writer.close()
    assert stored(tmp_path) == sorted(acked)


@pytest.mark.scaled
def test_a_handler_may_close_a_table_writer(tmp_path: Path) -> None:
    rng = random.Random(3)
    for number in range(ROUNDS):
        root = tmp_path / str(number)
        table = base_table(root, sharding=mw.Bucket("id", 3))
        writer = table.writer(fsync=False)
        with alarm(writer.close, rng.random() * 0.04 + 1e-4):
            acked = put_until_closed(writer, lambda k: rows([k]))
        writer.close()
        found = sorted(table.scan().to_table().column("id").to_pylist())
        assert found in (acked, [*acked, len(acked)])


@pytest.mark.scaled
def test_a_handler_may_read_while_the_same_thread_reads_or_writes(tmp_path: Path) -> None:
    rng = random.Random(4)
    table = base_table(tmp_path, sharding=mw.Bucket("id", 2), data=[{"id": -1, "v": "base"}])
    with table.writer(fsync=False, max_memtable_rows=20) as writer:
        answers: list[Any] = []

        def handle() -> None:
            try:
                answers.append(rng.choice([lambda: table.get(-1), lambda: table.lookup([-1]).to_pylist()[0]])())
            except mw.UnavailableError as error:
                answers.append(error)

        for number in range(ROUNDS * 6):
            with alarm(handle, rng.random() * 0.01 + 1e-5):
                writer.put(rows([number]))
                assert table.get(number) == {"id": number, "v": "a"}
                assert table.lookup([-1, number]).num_rows == 2
    assert {str(a) for a in answers if not isinstance(a, Exception)} <= {"{'id': -1, 'v': 'base'}"}
    assert sorted(table.scan().to_table().column("id").to_pylist()) == list(range(-1, ROUNDS * 6))


@pytest.mark.scaled
def test_an_append_on_top_of_an_append_is_refused_or_written_once(tmp_path: Path) -> None:
    rng = random.Random(5)
    base_table(tmp_path, UNKEYED)
    appender = mw.WalAppender.open(str(tmp_path), "11111111-2222-4333-8444-555555555555", fsync=False)
    acked: list[int] = []

    def handle(k: int) -> None:
        with suppress(mw.UnavailableError):
            appender.append(row(k))
            acked.append(k)

    for number in range(ROUNDS * 10):
        with alarm(lambda k=1_000_000 + number: handle(k), rng.random() * 0.002 + 1e-5):  # type: ignore[misc]
            for step in range(5):
                appender.append(row(number * 10 + step))
                acked.append(number * 10 + step)
    assert stored(tmp_path, in_log=True) == sorted(acked)


class Boom(BaseException):
    """What a handler raises."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may strike in somebody's finaliser
@pytest.mark.scaled
@pytest.mark.parametrize("call", ["put", "put and wait", "flush", "close"])
def test_an_interrupt_is_never_hidden_by_another_error(tmp_path: Path, call: str) -> None:
    rng = random.Random(call)

    def boom() -> None:
        raise Boom

    def use(writer: mw.ShardWriter) -> None:
        if call == "put":
            writer.put(row(1))
        elif call == "put and wait":
            writer.put_nowait(row(1)).wait(SECONDS)
        elif call == "flush":
            writer.put(row(1))
            writer.force_seal_active()
            writer.wait_for_flush_drain(SECONDS)
        else:
            writer.put(row(1))
            writer.close()

    writer = open_writer(tmp_path / "0", UNKEYED, max_unflushed_memtable_bytes=1)
    is_poisoned = False
    for number in range(1, ROUNDS * 10):
        try:
            with alarm(boom, rng.random() * 0.01 + 1e-5):
                use(writer)
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Boom:
            is_poisoned = True
        except mw.WriterPoisonedError:
            assert is_poisoned
            writer.abort()
        if writer.closed:
            is_poisoned = False
            writer = open_writer(tmp_path / str(number), UNKEYED, max_unflushed_memtable_bytes=1)
    writer.abort()


def test_handler_between_turn_and_leader_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_writer(tmp_path, UNKEYED)
    lead, refused = GroupCommit._lead, []

    def handle() -> None:
        monkeypatch.undo()
        with pytest.raises(mw.UnavailableError) as error:
            writer.put(row(2))
        refused.append(error)

    def signalled(self: GroupCommit, *given: Any) -> bool:
        signal.raise_signal(signal.SIGALRM)
        return lead(self, *given)

    monkeypatch.setattr(GroupCommit, "_lead", signalled)
    with alarm(handle, 0):
        writer.put_nowait(row(1)).wait()
    writer.close()
    assert refused
    assert stored(tmp_path) == [1]


@pytest.mark.parametrize("below", ["the first", "the last"])
def test_a_routed_write_that_a_handler_could_make_in_part_says_so(tmp_path: Path, below: str) -> None:
    """It was told that nothing happened, and one shard had the rows."""
    table = base_table(tmp_path, sharding=mw.Bucket("id", 8))
    with table.writer(fsync=False) as writer:
        routed = [ids.column("id")[0].as_py() for _, ids in mw.route(rows(range(80)), table.sharding)]
        writer.put(rows(routed, "old"))
        busy = {"the first": routed[0], "the last": routed[-1]}[below]
        told: list[mw.UnavailableError] = []

        def handle() -> None:
            with pytest.raises(mw.UnavailableError) as error:
                writer.put(rows([routed[0], routed[-1]], "new"))
            told.append(error.value)

        with alarm(handle, 0):
            run_once_at("wal.before_put", lambda: signal.raise_signal(signal.SIGALRM))
            writer.put(rows([busy], "below"))
            crash_points.install(None)
        found = [(writer.get(k) or {})["v"] for k in (routed[0], routed[-1])]
    assert found == {"the first": ["below", "old"], "the last": ["new", "below"]}[below]
    assert [error.ambiguous for error in told] == [below == "the last"]


class LingerClock(SystemClock):
    """Tells when somebody lingers, who has the turn to commit."""

    def __init__(self) -> None:
        self.lingers = threading.Event()

    def sleep(self, seconds: float) -> None:  # type: ignore[override]
        self.lingers.set()
        super().sleep(seconds)


@pytest.mark.parametrize("when", ["before", "after"])
def test_handler_waits_for_turn_of_other_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Its delete was inserted, and then refused as if nothing had happened: another thread lingered with the turn."""
    clock, insert, told, others = LingerClock(), GroupCommit.insert, [], []
    writer = open_writer(tmp_path, commit_linger_ms=100, clock=clock)
    writer.put_nowait(rows([1, 2])).wait()

    def let_another_lead() -> None:
        clock.lingers.clear()
        others.append(in_thread(lambda: writer.put(rows([9]))))
        assert clock.lingers.wait(SECONDS)

    def inserted(self: GroupCommit, *given: Any, **named: Any) -> Any:
        monkeypatch.undo()
        done = insert(self, *given, **named)
        let_another_lead()
        return done

    def handle() -> None:
        if when == "before":
            let_another_lead()
        else:
            monkeypatch.setattr(GroupCommit, "insert", inserted)
        told.append(writer.delete([2]))

    def batches() -> Iterator[pa.RecordBatch]:
        signal.raise_signal(signal.SIGALRM)  # while the put below reads its input
        yield rows([3])

    with alarm(handle, 0):
        writer.put(pa.RecordBatchReader.from_batches(KEYED, batches()))
    others[0].result()
    assert told[0].written == 1
    assert sorted(scanned(writer)) == [1, 3, 9]
    writer.close()


def test_a_put_that_nobody_waits_for_is_refused_where_it_would_wait_for_the_call_below(tmp_path: Path) -> None:
    """Memory was full, and the flush waited for the turn of the very thread that waited for room: for ever."""
    writer = open_writer(tmp_path, UNKEYED, max_unflushed_memtable_bytes=2000)
    ack = put_undrained(writer, row(1))
    refused: list[mw.UnavailableError] = []
    gave_up = threading.Timer(10, writer.abort)

    def handle() -> None:
        in_thread(lambda: put_undrained(writer, rows(range(100, 200), schema=UNKEYED))).result()  # no room is left
        gave_up.start()
        with pytest.raises(mw.UnavailableError) as error:
            writer.put_nowait(row(2))
        refused.append(error.value)

    with alarm(handle, 0):
        run_once_at("wal.before_put", lambda: signal.raise_signal(signal.SIGALRM))
        ack.wait()
        crash_points.install(None)
    gave_up.cancel()
    writer.close()
    assert [error.ambiguous for error in refused] == [False]
    assert stored(tmp_path) == [1, *range(100, 200)]


def test_write_nested_in_a_search_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was refused after it had been inserted, and so was stored all the same."""
    table = mw.create_table(str(tmp_path / "t"), pa.table({"id": [1], "v": ["base"]}), primary_key="id")
    table.dataset.create_scalar_index("v", "BTREE")
    with mw.open_table(table.uri).writer(fsync=False, compaction=None, sync_indexed_write=True) as writer:
        writer.put([{"id": 2, "v": "x"}])
        fill, told = MemTable._index_upto, []

        def interrupted(memtable: MemTable, num_batches: int) -> None:
            if not told:
                told.append("began")
                signal.raise_signal(signal.SIGUSR1)
            fill(memtable, num_batches)

        before = signal.signal(signal.SIGUSR1, lambda *_: told.append(writer.put([{"id": 3, "v": "x"}]).written))
        monkeypatch.setattr(MemTable, "_index_upto", interrupted)
        try:
            writer.scan(filter="v = 'x'").to_table()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert told == ["began", 1]
        assert sorted(writer.scan(filter="v = 'x'").to_table().column("id").to_pylist()) == [2, 3]
