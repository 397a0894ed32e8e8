"""Starts a driver in its own process, and kills it with everything that it started."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.kit.spark import LIGHT_JVM

HERE = Path(__file__).parent
MODULES = os.pathsep.join([str(HERE), str(HERE.parents[1]), str(HERE.parents[1] / "src")])  # for drivers and workers
MARK = "LANCE_MEMWAL_TEST_MARK"


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def fake_java(directory: Path, version: str) -> None:
    """A Java that says no more than its version."""
    directory.mkdir()
    java = directory / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)


def kill_executors(workers: Sequence[int], count: int, rng: random.Random) -> int:
    """SIGKILL some executors that these workers have started; returns how many there were to kill."""
    found = [number for number in _children(workers) if b"CoarseGrainedExecutorBackend" in _command(number)]
    chosen = rng.sample(found, min(count, len(found)))
    for number in chosen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    return len(chosen)


def _children(parents: Sequence[int]) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) in parents and not _is_dead(entry):
                    found.append(int(entry.name))
    return found


def _command(number: int) -> bytes:
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return b""


class Driver:
    """A child process whose descendants carry a mark in their environment."""

    def __init__(
        self, arguments: list[str], log: Path, *, script: str = "stream_child.py", keep: Sequence[int] = ()
    ) -> None:
        self.mark = uuid.uuid4().hex
        environment = {**os.environ, MARK: self.mark, "PYTHONPATH": MODULES, "JAVA_TOOL_OPTIONS": LIGHT_JVM}
        environment.pop("PYSPARK_GATEWAY_PORT", None)
        with log.open("ab") as output:
            command = [sys.executable, str(HERE / script), *arguments]
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, pass_fds=keep)

    def wait_until(self, reached: Callable[[], bool], seconds: float = 900) -> bool:
        """Whether `reached` came true before the process ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if reached():
                return True
            if self.process.poll() is not None:
                return False
            time.sleep(0.02)
        raise AssertionError("the driver made no progress")

    def kill_all(self) -> int:
        """SIGKILL the driver, its JVM and every Python worker; returns how many there were."""
        killed = 0
        for _ in range(100):
            found = self._marked()
            if not found:
                break
            for number in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
                    killed += 1
            self.process.poll()
            time.sleep(0.02)
        self.process.wait(60)
        return killed

    def _marked(self) -> list[int]:
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if wanted in (entry / "environ").read_bytes() and not _is_dead(entry):
                        found.append(int(entry.name))
        return found


def _is_dead(entry: Path) -> bool:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
