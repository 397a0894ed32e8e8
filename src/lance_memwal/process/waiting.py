"""Waiting for a change that another thread makes.

Entry points: `Waiters`, `Place`, `refuse_on_top`, `is_on_top`. This is not `threading.Condition`, which releases and takes
a lock again in Python code: an interrupt between the two raises a `RuntimeError` that hides the interrupt. Invariants:

1. No thread waits while it holds a lock: it gets a place under its lock, leaves the lock, and then sleeps.
2. A wake-up takes no lock, so that it may come from anywhere.
3. A wake-up that an interrupt loses costs a second: a thread that sleeps checks again by itself.
"""

from __future__ import annotations

import sys
from collections import deque
from types import FrameType
from typing import Any

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import UnavailableError

LOOK_AGAIN_SECONDS = 1.0
_PACKAGE = __name__.partition(".")[0]
_TRANSPARENT = frozenset({"contextlib", "functools"})  # Python code that only calls what it was given, at once
_CALLERS = frozenset({"cli", "spark", "testing", "__main__"})  # parts that call the others as a user does


class Place:
    """Where one caller sleeps until somebody wakes it.

    Those who are served together wake each other, one `follower` after the other: at once they would fight for the
    interpreter.
    """

    __slots__ = ("_awake", "follower")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.follower: Place | None = None
        self._awake = clock.lock()
        self._awake.acquire()

    def sleep(self, seconds: float = LOOK_AGAIN_SECONDS) -> None:
        """Return when woken, or after `seconds` (a second at most): then the caller looks again."""
        self._awake.acquire(timeout=max(0.0, min(seconds, LOOK_AGAIN_SECONDS)))

    def wake(self) -> None:
        """End the sleep, now or when it begins."""
        try:  # noqa: SIM105 (on the way of every put)
            self._awake.release()
        except RuntimeError:
            pass  # awake already

    def wake_follower(self) -> None:
        """Pass the news on."""
        if self.follower is not None:
            self.follower.wake()


class Waiters:
    """Those who wait for a change."""

    __slots__ = ("_clock", "_line")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._line: deque[Place] = deque()

    def stand(self) -> Place:
        """A place in the line; taken under the lock that guards what is waited for, slept in without it."""
        place = Place(self._clock)
        self._line.append(place)
        return place

    def leave(self, place: Place) -> None:
        """Give a place back that nobody woke."""
        try:  # noqa: SIM105 (a context manager can be interrupted in more places)
            self._line.remove(place)
        except ValueError:
            pass

    def wake_all(self) -> None:
        """Let everybody look again."""
        for _ in range(len(self._line)):
            try:
                self._line.popleft().wake()
            except IndexError:  # another thread wakes them too
                return


def is_on_top() -> bool:
    """Whether the caller's caller interrupted another call into this package in the same thread, as a signal handler does.

    Locks of the interrupted call stay held until the handler returns, so the handler must not wait for anything. Calls
    into this package through the standard library (`contextlib`, `functools`) are part of the same call.
    """
    frame: FrameType | None = sys._getframe(1)
    left = False
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if _is_ours(module):
            if left:
                return True
        elif module not in _TRANSPARENT:
            left = True
        frame = frame.f_back
    return False


def _is_ours(module: str) -> bool:
    package, _, rest = module.partition(".")
    return package == _PACKAGE and rest.partition(".")[0] not in _CALLERS


def is_held_here(lock: Any) -> bool:
    """Whether this thread holds `lock`, an `RLock`."""
    return lock._is_owned()  # type: ignore[no-any-return]


def refuse_on_top(lock: Any, what: str) -> None:
    """Raise if this thread holds `lock` (an `RLock`) already, as in a signal handler: the call below is half done."""
    if is_held_here(lock):
        raise on_top_error(what)


def on_top_error(what: str) -> UnavailableError:
    """The error of a call in a signal handler that would have to wait for the very call which the signal interrupted."""
    return UnavailableError(
        f"{what} was called on top of another call of the same thread, as a signal handler does, and cannot wait for it; "
        "call it after that one has returned, or from another thread",
        ambiguous=False,
    )
