"""Group commit: concurrent durable puts share entries, and the callers themselves lead."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path

import pytest

from lance_memwal import crash_points
from lance_memwal.write.queue import Pending
from tests.kit.writers import (
    WAL,
    in_thread,
    memwal_threads,
    open_writer,
    row_entries,
    rows,
    scanned,
    wait_for,
    watched,
)


def test_durable_puts_that_arrive_together_share_one_entry(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        held = store.hold("put_new", WAL, 1)
        leader = in_thread(lambda: writer.put(rows([0])))
        held.wait_reached()
        others = [in_thread(lambda k=k: writer.put(rows([k]))) for k in range(1, 8)]
        waiting = writer._shard.commits._puts._waiting
        wait_for(lambda: len(waiting) >= 7)
        held.open()
        for put in [leader, *others]:
            put.result()
        assert [sum(b.num_rows for b in e.batches) for e in row_entries(tmp_path)] == [1, 7]
        assert set(scanned(writer)) == set(range(8))


def test_eight_threads_write_fewer_entries_than_puts(tmp_path: Path) -> None:
    slow = threading.Event()  # never set: waiting for it is a slow store
    crash_points.install(lambda point: slow.wait(0.002) if point == "wal.before_put" else None)
    try:
        with open_writer(tmp_path) as writer:

            def work(start: int) -> None:
                for k in range(start, start + 25):
                    writer.put(rows([k]))

            threads = [in_thread(lambda t=t: work(100 * t)) for t in range(8)]
            for thread in threads:
                thread.result()
            stats = writer.stats()
            assert stats.put_count == 200
            assert stats.wal_flush_count == stats.wal_io_count == len(row_entries(tmp_path))
            assert stats.wal_flush_count < 200, "threads do not share entries"
            assert set(scanned(writer)) == {100 * t + k for t in range(8) for k in range(25)}
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
        } == {
            (1, 0),
            (1, 1),
            (2, 2),
            (2, 3),
            (3, 4),
            (3, 5),
        }


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

        running = [in_thread(lambda t=t: work(1000 * t)) for t in range(threads)]
        for thread in running:
            thread.result()
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
