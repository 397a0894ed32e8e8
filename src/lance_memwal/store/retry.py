"""Retries with backoff, and the answer to "did my put happen?".

Owns `RetryPolicy` and `RetryingStore`. Invariants:

1. Only an `UnavailableError` that says `retryable` is retried; answers of the store are passed on at once.
2. Every call ends: after `max_attempts`, or when the next wait would pass the deadline, with an `UnavailableError`
   whose `__cause__` is the last failure and whose `ambiguous` is true if any attempt was ambiguous.
3. A `put_new` that finds the object after an ambiguous failure reads it: our bytes are `RECOGNISED` (and made durable
   if the caller asked), other bytes are `ObjectExistsError`. The outcome is never guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from lance_memwal.clock import SYSTEM_CLOCK, BackOff, Clock
from lance_memwal.errors import InvalidInputError, ObjectExistsError, ObjectNotFoundError, UnavailableError
from lance_memwal.process.telemetry import active
from lance_memwal.store.port import ObjectStore, PutResult
from lance_memwal.store.sequenced import found_instead
from lance_memwal.store.wrap import WrappedStore

_T = TypeVar("_T")
_VERBS = {
    "make_directory": "make the directory",
    "put": "replace",
    "get": "read",
    "get_range": "read",
    "get_tail": "read",
    "head": "look at",
    "list": "list",
    "list_names": "list",
    "delete": "delete",
    "sync_tree": "sync",
}


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
        return BackOff(self.base_delay_seconds, self.max_delay_seconds, self.jitter).seconds(attempt - 1, random)


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
        if (told := active()) is not None:
            told.note("lance_object_store_retryable_responses_total")
        self._clock.sleep(delay)

    def _final(self, why: str, error: UnavailableError) -> UnavailableError:
        text = f"cannot {self._what}: {why} [attempts={self._failed}]; the last failure: {error}"
        return UnavailableError(text, ambiguous=self.ambiguous, retryable=error.retryable)


class RetryingStore(WrappedStore):
    """Retries what `inner` could not do, by `policy`."""

    def __init__(self, inner: ObjectStore, policy: RetryPolicy | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(inner)
        self._policy = policy or RetryPolicy()
        self._clock = clock

    def put_new(self, path: str, data: bytes, *, sync: bool = False, make_directory: bool = True) -> PutResult:
        """Create `path` with `data`, whole, or raise `ObjectExistsError` if it holds other bytes.

        An object that holds `data` already is `RECOGNISED` only after an ambiguous failure of this call.
        """
        attempts = _Attempts(f"create {path}", self._policy, self._clock, self._clock.monotonic())
        while True:
            try:
                return self.inner.put_new(path, data, sync=sync, make_directory=make_directory)
            except ObjectExistsError:
                if not attempts.ambiguous:
                    raise
            except UnavailableError as error:
                attempts.failed(error)
                continue
            try:
                if found_instead(self.inner, path, data, sync=sync) is None:
                    return PutResult.RECOGNISED
            except ObjectNotFoundError:
                attempts.failed(UnavailableError(f"{path} existed for the put but not for the read after it"))
            except UnavailableError as error:
                attempts.failed(error)
            else:
                raise ObjectExistsError(path)

    def around(self, kind: str, call: Callable[..., _T], path: str, *rest: Any, **options: Any) -> _T:
        """Carry the call out, again and again if it must be."""
        started = self._clock.monotonic()
        attempts: _Attempts | None = None  # most calls need no second one
        while True:
            try:
                return call(path, *rest, **options)
            except UnavailableError as error:
                if attempts is None:
                    attempts = _Attempts(f"{_VERBS[kind]} {path}", self._policy, self._clock, started)
                attempts.failed(error)
