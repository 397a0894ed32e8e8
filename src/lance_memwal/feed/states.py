"""The table as it was at a place of its logs.

Owns `state_now` and `state_at`. Invariants:

1. A state shows exactly what the changes up to its places made of the table: every one of them, and none after.
2. A bulk write that is announced and not yet published is not part of a state: its place is before the mark.
3. What collection or a clean-up of base versions removed is a `CollectedError`.
"""

from __future__ import annotations

from collections.abc import Mapping

from lance_memwal.clock import Clock
from lance_memwal.errors import CollectedError, InvalidInputError, ObjectNotFoundError, UnavailableError
from lance_memwal.feed.before import State
from lance_memwal.feed.cursor import Place
from lance_memwal.feed.shard_changes import REMEDY, ShardChanges
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.lance.damage import version_times
from lance_memwal.lance.marks import compacted
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.read.snapshot import Snapshot, SnapshotShard
from lance_memwal.read.tiers import TierSource
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest

__all__ = ["state_at", "state_now", "state_of"]

_MAX_BASES = 256


def state_now(newest: NewestBase, base: BaseTable, clock: Clock) -> State:
    """The table as it is now."""
    return state_of(TierSource(newest, clock).snapshot(), base)


def state_of(snapshot: Snapshot, base: BaseTable) -> State:
    """The state that a snapshot shows."""

    def place(shard: SnapshotShard) -> Place:
        changes = ShardChanges(base, shard.shard_id, base.columns)
        return changes.before_mark(shard.tip, shard.cursor)

    return State(snapshot, {shard.shard_id: place(shard) for shard in snapshot.shards})


def state_at(newest: NewestBase, places: Mapping[str, Place]) -> State:
    """The table as it was when its logs were read up to the positions of `places`, without rows of the next ones."""
    base = newest()
    chosen = {s: m for s, place in places.items() if (m := _manifest_at(base.location, s, place.position)) is not None}
    version = next((v for v in _versions(base) if _shows(base.location, v, places, chosen)), None)
    if version is None:
        raise _gone("no version of the base table is left that is as old")
    shards = [
        SnapshotShard(s, m.version, m.replay_after_wal_entry_position, places[s].position) for s, m in chosen.items()
    ]
    snapshot = Snapshot(base.tag, version, tuple(sorted(shards, key=lambda shard: shard.shard_id)))
    return State(snapshot, {shard_id: Place(place.position) for shard_id, place in places.items()})


def _gone(why: str) -> CollectedError:
    return CollectedError(f"what rows were before these changes cannot be told any more: {why}; {REMEDY}")


def _manifest_at(location: Location, shard_id: str, position: int) -> ShardManifest | None:
    """The newest manifest that covers nothing after `position`; None if the shard had no rows then."""
    if position == 0:
        return None
    manifests = ShardManifestStore(location, shard_id)
    for version in reversed(manifests.list_versions()):
        try:
            manifest = manifests.read_version(version)
        except ObjectNotFoundError:
            break
        if manifest.replay_after_wal_entry_position <= position:
            return manifest
    raise _gone(f"the manifests of shard {shard_id} up to position {position} were collected")


def _versions(base: BaseTable) -> list[int]:
    """The newest versions of the base table, newest first."""
    return sorted(version_times(base.location), reverse=True)[:_MAX_BASES]


def _shows(location: Location, version: int, places: Mapping[str, Place], chosen: Mapping[str, ShardManifest]) -> bool:
    """Whether this version of the base table has no row of a generation after these manifests."""
    try:
        base = BaseTable.open(location, version=version)
    except (InvalidInputError, UnavailableError, ObjectNotFoundError):
        return False
    marks = {} if base is None or base.details is None else compacted(base)
    return base is not None and all(
        mark < (chosen[shard_id].current_generation if shard_id in chosen else 1)
        for shard_id, mark in marks.items()
        if shard_id in places or mark
    )
