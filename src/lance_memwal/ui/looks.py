"""Looks at a table, as often as somebody wants to see it and it may be looked at.

Owns `Looks` and its samples. Invariants:

1. Nobody asks, nobody looks. However many ask, there is one look at a time, and the next one comes after the wait that was
   set, or after several times as long as the last one took: watching never becomes the load.
2. A look is that of `table.looking`. What was seen before is kept as small samples, a fixed number of them.
3. A look that fails is an error to whoever asked; the samples stay.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.store.metering import CallStats
from lance_memwal.table import Table
from lance_memwal.table.looking import Look, Looker
from lance_memwal.upkeep.reports import TableStats

EVERY_SECONDS: Final = 2.0
_KEPT: Final = 900
_REST: Final = 4  # so many times as long as a look takes, nobody looks
_TIERS: Final = ("memtable", "frozen", "sstable", "compacted")


@dataclass(frozen=True, slots=True)
class Sample:
    """What a plot needs of one look; rates are None at the first.

    `latency` is the mean seconds of the store calls of this process since the look before, by operation.
    """

    number: int
    time_ms: int
    entries: float | None
    size_bytes: float | None
    live_rows: int | None
    lag_entries: int
    debt_generations: int
    latency: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Seen:
    """A look, and its sample."""

    look: Look
    sample: Sample


class Looks:
    """The table, looked at when somebody asks. Threads may share it."""

    def __init__(self, table: Table, *, every_seconds: float = EVERY_SECONDS, clock: Clock = SYSTEM_CLOCK) -> None:
        """`every_seconds` is the wait between looks, at least; 0: none."""
        self._looker = Looker(table, live_rows=True, clock=clock)
        self._every_seconds = every_seconds
        self._clock = clock
        self._turn = threading.Lock()
        self._newest: Seen | None = None
        self._next_at = 0.0
        self._samples: deque[Sample] = deque(maxlen=_KEPT)

    def newest(self) -> Seen:
        """The table now, or as it was a moment ago."""
        found = self._newest
        if found is not None and not self._is_due():
            return found
        if not self._turn.acquire(blocking=found is None):
            return found or self.newest()  # somebody is looking; the last look will do
        try:
            found = self._newest
            return found if found is not None and not self._is_due() else self._look()
        finally:
            self._turn.release()

    def after(self, number: int) -> list[Sample]:
        """The samples since the one of that number."""
        return [sample for sample in list(self._samples) if sample.number > number]

    def _is_due(self) -> bool:
        return self._clock.monotonic() >= self._next_at

    def _look(self) -> Seen:
        before, started = self._newest, self._clock.monotonic()
        try:
            look = self._looker.next()
        finally:
            ended = self._clock.monotonic()
            wait = max(self._every_seconds, _REST * (ended - started)) if self._every_seconds else 0.0
            self._next_at = ended + wait
        sample = _sample(1 if before is None else before.sample.number + 1, look, before)
        self._samples.append(sample)
        self._newest = Seen(look, sample)
        return self._newest


def _sample(number: int, look: Look, before: Seen | None) -> Sample:
    stats, rates = look.stats, look.rates
    return Sample(
        number=number,
        time_ms=look.time_ms,
        entries=None if rates is None else rates.entries,
        size_bytes=None if rates is None else rates.size_bytes,
        live_rows=stats.live_rows,
        lag_entries=stats.wal_lag_entries,
        debt_generations=stats.uncompacted_generations,
        latency=_latency({} if before is None else before.look.stats.store_calls, stats.store_calls),
    )


def _latency(before: Mapping[str, CallStats], after: Mapping[str, CallStats]) -> dict[str, float]:
    """Per operation the mean seconds of the calls between two looks; those that were not made are left out."""
    found = {}
    for operation, calls in after.items():
        old = before.get(operation, CallStats())
        if calls.count > old.count:
            found[operation] = (calls.seconds - old.seconds) / (calls.count - old.count)
    return found


def tiers_of(stats: TableStats) -> dict[str, dict[str, int]]:
    """Generations, rows and bytes of all shards, by tier."""
    found = {tier: {"generations": 0, "rows": 0, "size_bytes": 0} for tier in _TIERS}
    for shard in stats.shards:
        for generation in shard.generations:
            sums = found[generation.tier]
            sums["generations"] += 1
            sums["rows"] += generation.rows or 0
            sums["size_bytes"] += generation.size_bytes or 0
    return found
