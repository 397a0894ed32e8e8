"""`memwal serve`: an owner that stays while writers come and go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.kit.cli_process import COMMAND, run

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


class Daemon:
    """A running daemon; its output is JSON, a line for each change."""

    def __init__(self, *arguments: str) -> None:
        buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        self._process = subprocess.Popen(
            [*COMMAND, "serve", *arguments, "--no-fsync", "--json", "--every-seconds", "0.1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=buffered,
        )

    def next_line(self) -> dict[str, Any]:
        """What it serves, once that has changed."""
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def end(self) -> tuple[int, str]:
        """Tell it to end, as an operator does: its status, and what it said on standard error."""
        self._process.send_signal(signal.SIGTERM)
        _, errors = self._process.communicate(timeout=60)
        return self._process.returncode, errors

    def kill(self) -> None:
        """End it, however it is."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def daemon(*arguments: str) -> Iterator[Daemon]:
    started = Daemon(*arguments)
    try:
        yield started
    finally:
        started.kill()


def new_table(path: Path, **options: Any) -> mw.Table:
    return mw.create_table(str(path), SCHEMA, primary_key="id", writer_defaults={"fsync": False}, **options)


@pytest.mark.timeout(120)
def test_a_second_daemon_stands_by_and_takes_over_what_the_first_flushed(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    with table.writer(shared=True) as writer, daemon(table.uri) as first:
        assert len(first.next_line()["serves"]) == 1
        with daemon(table.uri) as second:
            assert second.next_line()["serves"] == []
            writer.put([{"id": 1, "v": "a"}])
            assert writer.owned_shards == set()
            assert table.shards()[0].generations == ()
            assert first.end() == (0, "")
            assert len(table.shards()[0].generations) == 1, "what it wrote is not flushed"
            assert len(second.next_line()["serves"]) == 1
            writer.put([{"id": 2, "v": "b"}])
            assert writer.owned_shards == set()
            assert second.end() == (0, "")
        writer.put([{"id": 3, "v": "c"}])
        assert len(writer.owned_shards) == 1, "nobody else is there"
    assert table.count_rows() == 3
    assert table.verify().ok


@pytest.mark.timeout(120)
def test_a_daemon_serves_the_shards_that_it_is_asked_for(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t", sharding=mw.Bucket("id", 4))
    wanted = sorted(table.sharding.shard_ids() or [])[:2]
    with table.writer(shared=True) as writer, daemon(table.uri, "--shards", ", ".join(wanted)) as only:
        assert only.next_line()["serves"] == wanted
        writer.put([{"id": k, "v": "a"} for k in range(40)])
        assert writer.owned_shards == set(table.sharding.shard_ids() or []) - set(wanted)
        assert only.end() == (0, "")
    assert table.count_rows() == 40


@pytest.mark.timeout(120)
def test_a_daemon_beside_a_writer_that_does_not_share_waits_and_ends_when_it_is_told(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    with table.writer() as exclusive, daemon(table.uri) as patient:
        exclusive.put([{"id": 1, "v": "a"}])
        assert patient.next_line()["serves"] == []
        exclusive.put([{"id": 2, "v": "a"}])
        assert patient.end() == (0, "")
        exclusive.put([{"id": 3, "v": "a"}])
    assert table.count_rows() == 3


def test_what_a_daemon_cannot_do_is_said_at_once(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    assert "has no shard bogus" in run("serve", table.uri, "--shards", "bogus", status=1).stderr
    assert "TLS and a given token" in run("serve", table.uri, "--host", "db1", status=1).stderr
    assert table.shards() == []
