"""A process that is killed while it puts leaves whole objects, or none."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lance_memwal.store.files import STAGING_NAME
from lance_memwal.store.local import LocalStore

# For each line of input a new writer process, so that only one process has to import the package.
_WRITERS = """
import os, sys
from lance_memwal.store.local import LocalStore
store = LocalStore(sys.argv[1], use_tmpfile=sys.argv[2] == "True")
def say(word):
    os.write(1, f"{word}\\n".encode())  # in one piece, also when the writer is killed
for line in sys.stdin:
    writer = os.fork()
    if writer:
        os.waitpid(writer, 0)
        say("dead")
        continue
    say(os.getpid())
    number = int(line)
    while True:
        store.put_new(f"shard/wal/{number}", bytes([number % 256]) * (300_000 + number % 7))
        store.put("shard/hint", bytes([number % 256]) * 100_000)
        say(number)
        number += 1
"""
_KILLS = 25


@pytest.mark.parametrize("use_tmpfile", [True, False])
def test_a_killed_writer_leaves_no_partial_object(tmp_path: Path, use_tmpfile: bool) -> None:
    draw = random.Random(5)
    acknowledged: set[int] = set()
    command = [sys.executable, "-c", _WRITERS, str(tmp_path), str(use_tmpfile)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writers:
        assert writers.stdin is not None
        assert writers.stdout is not None
        for kill in range(_KILLS):
            print(kill * 10_000, file=writers.stdin, flush=True)
            writer = int(writers.stdout.readline())
            acknowledged.add(int(writers.stdout.readline()))
            time.sleep(draw.random() * 0.01)  # the moment of death is the thing under test
            os.kill(writer, signal.SIGKILL)
            while (line := writers.stdout.readline().strip()) != "dead":
                acknowledged.add(int(line))
        writers.stdin.close()
    store = LocalStore(tmp_path)
    found = {int(name) for name in store.list_names("shard/wal")}
    assert acknowledged <= found
    assert len(found) - len(acknowledged) <= _KILLS
    for number in found:
        assert store.get(f"shard/wal/{number}") == bytes([number % 256]) * (300_000 + number % 7)
    hint = store.get("shard/hint")
    assert hint == hint[:1] * 100_000
    assert sorted(path.name for path in tmp_path.iterdir()) == [STAGING_NAME, "shard"]
    assert len(list((tmp_path / STAGING_NAME).iterdir())) <= _KILLS
