"""Which shards a table has on storage, and the newest manifest of each.

Entry points: `list_shards`, `newest_manifests`, `sstable_sizes`, and `for_writing`, which gives a table its id. Invariants:

1. A name that is no shard id (staging, stray files) is not a shard. A shard without a manifest has nothing published.
2. A table that gets an id while its shards hold entries of one table takes over their tag, since entries with another tag do
   not count: adopted shards keep their rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import TAG_DIGITS, BaseTable
from lance_memwal.lance.details import TABLE_ID_KEY
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions, tags_of, tail_positions
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.store.port import ObjectMeta
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
