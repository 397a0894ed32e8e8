"""Servers that fork: workers share a table without thinking, and a child of an owner is not one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa

import lance_memwal as mw
from tests.harness.processes import start
from tests.kit.writers import SECONDS, fork
from tests.serve.shared_child import serve_requests

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


def new_table(path: Path) -> mw.Table:
    return mw.create_table(str(path), SCHEMA, primary_key="id", writer_defaults={"fsync": False})


def test_four_workers_have_no_errors(tmp_path: Path) -> None:
    """Preforked processes, each with a shared writer of its own."""
    table = new_table(tmp_path / "t")
    workers = [start(serve_requests, table.uri, name, 15) for name in range(4)]
    for worker in workers:
        told = worker.receive(30)
        assert told is not None
        assert told[0] == []
    for worker in workers:
        assert worker.wait(30) == 0
    assert table.count_rows() == 60
    assert table.verify().ok


def test_a_child_of_an_owner_is_closed_and_ends(tmp_path: Path) -> None:
    table = new_table(tmp_path / "t")
    with table.writer(shared=True) as owner, table.writer(shared=True) as other:
        owner.put([{"id": 1, "v": "a"}])
        other.put([{"id": 2, "v": "a"}])
        pid = fork()
        if pid == 0:
            status = 1
            try:
                for writer in (owner, other):
                    try:
                        writer.put([{"id": 3, "v": "child"}])
                    except mw.ClosedError:
                        status += 3
            finally:
                os._exit(status)
        assert _status(pid) == 7
        owner.put([{"id": 4, "v": "a"}])
        other.put([{"id": 5, "v": "a"}])
        assert len(owner.owned_shards) == 1
    assert {row["id"] for row in table.scan().to_table().to_pylist()} == {1, 2, 4, 5}


def test_a_child_of_an_owner_ends_as_programs_do(tmp_path: Path) -> None:
    """With the whole interpreter taken down: neither the server nor the channel waits for threads that do not exist."""
    table = new_table(tmp_path / "t")
    program = f"""
import os, sys, warnings
import lance_memwal as mw
warnings.simplefilter("ignore")
owner, other = mw.open_table({table.uri!r}).writer(shared=True), mw.open_table({table.uri!r}).writer(shared=True)
owner.put([{{"id": 1, "v": "a"}}]); other.put([{{"id": 2, "v": "a"}}])
pid = os.fork()
if pid == 0:
    sys.exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
other.put([{{"id": 3, "v": "a"}}])
print(status, flush=True)  # and no close: the program just ends
"""
    done = _run([sys.executable, "-c", program])
    assert done == (0, "7\n")
    assert table.count_rows() == 3


def _status(pid: int) -> int:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the child hangs")


def _run(command: list[str]) -> tuple[int, str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout
