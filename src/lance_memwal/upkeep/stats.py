"""The state of a table in numbers: tiers, rows, bytes, the work that is due, and rates between two statistics.

Owns the counts of shards and `TableRates`. Invariants:

1. Nothing is written, and every number is of one listing of its shard.
2. Rates come from storage, so they are those of all processes together. Entries are counted by position: GC and flushes take
   nothing away. Bytes are exact unless GC deleted entries; then each new entry counts as the mean of the remaining entries.
3. A shard that is new, or whose log was re-created, has rates of zero. No rate is negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from lance_memwal.clock import SYSTEM_CLOCK, Clock, in_order
from lance_memwal.compact.policy import CompactionPolicy, due_of
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.marks import compacted
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions, read_transactions
from lance_memwal.log.shards import list_shards, newest_manifests, sstable_sizes
from lance_memwal.log.transactions import is_own
from lance_memwal.process.cache import CACHE
from lance_memwal.read.count import live_rows_of
from lance_memwal.read.tiers import ShardView, Tiers
from lance_memwal.sstable.catch_up import CatchUp
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.store.port import ObjectMeta
from lance_memwal.types import ShardManifest
from lance_memwal.upkeep.consumer_records import read_consumers
from lance_memwal.upkeep.reports import ConsumerInfo, GcReport, GenerationStats, ShardInfo, ShardStats, TableStats

_SHARDS_AT_ONCE = 16


def collect_stats(
    location: Location,
    base: BaseTable,
    garbage: GcReport | None,
    policy: CompactionPolicy,
    clock: Clock = SYSTEM_CLOCK,
    live: Tiers | None = None,
) -> TableStats:
    """The statistics of the table; `garbage` is a dry run of collection, `live` what a scan would read now."""
    seen_seconds, marks = clock.monotonic(), compacted(base)
    seen = _all_shards(location, marks, live)
    manifests, tips = [manifest for manifest, _ in seen], {shard.shard_id: shard.wal_tip for _, shard in seen}
    fragments = base.manifest.fragments()
    return TableStats(
        base_version=base.version,
        base_rows=int(base.dataset.count_rows()),
        base_fragments=len(fragments),
        base_bytes=sum(file.size_bytes for fragment in fragments for file in fragment.files),
        shards=tuple(shard for _, shard in seen),
        compaction_due=tuple(due_of(location, manifests, marks, policy, clock)),
        collectable_objects=None if garbage is None else len(garbage.objects),
        collectable_bytes=None if garbage is None else garbage.size_bytes,
        cache_bytes=CACHE.size_bytes,
        waiting_for_indexes=CatchUp.of(base).waiting(manifests),
        consumers=tuple(consumer_infos(location, base.table_id, clock, tips)),
        live_rows=None if live is None else live_rows_of(live),
        store_calls=location.metrics.snapshot(),
        seen_seconds=seen_seconds,
    )


def _all_shards(
    location: Location, marks: Mapping[str, int], live: Tiers | None
) -> list[tuple[ShardManifest, ShardStats]]:
    """Every shard that has a manifest, in order of id; many are looked at at once where that is faster."""
    views = {} if live is None else {view.shard_id: view for view in live.shards}

    def look(shard_id: str) -> tuple[ShardManifest, ShardStats] | None:
        manifest = ShardManifestStore(location, shard_id).read_latest()
        return (
            None
            if manifest is None
            else (
                manifest,
                _shard(location, manifest, marks.get(shard_id, 0), views.get(shard_id)),
            )
        )

    found = in_order(look, list_shards(location), location.at_once(_SHARDS_AT_ONCE), "memwal-stats")
    return [shard for shard in found if shard is not None]


def shard_infos(location: Location) -> list[ShardInfo]:
    """Every shard as storage shows it: a manifest and one listing per shard."""
    infos = []
    for manifest in newest_manifests(location):
        objects = location.store.list(paths.shard_dir(manifest.shard_id))
        sizes, tail = sstable_sizes(manifest.shard_id, objects), _log_of(manifest.shard_id, objects)
        infos.append(
            ShardInfo(
                manifest.shard_id,
                manifest.writer_epoch,
                manifest.status,
                tuple(sstable.generation for sstable in manifest.sstables),
                manifest.current_generation,
                sum(position > manifest.replay_after_wal_entry_position for position in tail),
                sum(sizes[sstable.path] for sstable in manifest.sstables),
            )
        )
    return infos


def consumer_infos(
    location: Location, table_id: str | None, clock: Clock = SYSTEM_CLOCK, tips: Mapping[str, int] | None = None
) -> list[ConsumerInfo]:
    """Every named consumer of the table's changes, by name; `tips`: the newest position of every shard, if it is known."""
    records = read_consumers(location, table_id)
    if records and tips is None:
        tips = {shard: max(list_positions(location, shard), default=0) for shard in list_shards(location)}
    return [
        ConsumerInfo(
            name=record.name,
            state=record.state,
            lag_entries=sum(max(0, tip - record.position(shard)) for shard, tip in (tips or {}).items()),
            silent_seconds=max(0, clock.now_ms() - record.written_ms) / 1000,
            max_age_seconds=record.max_age_ms / 1000,
            cursor=record.cursor,
        )
        for record in records
    ]


def newest_transactions(location: Location, tag: str | None) -> dict[str, dict[str, int]]:
    """Per shard, the newest version of every application; ids of lance-memwal itself are left out. `tag`: of the table."""
    found: dict[str, dict[str, int]] = {}
    for manifest in newest_manifests(location):
        positions = list_positions(location, manifest.shard_id)
        known = read_transactions(location, manifest, positions, tag=tag)
        found[manifest.shard_id] = {app: item.version for app, item in known.whole().items() if not is_own(app)}
    return found


def _log_of(shard_id: str, objects: Iterable[ObjectMeta]) -> dict[int, ObjectMeta]:
    """The entries of the shard's log, by position; `objects` are those of the shard."""
    return {
        position: item
        for item in objects
        if item.path.startswith(f"{paths.wal_dir(shard_id)}/")
        and (position := paths.parse_entry_name(item.path.rpartition("/")[2])) is not None
    }


def _generations(
    manifest: ShardManifest, mark: int, view: ShardView | None, sizes: Mapping[str, int]
) -> tuple[GenerationStats, ...]:
    """Every generation that the manifest lists, and those of `view` that it does not list yet, ascending."""
    listed = [("compacted", s) for s in manifest.up_to(mark)] + [("sstable", s) for s in manifest.above(mark)]
    found = [
        GenerationStats(s.generation, tier, s.physical_rows, sizes[s.path], s.in_memory_bytes) for tier, s in listed
    ]
    memory = [] if view is None else [ref for ref in view.memory if ref.generation >= manifest.current_generation]
    for number, ref in enumerate(memory, 1):
        tier, held = "memtable" if number == len(memory) else "frozen", ref.memtable.size_bytes
        found.append(GenerationStats(ref.generation, tier, ref.num_rows, in_memory_bytes=held))
    return tuple(found)


def _shard(location: Location, manifest: ShardManifest, mark: int, view: ShardView | None) -> ShardStats:
    shard_id = manifest.shard_id
    objects = location.store.list(paths.shard_dir(shard_id))
    cursor = manifest.replay_after_wal_entry_position
    log, sizes = _log_of(shard_id, objects), sstable_sizes(shard_id, objects)
    lag = [item for position, item in log.items() if position > cursor]
    tip = max(log, default=0)
    pending = manifest.above(mark)
    return ShardStats(
        shard_id=shard_id,
        epoch=manifest.writer_epoch,
        current_generation=manifest.current_generation,
        compacted_generation=mark,
        sstables=len(manifest.sstables),
        sstable_rows=sum(sstable.physical_rows or 0 for sstable in manifest.sstables),
        sstable_bytes=sum(sizes[sstable.path] for sstable in manifest.sstables),
        uncompacted_generations=len(pending),
        uncompacted_rows=sum(sstable.physical_rows or 0 for sstable in pending),
        uncompacted_bytes=sum(sizes[sstable.path] for sstable in pending),
        wal_entries=len(log),
        wal_bytes=sum(item.size_bytes for item in log.values()),
        wal_lag_entries=len(lag),
        wal_lag_bytes=sum(item.size_bytes for item in lag),
        manifests=sum(item.path.startswith(f"{paths.manifest_dir(shard_id)}/") for item in objects),
        objects=len(objects),
        size_bytes=sum(item.size_bytes for item in objects),
        wal_first=min(log, default=0),
        wal_tip=tip,
        written_ms=log[tip].modified_ms if log else None,
        lag_since_ms=min((item.modified_ms for item in lag), default=None),
        generations=_generations(manifest, mark, view, sizes),
    )


@dataclass(frozen=True, slots=True)
class Rates:
    """Log entries, their bytes, new SSTables and compacted ones, per second; and the number of takeovers."""

    entries: float = 0.0
    size_bytes: float = 0.0
    flushes: float = 0.0
    compacted: float = 0.0
    takeovers: int = 0


@dataclass(frozen=True, slots=True)
class TableRates(Rates):
    """The sums over all shards, and the rates of each in the order of the statistics.

    `base_rows` is the growth of the base table. `requests` and `dollars` are those of this process. All are per second.
    """

    seconds: float = 0.0
    shards: tuple[Rates, ...] = ()
    base_rows: float = 0.0
    requests: float = 0.0
    dollars: float = 0.0


def rates_between(before: TableStats, after: TableStats) -> TableRates:
    """The rates between two statistics of one table and process."""
    seconds = after.seen_seconds - before.seen_seconds
    if seconds <= 0:
        raise InvalidInputError("rates need two observations, the older one first")
    known = {shard.shard_id: shard for shard in before.shards}
    shards = tuple(_rates(known.get(shard.shard_id), shard, seconds) for shard in after.shards)
    requests = [sum(calls.count for calls in stats.store_calls.values()) for stats in (before, after)]
    sums: dict[str, Any] = {field.name: sum(getattr(shard, field.name) for shard in shards) for field in fields(Rates)}
    return TableRates(
        **sums,
        seconds=seconds,
        shards=shards,
        base_rows=(after.base_rows - before.base_rows) / seconds,
        requests=max(0, requests[1] - requests[0]) / seconds,
        dollars=max(0.0, after.request_cost_dollars - before.request_cost_dollars) / seconds,
    )


def _rates(before: ShardStats | None, after: ShardStats, seconds: float) -> Rates:
    if before is None or after.epoch < before.epoch or after.wal_tip < before.wal_tip:
        return Rates()
    entries = after.wal_tip - before.wal_tip
    written_bytes: float = max(0, after.wal_bytes - before.wal_bytes)
    if after.wal_first > before.wal_first and before.wal_entries:
        written_bytes = entries * after.wal_bytes / max(1, after.wal_entries)
    flushes = max(0, after.current_generation - before.current_generation)
    compacted = max(0, after.compacted_generation - before.compacted_generation)
    return Rates(
        entries / seconds, written_bytes / seconds, flushes / seconds, compacted / seconds, after.epoch - before.epoch
    )
