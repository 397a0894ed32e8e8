"""A put above max_entry_bytes is published as a generation of its own: whole, ordered, crash-safe, once."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import pytest

from lance_memwal import FencedError, InvalidInputError, UnavailableError, WalTailer, WriterPoisonedError, crash_points
from lance_memwal.errors import ClosedError
from tests.kit.interrupts import SignalInterrupter
from tests.kit.writers import (
    BLOOM,
    MANIFEST,
    UNKEYED,
    WAL,
    base_table,
    everything,
    flushed,
    in_thread,
    open_writer,
    row_entries,
    rows,
    scanned,
    watched,
)

SMALL = {"max_entry_bytes": 1000}
BIG = rows(range(100), "big")
assert BIG.nbytes > 1000


def test_the_active_memtable_is_flushed_first_and_the_put_follows_as_the_next_generation(tmp_path: Path) -> None:
    with open_writer(tmp_path, **SMALL) as writer:
        writer.put(rows([1, 1000], "small"))
        assert writer.put(BIG).batch_positions == range(1, 2)
        manifest = writer.manifest()
        assert [s.generation for s in manifest.sstables] == [1, 2]
        assert (manifest.current_generation, manifest.replay_after_wal_entry_position) == (3, 2), (
            "the cursor is at the mark"
        )
        writer.put(rows([2], "after"))
        assert scanned(writer) == {2: "after"}
        expected = dict.fromkeys(range(100), "big") | {1000: "small", 2: "after"}
        assert everything(writer, tmp_path) == expected
        assert writer.put(rows([3])).batch_positions == range(3, 4)
        writer.abort()
    with open_writer(tmp_path) as writer:
        assert everything(writer, tmp_path) == expected | {3: "a"}


def test_of_a_large_put_the_log_has_a_mark_and_no_row(tmp_path: Path) -> None:
    with open_writer(tmp_path, **SMALL) as writer:
        writer.put(BIG, txn=("job", 3))
        assert row_entries(tmp_path) == []
        assert writer.wal_stats().next_wal_entry_position == 2
        entry = WalTailer(str(tmp_path), writer.shard_id).read_entry(1)
        assert entry is not None
        assert entry.footer is not None
        assert entry.footer.bulk == writer.manifest().sstables[0]
        assert [(item.txn.app, item.num_rows) for item in entry.footer.txns] == [("job", 100)]


def test_several_batches_above_the_limit_together_are_one_generation(tmp_path: Path) -> None:
    with open_writer(tmp_path, **SMALL) as writer:
        assert writer.put([rows(range(k, k + 10), "x") for k in range(0, 100, 10)]).batch_positions == range(10)
        assert [len(found) for found in flushed(tmp_path).values()] == [100]


def test_duplicate_keys_in_a_large_put_resolve_to_the_last(tmp_path: Path) -> None:
    with open_writer(tmp_path, **SMALL) as writer:
        writer.put([BIG, rows(range(50), "newer")])
        assert everything(writer, tmp_path) == {k: "newer" if k < 50 else "big" for k in range(100)}


def test_deleting_many_keys_may_be_a_large_put_too(tmp_path: Path) -> None:
    with open_writer(tmp_path, **SMALL) as writer:
        writer.put(BIG)
        writer.delete(list(range(10, 1000)))
        assert everything(writer, tmp_path) == dict.fromkeys(range(10), "big")
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
        assert writer.lsm_scan().count_rows() == 102
        shard = writer.shard_id
        writer.abort()
    with table.shard_writer(shard, fsync=False) as writer:
        assert writer.lsm_scan().count_rows() == 102


def test_a_crash_before_the_commit_leaves_nothing_of_a_large_put(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, **SMALL)
    writer.put(rows([1]))
    store.fail("put", BLOOM)
    with pytest.raises(UnavailableError):
        writer.put(BIG)
    writer.abort()
    with open_writer(tmp_path) as writer:
        assert everything(writer, tmp_path) == {1: "a"}


def test_a_large_put_that_failed_before_its_commit_can_be_tried_again(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, **SMALL) as writer:
        store.fail("put", BLOOM, 1)
        with pytest.raises(UnavailableError):
            writer.put(BIG)
        writer.put(rows([1000]))
        writer.put(BIG)
        assert len(everything(writer, tmp_path)) == 101


@pytest.mark.parametrize("landed", [True, False])
def test_an_unknown_outcome_of_the_commit_poisons_and_nothing_acknowledged_is_lost(
    tmp_path: Path, landed: bool
) -> None:
    """If it landed and the writer went on, its next flush would take that generation number for its own and be skipped."""
    store, location = watched(tmp_path)
    writer = open_writer(location, **SMALL)
    writer.put(rows([1]))
    writer.force_seal_active()
    writer.wait_for_flush_drain()
    store.fail("put_new", MANIFEST, after=landed)
    with pytest.raises(WriterPoisonedError) as caught:
        writer.put(BIG)
    assert isinstance(caught.value.__cause__, UnavailableError)
    with pytest.raises(WriterPoisonedError):
        writer.put(rows([2]))
    with pytest.raises(WriterPoisonedError):
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
    with pytest.raises(WriterPoisonedError):
        writer.put(rows([2]))
    with pytest.raises(WriterPoisonedError):
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
        except WriterPoisonedError:
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
        with pytest.raises(FencedError):
            first.put(BIG)
        with pytest.raises(FencedError):
            first.put(rows([2]))
        assert everything(second, tmp_path) == {1: "a"}
    first.abort()


def test_a_transaction_of_a_large_put_is_written_once_over_reopens_and_flushes(tmp_path: Path) -> None:
    with open_writer(tmp_path, **SMALL) as writer:
        assert not writer.put(BIG, txn=("app", 5)).skipped
        assert writer.put(rows(range(100), "again"), txn=("app", 5)).skipped
        with pytest.raises(InvalidInputError, match="older"):
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


def test_a_large_put_counts_as_a_put_and_a_flush(tmp_path: Path) -> None:
    with open_writer(tmp_path, **SMALL) as writer:
        writer.put(BIG)
        stats = writer.stats()
        assert (stats.put_count, stats.memtable_flush_count, stats.memtable_flush_rows) == (1, 1, 100)
        assert stats.wal_flush_count == 0


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
    assert len(bulk.result().batch_positions) == 1
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


def test_wal_only_mode_refuses_what_fits_no_entry(tmp_path: Path) -> None:
    with open_writer(tmp_path, enable_memtable=False, **SMALL) as writer:
        for call in (writer.put, writer.put_nowait):
            with pytest.raises(InvalidInputError, match="split it"):
                call(BIG)
        writer.put(rows([1]))
        assert [e.num_rows for e in row_entries(tmp_path)] == [1]


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
