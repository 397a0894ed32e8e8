"""Retries with backoff, and the answer to "did my put happen?".

Owns `RetryPolicy` and `RetryingStore`. Invariants:

1. Only an `UnavailableError` that says `retryable` is retried; answers of the store are passed on at once.
2. Every call ends: after `max_attempts`, or when the next wait would pass the deadline, with an `UnavailableError`
   whose `__cause__` is the last failure and whose `ambiguous` is true if any attempt was ambiguous.
3. A `put_new` that finds the object after an ambiguous failure reads it: our bytes are `RECOGNISED` (and made durable
   if the caller asked), other bytes are `ObjectExistsError`. The outcome is never guessed.

Called by: `lance_memwal.store.location`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import InvalidInputError, ObjectExistsError, ObjectNotFoundError, UnavailableError
from lance_memwal.store.port import ObjectMeta, ObjectStore, PutResult

__all__ = ["RetryPolicy", "RetryingStore"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long to try. `jitter` is the share of each wait that is drawn at random: 1 is full jitter."""

    max_attempts: int = 8
    base_delay_seconds: float = 0.05
    max_delay_seconds: float = 5.0
    deadline_seconds: float = 60.0
    jitter: float = 1.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise InvalidInputError(f"max_attempts must be at least 1, not {self.max_attempts}")
        if min(self.base_delay_seconds, self.max_delay_seconds, self.deadline_seconds) < 0:
            raise InvalidInputError("delays and deadline of a retry policy must not be negative")
        if not 0 <= self.jitter <= 1:
            raise InvalidInputError(f"jitter must be between 0 and 1, not {self.jitter}")

    def delay_seconds(self, attempt: int, random: float) -> float:
        """The wait after failed attempt number `attempt` (from 1), for a `random` in [0, 1)."""
        ceiling = min(self.max_delay_seconds, self.base_delay_seconds * 2.0 ** min(attempt - 1, 60))
        return ceiling * (1.0 - self.jitter * random)


class _Attempts:
    """The attempts of one call: counts failures, waits between them, and ends them in time."""

    __slots__ = ("_clock", "_failed", "_policy", "_started", "_what", "ambiguous")

    def __init__(self, what: str, policy: RetryPolicy, clock: Clock, started: float) -> None:
        self.ambiguous = False
        self._what = what
        self._policy = policy
        self._clock = clock
        self._started = started
        self._failed = 0

    def failed(self, error: UnavailableError) -> None:
        """Wait for the next attempt, or raise if there is none."""
        self._failed += 1
        self.ambiguous = self.ambiguous or error.ambiguous
        if not error.retryable:
            raise self._final("not retryable", error) from error
        if self._failed >= self._policy.max_attempts:
            raise self._final("out of attempts", error) from error
        delay = self._policy.delay_seconds(self._failed, self._clock.random())
        if self._clock.monotonic() - self._started + delay > self._policy.deadline_seconds:
            raise self._final(f"past the deadline of {self._policy.deadline_seconds:g} s", error) from error
        self._clock.sleep(delay)

    def _final(self, why: str, error: UnavailableError) -> UnavailableError:
        text = f"cannot {self._what}: {why} [attempts={self._failed}]; the last failure: {error}"
        return UnavailableError(text, ambiguous=self.ambiguous, retryable=error.retryable)


class RetryingStore:
    """Retries what `inner` could not do, by `policy`."""

    def __init__(self, inner: ObjectStore, policy: RetryPolicy | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._inner = inner
        self._policy = policy or RetryPolicy()
        self._clock = clock

    def __repr__(self) -> str:
        return f"RetryingStore({self._inner!r})"

    def put_new(self, path: str, data: bytes, *, sync: bool = False, make_directory: bool = True) -> PutResult:
        """Create `path` with `data`, whole, or raise `ObjectExistsError` if it holds other bytes.

        An object that holds `data` already is `RECOGNISED` only after an ambiguous failure of this call.
        """
        attempts = _Attempts(f"create {path}", self._policy, self._clock, self._clock.monotonic())
        while True:
            try:
                return self._inner.put_new(path, data, sync=sync, make_directory=make_directory)
            except ObjectExistsError:
                if not attempts.ambiguous:
                    raise
            except UnavailableError as error:
                attempts.failed(error)
                continue
            try:
                if self._is_ours(path, data, sync):
                    return PutResult.RECOGNISED
            except ObjectNotFoundError:
                attempts.failed(UnavailableError(f"{path} existed for the put but not for the read after it"))
            except UnavailableError as error:
                attempts.failed(error)
            else:
                raise ObjectExistsError(path)

    def make_directory(self, path: str) -> None:
        """Let the directory `path` exist, where the store has directories."""
        self._retry("make the directory", self._inner.make_directory, path)

    def put(self, path: str, data: bytes, *, sync: bool = False) -> None:
        """Replace `path` atomically."""
        self._retry("replace", partial(self._inner.put, data=data, sync=sync), path)

    def get(self, path: str) -> bytes:
        """All bytes of `path`."""
        return self._retry("read", self._inner.get, path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """At most `length` bytes from `start` on; shorter where the object ends."""
        return self._retry("read", partial(self._inner.get_range, start=start, length=length), path)

    def get_tail(self, path: str, length: int) -> bytes:
        """The last `length` bytes, or the whole object if it is shorter."""
        return self._retry("read", partial(self._inner.get_tail, length=length), path)

    def head(self, path: str) -> ObjectMeta:
        """Size and time of `path`."""
        return self._retry("look at", self._inner.head, path)

    def list_names(self, prefix: str) -> list[str]:
        """The names directly below the directory `prefix`, objects and directories alike, in no order."""
        return self._retry("list", self._inner.list_names, prefix)

    def list(self, prefix: str) -> list[ObjectMeta]:
        """Every object below the directory `prefix` (recursive), in no order."""
        return self._retry("list", self._inner.list, prefix)

    def delete(self, path: str) -> None:
        """Remove `path`; absent is fine."""
        self._retry("delete", self._inner.delete, path)

    def sync_tree(self, prefix: str) -> None:
        """Make every file and directory below `prefix`, and the name `prefix` itself, survive power loss."""
        self._retry("sync", self._inner.sync_tree, prefix)

    def _is_ours(self, path: str, data: bytes, sync: bool) -> bool:
        """Whether `path` holds `data`; if so, it is then durable too: the attempt may have failed at just that."""
        if self._inner.get(path) != data:
            return False
        if sync:
            self._inner.sync_tree(path)
        return True

    def _retry(self, verb: str, call: Callable[[str], _T], path: str) -> _T:
        started = self._clock.monotonic()
        attempts: _Attempts | None = None  # most calls need no second one
        while True:
            try:
                return call(path)
            except UnavailableError as error:
                if attempts is None:
                    attempts = _Attempts(f"{verb} {path}", self._policy, self._clock, started)
                attempts.failed(error)
