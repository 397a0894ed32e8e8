"""Giving a table its id.

Owns `for_writing` and `new_table_id`. Invariant: a table that gets an id while its shards hold entries of one table takes
over their tag, since entries with another tag do not count: adopted shards keep their rows.
"""

from __future__ import annotations

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import TAG_DIGITS, BaseTable
from lance_memwal.lance.details import TABLE_ID_KEY
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions, tags_of, tail_positions
from lance_memwal.log.shards import list_shards
from lance_memwal.store.location import Location


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
