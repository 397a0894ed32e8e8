"""Who is likely to come along in a moment.

Owns `Companions`: how long the leader of a group waits for threads that were just served. Invariant: it never sleeps; it
only gives up the interpreter, and no more often than that brings somebody.
"""

from __future__ import annotations

from collections.abc import Sized

from lance_memwal.clock import Clock


class Companions:
    """How many came along lately; used by one leader at a time."""

    __slots__ = ("_expected",)

    def __init__(self) -> None:
        self._expected = 0

    def gather(self, waiting: Sized, clock: Clock) -> None:
        """Let threads that were just served join `waiting`, while that brings as many as there were lately.

        Otherwise they would want the interpreter between the leader's system calls, and make a group each.
        """
        count = len(waiting)
        while count < self._expected:
            clock.sleep(0)  # only gives up the interpreter
            before, count = count, len(waiting)
            if count == before:
                break
        self._expected = max(count, self._expected - 1)
