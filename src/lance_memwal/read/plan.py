"""What a scan reads and what it leaves out, as a value and in words.

Owns `ScanPlan`, its text, and `count_superseded`. Invariants:

1. A plan says what the snapshot says, and reads no row.
2. Tiers come newest first.
3. Counting reads keys of the fresh tiers only, as every scan does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lance_memwal.read.memory import indexes_used
from lance_memwal.read.merge import Merge, Projection
from lance_memwal.read.superseded_rows import superseded_rows
from lance_memwal.read.tiers import ShardView, Tiers
from lance_memwal.rows.adapt import tombstone_flags
from lance_memwal.rows.filter import RowFilter
from lance_memwal.sstable.catch_up import CatchUp


@dataclass(frozen=True, slots=True)
class TierPlan:
    """A generation that is read. `tier` is "memtable", "log" (rows of a writer elsewhere, by its log) or "sstable".

    `rows` are before newest-wins; `indexes` are those in memory that narrow the rows down.
    """

    tier: str
    generation: int
    rows: int | None
    path: str | None = None
    indexes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """A shard that is read. `skipped` are listed generations that the base table holds; `kept_for`: indexes keep them."""

    shard_id: str
    epoch: int
    manifest_version: int
    tiers: tuple[TierPlan, ...] = ()
    skipped: int = 0
    kept_for: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FragmentPlan:
    """A fragment of the base table."""

    fragment: int
    rows: int
    deleted: int = 0


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """One scan. `pruned_shards` can hold no row that matches; `base_version` is None where there is no base table."""

    place: str
    columns: tuple[str, ...]
    filter: str | None
    order: str | None
    limit: int | None
    offset: int
    primary_key: tuple[str, ...]
    shards: tuple[ShardPlan, ...] = ()
    pruned_shards: tuple[str, ...] = ()
    base_version: int | None = None
    base_rows: int = 0
    fragments: tuple[FragmentPlan, ...] = ()

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def plan_of(
    snapshot: Tiers,
    columns: tuple[str, ...],
    row_filter: RowFilter | None = None,
    order: str | None = None,
    *,
    limit: int | None = None,
    offset: int = 0,
) -> ScanPlan:
    """The plan of a scan of `snapshot`."""
    base = snapshot.base_table
    caught_up = None if base is None else CatchUp.of(base)
    return ScanPlan(
        place=snapshot.location.describe(),
        columns=columns,
        filter=None if row_filter is None else str(row_filter),
        order=order,
        limit=limit,
        offset=offset,
        primary_key=tuple(snapshot.schema.primary_key),
        shards=tuple(
            _shard(view, row_filter, {} if caught_up is None else caught_up.lagging(view.manifest))
            for view in snapshot.shards
        ),
        pruned_shards=snapshot.pruned_shards,
        base_version=None if base is None else base.version,
        base_rows=0 if base is None else int(base.dataset.count_rows()),
        fragments=() if base is None else tuple(_fragments(snapshot)),
    )


def _shard(view: ShardView, row_filter: RowFilter | None, lagging: Mapping[str, int]) -> ShardPlan:
    tier = "log" if view.from_tail else "memtable"
    memory = [
        TierPlan(tier, ref.generation, ref.num_rows, indexes=tuple(indexes_used(ref, row_filter)))
        for ref in reversed(view.memory)
    ]
    flushed = [TierPlan("sstable", s.generation, s.physical_rows, s.path) for s in reversed(view.sstables)]
    return ShardPlan(
        view.shard_id,
        view.manifest.writer_epoch,
        view.manifest.version,
        (*memory, *flushed),
        len(view.manifest.sstables) - len(view.sstables),
        dict(sorted(lagging.items())),
    )


def _fragments(snapshot: Tiers) -> Iterator[FragmentPlan]:
    for fragment in snapshot.base.manifest.fragments():
        deleted = 0 if fragment.deletion is None else fragment.deletion.num_deleted_rows
        yield FragmentPlan(fragment.id, fragment.physical_rows, deleted)


# ---------------------------------------------------------------------------------------------------------- in words


def _lines(plan: ScanPlan) -> Iterator[str]:
    """Sources, newest tier first, with what was pruned."""
    key = ", ".join(plan.primary_key)
    yield f"scan of {plan.place}"
    yield f"  columns: {', '.join(plan.columns) or '(none)'}"
    if plan.filter is not None:
        yield f"  filter:  {plan.filter} (after recency)"
    if plan.order is not None:
        all_of_them = "all rows are sorted in memory"
        kept = all_of_them if plan.limit is None else f"the first {plan.offset + plan.limit} are kept"
        yield f"  order:   {plan.order} ({kept})"
    if plan.limit is not None or plan.offset:
        yield f"  limit:   {plan.limit if plan.limit is not None else 'none'}, offset {plan.offset}"
    yield f"  merge:   {f'newest row per ({key}), deletes hidden' if key else 'append-only, every row counts'}"
    for shard in plan.shards:
        yield from _shard_lines(shard)
    for shard_id in plan.pruned_shards:
        yield f"  shard {shard_id}: pruned, the filter cannot match there"
    if plan.base_version is not None:
        yield f"  base table version {plan.base_version}: {plan.base_rows} rows"


_NAMES = {"log": "WAL tail", "memtable": "memtable", "sstable": "SSTable"}


def _shard_lines(shard: ShardPlan) -> Iterator[str]:
    yield f"  shard {shard.shard_id} (epoch {shard.epoch}, manifest {shard.manifest_version})"
    for tier in shard.tiers:
        rows = "?" if tier.rows is None else tier.rows
        how = f", BTree index {', '.join(tier.indexes)}" if tier.indexes else ""
        where = f" ({tier.path})" if tier.path is not None else ""
        yield f"    {_NAMES[tier.tier]} generation {tier.generation}: {rows} rows{how}{where}"
    if shard.skipped:
        kept = "; ".join(f"{count} kept until index {name} has their rows" for name, count in shard.kept_for.items())
        yield f"    {shard.skipped} compacted generations skipped{f' ({kept})' if kept else ''}"
    if not shard.tiers and not shard.skipped:
        yield "    nothing above the base table"


# ---------------------------------------------------------------------------------------------------------- in numbers


@dataclass(frozen=True, slots=True)
class Superseded:
    """How many rows of each source something newer hides.

    `generations` are by shard and generation, `tombstones` likewise the deletes that hide and are not shown. `fragments` are
    by number, and None where rows do not say in which fragment they are (stable row ids); `base` is all of them.
    """

    generations: Mapping[tuple[str, int], int]
    tombstones: Mapping[tuple[str, int], int]
    base: int
    fragments: Mapping[int, int] | None


def count_superseded(snapshot: Tiers) -> Superseded:
    """What newest-wins hides in a snapshot, filters left aside."""
    merge = Merge(snapshot, Projection(snapshot.schema.primary_key or tuple(snapshot.schema.columns.names[:1])), None)
    merge.prepare()
    hidden: dict[tuple[str, int], int] = {}
    tombstones: dict[tuple[str, int], int] = {}
    for shard in merge.shards:
        for ref, mask in shard.memory:
            source = shard.view.shard_id, ref.generation
            hidden[source] = int((~mask).sum())
            tombstones[source] = int((mask & tombstone_flags(ref.table())).sum())
        for reader, offsets in shard.sstables():
            hidden[shard.view.shard_id, reader.sstable.generation] = len(offsets)
    if snapshot.base_table is None:
        return Superseded(hidden, tombstones, 0, None)
    row_ids = superseded_rows(snapshot, merge.shards).all
    by_fragment = None if snapshot.base.has_stable_row_ids else Counter((row_ids >> 32).tolist())
    return Superseded(hidden, tombstones, len(row_ids), by_fragment)
