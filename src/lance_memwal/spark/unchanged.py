"""Writes that were planned on a snapshot: a key that somebody wrote since then is a conflict.

Owns `guard_of` and `check_statement`. Invariant: every change of the shard up to the position below the new entry is looked at,
each once, in the log and in what bulk writes announced there; what collection took meanwhile counts as changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import pyarrow as pa

from lance_memwal.errors import ChangedKeysError, CollectedError
from lance_memwal.feed.changed_rows import Shape
from lance_memwal.feed.cursor import Place
from lance_memwal.feed.shard_changes import ShardChanges
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.reading import list_positions
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.rows.keys import KeySet, key_array
from lance_memwal.spark.rows import WritePlan
from lance_memwal.store.location import Location

__all__ = ["check_statement", "guard_of"]


def guard_of(
    plan: WritePlan, location: Location, shard_id: str, batches: Sequence[pa.RecordBatch]
) -> Callable[[int], None] | None:
    """What refuses these rows of a shard if one of their keys was written since the snapshot of the plan; None without one."""
    text = plan.options.unchanged_since
    if text is None:
        return None
    names = list(plan.schema.primary_key)
    then = next((shard for shard in Snapshot.parse(text).shards if shard.shard_id == shard_id), None)

    @cache
    def changes() -> ShardChanges:
        base = BaseTable.need(location)
        return ShardChanges(base, shard_id, Shape(base.columns, names, None).stored)

    @cache
    def keys() -> KeySet:
        return KeySet(key_array(pa.Table.from_batches([batch.select(names) for batch in batches]).columns))

    place = Place(0)

    def refuse(position: int) -> None:
        nonlocal place
        if then is not None and position < then.tip:
            return  # not all that the snapshot had is known yet: the create will meet it, and ask again
        until = Place(position)
        try:
            if then is not None and place == Place(0):
                place = changes().before_mark(then.tip, then.cursor)
            while place < until:
                chunk = changes().take(place, until)
                if chunk is None or (chunk.changes is not None and keys().of_rows(chunk.changes.rows, names).any()):
                    raise ChangedKeysError(_CHANGED)
                place = chunk.place
        except CollectedError:
            raise ChangedKeysError(_CHANGED) from None

    return refuse


def check_statement(plan: WritePlan, location: Location, shard_id: str, batches: Sequence[pa.RecordBatch]) -> None:
    """Return only if no key of these rows was written since the snapshot of the plan, as the log is now.

    The append asks again. A statement asks for all of its shards first: so it is seldom written to some and refused by others.
    """
    guard = guard_of(plan, location, shard_id, batches)
    if guard is not None:
        guard(max(list_positions(location, shard_id), default=0))


_CHANGED = (
    "keys of this write were written by others since the snapshot that it was planned on: nothing of it was written to their "
    "shard; run it again, so that it is planned on a new snapshot, or let it overwrite them (on_conflict=, or "
    "spark.memwal.onConflict for SQL)"
)
