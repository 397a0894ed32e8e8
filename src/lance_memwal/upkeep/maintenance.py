"""The maintenance calls of a table: flush tails, compact, collect, verify, repair, statistics.

Owns `Maintenance`, the part of `Table` that keeps a table small and sound; no engine logic, every call hands over to the
module that does the work.

Called by: users, through `Table`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lance_memwal.arguments import check_choice, check_flag
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.compact.policy import CompactionPolicy
from lance_memwal.compact.reports import CompactionReport, Progress
from lance_memwal.compact.run import DEFAULT_MEMORY_BYTES, Compactor
from lance_memwal.errors import CorruptDataError
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.shards import list_shards
from lance_memwal.store.location import Location
from lance_memwal.upkeep.gc import Collector
from lance_memwal.upkeep.repair import repair_table
from lance_memwal.upkeep.reports import FlushReport, GcReport, RepairReport, TableStats, VerifyReport
from lance_memwal.upkeep.restored import Restored
from lance_memwal.upkeep.stats import collect_stats
from lance_memwal.upkeep.tails import flush_tails
from lance_memwal.upkeep.verify import inspect_base, inspect_shard

__all__ = ["Maintenance"]


class Maintenance:
    """The calls that keep a table small and sound."""

    location: Location

    def _newest_base(self) -> BaseTable:
        raise NotImplementedError

    def _open_shard(self, shard_id: str | None, config: Any, overrides: dict[str, Any], *, routed: bool) -> Any:
        raise NotImplementedError

    def flush(
        self, *, shards: Collection[str] | None = None, idle_seconds: float = 60, force: bool = False
    ) -> FlushReport:
        """Turn the log tails of shards that nobody writes any more into SSTables.

        This claims the shards. Those whose newest entry is younger than `idle_seconds`, or that a writer of this process
        owns, are skipped and reported; `force=True` takes them too, and fences their writers.
        """

        def open_shard(shard_id: str) -> Any:
            return self._open_shard(shard_id, None, {"enable_memtable": True}, routed=True)

        tag = self._newest_base().tag
        return flush_tails(self.location, open_shard, shards=shards, idle_seconds=idle_seconds, force=force, tag=tag)

    def compact(
        self,
        *,
        shards: Collection[str] | None = None,
        max_generations: int | None = None,
        progress: Progress | None = None,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> CompactionReport:
        """Fold published generations into the base table, newest row per key, data and progress together.

        Runs beside writers and readers and fences nobody; several may run at once. `max_generations` bounds the work per
        shard, `memory_bytes` the memory; `progress` is told what was done and how much is left.
        """
        compactor = Compactor(self.location, self._newest_base, memory_bytes=memory_bytes)
        return compactor.run(shards=shards, max_generations=max_generations, progress=progress)

    def gc(
        self,
        *,
        dry_run: bool = False,
        grace_seconds: float = 3600,
        progress: Progress | None = None,
        optimize_indices: bool = False,
    ) -> GcReport:
        """Delete what nobody needs any more: covered log entries, compacted SSTables, old manifests, orphans.

        What became unneeded within the grace period stays. `optimize_indices` lets the indexes of the base table catch up
        first, since an index that lags keeps its SSTables.
        """
        collector = Collector(self.location, self._newest_base)
        return collector.run(
            dry_run=dry_run, grace_seconds=grace_seconds, optimize_indices=optimize_indices, progress=progress
        )

    def verify(self) -> VerifyReport:
        """Check every invariant of the table on storage; reads only, and may run beside writers."""
        started = SYSTEM_CLOCK.monotonic()
        shards = list_shards(self.location)
        problems = inspect_base(self._base_to_inspect(), shards)
        found = [inspect_shard(self.location, shard_id, self._base_to_inspect) for shard_id in shards]
        return VerifyReport(
            problems=problems + [problem for findings in found for problem in findings.problems],
            shards=len(found),
            entries=sum(len(findings.entries) for findings in found),
            sstables=sum(findings.sstables for findings in found),
            seconds=SYSTEM_CLOCK.monotonic() - started,
        )

    def repair(self, *, dry_run: bool = True, restored: Restored | None = None) -> RepairReport:
        """Put right what can be without losing anything: a torn last entry, a lost MemWAL index.

        After the base table was restored to a version before a compaction, a person must decide: `restored="keep_base"`
        takes it as it is, and what was compacted after that version is gone; `restored="bring_back"` lists the compacted
        generations again, if they still exist.
        """
        check_flag("dry_run", dry_run)
        if restored is not None:
            check_choice("restored", restored, ("keep_base", "bring_back"))
        return repair_table(self.location, self._base_to_inspect, dry_run=dry_run, restored=restored)

    def _base_to_inspect(self) -> BaseTable:
        """The newest base version, or the newest that can be read: damage is reported, not raised."""
        try:
            return self._newest_base()
        except CorruptDataError:
            base = BaseTable.open_newest_readable(self.location)
            if base is None:
                raise
            return base

    def stats(self) -> TableStats:
        """Tiers, rows and bytes, and what compaction and collection would do."""
        garbage = Collector(self.location, self._newest_base).run(dry_run=True)
        return collect_stats(self.location, self._newest_base(), garbage, CompactionPolicy())
