"""Small durable puts of many threads, taken together by whichever of them leads the commit.

Owns `QueuedPut` and `PutQueue`. A thread that waits for storage anyway lets the leader fit and insert its rows too: then
one thread at a time runs, instead of all of them wanting the interpreter between the leader's system calls. Invariants:

1. A put is inserted once: it leaves the queue after it is in `pending`, and whoever takes from the queue next finds out
   whether the leader before was interrupted between the two. Nothing is committed before that is known.
2. What is wrong with one put is raised in its own caller; the others go on.
3. Who waits sleeps until its put is done or until it should lead; those who were served together wake each other, one
   after the other. A wake-up that an interrupt lost costs a second.
4. The leader never waits for room: a put that finds none stays queued, and its caller waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import pyarrow as pa

from lance_memwal.clock import Clock
from lance_memwal.write.pending import Pending, WriteRows

__all__ = ["PutQueue", "QueuedPut"]


class QueuedPut:
    """One put on its way: its batches, and then the pending write that they became, or the error that they met."""

    __slots__ = ("_awake", "batches", "error", "fit", "follower", "pending", "rows", "size_bytes", "started", "waited")

    def __init__(
        self,
        batches: list[pa.RecordBatch],
        size_bytes: int,
        fit: Callable[[list[pa.RecordBatch]], WriteRows],
        started: float,
    ) -> None:
        """`fit` makes rows of the batches; it is called by the leader, without locks."""
        self.batches = batches
        self.size_bytes = size_bytes
        self.fit = fit
        self.started = started
        self.rows: WriteRows | None = None
        self.pending: Pending | None = None
        self.error: Exception | None = None
        self.follower: QueuedPut | None = None
        self.waited = False  # for room, and counted for it
        self._awake = threading.Lock()
        self._awake.acquire()

    def sleep(self, seconds: float) -> None:
        """Wait until somebody wakes this put, `seconds` at most."""
        self._awake.acquire(timeout=seconds)

    def wake(self) -> None:
        """End the sleep of the caller, now or when it begins."""
        try:  # noqa: SIM105 (a context manager would cost as much as the rest)
            self._awake.release()
        except RuntimeError:
            pass  # awake already

    def wake_follower(self) -> None:
        """Pass the news on: those who were served together wake each other."""
        if self.follower is not None:
            self.follower.wake()


class PutQueue:
    """The puts that no leader has taken yet."""

    __slots__ = ("_companions", "_served", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[QueuedPut] = deque()
        self._companions = 0
        self._served: QueuedPut | None = None

    def append(self, put: QueuedPut) -> None:
        """Queue a put; its caller then leads, or sleeps."""
        self._waiting.append(put)

    def withdraw(self, put: QueuedPut) -> None:
        """Forget a put whose caller was interrupted, if nobody took it yet: it must not show up later."""
        try:  # noqa: SIM105 (on the way of every put)
            self._waiting.remove(put)
        except ValueError:
            pass

    def __contains__(self, put: QueuedPut) -> bool:
        return put in self._waiting

    def is_oldest(self, put: QueuedPut) -> bool:
        """Whether nobody has waited longer."""
        try:
            return self._waiting[0] is put
        except IndexError:
            return False

    def gather(self, clock: Clock) -> None:
        """Let threads that were just served queue their next puts, while that brings as many as there were lately.

        Otherwise they would want the interpreter between the leader's system calls, and write an entry each.
        """
        count = len(self._waiting)
        while count < self._companions:
            clock.sleep(0)  # only gives up the interpreter
            before, count = count, len(self._waiting)
            if count == before:
                break
        self._companions = max(count, self._companions - 1)

    def take(
        self, pending: deque[Pending], insert: Callable[[QueuedPut, WriteRows], bool], leader: QueuedPut | None
    ) -> bool:
        """Insert all puts, oldest first; False if one found no room. The caller has the turn to commit."""
        put = self._oldest()
        if put is not None and put.pending is not None:
            self._recall(put, pending)
            put = self._oldest()
        while put is not None:
            if put.error is None:
                try:
                    if put.rows is None:  # else it found no room before
                        put.rows = put.fit(put.batches)
                    if not insert(put, put.rows):
                        return False
                except Exception as error:
                    put.error = error
            if put.error is not None and put is not leader:
                put.wake()
            self.withdraw(put)  # by name: its caller may have done so
            put = self._oldest()
        return True

    def _recall(self, put: QueuedPut, pending: deque[Pending]) -> None:
        """Make good what a leader that was interrupted left: its put is inserted, or it is not."""
        if put.pending in pending:
            self.withdraw(put)
        else:
            put.pending = None

    def serve(self, put: QueuedPut) -> None:
        """Note that a put is on storage; the caller has the turn."""
        put.follower, self._served = self._served, put

    def wake_served(self) -> None:
        """Wake the callers of all puts that were served, one by one: all at once they would fight for the interpreter."""
        if self._served is not None:
            self._served.wake()
            self._served = None

    def wake_next(self) -> None:
        """Let the oldest put that nobody took lead."""
        if self._waiting:
            put = self._oldest()
            if put is not None:
                put.wake()

    def _oldest(self) -> QueuedPut | None:
        try:
            return self._waiting[0] if self._waiting else None
        except IndexError:  # withdrawn meanwhile
            return None

    def wake_all(self) -> None:
        """Wake the caller of every put in the queue."""
        for put in tuple(self._waiting):
            put.wake()
