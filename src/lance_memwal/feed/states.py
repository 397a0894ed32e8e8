"""The table as it was at a place of its logs.

Owns `state_now`, `state_of` and `state_at`. Invariants:

1. A state shows exactly what the changes up to its places made of the table: every one of them, and none after.
2. A bulk write that is announced and not yet published is not part of a state: its place is before the mark.
3. Its parts fit together: no generation is missing between a manifest and the base version, and none is in the base version
   that holds a later entry (`lance_memwal.feed.fitting_versions`).
4. What collection or a clean-up of base versions removed is a `CollectedError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from lance_memwal.clock import Clock
from lance_memwal.errors import CollectedError, ObjectNotFoundError
from lance_memwal.feed.before import State
from lance_memwal.feed.cursor import Place
from lance_memwal.feed.fitting_versions import newest_fitting
from lance_memwal.feed.shard_changes import REMEDY, ShardChanges
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.lance.damage import version_times
from lance_memwal.lance.marks import compacted
from lance_memwal.lance.restored import given_up
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.read.snapshot import Snapshot, SnapshotShard
from lance_memwal.read.tiers import TierSource
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest

__all__ = ["state_at", "state_now", "state_of"]

_MAX_BASES = 256
_MAX_SNAPSHOTS = 8


def state_now(newest: NewestBase, base: BaseTable, clock: Clock) -> State:
    """The table as it is now. A snapshot that collection passes while we look at it is taken anew."""
    for _ in range(_MAX_SNAPSHOTS - 1):
        with suppress(CollectedError):
            return state_of(TierSource(newest, clock).snapshot(), base)
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
    shards = [_ShardAt.of(base.location, shard_id, place.position) for shard_id, place in places.items()]
    read = [shard for shard in shards if shard.position]
    snapshot = newest_fitting(base.location, _versions(base), lambda then: _snapshot(base.tag, then, read))
    if snapshot is not None:
        return State(snapshot, {shard.shard_id: Place(shard.position) for shard in shards})
    raise CollectedError(
        "what rows were before these changes cannot be told any more: no manifests and no version of the base table are left "
        f"that are as old and fit together; {REMEDY}"
    )


def _versions(base: BaseTable) -> list[int]:
    """The newest versions of the base table, newest first."""
    return sorted(version_times(base.location), reverse=True)[:_MAX_BASES]


def _snapshot(tag: str | None, base: BaseTable, shards: Sequence[_ShardAt]) -> Snapshot | None:
    """The shards above this version of the base table; None if it has rows that are younger than they are."""
    marks = {} if base.details is None else dict(compacted(base))
    found = [shard.above(marks.pop(shard.shard_id, 0)) for shard in shards]
    if any(marks.values()) or None in found:
        return None
    named = sorted((shard for shard in found if shard is not None), key=lambda shard: shard.shard_id)
    return Snapshot(tag, base.version, tuple(named))


@dataclass(slots=True)
class _ShardAt:
    """One shard at a position of its log: the manifests that cover nothing after it, newest first."""

    shard_id: str
    position: int
    manifests: Iterator[ShardManifest]
    known: list[ShardManifest] = field(default_factory=list)

    @classmethod
    def of(cls, location: Location, shard_id: str, position: int) -> _ShardAt:
        return cls(shard_id, position, _manifests_at(location, shard_id, position))

    def above(self, mark: int) -> SnapshotShard | None:
        """The shard above a base version with this mark; None if no manifest is left that fits it.

        One that gave up generations which the base version does not have would leave their rows out: an older one has them.
        """
        fitting = next((manifest for manifest in self._all() if not given_up(manifest, mark)), None)
        if fitting is None or mark >= fitting.current_generation:
            return None
        return SnapshotShard(self.shard_id, fitting.version, fitting.replay_after_wal_entry_position, self.position)

    def _all(self) -> Iterator[ShardManifest]:
        yield from self.known
        for manifest in self.manifests:
            self.known.append(manifest)
            yield manifest


def _manifests_at(location: Location, shard_id: str, position: int) -> Iterator[ShardManifest]:
    """The manifests that cover nothing after `position`, newest first, up to the first one that is gone."""
    manifests = ShardManifestStore(location, shard_id)
    for version in reversed(manifests.list_versions()):
        try:
            manifest = manifests.read_version(version)
        except ObjectNotFoundError:
            return
        if manifest.replay_after_wal_entry_position <= position:
            yield manifest
