"""A write happens once or not at all: an interrupt at any line of it, a repeated transaction, several puts in one write."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lance_memwal import InvalidInputError, ShardWriter, WriterPoisonedError, crash_points
from lance_memwal.types import EntryTransaction, Transaction
from tests.harness.points import run_once_at
from tests.harness.profile import scaled
from tests.kit.interrupts import Interrupter
from tests.kit.writers import (
    BLOOM,
    SECONDS,
    UNKEYED,
    WAL,
    in_thread,
    memwal_threads,
    open_writer,
    positions_of,
    row_entries,
    rows,
    scanned,
    wait_for,
    watched,
)


def ids(writer: ShardWriter) -> list[int]:
    return sorted(writer.scan().to_table().column("id").to_pylist())


@pytest.fixture(autouse=True)
def _no_point_is_left() -> Iterator[None]:
    yield
    crash_points.install(None)


def in_log(root: Path) -> list[int]:
    """The keys in the log, sorted."""
    return sorted(k for entry in row_entries(root) for batch in entry.batches for k in batch.column("id").to_pylist())


def put_two(writer: ShardWriter) -> None:
    writer.put([rows([2], schema=UNKEYED), rows([3], schema=UNKEYED)])


def put_nowait(writer: ShardWriter) -> None:
    writer.put_nowait([rows([2], schema=UNKEYED), rows([3], schema=UNKEYED)]).wait()


def one_scenario(root: Path, at: int, settings: dict[str, Any], put: Callable[[ShardWriter], None]) -> int | None:
    """Interrupt one put at line `at`. Returns the number of lines once `at` is after the last."""
    writer = open_writer(root, UNKEYED, **settings)  # append-only: a row that is written twice is seen twice
    writer.put(rows([1], schema=UNKEYED), txn=("app", 0))
    interrupter = Interrupter(at)
    interrupted = interrupter.run(lambda: put(writer))
    where, acked = interrupter.where, {1} if interrupted else {1, 2, 3}
    try:
        in_thread(lambda: writer.put(rows([4], schema=UNKEYED))).result()  # must not hang
        writer.put(rows([5], schema=UNKEYED), txn=("app", 1))
        acked |= {4, 5}
        assert writer.put(rows([5], schema=UNKEYED), txn=("app", 1)).skipped
        if settings.get("enable_memtable", True):
            assert writer.memtable_stats().pending_wal_row_count == 0, where
    except WriterPoisonedError:
        assert interrupted, where
        with pytest.raises(WriterPoisonedError):
            writer.put(rows([6], schema=UNKEYED))
        writer.abort()
    else:
        if settings.get("enable_memtable", True):
            writer.force_seal_active()
            writer.wait_for_flush_drain(SECONDS)
        writer.close()
    if settings.get("enable_memtable", True):
        again = open_writer(root, UNKEYED, **settings)
        found = sorted(again.scan().to_table().column("id").to_pylist())
        again.close()
    else:
        found = in_log(root)
    assert len(set(found)) == len(found), f"written twice: {found} {where}"
    assert acked <= set(found) <= acked | {2, 3, 4}, f"{found} {where}"
    assert (2 in found) == (3 in found), f"half a put is in the table: {where}"
    return None if interrupted else interrupter.lines


MODES: dict[str, tuple[dict[str, Any], Callable[[ShardWriter], None]]] = {
    "durable": ({"stats_log_interval_ms": None}, put_two),
    "not durable": ({"durable_write": False, "max_wal_flush_interval_ms": None}, put_two),
    "rotating": ({"max_memtable_batches": 2}, put_two),
    "wal only": ({"enable_memtable": False, "max_memtable_batches": 2}, put_two),
    "no wait": ({"stats_log_interval_ms": None}, put_nowait),
}


@pytest.mark.scaled
@pytest.mark.parametrize("mode", MODES)
def test_interrupt_at_any_line_of_a_put_loses_and_doubles_nothing(tmp_path: Path, mode: str) -> None:
    step = scaled(ci=7, prove=1)
    at, lines = 1, None
    while lines is None:
        lines = one_scenario(tmp_path / str(at), at, *MODES[mode])
        at += step
    assert lines > 40, "the trace did not see the put"


WRITES: dict[str, tuple[Callable[[ShardWriter], object], str | None]] = {
    "delete": (lambda writer: writer.delete([1]), None),
    "update": (lambda writer: writer.update([{"id": 1, "v": "new"}]), "new"),
    "compare and set": (lambda writer: writer.compare_and_set(1, {"id": 1, "v": "a"}, {"id": 1, "v": "new"}), "new"),
    "large put": (lambda writer: writer.put(rows([1], "x" * 20_000)), "x" * 20_000),
}


@pytest.mark.scaled
@pytest.mark.parametrize("verb", WRITES)
def test_interrupted_write_happens_whole_or_not_at_all(tmp_path: Path, verb: str) -> None:
    write, expected = WRITES[verb]
    for at in itertools.count(1, scaled(ci=31, prove=1)):
        root = tmp_path / str(at)
        writer = open_writer(root, stats_log_interval_ms=None, max_entry_bytes=10_000)
        writer.put(rows([1, 7]))
        interrupter = Interrupter(at)
        interrupted = interrupter.run(partial(write, writer))
        with suppress(WriterPoisonedError):
            in_thread(lambda: writer.put(rows([8]))).result()  # noqa: B023
        writer.abort()
        with open_writer(root) as again:
            found = {row["id"]: row["v"] for row in again.scan().to_table().to_pylist()}
        assert found.get(1) in ((expected, "a") if interrupted else (expected,)), interrupter.where
        assert found[7] == "a", interrupter.where
        if not interrupted:
            break
    assert at > 40, "the trace did not see the write"


@pytest.mark.parametrize("point", ["wal.before_put", "wal.after_put"])
def test_interrupted_commit_poisons_and_says_what_is_unknown(tmp_path: Path, point: str) -> None:
    writer = open_writer(tmp_path, UNKEYED)
    writer.put(rows([1], schema=UNKEYED))
    waiting: list[Any] = []

    def queue_one_and_interrupt() -> None:
        waiting.append(in_thread(lambda: writer.put(rows([3], schema=UNKEYED))))
        wait_for(lambda: len(writer._shard.commits._puts._waiting) == 1)
        raise KeyboardInterrupt

    run_once_at(point, queue_one_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.put(rows([2], schema=UNKEYED))
    with pytest.raises(WriterPoisonedError) as waited:
        waiting[0].result()
    assert waited.value.ambiguous is False, "its rows were in no entry"
    with pytest.raises(WriterPoisonedError, match="reopen the shard"):
        writer.put(rows([4], schema=UNKEYED))
    with pytest.raises(WriterPoisonedError):
        writer.close()
    with open_writer(tmp_path, UNKEYED) as again:
        assert ids(again) == ([1, 2] if point == "wal.after_put" else [1])


@pytest.mark.parametrize("point", ["wal.before_put", "wal.after_put"])
def test_put_in_an_interrupted_entry_is_ambiguous_once_sent(tmp_path: Path, point: str) -> None:
    writer = open_writer(tmp_path, UNKEYED)
    commits = writer._shard.commits
    with commits._turn:  # so that the put can only queue
        commits._is_led = True
        follower = in_thread(lambda: writer.put(rows([2], schema=UNKEYED)))
        wait_for(lambda: len(commits._puts._waiting) == 1)
        run_once_at(point, interrupt)
        with pytest.raises(KeyboardInterrupt):
            commits._lead(None, 1, False)
    with pytest.raises(WriterPoisonedError) as waited:
        follower.result()
    assert waited.value.ambiguous == (point == "wal.after_put"), "before its put, nothing was sent"
    writer.abort()
    with open_writer(tmp_path, UNKEYED) as again:
        assert ids(again) == ([2] if point == "wal.after_put" else [])


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.scaled
def test_interrupted_wal_only_put_never_skips_a_generation(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"enable_memtable": False, "max_memtable_batches": 2}
    at, interrupted = 1, True
    while interrupted:
        root = tmp_path / str(at)
        writer = open_writer(root, UNKEYED, **settings)
        writer.put(rows([1], schema=UNKEYED))
        interrupted = Interrupter(at).run(partial(put_two, writer))
        with suppress(WriterPoisonedError):
            writer.put([rows([4], schema=UNKEYED), rows([5], schema=UNKEYED)])
            writer.put(rows([6], schema=UNKEYED))
        writer.abort()
        generations = [e.generation or 0 for e in row_entries(root)]
        assert all(b - a in (0, 1) for a, b in itertools.pairwise(generations)), generations
        open_writer(root, UNKEYED).close()  # and replay agrees
        at += scaled(ci=15, prove=1)


def read(writer: ShardWriter) -> None:
    writer.memtable_scanner().to_table()


def test_an_interrupted_reader_harms_no_other(tmp_path: Path) -> None:
    at, interrupted = 1, True
    while interrupted:
        writer = open_writer(tmp_path / str(at))
        for k in range(6):
            writer.put(rows([k % 3, 10 + k], str(k)))
            writer.memtable_scanner().count_rows() if k == 2 else None
        interrupted = Interrupter(at).run(partial(read, writer))
        found = {row["id"]: row["v"] for row in writer.memtable_scanner().to_table().to_pylist()}
        assert found == {0: "3", 1: "4", 2: "5"} | {10 + k: str(k) for k in range(6)}
        writer.put(rows([0], "last"))
        assert writer.memtable_scanner().filter("id = 0").to_table().to_pylist() == [{"id": 0, "v": "last"}]
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

        thread = in_thread(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                writer.put(rows([1000]))
        finally:
            thread.result(4 * SECONDS)
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
        with suppress(WriterPoisonedError):  # if this thread led the commit
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


def test_equal_versions_are_written_once_and_lower_ones_refused_per_application(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        assert not writer.put(rows([1], "first"), txn=("app", 7)).skipped
        again = writer.put(rows([1], "second"), txn=("app", 7))
        assert again.skipped
        assert len(positions_of(again)) == 0
        with pytest.raises(InvalidInputError, match="older than the shard's version 7"):
            writer.put(rows([2]), txn=("app", 6))
        assert not writer.put(rows([3]), txn=("app", 9)).skipped
        assert not writer.put(rows([4]), txn=("b", 1)).skipped
        assert {app: seen.version for app, seen in writer.transactions().items()} == {"app": 9, "b": 1}
        assert scanned(writer) == {1: "first", 3: "a", 4: "a"}
        assert len(row_entries(tmp_path)) == 3


def test_deletes_can_be_transactions(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1]))
        assert not writer.delete([1], txn=("app", 1)).skipped
        writer.put(rows([1], "back"))
        assert writer.delete([1], txn=("app", 1)).skipped
        assert scanned(writer) == {1: "back"}


def test_a_repeat_of_a_pending_version_waits_until_that_is_durable(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        held = store.hold("put_new", WAL)
        first = in_thread(lambda: writer.put(rows([1]), txn=("app", 1)))
        held.wait_reached()
        second = in_thread(lambda: writer.put(rows([2]), txn=("app", 1)))
        third = in_thread(lambda: writer.put(rows([3]), txn=("app", 0)))
        with pytest.raises(InvalidInputError, match="older"):
            third.result()
        assert second.running, "it would claim that a write is there that a crash could still take back"
        held.open()
        assert not first.result().skipped
        assert second.result().skipped
        assert scanned(writer) == {1: "a"}


def test_a_repeat_of_a_pending_version_that_fails_fails_too(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, max_wal_persist_retries=0)
    held = store.hold("put_new", WAL, 1)
    store.fail("put_new", WAL)
    first = in_thread(lambda: writer.put(rows([1]), txn=("app", 1)))
    held.wait_reached()
    second = in_thread(lambda: writer.put(rows([1]), txn=("app", 1)))
    held.open()
    for put in (first, second):
        with pytest.raises(WriterPoisonedError):
            put.result()
    writer.abort()


def test_a_transaction_is_durable_when_put_returns_in_every_mode(tmp_path: Path) -> None:
    with open_writer(tmp_path, durable_write=False, max_wal_flush_interval_ms=None) as writer:
        writer.put(rows([1]))
        writer.put(rows([2]), txn=("app", 1))
        assert [e.num_rows for e in row_entries(tmp_path)] == [2], "a transaction shares the entry of what was pending"
        assert row_entries(tmp_path)[0].footer.txns == (EntryTransaction(Transaction("app", 1), 1, 1),)


def test_a_transaction_shares_an_entry_and_says_which_rows_are_its_own(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        held = store.hold("put_new", WAL, 1)
        acks = [writer.put_nowait(rows([0]))]
        held.wait_reached()
        acks.append(writer.put_nowait(rows([1])))
        txn = in_thread(lambda: writer.delete([2, 3], txn=("app", 1)))
        wait_for(lambda: writer.memtable_stats().pending_wal_batch_count >= 3)
        acks.append(writer.put_nowait(rows([3])))
        held.open()
        txn.result()
        acks[-1].wait()
        assert [(e.num_rows, e.footer.txns) for e in row_entries(tmp_path)] == [
            (1, ()),
            (4, (EntryTransaction(Transaction("app", 1), 1, 2),)),
        ]


def test_versions_survive_reopening_flushing_and_takeover(tmp_path: Path) -> None:
    with open_writer(tmp_path, UNKEYED) as writer:
        writer.put(rows([1], schema=UNKEYED), txn=("app", 3))
    for _ in range(3):
        with open_writer(tmp_path, UNKEYED) as writer:
            assert writer.put(rows([1], schema=UNKEYED), txn=("app", 3)).skipped
            writer.put(rows([2], schema=UNKEYED))


@pytest.mark.parametrize(
    "txn",
    [
        *[("", 1), ("app",), ("app", -1), ("app", 1.5), ("app", True), (1, 1), "app", ("app", 1 << 63)],
        *[Transaction("app", 1 << 64), Transaction("app", -1), Transaction("app", True), Transaction("", 1)],
        Transaction("app", 1, 5),
    ],
)
def test_a_transaction_that_makes_no_sense_is_refused(tmp_path: Path, txn: object) -> None:
    with open_writer(tmp_path) as writer:
        with pytest.raises(InvalidInputError, match="txn must be"):
            writer.put(rows([1]), txn=txn)  # type: ignore[arg-type]
        assert scanned(writer) == {}


def test_an_id_that_another_query_uses_is_refused(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1]), txn=Transaction("app", 5, "query-1"))
        assert writer.put(rows([1]), txn=Transaction("app", 4, "query-1")).skipped  # a query that was restarted
        with pytest.raises(InvalidInputError, match="another query"):
            writer.put(rows([1]), txn=Transaction("app", 5, "query-2"))
