"""Non-durable mode: puts return from memory; size and time triggers drain the log, also of an idle writer."""

from __future__ import annotations

from pathlib import Path

from tests.kit.writers import WAL, entries, flushed, in_thread, open_writer, row_entries, rows, scanned, watched


def test_a_put_returns_from_memory_and_is_visible_at_once(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, durable_write=False, max_wal_flush_interval_ms=None)
    store.hold("put_new", WAL)
    writer.put(rows([1]))
    assert scanned(writer) == {1: "a"}
    assert entries(tmp_path) == []
    writer.abort()


def test_the_time_trigger_drains_an_idle_writer(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, durable_write=False, max_wal_flush_interval_ms=20) as writer:
        writer.put(rows([1]))
        store.wait_for("put_new", WAL, 1)
        writer.put(rows([2]))
        store.wait_for("put_new", WAL, 2)
        assert [e.batches[0].column("id").to_pylist() for e in row_entries(tmp_path)] == [[1], [2]]


def test_puts_within_the_interval_share_an_entry(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, durable_write=False, max_wal_flush_interval_ms=300) as writer:
        for k in range(50):
            writer.put(rows([k]))
        store.wait_for("put_new", WAL, 1)
        assert len(row_entries(tmp_path)) < 10


def test_without_an_interval_nothing_is_drained_until_somebody_asks(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, durable_write=False, max_wal_flush_interval_ms=None, max_wal_buffer_size=0)
    ack = None
    for k in range(100):
        writer.put(rows([k]))
    assert store.count("put_new", WAL) == 0
    ack = writer.put_nowait(rows([100]))
    ack.wait()
    assert store.count("put_new", WAL) == 1
    writer.abort()


def test_the_size_trigger_fires_again_after_every_drain(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, durable_write=False, max_wal_flush_interval_ms=None, max_wal_buffer_size=1) as writer:
        for k in range(5):
            writer.put(rows([k]))
            store.wait_for("put_new", WAL, k + 1)
        assert len(row_entries(tmp_path)) == 5


def test_the_size_trigger_fires_for_what_arrived_during_a_drain(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    size = rows(range(100)).get_total_buffer_size()
    with open_writer(location, durable_write=False, max_wal_flush_interval_ms=None, max_wal_buffer_size=size) as writer:
        held = store.hold("put_new", WAL, 1)
        writer.put(rows(range(100)))
        held.wait_reached()
        writer.put(rows(range(100, 200)))
        held.open()
        store.wait_for("put_new", WAL, 2)
        assert sum(e.num_rows for e in row_entries(tmp_path)) == 200


def test_a_put_is_never_split_by_the_size_trigger(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, durable_write=False, max_wal_flush_interval_ms=None, max_wal_buffer_size=10) as writer:
        writer.put([rows(range(1000)), rows(range(1000, 2000))])
        store.wait_for("put_new", WAL, 1)
        assert [e.num_rows for e in row_entries(tmp_path)] == [2000]


def test_a_zero_buffer_switches_the_size_trigger_off(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, durable_write=False, max_wal_flush_interval_ms=None, max_wal_buffer_size=0)
    writer.put(rows(range(10_000)))
    assert not writer._shard.commits.take_due(0.0, None)
    assert store.count("put_new", WAL) == 0
    writer.abort()


def test_a_generation_is_flushed_only_after_every_wal_put_of_it_succeeded(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, durable_write=False, max_wal_flush_interval_ms=None, max_memtable_rows=4)
    held = store.hold("put_new", WAL)
    writer.put(rows(range(4)))  # freezes
    held.wait_reached()  # the flush leads the commit of its own entries
    assert writer.memtable_stats().frozen_count == 1
    assert flushed(tmp_path) == {}
    held.open()
    writer.wait_for_flush_drain()
    assert len(flushed(tmp_path)[1]) == 4
    assert writer.manifest().replay_after_wal_entry_position == 1
    writer.close()


def test_rows_that_are_in_no_entry_are_lost_when_the_writer_is_dropped_and_no_others(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, durable_write=False, max_wal_flush_interval_ms=None, max_wal_buffer_size=0)
    writer.put_nowait(rows([1])).wait()
    writer.put(rows([2]))
    writer.abort()
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {1: "a"}


def test_close_drains_what_no_trigger_did(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, durable_write=False, max_wal_flush_interval_ms=None)
    writer.put(rows([1]))
    in_thread(writer.close).result()
    assert [row["id"] for row in flushed(tmp_path)[1]] == [1]
    assert len(row_entries(tmp_path)) == 1
