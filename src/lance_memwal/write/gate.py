"""The door of a writer: many writes at once, or one change of all of it.

Owns `WriteGate`. Invariants:

1. No write is between fitting its rows to the columns and inserting them while the columns change: writes pass through
   the gate, and a change waits until nobody is inside and lets nobody in.
2. Nobody waits for ever: a change that cannot begin is given up at its deadline; writes that wait for a change give up at
   theirs, before anything was inserted.
3. A thread that is interrupted, wherever that is, is not inside any more. Python handles signals as a function of its own
   begins, a `__exit__` too: so a write is called by the gate, which ends with a call of native code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.process.deadline import Deadline
from lance_memwal.process.waiting import Waiters, is_on_top, on_top_error

__all__ = ["WriteGate"]

Given = TypeVarTuple("Given")
T = TypeVar("T")


class WriteGate:
    """Many writes at once, or one change of columns."""

    __slots__ = ("_changed", "_clock", "_closed_by", "_inside")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.orphan()

    def orphan(self) -> None:
        """Be open and empty: at the start, and in a forked child, where those inside do not exist."""
        self._changed = Waiters(self._clock)
        self._inside: set[int] = set()
        self._closed_by: int | None = None

    def let_in(self, write: Callable[[*Given], T], *given: *Given) -> T:
        """What `write` does with what is given, inside the gate."""
        me, inside = threading.get_ident(), self._inside
        if me in inside and is_on_top():  # of the call that is inside; nobody is kept out for what a debugger broke
            raise on_top_error("a write")
        try:
            inside.add(me)  # before the look at the door: whoever closes it either sees us or is seen
            if self._closed_by is not None:
                self._wait_at_the_door(me)
            return write(*given)
        finally:
            inside.discard(me)
            if self._closed_by is not None:
                self._changed.wake_all()

    def _wait_at_the_door(self, me: int) -> None:
        deadline = Deadline(self._clock)
        while self._is_closed_to(me):
            self._inside.discard(me)
            self._changed.wake_all()
            while self._is_closed_to(me):
                place = self._changed.stand()
                if self._is_closed_to(me):
                    place.sleep(deadline.left_seconds)
                self._changed.leave(place)
                deadline.refuse_passed("the writer was still being moved or parked; the write was not begun, retry")
            self._inside.add(me)

    def _is_closed_to(self, me: int) -> bool:
        return self._closed_by is not None and self._closed_by != me

    @contextmanager
    def closed(self, deadline: Deadline | None = None) -> Iterator[None]:
        """Keep all writes out for the duration; begins when the last one has left, `UnavailableError` at the deadline."""
        me = threading.get_ident()
        deadline = Deadline(self._clock) if deadline is None else deadline
        try:
            while not self._shut(me):
                place = self._changed.stand()
                place.sleep(deadline.left_seconds)
                self._changed.leave(place)
                deadline.refuse_passed("the writer was still being moved or parked by another thread; retry")
            self._wait_until_left(me, deadline)
            if self._inside - {me}:
                raise deadline.error("a write that began before has not ended; retry")
            yield
        finally:
            if self._closed_by == me:
                self._closed_by = None
                self._changed.wake_all()

    def shut_for_good(self, deadline: float) -> None:
        """Let no other thread in any more, and wait for those who are inside: the program ends."""
        me = threading.get_ident()
        self._closed_by = me
        self._wait_until_left(me, Deadline(self._clock, deadline - self._clock.monotonic()))

    def _shut(self, me: int) -> bool:
        if self._closed_by is None:
            self._closed_by = me
        return self._closed_by == me

    def _wait_until_left(self, me: int, deadline: Deadline) -> None:
        """Wait for those who are inside; at the deadline some may still be."""
        while self._inside - {me} and deadline.left_seconds:
            place = self._changed.stand()
            if self._inside - {me}:
                place.sleep(deadline.left_seconds)
            self._changed.leave(place)
