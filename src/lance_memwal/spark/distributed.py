"""Compaction of a big table by many tasks, with one commit on the driver.

Owns `distributed_compactor` and the choice between it and one process (`is_big`). Stage A (a task per shard) writes the
newest rows of the chosen generations as new fragments; stage B (a task per base fragment) writes deletion vectors for
the rows that they replace or delete; the driver commits both, and the marks. What is chosen, retried, trimmed and
reported is `lance_memwal.compact.run`'s. Invariants:

1. Rows and marks are one commit, on exactly the version after the one that stage B looked at: its manifest is created
   if absent. There is no moment between rows and mark in which a crash could leave one without the other. (Lance's own
   `Update` cannot carry marks, and it rebases over a merge that only inserted rows: both would hold the same keys.)
2. After a conflict stage A counts, and stage B for every fragment that is unchanged: only what changed is looked at
   again, by the driver itself where that is little (to start tasks takes longer than others take to commit).
3. Two units never hold the same key: where the sharding does not see to it, all shards are one unit.
4. The files of a commit that is lost for good are deleted when the run ends, whatever its end is; what a dead driver left
   is collected.

A base table that takes no staged commit (`BaseTable.takes_staged_commit`: stable row ids above all) is compacted by
one process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from lance import FragmentMetadata

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.compact.run import Chosen, Compactor
from lance_memwal.crash_points import reach
from lance_memwal.errors import ObjectNotFoundError, UndecidedColumnsError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.commit import commit_by_hand, files_of
from lance_memwal.lance.manifest import deletion_path
from lance_memwal.lance.marks import compacted
from lance_memwal.lance.prepared import Unheld, Vectors
from lance_memwal.log.shards import newest_manifests
from lance_memwal.spark.stages import Job, Look, NewRows, Superseded, Unit, delete_superseded, write_unit
from lance_memwal.sstable.fold import size_of
from lance_memwal.store.location import Location

_FEW_FRAGMENTS = 8  # after a conflict, so many are looked at by the driver
_TASKS_PER_COMMIT = 4  # so many times the memory of a task goes into one commit, since every commit looks at the base

RunTasks = Callable[[Sequence[str], Callable[[str], str]], list[str]]
"""Runs a function on every argument, each in a task of its own; the answers are in the order of the arguments."""

T = TypeVar("T")


def is_big(location: Location, base: BaseTable, limit_bytes: int) -> bool:
    """Whether a compaction has at least `limit_bytes` to look at.

    These are the generations that wait, and the base table, unless its key is indexed: one process then finds what they
    replace without reading all of it. On an append-only table nothing is replaced.
    """
    size = 0
    if base.primary_key and not base.is_key_indexed:
        size = sum(file.size_bytes for fragment in base.manifest.fragments() for file in fragment.files)
    marks = compacted(base)
    for manifest in newest_manifests(location):
        mark = marks.get(manifest.shard_id, 0)  # whether one is missing, and why, is for the compactor to say
        size += sum(size_of(sstable) for sstable in manifest.above(mark))
    return size >= limit_bytes


def distributed_compactor(
    job: Job,
    run_tasks: RunTasks,
    location: Location,
    newest_base: Callable[[], BaseTable],
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> Compactor:
    """Compacts one table with tasks, which `run_tasks` runs; several, and compactors of other kinds, may run at once."""
    return Compactor(
        location,
        newest_base,
        memory_bytes=job.memory_bytes * _TASKS_PER_COMMIT,
        clock=clock,
        stage=partial(_Staged, job, run_tasks, location, clock),
    )


class _Staged:
    """What the stages made, ready to be committed."""

    def __init__(self, job: Job, run_tasks: RunTasks, location: Location, clock: Clock, chosen: Chosen) -> None:
        self._job = job
        self._run_tasks = run_tasks
        self._location = location
        self._clock = clock
        self._chosen = chosen
        self._new: list[NewRows] | None = None
        self._looked = False
        self._files = Unheld(location.store)
        self._vectors = Vectors(self._files)

    @property
    def rows(self) -> int:
        """New rows."""
        return sum(item.rows for item in self._new or ())

    @property
    def deletes(self) -> int:
        """Tombstones."""
        return sum(item.deletes for item in self._new or ())

    def commit(self, base: BaseTable) -> BaseTable:
        """The version right after `base`, with the rows of stage A, and without the rows that stage B found."""
        fragments = self._stage_a(base)
        reach("compact.after_fragments")
        marks = {shard_id: sstables[-1].generation for shard_id, sstables in self._chosen.items()}
        if base.primary_key:
            self._stage_b(base)
        return commit_by_hand(base, fragments, self._vectors, marks, self._clock, self._files, fsync=self._job.fsync)

    def discard(self) -> None:
        """Delete what no version holds."""
        self._files.remove()

    # ------------------------------------------------------------------------------------------------------ the stages

    def _stage_a(self, base: BaseTable) -> list[FragmentMetadata]:
        """The fragments of all new rows; they are written once."""
        job = self._job
        if self._new is None:
            arguments = [unit.encode(base.version) for unit in _units(base, self._chosen)]
            answers = self._run_tasks(arguments, lambda argument: write_unit(job, argument))
            self._new, failed = _decoded(answers, NewRows.decode)
            self._files.add(*files_of(base, self._fragments()))
            if failed is not None:
                raise failed
        return self._fragments()

    def _fragments(self) -> list[FragmentMetadata]:
        new = self._new or ()
        return [FragmentMetadata.from_json(json.dumps(fragment)) for item in new for fragment in item.fragments]

    def _stage_b(self, base: BaseTable) -> None:
        """Learn what goes in fragments that nobody has looked at."""
        job, unseen = self._job, self._vectors.unseen(base)
        if not unseen:
            return
        members = [(shard, sstable) for shard, sstables in self._chosen.items() for sstable in sstables]
        look = Look(base.version, tuple(members))
        run = _in_line if self._looked and len(unseen) <= _FEW_FRAGMENTS else self._run_tasks
        self._looked = True
        answers = run([str(number) for number in unseen], lambda number: delete_superseded(job, look, number))
        found, failed = _decoded(answers, Superseded.decode)
        if failed is not None:  # a generation is gone, for all fragments
            raise failed
        loses = {number: item.deletion for number, item in zip(unseen, found, strict=True) if item.is_any}
        self._files.add(*(deletion_path(number, vector) for number, vector in loses.items() if vector is not None))
        self._vectors.learn(base, unseen, loses)


def _decoded(
    answers: Sequence[str], decode: Callable[[str], T]
) -> tuple[list[T], ObjectNotFoundError | UndecidedColumnsError | None]:
    """The answers of tasks, and why one of them made nothing: an object was collected, or columns are undecided."""
    found: list[T] = []
    failed: ObjectNotFoundError | UndecidedColumnsError | None = None
    for answer in answers:
        try:
            found.append(decode(answer))
        except (ObjectNotFoundError, UndecidedColumnsError) as error:
            failed = error
    return found, failed


def _in_line(arguments: Sequence[str], run: Callable[[str], str]) -> list[str]:
    """The answers, without tasks."""
    return [run(argument) for argument in arguments]


def _units(base: BaseTable, chosen: Chosen) -> list[Unit]:
    """A unit per shard; one for all shards where a key may be in several."""
    members = [[(shard_id, sstable) for sstable in sstables] for shard_id, sstables in chosen.items()]
    if not base.primary_key or len(members) == 1 or base.sharding.keeps_keys_together(base.primary_key):
        return [Unit(tuple(item)) for item in members]
    return [Unit(tuple(pair for item in members for pair in item))]
