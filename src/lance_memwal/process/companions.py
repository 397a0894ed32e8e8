"""How long the leader of a group commit waits for more puts to join its entry.

Owns `Companions`. Invariant: the leader never sleeps. It only gives up the interpreter, and stops when that adds no put.
"""

from __future__ import annotations

from collections.abc import Sized

from lance_memwal.clock import Clock


class Companions:
    """How many puts joined lately; used by one leader at a time."""

    __slots__ = ("_expected",)

    def __init__(self) -> None:
        self._expected = 0

    def gather(self, waiting: Sized, clock: Clock) -> None:
        """Wait briefly so that concurrent puts share one entry: until as many are `waiting` as lately.

        Without the wait, the entries of eight threads have two puts instead of seven.
        """
        count = len(waiting)
        while count < self._expected:
            clock.sleep(0)  # only gives up the interpreter
            before, count = count, len(waiting)
            if count == before:
                break
        self._expected = max(count, self._expected - 1)
