"""What one read sees: captured once, from the newest tier down.

Owns `TierSource` and `Tiers`. Data only ever moves down (memtable, SSTable, base table), so capturing memtables first, then
manifests, then WAL tails from their cursors, then the base version may meet a row twice but never misses it. A `Snapshot`
names the same things and holds no row. Invariants:

1. After the capture, whatever an older tier of it already holds is dropped: memtables and tail entries below the
   manifest's `current_generation`, and everything up to the generation that the captured base version has compacted.
2. A writer in this process is used only if it writes this table and the newest manifest carries its epoch; otherwise its
   shard's WAL tail is read.
3. The end of a log is its tip by the rule of `lance_memwal.log.tail`: nothing is missing below it, and the manifest did
   not move meanwhile; otherwise the shard is captured again, a bounded number of times.
4. Reading claims nothing, writes nothing and fences nobody.
5. Rows in memory have the columns of the captured base version, matched by field id, whatever the columns were when
   they were written.
6. A table without a MemWAL entry is not read: what lies in its shards may belong to rows that were overwritten.
7. Rows that are missing because the base table was restored to before a compaction are an error, never an answer.
8. Captures and snapshots are of one table: one that is made anew meanwhile is captured from the start, its shards and
   which of them can hold matching rows included.
9. The base version of a snapshot has compacted nothing that its shards had not flushed: it shows no entry above a tip.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias, TypeVar

import pyarrow as pa

from lance_memwal.arguments import check_choice
from lance_memwal.clock import SYSTEM_CLOCK, Clock, in_order
from lance_memwal.errors import (
    CollectedError,
    CorruptDataError,
    InvalidInputError,
    ObjectNotFoundError,
)
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.lance.marks import compacted
from lance_memwal.lance.restored import check_not_restored
from lance_memwal.log.manifest import SightedManifests
from lance_memwal.log.reading import tail_end
from lance_memwal.log.shards import list_shards
from lance_memwal.log.tail import settled
from lance_memwal.memtable import live
from lance_memwal.memtable.memtable import InMemoryMemTableRef, InMemoryMemTables, MemTable
from lance_memwal.process.cache import CACHE, Slot
from lance_memwal.read.base_rows import BaseLookup
from lance_memwal.read.followed_tail import FollowedTail
from lance_memwal.read.snapshot import Snapshot, SnapshotShard
from lance_memwal.rows.adapt import RowAdapter
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store.location import Location
from lance_memwal.store.sequenced import attempts
from lance_memwal.types import ShardManifest, SsTable, check_shard_ids

Consistency = Literal["fresh", "flushed"]
MemTables: TypeAlias = InMemoryMemTables | Iterable[InMemoryMemTables]
Candidates: TypeAlias = Callable[[BaseTable, Collection[str]], Collection[str] | None]
"""Those of the given shards of a table that can hold matching rows; None: all of them."""

T = TypeVar("T")
_MAX_RESTARTS = 16
_MAX_MISSING = 3
PARALLEL_READS = 8
PARALLEL_LOOKS = 32  # which hold no rows


def _all_shards(base: BaseTable, shards: Collection[str]) -> None:
    """Every shard can hold matching rows."""


@dataclass(frozen=True, slots=True)
class ShardView:
    """One shard of a snapshot: `memory` and those SSTables that overlap with nothing below them, ascending."""

    manifest: ShardManifest
    memory: tuple[InMemoryMemTableRef, ...] = ()
    from_tail: bool = False
    sstables: tuple[SsTable, ...] = ()

    @property
    def shard_id(self) -> str:
        """The shard."""
        return self.manifest.shard_id

    def above(self, compacted: int, schema: TableSchema) -> ShardView:
        """The shard without what the base table or its own SSTables hold already, in the columns of `schema`."""
        manifest = self.manifest
        memory = tuple(
            _in_columns_of(schema, ref)
            for ref in self.memory
            if ref.generation >= manifest.current_generation and ref.generation > compacted and ref.num_rows
        )
        return replace(self, memory=memory, sstables=manifest.above(compacted))


@dataclass(frozen=True, slots=True)
class Tiers:
    """All tiers of a table at one time, with the columns that readers see.

    `base_table` is None if only memory is read, or if there is no base table. `base_lookup` finds its rows by key. Of a fixed
    snapshot there is no newer state: if GC removed a part of it, a read does not start again.
    """

    location: Location
    schema: TableSchema
    base_table: BaseTable | None
    shards: tuple[ShardView, ...]
    pruned_shards: tuple[str, ...] = field(default=(), compare=False)
    base_lookup: BaseLookup = field(default_factory=BaseLookup, compare=False, repr=False)
    is_fixed: bool = field(default=False, compare=False)

    @classmethod
    def of_memory(cls, location: Location, schema: TableSchema, memtables: InMemoryMemTables) -> Tiers:
        """The memtables of one writer alone."""
        manifest = ShardManifest(0, memtables.shard_id, writer_epoch=memtables.epoch)
        return cls.of_shard(location, schema, manifest, memtables)

    @classmethod
    def of_shard(
        cls, location: Location, schema: TableSchema, manifest: ShardManifest, memtables: InMemoryMemTables
    ) -> Tiers:
        """One shard that has no base table below it: what `manifest` lists, and the memtables of its writer."""
        return cls(location, schema.shown, None, (ShardView(manifest, memtables.ascending).above(0, schema),))

    @classmethod
    def above_base(
        cls,
        base: BaseTable,
        views: Iterable[tuple[ShardView, int]],
        pruned: tuple[str, ...] = (),
        base_lookup: BaseLookup | None = None,
    ) -> Tiers:
        """The tiers of a table, each without what a lower one holds; every shard comes with its mark in `base`."""
        shards = tuple([view.above(mark, base.columns) for view, mark in views])
        return cls(base.location, base.columns.shown, base, shards, pruned, base_lookup or BaseLookup())

    @property
    def base(self) -> BaseTable:
        """The base version of a snapshot that has one."""
        if self.base_table is None:
            raise AssertionError("this snapshot has no base table")
        return self.base_table


@dataclass(frozen=True, slots=True)
class _Point:
    """Where a shard stands: its manifest, and the first position of the log that is not there yet."""

    manifest: ShardManifest
    tail_end: int

    def named(self) -> SnapshotShard:
        """The same as a value without the manifest."""
        manifest = self.manifest
        cursor = manifest.replay_after_wal_entry_position
        return SnapshotShard(manifest.shard_id, manifest.version, cursor, self.tail_end - 1)


_Found = TypeVar("_Found", ShardView, _Point)


# ---------------------------------------------------------------------------------------------------------- capturing


class TierSource:
    """Captures snapshots of one table."""

    def __init__(self, base: NewestBase, clock: Clock = SYSTEM_CLOCK) -> None:
        self.location = base.location
        self._newest = base
        self._clock = clock
        self._manifests: dict[str, SightedManifests] = {}
        self._origin = base.known.origin
        self._base_lookup = BaseLookup()

    def manifests(self, shard_id: str) -> SightedManifests:
        """The manifests of one shard."""
        found = self._manifests.get(shard_id)
        if found is None:
            found = self._manifests[shard_id] = SightedManifests(self.location, shard_id, clock=self._clock)
        return found

    def base(self, looked_at: BaseTable | None = None) -> BaseTable:
        """The newest base version, or the one that was just looked at; what is kept of shards is of its table from here on."""
        base = self._newest() if looked_at is None else looked_at
        if base.origin is not self._origin:  # what was read of the shards belongs to a table that was here before
            self._origin = base.origin
            self._manifests.clear()
        return base

    def capture(
        self,
        *,
        consistency: Consistency = "fresh",
        shards: Collection[str] | None = None,
        in_memory: MemTables | None = None,
        candidates: Candidates = _all_shards,
        before: BaseTable | None = None,
    ) -> Tiers:
        """One snapshot. `shards` restricts what is read; `candidates` are the shards that can hold matching rows.

        `before` is the newest base version, if the caller has just looked at it.
        """
        check_choice("consistency", consistency, ("fresh", "flushed"))
        if shards is not None:
            shards = check_shard_ids(shards)
        given = captures_by_shard(in_memory)

        def read(before: BaseTable, wanted: list[str]) -> list[ShardView]:
            captured = {s: self._memtables(s, given.get(s, ()), consistency, before) for s in wanted}
            return self._each(
                wanted, lambda s: self._capture_shard(s, captured[s], consistency, before), PARALLEL_READS
            )

        base, views, pruned = self._of_one_table(candidates, shards, read, before)
        return Tiers.above_base(base, views, pruned, self._base_lookup)

    def snapshot(self, *, consistency: Consistency = "fresh", candidates: Candidates = _all_shards) -> Snapshot:
        """What storage has now, as a value; what only a writer of this process holds is not in it."""

        def read(before: BaseTable, wanted: list[str]) -> list[_Point]:
            return self._each(wanted, lambda s: self._point_of(s, consistency, before.tag), PARALLEL_LOOKS)

        for _ in attempts(f"the table at {self.location.describe()}", self._clock):
            base, found, _ = self._of_one_table(candidates, None, read)
            if all(mark < point.manifest.current_generation for point, mark in found):
                break  # else the base has rows of entries above a tip, which a feed would tell once more
        return Snapshot(base.tag, base.version, tuple(point.named() for point, _ in found))

    def _of_one_table(
        self,
        candidates: Candidates,
        shards: Collection[str] | None,
        read: Callable[[BaseTable, list[str]], list[_Found]],
        looked_at: BaseTable | None = None,
    ) -> tuple[BaseTable, list[tuple[_Found, int]], tuple[str, ...]]:
        """The base version, looked at last, what was found of each shard with its mark, and the shards that were pruned."""
        for attempt in attempts(f"the table at {self.location.describe()}", self._clock):
            before = self.base(None if attempt else looked_at)
            listed = list_shards(self.location)
            possible = candidates(before, listed)
            known = listed if shards is None else [s for s in listed if s in shards]
            wanted = known if possible is None else [s for s in known if s in possible]
            try:
                found = read(before, wanted)
            except CorruptDataError:
                if self.base().table_id == before.table_id:
                    raise
                continue  # entries of two tables do not fit together
            base = self.base()
            if base.table_id == before.table_id:
                break
        base.need_details()
        marks = compacted(base)
        marked = [(shard, marks.get(shard.manifest.shard_id, 0)) for shard in found]
        for shard, mark in marked:
            check_not_restored(base, shard.manifest, mark)
        pruned = () if possible is None else tuple(s for s in known if s not in possible)
        return base, marked, pruned

    def _each(self, shards: list[str], read: Callable[[str], T | None], most: int) -> list[T]:
        found = in_order(read, shards, self.location.at_once(most), "memwal-snapshot")
        return [item for item in found if item is not None]

    def _memtables(
        self, shard_id: str, given: Sequence[InMemoryMemTables], consistency: Consistency, base: BaseTable
    ) -> InMemoryMemTables | None:
        if not given and consistency == "fresh":
            shard = live.find(self.location.key, shard_id)
            captured = None if shard is None else shard.capture()
            given = () if captured is None else (captured,)
        own = [capture for capture in given if capture.is_of(base.table_id)]
        return InMemoryMemTables.merged(own) if own else None

    def _capture_shard(
        self, shard_id: str, memtables: InMemoryMemTables | None, consistency: Consistency, base: BaseTable
    ) -> ShardView | None:
        manifests = self.manifests(shard_id)
        if memtables is None and consistency == "fresh" and (known := self._followed(manifests, base)) is not None:
            return known
        manifest = manifests.read_again()
        if manifest is None or consistency == "flushed":
            return None if manifest is None else ShardView(manifest)
        if memtables is not None and memtables.epoch == manifest.writer_epoch:
            return ShardView(manifest, memtables.ascending)
        return settled(manifests, manifest, partial(self._tail, base), self._clock)

    def _followed(self, manifests: SightedManifests, base: BaseTable) -> ShardView | None:
        """The shard as it was when it was last read, with what came since; None if it must be captured anew.

        That the manifest is still the newest shows afterwards, as if it had been read again just before.
        """
        known: FollowedTail | None = CACHE.find(self._tail_slot(manifests.shard_id), _table_of(base))
        if known is None or not known.is_of(manifest := known.manifest, manifests.sighted, base.columns, base.tag):
            return None
        is_newest = partial(manifests.is_newest, manifest.version)
        try:
            view = self._follow(base, known, manifest, is_newest)
        except CorruptDataError:  # the long way says whether collection passed here
            return None
        return view if is_newest() else None

    def _tail(self, base: BaseTable, manifest: ShardManifest) -> ShardView:
        """The rows of a log that another process writes; what was read of it before is not read again."""
        seen = self.manifests(manifest.shard_id).sight(manifest)
        tail: FollowedTail | None = CACHE.find(self._tail_slot(manifest.shard_id), _table_of(base))
        if tail is None or not tail.is_of(manifest, seen, base.columns, base.tag):
            tail = FollowedTail(self.location, manifest, seen, base.columns, base.tag)
        return self._follow(base, tail, manifest, lambda: True)

    def _follow(
        self, base: BaseTable, tail: FollowedTail, manifest: ShardManifest, is_newest: Callable[[], bool]
    ) -> ShardView:
        memory = tail.follow(manifest, is_newest)
        CACHE.keep(self._tail_slot(manifest.shard_id), tail, tail.size_bytes, _table_of(base))
        return ShardView(manifest, memory, from_tail=True)

    def _tail_slot(self, shard_id: str) -> Slot:
        return "tail", self.location.key, shard_id

    def _point_of(self, shard_id: str, consistency: Consistency, tag: str | None) -> _Point | None:
        manifests = self.manifests(shard_id)
        manifest = manifests.read_latest()
        if manifest is None or consistency == "flushed":
            return None if manifest is None else _Point(manifest, manifest.replay_after_wal_entry_position + 1)
        return settled(manifests, manifest, lambda m: _Point(m, tail_end(self.location, m, tag=tag)), self._clock)


def _table_of(base: BaseTable) -> object:
    """What tells the table from every other that was or will be at the same place."""
    return base.origin if base.table_id is None else base.table_id


def captures_by_shard(in_memory: MemTables | None) -> Mapping[str, Sequence[InMemoryMemTables]]:
    """Captures of memtables by shard; `InvalidInputError` if they are something else."""
    if in_memory is None:
        return {}
    try:
        captures = [in_memory] if isinstance(in_memory, InMemoryMemTables) else list(in_memory)
    except TypeError:
        captures = []
    if not captures or not all(isinstance(capture, InMemoryMemTables) for capture in captures):
        raise InvalidInputError("in_memory takes what in_memory_memtable_refs() returned, of one or several writers")
    by_shard: dict[str, list[InMemoryMemTables]] = {}
    for capture in captures:
        by_shard.setdefault(capture.shard_id, []).append(capture)
    return by_shard


def _in_columns_of(schema: TableSchema, ref: InMemoryMemTableRef) -> InMemoryMemTableRef:
    """The captured rows with the columns that the table has now; the writer's own if it has seen them."""
    known = ref.memtable.schema
    if schema.is_like(known):
        return ref
    adapter, table = RowAdapter(schema), MemTable(schema, ref.generation, 0, 0)
    for batch in ref.stored():
        stored = pa.RecordBatch.from_arrays(batch.columns, schema=known.with_ids)
        table.append(*adapter.adapt(stored, known.base))
    return table.capture()


# --------------------------------------------------------------------------------------------------------- restarting


@contextmanager
def missing_is_collected(remedy: str) -> Iterator[None]:
    """Something that a snapshot needs and that is gone means that collection passed it: `CollectedError`."""
    try:
        yield
    except ObjectNotFoundError as error:
        raise CollectedError(f"collection removed what this snapshot needs; {remedy} ({error})") from None


def with_restarts(capture: Callable[[], Tiers], read: Callable[[Tiers], T], first: Tiers | None = None) -> T:
    """What `read` makes of a snapshot: of `first`, and of fresh ones if something that it needs was removed meanwhile.

    That may be an SSTable (collected) or a version of the base table (cleaned up by Lance). What fresh snapshots list and
    nobody can find is lost, not collected: `CorruptDataError`.
    """
    snapshot, missing = first, 0
    for attempt in range(1, _MAX_RESTARTS + 1):
        try:
            snapshot = capture() if snapshot is None else snapshot
            return read(snapshot)
        except CollectedError:
            if attempt == _MAX_RESTARTS or (snapshot is not None and snapshot.is_fixed):
                raise
        except ObjectNotFoundError as error:
            if snapshot is not None and snapshot.is_fixed:
                raise CollectedError("GC removed what this snapshot needs; take a new snapshot") from None
            missing += 1
            if missing > _MAX_MISSING or attempt == _MAX_RESTARTS:
                raise CorruptDataError("the shard lists an SSTable that is not there", path=error.path) from None
        snapshot = None
    raise AssertionError("the last attempt returns or raises")
