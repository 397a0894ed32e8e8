"""Shard manifests forget the generations that nobody needs any more.

Owns `trim` and `trim_all`. Invariants:

1. A generation leaves the manifest after the base version that holds it is durable (local paths with `fsync`), after every
   maintained index has caught up with it (`lance_memwal.sstable.catch_up`), and only if the log's transaction map covers
   the map beside it. Until then our readers skip it by its mark.
2. The table is looked at before a manifest is trimmed (`TableReplacedError`). It needs no epoch and fences nobody:
   manifests are trimmed under whatever epoch owns the shard.
3. Generations leave from the low end of the list, and only those that the given manifest listed: others may belong to
   another table, which was made at the same place meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lance_memwal.clock import SYSTEM_CLOCK, Clock, in_order
from lance_memwal.crash_points import reach
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.commit import let_survive
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions, read_transactions
from lance_memwal.log.shards import newest_manifests
from lance_memwal.log.transactions import TransactionMap, maps_beside
from lance_memwal.sstable.catch_up import CatchUp
from lance_memwal.store.location import Location
from lance_memwal.types import SeenMap, ShardManifest, SsTable

__all__ = ["trim", "trim_all"]

_READ_AT_ONCE = 8


def trim_all(location: Location, look: Callable[[], BaseTable], clock: Clock = SYSTEM_CLOCK) -> dict[str, int]:
    """Trim every shard of a table; how many generations each of them forgot."""
    manifests = {manifest.shard_id: manifest for manifest in newest_manifests(location)}
    return trim(manifests, look(), look, clock)


def trim(
    manifests: Mapping[str, ShardManifest],
    base: BaseTable,
    look: Callable[[], BaseTable],
    clock: Clock = SYSTEM_CLOCK,
) -> dict[str, int]:
    """Let every manifest forget what nobody needs beside `base`; how many generations each of them forgot.

    The base table is synced first. `look` gives its newest version.
    """
    caught_up = CatchUp.of(base)
    due = {shard_id: caught_up.through(shard_id) for shard_id in manifests}
    due = {shard_id: through for shard_id, through in due.items() if manifests[shard_id].up_to(through)}
    if due:
        let_survive(base)
    forgotten: dict[str, int] = {}
    for shard_id, through in due.items():
        reach("compact.before_trim")
        gone = _trim_shard(base.location, manifests[shard_id], through, look().tag, clock)
        if gone:
            forgotten[shard_id] = gone
    if due:
        reach("compact.after_trim")
    return forgotten


def _trim_shard(location: Location, manifest: ShardManifest, through: int, tag: str | None, clock: Clock) -> int:
    """Remove the generations of `manifest` up to `through` from the low end of the list; returns how many."""
    shard_id = manifest.shard_id
    positions = list_positions(location, shard_id)
    log = read_transactions(location, manifest, positions, clock, tag=tag)
    maps = _generation_maps(location, manifest, through, log)
    removed = 0

    def update(latest: ShardManifest) -> ShardManifest:
        nonlocal removed
        stays_from = through + 1
        for sstable in sorted(latest.sstables, key=lambda s: s.generation):
            covered = sstable.path in maps and log.covers(maps[sstable.path])  # what was not looked at stays listed
            if sstable.generation < stays_from and not covered:
                stays_from = sstable.generation
        kept = tuple(sstable for sstable in latest.sstables if sstable.generation >= stays_from)
        removed = len(latest.sstables) - len(kept)
        return replace(latest, version=latest.version + 1, sstables=kept) if removed else latest

    ShardManifestStore(location, shard_id, clock=clock).commit_maintenance(update)
    return removed


def _generation_maps(
    location: Location, manifest: ShardManifest, through: int, log: TransactionMap
) -> dict[str, SeenMap]:
    """The transaction maps beside compacted generations; empty ones where the log has all."""
    old = manifest.up_to(through)

    def load(sstable: SsTable) -> SeenMap:
        return maps_beside(log, location, replace(manifest, sstables=(sstable,)))

    found = in_order(load, old, location.at_once(_READ_AT_ONCE), "memwal-trim")
    return {sstable.path: seen for sstable, seen in zip(old, found, strict=True)}
