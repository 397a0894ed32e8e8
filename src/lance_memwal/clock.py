"""The only door to time, randomness, UUIDs and threads.

Owns the `Clock` port and the system implementation. Invariant: no other module calls `time`, `random`,
`secrets`, `uuid.uuid4` or starts a thread, so that a test injects all of them.
"""

from __future__ import annotations

import math
import random
import secrets
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

__all__ = ["SYSTEM_CLOCK", "BackOff", "Clock", "SystemClock", "in_order", "thread_pool"]

_In = TypeVar("_In")
_Out = TypeVar("_Out")


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


@dataclass(frozen=True, slots=True)
class BackOff:
    """Waits between attempts: they double from the first to the longest. `jitter` is the random share of each; 1 is all."""

    first_seconds: float
    longest_seconds: float = math.inf
    jitter: float = 1.0

    def seconds(self, attempt: int, random: float) -> float:
        """The wait after lost attempt number `attempt` (from 0), for a `random` in [0, 1)."""
        ceiling = min(self.longest_seconds, self.first_seconds * 2.0 ** min(attempt, 60))
        return ceiling * (1.0 - self.jitter * random)

    def wait(self, clock: Clock, attempt: int) -> None:
        """Wait after lost attempt number `attempt` (from 0)."""
        clock.sleep(self.seconds(attempt, clock.random()))


def thread_pool(workers: int, name: str) -> ThreadPoolExecutor:
    """A bounded pool for reads that wait on storage; use it as a context manager."""
    return ThreadPoolExecutor(max_workers=workers, thread_name_prefix=name)


def in_order(call: Callable[[_In], _Out], items: Sequence[_In], at_once: int, name: str) -> Iterator[_Out]:
    """What `call` says of every item, in their order; `at_once` calls run ahead of the consumer, in threads of this name.

    One item, or one at a time, needs no thread. After a failure nothing more is begun.
    """
    if at_once < 2 or len(items) < 2:
        yield from map(call, items)
        return
    with thread_pool(min(at_once, len(items)), name) as pool:
        ahead: deque[Future[_Out]] = deque()
        for item in items:
            ahead.append(pool.submit(call, item))
            if len(ahead) > at_once:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
