"""The threads that all writers share: who waits for them, and whom they keep waiting."""

from __future__ import annotations

import subprocess
import sys
import threading

from lance_memwal.process.background import Task

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


def test_work_that_hangs_holds_up_no_work_that_comes_later() -> None:
    begun, let_go, done = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        let_go.wait(20)

    hanging, other = Task("flush").start(hang), Task("flush").start(done.set)
    try:
        hanging.poke()
        assert begun.wait(10)
        other.poke()
        assert done.wait(5)
    finally:
        let_go.set()
        hanging.stop()
        other.stop()
