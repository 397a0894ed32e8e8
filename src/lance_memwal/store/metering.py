"""Counts and times every call to a store, and what the calls cost.

Owns `MeteredStore`, the `Metrics` port that it records to, `Recorder`, which keeps totals in the process, and the price list:
dollars per request for standard storage in a large region, without storage, traffic and discounts. It is an estimate, for
comparing and not for billing. Invariants:

1. Metering changes nothing: same results, same errors, one call inside for one call outside.
2. Recording never raises, never waits for I/O, and happens per call, never per row.
3. `ObjectExistsError` and `ObjectNotFoundError` are answers of the store; only other errors count as failed.
4. `size_bytes` counts the bytes that were stored or read, so a refused or failed call adds none.

It lies between the adapter and the retries, so that every attempt counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import ObjectExistsError, ObjectNotFoundError
from lance_memwal.process.forking import close_in_child
from lance_memwal.process.telemetry import UNMEASURED, Latencies, Percentiles, Telemetry, active
from lance_memwal.store.port import ObjectStore, PutResult
from lance_memwal.store.wrap import WrappedStore

_WRITES: Final = frozenset({"put", "put_new", "list", "list_names"})
_READS: Final = frozenset({"get", "get_range", "get_tail", "head"})
_PER_WRITE: Final = {"s3": 5e-6, "gs": 5e-6, "az": 6.5e-6, "abfss": 6.5e-6}
_PER_READ: Final = {"s3": 4e-7, "gs": 4e-7, "az": 5e-7, "abfss": 5e-7}


def price_of(scheme: str, operation: str) -> float:
    """Dollars for one request; deletes are free everywhere."""
    if operation in _WRITES:
        return _PER_WRITE.get(scheme, 0.0)
    return _PER_READ.get(scheme, 0.0) if operation in _READS else 0.0


# ----------------------------------------------------------------------------------------------------------- metering


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CallStats:
    """Calls of one kind: how many, how many failed, seconds and bytes in all, the slowest; percentiles of their times, and
    what they cost by list prices (`store.prices`)."""

    count: int = 0
    errors: int = 0
    seconds: float = 0.0
    size_bytes: int = 0
    max_seconds: float = 0.0
    latency: Percentiles = UNMEASURED
    cost_dollars: float = 0.0


class Metrics(Protocol):
    """Where measured calls go."""

    def record(self, kind: str, seconds: float, size_bytes: int = 0, *, failed: bool = False) -> None:
        """Add one call of `kind`."""
        ...


class Recorder:
    """Keeps totals per kind in memory, and tells OpenTelemetry; `snapshot` is consistent per kind."""

    def __init__(self, scheme: str = "") -> None:
        """`scheme` is that of the store's URI: requests have its prices."""
        self._scheme = scheme
        self._latencies: dict[str, Latencies] = {}
        self._lock = threading.RLock()  # reentrant: a signal handler may use the store, too
        close_in_child(self)
        self._totals: dict[str, list[float]] = {}

    def record(self, kind: str, seconds: float, size_bytes: int = 0, *, failed: bool = False) -> None:
        """Add one call of `kind`."""
        with self._lock:
            totals = self._totals.get(kind)
            if totals is None:
                totals = self._totals[kind] = [0, 0, 0.0, 0, 0.0]
                self._latencies[kind] = Latencies()
            totals[0] += 1
            totals[1] += failed
            totals[2] += seconds
            totals[3] += size_bytes
            if seconds > totals[4]:
                totals[4] = seconds
            self._latencies[kind].add(seconds)
        if (told := active()) is not None:
            self._tell(told, kind, seconds, size_bytes, failed)

    def _tell(self, told: Telemetry, kind: str, seconds: float, size_bytes: int, failed: bool) -> None:
        labels = {"operation": kind, "base": self._scheme or "file"}  # as Lance has them
        told.note("lance_object_store_requests_total", **labels)
        told.note("lance_object_store_request_duration_seconds", seconds, **labels)
        if size_bytes:
            told.note("lance_object_store_request_bytes_total", size_bytes, **labels)
        if failed:
            told.note("lance_object_store_errors_total", **labels)
        if price := price_of(self._scheme, kind):
            told.note("lance_object_store_request_cost_dollars_total", price, **labels)

    def orphan(self) -> None:
        """Go on in a forked child, whoever held the lock."""
        self._lock = threading.RLock()

    def snapshot(self) -> dict[str, CallStats]:
        """Totals so far, by kind."""
        with self._lock:
            return {
                kind: CallStats(
                    int(t[0]),
                    int(t[1]),
                    t[2],
                    int(t[3]),
                    t[4],
                    self._latencies[kind].percentiles(),
                    t[0] * price_of(self._scheme, kind),
                )
                for kind, t in sorted(self._totals.items())
            }

    def reset(self) -> None:
        """Start again from zero."""
        with self._lock:
            self._totals.clear()
            self._latencies.clear()


class MeteredStore(WrappedStore):
    """Records each call to `inner` in `metrics`, by the name of the method."""

    def __init__(self, inner: ObjectStore, metrics: Metrics, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(inner)
        self._record = metrics.record
        self._monotonic = clock.monotonic

    def put_new(self, path: str, data: bytes, *, sync: bool = False, make_directory: bool = True) -> PutResult:
        """Create `path`, and record it: as `around` does, without the detour, since every durable put comes by here."""
        started = self._monotonic()
        try:
            result = self.inner.put_new(path, data, sync=sync, make_directory=make_directory)
        except BaseException as error:
            self._record_failure("put_new", started, error)
            raise
        self._record("put_new", self._monotonic() - started, len(data))
        return result

    def around(self, kind: str, call: Callable[..., _T], path: str, *rest: Any, **options: Any) -> _T:
        """Carry the call out, and record it."""
        started = self._monotonic()
        try:
            result = call(path, *rest, **options)
        except BaseException as error:
            self._record_failure(kind, started, error)
            raise
        moved = result if isinstance(result, bytes) else rest[0] if kind == "put" else b""
        self._record(kind, self._monotonic() - started, len(moved))
        return result

    def _record_failure(self, kind: str, started: float, error: BaseException) -> None:
        answered = isinstance(error, ObjectExistsError | ObjectNotFoundError)
        self._record(kind, self._monotonic() - started, failed=not answered)
