"""A flush that meets the end of its writer stops there: it publishes nothing and is not tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from lance_memwal import FencedError, ShardWriter, WriterPoisonedError
from tests.kit.writers import BLOOM, MANIFEST, SECONDS, WAL, everything, flushed, open_writer, rows, scanned, watched


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


def test_a_flush_of_a_poisoned_writer_publishes_nothing(tmp_path: Path) -> None:
    """The epoch is still its own, so that only the poison keeps the flush from its commit."""
    store, location = watched(tmp_path)
    writer = open_writer(location, max_wal_persist_retries=0)
    writer.put(rows([1]))
    held = store.hold("put", BLOOM)
    writer.force_seal_active()
    held.wait_reached()
    store.fail("put_new", WAL)
    with pytest.raises(WriterPoisonedError):
        writer.put(rows([2]))
    held.open()
    writer.abort()  # returns when the flush has ended
    assert flushed(tmp_path) == {}
    with open_writer(tmp_path) as again:
        assert everything(again, tmp_path) == {1: "a"}
