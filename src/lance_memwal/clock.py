"""The only door to time, randomness, UUIDs and threads.

Owns the `Clock` port and the system implementation. Invariant: no other module calls `time`, `random`,
`secrets`, `uuid.uuid4` or starts a thread, so that a test injects all of them.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

__all__ = ["SYSTEM_CLOCK", "Clock", "SystemClock", "back_off", "thread_pool"]


class Clock(Protocol):
    """Time, randomness and threads as the engine sees them."""

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        ...

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        ...

    def random(self) -> float:
        """A float in [0, 1), for jitter."""
        ...

    def uuid4(self) -> str:
        """A new random UUID, lower case, dashed."""
        ...

    def token_hex(self, nbytes: int) -> str:
        """Random hexadecimal digits, two per byte."""
        ...

    def randbits(self, bits: int) -> int:
        """A random non-negative integer of at most `bits` bits."""
        ...

    def spawn(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Start a daemon thread."""
        ...


class SystemClock:
    """The real clock."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    random = staticmethod(random.random)
    token_hex = staticmethod(secrets.token_hex)
    randbits = staticmethod(secrets.randbits)

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def uuid4(self) -> str:
        """A new random UUID, lower case, dashed."""
        return str(uuid.uuid4())

    def spawn(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Start a daemon thread."""
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread


SYSTEM_CLOCK: Clock = SystemClock()


def back_off(clock: Clock, attempt: int, *, first_seconds: float, longest_seconds: float) -> None:
    """Wait after lost attempt number `attempt` (from 0): a random part of a time that doubles up to the longest."""
    ceiling = min(longest_seconds, first_seconds * 2 ** min(attempt, 60))
    clock.sleep(clock.random() * ceiling)


def thread_pool(workers: int, name: str) -> ThreadPoolExecutor:
    """A bounded pool for reads that wait on storage; use it as a context manager."""
    return ThreadPoolExecutor(max_workers=workers, thread_name_prefix=name)
