"""One call that keeps a table healthy: every step that somebody would otherwise schedule, in the order that makes sense.

Owns `Maintenance`, and `compact_table`, which never passes over rows that are in a log only in silence. The steps: logs without a
live writer become SSTables, SSTables become base rows, indexes take these in, small base files become one, old versions go, and
what nobody needs is collected. Invariants:

1. No step changes what a read of the table shows, and none fences a living writer: only logs are claimed that are older
   than twice the age at which a live writer flushes by itself.
2. A step that loses its race against others, again and again, is postponed, and the report says so; the next call does it.
   Everything else that goes wrong is raised.
3. Indexes are merged before base files are rewritten, and brought up to date after it: see `lance_memwal.lance.optimize`.
4. A version that somebody needs (`lance_memwal.upkeep.pins`) is never removed.
5. The newest version survives power loss before an older one is removed, and when the call returns.
6. A call beside other calls, compactors and writers is right; it costs them conflicts at most.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import timedelta
from typing import Literal, TypeAlias

from lance_memwal.arguments import check_callable, check_choice, check_flag, check_instance, check_seconds
from lance_memwal.clock import RETRY, SYSTEM_CLOCK, Clock
from lance_memwal.compact.reports import CompactionReport, Progress
from lance_memwal.compact.run import Compactor
from lance_memwal.compact.trim import trim_all
from lance_memwal.config import DEFAULT_MEMTABLE_AGE_MS, WriterConfig
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.commit import let_survive
from lance_memwal.lance.identity import TableWatch
from lance_memwal.lance.optimize import (
    Rewritten,
    crowded,
    index_parts,
    old_versions,
    optimize_indexes,
    remove_versions,
    rewrite_files,
)
from lance_memwal.sstable.maintained import with_names
from lance_memwal.store.sequenced import FEW_TRIES
from lance_memwal.types import check_shard_ids
from lance_memwal.upkeep.checkpoint_records import tidy_checkpoints
from lance_memwal.upkeep.gc import Collector
from lance_memwal.upkeep.pins import read_pins
from lance_memwal.upkeep.reports import FlushReport, GcReport, MaintenanceReport
from lance_memwal.upkeep.tails import ShardOpener, flush_live, flush_tails, in_log_only

_LOG = logging.getLogger(__name__)
_MANY_PARTS = 8  # of an index: every search asks all of them
_STEPS = 6
_FLUSH_SECONDS = 60.0  # for a writer of this process that is asked to flush
DEFAULT_VERSIONS = timedelta(days=14)  # as Lance's own clean-up
IndexUpkeep: TypeAlias = Literal["catch_up", "defer"]


def check_maintenance(indexes: str, base_files: object, versions: object, grace_seconds: object) -> None:
    """Return only if a maintenance can be asked for with these options."""
    check_choice("indexes", indexes, ("catch_up", "defer"))
    check_flag("base_files", base_files)
    check_seconds("grace_seconds", grace_seconds)
    if versions is not None:
        check_instance("versions", versions, timedelta, "a timedelta or None")
        if isinstance(versions, timedelta) and versions < timedelta(0):
            raise InvalidInputError("versions must not be negative: it is how long old versions stay")


class Maintenance:
    """One maintenance of one table."""

    def __init__(
        self,
        newest_base: Callable[[], BaseTable],
        open_shard: ShardOpener,
        *,
        progress: Progress | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`open_shard` claims a shard whose log was left behind, for flushing."""
        check_callable("progress", progress)
        base = newest_base()
        base.need_details()
        self._location = base.location
        self._watch = TableWatch(base, clock)
        self._open_shard = open_shard
        self._progress = progress
        self._clock = clock
        self._postponed: dict[str, str] = {}

    def run(
        self,
        *,
        indexes: IndexUpkeep = "catch_up",
        base_files: bool = True,
        versions: timedelta | None = DEFAULT_VERSIONS,
        grace_seconds: float = 3600,
    ) -> MaintenanceReport:
        """Do every step, and say what was done."""
        check_maintenance(indexes, base_files, versions, grace_seconds)
        started = self._clock.monotonic()
        flushed = self._flush()
        self._did(1)
        compaction = self._compact()
        self._did(2)
        before = self._index_ids()
        if indexes == "catch_up":
            self._bring_up(merge=False)
        self._did(3)
        files = self._rewrite(merge=indexes == "catch_up") if base_files else Rewritten()
        brought_up = tuple(sorted(name for name, ids in self._index_ids().items() if before.get(name) != ids))
        trim_all(self._location, self._watch.look, self._clock)
        let_survive(self._watch.look())  # before older versions go
        self._did(4)
        removed = 0 if versions is None else self._remove_versions(versions)
        self._did(5)
        garbage = self._collect(grace_seconds)
        self._did(6)
        return MaintenanceReport(
            flushed=flushed,
            compaction=compaction,
            indexes=brought_up,
            files_removed=files.removed,
            files_added=files.added,
            versions_removed=removed,
            garbage=garbage,
            postponed=self._postponed,
            seconds=self._clock.monotonic() - started,
        )

    def _did(self, step: int) -> None:
        if self._progress is not None:
            self._progress("maintenance steps", step, _STEPS)

    # ------------------------------------------------------------------------------------------------------ the steps

    def _flush(self) -> FlushReport:
        base = self._watch.look()
        idle_seconds = claimable_after_seconds(base)
        opener = self._open_shard
        return flush_tails(self._location, opener, idle_seconds=idle_seconds, tag=base.tag, clock=self._clock)

    def _compact(self) -> CompactionReport:
        return Compactor(self._location, self._watch.look, clock=self._clock).run(progress=self._progress)

    def _bring_up(self, *, merge: bool) -> bool:
        """Bring the indexes up to date; False if others were faster every time."""
        base = with_names(self._watch.look(), self._clock)
        for attempt in range(FEW_TRIES):
            is_many = max(index_parts(base).values(), default=0) >= _MANY_PARTS
            base, made = optimize_indexes(base, merge=merge or is_many)
            if made:
                return True
            RETRY.wait(self._clock, attempt)
        self._postpone("indexes")
        return False

    def _rewrite(self, *, merge: bool) -> Rewritten:
        """Make one file of many small ones."""
        for attempt in range(FEW_TRIES):
            if not crowded(self._watch.look().manifest.fragments()):
                return Rewritten()
            if merge and not self._bring_up(merge=True):
                return Rewritten()
            base = self._watch.look()
            _, done = rewrite_files(base, crowded(base.manifest.fragments()))
            if done is not None:
                if merge:
                    self._bring_up(merge=False)  # which records anew how far they are
                return done
            RETRY.wait(self._clock, attempt)
        self._postpone("base files")
        return Rewritten()

    def _remove_versions(self, keep_for: timedelta) -> int:
        base = self._watch.look()
        before_ms = self._clock.now_ms() - int(keep_for.total_seconds() * 1000)
        tidy_checkpoints(base, self._clock)
        pinned = read_pins(base).base_versions
        return remove_versions(base, [version for version in old_versions(base, before_ms) if version not in pinned])

    def _collect(self, grace_seconds: float) -> GcReport:
        collector = Collector(self._location, self._watch.look, self._clock)
        return collector.run(grace_seconds=grace_seconds, progress=self._progress)

    def _postpone(self, step: str) -> None:
        self._postponed[step] = (
            f"others changed the base table during {FEW_TRIES} attempts; the next maintenance does it"
        )
        _LOG.info("postponed [table=%s, step=%s]", self._location.describe(), step)

    def _index_ids(self) -> dict[str, frozenset[str]]:
        """The parts of every index of the user."""
        base = self._watch.look()
        names = index_parts(base)
        return {name: frozenset(e.uuid for e in base.index_entries if e.name == name) for name in names}


def claimable_after_seconds(base: BaseTable) -> float:
    """How old the newest entry of a log must be so that no living writer can own it."""
    age_ms = WriterConfig.from_defaults(base.need_details().writer_config_defaults).max_memtable_age_ms
    return 2 * (DEFAULT_MEMTABLE_AGE_MS if age_ms is None else age_ms) / 1000


def compact_table(
    newest_base: Callable[[], BaseTable],
    flush: Callable[[Collection[str] | None], FlushReport] | None,
    *,
    shards: Collection[str | uuid.UUID] | None,
    max_generations: int | None,
    progress: Progress | None,
    memory_bytes: int,
) -> CompactionReport:
    """Fold published generations; with `flush`, which publishes logs that were left behind, everything that can be."""
    named = None if shards is None else check_shard_ids(shards)
    base = newest_base()
    location, busy = base.location, dict[str, str]()
    if flush is not None:
        busy = flush_live(location, _FLUSH_SECONDS, shards=named) | flush(named).skipped
    compactor = Compactor(location, newest_base, memory_bytes=memory_bytes)
    report = compactor.run(shards=named, max_generations=max_generations, progress=progress)
    left = in_log_only(location, shards=named, tag=base.tag)
    reasons = {
        shard_id: busy.get(shard_id, f"{entries} entries are in its log only: compact(flush=True) folds them, too")
        for shard_id, entries in left.items()
    }
    return replace(report, in_log_only=reasons)
