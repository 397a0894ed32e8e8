"""Child processes that start in milliseconds with everything imported, and die or stop on a signal.

Owns `start` and `Child`. Children are forked by a server process that has imported memwal and never used it: no thread,
lock or runtime of a writer is inherited, and the import is paid once. A message that a child sent before it was killed
arrives; a half-sent one reads as the end.
"""

import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NoReturn

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
        return int(self._process.pid or 0)

    @property
    def connection(self) -> Connection:
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


# How a process that may die any moment says what it does.
#
# Invariant: what several threads say arrives in the order in which it happened.


class Voice:
    """Sends messages of several threads in the order in which things happened."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def say(self, tag: str, *values: Any) -> None:
        with self._lock:
            self._pipe.send((tag, *values))


def run_threads(count: int, work: Callable[[int], object]) -> None:
    """Run `work(0)`, `work(1)`, … at once; an error with the tracebacks of those that failed."""
    failures: list[str] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise AssertionError("\n".join(failures))


def tell_failure(voice: Voice) -> NoReturn:
    """Tell the error of now, and end."""
    with suppress(OSError):  # nobody listens any more
        voice.say("failed", traceback.format_exc())
    raise SystemExit(1) from None


# Directories in memory, where a sync costs nothing: for tables whose processes die by signals, not by a loss of
# power.
#
# Where the machine has no file system in memory with room, it is a directory like any other.

_MEMORY: Final = Path("/dev/shm")
_ROOM_BYTES: Final = 1 << 30


@contextmanager
def memory_directory() -> Iterator[Path]:
    """An empty directory; whatever is there in the end is removed."""
    has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES
    with tempfile.TemporaryDirectory(
        prefix="memwal-", dir=_MEMORY if has_room else None, ignore_cleanup_errors=True
    ) as place:
        yield Path(place)


_EVERY_SECONDS: Final = 30.0


class Progress:
    def __init__(self) -> None:
        self._began = self._told = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def tell(self, line: Callable[[], str], *, at_once: bool = False) -> None:
        """Print a line if it is time for one, or `at_once`."""
        if at_once or time.monotonic() - self._told > _EVERY_SECONDS:
            self._told = time.monotonic()
            print(line(), flush=True)
