"""Compaction: published generations become rows of the base table.

Owns `Compactor` and `choose`. Invariants:

1. Generations are folded in ascending order without a gap, from the one after the recorded mark; data and marks reach
   the base table together (`lance_memwal.lance.commit`).
2. A compaction commits only on a version that records what it started from. Where others changed the base meanwhile, what
   was made ready is committed on top of their version; where progress or columns are other ones, it starts over, from
   fresh manifests and a fresh base. What it wrote for nothing is removed.
3. It ends where the table turns out to be another one (`TableReplacedError`): it is looked at before every commit. It needs
   no epoch and fences nobody.
4. When a generation leaves the manifest is the matter of `lance_memwal.compact.trim`; until then readers skip it by its
   mark, and the next compaction starts after it.
5. A table with dictionaries of few values (8 or 16 bits) folds one generation per commit: the values of several may be
   more than a file of the base table can hold, and Lance would write that file and never read it.
6. A generation with undecided columns (RFC 0036) stays in its manifest, and so do the later ones of its shard.
7. Memory is bounded by `memory_bytes` and the keys of the generations of one commit, not by the SSTables: what does not
   fit is left for the next commit, and a generation that is larger by itself is streamed.

Manifests are read before the base: a generation that a manifest no longer lists is then marked in the base that is read
after it.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from lance_memwal.arguments import check_callable, check_number
from lance_memwal.clock import RETRY, SYSTEM_CLOCK, Clock
from lance_memwal.compact.reports import CompactionReport, Progress, ShardCompaction
from lance_memwal.compact.trim import trim
from lance_memwal.crash_points import reach
from lance_memwal.errors import (
    CollectedError,
    ConflictError,
    CorruptDataError,
    ObjectNotFoundError,
    UndecidedColumnsError,
)
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.commit import HandMade, Ready, let_survive, merge_rows, next_base, syncs
from lance_memwal.lance.identity import TableWatch
from lance_memwal.lance.marks import compacted
from lance_memwal.lance.prepared import Unheld
from lance_memwal.lance.restored import check_not_restored
from lance_memwal.log.shards import list_shards, newest_manifests, sstable_sizes
from lance_memwal.process.telemetry import active, spanned
from lance_memwal.rows.dictionaries import small_dictionaries
from lance_memwal.rows.keys import KeySet
from lance_memwal.sstable.catch_up import CatchUp
from lance_memwal.sstable.deletes import remember_deletes
from lance_memwal.sstable.fold import Folded, fold, size_of
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest, SsTable, check_shard_ids

_LOG = logging.getLogger(__name__)
DEFAULT_MEMORY_BYTES = 512 << 20
_MAX_RESTARTS = 32
_MAX_TRIES = 1000  # of one commit, each of which looks only at what others changed since the last

Manifests = Mapping[str, ShardManifest]
Chosen = Mapping[str, Sequence[SsTable]]


class Staged(Ready, Protocol):
    """Generations that were made ready to be committed."""

    @property
    def rows(self) -> int:
        """New rows, once they are committed."""
        ...

    @property
    def deletes(self) -> int:
        """Tombstones, once they are committed."""
        ...


def pending_generations(manifest: ShardManifest, mark_generation: int) -> tuple[SsTable, ...]:
    """The listed generations above the mark, ascending; `CorruptDataError` if one of them is missing."""
    listed = manifest.above(mark_generation)
    wanted = list(range(mark_generation + 1, mark_generation + 1 + len(listed)))
    if [sstable.generation for sstable in listed] != wanted:
        raise CorruptDataError(
            f"generations {[s.generation for s in listed]} are listed, the base table holds those up to "
            f"{mark_generation}: one is missing; run verify",
            path=paths.manifest_path(manifest.shard_id, manifest.version),
        )
    return listed


@dataclass(slots=True)
class _Tally:
    """What one call of `Compactor.run` has done so far."""

    rows_written: int = 0
    rows_deleted: int = 0
    size_bytes: int = 0
    commits: int = 0
    conflicts: int = 0
    restarts: int = 0
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    trimmed: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    sizes: dict[str, Counter[str]] = field(default_factory=dict)

    def forgot(self, trimmed: Mapping[str, int]) -> None:
        """Count generations that manifests no longer list."""
        for shard_id, number in trimmed.items():
            self.trimmed[shard_id] = self.trimmed.get(shard_id, 0) + number

    def miss(self, path: str) -> None:
        """Note that a listed SSTable is not there; what a fresh list names again is lost, not collected."""
        if path in self.missing:
            raise CorruptDataError("the shard lists an SSTable that is not there", path=path)
        self.missing.add(path)

    def span(self, shard_id: str) -> tuple[int, int]:
        """The first and last generation folded; an empty span if the shard was trimmed only."""
        first, last = self.spans.get(shard_id, (1, 0))
        return first, last

    def measure(self, chosen: Chosen, location: Location) -> None:
        """List each shard once, for the sizes of its SSTables."""
        for shard_id in chosen.keys() - self.sizes.keys():
            self.sizes[shard_id] = sstable_sizes(shard_id, location.store.list(paths.shard_dir(shard_id)))

    def count(self, chosen: Chosen) -> None:
        """Count generations that were folded."""
        for shard_id, sstables in chosen.items():
            first = self.spans.get(shard_id, (sstables[0].generation, 0))[0]
            self.spans[shard_id] = (first, sstables[-1].generation)
            self.size_bytes += sum(self.sizes[shard_id][sstable.path] for sstable in sstables)


class Compactor:
    """Compacts one table; threads and processes may run several of them at once."""

    def __init__(
        self,
        location: Location,
        newest_base: Callable[[], BaseTable],
        *,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        clock: Clock = SYSTEM_CLOCK,
        stage: Callable[[Chosen], Staged] | None = None,
    ) -> None:
        """`newest_base` gives the newest version of the base table.

        `stage` makes what is chosen ready elsewhere; without it, and on a base that takes no hand-made version, it is
        folded here.
        """
        check_number("memory_bytes", memory_bytes, least=1)
        self._location = location
        self._newest_base = newest_base
        self._memory_bytes = memory_bytes
        self._clock = clock
        self._stage = stage
        self._watch: TableWatch | None = None

    # ------------------------------------------------------------------------------------------------------ the run

    @spanned("memwal.compact")
    def run(
        self,
        *,
        shards: Collection[str | uuid.UUID] | None = None,
        max_generations: int | None = None,
        progress: Progress | None = None,
    ) -> CompactionReport:
        """Fold what is published now into the base table, at most `max_generations` of each shard, oldest first.

        What is published meanwhile is left for the next run, so that a run beside a busy writer ends.
        """
        if max_generations is not None:
            check_number("max_generations", max_generations, least=1)
        check_callable("progress", progress)
        shards = None if shards is None else check_shard_ids(shards)
        started = self._clock.monotonic()
        tally = _Tally()
        targets = self._targets(shards, max_generations)
        while True:
            try:
                left = self._step(targets, tally)
            except UndecidedColumnsError as error:
                targets[error.shard_id or ""] = error.generation - 1
                _LOG.warning("kept a generation [shard=%s, generation=%d]: %s", error.shard_id, error.generation, error)
                continue
            except (CollectedError, ConflictError, ObjectNotFoundError) as error:
                if isinstance(error, ObjectNotFoundError):
                    tally.miss(error.path)
                self._back_off(tally, error)
                continue
            if progress is not None:
                done = sum(span[1] - span[0] + 1 for span in tally.spans.values())
                progress("compacted generations", done, done + left)
            if not left:
                newest = self._newest_base()
                if tally.commits:
                    let_survive(newest)  # a trim does so, too, but not every run ends with one
                return _told(self._report(tally, newest, started))

    def _targets(self, shards: Collection[str] | None, max_generations: int | None) -> dict[str, int]:
        """Per shard the last generation that this run folds."""
        manifests = self._manifests(shards)
        base = self._base()
        marks = compacted(base)
        targets = {}
        for shard_id, manifest in manifests.items():
            check_not_restored(base, manifest, marks.get(shard_id, 0))
            pending = pending_generations(manifest, marks.get(shard_id, 0))
            chosen = pending if max_generations is None else pending[:max_generations]
            targets[shard_id] = chosen[-1].generation if chosen else 0
        return targets

    def _manifests(self, shards: Collection[str] | None) -> dict[str, ShardManifest]:
        chosen = list_shards(self._location, shards)
        return {manifest.shard_id: manifest for manifest in newest_manifests(self._location, chosen)}

    def _base(self) -> BaseTable:
        """The newest version of the table that this compactor began with."""
        if self._watch is not None:
            return self._watch.look()
        base = self._newest_base()
        base.need_details()
        self._watch = TableWatch(base, self._clock)
        return base

    def _step(self, targets: Mapping[str, int], tally: _Tally) -> int:
        """Fold one commit's worth; returns the number of generations that are left."""
        manifests = self._manifests(targets)
        base = self._base()
        marks = compacted(base)
        pending = {
            shard_id: [
                sstable
                for sstable in pending_generations(manifest, marks.get(shard_id, 0))
                if sstable.generation <= targets[shard_id]
            ]
            for shard_id, manifest in manifests.items()
        }
        chosen = choose(pending, self._memory_bytes, at_most=1 if small_dictionaries(base.schema) else None)
        reach("compact.chosen")
        if not chosen:
            self._trim(manifests, base, tally)
            return 0
        tally.measure(chosen, self._location)
        newest = self._fold(base, chosen, tally)
        reach("compact.after_commit")
        tally.count(chosen)
        tally.commits += 1
        self._trim(manifests, newest, tally)
        return sum(len(sstables) for sstables in pending.values()) - sum(len(s) for s in chosen.values())

    def _trim(self, manifests: Manifests, base: BaseTable, tally: _Tally) -> None:
        tally.forgot(trim(manifests, base, self._base, self._clock))
        tally.waiting = CatchUp.of(base).waiting(manifests.values())

    def _back_off(self, tally: _Tally, error: Exception) -> None:
        tally.conflicts += 1
        tally.restarts += 1
        if tally.restarts > _MAX_RESTARTS:
            raise error
        RETRY.wait(self._clock, tally.restarts)

    def _report(self, tally: _Tally, newest: BaseTable, started: float) -> CompactionReport:
        shards = sorted(set(tally.spans) | set(tally.trimmed))
        return CompactionReport(
            shards=tuple(ShardCompaction(shard, *tally.span(shard), tally.trimmed.get(shard, 0)) for shard in shards),
            rows_written=tally.rows_written,
            rows_deleted=tally.rows_deleted,
            size_bytes=tally.size_bytes,
            commits=tally.commits,
            conflicts=tally.conflicts,
            base_version=newest.version,
            waiting_for_indexes=tally.waiting,
            seconds=self._clock.monotonic() - started,
        )

    # ----------------------------------------------------------------------------------------------------- one commit

    def _remember_deletes(self, base: BaseTable, chosen: Chosen) -> None:
        """Write the deletes down that late rows must still meet, where the table puts its rows in order."""
        if base.order is not None:
            for shard_id, sstables in chosen.items():
                remember_deletes(self._location, shard_id, sstables, base.columns, base.order.sequence, self._clock)
            reach("compact.after_deletes")

    def _fold(self, base: BaseTable, chosen: Chosen, tally: _Tally) -> BaseTable:
        base.check_compactable()
        self._remember_deletes(base, chosen)
        if self._stage is not None and base.takes_staged_commit:
            staged = self._stage(chosen)
            newest, rows, deletes = self._land(staged, base, tally), staged.rows, staged.deletes
        else:
            newest, rows, deletes = self._fold_here(base, chosen, tally)
        tally.rows_written += rows
        tally.rows_deleted += deletes
        _LOG.info(
            "compacted [version=%d, shards=%d, generations=%d, rows=%d, deletes=%d]",
            newest.version,
            len(chosen),
            sum(map(len, chosen.values())),
            rows,
            deletes,
        )
        return newest

    def _fold_here(self, base: BaseTable, chosen: Chosen, tally: _Tally) -> tuple[BaseTable, int, int]:
        """The version that holds the chosen generations, their rows and their deletes."""
        marks = {shard_id: sstables[-1].generation for shard_id, sstables in chosen.items()}
        members = [(shard_id, sstable) for shard_id, sstables in chosen.items() for sstable in sstables]
        folded = fold(self._location, members, base.columns, self._memory_bytes)
        return self._commit_folded(base, folded, marks, tally), folded.rows, folded.deletes.num_rows

    def _commit_folded(self, base: BaseTable, folded: Folded, marks: Mapping[str, int], tally: _Tally) -> BaseTable:
        """The way that the base table allows, and that is likely to succeed."""

        def batches() -> Iterator[pa.RecordBatch]:
            return folded.batches(base.schema)

        upserts = batches if folded.rows else None
        if not base.takes_hand_commit:
            return merge_rows(base, folded.deletes, upserts, marks)
        keys, files = KeySet(folded.keys) if base.primary_key else None, Unheld(self._location.store)
        ready = HandMade(keys, upserts, marks, self._clock, files, fsync=syncs(base))
        return self._land(ready, base, tally)

    def _land(self, ready: Ready, base: BaseTable, tally: _Tally) -> BaseTable:
        """Commit what is ready on `base`, or on the first later version on which it wins.

        Beside somebody who commits all the time there is no point in waiting: the next attempt is as likely to win as any.
        """
        try:
            for _ in range(_MAX_TRIES):
                try:
                    return ready.commit(base)
                except ConflictError:
                    base = next_base(base)
                    tally.conflicts += 1
            raise ConflictError(f"others commit faster than {_MAX_TRIES} attempts of a compaction; retry")
        finally:
            ready.discard()


def choose(
    pending: Mapping[str, Sequence[SsTable]], memory_bytes: int, *, at_most: int | None = None
) -> dict[str, list[SsTable]]:
    """What fits one commit: of every shard its oldest generations, at least one and `at_most` generations in all."""
    chosen: dict[str, list[SsTable]] = {}
    left = memory_bytes
    for shard_id, sstables in pending.items():
        for sstable in sstables:
            size = size_of(sstable)
            if (size > left and chosen) or at_most == sum(map(len, chosen.values())):
                break
            chosen.setdefault(shard_id, []).append(sstable)
            left -= size
        if left <= 0:
            break
    return chosen


def _told(report: CompactionReport) -> CompactionReport:
    if report.generations and (told := active()) is not None:
        told.note("lance_mem_wal_compaction_duration_seconds", report.seconds)
        told.note("lance_mem_wal_compaction_generations_total", report.generations)
        told.note("lance_mem_wal_compaction_rows_total", report.rows_written)
        for waiting in report.waiting_for_indexes.values():
            told.note("lance_mem_wal_index_lag_generations", waiting)
    return report
