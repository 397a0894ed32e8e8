"""A kernel lock on a directory: the processes of one host take turns without collisions.

Entry point: `DirectoryLock`. The lock is about speed only.

1. It writes nothing, and the kernel releases it when its process dies.
2. `acquire` waits a bounded time. A process that is stopped while it holds the lock delays others once: after a timeout
   `acquire` returns False at once for a while, and its callers go on without the lock.
3. Where there is no such lock (other file systems, no `fcntl`), `acquire` returns False.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import Final

from lance_memwal.clock import SYSTEM_CLOCK, Clock

_SKIP_SECONDS: Final = 30.0


class DirectoryLock:
    """The lock of one directory. One thread at a time uses it."""

    __slots__ = ("_clock", "_fd", "_path", "_skip_until")

    def __init__(self, path: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = path
        self._clock = clock
        self._fd: int | None = None
        self._skip_until = 0.0

    def acquire(self, seconds: float) -> bool:
        """Take the lock, which no other thread of this process holds; False if it cannot be had within `seconds`."""
        if self._clock.monotonic() < self._skip_until:
            return False
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, AttributeError):
            return False
        if _take(fd, waits=False):
            self._fd = fd
            return True
        taken = _Waiter(fd)
        try:  # flock has no timeout, so a thread waits
            self._clock.spawn(partial(_wait, taken), "memwal-append-turn")
        except RuntimeError:  # no thread can be started
            os.close(fd)
            return False
        if not taken.done.wait(seconds):
            self._skip_until = self._clock.monotonic() + _SKIP_SECONDS
        if taken.give_up():
            return False
        self._fd = fd
        return True

    def release(self) -> None:
        """Release the lock, if it was taken."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class _Waiter:
    """A thread that waits for the lock; whoever comes second, it or its caller, closes the file."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.done = threading.Event()
        self.is_taken = False
        self._lock = threading.Lock()
        self._is_over = False

    def give_up(self) -> bool:
        """Whether the lock was not taken; then the thread closes the file."""
        with self._lock:
            self._is_over = True
            return not self.is_taken

    def end(self, *, is_taken: bool) -> None:
        """Note that the wait is over."""
        with self._lock:
            self.is_taken = is_taken and not self._is_over
            if not self.is_taken:
                os.close(self.fd)
        self.done.set()


def _wait(waiter: _Waiter) -> None:
    waiter.end(is_taken=_take(waiter.fd, waits=True))


def _take(fd: int, *, waits: bool) -> bool:
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except (OSError, ImportError):
        return False
    return True
