"""What the tasks of a distributed compaction do: fold generations into new fragments, find the rows that these replace.

Owns both stages and the values that travel between driver and tasks. Invariants:

1. A task changes nothing that a reader can see: it writes data files and deletion vectors that no version of the base
   table names yet. Attempts may run twice; the files of the one that lost are left to Lance's clean-up.
2. Stage A folds whole units: a unit holds every chosen generation of its shards, and no key is in two units.
3. Stage B deletes in one fragment exactly the rows whose key a chosen generation has. What was deleted there before stays
   deleted. The keys come from the sidecars, which list every row and tombstone; a process reads them once.
4. With `fsync` files are durable before their task ends.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import ObjectNotFoundError, UndecidedColumnsError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.commit import write_rows, write_vector
from lance_memwal.lance.manifest import DeletionFile
from lance_memwal.lance.prepared import Unheld
from lance_memwal.lance.superseded import replaced_rows
from lance_memwal.process.cache import CACHE
from lance_memwal.rows.keys import KeySet, concat_keys
from lance_memwal.sstable.fold import fold
from lance_memwal.sstable.read import open_sstable
from lance_memwal.store.location import Location, resolve
from lance_memwal.types import SsTable


@dataclass(frozen=True, slots=True)
class Job:
    """What every task of one compaction knows. `memory_bytes` bounds the rows that one task keeps."""

    uri: str
    memory_bytes: int
    fsync: bool
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)

    def open(self, version: int) -> tuple[Location, BaseTable]:
        """The table and one version of its base."""
        location = resolve(self.uri, self.storage_options)
        return location, BaseTable.need(location, version=version)


@dataclass(frozen=True, slots=True)
class Unit:
    """What one task of stage A folds: (shard, SSTable), ascending within each shard."""

    members: tuple[tuple[str, SsTable], ...]

    def encode(self, version: int) -> str:
        """The argument of the task; `version` is the one whose columns the rows get."""
        return json.dumps({"version": version, "members": [[s, _fields(sstable)] for s, sstable in self.members]})


def _fields(sstable: SsTable) -> dict[str, Any]:
    """What a task needs of an SSTable; fields of a newer version stay with the manifest."""
    return {name: value for name, value in asdict(sstable).items() if name != "unknown"}


@dataclass(frozen=True, slots=True)
class NewRows:
    """The answer of stage A: fragments as Lance writes them down."""

    fragments: tuple[dict[str, Any], ...]
    rows: int
    deletes: int

    @classmethod
    def decode(cls, answer: str) -> NewRows:
        """The answer of a task; `ObjectNotFoundError` if somebody collected a generation meanwhile."""
        found = _found(answer)
        return cls(tuple(found["fragments"]), found["rows"], found["deletes"])


@dataclass(frozen=True, slots=True)
class Superseded:
    """The answer of stage B about one fragment: whether rows go, and the new deletion vector (None: no row is left)."""

    is_any: bool
    deletion: DeletionFile | None

    @classmethod
    def decode(cls, answer: str) -> Superseded:
        """The answer of a task; `ObjectNotFoundError` if a generation was collected concurrently."""
        found = _found(answer)
        deletion = found["deletion"]
        return cls(found["is_any"], None if deletion is None else DeletionFile(**deletion))


def _found(answer: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer)
    if "collected" in found:
        raise ObjectNotFoundError(found["collected"])
    if "undecided" in found:
        raise UndecidedColumnsError(found["undecided"], shard_id=found["shard"], generation=found["generation"])
    return found


# ------------------------------------------------------------------------------------------------------------ stage A


def write_unit(job: Job, argument: str) -> str:
    """The newest rows of one unit as data files that no version names; the answer is a `NewRows`."""
    given = json.loads(argument)
    members = [(shard_id, SsTable(**sstable)) for shard_id, sstable in given["members"]]
    location, base = job.open(given["version"])
    try:
        return json.dumps(asdict(_write_unit(job, location, base, members)))
    except ObjectNotFoundError as error:  # another compaction was faster, and collection too: the driver starts over
        return json.dumps({"collected": str(error)})
    except UndecidedColumnsError as error:  # the driver leaves this generation out
        return json.dumps({"undecided": str(error), "shard": error.shard_id, "generation": error.generation})


def _write_unit(job: Job, location: Location, base: BaseTable, members: Sequence[tuple[str, SsTable]]) -> NewRows:
    folded = fold(location, members, base.columns, job.memory_bytes)
    fragments = write_rows(base, folded.batches(base.schema), fsync=job.fsync) if folded.rows else []
    deletes = folded.deletes.num_rows if base.primary_key else 0
    return NewRows(tuple(fragment.to_json() for fragment in fragments), folded.rows, deletes)


# ------------------------------------------------------------------------------------------------------------ stage B


@dataclass(frozen=True, slots=True)
class Look:
    """What every task of stage B knows: the version that it reads, and the chosen SSTables. Spark sends it once."""

    version: int
    members: tuple[tuple[str, SsTable], ...]


def delete_superseded(job: Job, look: Look, argument: str) -> str:
    """A deletion vector for the rows of one fragment whose key a chosen SSTable has; the answer is a `Superseded`."""
    number = int(argument)
    location, base = job.open(look.version)
    try:
        found = replaced_rows(base, _keys_of(location, look.members), [number])
    except ObjectNotFoundError as error:  # another compaction was faster, and collection too: the driver starts over
        return json.dumps({"collected": str(error)})
    offsets, files = found.get(number), Unheld(location.store)
    deletion = None if offsets is None else write_vector(base, number, offsets, SYSTEM_CLOCK, files, fsync=job.fsync)
    return json.dumps(asdict(Superseded(number in found, deletion)))


def _keys_of(location: Location, members: tuple[tuple[str, SsTable], ...]) -> KeySet:
    """The keys of these SSTables; kept, because one process looks at many fragments."""

    def read() -> KeySet:
        return KeySet(concat_keys([open_sstable(location, shard, sstable).keys_alone() for shard, sstable in members]))

    names = tuple((shard_id, sstable.path) for shard_id, sstable in members)
    return CACHE.fetch(("keys of generations", location.key), read, names)
