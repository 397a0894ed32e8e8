"""Counts and times every call to a store.

Owns `MeteredStore`. Invariants:

1. Metering changes nothing: same results, same errors, one call inside for one call outside.
2. `ObjectExistsError` and `ObjectNotFoundError` are answers of the store; only other errors count as failed.
3. `size_bytes` counts the bytes that were stored or read, so a refused or failed call adds none.

It lies between the adapter and the retries, so that every attempt counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import ObjectExistsError, ObjectNotFoundError
from lance_memwal.store.metrics import Metrics
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.wrap import WrappedStore

__all__ = ["MeteredStore"]

_T = TypeVar("_T")


class MeteredStore(WrappedStore):
    """Records each call to `inner` in `metrics`, by the name of the method."""

    def __init__(self, inner: ObjectStore, metrics: Metrics, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(inner)
        self._record = metrics.record
        self._monotonic = clock.monotonic

    def around(self, kind: str, call: Callable[..., _T], path: str, *rest: Any, **options: Any) -> _T:
        """Carry the call out, and record it."""
        started = self._monotonic()
        try:
            result = call(path, *rest, **options)
        except BaseException as error:
            answered = isinstance(error, ObjectExistsError | ObjectNotFoundError)
            self._record(kind, self._monotonic() - started, failed=not answered)
            raise
        moved = result if isinstance(result, bytes) else rest[0] if kind in ("put_new", "put") else b""
        self._record(kind, self._monotonic() - started, len(moved))
        return result
