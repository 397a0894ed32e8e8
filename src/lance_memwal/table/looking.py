"""Looks at a table, one after the other: its statistics, how fast they change, and what its owners say.

Owns `Look` and `Looker`. Invariants:

1. It only reads, and claims nothing. Rates are those of all processes together (`upkeep.rates`); what is in memory is known of
   owners that are served, who are asked, so many of them.
2. The first look has no rates; neither has one at a table that was made anew meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lance_memwal.clock import SYSTEM_CLOCK, Clock, in_order
from lance_memwal.config import WriterConfig
from lance_memwal.serve.asked import AskedOwners, OwnerSight
from lance_memwal.table.table import Table, newest_base
from lance_memwal.upkeep.reports import ShardStats, TableStats
from lance_memwal.upkeep.stats import Rates, TableRates, rates_between

_ASKED_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a table. `rates` is None at the first; `owners` are those who answered, by shard."""

    time_ms: int
    stats: TableStats
    rates: TableRates | None = None
    limit_bytes: int = 0
    owners: dict[str, OwnerSight] = field(default_factory=dict)

    def shards(self) -> list[tuple[ShardStats, Rates]]:
        """The shards with their rates, by id."""
        rates = self.rates.shards if self.rates else [Rates()] * len(self.stats.shards)
        return list(zip(self.stats.shards, rates, strict=True))

    def busiest(self) -> list[tuple[ShardStats, Rates]]:
        """The shards, those where most happens first, then those where most waits."""
        pairs = self.shards()
        return sorted(pairs, key=lambda pair: (-pair[1].entries, -pair[0].wal_lag_bytes, -pair[0].uncompacted_rows))


class Looker:
    """Looks at one table, each compared with the one before."""

    def __init__(self, table: Table, *, asked: int, live_rows: bool = False, clock: Clock = SYSTEM_CLOCK) -> None:
        """The owners of the busiest shards are `asked`; `live_rows` is as in `Table.stats`."""
        self._table = table
        self._asked = asked
        self._live_rows = live_rows
        self._clock = clock
        self._owners = AskedOwners(table.location, newest_base(table).table_id)
        self._before: TableStats | None = None

    def next(self) -> Look:
        """The table now."""
        table, before = self._table, self._before
        after = self._before = table.stats(live_rows=self._live_rows, collectable=False)
        rates = None if before is None or before.base_version > after.base_version else rates_between(before, after)
        limits = WriterConfig.from_defaults(table.details().writer_config_defaults)
        look = Look(self._clock.now_ms(), after, rates, limits.max_unflushed_memtable_bytes)
        busiest = [shard for shard, _ in look.busiest()[: self._asked]]
        found = in_order(self._ask, busiest, _ASKED_AT_ONCE, "memwal-ask")
        look.owners.update({s.shard_id: sight for s, sight in zip(busiest, found, strict=True) if sight is not None})
        return look

    def _ask(self, shard: ShardStats) -> OwnerSight | None:
        return self._owners.ask(shard.shard_id, shard.epoch)
