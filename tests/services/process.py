"""Start a service process, wait until it says that it is ready, and be sure that it ends.

The service runs under a small supervisor that kills it when its standard input closes, so it also ends when the test
run itself is killed.
"""

import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

_SUPERVISOR = """
import select, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)
try:
    while child.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], 0.2)
        if readable and not sys.stdin.buffer.read(1):
            break
finally:
    child.kill()
    child.wait()
"""


class _Output:
    """Reads a service's output to its end, so that it never blocks, and keeps the last lines for a failure's text."""

    def __init__(self, process: subprocess.Popen[str], ready: re.Pattern[str]) -> None:
        self.match: re.Match[str] | None = None
        self.settled = threading.Event()
        self._tail: deque[str] = deque(maxlen=30)
        self._process = process
        self._ready = ready
        self.thread = threading.Thread(target=self._read, name="service-output", daemon=True)
        self.thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._tail.append(line)
            if self.match is None and (found := self._ready.search(line)):
                self.match = found
                self.settled.set()
        self.settled.set()

    def text(self) -> str:
        return "".join(self._tail)


@contextmanager
def running(
    command: Sequence[str], ready: str, *, deadline_seconds: float = 60.0, environment: Mapping[str, str] | None = None
) -> Iterator[re.Match[str]]:
    """Run `command` until the block ends; yields the match of `ready` in its output."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SUPERVISOR, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    output = _Output(process, re.compile(ready))
    try:
        started = time.monotonic()
        output.settled.wait(deadline_seconds)
        if output.match is None:
            seconds = time.monotonic() - started
            raise RuntimeError(f"{command[0]} was not ready after {seconds:.1f} s; its last output:\n{output.text()}")
        yield output.match
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=20)
        output.thread.join(timeout=20)
        assert process.stdout is not None
        process.stdout.close()
