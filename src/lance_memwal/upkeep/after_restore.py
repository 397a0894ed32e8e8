"""The two honest ways out of a restored base table.

Owns `settle_restored`, and `settle_lost` for a base that went back to before its MemWAL index. Invariants:

1. `keep_base` marks what the shards no longer list as compacted: reads, compaction and collection then take the base
   table as it is. Generations that are still listed stay fresh.
2. `bring_back` lists the missing generations again, exactly as a retained manifest listed them, and only if each of them is
   whole. It does so for all shards or for none.
3. Where the index is gone, too, generations are listed again before it comes back: until then nobody can read.
4. A dry run writes nothing and says what would be done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from lance_memwal.clock import Clock
from lance_memwal.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    ObjectNotFoundError,
    UnsupportedFormatError,
)
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.commit import mark
from lance_memwal.lance.marks import compacted, counted
from lance_memwal.lance.restored import REMEDY, given_up
from lance_memwal.log.invariants import check_relisting
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.shards import newest_manifests
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest, SsTable
from lance_memwal.upkeep.reports import RepairAction
from lance_memwal.upkeep.verify import sstable_faults

__all__ = ["Restored", "settle_lost", "settle_restored"]

_LOG = logging.getLogger(__name__)
_MAX_TRIES = 8
Restored = Literal["keep_base", "bring_back"]


@dataclass(frozen=True, slots=True)
class _Gap:
    """Generations of one shard that neither the shard nor the base table has."""

    manifest: ShardManifest
    missing: range

    @property
    def where(self) -> str:
        return paths.manifest_path(self.manifest.shard_id, self.manifest.version)


def settle_restored(
    location: Location, newest_base: Callable[[], BaseTable], way: Restored, clock: Clock, *, dry_run: bool
) -> list[RepairAction]:
    """End the state in which rows are missing because the base was restored; nothing to do is no action."""
    if way not in get_args(Restored):
        raise InvalidInputError(f"restored is 'keep_base', 'bring_back' or None, not {way!r}")
    for _ in range(_MAX_TRIES):
        gaps, base = _gaps(location, newest_base)
        if not gaps:
            return []
        try:
            if way == "keep_base":
                return _keep_base(base, gaps, dry_run=dry_run)
            return _bring_back(location, base, gaps, clock, dry_run=dry_run)[0]
        except ConflictError as error:
            _LOG.info("the table moved while it was repaired: %s", error)
    raise ConflictError("the table changes faster than it can be repaired; retry")


def settle_lost(
    location: Location, base: BaseTable, marks: Mapping[str, int], way: Restored | None, clock: Clock, *, dry_run: bool
) -> tuple[list[RepairAction], Mapping[str, int] | None]:
    """Decide about rows that `base`, which has no MemWAL index and holds what `marks` say, has lost.

    Returns the actions, and the marks that the index has to come back with; None if it must not come back.
    """
    gaps = _gaps_below(newest_manifests(location), marks)
    if not gaps:
        return [], marks
    if way is None:
        what = "the base table went back to a state without the rows of generations"
        return [RepairAction(gap.where, f"{what} {list(gap.missing)}: {REMEDY}") for gap in gaps], None
    if way == "keep_base":
        kept = {**marks, **{gap.manifest.shard_id: gap.missing[-1] for gap in gaps}}
        return _kept(gaps, dry_run=dry_run), kept
    actions, whole = _bring_back(location, base, gaps, clock, dry_run=dry_run)
    return actions, marks if whole else None


def _gaps(location: Location, newest_base: Callable[[], BaseTable]) -> tuple[list[_Gap], BaseTable]:
    """All gaps, and the base version in which they are: read after the manifests."""
    manifests = list(newest_manifests(location))
    base = newest_base()
    if base.details is None:
        return [], base
    return _gaps_below(manifests, compacted(base)), base


def _gaps_below(manifests: Iterable[ShardManifest], marks: Mapping[str, int]) -> list[_Gap]:
    found = [_Gap(manifest, given_up(manifest, marks.get(manifest.shard_id, 0))) for manifest in manifests]
    return [gap for gap in found if gap.missing]


def _keep_base(base: BaseTable, gaps: list[_Gap], *, dry_run: bool) -> list[RepairAction]:
    if not dry_run:
        marks = {gap.manifest.shard_id: gap.missing[-1] for gap in gaps}
        mark(base, counted(base, marks) if base.primary_key else marks)
        _LOG.warning("took a restored base as it is [table=%s]", base.location.describe())
    return _kept(gaps, dry_run=dry_run)


def _kept(gaps: list[_Gap], *, dry_run: bool) -> list[RepairAction]:
    return [
        RepairAction(
            gap.where,
            f"take the base table as it is: what generations {list(gap.missing)} added to later versions of it is gone",
            done=not dry_run,
        )
        for gap in gaps
    ]


def _bring_back(
    location: Location, base: BaseTable, gaps: list[_Gap], clock: Clock, *, dry_run: bool
) -> tuple[list[RepairAction], bool]:
    """The actions, and whether the generations are whole; else nothing is listed again."""
    found = {gap.where: _published(location, gap) for gap in gaps}
    faults = [
        RepairAction(gap.where, fault) for gap in gaps for fault in _faults(location, base, gap, found[gap.where])
    ]
    if faults:
        return faults, False
    if not dry_run:
        for gap in gaps:
            _list_again(location, gap, found[gap.where], clock)
    actions = [
        RepairAction(
            gap.where, f"list generations {list(gap.missing)} again, as an older version did", done=not dry_run
        )
        for gap in gaps
    ]
    return actions, True


def _published(location: Location, gap: _Gap) -> dict[int, SsTable]:
    """The missing generations as retained manifests list them: a directory alone may be an attempt that was never published."""
    store = ShardManifestStore(location, gap.manifest.shard_id)
    found: dict[int, SsTable] = {}
    for version in reversed(store.list_versions()):
        try:
            listed = store.read_version(version).sstables
        except (ObjectNotFoundError, CorruptDataError, UnsupportedFormatError) as error:
            _LOG.info("a manifest version cannot be read [version=%d]: %s", version, error)
            continue
        found = {s.generation: s for s in listed if s.generation in gap.missing} | found
    return found


def _faults(location: Location, base: BaseTable, gap: _Gap, found: Mapping[int, SsTable]) -> list[str]:
    faults = []
    for generation in gap.missing:
        sstable = found.get(generation)
        if sstable is None:
            faults.append(f"generation {generation} cannot be brought back: no retained manifest lists it")
            continue
        broken = list(sstable_faults(location, gap.manifest.shard_id, sstable, base.primary_key, deep=False))
        faults += [f"generation {generation} cannot be brought back: {what}" for what in broken]
    return faults


def _list_again(location: Location, gap: _Gap, found: Mapping[int, SsTable], clock: Clock) -> None:
    shard_id = gap.manifest.shard_id
    back = tuple(found[generation] for generation in gap.missing)
    names = {sstable.path for sstable in back}

    def landed(newest: ShardManifest) -> bool:
        return names <= {sstable.path for sstable in newest.sstables}

    def update(latest: ShardManifest) -> ShardManifest:
        if landed(latest):
            return latest
        return replace(latest, version=latest.version + 1, sstables=(*back, *latest.sstables))

    store = ShardManifestStore(location, shard_id, clock=clock)
    store.commit_maintenance(update, landed=landed, check=check_relisting)
    _LOG.warning("listed generations again [shard=%s, first=%d, last=%d]", shard_id, gap.missing[0], gap.missing[-1])
