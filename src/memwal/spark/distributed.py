"""Compaction of a big table by many tasks, with one commit on the driver.

Owns `DistributedCompactor` and the choice between it and one process (`is_big`). Stage A (a task per shard) writes the
newest rows of the chosen generations as new fragments; stage B (a task per base fragment) writes deletion vectors for
the rows that they replace or delete; the driver commits both, and the marks. What is chosen, retried, trimmed and
reported is `memwal.compact`'s. Invariants:

1. Rows and marks are one commit, on exactly the version after the one that stage B looked at: its manifest is created
   if absent. There is no moment between rows and mark in which a crash could leave one without the other. (Lance's own
   `Update` cannot carry marks, and it rebases over a merge that only inserted rows: both would hold the same keys.)
2. After a conflict stage A counts as long as the generations and the columns are the same ones, and stage B for every
   fragment that is unchanged: only what changed is looked at again.
3. Two units never hold the same key: where the sharding does not see to it, all shards are one unit.
4. Staged keys are deleted when the run ends, whatever its end is; what a dead driver left is collected.

A base table that takes no hand-made commit (`BaseTable.takes_hand_commit`: stable row ids above all) is compacted by
one process.

Called by: `memwal.spark.compact`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from memwal.base_commit import commit_by_hand
from memwal.base_table import BaseTable
from memwal.clock import SYSTEM_CLOCK, Clock
from memwal.compact import Compactor, is_key_indexed, pending_generations, size_of
from memwal.errors import InvalidInputError, MemWalError, ObjectNotFoundError
from memwal.format.lance_manifest import Fragment
from memwal.hooks import reach
from memwal.manifest import ShardManifestStore
from memwal.progress import COUNTER_SHARD, commit_number, compacted
from memwal.reports import CompactionReport, Progress
from memwal.sharding import Bucket, Identity, Unsharded, sharding_of
from memwal.spark.stages import Job, NewRows, Superseded, Unit, delete_superseded, write_unit
from memwal.store.location import Location
from memwal.survey import list_shards
from memwal.types import SsTable

__all__ = ["DistributedCompactor", "RunTasks", "is_big", "newest_base"]

_LOG = logging.getLogger(__name__)
_TASKS_PER_COMMIT = 4  # so many times the memory of a task goes into one commit, since every commit looks at the base

RunTasks = Callable[[Sequence[str], Callable[[str], str]], list[str]]
"""Runs a function on every argument, each in a task of its own; the answers are in the order of the arguments."""

Chosen = Mapping[str, Sequence[SsTable]]


def newest_base(location: Location) -> BaseTable:
    """The newest version of the base table; `InvalidInputError` if it is gone."""
    base = BaseTable.open(location)
    if base is None:
        raise InvalidInputError(f"there is no table at {location.describe()} any more")
    return base


def is_big(location: Location, base: BaseTable, limit_bytes: int) -> bool:
    """Whether a compaction has at least `limit_bytes` to look at.

    These are the generations that wait, and the base table, unless its key is indexed: one process then finds what they
    replace without reading all of it. On an append-only table nothing is replaced.
    """
    size = 0
    if base.primary_key and not is_key_indexed(base):
        size = sum(file.size_bytes for fragment in base.manifest.fragments() for file in fragment.files)
    marks = compacted(base)
    for shard_id in list_shards(location):
        manifest = ShardManifestStore(location, shard_id).read_latest()
        if manifest is not None:
            pending = pending_generations(manifest, marks.get(shard_id, 0))
            size += sum(map(size_of, pending))
    return size >= limit_bytes


class DistributedCompactor(Compactor):
    """Compacts one table with tasks; several, and compactors of other kinds, may run at once."""

    def __init__(
        self,
        job: Job,
        run_tasks: RunTasks,
        location: Location,
        newest_base: Callable[[], BaseTable],
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`run_tasks` is how work reaches the executors."""
        super().__init__(location, newest_base, memory_bytes=job.memory_bytes * _TASKS_PER_COMMIT, clock=clock)
        self._job = job
        self._run_tasks = run_tasks
        self._made_of: Any = None
        self._new: list[NewRows] = []
        self._superseded: dict[Fragment, Superseded] = {}

    def run(
        self,
        *,
        shards: Collection[str] | None = None,
        max_generations: int | None = None,
        progress: Progress | None = None,
    ) -> CompactionReport:
        """Fold what is published now into the base table, at most `max_generations` of each shard, oldest first."""
        try:
            return super().run(shards=shards, max_generations=max_generations, progress=progress)
        finally:
            self._forget()

    def _fold(self, base: BaseTable, chosen: Chosen, tally: Any) -> BaseTable:
        if not base.takes_hand_commit:
            return super()._fold(base, chosen, tally)
        new = self._stage_a(base, chosen)
        reach("compact.after_fragments")
        superseded = self._stage_b(base, new) if base.primary_key else {}
        newest = self._commit(base, chosen, new, superseded)
        self._forget()
        rows, deletes = sum(item.rows for item in new), sum(item.deletes for item in new)
        tally.rows_written += rows
        tally.rows_deleted += deletes
        _LOG.info(
            "compacted by tasks [version=%d, shards=%d, fragments=%d, rows=%d, deletes=%d]",
            newest.version,
            len(chosen),
            len(superseded),
            rows,
            deletes,
        )
        return newest

    # ------------------------------------------------------------------------------------------------------ the stages

    def _stage_a(self, base: BaseTable, chosen: Chosen) -> list[NewRows]:
        made_of = (
            [(shard_id, tuple(sstables)) for shard_id, sstables in chosen.items()],
            base.schema,
            base.field_ids,
            base.data_storage_version,
        )
        if made_of != self._made_of:
            self._forget()
            job = self._job
            arguments = [unit.encode(base.version) for unit in _units(base, chosen)]
            answers = self._run_tasks(arguments, lambda argument: write_unit(job, argument))
            self._new = [NewRows.decode(answer) for answer in answers]
            self._made_of = made_of
        return self._new

    def _stage_b(self, base: BaseTable, new: Sequence[NewRows]) -> dict[int, Superseded]:
        """What goes, by fragment; fragments that lose no row are left out."""
        present = base.manifest.fragments()
        unseen = [fragment for fragment in present if fragment not in self._superseded]
        keys = [item.keys_path for item in new if item.keys_path is not None and item.rows + item.deletes]
        if keys and unseen:
            job = self._job
            arguments = [
                json.dumps({"version": base.version, "fragment": fragment.id, "keys": keys}) for fragment in unseen
            ]
            answers = self._run_tasks(arguments, lambda argument: delete_superseded(job, argument))
            try:
                self._superseded |= dict(zip(unseen, map(Superseded.decode, answers), strict=True))
            except ObjectNotFoundError:
                self._forget()
                raise
        found = {fragment.id: self._superseded.get(fragment) for fragment in present}
        return {number: item for number, item in found.items() if item is not None and item.rows}

    def _forget(self) -> None:
        """Drop what the stages left for a commit that has landed, or that will not come."""
        staged = [item.keys_path for item in self._new if item.keys_path is not None]
        self._made_of, self._new, self._superseded = None, [], {}
        for path in staged:
            try:
                self._location.store.delete(path)
            except MemWalError as error:  # collection removes it later
                _LOG.debug("staged keys were left [path=%s]: %s", path, error)

    # ------------------------------------------------------------------------------------------------------ the commit

    def _commit(
        self, base: BaseTable, chosen: Chosen, new: Sequence[NewRows], superseded: Mapping[int, Superseded]
    ) -> BaseTable:
        from lance import FragmentMetadata

        marks = {shard_id: sstables[-1].generation for shard_id, sstables in chosen.items()}
        if base.primary_key:
            marks[COUNTER_SHARD] = commit_number(base) + 1
        made = [FragmentMetadata.from_json(json.dumps(fragment)) for item in new for fragment in item.fragments]
        deletions = {number: item.deletion for number, item in superseded.items()}
        return commit_by_hand(base, made, deletions, marks, self._clock, fsync=self._job.fsync)


def _units(base: BaseTable, chosen: Chosen) -> list[Unit]:
    """A unit per shard; one for all shards where a key may be in several."""
    members = [[(shard_id, sstable) for sstable in sstables] for shard_id, sstables in chosen.items()]
    if not base.primary_key or len(members) == 1 or _keys_stay_apart(base):
        return [Unit(tuple(item)) for item in members]
    return [Unit(tuple(pair for item in members for pair in item))]


def _keys_stay_apart(base: BaseTable) -> bool:
    sharding = sharding_of(base)
    if isinstance(sharding, Bucket | Identity):
        return sharding.column in base.primary_key
    return isinstance(sharding, Unsharded)
