"""Puts that wait: for buffer space, with a deadline; and what readers see while writes, flushes and commits run."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import ShardWriter
from lance_memwal.clock import SystemClock
from lance_memwal.process.deadline import PATIENCE_SECONDS
from tests.kit.writers import (
    BLOOM,
    MANIFEST,
    SECONDS,
    SHARD,
    WAL,
    Running,
    base_table,
    contents,
    everything,
    in_thread,
    in_threads,
    open_writer,
    rows,
    scanned,
    wait_for,
    watched,
)

LIMIT = {"max_unflushed_memtable_bytes": 5000}


def wait_for_waits(writer: ShardWriter, count: int) -> None:
    """Return once `count` puts have begun to wait; nothing is notified of that, so look."""
    wait_for(lambda: writer.backpressure_stats().total_count >= count)


def test_a_put_over_budget_waits_for_a_flush_and_is_counted_once(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, **LIMIT) as writer:
        held = store.hold("put", BLOOM)
        writer.put(rows(range(500)))
        writer.force_seal_active()
        held.wait_reached()
        waiting = [in_thread(lambda k=k: writer.put(rows([1000 + k]))) for k in range(3)]
        wait_for_waits(writer, 3)
        assert all(put.running for put in waiting)
        assert 1000 not in scanned(writer)
        held.open()
        for put in waiting:
            put.result()
        stats = writer.backpressure_stats()
        assert stats.total_count == 3
        assert stats.total_wait_ms > 0
        assert len(everything(writer, tmp_path)) == 503


def test_puts_below_the_limit_do_not_wait(tmp_path: Path) -> None:
    with open_writer(tmp_path, max_unflushed_memtable_bytes=1_000_000) as writer:
        for k in range(20):
            writer.put(rows([k]))
        assert writer.backpressure_stats().total_count == 0
        assert writer.backpressure_stats().total_wait_ms == 0


def test_put_over_budget_freezes_the_active_memtable_and_is_taken_whole(tmp_path: Path) -> None:
    with open_writer(tmp_path, max_unflushed_memtable_bytes=1) as writer:
        writer.put(rows(range(100)))  # taken whole, now the limit is passed
        assert writer.memtable_stats().frozen_count == 0
        for k in range(1, 5):
            writer.put(rows(range(100 * k, 100 * k + 100)))
            assert set(scanned(writer)) == set(range(100 * k, 100 * k + 100))
        assert len(everything(writer, tmp_path)) == 500
        assert writer.backpressure_stats().total_count == 4


def test_a_put_that_waits_for_room_again_and_again_is_counted_once(tmp_path: Path) -> None:
    with open_writer(tmp_path, max_unflushed_memtable_bytes=1) as writer:
        in_threads(lambda n: [writer.put(rows([10 * n + k])) for k in range(5)], range(8))
        assert writer.stats().put_count == 40
        assert 0 < writer.backpressure_stats().total_count <= 39, "the first one finds room"


def test_a_waiting_put_warns_at_the_interval(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, backpressure_log_interval_ms=10, **LIMIT) as writer:
        held = store.hold("put", BLOOM)
        writer.put(rows(range(500)))
        with caplog.at_level(logging.WARNING, logger="lance_memwal.write.group_commit"):
            put = in_thread(lambda: writer.put(rows([1000])))
            held.wait_reached()
            wait_for(lambda: len(caplog.records) >= 3)
            held.open()
            put.result()
        assert len(caplog.records) >= 3
        assert all("put waits for room" in record.getMessage() for record in caplog.records)
        assert "limit_bytes=5000" in caplog.records[0].getMessage()


def test_indexes_count_as_held_bytes(tmp_path: Path) -> None:
    """Lesson 37: the meter ignored index memory."""
    with open_writer(tmp_path) as writer:
        writer.put(rows(range(10_000)))
        before = writer._shard.commits.held_bytes
        assert writer.memtable_stats().index_bytes == 0  # made when a reader first needs it
        assert len(scanned(writer)) == 10_000
        stats = writer.memtable_stats()
        assert stats.index_bytes >= 10_000 * 100
        assert writer._shard.commits.held_bytes == before + stats.index_bytes
        assert stats.estimated_size >= stats.index_bytes
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        assert writer._shard.commits.held_bytes == 0


def test_a_reader_that_indexes_a_released_memtable_leaves_no_bytes_behind(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows(range(1000)))
        refs = writer.in_memory_memtable_refs()
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        assert refs.active.newest_mask().all()
        assert refs.active.memtable.index_bytes > 0
        assert writer._shard.commits.held_bytes == 0


def test_index_memory_grows_with_the_rows_not_with_the_capacity(tmp_path: Path) -> None:
    """Lesson 37: an index was sized for its capacity with the first row."""
    with open_writer(tmp_path, max_memtable_rows=2_000_000) as writer:
        writer.put(rows([1]))
        assert len(scanned(writer)) == 1
        assert writer.memtable_stats().index_bytes < 50_000


def test_the_budget_of_wal_only_mode_is_its_queue(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    settings = {"enable_memtable": False, "durable_write": False, "max_wal_flush_interval_ms": None}
    with open_writer(location, max_unflushed_memtable_bytes=3000, max_wal_buffer_size=0, **settings) as writer:
        held = store.hold("put_new", WAL)
        while writer._shard.commits.held_bytes < 3000:
            writer.put(rows(range(10)))
        assert store.count("put_new", WAL) == 0
        waiting = in_thread(lambda: writer.put(rows([1])))
        held.wait_reached()  # the waiting put asks for a drain
        assert waiting.running
        assert writer.backpressure_stats().total_count == 1
        held.open()
        waiting.result()
        assert writer._shard.commits.held_bytes < 3000


def test_a_put_that_fails_while_it_waits_has_its_wait_counted(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, **LIMIT)
    held = store.hold("put", BLOOM)
    writer.put(rows(range(500)))
    put = in_thread(lambda: writer.put(rows([1000])))
    held.wait_reached()
    aborting = in_thread(writer.abort)
    with pytest.raises(RuntimeError):
        put.result()
    held.open()
    aborting.result()
    assert writer.backpressure_stats().total_count == 1
    assert writer.backpressure_stats().total_wait_ms > 0


def test_memory_is_bounded_while_many_threads_write_faster_than_flushes(tmp_path: Path) -> None:
    with open_writer(tmp_path, max_unflushed_memtable_bytes=60_000, max_memtable_rows=200) as writer:
        largest = 0

        def work(thread: int) -> None:
            nonlocal largest
            for k in range(40):
                writer.put(rows(range(1000 * thread + 10 * k, 1000 * thread + 10 * k + 10)))
                largest = max(largest, writer._shard.commits.held_bytes)

        in_threads(work, range(4))
        assert largest < 60_000 + 10_000  # at most one put of each thread above the limit
        assert len(everything(writer, tmp_path)) == 1600


class HurryingClock(SystemClock):
    """A clock that skips time, or runs a thousand times as fast, once a test says so."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._skipped = 0.0

    def monotonic(self) -> float:
        now = super().monotonic()
        return now + self._skipped + (0 if self._since is None else 1000 * (now - self._since))

    def skip(self, seconds: float) -> None:
        self._skipped += seconds

    def hurry(self) -> None:
        self._since = super().monotonic()


def gives_up(clock: HurryingClock, call: Running, match: str) -> None:
    """Let all patience pass: `call`, which waits, raises."""
    assert call.running
    clock.hurry()
    with pytest.raises(mw.UnavailableError, match=match):
        call.result()


def test_a_close_whose_flush_hangs_gives_up_and_the_next_open_has_the_rows(tmp_path: Path) -> None:
    base_table(tmp_path / "t")
    store, location = watched(tmp_path / "t")
    clock = HurryingClock()
    writer = mw.ShardWriter.open(location, shard_id=SHARD, fsync=False, clock=clock)
    writer.put(rows([1, 2]))
    held = store.hold("put_new", MANIFEST)
    closing = in_thread(writer.close)
    held.wait_reached()
    second = in_thread(writer.close)
    gives_up(clock, closing, "1 memtables .* were not flushed.*the next open replays them")
    with pytest.raises(mw.UnavailableError, match="another thread was still closing"):
        second.result()
    assert writer.closed
    writer.close()
    held.open()
    assert contents(mw.open_table(str(tmp_path / "t")).scan().to_table()) == {1: "a", 2: "a"}


def test_a_change_of_columns_whose_flush_hangs_gives_up_and_the_writer_goes_on(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t")
    store, location = watched(tmp_path / "t")
    clock = HurryingClock()
    with mw.ShardWriter.open(location, shard_id=SHARD, fsync=False, clock=clock) as writer:
        writer.put(rows([1]))
        lance.dataset(table.uri).add_columns(pa.field("extra", pa.int64()))
        held = store.hold("put_new", MANIFEST)
        moving = in_thread(writer.evolve_schema)
        held.wait_reached()
        gives_up(clock, moving, "1 memtables .* were not flushed; the writer goes on with its old columns")
        assert "extra" not in writer.schema.names
        held.open()
        writer.put(rows([2]), missing="null")
        writer.evolve_schema()
        assert "extra" in writer.schema.names
        assert contents(writer.scan(columns=["id", "v"]).to_table()) == {1: "a", 2: "a"}


def test_a_change_of_columns_gives_up_on_a_write_that_hangs(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t")
    store, location = watched(tmp_path / "t")
    clock = HurryingClock()
    with mw.ShardWriter.open(location, shard_id=SHARD, fsync=False, clock=clock) as writer:
        lance.dataset(table.uri).add_columns(pa.field("extra", pa.int64()))
        held = store.hold("put_new", WAL)
        put = in_thread(lambda: writer.put(rows([1]), missing="null"))
        held.wait_reached()
        gives_up(clock, in_thread(writer.evolve_schema), "a write that began before has not ended")
        held.open()
        put.result()
        writer.put(rows([2]), missing="null")
        writer.evolve_schema()
        assert writer.get(2) == {"id": 2, "v": "a", "extra": None}


@pytest.mark.parametrize("durable_write", [True, False])
def test_a_put_that_waits_for_room_gives_up_on_a_flush_that_hangs(tmp_path: Path, durable_write: bool) -> None:
    store, location = watched(tmp_path)
    clock = HurryingClock()
    with open_writer(location, clock=clock, max_unflushed_memtable_bytes=1000, durable_write=durable_write) as writer:
        writer.put(rows(range(100)))
        held = store.hold("put_new", MANIFEST)
        waiting = in_thread(lambda: writer.put(rows([1000])))
        held.wait_reached()  # the waiting put froze the memtable
        gives_up(clock, waiting, "nothing of shard .* was flushed.*nothing of it was written, retry")
        held.open()
        writer.put(rows([2000]))
        assert {1000, 2000} & set(everything(writer, tmp_path)) == {2000}


def test_a_put_waits_for_room_for_as_long_as_flushes_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, location = watched(tmp_path)
    clock = HurryingClock()
    limits = {"max_unflushed_memtable_bytes": 20_000, "backpressure_log_interval_ms": 10}
    with open_writer(location, clock=clock, **limits) as writer:
        flushes = [store.hold("put_new", MANIFEST)]
        for ids in (range(10), range(10, 5000)):  # each finds room, and the second fills more than there is
            writer.put(rows(ids))
            writer.force_seal_active()
        waiting = in_thread(lambda: writer.put(rows([9000])))
        for _ in range(2):
            flushes[-1].wait_reached()
            clock.skip(PATIENCE_SECONDS * 2 / 3)
            looks = len(caplog.records) + 2
            wait_for(lambda looks=looks: len(caplog.records) > looks or not waiting.running)
            flushes.append(store.hold("put_new", MANIFEST))
            flushes[-2].open()
        flushes[-1].open()
        waiting.result()
        assert 9000 in everything(writer, tmp_path)


LARGE = {"max_entry_bytes": 4000}


def test_a_large_put_gives_up_on_a_flush_that_hangs_and_lets_others_in(tmp_path: Path) -> None:
    """It waited for ever for what came before it, and kept all other puts out."""
    store, location = watched(tmp_path)
    clock = HurryingClock()
    with open_writer(location, clock=clock, **LARGE) as writer:
        writer.put(rows([1]))
        held = store.hold("put_new", MANIFEST)
        large = in_thread(lambda: writer.put(rows(range(100, 1000))))
        held.wait_reached()
        gives_up(clock, large, "1 memtables .* were not flushed; nothing of the put was written")
        writer.put(rows([2]))
        held.open()
        writer.put(rows(range(100, 1000)))
        assert len(everything(writer, tmp_path)) == 902


def test_a_large_put_gives_up_on_another_one_that_hangs(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    clock = HurryingClock()
    with open_writer(location, clock=clock, **LARGE) as writer:
        held = store.hold("put", BLOOM)
        first = in_thread(lambda: writer.put(rows(range(100, 1000))))
        held.wait_reached()
        gives_up(
            clock,
            in_thread(lambda: writer.put(rows(range(2000, 3000)))),
            "a bulk write or a change of columns has not ended",
        )
        held.open()
        first.result()
        writer.put(rows(range(2000, 3000)))
        assert len(everything(writer, tmp_path)) == 1900


def test_in_durable_mode_a_row_is_invisible_until_its_entry_is_on_storage(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows([1], "old"))
        held = store.hold("put_new", WAL)
        put = in_thread(lambda: writer.put(rows([1, 2], "new")))
        held.wait_reached()
        assert scanned(writer) == {1: "old"}, "a dirty read: a crash could take this row back"
        assert writer.active_memtable_ref().num_rows == 1
        held.open()
        put.result()
        assert scanned(writer) == {1: "new", 2: "new"}


def test_in_durable_mode_a_frozen_memtable_shows_only_what_is_on_storage(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, max_memtable_rows=4) as writer:
        writer.put(rows([1, 2]))
        held = store.hold("put_new", WAL)
        put = in_thread(lambda: writer.put(rows([3, 4])))  # fills and freezes the memtable before it is durable
        held.wait_reached()
        assert writer.memtable_stats().frozen_count == 1
        assert scanned(writer) == {1: "a", 2: "a"}
        held.open()
        put.result()
        assert everything(writer, tmp_path) == {1: "a", 2: "a", 3: "a", 4: "a"}


def test_a_capture_never_changes(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1], "a"))
        scanner, refs = writer.memtable_scanner(), writer.in_memory_memtable_refs()
        writer.put(rows([1, 2], "b"))
        writer.delete([1])
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
        assert scanner.to_table().to_pylist() == [{"id": 1, "v": "a"}]
        assert refs.active.live().to_pylist() == [{"id": 1, "v": "a"}]
        assert refs.active.newest().num_rows == 1


@pytest.mark.parametrize("step", ["bloom", "commit"])
def test_frozen_rows_stay_readable_until_the_manifest_commit_has_succeeded(tmp_path: Path, step: str) -> None:
    """Lesson 13: rows vanished between freeze and commit."""
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        writer.put(rows([1, 2], "a"))
        held = store.hold("put", BLOOM) if step == "bloom" else store.hold("put_new", MANIFEST)
        writer.force_seal_active()
        held.wait_reached()
        assert scanned(writer) == {1: "a", 2: "a"}
        writer.put(rows([2], "b"))
        refs = writer.in_memory_memtable_refs()
        assert [ref.generation for ref in refs.ascending] == [1, 2]
        assert [ref.generation for ref in refs.frozen] == [1]
        assert scanned(writer) == {1: "a", 2: "b"}
        held.open()
        writer.wait_for_flush_drain(SECONDS)
        assert scanned(writer) == {2: "b"}  # generation 1 is an SSTable now
        assert everything(writer, tmp_path) == {1: "a", 2: "b"}


def test_a_key_written_sealed_and_written_again_resolves_to_the_newest_value(tmp_path: Path) -> None:
    """Lesson 24: the newest row must win between in-memory generations too."""
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        held = store.hold("put", BLOOM)
        for version in range(4):
            writer.put(rows([1, 10 + version], str(version)))
            writer.force_seal_active()
        writer.delete([11])
        writer.put(rows([2], "x"))
        assert len(writer.in_memory_memtable_refs().frozen) == 4
        assert scanned(writer) == {1: "3", 10: "0", 12: "2", 13: "3", 2: "x"}
        held.open()


def test_active_and_frozen_are_captured_together(tmp_path: Path) -> None:
    """Lesson 14: two captures with different watermarks drop a row that moves in between."""
    stop = threading.Event()
    with open_writer(tmp_path, max_memtable_batches=2) as writer:
        writer.put(rows([0], "0"))

        def read() -> int:
            reads, last = 0, 0
            while not stop.is_set():
                refs = writer.in_memory_memtable_refs()
                generations = [ref.generation for ref in refs.ascending]
                assert generations == list(range(generations[0], generations[-1] + 1))
                rows_seen = [row for ref in refs.ascending for row in ref.table().to_pylist()]
                if rows_seen:
                    newest = int(rows_seen[-1]["v"])
                    assert newest >= last, "a reader went back in time"
                    last = newest
                    versions = [int(row["v"]) for row in rows_seen]
                    assert versions == list(range(versions[0], versions[-1] + 1)), "a hole"
                reads += 1
            return reads

        reader = in_thread(read)
        for version in range(1, 300):
            writer.put(rows([0], str(version)))
        stop.set()
        assert reader.result() > 0


def test_readers_of_a_closed_writer_are_told_so(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.close()
    for look in (writer.memtable_scanner, writer.active_memtable_ref, writer.in_memory_memtable_refs):
        with pytest.raises(mw.ClosedError):
            look()
    assert writer._live.capture() is None
