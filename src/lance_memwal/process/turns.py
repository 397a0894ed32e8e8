"""One caller at a time for what has a name, in this process.

Owns `turn_of`. Invariants:

1. Callers of the same name share one turn, whichever objects they come from; it goes when nobody holds it.
2. A wait for a turn ends in time. A call on top of the one that has the turn (a signal handler's) has it, too.
3. A forked child begins with no turn taken.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import ConflictError
from lance_memwal.process.forking import run_in_child

__all__ = ["Turn", "turn_of"]

_WAIT_SECONDS = 300.0


class Turn:
    """The turn of everybody who has the same name."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._lock = clock.rlock()

    @contextmanager
    def taken(self, what: str) -> Iterator[None]:
        """Have the turn; `ConflictError` if others do not give it back in time."""
        if not self._lock.acquire(timeout=_WAIT_SECONDS):
            raise ConflictError(f"{what}: another call of this process has not ended for {_WAIT_SECONDS:g} s; retry")
        try:
            yield
        finally:
            self._lock.release()


_turns: weakref.WeakValueDictionary[Hashable, Turn] = weakref.WeakValueDictionary()
_guard = threading.Lock()


def turn_of(name: Hashable, clock: Clock = SYSTEM_CLOCK) -> Turn:
    """The turn of `name`; whoever keeps it keeps it there for others. `clock` makes it, if there is none yet."""
    run_in_child(_forget)
    with _guard:
        found = _turns.get(name)
        if found is None:
            found = _turns[name] = Turn(clock)
        return found


def _forget() -> None:
    """In a child: locks that threads of the parent held are never released here."""
    global _guard, _turns
    _guard, _turns = threading.Lock(), weakref.WeakValueDictionary()
