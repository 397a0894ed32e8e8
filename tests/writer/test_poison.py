"""A log that cannot be written poisons the writer: nothing is accepted, shown or committed any more; reopening recovers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lance_memwal import MemWalError, ShardWriter, UnavailableError, WriterPoisonedError
from lance_memwal.errors import ConflictError
from lance_memwal.store import paths
from tests.kit.writers import (
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


def test_a_failed_put_is_retried_at_the_same_position_and_then_succeeds(tmp_path: Path) -> None:
    """Lesson 8: a failed WAL put left a usable writer whose memory differed from the log."""
    store, location = watched(tmp_path)
    with open_writer(location, max_wal_persist_retries=3) as writer:
        store.fail("put_new", WAL, 3)
        writer.put(rows([1]))
        assert [e.position for e in entries(tmp_path)] == [1]
        assert writer.wal_stats().next_wal_entry_position == 2


def test_a_put_whose_answer_was_lost_is_recognised_and_not_written_twice(tmp_path: Path) -> None:
    """Lesson 9: neither a duplicate in the next slot nor a blind success."""
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        store.fail("put_new", WAL, 1, after=True)
        writer.put(rows([1]))
        writer.put(rows([2]))
        assert [(e.position, e.batches[0].column("id").to_pylist()) for e in row_entries(tmp_path)] == [
            (1, [1]),
            (2, [2]),
        ]


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
    for look in (writer.scan, writer.active_memtable_ref, writer.in_memory_memtable_refs):
        with pytest.raises(WriterPoisonedError):
            look()
    assert writer.capture() is None
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


def test_closing_a_poisoned_writer_raises_and_commits_nothing(tmp_path: Path) -> None:
    writer, _, rule = poisoned(tmp_path)
    rule.open()
    with pytest.raises(WriterPoisonedError):
        in_thread(writer.close).result()
    writer.close()
    assert flushed(tmp_path) == {}
    assert not memwal_threads()


def test_drain_on_a_poisoned_writer_raises_the_poison(tmp_path: Path) -> None:
    writer, _, _ = poisoned(tmp_path)
    with pytest.raises(WriterPoisonedError):
        writer.wait_for_flush_drain(timeout=30)
    writer.abort()


def test_reopening_recovers_exactly_what_is_in_the_log(tmp_path: Path) -> None:
    writer, _, _ = poisoned(tmp_path)
    writer.abort()
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {1: "a"}
        writer.put(rows([3]))
        assert scanned(writer) == {1: "a", 3: "a"}


def test_an_entry_whose_put_was_ambiguous_is_recovered_if_it_is_there(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, max_wal_persist_retries=0)
    store.fail("put_new", WAL, 1, after=True)
    with pytest.raises(WriterPoisonedError):
        writer.put(rows([1]))
    with pytest.raises(WriterPoisonedError):
        writer.close()
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {1: "a"}


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


def test_a_flush_that_runs_when_the_writer_is_poisoned_commits_nothing(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, max_wal_persist_retries=0)
    writer.put(rows([1]))
    held = store.hold("put", "bloom_filter")
    writer.force_seal_active()
    held.wait_reached()
    store.fail("put_new", WAL)
    with pytest.raises(WriterPoisonedError):
        writer.put(rows([2]))
    held.open()
    with pytest.raises(WriterPoisonedError):
        writer.close()
    assert flushed(tmp_path) == {}
    with open_writer(tmp_path) as writer:
        assert everything(writer, tmp_path) == {1: "a"}


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


def test_an_entry_of_our_epoch_with_other_bytes_poisons(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    twin = open_writer(tmp_path / "twin")
    twin.put(rows([99]))
    entry = paths.wal_entry_path(writer.shard_id, 1)
    (tmp_path / entry).write_bytes((tmp_path / "twin" / entry).read_bytes())  # somebody with our epoch was faster
    with pytest.raises(WriterPoisonedError) as caught:
        writer.put(rows([1]))
    assert isinstance(caught.value.__cause__, ConflictError)
    writer.abort()
    twin.abort()


def test_an_unexpected_failure_while_encoding_poisons_instead_of_leaving_the_row_in_limbo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        writer.scan()
    with pytest.raises(WriterPoisonedError):
        writer.close()
    with open_writer(tmp_path) as writer:
        assert scanned(writer) == {}
        assert epoch_of(tmp_path) == 2


def test_the_threads_of_a_poisoned_writer_end_with_abort(tmp_path: Path) -> None:
    writer, _, _ = poisoned(tmp_path)
    writer.abort()
    assert not memwal_threads()
