"""One snapshot of a table as a small value: pinned on the driver, rebuilt wherever a task runs.

Owns `Pin`. It names what a read sees (shard manifests, the end of each log, the base version) and holds no row. Invariants:

1. It is pinned from the newest tier down: per shard the manifest, then the end of its log, and the base version last; so
   a row may be met twice, which the rebuilt snapshot drops, but never missed.
2. The end of a log is the tip only if the listing has no hole and the manifest did not move meanwhile.
3. A rebuilt snapshot is equal everywhere; if collection removed a part of it, that is a `CollectedError`: load again.
4. A pin is of one table: one that is made anew meanwhile is pinned from the start, and is a `TableReplacedError` for tasks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from lance_memwal.clock import SYSTEM_CLOCK, BackOff, in_order
from lance_memwal.errors import (
    CollectedError,
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    ObjectNotFoundError,
    TableReplacedError,
    UnavailableError,
)
from lance_memwal.lance.base import BaseTable, no_index
from lance_memwal.lance.identity import TableWatch
from lance_memwal.lance.marks import compacted
from lance_memwal.lance.restored import check_not_restored
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.shards import list_shards
from lance_memwal.log.wal import list_positions, own_end, read_run
from lance_memwal.memtable.memtable import InMemoryMemTableRef
from lance_memwal.read.reader import candidate_shards
from lance_memwal.read.snapshot import ShardView, Snapshot, tail_memtables
from lance_memwal.rows.schema import TableSchema
from lance_memwal.spark.options import Options
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.table import open_table
from lance_memwal.types import ShardManifest

__all__ = ["Pin", "PinnedShard", "pin_at", "pin_table", "rebuild", "reported_as_collected"]

_MAX_TRIES = 16
_BACK_OFF = BackOff(0.01, 0.16)
_PARALLEL_READS = 8
_KEPT_SNAPSHOTS = 2


@dataclass(frozen=True, slots=True)
class PinnedShard:
    """One shard of a pin: its manifest, and the first position of the log that is not part of it."""

    manifest: ShardManifest
    tail_end: int

    @property
    def tail_start(self) -> int:
        """The first position behind the cursor."""
        return self.manifest.replay_after_wal_entry_position + 1


@dataclass(frozen=True, slots=True)
class Pin:
    """What one load sees."""

    token: str
    table_id: str | None
    base_version: int
    schema: TableSchema
    shards: tuple[PinnedShard, ...]


# ------------------------------------------------------------------------------------------------------------ pinning


def pin_table(options: Options) -> Pin:
    """The table as it is now."""
    table = open_table(options.path, storage_options=options.storage_options)
    candidates = candidate_shards(table.base, options.filter)
    return pin_at(table.location, candidates, flushed=options.consistency == "flushed")


def pin_at(location: Location, candidates: Collection[str] | None = None, *, flushed: bool = False) -> Pin:
    """The table at a place; `candidates` are the shards that can hold matching rows."""
    for attempt in range(_MAX_TRIES):
        watch = TableWatch(_newest(location))
        shards = [s for s in list_shards(location) if candidates is None or s in candidates]
        pin = partial(_pin_shard, location, flushed=flushed)
        found = list(in_order(pin, shards, location.at_once(_PARALLEL_READS), "memwal-pin"))
        try:
            return _pin(watch.look(), tuple(shard for shard in found if shard is not None))
        except TableReplacedError:  # what was pinned may be of two tables
            if attempt == _MAX_TRIES - 1 or not watch.is_replaced:
                raise
            candidates = None
    raise AssertionError("the last attempt returns or raises")


def _newest(location: Location) -> BaseTable:
    base = BaseTable.open(location)
    if base is None or base.details is None:
        raise no_index(location)
    return base


def _pin(base: BaseTable, pinned: tuple[PinnedShard, ...]) -> Pin:
    marks = compacted(base)
    for shard in pinned:
        check_not_restored(base, shard.manifest, marks.get(shard.manifest.shard_id, 0))
    return Pin(SYSTEM_CLOCK.uuid4(), base.table_id, base.version, base.columns, pinned)


def _pin_shard(location: Location, shard_id: str, *, flushed: bool) -> PinnedShard | None:
    store = ShardManifestStore(location, shard_id)
    doubted: set[int] = set()
    for attempt in range(_MAX_TRIES):
        manifest = store.read_latest()
        if manifest is None:
            return None
        start = manifest.replay_after_wal_entry_position + 1
        if flushed:
            return PinnedShard(manifest, start)
        above = [position for position in list_positions(location, shard_id) if position >= start]
        whole = above == list(range(start, start + len(above)))
        if not whole:  # what another table left above a missing position does not count
            base = BaseTable.open(location)
            above = own_end(location, shard_id, above, None if base is None else base.tag)
            whole = above == list(range(start, start + len(above)))
        moved = store.list_versions()[-1:] != [manifest.version]
        if whole and not moved:
            return PinnedShard(manifest, start + len(above))
        if not moved and manifest.version in doubted:
            raise CorruptDataError("WAL entry is missing inside the log", path=paths.wal_dir(shard_id))
        doubted.add(manifest.version)
        _BACK_OFF.wait(SYSTEM_CLOCK, attempt)
    raise ConflictError(f"shard {shard_id} changes faster than it can be read; retry")


# --------------------------------------------------------------------------------------------------------- rebuilding


_kept: OrderedDict[str, Snapshot] = OrderedDict()


def rebuild(options: Options, pin: Pin) -> Snapshot:
    """The snapshot behind a pin; remembered, since one process runs many tasks of one read."""
    found = _kept.get(pin.token)
    if found is None:
        location = resolve(options.path, options.storage_options)
        with reported_as_collected():
            found = _rebuild(location, pin)
        _kept[pin.token] = found
        while len(_kept) > _KEPT_SNAPSHOTS:
            _kept.popitem(last=False)
    return found


def _rebuild(location: Location, pin: Pin) -> Snapshot:
    base = _pinned_base(location, pin)
    marks = compacted(base)
    views = tuple(
        _view(location, shard, marks.get(shard.manifest.shard_id, 0), pin.schema, base.tag) for shard in pin.shards
    )
    _pinned_base(
        location, pin
    )  # entries of a table that was made anew meanwhile do not count, which hides what is gone
    return Snapshot(location, pin.schema, base, views)


def _pinned_base(location: Location, pin: Pin) -> BaseTable:
    try:
        base = BaseTable.open(location, version=pin.base_version)
    except (InvalidInputError, UnavailableError) as error:
        newest = BaseTable.open(location)
        if newest is not None and newest.table_id == pin.table_id and newest.version > pin.base_version:
            raise CollectedError(f"base version {pin.base_version} was removed; load again") from error
        if newest is not None and newest.table_id == pin.table_id:
            raise
        base = newest
    if base is None or base.table_id != pin.table_id:
        now = "was removed" if base is None else "is another one, which was made at the same place"
        raise TableReplacedError(f"the table at {location.describe()} {now}: load again")
    return base


def _view(location: Location, shard: PinnedShard, mark: int, schema: TableSchema, tag: str | None) -> ShardView:
    manifest = shard.manifest
    memory = tuple(
        ref for ref in _load_tail(location, shard, schema, tag) if ref.generation > mark and ref.num_rows
    )  # entries below `current_generation` were left out while loading
    listed = sorted((s for s in manifest.sstables if s.generation > mark), key=lambda s: s.generation)
    return ShardView(manifest.shard_id, manifest, memory, tuple(listed), from_tail=True)


def _load_tail(
    location: Location, shard: PinnedShard, schema: TableSchema, tag: str | None
) -> tuple[InMemoryMemTableRef, ...]:
    shard_id = shard.manifest.shard_id
    try:
        entries = read_run(location, shard_id, shard.tail_start, shard.tail_end, tag=tag)
        return tail_memtables(location, entries, shard.manifest, schema)
    except CorruptDataError as error:
        newest = ShardManifestStore(location, shard_id).read_latest()
        passed = 0 if newest is None else newest.replay_after_wal_entry_position
        if error.position is not None and error.position <= passed:
            raise CollectedError(f"collection removed a part of the log of shard {shard_id}; load again") from error
        raise


@contextmanager
def reported_as_collected() -> Iterator[None]:
    """An SSTable that is gone means that collection passed this snapshot."""
    try:
        yield
    except ObjectNotFoundError as error:
        raise CollectedError(f"collection removed what this snapshot needs; load again ({error})") from None
