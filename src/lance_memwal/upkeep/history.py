"""What happened to a table, as storage still shows it: entries, manifests, takeovers, flushes, compactions.

Owns `EntryInfo`, `Change`, `Event` and what finds them. Invariants:

1. It reads only, and claims nothing. What was collected is not told; what was not read because of a bound is counted.
2. An entry that is damaged, or not understood, is an entry that says so; the others are told all the same.
3. Times are those of the store: when it wrote the object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

from lance_memwal.clock import in_order
from lance_memwal.errors import CollectedError, CorruptDataError, ObjectNotFoundError, UnsupportedFormatError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.damage import version_times
from lance_memwal.lance.marks import compacted
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.tailer import WalTailer
from lance_memwal.process.cache import CACHE
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest, WalEntry

__all__ = [
    "Change",
    "EntryInfo",
    "Event",
    "Timeline",
    "base_events",
    "entry_info",
    "list_entries",
    "manifest_changes",
    "read_manifests",
    "shard_events",
]

_READ_AT_ONCE = 8


# ---------------------------------------------------------------------------------------------------------- the log


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """One entry of a log. `kind` is "rows", "mark", "sentinel" (the first of an epoch), "damaged" or "not understood"."""

    position: int
    kind: str
    epoch: int | None = None
    generation: int | None = None
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    transaction: str | None = None
    error: str | None = None


def entry_info(entry: WalEntry) -> EntryInfo:
    """An entry in short."""
    return EntryInfo(
        position=entry.position,
        kind="sentinel" if entry.is_sentinel else "rows" if entry.batches else "mark",
        epoch=entry.writer_epoch,
        generation=entry.generation,
        batches=len(entry.batches),
        rows=entry.num_rows,
        bytes=entry.size_bytes,
        transaction=None if entry.txn is None else f"{entry.txn.app}:{entry.txn.version}",
    )


def list_entries(location: Location, shard_id: str, positions: Iterable[int]) -> Iterator[EntryInfo]:
    """The entries at these positions; those that are gone meanwhile are left out."""
    tailer = WalTailer(location, shard_id)

    def read(position: int) -> EntryInfo | None:
        try:
            entry = tailer.read_entry(position)
        except CollectedError:
            return None
        except (CorruptDataError, UnsupportedFormatError) as error:
            kind = "damaged" if isinstance(error, CorruptDataError) else "not understood"
            return EntryInfo(position, kind, error=str(error))
        return None if entry is None else entry_info(entry)

    return (found for found in map(read, positions) if found is not None)


# ---------------------------------------------------------------------------------------------------------- manifests


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two manifests of a shard: of a field, or of a generation that came or went."""

    what: str
    before: Any = None
    after: Any = None


def read_manifests(location: Location, shard_id: str, versions: Iterable[int]) -> list[ShardManifest]:
    """These versions, ascending; those that are gone meanwhile are left out."""
    manifests = ShardManifestStore(location, shard_id)

    def read(version: int) -> ShardManifest | None:
        try:
            return manifests.read_version(version)
        except ObjectNotFoundError:
            return None

    found = in_order(read, sorted(versions), location.at_once(_READ_AT_ONCE), "memwal-history")
    return [manifest for manifest in found if manifest is not None]


def manifest_changes(before: ShardManifest | None, after: ShardManifest) -> list[Change]:
    """What a manifest changed; `before` is None for the first one."""
    skipped = {"version", "shard_id", "sstables", "unknown", "shard_field_unknown"}
    old: Any = before if before is not None else ShardManifest(0, after.shard_id, current_generation=1)
    names = [item.name for item in fields(ShardManifest) if item.compare and item.name not in skipped]
    found = [Change(n, getattr(old, n), getattr(after, n)) for n in names if getattr(old, n) != getattr(after, n)]
    gone, come = set(old.sstables) - set(after.sstables), set(after.sstables) - set(old.sstables)
    found += [Change("sstable", before=s) for s in sorted(gone, key=lambda s: s.generation)]
    return found + [Change("sstable", after=s) for s in sorted(come, key=lambda s: s.generation)]


# ---------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, at a time of the store. `kind` is "takeover", "flush", "trim", "seal", "compaction" or "base".

    `shard_id` is None for what happened to the base table alone; `version` is that of the manifest or base table.
    """

    time_ms: int
    kind: str
    shard_id: str | None
    version: int
    text: str
    epoch: int | None = None
    generations: tuple[int, ...] = ()
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Events in order of time; `left_out` says how many manifests and versions were not read, the oldest ones."""

    events: tuple[Event, ...] = ()
    left_out: int = 0


def shard_events(location: Location, shard_id: str, most: int) -> Timeline:
    """What the newest `most` manifests of a shard say."""
    times = ShardManifestStore(location, shard_id).written_ms()
    chosen = list(times)[-(most + 1) :]  # one more, to compare the first with
    manifests = read_manifests(location, shard_id, chosen)
    first = [None] if manifests and manifests[0].version == 1 else []
    found = [
        event
        for before, after in pairwise([*first, *manifests])
        if after is not None
        for event in _of_manifest(before, after, times[after.version])
    ]
    return Timeline(tuple(found), max(0, len(times) - most))


def _of_manifest(before: ShardManifest | None, after: ShardManifest, time_ms: int) -> Iterator[Event]:
    def event(kind: str, text: str, **facts: Any) -> Event:
        return Event(time_ms, kind, after.shard_id, after.version, text, after.writer_epoch, **facts)

    old_epoch = 0 if before is None else before.writer_epoch
    if after.writer_epoch != old_epoch:
        text = f"epoch {after.writer_epoch} took over" if old_epoch else f"epoch {after.writer_epoch} opened the shard"
        yield event("takeover", text)
    known = set() if before is None else {s.generation for s in before.sstables}
    for sstable in after.sstables:
        if sstable.generation not in known:
            yield event(
                "flush",
                f"generation {sstable.generation} became an SSTable",
                generations=(sstable.generation,),
                rows=sstable.physical_rows,
            )
    gone = tuple(sorted(known - {s.generation for s in after.sstables}))
    if gone:
        yield event("trim", f"{_named(gone)} left the list: the base table has the rows", generations=gone)
    if before is not None and after.status != before.status:
        yield event("seal", f"the shard is {after.status.name.lower()} now")


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is kept of a version of the base table, to compare the next one with."""

    marks: Mapping[str, int] = field(default_factory=dict)
    rows: int = 0
    fragments: frozenset[int] = frozenset()
    indexes: frozenset[str] = frozenset()
    columns: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """What it takes in a cache, about."""
        return 64 * (len(self.marks) + len(self.fragments) + len(self.indexes) + len(self.columns) + 8)


def base_events(location: Location, most: int) -> Timeline:
    """What the newest `most` versions of the base table say."""
    times = dict(sorted(version_times(location).items()))
    chosen = list(times)[-(most + 1) :]

    def look(version: int) -> tuple[int, _Seen] | None:
        slot = ("base history", location.key, version, times[version])
        seen = CACHE.find(slot, version)
        if seen is None:
            base = BaseTable.find(location, version)
            if base is None:
                return None
            seen = CACHE.fetch(slot, lambda: _seen(base), version)
        return version, seen

    looked = in_order(look, chosen, location.at_once(_READ_AT_ONCE), "memwal-history")
    found = [item for item in looked if item is not None]
    events = [
        event
        for (_, before), (version, after) in pairwise(found)
        for event in _of_base(before, after, version, times[version])
    ]
    return Timeline(tuple(events), max(0, len(times) - most))


def _seen(base: BaseTable) -> _Seen:
    return _Seen(
        marks=compacted(base),
        rows=int(base.dataset.count_rows()),
        fragments=frozenset(fragment.id for fragment in base.manifest.fragments()),
        indexes=frozenset(f"{entry.name} {entry.uuid}" for entry in base.index_entries),
        columns=tuple(map(str, base.schema)),
    )


def _of_base(before: _Seen, after: _Seen, version: int, time_ms: int) -> Iterator[Event]:
    moved = {shard: mark for shard, mark in after.marks.items() if mark > before.marks.get(shard, 0)}
    grown = after.rows - before.rows
    for shard, mark in sorted(moved.items()):
        done = tuple(range(before.marks.get(shard, 0) + 1, mark + 1))
        text = f"{_named(done)} went into the base table ({grown:+,} rows{' of all shards' if len(moved) > 1 else ''})"
        yield Event(time_ms, "compaction", shard, version, text, generations=done)
    if not moved:
        yield Event(time_ms, "base", None, version, _what_changed(before, after, grown))


def _what_changed(before: _Seen, after: _Seen, grown: int) -> str:
    said: list[tuple[bool, Callable[[], str]]] = [
        (before.columns != after.columns, lambda: "the columns changed"),
        (before.fragments != after.fragments, lambda: f"files changed ({grown:+,} rows)"),
        (before.indexes != after.indexes, lambda: "indexes changed"),
    ]
    return "; ".join(text() for is_so, text in said if is_so) or "settings changed"


def _named(generations: tuple[int, ...]) -> str:
    if len(generations) == 1:
        return f"generation {generations[0]}"
    return f"generations {generations[0]} to {generations[-1]}"
