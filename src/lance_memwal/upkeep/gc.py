"""Garbage collection: propose, verify, delete.

Owns `Collector`. It deletes only objects that the newest manifest and the newest base version prove dead, in three phases:
propose (one listing per shard), verify (`upkeep.verify` reports no problem, and manifest and base, read again, still prove
it), delete. Invariants:

1. GC never deletes a sentinel. A stalled writer finds the sentinel of its successor at its next position. One small object
   per takeover stays.
2. GC never deletes the newest entry of a log. An append may follow one entry that no manifest check has confirmed (append R8):
   if that position was emptied, the newest entry makes the create above it fail.
3. GC keeps the newest entry with a whole transaction map, and every entry above it. Otherwise a retry could look like a new
   write, or a late append could put a transaction that counts into an emptied position.
4. GC deletes an entry only if it is at or below the replay cursor. It deletes entries in ascending order, so that a crash leaves
   no gap at the end of the log.
5. GC deletes an SSTable only if no index needs it (`lance_memwal.sstable.catch_up`) and no manifest lists it that a reader may
   use. SSTables that are listed only for an index are trimmed first. A directory that was never listed is deleted only if its
   generation is below `current_generation`: otherwise a stalled writer could still publish it. The same holds for empty
   directories.
6. Every object waits for the grace period after it became unneeded. The witness is a manifest version that is older than the
   grace period and already proves the object dead. The witness is kept.
7. GC writes the hint before it deletes manifest versions, the oldest first. It keeps the newest few, without a gap: other
   implementations read versions from the hint upwards and take a gap for the end.
8. GC keeps pinned objects (`lance_memwal.upkeep.pins`). It announces its proposals, reads the pins again, and raises the GC floor
   of the shard to the unpinned part before the first delete. A process that pins after the second read sees the announcement.
9. GC keeps the rows of a bulk write as long as it would keep an entry at the position of the bulk marker: consumers read the rows
   there. A record expires a consumer that was idle for too long; GC then ignores its pin.
10. GC deletes objects in `memwal_rollups/` after the grace period. Development versions wrote them; no reader opens them.
11. GC refuses a shard as a whole if verify reports a problem. It never deletes quarantined bytes.

After a crash between two deletes, the next run continues by the same rules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from lance_memwal.arguments import check_callable, check_flag, check_seconds
from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.compact.reports import Progress
from lance_memwal.compact.trim import trim_all
from lance_memwal.crash_points import reach
from lance_memwal.errors import ObjectNotFoundError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.commit import let_survive
from lance_memwal.lance.identity import TableWatch
from lance_memwal.lance.manifest import removal_order
from lance_memwal.lance.optimize import optimize_indexes
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.manifest_codec import encode_hint
from lance_memwal.log.shards import Floor, list_shards
from lance_memwal.process.telemetry import active
from lance_memwal.sstable.catch_up import CatchUp
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.store.port import ObjectMeta
from lance_memwal.types import ShardManifest
from lance_memwal.upkeep.checkpoint_records import tidy_checkpoints
from lance_memwal.upkeep.consumer_records import expire
from lance_memwal.upkeep.pins import Pins, read_pins
from lance_memwal.upkeep.reports import CollectedObject, GcReport, Problem
from lance_memwal.upkeep.verify import ShardFindings, inspect_shard

_LOG = logging.getLogger(__name__)
_KEPT_MANIFESTS = 3
_STAGING_LIFE_MS = 3600 * 1000  # a running job stages its rows for a while before it commits them


@dataclass(frozen=True, slots=True)
class _Shard:
    """One shard as it was listed, and what proves things dead there."""

    shard_id: str
    objects: tuple[ObjectMeta, ...]
    names: tuple[str, ...]
    newest: ShardManifest
    witness: ShardManifest | None
    mark: int
    through: int

    def below(self, directory: str) -> list[ObjectMeta]:
        """The objects in one directory."""
        return [item for item in self.objects if item.path.startswith(f"{directory}/")]


class Collector:
    """Collects the garbage of one table."""

    def __init__(self, location: Location, newest_base: Callable[[], BaseTable], clock: Clock = SYSTEM_CLOCK) -> None:
        self._location = location
        self._newest_base = newest_base
        self._clock = clock

    def run(
        self,
        *,
        dry_run: bool = False,
        grace_seconds: float = 3600,
        optimize_indices: bool = False,
        progress: Progress | None = None,
    ) -> GcReport:
        """Remove what nobody needs any more, and say what; a dry run removes nothing.

        `optimize_indices` first lets the indexes of the base table catch up, so that they need no SSTable.
        """
        check_seconds("grace_seconds", grace_seconds)
        check_flag("dry_run", dry_run)
        check_flag("optimize_indices", optimize_indices)
        check_callable("progress", progress)
        base = self._newest_base()
        base.need_details()  # else nothing can be proven dead
        watch = TableWatch(base, self._clock)
        started = self._clock.monotonic()
        if not dry_run:
            tidy_checkpoints(base, self._clock)
        pins = read_pins(base)
        if optimize_indices and not dry_run:
            newest, _ = optimize_indexes(self._newest_base())  # where others are faster, `waiting` tells
            let_survive(newest)
        if not dry_run:
            trim_all(
                self._location, watch.look, self._clock
            )  # of what indexes have caught up with since it was compacted
        grace_ms = int(grace_seconds * 1000)
        removed: list[CollectedObject] = []
        refused: dict[str, list[Problem]] = {}
        expired: list[str] = []
        waiting = left = pinned = 0
        shards = list_shards(self._location)
        for done, shard_id in enumerate(shards):
            shard = self._look(shard_id, grace_ms)
            if shard is None:
                continue
            findings = inspect_shard(self._location, shard_id, self._newest_base, deep=False, clock=self._clock)
            if findings.problems:
                refused[shard_id] = findings.problems
                left += len(shard.objects)
                _LOG.warning("collection refuses a shard [shard=%s]: %s", shard_id, findings.problems[0])
                continue
            waiting += self._waiting(shard)
            places = _Places(shard_id, findings)
            found = list(self._propose(shard, findings, grace_ms))
            pins = self._without_expired(pins, places, found, expired, dry_run=dry_run)
            unneeded = len(found)
            found = [item for item in found if not _is_pinned(item, places, pins)]
            pinned += unneeded - len(found)
            if not dry_run:
                found = self._delete(shard, found, watch, places, pins)
            removed += found
            left += self._left(shard, found, dry_run=dry_run)
            if progress is not None:
                progress("collected shards", done + 1, len(shards))
        staged = list(self._staging(grace_ms))
        if not dry_run:
            self._delete_all(staged)
        report = GcReport(
            dry_run=dry_run,
            objects=(*removed, *staged),
            refused=refused,
            waiting=waiting,
            pinned=pinned,
            objects_left=left,
            expired_consumers=tuple(expired),
            seconds=self._clock.monotonic() - started,
        )
        if report.objects and not dry_run and (told := active()) is not None:
            told.note("lance_mem_wal_collected_objects_total", len(report.objects))
            told.note("lance_mem_wal_collected_bytes_total", report.size_bytes)
        return report

    def _without_expired(
        self, pins: Pins, places: _Places, found: Sequence[CollectedObject], expired: list[str], *, dry_run: bool
    ) -> Pins:
        """The pins without consumers that hold something of `found` back and were silent for too long; they are told."""
        now_ms = self._clock.now_ms()
        for record in pins.consumers.too_old(now_ms, places.shard_id, places.highest(found)):
            if dry_run or expire(self._location, record, now_ms, self._clock.uuid4()):
                _LOG.warning("a consumer of changes has expired [consumer=%s]", record.name)
                expired.append(record.name)
                pins = replace(pins, consumers=pins.consumers.without(record.name))
        return pins

    def _left(self, shard: _Shard, found: Sequence[CollectedObject], *, dry_run: bool) -> int:
        """How many objects a shard has without what was found."""
        if found and not dry_run:
            return sum(1 for _ in self._location.store.list(paths.shard_dir(shard.shard_id)))
        return len({item.path for item in shard.objects} - {item.path for item in found})

    # ------------------------------------------------------------------------------------------------------ looking

    def _look(self, shard_id: str, grace_ms: int) -> _Shard | None:
        objects = tuple(self._location.store.list(paths.shard_dir(shard_id)))
        manifests = ShardManifestStore(self._location, shard_id, clock=self._clock)
        newest = manifests.read_latest()
        if newest is None:
            return None
        caught_up = CatchUp.of(self._newest_base())
        return _Shard(
            shard_id=shard_id,
            objects=objects,
            names=tuple(self._location.store.list_names(paths.shard_dir(shard_id))),
            newest=newest,
            witness=self._witness(manifests, objects, grace_ms),
            mark=caught_up.compacted.get(shard_id, 0),
            through=caught_up.through(shard_id),
        )

    def _witness(
        self, manifests: ShardManifestStore, objects: Sequence[ObjectMeta], grace_ms: int
    ) -> ShardManifest | None:
        """The newest manifest version that is at least as old as the grace period."""
        oldest_ms = self._clock.now_ms() - grace_ms
        aged = [
            version
            for item in objects
            if (version := _manifest_version(manifests.shard_id, item.path)) is not None
            and item.modified_ms <= oldest_ms
        ]
        try:
            return manifests.read_version(max(aged)) if aged else None
        except ObjectNotFoundError:
            return None

    # ------------------------------------------------------------------------------------------------------ proposing

    def _propose(self, shard: _Shard, findings: ShardFindings, grace_ms: int) -> Iterator[CollectedObject]:
        """What may go: first what the log holds, then SSTables, then old manifests."""
        fresh = findings.manifest
        if shard.witness is None or fresh is None or fresh.writer_epoch < shard.newest.writer_epoch:
            return
        yield from self._entries(shard, findings)
        yield from self._sstables(shard, grace_ms)
        yield from self._manifests(shard, grace_ms)
        yield from self._deletes(shard, grace_ms)
        yield from self._roll_ups(shard, grace_ms)
        yield from self._owner_records(shard, grace_ms)

    def _owner_records(self, shard: _Shard, grace_ms: int) -> Iterator[CollectedObject]:
        """Owner records of earlier epochs, which earlier versions wrote for shared writers."""
        oldest_ms = self._clock.now_ms() - grace_ms
        for item in shard.objects:
            directory, _, name = item.path.rpartition("/")
            epoch = paths.parse_owner_name(name) if directory == paths.shard_dir(shard.shard_id) else None
            if epoch is not None and epoch < shard.newest.writer_epoch and item.modified_ms <= oldest_ms:
                yield CollectedObject(item.path, item.size_bytes, "owner")

    def _roll_ups(self, shard: _Shard, grace_ms: int) -> Iterator[CollectedObject]:
        """Copies of generations that development versions wrote; other names in their directory stay."""
        oldest_ms = self._clock.now_ms() - grace_ms
        for item in shard.below(paths.roll_up_dir(shard.shard_id)):
            if item.modified_ms <= oldest_ms and paths.is_roll_up_name(item.path.rpartition("/")[2]):
                yield CollectedObject(item.path, item.size_bytes, "rollup")

    def _deletes(self, shard: _Shard, grace_ms: int) -> Iterator[CollectedObject]:
        """Deletes that were remembered for as long as the table says."""
        found = shard.below(paths.deletes_dir(shard.shard_id))
        order = self._newest_base().order if found else None
        if order is not None:
            oldest_ms = self._clock.now_ms() - max(grace_ms, order.remember_ms)
            dead = [item for item in found if item.modified_ms <= oldest_ms]
            yield from (CollectedObject(item.path, item.size_bytes, "deletes") for item in dead)

    def _entries(self, shard: _Shard, findings: ShardFindings) -> Iterator[CollectedObject]:
        entries = findings.entries
        if shard.witness is None or not entries:
            return
        cursor = min(shard.witness.replay_after_wal_entry_position, shard.newest.replay_after_wal_entry_position)
        newest = max(entries)
        with_map = max((position for position, info in entries.items() if info.has_map), default=newest)  # <= newest
        for position in sorted(entries):
            info = entries[position]
            stays = info.is_sentinel or not info.readable or position >= with_map
            if position <= cursor and not stays:
                path = paths.wal_entry_path(shard.shard_id, position)
                yield CollectedObject(path, info.size_bytes, "entry")

    def _sstables(self, shard: _Shard, grace_ms: int) -> Iterator[CollectedObject]:
        oldest_ms = self._clock.now_ms() - grace_ms
        for name in _directories(shard):
            kind = self._dead_directory(shard, name)
            objects = shard.below(paths.sstable_dir(shard.shard_id, name))
            if kind is not None and all(item.modified_ms <= oldest_ms for item in objects):
                ordered = sorted(objects, key=lambda item: removal_order(item.path))
                yield from (CollectedObject(item.path, item.size_bytes, kind) for item in ordered)
            if kind is not None and not objects:  # the witness says how long it is dead: a directory has no time
                yield CollectedObject(paths.sstable_dir(shard.shard_id, name), 0, "orphan")

    def _dead_directory(self, shard: _Shard, name: str) -> str | None:
        """Why this SSTable directory may go: `sstable` (compacted), `orphan` (never listed), or None."""
        generation = paths.parse_sstable_name(name)
        if generation is None or shard.witness is None:
            return None
        if any(name == sstable.path for m in (shard.newest, shard.witness) for sstable in m.sstables):
            return None
        if generation >= min(shard.newest.current_generation, shard.witness.current_generation):
            return None
        if generation > shard.mark:
            listed = any(sstable.generation == generation for sstable in shard.newest.sstables)
            return "orphan" if listed else None
        return None if generation > shard.through else "sstable"

    def _waiting(self, shard: _Shard) -> int:
        """Compacted SSTables that only an index which lags keeps."""
        numbers = [paths.parse_sstable_name(name) or 0 for name in _directories(shard)]
        return sum(shard.through < number <= shard.mark for number in numbers)

    def _manifests(self, shard: _Shard, grace_ms: int) -> Iterator[CollectedObject]:
        oldest_ms = self._clock.now_ms() - grace_ms
        versions = {
            version: item
            for item in shard.objects
            if (version := _manifest_version(shard.shard_id, item.path)) is not None
        }
        kept = set(sorted(versions)[-_KEPT_MANIFESTS:])
        if shard.witness is not None:
            kept.add(shard.witness.version)
        for version in sorted(version for version in versions if version < min(kept)):
            item = versions[version]
            if item.modified_ms > oldest_ms:
                return
            yield CollectedObject(item.path, item.size_bytes, "manifest")

    def _staging(self, grace_ms: int) -> Iterator[CollectedObject]:
        oldest_ms = self._clock.now_ms() - max(grace_ms, _STAGING_LIFE_MS)
        for item in self._location.store.list(paths.STAGE_DIR):
            if item.modified_ms <= oldest_ms:
                yield CollectedObject(item.path, item.size_bytes, "staging")

    # ------------------------------------------------------------------------------------------------------ deleting

    def _delete(
        self, shard: _Shard, found: Sequence[CollectedObject], watch: TableWatch, places: _Places, pins: Pins
    ) -> list[CollectedObject]:
        """Delete what was proposed, if the shard still proves it; otherwise leave it for the next run. Returns what went."""
        shard_id = shard.shard_id
        if not found or shard.witness is None:
            return []
        reach("gc.proposed")
        newest = ShardManifestStore(self._location, shard_id, clock=self._clock).read_latest()
        through = CatchUp.of(watch.look()).through(shard_id)
        if newest is None:
            return []
        still = [item for item in found if _still_dead(item, shard_id, newest, through)]
        if not still:
            return []
        floor = Floor(self._location, shard_id, self._clock)
        floor.announce(places.highest(still), shard.witness.version)  # snapshots from the witness on need nothing of it
        reach("gc.announced")
        pins = read_pins(watch.look(), pins)
        still = [item for item in still if not _is_pinned(item, places, pins)]
        reach("gc.before_floor")
        floor.raise_to(places.highest(still))
        reach("gc.after_floor")
        if any(item.kind == "manifest" for item in still):
            self._write_hint(shard_id, newest.version)
        self._delete_all(still)
        return still

    def _write_hint(self, shard_id: str, version: int) -> None:
        reach("gc.before_hint")
        self._location.store.put(paths.manifest_hint_path(shard_id), encode_hint(version))
        reach("gc.after_hint")

    def _delete_all(self, found: Sequence[CollectedObject]) -> None:
        for item in found:
            reach(f"gc.before_{item.kind}")
            self._location.store.delete(item.path)
        if found:
            reach("gc.after_delete")
            _LOG.info("collected [objects=%d, bytes=%d]", len(found), sum(item.size_bytes for item in found))


class _Places:
    """Where the objects of a shard are in its log: entries, and the rows that bulk marks announce."""

    def __init__(self, shard_id: str, findings: ShardFindings) -> None:
        self.shard_id = shard_id
        entries = findings.entries.items()
        self._marks = {info.bulk_path: position for position, info in entries if info.bulk_path is not None}

    def of(self, item: CollectedObject) -> int | None:
        """The position at which a reader of changes needs this object; None if it does not."""
        if item.kind == "entry":
            return _position(item)
        return self._marks.get(_directory(item, self.shard_id)) if item.kind == "sstable" else None

    def highest(self, found: Sequence[CollectedObject]) -> int:
        """The highest position of these objects; 0 if they have none."""
        return max((self.of(item) or 0 for item in found), default=0)


def _is_pinned(item: CollectedObject, places: _Places, pins: Pins) -> bool:
    """Whether somebody keeps this object."""
    shard_id, position = places.shard_id, places.of(item)
    kept = pins.of(shard_id)
    if item.kind == "entry":
        return position is not None and pins.keeps_entry(shard_id, position)
    if item.kind == "manifest":
        version = _manifest_version(shard_id, item.path)
        return version is not None and kept.keeps_manifest(version)
    needed = position is not None and pins.consumers.needs(shard_id, position)
    return needed or _directory(item, shard_id) in kept.sstables


def _position(item: CollectedObject) -> int | None:
    return paths.parse_entry_name(item.path.rpartition("/")[2])


def _directory(item: CollectedObject, shard_id: str) -> str:
    """The directory below the shard's in which an object is."""
    return item.path[len(paths.shard_dir(shard_id)) + 1 :].partition("/")[0]


def _still_dead(item: CollectedObject, shard_id: str, newest: ShardManifest, through: int) -> bool:
    if item.kind == "entry":
        position = _position(item)
        return position is not None and position <= newest.replay_after_wal_entry_position
    if item.kind in ("sstable", "orphan"):
        name = _directory(item, shard_id)
        generation = paths.parse_sstable_name(name)
        listed = any(sstable.path == name for sstable in newest.sstables)
        compacted = item.kind == "orphan" or (generation is not None and generation <= through)
        return not listed and compacted
    if item.kind in ("deletes", "rollup", "owner"):
        return True  # age and epoch decide, and both only grow
    version = paths.parse_manifest_name(item.path.rpartition("/")[2])
    return version is not None and version < newest.version


def _manifest_version(shard_id: str, path: str) -> int | None:
    directory, _, name = path.rpartition("/")
    return paths.parse_manifest_name(name) if directory == paths.manifest_dir(shard_id) else None


def _directories(shard: _Shard) -> list[str]:
    """The SSTable directories of a shard, empty ones too, by generation."""
    start = len(paths.shard_dir(shard.shard_id)) + 1
    names = {item.path[start:].partition("/")[0] for item in shard.objects}
    return sorted(
        (name for name in names.union(shard.names) if paths.parse_sstable_name(name) is not None),
        key=lambda name: (paths.parse_sstable_name(name), name),
    )
