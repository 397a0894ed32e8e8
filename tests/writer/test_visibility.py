"""What readers see: no dirty rows, no holes, never an older value, through freezing, flushing and manifest commits."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import lance_memwal as mw
from tests.harness.profile import scaled
from tests.kit.writers import (
    BLOOM,
    MANIFEST,
    SECONDS,
    UNKEYED,
    WAL,
    base_table,
    everything,
    in_thread,
    open_writer,
    rows,
    scanned,
    watched,
)


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


def test_visibility_does_not_depend_on_indexes(tmp_path: Path) -> None:
    """Lesson 12: without indexes a scan saw only the first batch."""
    with open_writer(tmp_path, UNKEYED) as writer:
        for k in range(5):
            writer.put(rows([k], schema=UNKEYED))
            assert writer.scan().count_rows() == k + 1


def test_a_capture_never_changes(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1], "a"))
        scanner, refs = writer.scan(), writer.in_memory_memtable_refs()
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


@pytest.mark.scaled
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("durable", [True, False])
def test_a_scan_right_after_each_put_misses_nothing_and_shows_nothing_old(
    tmp_path: Path, durable: bool, threads: int
) -> None:
    """Lesson E1.1: reads at memtable rotations. Puts with memtables of 2 batches, each followed by a scan of all tiers."""
    puts = scaled(ci=120, prove=1_000)
    table = base_table(tmp_path / "t")
    with table.shard_writer(durable_write=durable, max_memtable_batches=2, fsync=False) as writer:

        def work(thread: int) -> None:
            for i in range(puts // threads):
                key, version = 1000 * thread + i % 10, str(i)
                writer.put(rows([key], version))
                found = writer.get(key)
                assert found == {"id": key, "v": version}, f"after put {i}: {found}"
                if i % 10 == 9:
                    mine = {
                        r["id"]: r["v"] for r in writer.lsm_scan().to_table().to_pylist() if r["id"] // 1000 == thread
                    }
                    assert mine == {1000 * thread + k: str(i - 9 + k) for k in range(10)}
                    writer.delete([key])
                    assert writer.get(key) is None, "deleted, but still there"

        running = [in_thread(lambda t=t: work(t)) for t in range(threads)]
        for thread in running:
            thread.result(timeout=100)


def test_a_flushed_row_is_seen_through_the_whole_shard_in_every_instant(tmp_path: Path) -> None:
    stop = threading.Event()
    table = base_table(tmp_path / "t")
    with table.shard_writer(fsync=False) as writer:
        writer.put(rows([1], "a"))

        def read() -> int:
            reads = 0
            while not stop.is_set():
                assert writer.get(1) == {"id": 1, "v": "a"}
                reads += 1
            return reads

        reader = in_thread(read)
        for k in range(10):
            writer.put(rows([10 + k]))
            writer.force_seal_active()
            writer.wait_for_flush_drain(SECONDS)
        stop.set()
        assert reader.result() > 0


def test_readers_of_a_closed_writer_are_told_so(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    writer.close()
    for look in (writer.scan, writer.active_memtable_ref, writer.in_memory_memtable_refs):
        with pytest.raises(mw.ClosedError):
            look()
    assert writer.capture() is None
