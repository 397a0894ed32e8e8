"""Verify: is everything there that checkpoints keep, and do records say what collection keeps for whom?

Owns `inspect_checkpoints` and `inspect_records`, which check

V-13 Every active checkpoint can be read: its record, its base version and, per shard, its manifest, entries and SSTables.
V-15 The record that counts of every consumer, and of the floor of every shard, can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lance_memwal.errors import (
    CollectedError,
    CorruptDataError,
    InvalidInputError,
    ObjectNotFoundError,
    TableReplacedError,
    UnsupportedFormatError,
)
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.floor import Floor
from lance_memwal.read.rebuilt import rebuild
from lance_memwal.sstable.read import open_sstable
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.upkeep.checkpoint_records import checkpoint_names, checkpoint_record
from lance_memwal.upkeep.consumer_records import consumer_names, consumer_record
from lance_memwal.upkeep.reports import Problem

__all__ = ["inspect_checkpoints", "inspect_records"]

_BROKEN = (
    CollectedError,
    CorruptDataError,
    InvalidInputError,
    ObjectNotFoundError,
    TableReplacedError,
    UnsupportedFormatError,
)
_UNREADABLE = (CorruptDataError, UnsupportedFormatError)


def inspect_checkpoints(base: BaseTable) -> list[Problem]:
    """What is missing or damaged of checkpoints; `base` is the newest version."""
    names, problems = _names(base.location, checkpoint_names, "V-13")
    for name in names:
        try:
            _read(base, name)
        except _BROKEN as error:
            what = f"the checkpoint {name!r} cannot be read any more: {error}"
            remedy = "restore what is missing from a backup, or drop the checkpoint: newer states of the table are not affected"
            problems.append(Problem(paths.record_dir(paths.CHECKPOINTS_DIR, name), what, remedy, "V-13"))
    return problems


def inspect_records(location: Location, shards: Sequence[str]) -> list[Problem]:
    """What is damaged of the records of consumers, and of the floors of these shards: without them nothing is collected."""
    names, problems = _names(location, consumer_names, "V-15")
    for name in names:
        try:
            consumer_record(location, name)
        except _UNREADABLE as error:
            remedy = "drop the consumer, and let it begin again from a snapshot: until then nothing is collected"
            what = f"the place of the consumer {name!r} cannot be read: {error}"
            problems.append(Problem(paths.record_dir(paths.CONSUMERS_DIR, name), what, remedy, "V-15"))
    for shard_id in shards:
        floor = Floor(location, shard_id)
        try:
            floor.announced(), floor.manifest()
        except _UNREADABLE as error:
            remedy = "restore the record from a backup; without one, remove it: those before it say nearly the same"
            what = f"how far collection went cannot be read: {error}"
            problems.append(Problem(paths.floor_dir(shard_id), what, remedy, "V-15", shard_id))
    return problems


def _names(
    location: Location, listed: Callable[[Location], list[str]], invariant: str
) -> tuple[list[str], list[Problem]]:
    """The names that have records; or none, and what lies in their place."""
    try:
        return listed(location), []
    except CorruptDataError as error:
        return [], [Problem(str(error.path), str(error), "replace it with the directory from a backup", invariant)]


def _read(base: BaseTable, name: str) -> None:
    record = checkpoint_record(base.location, name)
    if record is None or not record.is_active(base.table_id):
        return
    for view in rebuild(base.location, record.snapshot, lambda *_: True).shards:  # by this record
        for sstable in view.sstables:
            open_sstable(base.location, view.shard_id, sstable).stored.open()
