"""A snapshot becomes the tiers that it names, as they were.

Owns `rebuild`, and how the parts of a snapshot are found (`of_each_shard`). Invariants:

1. What is rebuilt is equal everywhere and at any later time.
2. If collection removed a part of it, that is a `CollectedError`, never an answer with less or other rows; if the table was
   made anew, a `TableReplacedError`. After all parts were read, the floor of every shard is looked at: a part that is there
   may have come late into a slot that collection had emptied. Below the floor only what is pinned counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias, TypeVar

from lance_memwal.clock import in_order
from lance_memwal.errors import (
    CollectedError,
    CorruptDataError,
    InvalidInputError,
    TableReplacedError,
)
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.marks import compacted
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import is_missing
from lance_memwal.log.shards import Floor
from lance_memwal.read.snapshot import Snapshot, SnapshotShard
from lance_memwal.read.tail_rows import tail_memtables
from lance_memwal.read.tiers import PARALLEL_LOOKS, PARALLEL_READS, ShardView, Tiers, missing_is_collected
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest

IsPinned: TypeAlias = Callable[[BaseTable, Snapshot], bool]

T = TypeVar("T")
_Read: TypeAlias = Callable[[SnapshotShard, ShardManifest], T]
_REMEDY = "load again, or take a new snapshot"


def rebuild(location: Location, snapshot: Snapshot, is_pinned: IsPinned) -> Tiers:
    """What `snapshot` names of the table at `location`; `is_pinned` says whether collection keeps all of it."""
    base, views = of_each_shard(location, snapshot, is_pinned, lambda base: partial(_view, base))
    marks = compacted(base)
    return Tiers.above_base(base, [(view, marks.get(view.shard_id, 0)) for view in views])


def of_each_shard(
    location: Location,
    snapshot: Snapshot,
    is_pinned: IsPinned,
    reads: Callable[[BaseTable], _Read[T]],
) -> tuple[BaseTable, list[T]]:
    """The base version of a snapshot, and what `reads(base)` makes of each of its shards; all that it read is what the
    snapshot names, or this is an error."""
    base = base_of(location, snapshot)
    read = reads(base)
    with missing_is_collected(_REMEDY):
        at_once = location.at_once(PARALLEL_READS)
        found = list(in_order(lambda s: _read_shard(base, s, read), snapshot.shards, at_once, "memwal-rebuild"))
    check_whole(base, snapshot, is_pinned)
    # entries of a table that was made anew meanwhile do not count, which hides what is gone
    base_of(location, snapshot)
    return base, found


def check_whole(base: BaseTable, snapshot: Snapshot, is_pinned: IsPinned) -> None:
    """Return only if collection has not begun to remove what `snapshot` needs, or keeps it for somebody."""
    at_once = base.location.at_once(PARALLEL_LOOKS)

    def is_passed(shard: SnapshotShard) -> bool:
        return Floor(base.location, shard.shard_id).manifest() > shard.manifest_version

    passed = in_order(is_passed, snapshot.shards, at_once, "memwal-floors")
    below = [shard for shard, is_below in zip(snapshot.shards, passed, strict=True) if is_below]
    if below and not is_pinned(base, snapshot):
        raise _collected(below[0])


def base_of(location: Location, snapshot: Snapshot) -> BaseTable:
    """The base version of a snapshot."""
    version = snapshot.base_version
    base = BaseTable.find(location, version)
    if base is None:
        base = BaseTable.open(location)
        if base is not None and snapshot.table in (base.tag, None):  # it may have got its id since
            if base.version > version:
                raise CollectedError(f"version {version} of the base table was removed; {_REMEDY}")
            raise InvalidInputError(f"the base table has no version {version}; the newest is {base.version}: {_REMEDY}")
    if base is None or base.tag != snapshot.table:
        now = "was removed" if base is None else "is another one, which was made at the same place"
        raise TableReplacedError(f"the table at {location.describe()} {now}: {_REMEDY}")
    return base


def manifest_of(location: Location, shard: SnapshotShard) -> ShardManifest:
    """The manifest of one shard of a snapshot; `ObjectNotFoundError` if it is gone."""
    manifest = ShardManifestStore(location, shard.shard_id).read_version(shard.manifest_version)
    if manifest.replay_after_wal_entry_position != shard.cursor:  # somebody who slept has filled a slot again
        raise _collected(shard)
    return manifest


def _read_shard(base: BaseTable, shard: SnapshotShard, read: _Read[T]) -> T:
    manifest = manifest_of(base.location, shard)
    try:
        return read(shard, manifest)
    except CorruptDataError as error:
        newest = ShardManifestStore(base.location, shard.shard_id).read_latest()
        passed = 0 if newest is None else newest.replay_after_wal_entry_position
        if error.position is None or error.position > passed or not is_missing(base.location, error):
            raise
        raise _collected(shard) from error


def _view(base: BaseTable, shard: SnapshotShard, manifest: ShardManifest) -> ShardView:
    memory = tail_memtables(base.location, manifest, shard.tip + 1, base.columns, base.tag)
    return ShardView(manifest, memory, from_tail=True)


def _collected(shard: SnapshotShard) -> CollectedError:
    return CollectedError(f"collection removed what a snapshot needs of shard {shard.shard_id}; {_REMEDY}")
