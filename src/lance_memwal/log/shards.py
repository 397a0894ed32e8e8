"""Which shards a table has on storage.

Owns `list_shards`. Invariant: a name that is no shard id (staging, stray files) is no shard.
"""

from __future__ import annotations

from lance_memwal.errors import InvalidInputError
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import check_shard_id

__all__ = ["list_shards"]


def list_shards(location: Location) -> list[str]:
    """Every shard directory of the table, in order of id."""
    found = []
    for name in location.store.list_names(paths.MEM_WAL_DIR):
        try:
            found.append(check_shard_id(name))
        except InvalidInputError:
            continue
    return sorted(found)
