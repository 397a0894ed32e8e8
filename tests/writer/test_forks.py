"""A forked child: every writer of its parent is closed there, at once, and tables say that they cannot be read."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.write.once import OnceAppender
from tests.harness.profile import scaled
from tests.kit.writers import SECONDS, base_table, fork, rows, wait_for

CHILD_SECONDS = 10.0  # "at once", on a machine that does other things too


def outcome(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "ok"


def in_child(*calls: Callable[[], Any]) -> list[str]:
    """The outcomes of `calls` in a forked child; a child that hangs is an error."""
    read, write = os.pipe()
    pid = fork()
    if pid == 0:
        try:
            os.write(write, ",".join(outcome(call) for call in calls).encode())
        finally:
            os._exit(0)
    os.close(write)
    deadline = time.monotonic() + CHILD_SECONDS
    ended = 0
    while not ended and time.monotonic() < deadline:
        ended, _ = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with os.fdopen(read, "rb") as pipe:
        found = pipe.read().decode()
    assert ended, f"the child hangs after {found!r}"
    return found.split(",")


@pytest.mark.repro("writer-10")
def test_every_kind_of_writer_is_closed_in_a_child_although_threads_of_the_parent_are_inside(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t", sharding=mw.Bucket("id", 2))
    log = base_table(tmp_path / "log")
    shard = "11111111-2222-4333-8444-555555555555"
    appender = mw.WalAppender.open(log.uri, shard, fsync=False)
    once = OnceAppender(log.uri)
    claim = once.claim("22222222-2222-4333-8444-555555555555")
    policy = mw.CompactionPolicy(max_generations=1, check_interval_seconds=0.01)
    writer = table.writer(fsync=False, max_memtable_rows=200, compaction=policy)
    batch = rows(range(100))
    stop, puts = threading.Event(), [0, 0]

    def put_on(n: int) -> None:
        while not stop.is_set():
            writer.put(batch)
            appender.append(batch)
            table.get(5)
            puts[n] += 1

    threads = [threading.Thread(target=put_on, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    wait_for(lambda: min(puts) > 2)
    (held, *_) = writer.shard_writers.values()
    for _ in range(scaled(ci=6, prove=200)):
        assert (
            in_child(
                lambda: writer.put(batch),
                lambda: writer.put_nowait(batch),
                lambda: writer.delete([1]),
                lambda: held.put(batch),
                lambda: appender.append(batch),
                lambda: once.append(claim, [batch]),
            )
            == ["ClosedError"] * 6
        )
        assert in_child(writer.close, held.close, held.abort, writer.abort) == ["ok"] * 4
        before = sum(puts)
        wait_for(lambda before=before: sum(puts) > before)  # type: ignore[misc]
    stop.set()
    for thread in threads:
        thread.join(SECONDS)
    writer.close()
    assert sorted(table.scan().to_table().column("id").to_pylist()) == list(range(100))


def test_a_child_of_a_process_that_used_lance_is_told_so_when_it_reads_or_writes(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t", data=[{"id": 1, "v": "a"}])
    with table.writer(fsync=False) as writer:
        writer.put(rows([2]))
        calls: list[Callable[[], Any]] = [
            lambda: table.get(1),
            lambda: table.lookup([1]),
            lambda: table.scan().to_table(),
            lambda: table.count_rows(),
            lambda: mw.open_table(table.uri),
            lambda: mw.create_table(str(tmp_path / "new"), pa.schema([("a", pa.int64())])),
            table.compact,
            table.writer,
        ]
        assert in_child(*calls) == ["UnavailableError"] * len(calls)
        assert table.get(2) == {"id": 2, "v": "a"}


def test_a_program_that_forks_first_may_use_tables_in_its_children(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = """
import os, sys, warnings
warnings.simplefilter("ignore")
import pyarrow as pa
import pytest
import lance_memwal as mw
children = []
for n in range(2):
    pid = os.fork()
    if pid == 0:
        schema = pa.schema([pa.field("id", pa.int64(), False)])
        table = mw.create_table(f"{sys.argv[1]}/{n}", schema, primary_key=["id"], sharding=mw.Unsharded())
        with table.writer() as writer:
            writer.put([{"id": 1}])
        sys.exit(0 if table.count_rows(consistency="flushed") == 1 else 1)
    children.append(pid)
sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in children))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
