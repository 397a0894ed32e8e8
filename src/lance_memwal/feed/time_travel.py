"""A table as it was: from what a caller names, or from positions of its logs, to a snapshot, its tiers and its state.

Owns `snapshot_of`, `tiers_of`, `diff_moments`, `State` and the functions that find one. Invariants:

1. A state shows every change up to its positions and none after. A bulk write that is announced and not yet published is not
   part of a state: its position is before the marker.
2. The parts of a snapshot fit together: no generation is missing between a manifest and the base version, and none is in the base
   version that holds a later entry. Where clocks disagree, an older manifest or base version is taken, which shows the same rows.
3. The snapshot of a time is exact per shard: it has the rows of entries whose time (`ms` of the footer, else when the object was
   written) is at or before that time. Between shards it is as exact as the clocks of their writers agree. Manifests and base
   versions count from when the store wrote them, which some services report in whole seconds. A shard that was claimed later has
   no rows.
4. The base version is the newest one that has nothing later, and only its successor can prove that. If the successor was removed,
   it could have fitted, too, with other rows.
5. What GC or a clean-up of base versions removed is a `CollectedError`, never another moment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import pyarrow as pa

from lance_memwal.clock import Clock, in_order
from lance_memwal.errors import CollectedError, InvalidInputError, ObjectNotFoundError
from lance_memwal.feed.checkpoints import Moment, checkpoint_of, milliseconds, parse_moment
from lance_memwal.feed.cursor import Place
from lance_memwal.feed.diff import diff_tiers
from lance_memwal.feed.shard_changes import REMEDY, ShardChanges
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.lance.damage import version_times
from lance_memwal.lance.marks import compacted
from lance_memwal.lance.restored import given_up
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions, written_ms_at
from lance_memwal.log.shards import list_shards
from lance_memwal.read.rebuilt import rebuild
from lance_memwal.read.snapshot import Snapshot, SnapshotShard
from lance_memwal.read.tiers import Tiers, TierSource, missing_is_collected
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest
from lance_memwal.upkeep.pins import is_pinned

_PARALLEL_READS: Final = 8
_BASES_OF_A_TIME: Final = 16
_MANIFESTS_OF_A_TIME: Final = 64
_BASES_OF_A_STATE: Final = 256
_MAX_SNAPSHOTS: Final = 8


def snapshot_of(base: BaseTable, moment: Moment) -> Snapshot:
    """The snapshot that a caller means; `base` is the newest version of the table."""
    named = parse_moment(moment)
    if isinstance(named, Snapshot):
        return named
    if isinstance(named, datetime):
        return _of_time(base, milliseconds(named))
    if isinstance(named, int):
        return _of_version(base, named)
    return checkpoint_of(base, named).snapshot


def tiers_of(location: Location, snapshot: Snapshot) -> Tiers:
    """The table at `location` as it was when `snapshot` was taken; `CollectedError` if a part of it was removed."""
    return rebuild(location, snapshot, is_pinned)


def diff_moments(base: BaseTable, a: Moment, b: Moment, *, with_before: bool) -> pa.Table:
    """What changed from `a` to `b`, net; `base` is the newest version of the table."""
    before, after = snapshot_of(base, a), snapshot_of(base, b)
    with missing_is_collected("compare moments that are still there"):
        return diff_tiers(tiers_of(base.location, before), tiers_of(base.location, after), with_before=with_before)


def _of_version(base: BaseTable, version: int) -> Snapshot:
    """What plain Lance shows of a version."""
    if not 1 <= version <= base.version:
        raise InvalidInputError(f"the base table has no version {version}; the newest is {base.version}")
    then = BaseTable.find(base.location, version)
    if then is None:
        raise CollectedError(f"version {version} of the base table was removed; choose a later one")
    return Snapshot(then.tag, version)


# ------------------------------------------------------------------------------------------------------------- states


@dataclass(slots=True)
class State:
    """A snapshot, and per shard the place in its log that it shows."""

    snapshot: Snapshot
    places: dict[str, Place]
    _tiers: Tiers | None = None

    def place(self, shard_id: str) -> Place:
        """The place that the snapshot shows of this shard."""
        return self.places.get(shard_id, Place())

    def tiers(self, location: Location) -> Tiers:
        """Everything that the snapshot names."""
        if self._tiers is None:
            self._tiers = tiers_of(location, self.snapshot)
        return self._tiers


def state_now(newest: NewestBase, base: BaseTable, clock: Clock) -> State:
    """The table as it is now. If GC removes a part of a snapshot before it is read, another one is taken."""
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
    location, read = base.location, {shard_id: place.position for shard_id, place in places.items() if place.position}
    shards = [_at_position(location, shard_id, position) for shard_id, position in read.items()]

    def fit(then: BaseTable) -> Snapshot | None:
        marks = {} if then.details is None else compacted(then)
        return _snapshot(base.tag, then, shards, marks, marks.keys() - read.keys())

    versions = sorted(version_times(location), reverse=True)[:_BASES_OF_A_STATE]
    snapshot = _newest_fitting(location, versions, fit)
    if snapshot is not None:
        return State(snapshot, {shard_id: Place(place.position) for shard_id, place in places.items()})
    raise CollectedError(
        "what rows were before these changes cannot be told any more: no manifests and no version of the base table are left "
        f"that are as old and fit together; {REMEDY}"
    )


def _of_time(base: BaseTable, time_ms: int) -> Snapshot:
    location = base.location
    times = version_times(location)
    versions = sorted((v for v, written_ms in times.items() if written_ms <= time_ms), reverse=True)
    later = min((version for version in times if versions and version > versions[0]), default=None)
    found = [_AtTime(location, shard_id, time_ms) for shard_id in list_shards(location)]
    absent = [shard.shard_id for shard in found if shard.is_absent]
    shards = [_Shard(shard.shard_id, shard.manifests(), shard.tip) for shard in found if not shard.is_absent]
    nothing_left = CollectedError("nothing is left that says what the table was at that time; choose a later one")

    def fit(then: BaseTable) -> Snapshot | None:
        if then.tag not in (base.tag, None):
            raise nothing_left  # it is a version of another table
        return _snapshot(then.tag, then, shards, compacted(then), absent)

    snapshot = _newest_fitting(location, versions[:_BASES_OF_A_TIME], fit, too_new=later)
    if snapshot is None:
        raise nothing_left
    return snapshot


# ---------------------------------------------------------------------------------------- manifests and base versions


def _newest_fitting(
    location: Location,
    versions: Sequence[int],
    fit: Callable[[BaseTable], Snapshot | None],
    *,
    too_new: int | None = None,
) -> Snapshot | None:
    """What `fit` makes of the first of these versions, newest first, that is not too new for it; None if all of them are.

    `too_new` is the oldest version that is known to be so already. `CollectedError` if the one after it is gone.
    """
    newest = versions[0] if too_new is None and versions else (too_new or 0) - 1  # the newest that may be the one
    for version in versions:
        base = BaseTable.find(location, version)
        found = None if base is None else fit(base)
        if found is not None and version == newest:
            return found
        if found is not None:
            raise CollectedError(
                "the version that the base table had then is gone: ask for a later moment, and create checkpoints of what is "
                "asked for again"
            )
        if base is not None:
            newest = version - 1
    return None


def _snapshot(
    tag: str | None, base: BaseTable, shards: Sequence[_Shard], marks: Mapping[str, int], absent: Collection[str]
) -> Snapshot | None:
    """The shards above a version of the base table with these marks; None if it has later rows, or rows of `absent` shards."""
    if any(marks.get(shard_id) for shard_id in absent):
        return None
    at_once = base.location.at_once(_PARALLEL_READS)
    found = list(in_order(lambda shard: shard.above(marks.get(shard.shard_id, 0)), shards, at_once, "memwal-time"))
    above = [shard for shard in found if shard is not None]
    if len(above) < len(found):
        return None
    return Snapshot(tag, base.version, tuple(sorted(above, key=lambda shard: shard.shard_id)))


@dataclass(slots=True)
class _Shard:
    """One shard at a moment: its manifests, newest first, read once and when they are needed, and where its log ended."""

    shard_id: str
    manifests: Iterator[ShardManifest]
    tip: Callable[[ShardManifest], int]
    known: list[ShardManifest] = field(default_factory=list)

    def above(self, mark: int) -> SnapshotShard | None:
        """The shard above a base version with this mark; None if that is too new.

        A manifest that gave up generations which the base version lacks would leave their rows out. An older one lists them.
        """
        fitting = next((manifest for manifest in self._all() if not given_up(manifest, mark)), None)
        if fitting is None or mark >= fitting.current_generation:
            return None
        cursor = fitting.replay_after_wal_entry_position
        return SnapshotShard(self.shard_id, fitting.version, cursor, self.tip(fitting))

    def _all(self) -> Iterator[ShardManifest]:
        yield from self.known
        for manifest in self.manifests:
            self.known.append(manifest)
            yield manifest


def _at_position(location: Location, shard_id: str, position: int) -> _Shard:
    """A shard when its log was read up to a position."""
    return _Shard(shard_id, _manifests_up_to(location, shard_id, position), lambda _: position)


def _manifests_up_to(location: Location, shard_id: str, position: int) -> Iterator[ShardManifest]:
    """The manifests that cover nothing after `position`, newest first, up to the first one that is gone."""
    manifests = ShardManifestStore(location, shard_id)
    for version in reversed(manifests.list_versions()):
        try:
            manifest = manifests.read_version(version)
        except ObjectNotFoundError:
            return
        if manifest.replay_after_wal_entry_position <= position:
            yield manifest


class _AtTime:
    """One shard at a time."""

    def __init__(self, location: Location, shard_id: str, time_ms: int) -> None:
        self._location = location
        self._time_ms = time_ms
        self._store = ShardManifestStore(location, shard_id)
        self.shard_id = shard_id
        times = self._store.written_ms()
        self._written = sorted((v for v, written_ms in times.items() if written_ms <= time_ms), reverse=True)
        self.is_absent = not self._written and min(times, default=1) == 1

    def manifests(self) -> Iterator[ShardManifest]:
        """The manifests that were written by then, newest first, and then `CollectedError`."""
        for version in self._written[:_MANIFESTS_OF_A_TIME]:
            try:
                manifest = self._store.read_version(version)
            except ObjectNotFoundError:
                break
            if not self._is_later(manifest.replay_after_wal_entry_position):
                yield manifest
        raise self._collected()

    def tip(self, manifest: ShardManifest) -> int:
        """As much of the log after the cursor of the manifest as was there."""
        cursor = manifest.replay_after_wal_entry_position
        after = [position for position in list_positions(self._location, self.shard_id) if position > cursor]
        run = [position for number, position in enumerate(after, cursor + 1) if number == position]
        low, high = 0, len(run)
        while low < high:  # every entry of run[:low] is of then, none of run[high:]
            middle = (low + high) // 2
            low, high = (low, middle) if self._is_later(run[middle]) else (middle + 1, high)
        if low == len(run):  # the run goes up to the tip, unless GC cut it
            newest = self._store.read_latest()
            passed = 0 if newest is None else newest.replay_after_wal_entry_position
            if len(after) > len(run) or passed > cursor + len(run):
                raise self._collected()
        return cursor + low

    def _is_later(self, position: int) -> bool:
        """Whether an entry that is still there was written after the time."""
        written_ms = written_ms_at(self._location, self.shard_id, position) if position else None
        return written_ms is not None and written_ms > self._time_ms

    def _collected(self) -> CollectedError:
        return CollectedError(
            f"collection has passed that time in shard {self.shard_id}; choose a later one, or create checkpoints of what "
            "is asked for again"
        )
