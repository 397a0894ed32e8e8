"""Rows of an append that depends on the rows that are there, as they are when the append takes effect.

Owns `rows_now`. Invariant: the rows are looked up after the whole log below the new entry was read, and the entry is created
only at the position after it: whatever comes in between makes the append begin again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from lance_memwal.rows.adapt import with_flags
from lance_memwal.rows.schema import TableSchema
from lance_memwal.write.changes import Change
from lance_memwal.write.fitting import Fitting
from lance_memwal.write.live_rows import live_of
from lance_memwal.write.resolve import resolve

# The newest row of each key that a shard (its id is given) or the base table has on storage: as `LookUp`.
StoredLookUp: TypeAlias = Callable[[str, pa.RecordBatch, Sequence[str], TableSchema], pa.Table]


@dataclass(frozen=True, slots=True)
class AppendedRows:
    """What an append writes: whole rows, `_tombstone` last; the keys of rejected rows; the live rows that it counted."""

    batches: list[pa.RecordBatch]
    rejected: pa.Table | None = None
    matched: int | None = None

    @property
    def num_rows(self) -> int:
        """How many rows and tombstones are written."""
        return sum(batch.num_rows for batch in self.batches)


@dataclass(frozen=True, slots=True)
class RowSource:
    """What finds the rows of a write. If `is_fixed`, they do not depend on live rows."""

    find: Callable[[], AppendedRows]
    is_fixed: bool


def rows_now(shard_id: str, change: Change, fitting: Fitting, look_up: StoredLookUp) -> AppendedRows:
    """What becomes of `change` against what is on storage now."""
    schema, keys = fitting.schema, change.keys
    wanted = list(dict.fromkeys([*change.columns, *schema.primary_key]))
    batch = pa.RecordBatch.from_arrays(keys.columns, names=list(schema.primary_key))
    live = live_of(look_up(shard_id, batch, wanted, schema), keys, change.columns, schema.primary_key)
    found = resolve(change.parts, live, change.rules, schema, fitting.check_whole)
    flagged = [with_flags(rows, dead, schema.memory) for rows, dead in zip(found.batches, found.flags, strict=True)]
    rejected = found.rejected_keys if change.tells else None
    return AppendedRows(flagged, rejected, found.matched if change.counts else None)
