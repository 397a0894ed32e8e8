"""Threads that nobody waited for at a stop are waited for when the program ends."""

from __future__ import annotations

import subprocess
import sys

SPARED = """
import time
from lance_memwal.process.background import Task

def long():
    time.sleep(1)
    print("ended by itself", flush=True)

spared = Task("roll-up").start(long)
spared.poke()
time.sleep(0.2)
spared.stop()
other = Task("flush").start(lambda: None)  # gets threads of its own: those of before are over
other.stop()
"""


def test_the_end_of_a_program_waits_for_threads_that_a_stop_has_spared() -> None:
    ended = subprocess.run([sys.executable, "-c", SPARED], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "ended by itself\n"
