"""What a snapshot has above its base table, without its rows: for whoever spreads a read over processes.

Owns `Outline`, and `Hiding`, which tells readers of base rows what is superseded. Invariants:

1. An outline holds no row, and no more keys than `most_key_bytes`. What is left out is named, and whoever reads base rows
   looks it up: the keys of SSTables are in their sidecars, those of a tail are found an entry at a time.
2. A base row counts if and only if its key is not among the keys of `Hiding`: those of all rows above the base table,
   tombstones included.
3. A tail is read only if its keys are needed (there are base rows with keys to hide), or its rows must be counted. Else
   its rows are guessed from its bytes, and the outline is not `exact`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lance_memwal.clock import in_order
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.marks import compacted
from lance_memwal.read.merge import row_width
from lance_memwal.read.rebuilt import IsPinned, of_each_shard
from lance_memwal.read.snapshot import Snapshot, SnapshotShard
from lance_memwal.read.tail_rows import TailKeys, tail_keys
from lance_memwal.rows.keys import KeySet, PackedKeys, concat_keys
from lance_memwal.sstable.fold import size_of
from lance_memwal.sstable.read import open_sstable
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest, SsTable

MOST_KEY_BYTES = 32 << 20
_OPEN_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class FreshShard:
    """A shard with rows above the base table, superseded ones and tombstones counted."""

    shard: SnapshotShard
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Hiding:
    """The keys that hide base rows: some of them, and where the others are."""

    packed: PackedKeys | None = None
    sstables: tuple[tuple[str, SsTable], ...] = ()
    tails: tuple[SnapshotShard, ...] = ()

    def keys(self, base: BaseTable, is_pinned: IsPinned) -> KeySet | None:
        """All keys that hide rows of `base`, the base version of the snapshot; None if nothing does."""
        parts = [] if self.packed is None else [self.packed.unpack()]
        parts += _keys_of_sstables(base.location, self.sstables)
        if self.tails:
            named = Snapshot(base.tag, base.version, self.tails)
            parts += [keys for keys in of_each_shard(base.location, named, is_pinned, _tails_of)[1] if keys is not None]
        return KeySet(concat_keys(parts)) if parts else None


@dataclass(frozen=True, slots=True)
class Outline:
    """The rows of a snapshot by place: base fragments with their physical rows, and shards. `exact`: nothing is guessed."""

    base_rows: int
    fragments: tuple[tuple[int, int], ...]
    fresh: tuple[FreshShard, ...]
    hiding: Hiding
    exact: bool

    @property
    def rows(self) -> int:
        """All rows, superseded ones and tombstones included."""
        return self.base_rows + sum(shard.rows for shard in self.fresh)


def outline(
    location: Location,
    snapshot: Snapshot,
    is_pinned: IsPinned,
    *,
    counts: bool = False,
    most_key_bytes: int = MOST_KEY_BYTES,
) -> Outline:
    """What `snapshot` has above its base table; `counts`: to the row, whatever it takes."""
    base, looks = of_each_shard(
        location, snapshot, is_pinned, lambda base: _Looks(base, counts=counts, most_key_bytes=most_key_bytes)
    )
    fragments = tuple((f.fragment_id, int(f.metadata.physical_rows or 0)) for f in base.dataset.get_fragments())
    fresh, exact = tuple(look.fresh for look in looks if look.is_fresh), all(look.exact for look in looks)
    return Outline(int(base.dataset.count_rows()), fragments, fresh, _hiding(base, looks, most_key_bytes), exact)


def _hiding(base: BaseTable, looks: Sequence[_Look], most_key_bytes: int) -> Hiding:
    """The keys of all that was looked at, as many as fit; the others are where they are."""
    if not _has_keys_to_hide(base):
        return Hiding()
    keys = [look.keys for look in looks if look.keys is not None]
    tails = tuple(look.fresh.shard for look in looks if look.is_left_out)
    sstables = tuple((look.fresh.shard.shard_id, sstable) for look in looks for sstable in look.sstables)
    listed = [sstable.primary_key_bytes for _, sstable in sstables]
    if None not in listed and sum(filter(None, listed)) + sum(part.nbytes for part in keys) <= most_key_bytes:
        keys, sstables = [*keys, *_keys_of_sstables(base.location, sstables)], ()
    return Hiding(PackedKeys.of(concat_keys(keys)) if keys else None, sstables, tails)


def _has_keys_to_hide(base: BaseTable) -> bool:
    return bool(base.primary_key) and base.dataset.count_rows() > 0


@dataclass(frozen=True, slots=True)
class _Look:
    """What was seen of one shard: its keys, if its tail was read and they had room, else whether they are left out."""

    fresh: FreshShard
    sstables: tuple[SsTable, ...]
    exact: bool
    keys: pa.Array | None = None
    is_left_out: bool = False

    @property
    def is_fresh(self) -> bool:
        """Whether there is anything above the base table."""
        return bool(self.sstables or self.fresh.rows)


class _Looks:
    """Looks at shards, in any thread; the keys of all of them have `most_key_bytes`."""

    def __init__(self, base: BaseTable, *, counts: bool, most_key_bytes: int) -> None:
        self._base = base
        self._marks = compacted(base)
        self._needs_keys = _has_keys_to_hide(base)
        self._counts = counts
        self._left_bytes = most_key_bytes
        self._lock = threading.Lock()

    def __call__(self, shard: SnapshotShard, manifest: ShardManifest) -> _Look:
        """What the snapshot names of one shard."""
        mark = self._marks.get(shard.shard_id, 0)
        sstables = manifest.above(mark)
        known = all(sstable.physical_rows is not None for sstable in sstables)
        rows, size = sum(sstable.physical_rows or 0 for sstable in sstables), sum(map(size_of, sstables))
        if shard.tip <= shard.cursor:
            return _Look(FreshShard(shard, rows, size), sstables, known)
        if not self._counts and not (self._needs_keys and self._left_bytes > 0):
            size_bytes = self._tail_bytes(shard)
            guess = max(1, size_bytes // max(1, row_width(self._base.columns.columns)))
            fresh = FreshShard(shard, rows + guess, size + size_bytes)
            return _Look(fresh, sstables, exact=False, is_left_out=self._needs_keys)
        found = _tail(self._base, shard, manifest, mark)
        fresh = FreshShard(shard, rows + found.rows, size + found.size_bytes)
        keys = found.keys if self._needs_keys else None
        has_room = keys is None or self._takes(keys.nbytes)
        return _Look(fresh, sstables, known, keys if has_room else None, is_left_out=not has_room)

    def _takes(self, size_bytes: int) -> bool:
        with self._lock:
            self._left_bytes -= size_bytes
            return self._left_bytes >= 0

    def _tail_bytes(self, shard: SnapshotShard) -> int:
        """The bytes of the entries in (cursor, tip], by one listing."""
        sizes = 0
        for item in self._base.location.store.list(paths.wal_dir(shard.shard_id)):
            position = paths.parse_entry_name(item.path.rpartition("/")[2])
            if position is not None and shard.cursor < position <= shard.tip:
                sizes += item.size_bytes
        return sizes


def _tails_of(base: BaseTable) -> Callable[[SnapshotShard, ShardManifest], pa.Array | None]:
    """Reads the keys of tails above what `base` has."""
    marks = compacted(base)

    def read(shard: SnapshotShard, manifest: ShardManifest) -> pa.Array | None:
        return _tail(base, shard, manifest, marks.get(shard.shard_id, 0)).keys

    return read


def _tail(base: BaseTable, shard: SnapshotShard, manifest: ShardManifest, mark: int) -> TailKeys:
    return tail_keys(base.location, manifest, shard.tip + 1, base.columns, base.tag, above=mark)


def _keys_of_sstables(location: Location, sstables: Sequence[tuple[str, SsTable]]) -> list[pa.Array]:
    readers = [open_sstable(location, shard_id, sstable) for shard_id, sstable in sstables]
    found = in_order(lambda reader: reader.entries()[0], readers, location.at_once(_OPEN_AT_ONCE), "memwal-open")
    return [keys for keys in found if len(keys)]
