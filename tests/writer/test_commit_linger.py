"""`commit_linger_ms`: fewer entries for those who pay for requests; nobody who cannot wait waits for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lance_memwal as mw
from tests.kit.writers import SECONDS, in_thread, open_writer, row_entries, rows, scanned, wait_for

LONG_MS = 10_000


@pytest.fixture
def in_time() -> Iterator[None]:
    """The whole test takes less time than one who lingers to the end."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < LONG_MS / 1000


def waiting_puts(writer: mw.ShardWriter) -> int:
    commits = writer._shard.commits
    return len(commits._puts._waiting) + len(commits.pending)


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("large", [False, True], ids=["queued puts", "puts of their own threads"])
def test_puts_of_several_threads_share_an_entry(tmp_path: Path, large: bool) -> None:
    value = "x" * (100_000 if large else 1)
    with open_writer(tmp_path, commit_linger_ms=LONG_MS) as writer:
        puts = [in_thread(lambda k=k: writer.put(rows([k, 10 + k, 20 + k], value))) for k in range(4)]
        wait_for(lambda: waiting_puts(writer) == 4)
        writer.put_nowait(rows([99]), drain=False).wait()
        for put in puts:
            assert put.result().written == 3
        assert len(row_entries(tmp_path)) == 1
        assert len(scanned(writer)) == 13


def test_a_put_alone_waits_and_is_durable_when_it_returns(tmp_path: Path) -> None:
    with open_writer(tmp_path, commit_linger_ms=60) as writer:
        started = time.monotonic()
        writer.put(rows([1]))
        assert time.monotonic() - started >= 0.06
        assert len(row_entries(tmp_path)) == 1


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("end", ["flush", "ack"])
def test_what_cannot_wait_ends_it(tmp_path: Path, end: str) -> None:
    writer = open_writer(tmp_path, commit_linger_ms=LONG_MS)
    put = in_thread(lambda: writer.put(rows([1])))
    wait_for(lambda: writer._shard.commits._is_led)
    if end == "flush":
        writer.put_nowait(rows([2]), drain=False)
        writer.force_seal_active()
        writer.wait_for_flush_drain(SECONDS)
    else:
        writer.put_nowait(rows([2]), drain=False).wait()
    assert put.result().written == 1
    writer.close()


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_writer_that_ends_ends_it_and_the_put_is_refused(tmp_path: Path, end: str) -> None:
    writer = open_writer(tmp_path, commit_linger_ms=LONG_MS)
    put = in_thread(lambda: writer.put(rows([1])))
    wait_for(lambda: writer._shard.commits._is_led)
    getattr(writer, end)()
    with pytest.raises(mw.ClosedError):
        put.result()
    assert row_entries(tmp_path) == []


@pytest.mark.usefixtures("in_time")
def test_a_full_buffer_ends_it(tmp_path: Path) -> None:
    with open_writer(tmp_path, commit_linger_ms=LONG_MS, max_wal_buffer_size=1_000) as writer:
        writer.put(rows([1], "x" * 2_000))


def test_puts_that_nobody_waits_for_are_drained_together(tmp_path: Path) -> None:
    with open_writer(tmp_path, commit_linger_ms=500) as writer:
        acks = [writer.put_nowait(rows([k])) for k in range(20)]
        wait_for(lambda: all(ack.durable for ack in acks))
        assert len(row_entries(tmp_path)) == 1


def test_it_is_a_setting_of_the_table_with_a_limit(tmp_path: Path) -> None:
    config = mw.WriterConfig(commit_linger_ms=25)
    assert mw.WriterConfig.from_defaults(config.to_defaults()) == config
    assert mw.WriterConfig().commit_linger_ms == 0
    for wrong in (-1, 10_001, True, 1.5):
        with pytest.raises(mw.InvalidInputError, match="commit_linger_ms"):
            mw.WriterConfig(commit_linger_ms=wrong)
