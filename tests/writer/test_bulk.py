"""Large puts and failing flushes: a bulk write is published whole and once; a flush is retried in order, rows stay readable."""

from __future__ import annotations

import itertools
import threading
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic

import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.clock import BackOff
from lance_memwal.errors import ClosedError
from lance_memwal.shard_writer import park
from lance_memwal.write import flush
from tests.kit.interrupts import SignalInterrupter
from tests.kit.writers import (
    BLOOM,
    MANIFEST,
    SECONDS,
    UNKEYED,
    WAL,
    Rule,
    WatchedStore,
    base_table,
    everything,
    flushed,
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

SMALL = {"max_entry_bytes": 1000}
BIG = rows(range(100), "big")
assert BIG.nbytes > 1000


def test_the_active_memtable_is_flushed_first_and_the_put_follows_as_the_next_generation(tmp_path: Path) -> None:
    with open_writer(tmp_path, **SMALL) as writer:
        writer.put(rows([1, 1000], "small"))
        assert positions_of(writer.put(BIG)) == range(1, 2)
        manifest = writer.manifest()
        assert [s.generation for s in manifest.sstables] == [1, 2]
        assert (manifest.current_generation, manifest.replay_after_wal_entry_position) == (3, 2), (
            "the cursor is at the mark"
        )
        writer.put(rows([2], "after"))
        assert scanned(writer) == {2: "after"}
        expected = dict.fromkeys(range(100), "big") | {1000: "small", 2: "after"}
        assert everything(writer, tmp_path) == expected
        assert positions_of(writer.put(rows([3]))) == range(3, 4)
        writer.abort()
    with open_writer(tmp_path) as writer:
        assert everything(writer, tmp_path) == expected | {3: "a"}


def test_of_a_large_put_the_log_has_a_mark_and_no_row(tmp_path: Path) -> None:
    with open_writer(tmp_path, **SMALL) as writer:
        writer.put(BIG, txn=("job", 3))
        assert row_entries(tmp_path) == []
        assert writer.wal_stats().next_wal_entry_position == 2
        entry = mw.WalTailer(str(tmp_path), writer.shard_id).read_entry(1)
        assert entry is not None
        assert entry.footer is not None
        assert entry.footer.bulk == writer.manifest().sstables[0]
        assert [(item.txn.app, item.num_rows) for item in entry.footer.txns] == [("job", 100)]
        stats = writer.stats()
        assert (stats.put_count, stats.memtable_flush_count, stats.memtable_flush_rows) == (1, 1, 100)
        assert stats.wal_flush_count == 0


def test_several_batches_or_many_deletes_are_one_generation_whose_last_row_wins(tmp_path: Path) -> None:
    with open_writer(tmp_path, **SMALL) as writer:
        batches = [rows(range(k, k + 10), "x") for k in range(0, 100, 10)]
        assert positions_of(writer.put([*batches, rows(range(50), "newer")])) == range(11)
        assert [len(found) for found in flushed(tmp_path).values()] == [100]
        assert everything(writer, tmp_path) == {k: "newer" if k < 50 else "x" for k in range(100)}
        writer.delete(list(range(10, 1000)))
        assert everything(writer, tmp_path) == dict.fromkeys(range(10), "newer")
        assert list(flushed(tmp_path)) == [1, 2]


def test_other_writes_wait_for_a_large_put_and_come_after_it(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, **SMALL) as writer:
        held = store.hold("put", BLOOM)
        bulk = in_thread(lambda: writer.put(BIG))
        held.wait_reached()
        small = in_thread(lambda: writer.put(rows([1], "later")))
        other = in_thread(lambda: writer.put(rows(range(200, 300), "bulk too")))
        assert small.running
        assert other.running
        held.open()
        bulk.result()
        small.result()
        other.result()
        assert everything(writer, tmp_path)[1] == "later"
        assert len(everything(writer, tmp_path)) == 200
        assert writer.backpressure_stats().total_count == 0, "waiting for a large put is no backpressure"


def test_an_append_only_table_counts_every_row_of_a_large_put_once(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t", UNKEYED)
    with table.shard_writer(fsync=False, **SMALL) as writer:
        writer.put(rows([1], schema=UNKEYED))
        writer.put(rows([7] * 100, "big", UNKEYED))
        writer.put(rows([1], schema=UNKEYED))
        assert writer.scan().count_rows() == 102
        shard = writer.shard_id
        writer.abort()
    with table.shard_writer(shard, fsync=False) as writer:
        assert writer.scan().count_rows() == 102


@pytest.mark.parametrize("crash", [True, False])
def test_large_put_that_failed_before_its_commit_left_nothing_and_can_be_retried(tmp_path: Path, crash: bool) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, **SMALL)
    if crash:
        writer.put(rows([1000]))
    failing = store.fail("put", BLOOM, None if crash else 1)
    with pytest.raises(mw.UnavailableError):
        writer.put(BIG)
    if crash:
        writer.abort()
        failing.open()
        writer = open_writer(location, **SMALL)
    else:
        writer.put(rows([1000]))
    assert everything(writer, tmp_path) == {1000: "a"}
    writer.put(BIG)
    assert len(everything(writer, tmp_path)) == 101
    writer.close()


@pytest.mark.parametrize("landed", [True, False])
def test_bulk_commit_of_unknown_outcome_poisons_and_loses_nothing(tmp_path: Path, landed: bool) -> None:
    """If it landed and the writer went on, its next flush would take that generation number for its own and be skipped."""
    store, location = watched(tmp_path)
    writer = open_writer(location, **SMALL)
    writer.put(rows([1]))
    writer.force_seal_active()
    writer.wait_for_flush_drain()
    store.fail("put_new", MANIFEST, after=landed)
    with pytest.raises(mw.WriterPoisonedError) as caught:
        writer.put(BIG)
    assert isinstance(caught.value.__cause__, mw.UnavailableError)
    with pytest.raises(mw.WriterPoisonedError):
        writer.put(rows([2]))
    with pytest.raises(mw.WriterPoisonedError):
        writer.close()
    with open_writer(tmp_path) as writer:
        writer.put(rows([3]))
        expected = {1: "a", 3: "a"} | (dict.fromkeys(range(100), "big") | {3: "a"} if landed else {})
        assert everything(writer, tmp_path) == expected
        writer.force_seal_active()
        writer.wait_for_flush_drain()
        assert everything(writer, tmp_path) == expected


def test_an_interrupt_of_the_commit_stays_an_interrupt_and_poisons(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, **SMALL)

    def interrupt(point: str) -> None:
        if point == "bulk.after_commit":
            raise KeyboardInterrupt

    crash_points.install(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            writer.put(BIG)
    finally:
        crash_points.install(None)
    with pytest.raises(mw.WriterPoisonedError):
        writer.put(rows([2]))
    with pytest.raises(mw.WriterPoisonedError):
        writer.close()
    with open_writer(tmp_path) as writer:
        assert everything(writer, tmp_path) == dict.fromkeys(range(100), "big")


def test_an_interrupt_anywhere_keeps_no_other_put_out(tmp_path: Path) -> None:
    """Where it came as the others were kept out, or as they should be let in again, they waited for ever."""
    for at in itertools.count(1):
        writer = open_writer(tmp_path / str(at), stats_log_interval_ms=None, **SMALL)
        interrupter = SignalInterrupter(at, "write/bulk.py", "write/group_commit.py", "write/health.py")
        interrupted = interrupter.run(partial(writer.put, BIG))
        put = in_thread(partial(writer.put, rows([1000])))
        try:
            put.result(5)
        except mw.WriterPoisonedError:
            assert interrupted
        except AssertionError:
            writer.abort()
            raise AssertionError(interrupter.where) from None
        writer.abort()
        if not interrupted:
            break
    assert at > 40, "the trace did not see the put"


def test_a_fenced_writer_publishes_no_large_put(tmp_path: Path) -> None:
    first = open_writer(tmp_path, **SMALL)
    with open_writer(tmp_path) as second:
        second.put(rows([1]))
        with pytest.raises(mw.FencedError):
            first.put(BIG)
        with pytest.raises(mw.FencedError):
            first.put(rows([2]))
        assert everything(second, tmp_path) == {1: "a"}
    first.abort()


def test_a_transaction_of_a_large_put_is_written_once_over_reopens_and_flushes(tmp_path: Path) -> None:
    with open_writer(tmp_path, **SMALL) as writer:
        assert not writer.put(BIG, txn=("app", 5)).skipped
        assert writer.put(rows(range(100), "again"), txn=("app", 5)).skipped
        with pytest.raises(mw.InvalidInputError, match="older"):
            writer.put(BIG, txn=("app", 4))
        writer.abort()
    for _ in range(2):
        with open_writer(tmp_path, **SMALL) as writer:
            assert writer.transactions()["app"].version == 5
            assert writer.put(rows(range(100), "again"), txn=("app", 5)).skipped
            assert writer.put(rows([1], "small"), txn=("app", 5)).skipped
            assert set(everything(writer, tmp_path).values()) == {"big"}


def test_a_transaction_in_the_log_is_known_to_a_large_put(tmp_path: Path) -> None:
    with open_writer(tmp_path, **SMALL) as writer:
        writer.put(rows([1]), txn=("app", 1))
        assert writer.put(BIG, txn=("app", 1)).skipped
        assert flushed(tmp_path) == {}, "a skipped put must not even flush"
        assert not writer.put(BIG, txn=("app", 2)).skipped


def test_close_waits_for_a_large_put(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, **SMALL)
    held = store.hold("put_new", MANIFEST)
    bulk = in_thread(lambda: writer.put(BIG))
    held.wait_reached()
    closing = in_thread(writer.close)
    assert closing.running
    held.open()
    closing.result()
    assert len(positions_of(bulk.result())) == 1
    assert len(flushed(tmp_path)[1]) == 100


def test_an_abort_during_a_large_put_ends_it(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, **SMALL)
    held = store.hold("put", BLOOM)
    bulk = in_thread(lambda: writer.put(BIG))
    held.wait_reached()
    writer.abort()
    held.open()
    with pytest.raises(ClosedError):
        bulk.result()
    assert flushed(tmp_path) == {}


def test_the_wal_is_durable_before_a_large_put_moves_the_cursor(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, durable_write=False, max_wal_flush_interval_ms=None, **SMALL) as writer:
        writer.put(rows([1]))
        held = store.hold("put_new", WAL)
        bulk = in_thread(lambda: writer.put(BIG))
        held.wait_reached()
        assert flushed(tmp_path) == {}
        held.open()
        bulk.result()
        assert list(flushed(tmp_path)) == [1, 2]
        assert writer.manifest().replay_after_wal_entry_position == 2, "the mark of the large put"


def wait_for_failures(writer: mw.ShardWriter, failures: int) -> None:
    wait_for(lambda: writer._shard.health.flush_failures >= failures)


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush, "POLL", BackOff(0.002, 0.01, jitter=0.0))


def test_a_failed_flush_is_retried_and_does_not_poison(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows([1]))
        store.fail("put", BLOOM, 2)
        writer.force_seal_active()
        wait_for_failures(writer, 1)
        writer.put(rows([2]))
        assert everything(writer, tmp_path) == {1: "a", 2: "a"}
        writer.wait_for_flush_drain(SECONDS)
        assert list(flushed(tmp_path)) == [1]
        assert everything(writer, tmp_path) == {1: "a", 2: "a"}


@pytest.mark.parametrize("after", [True, False])
def test_a_manifest_commit_that_fails_is_tried_again_and_judged_by_content(tmp_path: Path, after: bool) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows([1]))
        store.fail("put_new", MANIFEST, 1, after=after)
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        assert [len(found) for found in flushed(tmp_path).values()] == [1]
        blooms = {path for kind, path in store.calls if kind == "put" and BLOOM in path}
        assert len(blooms) == 2, "each attempt has its own directory"
        assert len(attempts(tmp_path)) == (1 if after else 2), "an attempt of unknown outcome stays"
        assert writer.manifest().sstables[0].path in attempts(tmp_path)
        writer.put(rows([2]))
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        assert list(flushed(tmp_path)) == [1, 2]
        assert everything(writer, tmp_path) == {1: "a", 2: "a"}


def attempts(place: Path) -> list[str]:
    """The SSTable directories on disk, published or not."""
    return sorted(path.name for path in place.glob("_mem_wal/*/*_gen_*"))


@pytest.mark.repro("writer-15")
def test_attempts_that_fail_again_and_again_leave_no_directory(tmp_path: Path) -> None:
    """10 MB became 110 MB in 18 seconds."""
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows([1]))
        failing = store.fail("put", BLOOM)
        writer.force_seal_active()
        wait_for_failures(writer, 5)
        failing.open()
        wait_for(lambda: not writer.memtable_stats().frozen_count)
    assert len(attempts(tmp_path)) == 1
    assert list(flushed(tmp_path)) == [1]


def test_while_generation_n_fails_generation_n_plus_1_waits(tmp_path: Path) -> None:
    """Lesson 3: N + 1 was committed, and replay skipped N."""
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        failing = store.fail("put", "_gen_1/" + BLOOM)
        for k in (1, 2, 3):
            writer.put(rows([k]))
            writer.force_seal_active()
        wait_for_failures(writer, 3)
        assert flushed(tmp_path) == {}
        assert writer.memtable_stats().frozen_count == 3
        assert scanned(writer) == {1: "a", 2: "a", 3: "a"}
        wait_for(lambda: not any(name.endswith(("_gen_2", "_gen_3")) for name in attempts(tmp_path)))
        failing.open()
        writer.wait_for_flush_drain(SECONDS)
        assert list(flushed(tmp_path)) == [1, 2, 3]


def test_a_crash_while_generation_n_fails_loses_nothing(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location)
    store.fail("put", BLOOM)
    for k in (1, 2, 3):
        writer.put(rows([k]))
        writer.force_seal_active()
    wait_for_failures(writer, 1)
    writer.abort()
    with open_writer(tmp_path) as writer:
        assert everything(writer, tmp_path) == {1: "a", 2: "a", 3: "a"}


def test_after_five_failures_waiters_are_told_and_retries_go_on_and_recover(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, max_unflushed_memtable_bytes=2000) as writer:
        failing = store.fail("put", BLOOM, error=lambda: mw.UnavailableError("no space"))
        writer.put(rows(range(100)))
        waiting = in_thread(lambda: writer.put(rows([1000])))  # over budget: freezes the active memtable and waits
        with pytest.raises(mw.UnavailableError, match="no space"):
            waiting.result()
        assert writer._shard.health.flush_failures >= 5
        with pytest.raises(mw.UnavailableError, match="no space"):
            writer.wait_for_flush_drain(SECONDS)
        with pytest.raises(mw.UnavailableError, match="no space"):
            writer.put(rows([1001]))
        assert len(scanned(writer)) == 100
        wait_for_failures(writer, 8)
        failing.open()
        wait_for(lambda: not writer.memtable_stats().frozen_count)
        writer.wait_for_flush_drain(SECONDS)
        writer.put(rows([1002]))
        assert len(everything(writer, tmp_path)) == 101


def next_attempt_held(store: WatchedStore, writer: mw.ShardWriter) -> Rule:
    """Five attempts to flush have failed; the next one waits in storage, and will succeed."""
    failing = store.fail("put", BLOOM, error=lambda: mw.UnavailableError("no space"))
    writer.put(rows([1]))
    writer.force_seal_active()
    wait_for_failures(writer, 5)
    held = store.hold("put", BLOOM)
    failing.open()
    held.wait_reached()
    return held


def test_drain_and_close_wait_for_the_next_attempt_of_a_failing_flush(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location)
    held = next_attempt_held(store, writer)
    with pytest.raises(mw.UnavailableError, match="1 memtables were not flushed within"):
        writer.wait_for_flush_drain(0.02)
    draining, closing = in_thread(lambda: writer.wait_for_flush_drain(SECONDS)), in_thread(writer.close)
    wait_for(lambda: writer.closed)
    held.open()
    closing.result()
    draining.result()
    assert list(flushed(tmp_path)) == [1]


def test_drain_ignores_an_attempt_that_began_before_it(tmp_path: Path) -> None:
    """A caller has freed space while an attempt fails: only a later attempt shows whether that was enough."""
    store, location = watched(tmp_path)
    attempts, reached, opened = count(1), threading.Event(), threading.Event()

    def refuse() -> mw.UnavailableError:
        if next(attempts) == 6:
            reached.set()
            opened.wait(SECONDS)
        return mw.UnavailableError("no space")

    with open_writer(location) as writer:
        store.fail("put", BLOOM, 6, error=refuse)
        writer.put(rows([1]))
        writer.force_seal_active()
        assert reached.wait(SECONDS)
        draining = in_thread(lambda: writer.wait_for_flush_drain(SECONDS))
        wait_for(lambda: bool(writer._shard.health.changed._line))
        opened.set()
        draining.result()
        assert list(flushed(tmp_path)) == [1]


def test_put_without_room_waits_for_the_next_attempt_of_a_failing_flush(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, max_unflushed_memtable_bytes=100) as writer:
        held = next_attempt_held(store, writer)
        putting = in_thread(lambda: writer.put(rows([2])))
        wait_for(lambda: bool(writer._shard.health.changed._line))
        writer._shard.health.changed.wake_all()  # as any other change of the writer does
        wait_for(lambda: bool(writer._shard.health.changed._line))
        held.open()
        putting.result()
        assert everything(writer, tmp_path) == {1: "a", 2: "a"}


def test_park_does_not_wait_for_a_failing_flush(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        held = next_attempt_held(store, writer)
        started = monotonic()
        assert park(writer) is None
        assert monotonic() - started < 5, "a drain waits for the attempt"
        held.open()


class PanicException(BaseException):
    """As native code raises it: no `Exception`."""


@pytest.mark.parametrize(
    ("error", "times"), [(mw.UnavailableError, 4), (PanicException, 2)], ids=["fewer than five failures", "panics"]
)
def test_failures_that_end_are_not_told_to_a_waiting_drain(
    tmp_path: Path, error: type[BaseException], times: int
) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows([1]))
        store.fail("put", BLOOM, times, error=lambda: error("index out of bounds"))
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        assert list(flushed(tmp_path)) == [1]


def test_close_raises_the_error_of_a_flush_that_keeps_failing_and_reopening_recovers(tmp_path: Path) -> None:
    """Lessons 17 and 19: close returned although its flush failed; a waiter was never told."""
    store, location = watched(tmp_path)
    writer = open_writer(location)
    writer.put(rows([1]))
    store.fail("put", BLOOM, error=lambda: mw.UnavailableError("no space"))
    with pytest.raises(mw.UnavailableError, match="no space"):
        in_thread(writer.close).result()
    writer.close()
    assert not memwal_threads()
    with open_writer(tmp_path) as writer:
        assert everything(writer, tmp_path) == {1: "a"}


def test_an_error_that_is_not_ours_is_told_as_one_of_ours_with_its_cause(tmp_path: Path) -> None:
    """Lesson 16: one unexpected error killed the worker, and with it every later flush."""
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        failing = store.fail("put", BLOOM, error=lambda: RuntimeError("a bug"))
        writer.put(rows([1]))
        writer.force_seal_active()
        with pytest.raises(mw.MemWalError, match="a bug") as caught:
            writer.wait_for_flush_drain(SECONDS)
        assert isinstance(caught.value.__cause__, RuntimeError)
        failing.open()
        wait_for(lambda: not writer.memtable_stats().frozen_count)


def test_the_raised_error_does_not_collect_tracebacks(tmp_path: Path) -> None:
    """All callers who wait for one attempt raise the same error."""
    store, location = watched(tmp_path)
    writer = open_writer(location)
    held = next_attempt_held(store, writer)

    def depth() -> int:
        with pytest.raises(mw.UnavailableError, match="no space") as caught:
            writer._shard.health.refuse_failing_flush()
        frame, frames = caught.value.__traceback__, 0
        while frame is not None:
            frame, frames = frame.tb_next, frames + 1
        return frames

    first = depth()
    assert [depth() for _ in range(5)] == [first] * 5
    held.open()
    writer.abort()


def test_bytes_of_a_failed_flush_count_until_it_landed(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows(range(1000)))
        failing = store.fail("put", BLOOM)
        writer.force_seal_active()
        wait_for_failures(writer, 2)
        assert writer.memtable_stats().frozen_bytes > 10_000
        assert writer._shard.commits.held_bytes > 10_000
        failing.open()
        wait_for(lambda: not writer.memtable_stats().frozen_count)
        assert writer.memtable_stats().frozen_bytes == 0
        assert writer._shard.commits.held_bytes == 0
