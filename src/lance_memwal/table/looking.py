"""Observe a table repeatedly: its statistics and how fast they change.

Entry points: `Look`, `Looker`. Invariants:

1. It only reads storage, and claims no shard. Rates include the writes of all processes (`upkeep.rates`).
2. The first look has no rates. A look at a table that was re-created since the look before has none either.
"""

from __future__ import annotations

from dataclasses import dataclass

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.config import WriterConfig
from lance_memwal.table.table import Table
from lance_memwal.upkeep.reports import ShardStats, TableStats
from lance_memwal.upkeep.stats import Rates, TableRates, rates_between


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a table. `rates` is None at the first. Puts wait once a writer holds `limit_bytes` in memory."""

    time_ms: int
    stats: TableStats
    rates: TableRates | None = None
    limit_bytes: int = 0

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

    def __init__(self, table: Table, *, live_rows: bool = False, clock: Clock = SYSTEM_CLOCK) -> None:
        """`live_rows` is as in `Table.stats`."""
        self._table = table
        self._live_rows = live_rows
        self._clock = clock
        self._before: TableStats | None = None

    def next(self) -> Look:
        """The table now."""
        table, before = self._table, self._before
        after = self._before = table.stats(live_rows=self._live_rows, collectable=False)
        rates = None if before is None or before.base_version > after.base_version else rates_between(before, after)
        limits = WriterConfig.from_defaults(table.details().writer_config_defaults)
        return Look(self._clock.now_ms(), after, rates, limits.max_unflushed_memtable_bytes)
