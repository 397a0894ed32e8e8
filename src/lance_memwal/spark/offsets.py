"""Offsets of the change feed in Spark, as Spark keeps them in the checkpoint of a query: JSON.

Owns their form: `shards` (per shard the next position to read), `table` (its tag), and `snapshot` in the first one of a query
that begins with one. Invariant: what comes back from a checkpoint is checked before anything is read by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lance_memwal.errors import InvalidInputError
from lance_memwal.feed.cursor import Cursor, Place
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.store.records import is_count
from lance_memwal.types import is_shard_id

__all__ = ["Offset", "checked_offset", "cursor_of_offset", "offset_of"]

Offset = dict[str, Any]
_LAST = 1 << 63


def offset_of(cursor: Cursor) -> Offset:
    """The offset that says how far a cursor has read; `InvalidInputError` if it has read a part of something."""
    if cursor.rows or any(place.rows for place in cursor.shards.values()):
        what = "its first snapshot" if cursor.rows else "a large write"
        raise InvalidInputError(
            f"the consumer of this query stands inside of {what}, where a query of Spark cannot go on. Read and commit with "
            "Table.consumer until that is done, or give the query a consumer of its own; after Table.drop_consumer it begins "
            "anew"
        )
    found: Offset = {"shards": {shard_id: place.position + 1 for shard_id, place in cursor.shards.items()}}
    found |= {} if cursor.table is None else {"table": cursor.table}
    return found if cursor.snapshot is None else {**found, "snapshot": cursor.snapshot}


def cursor_of_offset(tag: str | None, offset: Mapping[str, Any]) -> Cursor:
    """The cursor, of the table with this tag, that an offset stands for."""
    places = {shard_id: Place(position - 1) for shard_id, position in offset["shards"].items()}
    return Cursor(tag, places, offset.get("snapshot"))


def checked_offset(offset: Any) -> Offset:
    """`offset`, if it is one that this feed has made."""
    shards = offset.get("shards") if isinstance(offset, dict) else None
    is_ours = isinstance(shards, dict) and all(
        is_shard_id(shard_id) and is_count(position) and 0 < position <= _LAST for shard_id, position in shards.items()
    )
    if not is_ours or not isinstance(offset.get("table"), str | None):
        raise InvalidInputError(
            "the checkpoint of this query holds no offset of a change feed: it is the one of another source, or damaged. "
            "Start the query with a checkpoint of its own"
        )
    if "snapshot" in offset:
        Snapshot.parse(offset["snapshot"])
    found: Offset = offset
    return found
