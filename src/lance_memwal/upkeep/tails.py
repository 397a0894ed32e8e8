"""Turning the log tails of shards without a writer into generations.

Owns `flush_tails`, and whether somebody seems to write a shard. A shard that a queue, a Spark job or a crashed writer left
behind keeps rows in its log only; somebody has to open it once so that they become SSTables. Invariants:

1. Opening claims the shard, so that a living writer would be fenced. A shard that somebody seems to write
   (`lance_memwal.write.presence`) is skipped and reported, unless forced. A joint shard (RFC 0017) is
   not claimed and never skipped: its log is sealed, and those who append to it go on.
2. A shard whose tail holds no row is not claimed.
3. What is reported as flushed is published: the manifest lists it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from typing import Protocol

from lance_memwal.arguments import check_flag, check_seconds
from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import FencedError, MemWalError, UndecidedColumnsError
from lance_memwal.log.epochs import IDLE_SECONDS, EpochKind, look_at_epoch, silent_seconds
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import read_tail, tail_positions
from lance_memwal.log.shards import list_shards, newest_manifests
from lance_memwal.log.tail import unflushed
from lance_memwal.memtable import live
from lance_memwal.process.lazy import lazy
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest, ShardStatus, check_shard_ids
from lance_memwal.upkeep.reports import FlushedShard, FlushReport
from lance_memwal.write.once import OnceAppender
from lance_memwal.write.presence import why_kept
from lance_memwal.write.table_appender import TableAppender


class _OpenShard(Protocol):
    def close(self) -> None: ...


ShardOpener = Callable[[str], _OpenShard]
"""Opens the writer of a shard: claims it and replays its tail."""


def flush_tails(
    location: Location,
    open_shard: ShardOpener,
    *,
    shards: Collection[str | uuid.UUID] | None = None,
    idle_seconds: float = IDLE_SECONDS,
    force: bool = False,
    tag: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> FlushReport:
    """Publish the tail of every shard that nobody writes any more; says what was flushed and what was left alone."""
    check_seconds("idle_seconds", idle_seconds)
    check_flag("force", force)
    shards = None if shards is None else check_shard_ids(shards)
    joint, results = _JointShards(location, tag, clock), []
    for manifest in newest_manifests(location, list_shards(location, shards)):
        tail = _tail_with_rows(location, manifest, tag)
        if not tail:
            continue
        reason = _reason_to_skip(location, manifest, tail, clock, idle_seconds=idle_seconds, force=force)
        try:
            if joint.flush(manifest):
                results.append(_flushed(location, manifest))
            elif reason is None:
                results.append(_flush(location, manifest, open_shard))
            else:
                results.append(FlushedShard(manifest.shard_id, skipped=reason))
        except UndecidedColumnsError as error:
            results.append(FlushedShard(manifest.shard_id, skipped=str(error)))
    return FlushReport(tuple(results))


def flush_live(location: Location, timeout_seconds: float, *, shards: Collection[str] | None = None) -> dict[str, str]:
    """Let the writers of this process publish what they hold; says of which shards they did not, and why."""
    failed = {}
    for shard in live.all_of(location.key):
        if shards is not None and shard.shard_id not in shards:
            continue
        try:
            shard.publish(timeout_seconds)
        except MemWalError as error:
            failed[shard.shard_id] = str(error)
    for keeper in live.keepers_of(location.key):
        failed |= keeper.publish_kept(timeout_seconds, shards)
    return failed


def in_log_only(location: Location, *, shards: Collection[str] | None = None, tag: str | None) -> dict[str, int]:
    """The shards that hold rows in their log and in no SSTable, with the number of entries there."""
    found = {}
    for manifest in newest_manifests(location, list_shards(location, shards)):
        entries = _tail_with_rows(location, manifest, tag)
        if entries:
            found[manifest.shard_id] = len(entries)
    return found


def is_left_alone(
    location: Location, manifest: ShardManifest, *, idle_seconds: float, tag: str | None, clock: Clock = SYSTEM_CLOCK
) -> bool:
    """Whether nobody seems to write the shard: no row waits in its log, or none came for `idle_seconds`."""
    tail = _tail_with_rows(location, manifest, tag)
    return not tail or _reason_to_skip(location, manifest, tail, clock, idle_seconds=idle_seconds, force=False) is None


def may_be_claimed(
    location: Location, manifest: ShardManifest, *, idle_seconds: float, tag: str | None, clock: Clock = SYSTEM_CLOCK
) -> bool:
    """Whether a claim stops nobody: the shard is left alone, or joint, so that those who append to it join again."""
    if is_left_alone(location, manifest, idle_seconds=idle_seconds, tag=tag, clock=clock):
        return True
    return look_at_epoch(location, manifest, tag=tag, clock=clock).kind is EpochKind.JOINT


def _tail_with_rows(location: Location, manifest: ShardManifest, tag: str | None) -> list[int]:
    """The positions after the cursor, if one of them has rows that no SSTable holds; it is read up to the first of them."""
    tail = tail_positions(location, manifest)
    entries = read_tail(location, manifest, tail[-1] + 1, tag=tag) if tail else ()
    return tail if any(unflushed(entries, manifest.current_generation)) else []


def _reason_to_skip(
    location: Location,
    manifest: ShardManifest,
    tail: list[int],
    clock: Clock,
    *,
    idle_seconds: float,
    force: bool,
) -> str | None:
    """Why a shard with rows in its log is left alone; None if it is to be flushed."""
    if manifest.status is ShardStatus.SEALED:
        return "the shard is sealed"
    if force:
        return None
    silent = silent_seconds(location, manifest, tail[-1:], clock)
    return why_kept(location, manifest, silent_seconds=silent, idle_seconds=idle_seconds)


class _JointShards:
    """Shards whose epoch belongs to all sinks: they are flushed as one of them."""

    def __init__(self, location: Location, tag: str | None, clock: Clock) -> None:
        self._location = location
        self._tag = tag
        self._clock = clock

    @lazy
    def _sink(self) -> TableAppender:
        return TableAppender(OnceAppender(self._location, clock=self._clock), clock=self._clock)

    def flush(self, manifest: ShardManifest) -> bool:
        """Publish the log of a shard; False if it is not joint."""
        if manifest.status is ShardStatus.SEALED:
            return False
        look = look_at_epoch(self._location, manifest, tag=self._tag, clock=self._clock)
        return look.kind is EpochKind.JOINT and self._sink.flush(manifest.shard_id) is not None


def _flush(location: Location, before: ShardManifest, open_shard: ShardOpener) -> FlushedShard:
    try:
        open_shard(before.shard_id).close()
    except FencedError:
        return FlushedShard(before.shard_id, skipped="another writer took the shard over meanwhile")
    return _flushed(location, before)


def _flushed(location: Location, before: ShardManifest) -> FlushedShard:
    """What was published since `before`."""
    shard_id, first = before.shard_id, before.current_generation
    after = ShardManifestStore(location, shard_id).read_latest()
    added = () if after is None else after.above(first - 1)
    return FlushedShard(
        shard_id,
        generations=tuple(sstable.generation for sstable in added),
        rows=sum(sstable.physical_rows or 0 for sstable in added),
    )
