"""Shard manifests forget the generations that no reader needs.

Entry points: `trim` and `trim_all`. Invariants:

1. A generation leaves the manifest after the base version that holds it is durable (local paths with `fsync`), and after every
   maintained index has caught up with it (`lance_memwal.sstable.catch_up`). Until then readers skip it, since it is compacted.
2. The table is checked before a manifest is trimmed (`TableReplacedError`). A trim needs no epoch and fences no writer.
3. Generations leave from the low end of the list, and only if the given manifest listed them: others may belong to
   another table, which was created at the same URI since then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.crash_points import reach
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.commit import let_survive
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.shards import newest_manifests
from lance_memwal.sstable.catch_up import CatchUp
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest


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
        look()
        gone = _trim_shard(base.location, manifests[shard_id], through, clock)
        if gone:
            forgotten[shard_id] = gone
    if due:
        reach("compact.after_trim")
    return forgotten


def _trim_shard(location: Location, manifest: ShardManifest, through: int, clock: Clock) -> int:
    """Remove the generations of `manifest` up to `through` from the low end of the list; returns how many."""
    listed = {sstable.path for sstable in manifest.up_to(through)}
    removed = 0

    def update(latest: ShardManifest) -> ShardManifest:
        nonlocal removed
        others = [sstable.generation for sstable in latest.sstables if sstable.path not in listed]
        stays_from = min([through + 1, *others])
        kept = tuple(sstable for sstable in latest.sstables if sstable.generation >= stays_from)
        removed = len(latest.sstables) - len(kept)
        return replace(latest, version=latest.version + 1, sstables=kept) if removed else latest

    ShardManifestStore(location, manifest.shard_id, clock=clock).commit_maintenance(update)
    return removed
