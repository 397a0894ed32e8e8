"""Metrics and traces for OpenTelemetry, if the application has set it up.

Owns the names of our metrics and spans, and `Latencies`. Only the API of OpenTelemetry is used, and only if the application has
loaded it and set a provider. Invariants:

1. Off, a call costs one look-up: nothing is imported, nothing is kept.
2. Labels of metrics have few values: kinds and operations, never a shard, a key or a table. Spans name their shard.
3. Recording never raises and never waits for I/O; it happens per call, never per row.
4. Names are those of Lance where it has them (`lance_mem_wal_…`, `lance_object_store_…`, `lance_cache_…`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from math import log2
from typing import Any, Final, ParamSpec, TypeVar

from lance_memwal.clock import SYSTEM_CLOCK

_P = ParamSpec("_P")
_T = TypeVar("_T")
_COUNTER, _HISTOGRAM, _OBSERVED_COUNTER, _OBSERVED_GAUGE = "counter", "histogram", "observed counter", "observed gauge"
_SECONDS: Final = "s"
METRICS: Final[dict[str, tuple[str, str, str]]] = {
    "lance_mem_wal_puts_total": (_COUNTER, "1", "Puts and deletes that were acknowledged"),
    "lance_mem_wal_put_duration_seconds": (_HISTOGRAM, _SECONDS, "Time of one put, waiting for room and commit included"),
    "lance_mem_wal_entries_total": (_COUNTER, "1", "Entries that were written to logs"),
    "lance_mem_wal_entry_bytes": (_HISTOGRAM, "By", "Bytes of one entry"),
    "lance_mem_wal_entry_rows_total": (_COUNTER, "1", "Rows in those entries"),
    "lance_mem_wal_group_puts": (_HISTOGRAM, "1", "Puts that shared one entry"),
    "lance_mem_wal_flush_duration_seconds": (_HISTOGRAM, _SECONDS, "Time of one flush; kind: wal (an entry) or memtable"),
    "lance_mem_wal_flush_rows_total": (_COUNTER, "1", "Rows of published SSTables"),
    "lance_mem_wal_index_update_duration_seconds": (_HISTOGRAM, _SECONDS, "Time of one update of a memtable's indexes"),
    "lance_mem_wal_index_lag_seconds": (_HISTOGRAM, _SECONDS, "Time until a deferred update of a memtable's indexes had a row"),
    "lance_mem_wal_index_lag_generations": (_HISTOGRAM, "1", "Compacted SSTables that wait for an index, after a compaction"),
    "lance_mem_wal_backpressure_wait_seconds": (_HISTOGRAM, _SECONDS, "Time that a put waited for room"),
    "lance_mem_wal_writers_stopped_total": (_COUNTER, "1", "Writers that stopped; kind: fenced, poisoned or replaced"),
    "lance_mem_wal_replay_duration_seconds": (_HISTOGRAM, _SECONDS, "Time of one replay of a log's tail"),
    "lance_mem_wal_replay_rows_total": (_COUNTER, "1", "Rows that were replayed"),
    "lance_mem_wal_compaction_duration_seconds": (_HISTOGRAM, _SECONDS, "Time of one compaction run"),
    "lance_mem_wal_compaction_generations_total": (_COUNTER, "1", "SSTables that were folded into base tables"),
    "lance_mem_wal_compaction_rows_total": (_COUNTER, "1", "Rows that compaction wrote to base tables"),
    "lance_mem_wal_read_duration_seconds": (_HISTOGRAM, _SECONDS, "Time of one read, by operation; of a scan to its first batch"),
    "lance_mem_wal_feed_rows_total": (_COUNTER, "1", "Changes that feeds handed out"),
    "lance_mem_wal_feed_lag_seconds": (_HISTOGRAM, _SECONDS, "Time from the write of a change until a feed handed it out"),
    "lance_mem_wal_collected_objects_total": (_COUNTER, "1", "Objects that collection deleted"),
    "lance_mem_wal_collected_bytes_total": (_COUNTER, "By", "Bytes of those objects"),
    "lance_cache_lookups_total": (_OBSERVED_COUNTER, "1", "Look-ups in what this process keeps of tables; outcome: hit or miss"),
    "lance_cache_size_bytes": (_OBSERVED_GAUGE, "By", "Bytes that this process keeps of tables"),
    "lance_cache_capacity_bytes": (_OBSERVED_GAUGE, "By", "Bytes that it may keep"),
    "lance_object_store_requests_total": (_COUNTER, "1", "Requests to stores, by operation"),
    "lance_object_store_errors_total": (_COUNTER, "1", "Requests that failed, by operation"),
    "lance_object_store_request_bytes_total": (_COUNTER, "By", "Bytes that were stored or read, by operation"),
    "lance_object_store_request_duration_seconds": (_HISTOGRAM, _SECONDS, "Time of one request, by operation"),
    "lance_object_store_request_cost_dollars_total": (_COUNTER, "1", "What the requests cost by list prices, by operation"),
    "lance_object_store_retryable_responses_total": (_COUNTER, "1", "Failures after which a request was tried again"),
}  # fmt: skip
BOUNDS: Final[dict[str, tuple[float, ...]]] = {
    _SECONDS: (
        0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
        0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0,
    ),
    "By": tuple(4.0**n for n in range(4, 15)),  # 256 bytes to 256 MiB
    "1": tuple(2.0**n for n in range(11)),
}  # fmt: skip
"""Where the buckets of histograms end, by unit; the SDK's own suit milliseconds only."""
_READ_SECONDS: Final = "lance_mem_wal_read_duration_seconds"
_OURS: Final = {"cache": "mem_wal"}
_SCOPE: Final = "lance_memwal"
_TRACES: Final = "opentelemetry.trace"
_OFF: Final = frozenset({"_ProxyMeterProvider", "NoOpMeterProvider", "ProxyTracerProvider", "NoOpTracerProvider"})


class Telemetry:
    """The instruments of one meter provider."""

    def __init__(self, meter: Any, observation: Callable[..., Any]) -> None:
        """`observation` makes what observed instruments answer."""
        self._note: dict[str, Callable[..., None]] = {}
        for name, (kind, unit, text) in METRICS.items():
            said = {"unit": unit, "description": text}
            if kind == _COUNTER:
                self._note[name] = meter.create_counter(name, **said).add
            elif kind == _HISTOGRAM:
                bounds = BOUNDS[unit]
                made = meter.create_histogram(name, **said, explicit_bucket_boundaries_advisory=bounds)
                self._note[name] = made.record
            else:
                make = meter.create_observable_counter if kind == _OBSERVED_COUNTER else meter.create_observable_gauge
                make(name, [partial(_observed, name, observation)], **said)

    def note(self, name: str, value: float = 1, /, **labels: str) -> None:
        """Add `value` to the metric `name`."""
        self._note[name](value, labels or None)


def _observed(name: str, observation: Callable[..., Any], _: Any) -> list[Any]:
    """What an observed instrument answers when it is asked."""
    from lance_memwal.process.cache import CACHE

    if name == "lance_cache_lookups_total":
        counted = (("hit", CACHE.hits), ("miss", CACHE.misses))
        return [observation(count, {**_OURS, "outcome": outcome}) for outcome, count in counted]
    return [observation(CACHE.size_bytes if name == "lance_cache_size_bytes" else CACHE.limit_bytes, _OURS)]


class _Slot:
    """What was made for the provider that was seen last."""

    def __init__(self) -> None:
        self.found: tuple[Any, Any] = (None, None)


_METERS: Final = _Slot()
_TRACERS: Final = _Slot()


def active() -> Telemetry | None:
    """The instruments to record with; None if the application measures nothing."""
    api = sys.modules.get("opentelemetry.metrics")
    if api is None:
        return None
    provider = api.get_meter_provider()
    known, telemetry = _METERS.found
    if provider is not known:
        off = type(provider).__name__ in _OFF
        telemetry = None if off else Telemetry(provider.get_meter(_SCOPE), api.Observation)
        _METERS.found = provider, telemetry
    return telemetry  # type: ignore[no-any-return]


def _tracer() -> Any:
    """What makes spans; None if the application traces nothing."""
    api = sys.modules.get(_TRACES)
    if api is None:
        return None
    provider = api.get_tracer_provider()
    known, tracer = _TRACERS.found
    if provider is not known:
        tracer = None if type(provider).__name__ in _OFF else provider.get_tracer(_SCOPE)
        _TRACERS.found = provider, tracer
    return tracer


def spanned(
    name: str | Callable[..., str],
    operation: str | None = None,
    *,
    about: Callable[..., dict[str, str | int]] | None = None,
) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Put a span around every call; a read (`operation`) is timed, too.

    Args:
        name: The name of the span, or a function that returns it for the arguments of a call.
        about: Returns the attributes of the span. It is called with the arguments and `result=None` before the call, and
            again with the result unless that is None. It is not called if nothing is traced.
    """

    def around(call: Callable[_P, _T]) -> Callable[_P, _T]:
        timed = call if operation is None else _timed(call, operation)

        @wraps(call)
        def inside(*args: _P.args, **options: _P.kwargs) -> _T:
            if _TRACES not in sys.modules or (tracer := _tracer()) is None:
                return timed(*args, **options)
            known = None if about is None else about(*args, result=None, **options)
            title = name if isinstance(name, str) else name(*args, **options)
            with tracer.start_as_current_span(title, attributes=known) as span:
                result = timed(*args, **options)
                if about is not None and result is not None:
                    span.set_attributes(about(*args, result=result, **options))
                return result

        return inside

    return around


def _timed(call: Callable[_P, _T], operation: str) -> Callable[_P, _T]:
    def inside(*args: _P.args, **options: _P.kwargs) -> _T:
        told = active()
        if told is None:
            return call(*args, **options)
        started = SYSTEM_CLOCK.monotonic()
        try:
            return call(*args, **options)
        finally:
            told.note(_READ_SECONDS, SYSTEM_CLOCK.monotonic() - started, operation=operation)

    return inside


# ------------------------------------------------------------------------------------------------------- percentiles


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Times in seconds that a half, 95 %, 99 % and all of what was measured did not exceed, to 5 %; None: nothing was."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    slowest: float | None = None


UNMEASURED: Final = Percentiles()
_STEPS: Final = 8  # per doubling
_FINEST: Final = 1e-6
_BUCKETS: Final = 40 * _STEPS  # up to 12 days


class Latencies:
    """A histogram of times, in fixed memory; whoever adds holds a lock of his own."""

    __slots__ = ("_counts", "_slowest")

    def __init__(self) -> None:
        self._counts = [0] * (_BUCKETS + 1)
        self._slowest = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a time; 3 µs are in bucket 12: between 8 · log2(3) and the next whole number."""
        bucket = int(_STEPS * log2(seconds * 1e6)) if seconds > _FINEST else 0
        self._counts[bucket if bucket < _BUCKETS else _BUCKETS] += times
        if seconds > self._slowest:
            self._slowest = seconds

    def percentiles(self) -> Percentiles:
        """What was measured so far; the middle of a bucket stands for what is in it."""
        total = sum(self._counts)
        if not total:
            return UNMEASURED
        return Percentiles(self._at(0.5 * total), self._at(0.95 * total), self._at(0.99 * total), self._slowest)

    def _at(self, rank: float) -> float:
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if seen >= rank:
                return min(self._slowest, _FINEST * 2 ** ((bucket + 0.5) / _STEPS))
        return self._slowest
