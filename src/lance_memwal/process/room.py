"""Room in memory for work that is done side by side.

Owns `Room`. Invariants:

1. What is taken is at most the limit, or one piece of work has it all: what is larger than the limit is done alone.
2. Whoever waits holds nothing else of the room, so that those who have some always end.
3. Those who wait have it in the order in which they came: small pieces of work do not keep a large one out for ever.
4. A forked child begins with an empty room.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lance_memwal.process.background import refuse_at_exit
from lance_memwal.process.forking import close_in_child
from lance_memwal.process.waiting import Place, Waiters


class Room:
    """So many bytes, for whoever needs some of them for a while. Threads share it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.orphan()

    def orphan(self) -> None:
        """Be empty, with locks that nobody holds."""
        self._lock = threading.Lock()
        self._changed = Waiters()
        self._line: deque[object] = deque()
        self._held: dict[object, int] = {}

    @property
    def taken_bytes(self) -> int:
        """How much of it is taken."""
        return sum(self._held.values())

    @contextmanager
    def taken(self, size_bytes: int, refuse: Callable[[], object] = refuse_at_exit) -> Iterator[None]:
        """Have `size_bytes` of the room; waits until they are free, or until `refuse`, asked every second, raises. Raises in a
        background thread when the program ends."""
        close_in_child(self)
        me = object()
        try:
            self._line.append(me)
            while (place := self._take(size_bytes, me)) is not None:
                place.sleep()
                self._changed.leave(place)
                refuse_at_exit()
                refuse()
            self._changed.wake_all()  # the next in line may fit beside us
            yield
        finally:
            self._leave(me)

    def _take(self, size_bytes: int, me: object) -> Place | None:
        """Take some of the room, or else a place to wait in."""
        with self._lock:
            taken = self.taken_bytes
            if (taken and taken + size_bytes > self._limit_bytes) or self._line[0] is not me:
                return self._changed.stand()
            self._held[me] = size_bytes
            self._line.popleft()
            return None

    def _leave(self, me: object) -> None:
        with self._lock:
            self._held.pop(me, None)
            if me in self._line:
                self._line.remove(me)
        self._changed.wake_all()
