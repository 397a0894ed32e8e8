"""Which shards a table has on storage, and the newest manifest of each.

Entry points: `list_shards`, `newest_manifests`, `sstable_sizes`. Invariants: a name that is no shard id (staging, stray files)
is not a shard; a shard without a manifest has nothing published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from lance_memwal.errors import InvalidInputError
from lance_memwal.log.manifest import ShardManifestStore
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
