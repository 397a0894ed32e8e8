"""Small durable puts that wait in the queue: whoever leads takes them, and each caller gets its own answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_memwal import ClosedError, FencedError, InvalidInputError, ShardWriter, WriterPoisonedError
from lance_memwal.write import group_commit
from lance_memwal.write.fitting import Fitting
from tests.harness.profile import scaled
from tests.kit.interrupts import Interrupter
from tests.kit.writers import (
    BLOOM,
    SECONDS,
    UNKEYED,
    WAL,
    flushed,
    in_thread,
    open_writer,
    row_entries,
    rows,
    scanned,
    wait_for,
    watched,
)


@contextmanager
def nobody_leads(writer: ShardWriter) -> Iterator[None]:
    """Keep the turn to commit, so that puts can only queue."""
    commits = writer._shard.commits
    with commits._turn:
        commits._is_led = True
        yield
        commits._is_led = False


def wait_queued(writer: ShardWriter, count: int) -> None:
    """Return once `count` puts are in the queue; nothing is notified of that, so look."""
    wait_for(lambda: len(writer._shard.commits._puts._waiting) >= count)


def queued(writer: ShardWriter, *puts: Callable[[], Any]) -> list[Any]:
    """Threads whose puts are in the queue, in this order, and that nobody has served."""
    running = []
    with nobody_leads(writer):
        for number, put in enumerate(puts, 1):
            running.append(in_thread(put))
            wait_queued(writer, number)
    return running


def test_a_put_that_does_not_fit_fails_alone(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        wrong = pa.record_batch({"id": [2], "nonsense": ["x"]})
        good, bad, last = queued(
            writer, lambda: writer.put(rows([1])), lambda: writer.put(wrong), lambda: writer.put(rows([3]))
        )
        writer.put(rows([4]))
        assert len(good.result().batch_positions) == len(last.result().batch_positions) == 1
        with pytest.raises(InvalidInputError, match="nonsense"):
            bad.result()
        assert set(scanned(writer)) == {1, 3, 4}
        assert writer.stats().put_count == 3


def test_puts_are_taken_in_the_order_of_the_queue(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        puts = queued(writer, *[partial(writer.put, rows([1], v)) for v in "abcdef"])
        writer.put(rows([2]))
        positions = [put.result().batch_positions for put in puts]
        assert positions == [range(k, k + 1) for k in range(6)]
        assert scanned(writer)[1] == "f"
        assert len(row_entries(tmp_path)) <= 2, "one entry holds what one leader takes"


def lead(writer: Any, data: pa.RecordBatch) -> None:
    """Commit for all who wait, without a place in their queue."""
    writer.put_nowait(data, drain=False).wait()


@pytest.mark.scaled
def test_a_leader_that_is_interrupted_anywhere_loses_and_doubles_no_put_of_others(tmp_path: Path) -> None:
    at, interrupted = 1, True
    while interrupted:
        root = tmp_path / str(at)
        writer = open_writer(root, UNKEYED)
        others = queued(writer, *[partial(writer.put, rows([k], schema=UNKEYED)) for k in (7, 8)])
        leader = Interrupter(at)
        interrupted = leader.run(partial(lead, writer, rows([2], schema=UNKEYED)))
        writer._shard.commits._puts.wake_all()  # they would look by themselves, a second later
        positions = [other.result().batch_positions for other in others]
        assert len({p.start for p in positions}) == 2, leader.where
        writer.put(rows([9], schema=UNKEYED))
        seen = sorted(writer.scan().to_table().column("id").to_pylist())
        assert seen in ([2, 7, 8, 9], [7, 8, 9]), leader.where
        assert interrupted or 2 in seen
        writer.abort()
        logged = sorted(k for e in row_entries(root) for b in e.batches for k in b.column("id").to_pylist())
        assert logged == seen, leader.where
        at += scaled(ci=9, prove=1)
    assert at > 100, "the trace did not see the leader"


def test_a_queued_put_whose_caller_was_interrupted_never_shows_up(tmp_path: Path) -> None:
    class Gone(BaseException):
        pass

    with open_writer(tmp_path) as writer:
        commits = writer._shard.commits

        def put() -> None:
            sleep = commits._sleep_or_lead

            def interrupted(put: Any) -> None:
                commits._sleep_or_lead = sleep  # type: ignore[method-assign]
                raise Gone

            commits._sleep_or_lead = interrupted  # type: ignore[method-assign]
            with pytest.raises(Gone):
                writer.put(rows([1], "stale"))

        put()
        writer.delete([1])
        writer.put(rows([2]))
        assert set(scanned(writer)) == {2}
        assert not commits._puts._waiting


@pytest.mark.parametrize("failure", [FencedError, WriterPoisonedError])
def test_all_puts_of_a_failed_entry_are_told(tmp_path: Path, failure: type[Exception]) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, max_wal_persist_retries=0)
    writer.put(rows([0]))
    if failure is FencedError:
        open_writer(tmp_path).abort()
    else:
        store.fail("put_new", WAL)
    for put in queued(writer, *[partial(writer.put, rows([k])) for k in range(1, 6)]):
        with pytest.raises(failure):
            put.result()
    with pytest.raises(failure):
        writer.put(rows([9]))
    writer.abort()
    again = open_writer(tmp_path)
    assert set(scanned(again)) == {0}
    again.close()


def test_puts_that_queue_while_the_writer_closes_are_refused_or_kept(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    puts = queued(writer, *[partial(writer.put, rows([k])) for k in range(4)])
    writer.close()
    kept = set()
    for k, put in enumerate(puts):
        try:
            put.result()
            kept.add(k)
        except ClosedError:
            pass
    again = open_writer(tmp_path)
    found = set(scanned(again)) | {row["id"] for table in flushed(tmp_path).values() for row in table}
    assert kept == found
    again.close()


def test_queued_puts_wait_for_room_and_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, max_unflushed_memtable_bytes=5000) as writer:
        held = store.hold("put", BLOOM)
        writer.put(rows(range(500)))
        fitted: list[int] = []
        fit = Fitting.fit

        def counted(fitting: Fitting, batches: list[pa.RecordBatch], *rest: Any) -> Any:
            fitted.append(batches[0].column("id")[0].as_py())
            return fit(fitting, batches, *rest)

        monkeypatch.setattr(Fitting, "fit", counted)
        held_up = [in_thread(partial(writer.put, rows([1000 + k]))) for k in range(4)]
        held.wait_reached()
        wait_queued(writer, 4)
        assert all(put.running for put in held_up)
        held.open()
        for put in held_up:
            put.result()
        assert sorted(fitted) == [1000, 1001, 1002, 1003], "rows were fitted again because there was no room"


def test_a_put_that_a_cast_makes_too_large_for_an_entry_is_published_whole(tmp_path: Path) -> None:
    ids = pa.schema([rows([1]).schema.field("id")])
    with open_writer(tmp_path, ids, max_entry_bytes=500) as writer:
        small = pa.record_batch({"id": pa.array(range(100), pa.int8())})
        assert small.get_total_buffer_size() < 500
        writer.put(small)
        writer.put(pa.record_batch({"id": [1000]}))
        assert len(flushed(tmp_path)[1]) == 100
        assert writer.scan().count_rows() == 1


def test_threads_that_come_and_go_leave_nothing_in_the_queue(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        barrier = threading.Barrier(6)

        def work(start: int) -> None:
            barrier.wait(SECONDS)
            for k in range(start, start + 30 + start // 100):
                writer.put(rows([k]))

        for running in [in_thread(partial(work, 1000 * t)) for t in range(6)]:
            running.result()
        assert not writer._shard.commits._puts._waiting
        expected = {1000 * t + k for t in range(6) for k in range(30 + 10 * t)}
        assert set(scanned(writer)) == expected
        assert writer.stats().put_count == len(expected)


def test_a_put_that_was_half_inserted_is_not_taken_for_done_by_a_bulk_write(tmp_path: Path) -> None:
    """The leader was interrupted after it numbered the put, and a bulk write took the same numbers."""
    with open_writer(tmp_path, max_entry_bytes=4000) as writer:
        [other] = queued(writer, partial(writer.put, rows([7])))
        commits = writer._shard.commits
        half = commits._puts._waiting[0]
        half.pending = commits._place(half.fit(half.batches, half.fill, half.size_bytes), ())  # and then the interrupt
        writer.put(rows(range(1000, 30_000)), txn=("app", 1))  # a generation of its own, led by nobody
        assert not commits._is_done(half)
        half.place.wake()
        other.result()
        assert 7 in scanned(writer)


def test_a_put_that_queued_while_a_large_one_was_announced_goes_on_with_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It slept until it looked by itself, a second later."""
    monkeypatch.setattr(group_commit, "LOOK_AGAIN_SECONDS", 10 * SECONDS)
    store, location = watched(tmp_path)
    with open_writer(location, max_entry_bytes=4000) as writer:
        writer.put(rows([1]))
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        held = store.hold("put_new", WAL, times=1)
        large = in_thread(partial(writer.put, rows(range(1000, 30_000))))
        held.wait_reached()
        small = in_thread(partial(writer.put, rows([7])))
        wait_queued(writer, 1)
        held.open()
        large.result()
        small.result(timeout=5)
