"""put_nowait: returns at once; the Ack says and waits for durability."""

from __future__ import annotations

from pathlib import Path

import pytest

from lance_memwal import Ack, ClosedError, FencedError, UnavailableError, WriterPoisonedError
from tests.kit.writers import (
    MANIFEST,
    SECONDS,
    WAL,
    flushed,
    in_thread,
    open_writer,
    row_entries,
    rows,
    scanned,
    watched,
)


@pytest.mark.parametrize("durable", [True, False])
def test_put_nowait_becomes_durable_in_the_background(tmp_path: Path, durable: bool) -> None:
    store, location = watched(tmp_path)
    with open_writer(location, durable_write=durable, max_wal_flush_interval_ms=None) as writer:
        held = store.hold("put_new", WAL)
        ack = writer.put_nowait(rows([1]))
        held.wait_reached()  # although nobody waits for the ack
        assert not ack.durable
        assert repr(ack) == "Ack(durable=False)"
        assert scanned(writer) == ({} if durable else {1: "a"})
        held.open()
        ack.wait(timeout=30)
        assert ack.durable
        assert scanned(writer) == {1: "a"}
        ack.wait()
        ack.wait(timeout=0)


def test_waiting_ends_with_its_deadline_and_can_be_repeated(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    with open_writer(location) as writer:
        held = store.hold("put_new", WAL)
        ack = writer.put_nowait(rows([1]))
        for timeout in (0, 0.02):
            with pytest.raises(UnavailableError, match="not durable within") as caught:
                ack.wait(timeout)
            assert caught.value.retryable
        held.open()
        ack.wait()


def test_waiting_raises_what_prevented_durability(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location, max_wal_persist_retries=0)
    store.fail("put_new", WAL)
    ack = writer.put_nowait(rows([1]))
    for wait in (lambda: ack.wait(timeout=30), ack.wait):
        with pytest.raises(WriterPoisonedError):
            wait()
    assert not ack.durable
    writer.abort()


def test_waiting_on_a_fenced_writer_raises_the_fence(tmp_path: Path) -> None:
    first = open_writer(tmp_path)
    with open_writer(tmp_path):
        ack = first.put_nowait(rows([1]))
        with pytest.raises(FencedError):
            ack.wait(timeout=30)
    first.abort()


def test_waiting_on_an_aborted_writer_does_not_hang(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, durable_write=False, max_wal_flush_interval_ms=None)
    ack = Ack(writer._shard.commits, writer.put(rows([1])))
    writer.abort()
    for wait in (lambda: ack.wait(timeout=30), ack.wait):
        with pytest.raises(ClosedError):
            in_thread(wait).result()


def test_an_ack_that_was_durable_stays_durable_after_close(tmp_path: Path) -> None:
    writer = open_writer(tmp_path)
    ack = writer.put_nowait(rows([1]))
    writer.close()
    assert ack.durable
    ack.wait()


def test_a_flood_of_put_nowait_is_drained_in_few_entries(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        acks = [writer.put_nowait(rows([k])) for k in range(3000)]
        acks[-1].wait(timeout=60)
        assert all(ack.durable for ack in acks)
        assert len(row_entries(tmp_path)) < 1500
        assert len(scanned(writer)) == 3000


def test_a_large_put_nowait_is_published_before_it_returns(tmp_path: Path) -> None:
    with open_writer(tmp_path, max_entry_bytes=1000) as writer:
        ack = writer.put_nowait(rows(range(1000)))
        assert ack.durable
        assert len(flushed(tmp_path)[1]) == 1000


def test_put_nowait_counts_as_a_put(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put_nowait(rows([1])).wait()
        assert writer.stats().put_count == 1


def test_waiting_is_not_told_of_a_flush_that_fails(tmp_path: Path) -> None:
    """It was told that nothing happened, of a write that was on its way into the log."""
    store, location = watched(tmp_path)
    writer = open_writer(location)
    writer.put(rows([1]))
    store.fail("put_new", MANIFEST, error=lambda: UnavailableError("no manifests today", ambiguous=False))
    writer.force_seal_active()
    with pytest.raises(UnavailableError, match="no manifests"):
        writer.wait_for_flush_drain(SECONDS)  # after a few failures
    held = store.hold("put_new", WAL)
    ack = writer.put_nowait(rows([2]))
    held.wait_reached()
    waiting = in_thread(lambda: ack.wait(timeout=SECONDS))
    waiting.wait(0.1)
    assert waiting.running
    held.open()
    waiting.result()
    writer.abort()


def test_waiting_is_told_of_an_abort_only_if_the_write_is_not_in_the_log(tmp_path: Path) -> None:
    store, location = watched(tmp_path)
    writer = open_writer(location)
    held = store.hold("put_new", WAL)
    ack = writer.put_nowait(rows([1]))
    held.wait_reached()  # its entry is on its way
    waiting, aborting = in_thread(lambda: ack.wait(timeout=SECONDS)), in_thread(writer.abort)
    waiting.wait(0.1)
    assert waiting.running
    held.open()
    waiting.result()
    aborting.result()
    assert len(row_entries(tmp_path)) == 1
