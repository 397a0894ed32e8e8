"""Room in memory for work that is done side by side.

Owns `Room`. Invariants:

1. What is taken is at most the limit, or one piece of work has it all: what is larger than the limit is done alone.
2. Whoever waits holds nothing else of the room, so that those who have some always end.
3. A forked child begins with an empty room.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lance_memwal.process.background import refuse_at_exit
from lance_memwal.process.forking import close_in_child
from lance_memwal.process.waiting import Place, Waiters

__all__ = ["Room"]


class Room:
    """So many bytes, for whoever needs some of them for a while. Threads share it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.orphan()

    def orphan(self) -> None:
        """Be empty, with locks that nobody holds."""
        self._lock = threading.Lock()
        self._changed = Waiters()
        self.taken_bytes = 0

    @contextmanager
    def taken(self, size_bytes: int) -> Iterator[None]:
        """Have `size_bytes` of the room; waits until they are free. Raises in a background thread when the program ends."""
        close_in_child(self)
        while (place := self._take(size_bytes)) is not None:
            place.sleep()
            self._changed.leave(place)
            refuse_at_exit()
        try:
            yield
        finally:
            with self._lock:
                self.taken_bytes -= size_bytes
            self._changed.wake_all()

    def _take(self, size_bytes: int) -> Place | None:
        """Take some of the room, or else a place in the line."""
        with self._lock:
            if self.taken_bytes and self.taken_bytes + size_bytes > self._limit_bytes:
                return self._changed.stand()
            self.taken_bytes += size_bytes
            return None
