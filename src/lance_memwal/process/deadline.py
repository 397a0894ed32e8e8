"""How long a call waits for other work of the same process, and what it says when that is not done.

Owns `Deadline`. Invariant: a wait ends with what was waited for, with the reason why it cannot come, or with
`UnavailableError` once the time is over; nothing that was acknowledged is lost by giving up.
"""

from __future__ import annotations

from lance_memwal.clock import Clock
from lance_memwal.errors import UnavailableError

PATIENCE_SECONDS = 600.0  # longer than any flush takes that makes progress


class Deadline:
    """A moment until which somebody waits."""

    __slots__ = ("_at", "_clock", "seconds")

    def __init__(self, clock: Clock, seconds: float = PATIENCE_SECONDS) -> None:
        self._clock = clock
        self.seconds = seconds
        self._at = clock.monotonic() + seconds

    @property
    def left_seconds(self) -> float:
        """The time that is left, never below 0."""
        return max(0.0, self._at - self._clock.monotonic())

    def refuse_passed(self, what: str) -> None:
        """Raise once the time is over; `what` says what was not done, and the way out."""
        if not self.left_seconds:
            raise self.error(what)

    def error(self, what: str) -> UnavailableError:
        """The error of a wait that was given up."""
        return UnavailableError(f"after {self.seconds:g} seconds {what}", ambiguous=False)
