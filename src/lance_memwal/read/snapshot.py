"""What one read sees: captured once, from the newest tier down.

Owns `capture`. Data only ever moves down (memtable, SSTable, base table), so capturing memtables first, then manifests,
then WAL tails from their cursors, then the base version may meet a row twice but never misses it. Invariants:

1. After the capture, whatever an older tier of it already holds is dropped: memtables and tail entries below the
   manifest's `current_generation`, and everything up to the generation that the captured base version has compacted.
2. A writer in this process is used only if it writes this table and the newest manifest carries its epoch; otherwise its
   shard's WAL tail is read.
3. A missing WAL position is the tip only if a listing shows nothing above it and the manifest has not moved meanwhile;
   otherwise the shard is captured again, a bounded number of times. A hole is corruption once a second look at the same
   manifest shows it again.
4. Reading claims nothing, writes nothing and fences nobody.
5. Rows in memory have the columns of the captured base version, matched by field id, whatever the columns were when
   they were written.
6. A table without a MemWAL entry is not read: what lies in its shards may belong to rows that were overwritten.
7. Rows that are missing because the base table was restored to before a compaction are an error, never an answer.

Called by: `Scan`, lookups, search.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

import pyarrow as pa

from lance_memwal.arguments import check_choice, check_names
from lance_memwal.clock import SYSTEM_CLOCK, Clock, back_off, thread_pool
from lance_memwal.errors import CollectedError, ConflictError, CorruptDataError, InvalidInputError, ObjectNotFoundError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.marks import compacted
from lance_memwal.lance.restored import check_not_restored
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.manifest_codec import unknown_fields
from lance_memwal.log.shards import list_shards
from lance_memwal.log.understood import KnownColumns, warn_unknown
from lance_memwal.log.wal import list_positions, read_run
from lance_memwal.memtable import live
from lance_memwal.memtable.memtable import InMemoryMemTableRef, InMemoryMemTables, MemTable
from lance_memwal.rows.adapt import RowAdapter
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest, SsTable, WalEntry, check_shard_id

__all__ = [
    "Consistency",
    "ShardView",
    "Snapshot",
    "SnapshotSource",
    "list_shards",
    "no_entry",
    "tail_memtables",
    "with_restarts",
]

Consistency = Literal["fresh", "flushed"]
T = TypeVar("T")
_MAX_TRIES = 64
_MAX_RESTARTS = 16
_MAX_MISSING = 3
_BACKOFF_SECONDS = 0.01
_MAX_BACKOFF_SECONDS = 0.08
_PARALLEL_READS = 8


@dataclass(frozen=True, slots=True)
class ShardView:
    """One shard of a snapshot; `memory` and `sstables` ascend by generation and overlap with nothing below them."""

    shard_id: str
    manifest: ShardManifest
    memory: tuple[InMemoryMemTableRef, ...]
    sstables: tuple[SsTable, ...]
    from_tail: bool = False
    skipped_generations: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All tiers of a table at one moment."""

    location: Location
    schema: TableSchema
    base: BaseTable
    shards: tuple[ShardView, ...]
    pruned_shards: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class _Upper:
    """The tiers of one shard above the base table, before the base version is known."""

    shard_id: str
    manifest: ShardManifest
    memory: tuple[InMemoryMemTableRef, ...]
    from_tail: bool


class SnapshotSource:
    """Captures snapshots of one table."""

    def __init__(
        self,
        location: Location,
        base: Callable[[], BaseTable],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`base` gives the newest base version."""
        self.location = location
        self._base = base
        self._clock = clock
        self._manifests: dict[str, ShardManifestStore] = {}

    def manifests(self, shard_id: str) -> ShardManifestStore:
        """The manifests of one shard."""
        found = self._manifests.get(shard_id)
        if found is None:
            found = self._manifests[shard_id] = ShardManifestStore(self.location, shard_id, clock=self._clock)
        return found

    def forget(self) -> None:
        """Drop the manifests that were read: they belong to a table that was at this place before."""
        self._manifests.clear()

    def capture(
        self,
        *,
        consistency: Consistency = "fresh",
        shards: Collection[str] | None = None,
        in_memory: InMemoryMemTables | Iterable[InMemoryMemTables] | None = None,
        candidates: Collection[str] | None = None,
    ) -> Snapshot:
        """One snapshot. `shards` restricts what is read; `candidates` are the shards that can hold matching rows."""
        check_choice("consistency", consistency, ("fresh", "flushed"))
        if shards is not None:
            shards = [check_shard_id(shard_id) for shard_id in check_names("shards", shards)]
        given = _by_shard(in_memory)
        known = list_shards(self.location)
        wanted = known if shards is None else [s for s in known if s in shards]
        if candidates is not None:
            pruned = tuple(s for s in wanted if s not in candidates)
            wanted = [s for s in wanted if s in candidates]
        else:
            pruned = ()
        for _ in range(_MAX_TRIES):
            before = self._base()
            captured = {s: self._ours(given.get(s) or self._live(s, consistency), before) for s in wanted}
            uppers = self._each(
                wanted, partial(self._capture_upper, captured, consistency, before.table_schema, before.tag)
            )
            base = self._base()
            if base.table_id == before.table_id:
                break
        else:
            raise ConflictError(
                f"the table at {self.location.describe()} is made anew faster than it can be read; retry"
            )
        schema = base.table_schema
        if base.details is None:
            raise no_entry(self.location)
        marks = compacted(base)
        for upper in uppers:
            if upper is not None:
                check_not_restored(base, upper.manifest, marks.get(upper.shard_id, 0))
        views = tuple(_view(upper, marks.get(upper.shard_id, 0), schema) for upper in uppers if upper is not None)
        return Snapshot(self.location, schema, base, views, pruned)

    def _ours(self, memtables: InMemoryMemTables | None, base: BaseTable) -> InMemoryMemTables | None:
        return memtables if memtables is not None and memtables.is_of(base.table_id) else None

    def _capture_upper(
        self,
        captured: Mapping[str, InMemoryMemTables | None],
        consistency: Consistency,
        schema: TableSchema,
        tag: str | None,
        shard_id: str,
    ) -> _Upper | None:
        return self._capture_shard(shard_id, captured[shard_id], consistency, schema, tag)

    def _live(self, shard_id: str, consistency: Consistency) -> InMemoryMemTables | None:
        if consistency == "flushed":
            return None
        shard = live.find(self.location.key, shard_id)
        return None if shard is None else shard.capture()

    def _each(self, shards: Sequence[str], read: Callable[[str], _Upper | None]) -> list[_Upper | None]:
        if self.location.is_local or len(shards) < 2:
            return [read(shard) for shard in shards]
        with thread_pool(min(_PARALLEL_READS, len(shards)), "memwal-snapshot") as pool:
            return list(pool.map(read, shards))

    def _capture_shard(
        self,
        shard_id: str,
        memtables: InMemoryMemTables | None,
        consistency: Consistency,
        schema: TableSchema,
        tag: str | None,
    ) -> _Upper | None:
        manifests = self.manifests(shard_id)
        doubted: set[int] = set()
        for attempt in range(_MAX_TRIES):
            manifest = manifests.read_latest()
            if manifest is None:
                return None
            if consistency == "flushed":
                return _Upper(shard_id, manifest, (), from_tail=False)
            if memtables is not None and memtables.epoch == manifest.writer_epoch:
                return _Upper(shard_id, manifest, memtables.ascending, from_tail=False)
            memtables = None
            try:
                tail = self._read_tail(shard_id, manifest, schema, tag)
            except CorruptDataError:  # collection may have passed here since the manifest was read
                if manifest.version in doubted or attempt == _MAX_TRIES - 1:
                    raise
                doubted.add(manifest.version)
            else:
                newest = manifests.read_latest()
                if newest is not None and _cursor(newest) == _cursor(manifest):
                    return _Upper(shard_id, manifest, tail, from_tail=True)
            back_off(self._clock, attempt, first_seconds=_BACKOFF_SECONDS, longest_seconds=_MAX_BACKOFF_SECONDS)
        raise ConflictError(f"shard {shard_id} changes faster than it can be read; retry")

    def _read_tail(
        self, shard_id: str, manifest: ShardManifest, schema: TableSchema, tag: str | None
    ) -> tuple[InMemoryMemTableRef, ...]:
        cursor = manifest.replay_after_wal_entry_position
        above = [position for position in list_positions(self.location, shard_id) if position > cursor]
        end = above[-1] + 1 if above else cursor + 1
        entries = read_run(self.location, shard_id, cursor + 1, end, tag=tag)
        return tail_memtables(self.location, entries, manifest, schema)


def tail_memtables(
    location: Location, entries: Iterable[WalEntry], manifest: ShardManifest, schema: TableSchema
) -> tuple[InMemoryMemTableRef, ...]:
    """The unflushed rows of `entries` as memtables, one per generation; warns of what this version does not understand."""
    adapter, known = RowAdapter(schema), KnownColumns(location, schema)
    tables: list[MemTable] = []
    unknown = [f"manifest {name}" for name in unknown_fields(manifest)]
    for entry in entries:
        unknown += known.unknown_in(entry)
        generation = entry.unflushed_generation(manifest.current_generation)
        if generation is None:
            continue
        if not tables or tables[-1].generation != generation:
            tables.append(MemTable(schema, generation, 0, entry.position))
        for batch in entry.batches:
            tables[-1].append(*adapter.adapt(batch, position=entry.position))
    warn_unknown(manifest.shard_id, tuple(dict.fromkeys(unknown)))
    return tuple(table.capture() for table in tables)


def _cursor(manifest: ShardManifest) -> int:
    return manifest.replay_after_wal_entry_position


def _by_shard(in_memory: InMemoryMemTables | Iterable[InMemoryMemTables] | None) -> Mapping[str, InMemoryMemTables]:
    if in_memory is None:
        return {}
    try:
        captures = [in_memory] if isinstance(in_memory, InMemoryMemTables) else list(in_memory)
    except TypeError:
        captures = []
    if not captures or not all(isinstance(capture, InMemoryMemTables) for capture in captures):
        raise InvalidInputError("in_memory takes what in_memory_memtable_refs() returned, of one or several writers")
    return {capture.shard_id: capture for capture in captures}


def _view(upper: _Upper, compacted: int, schema: TableSchema) -> ShardView:
    """The shard without what a lower tier of the same snapshot holds already, in the columns of `schema`."""
    manifest = upper.manifest
    memory = tuple(
        _in_columns_of(schema, ref)
        for ref in upper.memory
        if ref.generation >= manifest.current_generation and ref.generation > compacted and ref.num_rows
    )
    live_tables = tuple(sorted((s for s in manifest.sstables if s.generation > compacted), key=lambda s: s.generation))
    skipped = len(manifest.sstables) - len(live_tables)
    return ShardView(upper.shard_id, manifest, memory, live_tables, upper.from_tail, skipped)


def _in_columns_of(schema: TableSchema, ref: InMemoryMemTableRef) -> InMemoryMemTableRef:
    """The captured rows with the columns that the table has now; the writer's own if it has seen them."""
    known = ref.memtable.schema
    if known == schema:
        return ref
    adapter, table = RowAdapter(schema), MemTable(schema, ref.generation, 0, 0)
    for batch in ref.batches:
        table.append(*adapter.adapt(pa.RecordBatch.from_arrays(batch.columns, schema=known.wal)))
    return table.capture()


def with_restarts(capture: Callable[[], Snapshot], read: Callable[[Snapshot], T], first: Snapshot | None = None) -> T:
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
            if attempt == _MAX_RESTARTS:
                raise
        except ObjectNotFoundError as error:
            missing += 1
            if missing > _MAX_MISSING or attempt == _MAX_RESTARTS:
                raise CorruptDataError("the shard lists an SSTable that is not there", path=error.path) from None
        snapshot = None
    raise AssertionError("the last attempt returns or raises")


def no_entry(location: Location) -> InvalidInputError:
    """The error for a table without a MemWAL entry."""
    return InvalidInputError(
        f"the table at {location.describe()} has no MemWAL index: it was never enabled, or its base was overwritten or "
        "the index dropped, and rows in its shards cannot be read. Call memwal.enable(); with adopt_shards=True it takes "
        "over what the shards hold"
    )
