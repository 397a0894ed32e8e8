"""The only door to time, randomness, UUIDs and threads.

Owns the `Clock` port and the system implementation. Invariants:

1. No other module calls `time`, `random`, `secrets`, `uuid.uuid4` or starts a thread, so that a test injects all of them.
2. A lock that is held, or waited for, while somebody waits for storage comes from the clock too (`lock`, `rlock`), and so
   does whoever runs background work (`lane`, `pool`): a test can then decide which thread goes on, at every wait.
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
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Lock(Protocol):
    """A lock as `threading` has them; in a `with` statement its value is not used."""

    @property
    def acquire(self) -> Callable[..., bool]:
        """Take it; False if that was not possible in time."""
        ...

    def release(self) -> None:
        """Give it back."""
        ...

    def __enter__(self) -> Any: ...

    def __exit__(self, _kind: Any, _error: Any, _traceback: Any, /) -> Any: ...


class TellingLock(Lock, Protocol):
    """A lock that says whether somebody has it; one thread cannot take it twice."""

    def locked(self) -> bool:
        """Whether somebody has it."""
        ...


class Lane(Protocol):
    """Whoever runs the background work of one kind: a task of `lance_memwal.process.background` is told to `work`."""

    def submit(self, task: Any, /) -> None:
        """Run `task` soon; takes no lock and starts no thread."""
        ...

    def again(self, task: Any, delay_seconds: float, /) -> None:
        """Poke `task` later."""
        ...

    def runs_here(self, task: Any, /) -> bool:
        """Whether the calling thread runs `task` now."""
        ...

    def forget(self, task: Any, /) -> None:
        """Drop a task that is over."""
        ...

    def join_if_over(self, seconds: float) -> None:
        """With the last task gone, return when the threads have ended; after `seconds` at the latest."""
        ...


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

    def lock(self) -> TellingLock:
        """A lock whose holder may wait for storage, or that somebody sleeps on."""
        ...

    def rlock(self) -> Lock:
        """The same, for a thread that may take it again while it has it."""
        ...

    def lane(self, kind: str) -> Lane | None:
        """Who runs background work of this kind; None: the threads of the process."""
        ...

    def pool(self, workers: int, name: str) -> Executor:
        """A bounded pool for work that waits on storage; use it as a context manager."""
        ...


class SystemClock:
    """The real clock."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    random = staticmethod(random.random)
    token_hex = staticmethod(secrets.token_hex)
    randbits = staticmethod(secrets.randbits)
    lock = staticmethod(threading.Lock)
    rlock = staticmethod(threading.RLock)

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

    def lane(self, kind: str) -> Lane | None:  # noqa: ARG002
        """The threads of the process."""
        return None

    def pool(self, workers: int, name: str) -> Executor:
        """Threads of its own."""
        return thread_pool(workers, name)


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


RETRY: Final = BackOff(0.005, 0.25)  # after a lost race: the next attempt may win
POLL: Final = BackOff(0.1, 1.0, jitter=0.0)  # while another process or a service needs time


def thread_pool(workers: int, name: str) -> ThreadPoolExecutor:
    """A bounded pool for reads that wait on storage; use it as a context manager."""
    return ThreadPoolExecutor(max_workers=workers, thread_name_prefix=name)


class LoneThread(threading.Thread):
    """A thread without helpers: `in_order` and `side_by_side` do everything in it, one after the other."""


def in_order(call: Callable[[_In], _Out], items: Sequence[_In], at_once: int, name: str) -> Iterator[_Out]:
    """What `call` says of every item, in their order; `at_once` calls run ahead of the consumer, in threads of this name.

    One item, or one at a time, needs no thread. After a failure nothing more is begun.
    """
    if at_once < 2 or len(items) < 2 or isinstance(threading.current_thread(), LoneThread):
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


def side_by_side(work: Sequence[Callable[[], Any]], helpers: int, name: str, clock: Clock = SYSTEM_CLOCK) -> list[Any]:
    """The results of all parts, which this thread and up to so many others do, begun in the order given.

    All threads have ended when this returns or raises; after a failure nothing new is begun. Where no thread can be had,
    as when the program ends, this one does it all.
    """
    waiting = deque(enumerate(work))
    results: list[Any] = [None] * len(work)
    failures: list[BaseException] = []

    def drain() -> None:
        while waiting and not failures:
            try:
                index, part = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                results[index] = part()
            except BaseException as error:
                failures.append(error)

    spawned: list[threading.Thread] = []
    if isinstance(threading.current_thread(), LoneThread):
        helpers = 0
    try:
        for _ in range(min(helpers, len(work) - 1)):
            spawned.append(clock.spawn(drain, name))
    except RuntimeError:
        pass
    drain()
    for thread in spawned:
        thread.join()
    if failures:
        raise failures[0]
    return results
