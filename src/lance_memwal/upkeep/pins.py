"""What collection and clean-up must keep although the newest state of the table needs it no more.

Owns `Pins`, one value that whoever removes something asks, and `read_pins`. Invariants:

1. The newest version of the base table and every version with a tag of Lance, on whatever branch, are pinned.
2. A pinned snapshot (a checkpoint's, or a consumer's) pins its base version and, per shard: all manifest versions from its
   own on (what stays has no gap), the SSTables that its manifest lists above the marks *of its base version*, and the
   entries in (cursor, tip]. A later SSTable cannot stand in for those entries: it also holds later rows.
3. A consumer pins the entries after its position.
4. What cannot be read anew pins nothing; whoever asks for it gets a `CollectedError`.

Whoever pins writes a record first and then looks at the floor and what was announced (`lance_memwal.log.shards`); whoever
removes announces that first and then reads the pins once more. So one of the two sees the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lance_memwal.errors import CollectedError, InvalidInputError, ObjectNotFoundError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.marks import compacted
from lance_memwal.log.tail import reserved_directories
from lance_memwal.read.rebuilt import base_of, manifest_of
from lance_memwal.read.snapshot import Snapshot, SnapshotShard
from lance_memwal.upkeep.checkpoint_records import read_checkpoints
from lance_memwal.upkeep.consumer_records import ConsumerFloors, read_consumers

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShardPins:
    """What must stay of one shard: manifest versions from the oldest on, SSTable directories, entries `(after, through]`."""

    oldest_manifest: int | None = None
    sstables: frozenset[str] = frozenset()
    entries: tuple[tuple[int, int], ...] = ()

    def keeps_entry(self, position: int) -> bool:
        """Whether a snapshot reads the entry at this position."""
        return any(after < position <= through for after, through in self.entries)

    def keeps_manifest(self, version: int) -> bool:
        """Whether this version of the manifest stays."""
        return self.oldest_manifest is not None and version >= self.oldest_manifest

    def joined(self, other: ShardPins) -> ShardPins:
        """What must stay for both."""
        oldest = [v for v in (self.oldest_manifest, other.oldest_manifest) if v is not None]
        entries = (*self.entries, *other.entries)
        return ShardPins(min(oldest, default=None), self.sstables | other.sstables, entries)


_NOTHING = ShardPins()


@dataclass(frozen=True, slots=True)
class Pins:
    """All that must stay: versions of the base table, and parts of shards; `snapshots` says for which moments."""

    base_versions: frozenset[int] = frozenset()
    snapshots: Mapping[Snapshot, Mapping[str, ShardPins]] = field(default_factory=dict)
    shards: Mapping[str, ShardPins] = field(default_factory=dict)
    consumers: ConsumerFloors = field(default_factory=ConsumerFloors)

    def of(self, shard_id: str) -> ShardPins:
        """What snapshots need of one shard."""
        return self.shards.get(shard_id, _NOTHING)

    def keeps_entry(self, shard_id: str, position: int) -> bool:
        """Whether a snapshot or a consumer needs the entry at this position."""
        return self.of(shard_id).keeps_entry(position) or self.consumers.needs(shard_id, position)


def pinned_versions(base: BaseTable) -> frozenset[int]:
    """The versions with a tag, and `base`, which is the newest one."""
    return frozenset({base.version, *base.tags().values()})


def read_pins(base: BaseTable, known: Pins | None = None) -> Pins:
    """All that must stay now; `base` is the newest version.

    With what was `known` a moment ago only the records are read again, and what they name anew: the parts of a snapshot never
    change.
    """
    consumers = ConsumerFloors.of(read_consumers(base.location, base.table_id))
    before = {} if known is None else known.snapshots
    snapshots = {
        snapshot: before[snapshot] if snapshot in before else dict(_pins_of(base, snapshot))
        for snapshot in _pinned_snapshots(base, consumers)
    }
    shards: dict[str, ShardPins] = {}
    for parts in snapshots.values():
        for shard_id, pins in parts.items():
            shards[shard_id] = shards.get(shard_id, _NOTHING).joined(pins)
    tagged = pinned_versions(base) if known is None else known.base_versions
    return Pins(tagged.union(snapshot.base_version for snapshot in snapshots), snapshots, shards, consumers)


def is_pinned(base: BaseTable, snapshot: Snapshot, consumers: ConsumerFloors | None = None) -> bool:
    """Whether a checkpoint or a consumer keeps everything that `snapshot` needs; `base` is any version of the table.

    Only these `consumers` count, if they are given.
    """
    if consumers is None:
        consumers = ConsumerFloors.of(read_consumers(base.location, base.table_id))
    return any(snapshot.is_part_of(pinned) for pinned in _pinned_snapshots(base, consumers))


def _pinned_snapshots(base: BaseTable, consumers: ConsumerFloors) -> frozenset[Snapshot]:
    named = (record.snapshot for record in read_checkpoints(base.location, base.table_id))
    return frozenset(named).union(map(Snapshot.parse, consumers.snapshots))


def _pins_of(newest: BaseTable, snapshot: Snapshot) -> Iterable[tuple[str, ShardPins]]:
    try:
        base = base_of(newest.location, snapshot)
    except (CollectedError, InvalidInputError) as error:
        _LOG.warning("a pinned snapshot cannot be read any more [snapshot=%s]: %s", snapshot, error)
        return
    marks = compacted(base)
    for shard in snapshot.shards:
        try:
            yield shard.shard_id, _shard_pins(base, shard, marks.get(shard.shard_id, 0))
        except (CollectedError, ObjectNotFoundError) as error:
            _LOG.warning("a pinned snapshot cannot be read any more [snapshot=%s]: %s", snapshot, error)


def _shard_pins(base: BaseTable, shard: SnapshotShard, mark: int) -> ShardPins:
    listed = {sstable.path for sstable in manifest_of(base.location, shard).above(mark)}
    if base.columns.blobs:  # the peer keeps large blobs of an entry beside it, where the SSTable will be
        listed |= reserved_directories(base.location, shard.shard_id, shard.cursor, shard.tip)
    return ShardPins(shard.manifest_version, frozenset(listed), ((shard.cursor, shard.tip),))
