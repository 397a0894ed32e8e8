"""How fast a table changes: rates between two of its statistics, for `memwal top` and the web page.

Rates come from storage, so they are those of all processes together. Entries are counted by position: GC and flushes take
nothing away. Bytes are exact unless GC deleted entries; then each new entry counts as the mean of the entries that are left.
A shard that is new, or whose log was re-created, has rates of zero. No rate is negative.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from lance_memwal.errors import InvalidInputError
from lance_memwal.upkeep.reports import ShardStats, TableStats


@dataclass(frozen=True, slots=True)
class Rates:
    """Log entries, their bytes, new SSTables and compacted ones, per second; and the number of takeovers."""

    entries: float = 0.0
    size_bytes: float = 0.0
    flushes: float = 0.0
    compacted: float = 0.0
    takeovers: int = 0


@dataclass(frozen=True, slots=True)
class TableRates(Rates):
    """The sums over all shards, and the rates of each in the order of the statistics.

    `base_rows` is the growth of the base table. `requests` and `dollars` are those of this process. All are per second.
    """

    seconds: float = 0.0
    shards: tuple[Rates, ...] = ()
    base_rows: float = 0.0
    requests: float = 0.0
    dollars: float = 0.0


def rates_between(before: TableStats, after: TableStats) -> TableRates:
    """The rates between two statistics of one table and process."""
    seconds = after.seen_seconds - before.seen_seconds
    if seconds <= 0:
        raise InvalidInputError("rates need two observations, the older one first")
    known = {shard.shard_id: shard for shard in before.shards}
    shards = tuple(_rates(known.get(shard.shard_id), shard, seconds) for shard in after.shards)
    requests = [sum(calls.count for calls in stats.store_calls.values()) for stats in (before, after)]
    sums: dict[str, Any] = {field.name: sum(getattr(shard, field.name) for shard in shards) for field in fields(Rates)}
    return TableRates(
        **sums,
        seconds=seconds,
        shards=shards,
        base_rows=(after.base_rows - before.base_rows) / seconds,
        requests=max(0, requests[1] - requests[0]) / seconds,
        dollars=max(0.0, after.request_cost_dollars - before.request_cost_dollars) / seconds,
    )


def _rates(before: ShardStats | None, after: ShardStats, seconds: float) -> Rates:
    if before is None or after.epoch < before.epoch or after.wal_tip < before.wal_tip:
        return Rates()
    entries = after.wal_tip - before.wal_tip
    written_bytes: float = max(0, after.wal_bytes - before.wal_bytes)
    if after.wal_first > before.wal_first and before.wal_entries:
        written_bytes = entries * after.wal_bytes / max(1, after.wal_entries)
    flushes = max(0, after.current_generation - before.current_generation)
    compacted = max(0, after.compacted_generation - before.compacted_generation)
    return Rates(
        entries / seconds, written_bytes / seconds, flushes / seconds, compacted / seconds, after.epoch - before.epoch
    )
