"""How fast a table changes: rates from two observations of its statistics.

Owns `rates_between` and its values. Whoever shows rates keeps the last `TableStats` and compares it with the next one.
Invariants:

1. Storage is all that is looked at, so that rates are those of every process together. Entries are counted by their
   positions, which only grow: collection and flushes between two looks take nothing away.
2. Nothing is below zero. A shard that was not there before, or whose log began anew, has no rate yet, but is listed.
3. Bytes are exact as long as nothing was collected between the looks; then the new entries count with the mean size of
   those that are there.
"""

from __future__ import annotations

from dataclasses import dataclass

from lance_memwal.errors import InvalidInputError
from lance_memwal.upkeep.reports import ShardStats, TableStats

__all__ = ["ShardRates", "TableRates", "rates_between"]


@dataclass(frozen=True, slots=True)
class ShardRates:
    """What happened in one shard, per second: entries and bytes of its log, SSTables that came and that were compacted.

    `takeovers` is how often its owner changed between the two looks.
    """

    shard_id: str
    entries: float = 0.0
    size_bytes: float = 0.0
    flushes: float = 0.0
    compacted: float = 0.0
    takeovers: int = 0


@dataclass(frozen=True, slots=True)
class TableRates:
    """What happened in a table within `seconds`: per shard in the order of its statistics, and in all.

    `base_rows` is the growth of the base table, `requests` and `dollars` what this process asked of the store, per second.
    """

    seconds: float
    shards: tuple[ShardRates, ...] = ()
    base_rows: float = 0.0
    base_versions: int = 0
    requests: float = 0.0
    dollars: float = 0.0

    def _sum(self, name: str) -> float:
        return sum(float(getattr(shard, name)) for shard in self.shards)

    @property
    def entries(self) -> float:
        """Entries of all logs, per second."""
        return self._sum("entries")

    @property
    def size_bytes(self) -> float:
        """Bytes of those entries, per second."""
        return self._sum("size_bytes")

    @property
    def flushes(self) -> float:
        """New SSTables, per second."""
        return self._sum("flushes")

    @property
    def compacted(self) -> float:
        """SSTables that the base table took over, per second."""
        return self._sum("compacted")

    @property
    def takeovers(self) -> int:
        """How often a shard got another owner."""
        return int(self._sum("takeovers"))


def rates_between(before: TableStats, after: TableStats) -> TableRates:
    """What happened from one look at a table to the next; both are of the same process."""
    seconds = after.seen_seconds - before.seen_seconds
    if seconds <= 0:
        raise InvalidInputError("rates need two observations, the older one first")
    known = {shard.shard_id: shard for shard in before.shards}
    asked = sum(calls.count for calls in after.store_calls.values()) - sum(c.count for c in before.store_calls.values())
    return TableRates(
        seconds,
        tuple(_shard(known.get(shard.shard_id), shard, seconds) for shard in after.shards),
        base_rows=(after.base_rows - before.base_rows) / seconds,
        base_versions=max(0, after.base_version - before.base_version),
        requests=max(0, asked) / seconds,
        dollars=max(0.0, after.request_cost_dollars - before.request_cost_dollars) / seconds,
    )


def _shard(before: ShardStats | None, after: ShardStats, seconds: float) -> ShardRates:
    if before is None or after.epoch < before.epoch or after.wal_tip < before.wal_tip:
        return ShardRates(after.shard_id)
    return ShardRates(
        after.shard_id,
        entries=(after.wal_tip - before.wal_tip) / seconds,
        size_bytes=_written_bytes(before, after) / seconds,
        flushes=max(0, after.current_generation - before.current_generation) / seconds,
        compacted=max(0, after.compacted_generation - before.compacted_generation) / seconds,
        takeovers=after.epoch - before.epoch,
    )


def _written_bytes(before: ShardStats, after: ShardStats) -> float:
    """Bytes of the entries above the tip of `before`."""
    new = after.wal_tip - before.wal_tip
    if after.wal_first <= before.wal_first or not before.wal_entries:
        return max(0, after.wal_bytes - before.wal_bytes)
    return new * after.wal_bytes / after.wal_entries if after.wal_entries else 0.0
