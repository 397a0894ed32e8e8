"""Group commit: concurrent and queued puts share entries and batches, the callers lead, `commit_linger_ms` saves requests."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import ClosedError, FencedError, InvalidInputError, ShardWriter, WriterPoisonedError, crash_points
from lance_memwal.write import group_commit
from lance_memwal.write.fitting import Fitting
from lance_memwal.write.queue import Pending
from lance_memwal.write.request import Write, begin_on
from tests.kit.writers import (
    BLOOM,
    KEYED,
    SECONDS,
    WAL,
    flushed,
    in_thread,
    in_threads,
    memwal_threads,
    open_writer,
    positions_of,
    put_undrained,
    row_entries,
    rows,
    scanned,
    wait_for,
    watched,
)


def test_threads_share_entries_and_leave_nothing_in_the_queue(tmp_path: Path) -> None:
    slow = threading.Event()  # never set: waiting for it is a slow store
    crash_points.install(lambda point: slow.wait(0.002) if point == "wal.before_put" else None)
    try:
        with open_writer(tmp_path) as writer:

            def work(start: int, count: int) -> None:
                for k in range(start, start + count):
                    writer.put(rows([k]))

            for thread in [in_thread(partial(work, 1000 * t, 20 + t)) for t in range(8)]:
                thread.result()
            expected = {1000 * t + k for t in range(8) for k in range(20 + t)}
            stats = writer.stats()
            assert stats.put_count == len(expected)
            assert stats.wal_flush_count == stats.wal_io_count == len(row_entries(tmp_path))
            assert stats.wal_flush_count < len(expected), "threads do not share entries"
            assert set(scanned(writer)) == expected
            assert not writer._shard.commits._puts._waiting
    finally:
        crash_points.install(None)


def test_a_single_caller_hands_over_to_nobody(tmp_path: Path) -> None:
    seen: set[str] = set()
    with open_writer(tmp_path) as writer:
        crash_points.install(
            lambda point: seen.add(threading.current_thread().name) if point == "wal.before_put" else None
        )
        try:
            for k in range(20):
                writer.put(rows([k]))
        finally:
            crash_points.install(None)
    assert seen == {threading.current_thread().name}


def test_one_entry_never_spans_two_generations(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, max_memtable_batches=2) as writer:
        held = store.hold("put_new", WAL, 1)
        acks = [writer.put_nowait(rows([k])) for k in range(6)]
        held.wait_reached()
        held.open()
        for ack in acks:
            ack.wait()
        assert [e.generation for e in row_entries(tmp_path)] == sorted(e.generation or 0 for e in row_entries(tmp_path))
        assert {
            (e.generation, k) for e in row_entries(tmp_path) for b in e.batches for k in b.column("id").to_pylist()
        } == {(1, 0), (1, 1), (2, 2), (2, 3), (3, 4), (3, 5)}


def test_a_group_never_passes_max_entry_bytes(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    size = 2 * rows(range(100)).get_total_buffer_size()  # with room for what Arrow adds
    with open_writer(location, max_entry_bytes=2 * size) as writer:
        held = store.hold("put_new", WAL, 1)
        acks = [writer.put_nowait(rows(range(100 * k, 100 * k + 100))) for k in range(10)]
        held.wait_reached()
        held.open()
        for ack in acks:
            ack.wait()
        assert max(len(e.batches) for e in row_entries(tmp_path)) == 3
        assert sum(len(e.batches) for e in row_entries(tmp_path)) == 10


def test_a_thousand_pending_puts_become_few_entries(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        held = store.hold("put_new", WAL, 1)
        acks = [writer.put_nowait(rows([k])) for k in range(1000)]
        held.wait_reached()
        assert not any(ack.durable for ack in acks)
        held.open()
        acks[-1].wait()
        assert all(ack.durable for ack in acks)
        assert len(row_entries(tmp_path)) == 2
        assert len(scanned(writer)) == 1000


@pytest.mark.parametrize("threads", [1, 4])
def test_every_put_is_in_exactly_one_entry(tmp_path: Path, threads: int) -> None:
    with open_writer(tmp_path, max_memtable_batches=7) as writer:

        def work(start: int) -> None:
            for k in range(start, start + 50):
                writer.put([rows([2 * k]), rows([2 * k + 1])])

        in_threads(lambda t: work(1000 * t), range(threads))
        writer.wait_for_flush_drain()
        found = [k for e in row_entries(tmp_path) for b in e.batches for k in b.column("id").to_pylist()]
        assert sorted(found) == sorted(
            2 * k + i for t in range(threads) for k in range(1000 * t, 1000 * t + 50) for i in (0, 1)
        )
    assert not memwal_threads()


def test_the_end_of_the_queue_can_be_read_while_a_leader_empties_it(tmp_path: Path) -> None:
    """Close, a large put and a change of columns read it without a lock."""

    class Settled(deque[Pending]):
        """A queue whose last write is settled right after somebody saw that there is one."""

        def __bool__(self) -> bool:
            found = len(self) > 0
            self.clear()
            return found

    with open_writer(tmp_path, durable_write=False, max_wal_flush_interval_ms=None) as writer:
        commits = writer._shard.commits
        writer.put(rows([1]))
        kept = commits.pending
        commits.pending = Settled(kept)
        assert commits.buffered == 1
        commits.pending = Settled()
        assert commits.buffered == commits.durable
        commits.pending = kept


def test_transactions_that_arrive_together_share_one_entry(tmp_path: Path) -> None:
    """Each with its own rows, beside a put that is none; a repeat among them is skipped."""
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        held = store.hold("put_new", WAL, 1)
        leader = in_thread(lambda: writer.put(rows([0])))
        held.wait_reached()
        waiting = writer._shard.commits._puts._waiting
        puts = []
        for i, (keys, txn) in enumerate(
            [([1, 2], ("a", 1)), ([3], None), ([4, 5, 6], ("b", 7)), ([7], ("a", 2)), ([8], ("b", 7))], 1
        ):
            puts.append(in_thread(lambda keys=keys, txn=txn: writer.put(rows(keys), txn=txn)))
            wait_for(lambda i=i: len(waiting) >= i)
        held.open()
        leader.result()
        assert [put.result().skipped for put in puts] == [False, False, False, False, True]
        first, second = row_entries(tmp_path)
        assert first.footer.txns == ()
        found = [(t.txn.app, t.txn.version, t.first_row, t.num_rows) for t in second.footer.txns]
        assert found == [("a", 1, 0, 2), ("b", 7, 3, 3), ("a", 2, 6, 1)]
        assert set(scanned(writer)) == set(range(8))
    with open_writer(tmp_path) as writer:
        assert {app: seen.version for app, seen in writer.transactions().items()} == {"a": 2, "b": 7}
        assert writer.put(rows([9]), txn=("b", 7)).skipped


def test_transactions_of_a_crashed_writer_are_all_in_the_map_of_the_next(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    slow = threading.Event()
    crash_points.install(lambda point: slow.wait(0.02) if point == "wal.before_put" else None)
    try:
        puts = [in_thread(lambda k=k: writer.put(rows([k]), txn=(f"app-{k}", k))) for k in range(12)]
        assert not any(put.result().skipped for put in puts)
    finally:
        crash_points.install(None)
    assert len(row_entries(tmp_path)) < 12
    writer.abort()
    with open_writer(tmp_path) as after:
        assert all(after.put(rows([k], "again"), txn=(f"app-{k}", k)).skipped for k in range(12))
        assert scanned(after) == dict.fromkeys(range(12), "a")


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
        assert len(positions_of(good.result())) == len(positions_of(last.result())) == 1
        with pytest.raises(InvalidInputError, match="nonsense"):
            bad.result()
        assert set(scanned(writer)) == {1, 3, 4}
        assert writer.stats().put_count == 3


def test_puts_are_taken_in_the_order_of_the_queue(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        puts = queued(writer, *[partial(writer.put, rows([1], v)) for v in "abcdef"])
        writer.put(rows([2]))
        positions = [positions_of(put.result()) for put in puts]
        assert positions == [range(k, k + 1) for k in range(6)]
        assert scanned(writer)[1] == "f"
        assert len(row_entries(tmp_path)) <= 2, "one entry holds what one leader takes"


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
        assert writer.memtable_scanner().count_rows() == 1


def test_put_queued_behind_a_bulk_write_continues_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


LONG_MS = 10_000


@pytest.fixture
def in_time() -> Iterator[None]:
    """The whole test takes less time than one who lingers to the end."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < LONG_MS / 1000


def waiting_puts(writer: mw.ShardWriter) -> int:
    commits = writer._shard.commits
    return len(commits._puts._waiting) + len(commits.pending)


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("large", [False, True], ids=["queued puts", "puts of their own threads"])
def test_puts_of_several_threads_share_an_entry(tmp_path: Path, large: bool) -> None:
    value = "x" * (100_000 if large else 1)
    with open_writer(tmp_path, commit_linger_ms=LONG_MS) as writer:
        puts = [in_thread(lambda k=k: writer.put(rows([k, 10 + k, 20 + k], value))) for k in range(4)]
        wait_for(lambda: waiting_puts(writer) == 4)
        put_undrained(writer, rows([99])).wait()
        for put in puts:
            assert put.result().written == 3
        assert len(row_entries(tmp_path)) == 1
        assert len(scanned(writer)) == 13


def test_a_put_alone_waits_and_is_durable_when_it_returns(tmp_path: Path) -> None:
    with open_writer(tmp_path, commit_linger_ms=60) as writer:
        started = time.monotonic()
        writer.put(rows([1]))
        assert time.monotonic() - started >= 0.06
        assert len(row_entries(tmp_path)) == 1


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("end", ["flush", "ack", "close", "abort"])
def test_wait_for_companions_ends_with_a_call_that_cannot_wait(tmp_path: Path, end: str) -> None:
    writer = open_writer(tmp_path, commit_linger_ms=LONG_MS)
    put = in_thread(lambda: writer.put(rows([1])))
    wait_for(lambda: writer._shard.commits._is_led)
    if end in ("close", "abort"):
        getattr(writer, end)()
        with pytest.raises(mw.ClosedError):
            put.result()
        assert row_entries(tmp_path) == []
        return
    ack = put_undrained(writer, rows([2]))
    if end == "flush":
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
    ack.wait()
    assert put.result().written == 1
    writer.close()


@pytest.mark.usefixtures("in_time")
def test_a_full_buffer_ends_it(tmp_path: Path) -> None:
    with open_writer(tmp_path, commit_linger_ms=LONG_MS, max_wal_buffer_size=1_000) as writer:
        writer.put(rows([1], "x" * 2_000))


def test_puts_that_nobody_waits_for_are_drained_together(tmp_path: Path) -> None:
    with open_writer(tmp_path, commit_linger_ms=500) as writer:
        acks = [writer.put_nowait(rows([k])) for k in range(20)]
        wait_for(lambda: all(ack.durable for ack in acks))
        assert len(row_entries(tmp_path)) == 1


def test_it_is_a_setting_of_the_table_with_a_limit(tmp_path: Path) -> None:
    config = mw.WriterConfig(commit_linger_ms=25)
    assert mw.WriterConfig.from_defaults(config.to_defaults()) == config
    assert mw.WriterConfig().commit_linger_ms == 0
    for wrong in (-1, 10_001, True, 1.5):
        with pytest.raises(mw.InvalidInputError, match="commit_linger_ms"):
            mw.WriterConfig(commit_linger_ms=wrong)


def shared(writer: ShardWriter, *writes: Any) -> list[Any]:
    """Writes of one entry: rows to put, or keys to delete; their results."""
    kinds: dict[bool, Any] = {True: "delete", False: "put"}
    acks = [begin_on(writer, Write(kinds[isinstance(write, list)], write), drain=False) for write in writes]
    acks[-1].wait()
    return [ack.wait() for ack in acks]


def logged(root: Path) -> list[list[tuple[int, str | None, bool]]]:
    """Per batch of the only entry with rows: what it holds."""
    (entry,) = row_entries(root)
    return [
        list(zip(*(b.column(name).to_pylist() for name in ("id", "v", "_tombstone")), strict=True))
        for b in entry.batches
    ]


def test_small_puts_of_one_entry_are_one_batch_and_each_has_its_position(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        done = shared(writer, *(rows([k, k + 10], f"put {k}") for k in range(4)))
        assert [positions_of(result) for result in done] == [range(k, k + 1) for k in range(4)]
        assert [result.written for result in done] == [2] * 4
        assert logged(tmp_path) == [[(i, f"put {k}", False) for k in range(4) for i in (k, k + 10)]]
        assert writer.memtable_stats().batch_count == 4
        writer.abort()
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {i: f"put {k}" for k in range(4) for i in (k, k + 10)}


def test_deletes_between_puts_keep_their_place(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        shared(writer, rows([1, 2], "a"), [1], rows([1], "b"), [2, 3])
        expected = [
            (1, "a", False),
            (2, "a", False),
            (1, None, True),
            (1, "b", False),
            (2, None, True),
            (3, None, True),
        ]
        assert logged(tmp_path) == [expected]
        writer.abort()
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {1: "b"}


def test_a_large_put_between_small_ones_keeps_its_place(tmp_path: Path) -> None:
    large = rows([1, *range(100, 4_000)], "x" * 64)
    assert large.get_total_buffer_size() > 64 * 1024
    with open_writer(tmp_path) as writer:
        shared(writer, rows([1, 2], "first"), rows([2], "second"), large, rows([3], "third"), rows([1], "last"))
        assert [len(batch) for batch in logged(tmp_path)] == [3, 3_901, 2]
        writer.abort()
    with open_writer(tmp_path) as writer:
        found = scanned(writer)
        assert (found[1], found[2], found[3], found[100]) == ("last", "second", "third", "x" * 64)


def test_puts_that_say_different_things_of_nulls_share_an_entry_as_they_are(tmp_path: Path) -> None:
    fields = [KEYED.field("id").with_nullable(True), KEYED.field("v").with_nullable(False)]
    other = pa.RecordBatch.from_arrays(rows([2], "b").columns, schema=pa.schema(fields))
    with open_writer(tmp_path) as writer:
        shared(writer, rows([1], "a"), other, rows([3], "c"))
        assert [row for batch in logged(tmp_path) for row in batch] == [
            (1, "a", False),
            (2, "b", False),
            (3, "c", False),
        ]
        writer.abort()
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {1: "a", 2: "b", 3: "c"}


def test_batches_of_one_put_stay_apart(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        given = pa.Table.from_batches([rows([1, 2], "a"), rows([3], "b")])
        assert positions_of(writer.put(given)) == range(2)
        assert [len(batch) for batch in logged(tmp_path)] == [2, 1]


@pytest.mark.parametrize("limit", [60_000, 200_000])
def test_an_entry_of_many_small_puts_stays_within_its_limit(tmp_path: Path, limit: int) -> None:
    with open_writer(tmp_path, max_entry_bytes=limit, durable_write=False) as writer:
        for k in range(400):
            writer.put(rows([k], "x" * 500))
        writer.put_nowait(rows([1_000])).wait()
        found = row_entries(tmp_path)
        assert len(found) > 1
        assert max(entry.size_bytes for entry in found) <= limit
        assert sum(entry.num_rows for entry in found) == 401


def test_columns_that_share_a_buffer_are_counted_each(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(60)]
    schema = pa.schema([KEYED.field("id"), *((name, pa.string()) for name in names)])
    text = pa.array(["x" * 2_000])
    with open_writer(tmp_path, schema, max_entry_bytes=1_000_000, durable_write=False) as writer:
        for k in range(30):
            writer.put(pa.RecordBatch.from_arrays([pa.array([k]), *[text] * 60], schema=schema))
        ids = pa.RecordBatch.from_arrays([pa.array([99]), *[text] * 60], schema=schema)
        writer.put_nowait(ids).wait()
        assert max(entry.size_bytes for entry in row_entries(tmp_path)) <= 1_000_000 + 20_000
