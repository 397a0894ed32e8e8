"""Child processes that start in milliseconds with everything imported, and die or stop on a signal.

Owns `start` and `Child`. Children are forked by a server process that has imported memwal and never used it: no thread,
lock or runtime of a writer is inherited, and the import is paid once. A message that a child sent before it was killed
arrives; a half-sent one reads as the end.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

__all__ = ["Child", "start"]

_PRELOAD = "tests.harness.fork_server"
_STOPPED = "T"
_ENDED = frozenset("XZ")


class Child:
    """A running child and the receiving end of its pipe."""

    def __init__(self, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([_PRELOAD])
        self._pipe, sending = context.Pipe(duplex=False)
        self._process = context.Process(target=_run, args=(target, arguments, sending), daemon=True)
        self._process.start()
        sending.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return int(self._process.pid or 0)

    @property
    def connection(self) -> Connection:
        """The receiving end of its pipe, to wait for."""
        return self._pipe

    def receive(self, timeout_seconds: float) -> tuple[Any, ...] | None:
        """The next message, or None after `timeout_seconds`; `EOFError` once there will be no more."""
        try:
            if not self._pipe.poll(max(0.0, timeout_seconds)):
                return None
            message: tuple[Any, ...] = self._pipe.recv()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise EOFError from error
        except OSError as error:  # the message ends in its middle: the sender is dead
            raise EOFError from error
        return message

    def kill(self) -> None:
        """End it as a power cut would; already dead is fine."""
        self._process.kill()

    def stop(self) -> None:
        """Let it stand still wherever it is."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a stopped child go on."""
        os.kill(self.pid, signal.SIGCONT)

    def wait_until_stopped(self, timeout_seconds: float) -> None:
        """Return once every thread of the child stands still; `ProcessLookupError` if it has ended."""
        deadline = time.monotonic() + timeout_seconds
        while (states := _states(self.pid)) != {_STOPPED}:
            if states <= _ENDED:
                raise ProcessLookupError(f"child {self.pid} has ended")
            if time.monotonic() > deadline:
                raise TimeoutError(f"child {self.pid} did not stop within {timeout_seconds} seconds")
            time.sleep(0.001)

    def wait(self, timeout_seconds: float) -> int:
        """The exit status (negative: the signal); `TimeoutError` if it lives on, which kills it."""
        self._process.join(timeout_seconds)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
            raise TimeoutError(f"the child did not end within {timeout_seconds} seconds")
        self._pipe.close()
        return self._process.exitcode


def start(target: Callable[..., None], *arguments: Any) -> Child:
    """A child that runs `target(*arguments, pipe)`."""
    return Child(target, arguments)


def _run(target: Callable[..., None], arguments: tuple[Any, ...], pipe: Connection) -> None:
    target(*arguments, pipe)


def _states(pid: int) -> set[str]:
    """The states of all its threads; none of a process that is gone."""
    states = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # this thread has just ended
            states.add(stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0])
    return states
