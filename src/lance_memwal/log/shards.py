"""Which shards a table has on storage, and the newest manifest of each.

Entry points: `list_shards`, `newest_manifests`, `sstable_sizes`, `for_writing`, which gives a table its id, and `Floor`: how far
GC went in a shard, in numbered records `{"position": p, "manifest": v, "announced": a, "by": uuid}`. Invariants:

1. A name that is no shard id (staging, stray files) is not a shard. A shard without a manifest has nothing published.
2. A table that gets an id while its shards hold entries of one table takes over their tag, since entries with another tag do
   not count: adopted shards keep their rows.
3. A floor never falls. GC raises it before it removes the first entry at or below the position, the rows of the first bulk
   marker there, or the first object that a snapshot with a lower manifest version may need.
4. A reader of the feed reads the floor after it has read an entry, or the rows of a marker. An object at or below the floor does
   not count: it may have been created late at a position that GC had emptied.
5. A snapshot with a manifest version below the floor's counts only if it was pinned all the time.
6. A position is announced before GC reads the pins that decide whether the floor is raised to it. So GC respects every earlier
   pin, and a process that pins later and then reads the floor sees the announcement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import CorruptDataError, InvalidInputError
from lance_memwal.lance.base import TAG_DIGITS, BaseTable
from lance_memwal.lance.details import TABLE_ID_KEY
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions, tags_of, tail_positions
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.store.port import ObjectMeta
from lance_memwal.store.sequenced import Record, Records, is_count, update
from lance_memwal.types import ShardManifest, is_shard_id


def list_shards(location: Location, only: Collection[str] | None = None) -> list[str]:
    """Every shard directory of the table, in order of id; `only` those named, all of which it must have."""
    found = list(filter(is_shard_id, location.store.list_names(paths.MEM_WAL_DIR)))
    if only is None:
        return sorted(found)
    unknown = sorted(set(only) - set(found))
    if unknown:
        raise InvalidInputError(f"the table has no shard {unknown[0]!r}")
    return sorted(set(only))


def sstable_sizes(shard_id: str, objects: Iterable[ObjectMeta]) -> Counter[str]:
    """Bytes on storage per directory of a shard, by name. An SSTable is a directory; `objects` is a listing of the shard."""
    below = len(paths.shard_dir(shard_id)) + 1
    sizes: Counter[str] = Counter()
    for item in objects:
        sizes[item.path[below:].partition("/")[0]] += item.size_bytes
    return sizes


def newest_manifests(location: Location, shards: Collection[str] | None = None) -> Iterator[ShardManifest]:
    """The newest manifest of every shard, or of `shards`, each read when it is asked for."""
    for shard_id in list_shards(location) if shards is None else shards:
        manifest = ShardManifestStore(location, shard_id).read_latest()
        if manifest is not None:
            yield manifest


def new_table_id(location: Location, clock: Clock = SYSTEM_CLOCK) -> str:
    """An id that no other table has; entries that are in its shards already count as its own."""
    tags = set()
    for shard_id in list_shards(location):
        manifest = ShardManifestStore(location, shard_id).read_latest()
        tail = list_positions(location, shard_id) if manifest is None else tail_positions(location, manifest)
        tags |= tags_of(location, shard_id, tail)
    if len(tags) > 1:
        raise InvalidInputError(
            f"the logs of the table at {location.describe()} hold entries of {len(tags)} tables, whose rows cannot be "
            "adopted together: restore the MemWAL index that belongs to them (see Table.repair)"
        )
    fresh = clock.uuid4()
    return next(iter(tags), fresh[:TAG_DIGITS]) + fresh[TAG_DIGITS:]


def for_writing(base: BaseTable, clock: Clock = SYSTEM_CLOCK) -> BaseTable:
    """`base`, or the version after it in which a table that another implementation initialised has an id."""

    def commit(newest: BaseTable) -> None:
        newest.handle().update_config({TABLE_ID_KEY: new_table_id(newest.location, clock)})

    return base.commit_until("giving the table an id", commit, lambda b: b.details is None or b.table_id is not None)


_NUMBERS = ("position", "manifest", "announced")
_NOTHING = Record(0, {"position": 0})


class Floor:
    """The floor of one shard."""

    __slots__ = ("_clock", "_known", "_records")

    def __init__(self, location: Location, shard_id: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._records = Records(location.store, paths.floor_dir(shard_id))
        self._clock = clock
        self._known = _NOTHING

    def position(self) -> int:
        """The highest position at or below which something may be gone; 0 if nothing is. One listing, mostly."""
        return self._number(self._newest(), "position")

    def manifest(self) -> int:
        """The lowest manifest version of which nothing is gone that a snapshot needs. One listing, mostly."""
        return self._number(self._newest(), "manifest")

    def announced(self) -> int:
        """The highest position that the floor has, or may have soon. One listing, mostly."""
        newest = self._newest()
        return max(self._number(newest, "announced"), self._number(newest, "position"))

    def announce(self, position: int, manifest: int) -> None:
        """Say how far the floor may be raised; for snapshots it is raised at once. Durable when this returns."""
        self._raise({"announced": position, "manifest": manifest})

    def raise_to(self, position: int) -> None:
        """Let the floor be at this position or above it; durable when this returns."""
        self._raise({"position": position})

    def _raise(self, wanted: Mapping[str, int]) -> None:
        def raised(newest: Record) -> Record:
            known = {key: self._number(newest, key) for key in _NUMBERS}
            numbers = {key: max(known[key], wanted.get(key, 0)) for key in _NUMBERS}
            return newest if numbers == known else Record(newest.number + 1, {**numbers, "by": self._clock.uuid4()})

        records = self._records
        update(records.directory, lambda: records.newest() or _NOTHING, raised, records.create, clock=self._clock)

    def _newest(self) -> Record:
        numbers = self._records.numbers()
        if numbers and numbers[-1] != self._known.number:
            self._known = self._records.newest() or self._known
        return self._known

    def _number(self, record: Record, key: str) -> int:
        number = record.value.get(key, 0)
        if not is_count(number):
            path = paths.record_path(self._records.directory, max(1, record.number))
            raise CorruptDataError("a floor record is malformed; restore it from a backup", path=path)
        return int(number)
