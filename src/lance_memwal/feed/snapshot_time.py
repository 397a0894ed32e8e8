"""The snapshot of a time.

Owns `snapshot_at`. Per shard it is exact: the rows of entries whose time (`ms` of the footer, else when the object was
written) is at or before the given one. Between shards it is as exact as the clocks of their writers agree; manifests and base
versions count from when the store wrote them, which some services tell in whole seconds. Invariants:

1. The parts fit together: no generation is missing between a manifest and the base version, and none is in the base version
   that holds a later entry. Where clocks disagree, an older manifest or base version is taken, which shows the same rows
   (`lance_memwal.feed.fitting_versions`).
2. What is not known any more is a `CollectedError`, never a moment nearby. A shard that was claimed later has no rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lance_memwal.clock import in_order
from lance_memwal.errors import CollectedError, ObjectNotFoundError
from lance_memwal.feed.fitting_versions import newest_fitting
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.damage import version_times
from lance_memwal.lance.marks import compacted
from lance_memwal.lance.restored import given_up
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions, written_ms_at
from lance_memwal.log.shards import list_shards
from lance_memwal.read.snapshot import Snapshot, SnapshotShard
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest

__all__ = ["snapshot_at"]

_PARALLEL_READS = 8
_MAX_BASES = 16
_MAX_MANIFESTS = 64


def snapshot_at(base: BaseTable, time_ms: int) -> Snapshot:
    """What the table was at a time; `base` is its newest version."""
    location = base.location
    times = version_times(location)
    versions = sorted((v for v, written_ms in times.items() if written_ms <= time_ms), reverse=True)
    later = min((version for version in times if versions and version > versions[0]), default=None)
    shards = [_ShardThen.of(location, shard_id, time_ms) for shard_id in list_shards(location)]

    def fit(then: BaseTable) -> Snapshot | None:
        if then.tag not in (base.tag, None):
            raise nothing_left  # it is one of another table
        marks = compacted(then)
        at_once = location.at_once(_PARALLEL_READS)
        found = list(in_order(lambda shard: shard.at(marks), shards, at_once, "memwal-time"))
        if any(shard is _NOT_YET for shard in found):
            return None
        return Snapshot(then.tag, then.version, tuple(s for s in found if isinstance(s, SnapshotShard)))

    nothing_left = CollectedError("nothing is left that says what the table was at that time; choose a later one")
    snapshot = newest_fitting(location, versions[:_MAX_BASES], fit, too_new=later)
    if snapshot is None:
        raise nothing_left
    return snapshot


_NOT_YET = object()
"""The base version has rows of this shard that are younger than the time."""


@dataclass(frozen=True, slots=True)
class _ShardThen:
    """One shard, and which of its manifests were written by then, the newest first."""

    location: Location
    shard_id: str
    time_ms: int
    written: tuple[int, ...]
    first: int

    @classmethod
    def of(cls, location: Location, shard_id: str, time_ms: int) -> _ShardThen:
        times = ShardManifestStore(location, shard_id).written_ms()
        written = sorted((v for v, written_ms in times.items() if written_ms <= time_ms), reverse=True)
        return cls(location, shard_id, time_ms, tuple(written), min(times, default=1))

    def at(self, marks: Mapping[str, int]) -> object:
        """The shard above a base version with these marks; None if it did not exist yet."""
        mark = marks.get(self.shard_id, 0)
        if not self.written:
            if self.first == 1:
                return None if mark == 0 else _NOT_YET
            raise self._collected()
        manifests = ShardManifestStore(self.location, self.shard_id)
        for version in self.written[:_MAX_MANIFESTS]:
            try:
                manifest = manifests.read_version(version)
            except ObjectNotFoundError:
                break
            if given_up(manifest, mark) or self._is_later(manifest.replay_after_wal_entry_position):
                continue
            return _NOT_YET if mark >= manifest.current_generation else self._with_log(manifest)
        raise self._collected()

    def _is_later(self, position: int) -> bool:
        """Whether an entry that is still there was written after the time."""
        written_ms = written_ms_at(self.location, self.shard_id, position) if position else None
        return written_ms is not None and written_ms > self.time_ms

    def _with_log(self, manifest: ShardManifest) -> SnapshotShard:
        """The manifest, and as much of the log after its cursor as was there."""
        cursor = manifest.replay_after_wal_entry_position
        after = [position for position in list_positions(self.location, self.shard_id) if position > cursor]
        run = [position for number, position in enumerate(after, cursor + 1) if number == position]
        low, high = 0, len(run)
        while low < high:  # every entry of run[:low] is of then, none of run[high:]
            middle = (low + high) // 2
            low, high = (low, middle) if self._is_later(run[middle]) else (middle + 1, high)
        if low == len(run):  # the run goes up to the tip, unless collection cut it
            newest = ShardManifestStore(self.location, self.shard_id).read_latest()
            passed = 0 if newest is None else newest.replay_after_wal_entry_position
            if len(after) > len(run) or passed > cursor + len(run):
                raise self._collected()
        return SnapshotShard(self.shard_id, manifest.version, cursor, cursor + low)

    def _collected(self) -> CollectedError:
        return CollectedError(
            f"collection has passed that time in shard {self.shard_id}; choose a later one, or create checkpoints of what "
            "is asked for again"
        )
