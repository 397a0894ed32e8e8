"""The marks under which a client repeats its own writes.

Owns `Marks`. Invariants:

1. A mark is an id and a number. One write at a time uses an id, and numbers only grow: a shard that has the number has the
   write.
2. An id is used for half of the time after which shards forget it, and never again after a write whose outcome is unknown.
"""

from __future__ import annotations

from collections import deque

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.log.transactions import OWN_EXPIRY_MS, client_id
from lance_memwal.types import Transaction

_LIFE_SECONDS = OWN_EXPIRY_MS / 2000


class Mark:
    """An id, and the number of its current write."""

    __slots__ = ("app", "born", "number")

    def __init__(self, app: str, born: float) -> None:
        self.app = app
        self.born = born
        self.number = 0

    @property
    def txn(self) -> Transaction:
        """The mark of the current write."""
        return Transaction(self.app, self.number)


class Marks:
    """The ids of one shard that no write uses now. Threads may share it."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._free: deque[Mark] = deque()

    def take(self, shard_time_ms: int) -> Mark:
        """A mark for the next write, which nobody else has until it is given back."""
        now = self._clock.monotonic()
        while self._free:
            try:
                mark = self._free.pop()
            except IndexError:  # another thread was faster
                break
            if now - mark.born < _LIFE_SECONDS:
                mark.number += 1
                return mark
        mark = Mark(client_id(self._clock.uuid4(), shard_time_ms), now)
        mark.number = 1
        return mark

    def give_back(self, mark: Mark) -> None:
        """Let the id be used again: the outcome of its write is known."""
        self._free.append(mark)
