"""One caller at a time, in this process; Ctrl-C leaves nothing taken.

Owns `Turn`, `Taking` and `turn_of`. Python handles a signal as soon as a call of native code is over, so that an interrupt may
come between `lock.acquire(timeout=...)` and the `try` below it: then the lock is taken for ever. Invariants:

1. A turn is given back however its `with` ends, and if it never begins. Whether this thread has it is known to the lock
   itself, which is reentrant for that reason; it is given back by native code, before any signal is handled.
2. A wait for a turn ends in time. A call on top of the one that has the turn (a signal handler's) has it, too.
3. Callers of the same name (`turn_of`) share one turn, whichever objects they come from; it goes when nobody holds it. A
   forked child begins with no such turn taken.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final

from lance_memwal.clock import SYSTEM_CLOCK, Clock, Lock
from lance_memwal.process.forking import run_in_child
from lance_memwal.process.waiting import is_held_here

TURN_SECONDS: Final = 300.0
_KEPT: Final = nullcontext()


class TakenError(Exception):
    """Somebody else has the turn."""


class Taking:
    """A `with` of a reentrant lock that this thread does not have, and that is taken by `acquire`, whatever it asks for."""

    __slots__ = ("__exit__", "_acquire", "_lock", "_refusal")

    def __init__(self, lock: Lock, acquire: Callable[[], bool], refusal: Callable[[], Exception] = TakenError) -> None:
        """`refusal` is the error where `acquire` returns False."""
        # its own: a method in Python begins with the signals that wait
        self.__exit__: Callable[..., Any] = lock.__exit__
        self._lock = lock
        self._acquire = acquire
        self._refusal = refusal

    def __enter__(self) -> None:
        try:
            if not self._acquire():
                raise self._refusal()  # noqa: TRY301 (a function would begin with the signals that wait)
        except BaseException:
            try:  # noqa: SIM105 (a context manager can be interrupted in more places)
                self._lock.release()
            except RuntimeError:  # it was not taken
                pass
            raise


class Turn:
    """What one caller at a time has."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._lock = clock.rlock()

    @property
    def is_mine(self) -> bool:
        """Whether this thread has it."""
        return is_held_here(self._lock)

    def taken(
        self, seconds: float, refusal: Callable[[], Exception] = TakenError
    ) -> AbstractContextManager[None] | Taking:
        """Have the turn; the error that `refusal` makes if others do not give it back within `seconds`."""
        if is_held_here(self._lock):  # by the call below, which gives it back
            return _KEPT
        how = {"timeout": seconds} if seconds else {"blocking": False}
        return Taking(self._lock, partial(self._lock.acquire, **how), refusal)


_turns: weakref.WeakValueDictionary[Hashable, Turn] = weakref.WeakValueDictionary()
_guard = threading.RLock()  # a signal handler may come on top


def turn_of(name: Hashable, clock: Clock = SYSTEM_CLOCK) -> Turn:
    """The turn of `name`; whoever keeps it keeps it there for others. `clock` makes it, if there is none yet."""
    run_in_child(_forget)
    with _guard:
        return _turns.setdefault(name, Turn(clock))


def _forget() -> None:
    """In a child: locks that threads of the parent held are never released here."""
    global _guard, _turns
    _guard, _turns = threading.RLock(), weakref.WeakValueDictionary()
