"""Verify: is everything there that checkpoints keep?

Owns `inspect_checkpoints`, which checks

V-13 Every active checkpoint can be read: its record, its base version and, per shard, its manifest, entries and SSTables.
"""

from __future__ import annotations

from lance_memwal.errors import (
    CollectedError,
    CorruptDataError,
    InvalidInputError,
    ObjectNotFoundError,
    TableReplacedError,
    UnsupportedFormatError,
)
from lance_memwal.lance.base import BaseTable
from lance_memwal.read.rebuilt import rebuild
from lance_memwal.sstable.read import open_sstable
from lance_memwal.store import paths
from lance_memwal.upkeep.checkpoint_records import checkpoint_names, checkpoint_record
from lance_memwal.upkeep.pins import is_pinned
from lance_memwal.upkeep.reports import Problem

__all__ = ["inspect_checkpoints"]

_BROKEN = (
    CollectedError,
    CorruptDataError,
    InvalidInputError,
    ObjectNotFoundError,
    TableReplacedError,
    UnsupportedFormatError,
)


def inspect_checkpoints(base: BaseTable) -> list[Problem]:
    """What is missing or damaged of checkpoints; `base` is the newest version."""
    problems = []
    for name in checkpoint_names(base.location):
        try:
            _read(base, name)
        except _BROKEN as error:
            what = f"the checkpoint {name!r} cannot be read any more: {error}"
            remedy = "restore what is missing from a backup, or drop the checkpoint: newer states of the table are not affected"
            problems.append(Problem(paths.record_dir(paths.CHECKPOINTS_DIR, name), what, remedy, "V-13"))
    return problems


def _read(base: BaseTable, name: str) -> None:
    record = checkpoint_record(base.location, name)
    if record is None or not record.is_active(base.table_id):
        return
    for view in rebuild(base.location, record.snapshot, is_pinned).shards:
        for sstable in view.sstables:
            open_sstable(base.location, view.shard_id, sstable).stored.open()
