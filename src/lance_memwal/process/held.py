"""Something that is opened when it is used, shared by whoever uses it, and closed when nobody did for a while.

Owns `Held`. Invariants:

1. At most one is open; it is closed only while nobody uses it. Whoever comes meanwhile waits, and gets the next one.
2. No lock is held while it is opened, used or closed, and every wait has an end. A use within a use of the same thread waits
   for nobody.
3. An interrupt leaves nothing behind: a use, or an attempt to open or close, counts as long as its call lives.
4. A forked child holds none, and opens its own.
5. There is no thread of its own: a task of the background closes what is idle. Whoever forgets it leaves it to that task.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import MemWalError
from lance_memwal.process.background import Task
from lance_memwal.process.deadline import PATIENCE_SECONDS, Deadline
from lance_memwal.process.forking import close_in_child
from lance_memwal.process.waiting import Place, Waiters, on_top_error, refuse_on_top

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class _Call:
    """One call that uses, opens or closes it, and its thread."""

    __slots__ = ("__weakref__", "thread")

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class Held(Generic[T]):
    """One thing at a time, opened by `open_one` and closed by `close_one`. Threads may share it."""

    def __init__(
        self, what: str, open_one: Callable[[], T], close_one: Callable[[T], None], *, idle_seconds: float
    ) -> None:
        """`what` is its name in error texts."""
        self._what = what
        self._open_one = open_one
        self._close_one = close_one
        self._idle_seconds = idle_seconds
        self._task: Task | None = None
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.RLock()  # reentrant, so that a signal handler finds out that it must not wait
        self._waiters = Waiters()
        self._value: T | None = None
        self._uses: weakref.WeakSet[_Call] = weakref.WeakSet()
        self._alone: weakref.ref[_Call] | None = None
        self._unwanted = False
        self._used_at = 0.0

    # ------------------------------------------------------------------------------------------------------ using

    @contextmanager
    def use(self) -> Iterator[T]:
        """What is held, opened if it must be; it stays open meanwhile."""
        call = _Call()
        value = self._enter(call)
        try:
            yield value
        finally:
            self._leave(call)

    def _enter(self, call: _Call) -> T:
        deadline = Deadline(SYSTEM_CLOCK)
        while True:
            refuse_on_top(self._lock, f"a use of {self._what}")
            with self._lock:
                alone, value = self._at_work(), self._value
                if value is not None and (alone is None or self._is_used_by(call.thread)):
                    self._uses.add(call)
                    return value
                if alone is None:
                    self._alone = weakref.ref(call)
                    break
                if alone.thread == call.thread:
                    raise on_top_error(f"a use of {self._what}")
                place = self._waiters.stand()
            self._wait(place, deadline)
        try:
            return self._open(call)
        finally:
            self._done()

    def _open(self, call: _Call) -> T:
        close_in_child(self)
        task = self._task = Task("compact")
        try:
            task.start(self._close_if_idle)
            value = self._open_one()
        except BaseException:
            task.cancel()
            raise
        with self._lock:
            self._value, self._used_at = value, SYSTEM_CLOCK.monotonic()
            self._uses.add(call)
        task.poke()
        return value

    def _leave(self, call: _Call) -> None:
        with self._lock:
            self._uses.discard(call)
            self._used_at = SYSTEM_CLOCK.monotonic()
            is_over = self._unwanted and not self._uses
        self._waiters.wake_all()
        if is_over:
            self.close()

    def _at_work(self) -> _Call | None:
        """The call that opens or closes it, which is alone with it."""
        return None if self._alone is None else self._alone()

    def _is_used_by(self, thread: int) -> bool:
        return any(call.thread == thread for call in self._uses)

    def _wait(self, place: Place, deadline: Deadline) -> None:
        place.sleep(deadline.left_seconds)
        self._waiters.leave(place)
        deadline.refuse_passed(f"other threads still open, use or close {self._what}; try again when they are done")

    def _done(self) -> None:
        self._alone = None
        self._waiters.wake_all()

    # ------------------------------------------------------------------------------------------------------ closing

    def close(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Close what is held, once nobody uses it; `UnavailableError` if that takes longer. The next use opens another one.

        Within a use of the same thread it returns at once, and the end of that use closes it.
        """
        call, deadline = _Call(), Deadline(SYSTEM_CLOCK, seconds)
        while True:
            refuse_on_top(self._lock, f"closing {self._what}")
            with self._lock:
                alone = self._at_work()
                if self._value is None and alone is None:
                    return
                if self._is_used_by(call.thread) or (alone is not None and alone.thread == call.thread):
                    self._unwanted = True
                    return
                if alone is None:
                    self._alone = weakref.ref(call)
                    break
                place = self._waiters.stand()
            self._wait(place, deadline)
        try:
            self._wait_for_uses(deadline)
            self._close()
        finally:
            self._done()

    def _wait_for_uses(self, deadline: Deadline) -> None:
        while True:
            with self._lock:
                if not self._uses:
                    return
                place = self._waiters.stand()
            self._wait(place, deadline)

    def _close(self) -> None:
        with self._lock:
            value, task = self._value, self._task
            self._value, self._task, self._unwanted = None, None, False
        if task is not None:
            task.cancel()
        if value is not None:
            self._close_one(value)

    def _close_if_idle(self) -> float | None:
        """Close what nobody used for a while; returns the seconds until it may be that."""
        call = _Call()
        with self._lock:
            if self._value is None and self._at_work() is None:
                return None
            left = self._used_at + self._idle_seconds - SYSTEM_CLOCK.monotonic()
            if self._uses or self._at_work() is not None or left > 0:
                return left if left > 0 else self._idle_seconds
            self._alone = weakref.ref(call)
        try:
            self._close()
        except MemWalError as error:
            _LOG.warning("%s was idle, and was not closed well: %s", self._what, error)
        finally:
            self._done()
        return None

    def orphan(self) -> None:
        """Hold nothing in a forked child."""
        self._forget()
        if self._task is not None:
            self._task.orphan()
            self._task = None
