"""A writer that was fenced or poisoned acknowledges nothing, publishes nothing, and reopening recovers."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lance_memwal import FencedError, MemWalError, ShardWriter, UnavailableError, WriterPoisonedError
from tests.kit.writers import (
    BLOOM,
    MANIFEST,
    SECONDS,
    WAL,
    Rule,
    WatchedStore,
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


def test_stalled_puts_whose_successor_claimed_are_never_acknowledged(tmp_path: Path) -> None:
    """Lesson 7: even a put that was under way must not be acknowledged at a stale epoch."""
    store, location = watched(tmp_path)
    first = open_writer(location)
    first.put(rows([1]))
    held = store.hold("put_new", WAL, 1)
    puts = [in_thread(lambda: first.put(rows([2])))]
    held.wait_reached()
    puts.append(in_thread(lambda: first.put(rows([4]))))
    with open_writer(tmp_path) as second:
        second.put(rows([3]))
        held.open()
        for put in puts:
            with pytest.raises(FencedError):
                put.result()
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


def _wait_for_fence(writer: ShardWriter) -> None:
    with pytest.raises(FencedError):
        writer.wait_for_flush_drain(SECONDS)


def test_a_fenced_flush_does_not_go_on(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    first = open_writer(location)
    first.put(rows([1]))
    held = store.hold("put", BLOOM)
    first.force_seal_active()
    held.wait_reached()
    with open_writer(tmp_path) as second:
        second.put(rows([2]))
        held.open()
        _wait_for_fence(first)
        assert store.count("put", BLOOM) == 1
        assert flushed(tmp_path) == {}
        assert scanned(first) == {1: "a"}  # what it had is still shown by it, and owned by its successor
        assert everything(second, tmp_path) == {1: "a", 2: "a"}
    first.abort()
    assert store.count("put", BLOOM) == 1, "the flusher of a fenced writer must not try again"
    assert [len(found) for found in flushed(tmp_path).values()] == [2]


def test_of_later_generations_of_a_fenced_writer_nothing_stays(tmp_path: Path) -> None:
    """They may be prepared beside the one whose commit was fenced."""
    store, location = watched(tmp_path)
    first = open_writer(location)
    held = store.hold("put", BLOOM)
    for k in (1, 2, 3):
        first.put(rows([k]))
        first.force_seal_active()
    held.wait_reached()
    open_writer(tmp_path).abort()
    held.open()
    _wait_for_fence(first)
    first.abort()
    assert [len(list(tmp_path.rglob(f"*_gen_{number}"))) for number in (2, 3)] == [1, 0]  # the one is published
    assert {g: [row["id"] for row in found] for g, found in flushed(tmp_path).items()} == {1: [1], 2: [2]}  # by replay


def test_a_flush_asks_nobody_once_its_writer_knows_that_it_is_fenced(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    first = open_writer(location)
    first.put(rows([1]))
    held = store.hold("put", BLOOM)
    first.force_seal_active()
    held.wait_reached()
    open_writer(tmp_path).abort()
    with pytest.raises(FencedError):
        first.put(rows([2]))
    reads = store.count("get", MANIFEST)
    held.open()
    first.abort()  # returns when the flush has ended
    assert store.count("get", MANIFEST) == reads
    assert flushed(tmp_path) == {}


@pytest.mark.parametrize("end", ["abort", "close"])
def test_flush_of_a_poisoned_writer_publishes_nothing(tmp_path: Path, end: str) -> None:
    """The epoch is still its own, so that only the poison keeps the flush from its commit."""
    store, location = watched(tmp_path)
    writer = open_writer(location, max_wal_persist_retries=0)
    writer.check_fenced()
    writer.put(rows([1]))
    held = store.hold("put", BLOOM)
    writer.force_seal_active()
    held.wait_reached()
    store.fail("put_new", WAL)
    with pytest.raises(WriterPoisonedError):
        writer.put(rows([2]))
    writer.check_fenced()
    held.open()
    if end == "abort":
        writer.abort()  # returns when the flush has ended
    else:
        with pytest.raises(WriterPoisonedError):
            writer.close()
    assert flushed(tmp_path) == {}
    with open_writer(tmp_path) as again:
        assert everything(again, tmp_path) == {1: "a"}


FAST = {"max_wal_persist_retries": 2}


def poisoned(root: Path, **settings: Any) -> tuple[ShardWriter, WatchedStore, Rule]:
    """A writer with rows 1 (durable) whose next put failed for good."""
    store, location = watched(root)
    writer = open_writer(location, **{**FAST, **settings})
    writer.put(rows([1]))
    rule = store.fail("put_new", WAL, error=lambda: UnavailableError("the disk is on fire"))
    with pytest.raises(WriterPoisonedError):
        writer.put(rows([2]))
    return writer, store, rule


def test_after_the_retries_every_write_refuses_with_the_first_failure_as_its_cause(tmp_path: Path) -> None:
    writer, store, rule = poisoned(tmp_path)
    rule.open()  # the store heals, the writer does not
    calls = (
        lambda: writer.put(rows([3])),
        lambda: writer.delete([1]),
        lambda: writer.put_nowait(rows([3])),
        writer.force_seal_active,
        lambda: writer.put(rows([3]), txn=("a", 1)),
    )
    for call in calls:
        with pytest.raises(WriterPoisonedError, match="reopen the shard") as caught:
            call()
        assert not caught.value.retryable
        cause = caught.value.__cause__
        assert isinstance(cause, UnavailableError)
        assert "the disk is on fire" in str(cause)
    assert store.count("put_new", WAL) == 1
    writer.abort()


def test_a_poisoned_writer_refuses_reads(tmp_path: Path) -> None:
    """Lesson 11: a poisoned writer still served reads."""
    writer, _, _ = poisoned(tmp_path)
    for look in (writer.memtable_scanner, writer.active_memtable_ref, writer.in_memory_memtable_refs):
        with pytest.raises(WriterPoisonedError):
            look()
    assert writer._live.capture() is None
    writer.abort()


def test_the_statistics_of_a_poisoned_writer_stay_readable(tmp_path: Path) -> None:
    writer, _, _ = poisoned(tmp_path)
    assert writer.stats().put_count == 1
    assert writer.memtable_stats().pending_wal_row_count == 1
    assert writer.wal_stats().next_wal_entry_position == 2
    assert writer.backpressure_stats().total_count == 0
    assert writer.manifest().writer_epoch == writer.epoch == 1
    assert writer.transactions() == {}
    writer.check_fenced()
    writer.abort()


@pytest.mark.parametrize("end", ["close", "abort"])
def test_end_of_a_poisoned_writer_commits_nothing_and_ends_its_threads(tmp_path: Path, end: str) -> None:
    writer, _, rule = poisoned(tmp_path)
    with pytest.raises(WriterPoisonedError):
        writer.wait_for_flush_drain(timeout=30)
    rule.open()
    if end == "close":
        with pytest.raises(WriterPoisonedError):
            in_thread(writer.close).result()
        writer.close()
    else:
        writer.abort()
    assert flushed(tmp_path) == {}
    assert not memwal_threads()


def test_reopening_recovers_exactly_what_is_in_the_log(tmp_path: Path) -> None:
    writer, _, _ = poisoned(tmp_path)
    writer.abort()
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {1: "a"}
        writer.put(rows([3]))
        assert scanned(writer) == {1: "a", 3: "a"}


def test_a_poisoned_writer_does_not_flush_past_an_ambiguous_entry(tmp_path: Path) -> None:
    """The entry may be in the log; a flush of its generation would make replay skip it."""
    store, location = watched(tmp_path)
    writer = open_writer(location, max_wal_persist_retries=0, max_memtable_rows=2)
    writer.put(rows([1]))
    store.fail("put_new", WAL, 1, after=True)
    with pytest.raises(WriterPoisonedError):
        writer.put(rows([2]))  # fills the memtable: its flush is under way or refused
    with pytest.raises(WriterPoisonedError):
        writer.close()
    assert flushed(tmp_path) == {}
    with open_writer(tmp_path) as writer:
        assert everything(writer, tmp_path) == {1: "a", 2: "a"}


@pytest.mark.parametrize("durable", [True, False])
def test_concurrent_puts_on_a_failing_log_all_fail(tmp_path: Path, durable: bool) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, durable_write=durable, max_wal_persist_retries=1, max_wal_flush_interval_ms=1)
    held = store.hold("put_new", WAL, 1)
    store.fail("put_new", WAL)
    first = in_thread(lambda: writer.put(rows([0]), txn=("a", 1)))
    held.wait_reached()
    others = [in_thread(lambda k=k: writer.put(rows([k]), txn=(f"app{k}", 1))) for k in range(1, 5)]
    held.open()
    for put in [first, *others]:
        with pytest.raises(MemWalError):
            put.result()
    assert entries(tmp_path) == []
    writer.abort()


def test_unexpected_encoding_failure_poisons_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_writer(tmp_path)
    writer.put(rows([1]))

    class Broken:
        generation = 1

        def assemble(self, *args: object, **kwargs: object) -> bytes:
            raise MemoryError("no memory for the entry")

    monkeypatch.setattr(writer._shard.commits.entries, "_encoder", Broken())
    with pytest.raises(WriterPoisonedError) as caught:
        writer.put(rows([2]))
    assert isinstance(caught.value.__cause__, MemoryError)
    with pytest.raises(WriterPoisonedError):
        writer.put(rows([3]))
    writer.abort()
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {1: "a"}


def test_a_background_wal_flush_that_fails_is_told_to_the_next_caller(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, durable_write=False, max_wal_flush_interval_ms=1, max_wal_persist_retries=0)
    failing = store.fail("put_new", WAL)
    writer.put(rows([1]))
    failing.wait_reached()
    wait_for(lambda: writer._shard.health.poison is not None)
    with pytest.raises(WriterPoisonedError):
        writer.put(rows([2]))
    with pytest.raises(WriterPoisonedError):
        writer.memtable_scanner()
    with pytest.raises(WriterPoisonedError):
        writer.close()
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {}
        assert epoch_of(tmp_path) == 2
