"""A successor owns the shard: the old writer acknowledges nothing any more, and still answers reads."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lance_memwal import FencedError, MemWalError, ShardWriter, UnavailableError, WriterPoisonedError
from lance_memwal.log.entry import encode_sentinel
from lance_memwal.store import paths
from tests.kit.writers import (
    KEYED,
    WAL,
    entries,
    epoch_of,
    everything,
    flushed,
    in_thread,
    memwal_threads,
    open_writer,
    row_entries,
    rows,
    scanned,
    wait_for,
    watched,
)


@pytest.fixture
def fenced(tmp_path: Path) -> ShardWriter:
    """A writer with row 1 that has met the sentinel of its successor."""
    writer = open_writer(tmp_path)
    writer.put(rows([1]))
    open_writer(tmp_path).abort()
    with pytest.raises(FencedError):
        writer.put(rows([2]))
    return writer


def test_the_first_put_after_a_takeover_is_refused_even_if_the_successor_wrote_nothing(tmp_path: Path) -> None:
    """Lesson 6: a predecessor could acknowledge into the next empty slot."""
    first = open_writer(tmp_path)
    first.put(rows([1]))
    with open_writer(tmp_path) as second:
        with pytest.raises(FencedError, match="Writer fenced") as caught:
            first.put(rows([2]))
        assert (caught.value.our_epoch, caught.value.current_epoch) == (1, 2)
        assert not caught.value.retryable
        assert scanned(second) == {1: "a"}
    first.abort()


def test_a_stalled_writer_whose_successor_claimed_never_acknowledges(tmp_path: Path) -> None:
    """Lesson 7: even a put that was under way must not be acknowledged at a stale epoch."""
    store, location = watched(tmp_path)
    first = open_writer(location)
    first.put(rows([1]))
    held = store.hold("put_new", WAL, 1)
    stalled = in_thread(lambda: first.put(rows([2])))
    held.wait_reached()
    with open_writer(tmp_path) as second:
        second.put(rows([3]))
        held.open()
        with pytest.raises(FencedError):
            stalled.result()
        assert scanned(second) == {1: "a", 3: "a"}
    first.abort()


def test_a_put_that_landed_before_the_sentinel_is_acknowledged_and_replayed(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    first = open_writer(location)
    first.put(rows([1]))
    store.fail("put_new", WAL, 1, after=True)  # landed, the answer is lost: the retry meets our own bytes
    first.put(rows([2]))
    with open_writer(tmp_path) as second:
        assert scanned(second) == {1: "a", 2: "a"}
    first.abort()


def test_a_fenced_writer_refuses_writes_and_seals(fenced: ShardWriter, tmp_path: Path) -> None:
    for call in (
        lambda: fenced.put(rows([3])),
        lambda: fenced.put_nowait(rows([3])),
        lambda: fenced.delete([1]),
        lambda: fenced.put(rows([3]), txn=("a", 1)),
        fenced.force_seal_active,
        fenced.check_fenced,
    ):
        with pytest.raises(FencedError, match="Writer fenced"):
            call()
    assert len(row_entries(tmp_path)) == 1
    fenced.abort()


def test_the_scans_references_and_statistics_of_a_fenced_writer_still_answer(fenced: ShardWriter) -> None:
    assert scanned(fenced) == {1: "a"}
    assert fenced.active_memtable_ref().num_rows == 1
    assert len(fenced.in_memory_memtable_refs().ascending) == 1
    assert fenced.stats().put_count == 1
    assert fenced.memtable_stats().row_count == 2  # one of them never became durable and is invisible
    assert fenced.wal_stats().next_wal_entry_position == 2
    assert fenced.backpressure_stats().total_count == 0
    assert fenced.manifest().writer_epoch == 2
    fenced.abort()


def test_closing_a_fenced_writer_raises_and_never_hangs(fenced: ShardWriter, tmp_path: Path) -> None:
    """Lesson 43: fenced while inside close, it waited for ever."""
    with pytest.raises(FencedError):
        in_thread(fenced.close).result()
    fenced.close()
    assert flushed(tmp_path) == {}
    assert not memwal_threads()


def test_a_writer_that_finds_the_fence_only_while_closing_raises_it(tmp_path: Path) -> None:
    first = open_writer(tmp_path)
    first.put(rows([1]))
    with open_writer(tmp_path) as second:
        with pytest.raises(FencedError):
            in_thread(first.close).result()
        assert everything(second, tmp_path) == {1: "a"}


def test_closing_a_fenced_writer_that_owes_nothing_is_quiet(tmp_path: Path) -> None:
    first = open_writer(tmp_path)
    first.put(rows([1]))
    first.force_seal_active()
    first.wait_for_flush_drain()
    open_writer(tmp_path).abort()
    with pytest.raises(FencedError):
        first.check_fenced()
    first.close()


@pytest.mark.parametrize("durable", [True, False])
def test_a_lost_fence_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture, durable: bool) -> None:
    settings: dict[str, Any] = {"durable_write": durable, "max_wal_flush_interval_ms": 5}
    with caplog.at_level(logging.WARNING, logger="lance_memwal"), open_writer(tmp_path) as first:
        first.abort()
        first = open_writer(tmp_path, **settings)
        first.put(rows([1]))
        with open_writer(tmp_path):
            for _ in range(3):
                with suppress(FencedError):
                    first.put_nowait(rows([2])).wait()
                with pytest.raises(FencedError):
                    first.force_seal_active()
                with pytest.raises(FencedError):
                    first.check_fenced()
            with pytest.raises(FencedError):
                first.close()
            first.close()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1, told
    assert "superseded" in told[0]


def test_two_concurrent_puts_on_a_fenced_writer_both_fail(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    first = open_writer(location)
    held = store.hold("put_new", WAL, 1)
    puts = [in_thread(lambda: first.put(rows([1])))]
    held.wait_reached()
    puts.append(in_thread(lambda: first.put(rows([2]))))
    with open_writer(tmp_path):
        held.open()
        for put in puts:
            with pytest.raises(FencedError):
                put.result()
    assert row_entries(tmp_path) == []
    first.abort()


def test_sealing_looks_at_the_manifest_and_finds_the_fence(tmp_path: Path) -> None:
    first = open_writer(tmp_path)
    first.put(rows([1]))
    with open_writer(tmp_path) as second:
        with pytest.raises(FencedError):
            first.force_seal_active()
        assert first.memtable_stats().frozen_count == 0
        with pytest.raises(FencedError):
            first.put(rows([2]))
        second.put(rows([3]))
    first.abort()


def test_check_fenced_is_quiet_while_the_writer_owns_the_shard(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.check_fenced()
        writer.put(rows([1]))
        writer.check_fenced()


def test_a_non_durable_writer_learns_of_the_fence_in_the_background(tmp_path: Path) -> None:
    first = open_writer(tmp_path, durable_write=False, max_wal_flush_interval_ms=5)
    with open_writer(tmp_path) as second:
        first.put(rows([1]))
        wait_for(lambda: first._shard.health.fenced is not None)
        with pytest.raises(FencedError):
            first.put(rows([2]))
        assert scanned(first) == {1: "a"}
        assert scanned(second) == {}
    with pytest.raises(FencedError):
        first.close()


def test_epochs_only_grow_and_each_position_has_one_author(tmp_path: Path) -> None:
    writers = []
    for k in range(5):
        writers.append(open_writer(tmp_path))
        writers[-1].put(rows([k]))
    assert epoch_of(tmp_path) == 5
    for writer in writers[:-1]:
        with pytest.raises(FencedError):
            writer.put(rows([100]))
    assert set(scanned(writers[-1])) == set(range(5))
    epochs = [entry.writer_epoch for entry in entries(tmp_path)]
    assert epochs == sorted(epochs)
    for writer in writers:
        writer.abort()


def test_a_lower_epoch_sentinel_at_our_position_moves_us_on(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1]))
    writer = open_writer(tmp_path)  # epoch 2
    assert writer.epoch == 2
    position = writer.wal_stats().next_wal_entry_position
    (tmp_path / paths.wal_entry_path(writer.shard_id, position)).write_bytes(encode_sentinel(1))
    writer.put(rows([2]))
    assert writer.wal_stats().next_wal_entry_position == position + 2
    assert everything(writer, tmp_path) == {1: "a", 2: "a"}
    writer.abort()
    with open_writer(tmp_path, KEYED) as writer:
        assert everything(writer, tmp_path) == {1: "a", 2: "a"}


def test_a_fence_and_a_log_that_cannot_be_written_are_told_apart_by_type(tmp_path: Path) -> None:
    """Lesson 10: what happened was matched in the text of a message."""
    store, location = watched(tmp_path)
    first = open_writer(location, max_wal_persist_retries=0)
    open_writer(tmp_path).abort()
    with pytest.raises(MemWalError) as fence:
        first.put(rows([1]))
    assert type(fence.value) is FencedError
    first.abort()
    second = open_writer(location, max_wal_persist_retries=0)
    store.fail("put_new", WAL)
    with pytest.raises(MemWalError) as failure:
        second.put(rows([1]))
    assert type(failure.value) is WriterPoisonedError
    assert type(failure.value.__cause__) is UnavailableError
    second.abort()
