"""Checks of writes that were planned on a snapshot.

Entry points: `guard_of`, `check_statement`, `check_inserts`. Invariants:

1. A key that another writer wrote since the snapshot is a conflict. The guard reads every change of the shard below the new
   entry once, in the log and in bulk writes that are announced there. Changes that GC collected count as conflicts.
2. A statement inserts no key that has a row at the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import pyarrow as pa

from lance_memwal.errors import ChangedKeysError, CollectedError, InvalidInputError
from lance_memwal.feed.changed_rows import Shape
from lance_memwal.feed.cursor import Place
from lance_memwal.feed.shard_changes import ShardChanges
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.reading import list_positions
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.rows.keys import KeySet, key_array
from lance_memwal.spark.rows import WritePlan, shown_keys
from lance_memwal.store.location import Location
from lance_memwal.table import open_table


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


def check_inserts(plan: WritePlan, inserted: Sequence[pa.Table]) -> None:
    """Return only if none of these keys, which a statement inserts, has a row at the snapshot of the statement."""
    options = plan.options
    keys = pa.concat_tables(inserted) if inserted else None
    if options.statement_on is None or keys is None or not keys.num_rows:
        return
    snapshot = Snapshot.parse(options.statement_on)
    table = open_table(options.path, storage_options=options.storage_options)
    existing = table.at(snapshot).lookup(keys, keys.column_names)
    if existing.num_rows:
        raise InvalidInputError(
            f"the statement inserts {existing.num_rows} rows whose keys exist: {shown_keys(existing)}; match rows by the primary "
            f"key ({', '.join(keys.column_names)}) to update them; nothing was written"
        )


_CHANGED = (
    "keys of this write were written by others since the snapshot that it was planned on: nothing of it was written to their "
    "shard; run it again, so that it is planned on a new snapshot, or let it overwrite them (on_conflict=, or "
    "spark.memwal.onConflict for SQL)"
)
