"""The timeline of the page: takeovers, flushes, trims, seals and compactions, with the times of the store.

It reads the newest manifests of each shard and the newest versions of the base table, and reports how many older ones it left
out. What GC deleted is not shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from lance_memwal.clock import in_order
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.damage import version_times
from lance_memwal.lance.marks import compacted
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.shards import list_shards
from lance_memwal.process.cache import CACHE
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest
from lance_memwal.upkeep.inspect import read_manifests

_SHARDS, _VERSIONS, _READ_AT_ONCE = 24, 60, 8


class _Event(NamedTuple):
    """`version` is that of the manifest, or of the base table; an event of the base table alone has no shard."""

    time_ms: int
    kind: str
    shard_id: str | None
    version: int
    text: str
    rows: int | None = None
    generation: int = 0  # of a compaction or a trim: the highest one


def timeline(location: Location) -> dict[str, Any]:
    """Events of the base table and of the first shards, in order of time."""
    known = list_shards(location)
    shards = known[:_SHARDS]
    parts = [_base_events(location), *(_shard_events(location, shard) for shard in shards)]
    events = [event for found, _ in parts for event in found if event.shard_id is None or event.shard_id in shards]
    return {
        "events": [event._asdict() for event in _sorted(events)],
        "shards": shards,
        "shards_in_all": len(known),
        "left_out": sum(left_out for _, left_out in parts),
    }


def _sorted(events: list[_Event]) -> list[_Event]:
    """In order of time; no trim is before its compaction, and no event of a shard before an earlier version of its manifest.

    Lance takes the time of a version from the clock. The kernel stamps files with a coarser clock, some milliseconds behind.
    """
    compactions = [event for event in events if event.kind == "compaction"]
    latest: dict[str, int] = {}
    moved = []
    for event in events:
        time_ms = event.time_ms
        if event.kind == "trim":
            covering = (c for c in compactions if c.shard_id == event.shard_id and c.generation >= event.generation)
            time_ms = max(time_ms, min((c.time_ms for c in covering), default=0))
        if event.shard_id is not None and event.kind != "compaction":
            time_ms = latest[event.shard_id] = max(time_ms, latest.get(event.shard_id, 0))
        moved.append(event._replace(time_ms=time_ms))
    return sorted(moved, key=lambda event: event.time_ms)


def _shard_events(location: Location, shard_id: str) -> tuple[list[_Event], int]:
    times = ShardManifestStore(location, shard_id).written_ms()
    manifests = read_manifests(location, shard_id, list(times)[-(_VERSIONS + 1) :])  # one more, to compare with
    first = [ShardManifest(0, shard_id, current_generation=1)] if manifests and manifests[0].version == 1 else []
    events = [
        _Event(times[after.version], kind, shard_id, after.version, text, rows, generation)
        for before, after in pairwise([*first, *manifests])
        for kind, text, rows, generation in _steps(before, after)
    ]
    return events, max(0, len(times) - _VERSIONS)


def _steps(before: ShardManifest, after: ShardManifest) -> Iterator[tuple[str, str, int | None, int]]:
    """Kind, text, rows and highest generation of the changes that a manifest made."""
    if after.writer_epoch != before.writer_epoch:
        verb = "took over" if before.writer_epoch else "opened the shard"
        yield "takeover", f"epoch {after.writer_epoch} {verb}", None, 0
    known, present = ({s.generation: s for s in manifest.sstables} for manifest in (before, after))
    for generation in sorted(present.keys() - known.keys()):
        yield "flush", f"generation {generation} became an SSTable", present[generation].physical_rows, generation
    if gone := known.keys() - present.keys():
        yield "trim", f"generations up to {max(gone)} left the list: the base table has the rows", None, max(gone)
    if before.version and after.status != before.status:
        yield "seal", f"the shard is {after.status.name.lower()} now", None, 0


def _base_events(location: Location) -> tuple[list[_Event], int]:
    times = dict(sorted(version_times(location).items()))

    def read(version: int) -> tuple[int, dict[str, Any]]:
        slot = ("timeline", location.key, version, times[version])
        return version, CACHE.fact(slot, lambda: _facts(BaseTable.find(location, version)))

    looked = in_order(read, list(times)[-(_VERSIONS + 1) :], location.at_once(_READ_AT_ONCE), "memwal-timeline")
    events = [
        _Event(times[version], kind, shard_id, version, text, None, generation)
        for (_, before), (version, after) in pairwise(each for each in looked if each[1])
        for kind, shard_id, text, generation in _base_steps(before, after)
    ]
    return events, max(0, len(times) - _VERSIONS)


def _facts(base: BaseTable | None) -> dict[str, Any]:
    """What is kept of a version of the base table, to compare the next one with; empty if the version is gone."""
    if base is None:
        return {}
    return {
        "marks": compacted(base),
        "rows": int(base.dataset.count_rows()),
        "columns": list(map(str, base.schema)),
        "fragments": {fragment.id for fragment in base.manifest.fragments()},
        "indexes": {f"{entry.name} {entry.uuid}" for entry in base.index_entries},
    }


def _base_steps(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[str, str | None, str, int]]:
    """Kind, shard, text and highest generation of the changes that a version of the base table made."""
    moved = {shard: mark for shard, mark in after["marks"].items() if mark > before["marks"].get(shard, 0)}
    grown = f"{after['rows'] - before['rows']:+,} rows{' of all shards' if len(moved) > 1 else ''}"
    for shard, mark in sorted(moved.items()):
        yield "compaction", shard, f"generations up to {mark} went into the base table ({grown})", mark
    if not moved:
        texts = {"columns": "columns changed", "fragments": f"files changed ({grown})", "indexes": "indexes changed"}
        changed = [text for name, text in texts.items() if before[name] != after[name]]
        yield "base", None, "; ".join(changed) or "settings changed", 0
