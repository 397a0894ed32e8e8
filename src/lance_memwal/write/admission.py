"""Which rows of an append the merge of the table lets in, when the append takes effect.

Owns `admitted`. Invariant: the rows are looked up after the whole log below the new entry was read, and the entry is created
only at the position after it: whatever comes in between makes the append begin again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pyarrow as pa

from lance_memwal.rows.adapt import with_flags
from lance_memwal.rows.merging import LastWrite, Merge
from lance_memwal.rows.schema import TableSchema
from lance_memwal.write.live_rows import KeysOfWrite, live_of
from lance_memwal.write.resolve import Part, resolve
from lance_memwal.write.resolved import Change, merged
from lance_memwal.write.sequences import span_of

__all__ = ["StoredLookUp", "admitted", "check_sequences"]

# The newest row of each key that a shard (its id is given) or the base table has on storage: as `LookUp`.
StoredLookUp: TypeAlias = Callable[[str, pa.RecordBatch, Sequence[str], TableSchema, Merge | None], pa.Table]


def check_sequences(fitted: Sequence[pa.RecordBatch], merge: Merge) -> None:
    """Return only if every row and every tombstone has what the merge needs."""
    if isinstance(merge, LastWrite):
        span_of(fitted, merge.sequence)


def admitted(
    shard_id: str, fitted: Sequence[pa.RecordBatch], schema: TableSchema, merge: Merge, look_up: StoredLookUp
) -> list[pa.RecordBatch]:
    """Those of the flagged rows that the merge lets in, against what is on storage now."""
    rows = [batch.remove_column(batch.num_columns - 1) for batch in fitted]
    flags = [batch.column(batch.num_columns - 1) for batch in fitted]
    keys, numbered = KeysOfWrite.of_batches(rows, schema.primary_key)
    parts = [
        Part(batch, at, flags=dead if dead.true_count else None)
        for batch, at, dead in zip(rows, numbered, flags, strict=True)
    ]
    change = merged(Change(keys, parts), merge)
    wanted = list(dict.fromkeys([*change.columns, *schema.primary_key]))
    batch = pa.RecordBatch.from_arrays(keys.columns, names=list(schema.primary_key))
    live = live_of(look_up(shard_id, batch, wanted, schema, merge), keys, change.columns, schema.primary_key)
    found = resolve(change.parts, live, change.rules, schema, lambda _: None)
    return [with_flags(part, dead, schema.memory) for part, dead in zip(found.batches, found.flags, strict=True)]
