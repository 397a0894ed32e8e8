"""A clock under which waiting costs nothing.

Owns `SkippingClock`. A sleep returns at once, is remembered, and moves the monotonic time on by what was asked for, so
that backoff and deadlines work as they do in production. Randomness is seeded.
"""

from __future__ import annotations

import random
import threading
import time

from lance_memwal.clock import SystemClock


class SkippingClock(SystemClock):
    """The real clock, except that `sleep` skips the time that it should wait for."""

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._draw = random.Random(seed)  # noqa: S311 - repeatable jitter, no secret
        self._skipped_seconds = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        """Seconds that never run backwards: the real ones and all that were skipped."""
        with self._lock:
            return time.monotonic() + self._skipped_seconds

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970, with all that was skipped."""
        with self._lock:
            return super().now_ms() + int(self._skipped_seconds * 1000)

    def sleep(self, seconds: float) -> None:  # type: ignore[override]
        """Skip `seconds`."""
        with self._lock:
            self.slept.append(seconds)
            self._skipped_seconds += seconds

    def random(self) -> float:
        """The next of the seeded numbers."""
        with self._lock:
            return self._draw.random()
