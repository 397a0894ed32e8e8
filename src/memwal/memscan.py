"""Reading memtables alone: active and frozen of one writer, captured together.

Owns `MemTableScanner` and the newest-wins merge of memtables. Invariants:

1. Recency is decided before filter and limit: a newer row that does not match still hides the older one that does.
2. Tombstones never appear and never count.
3. A scanner reads the capture with which it was made, however often it is run.

Called by: `ShardWriter.scan`, the read path.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from memwal.errors import InvalidInputError
from memwal.format.wal_entry import TOMBSTONE
from memwal.memtable import InMemoryMemTableRef, InMemoryMemTables, key_values
from memwal.row_filter import FilterLike, RowFilter
from memwal.schema import TableSchema

__all__ = ["MemTableScanner", "newest_of", "winners"]


def winners(memtables: Sequence[InMemoryMemTableRef]) -> list[tuple[InMemoryMemTableRef, np.ndarray]]:
    """Per memtable (ascending by generation) the mask of rows that no newer row of the same key hides, tombstones included."""
    masks: list[tuple[InMemoryMemTableRef, np.ndarray]] = []
    for i, ref in enumerate(memtables):
        mask = ref.newest_mask().copy()
        keys = ref.memtable.schema.primary_key
        newer = [other for other in memtables[i + 1 :] if other.num_rows]
        if keys and newer and mask.any():
            rows = np.flatnonzero(mask)
            table = ref.table().select(list(keys)).take(pa.array(rows))
            values = key_values([column.combine_chunks() for column in table.columns])
            for other in newer:
                mask[rows[other.find(values) >= 0]] = False
        masks.append((ref, mask))
    return masks


def newest_of(memtables: Sequence[InMemoryMemTableRef], schema: TableSchema) -> pa.Table:
    """The newest row of every key over `memtables`, tombstones included, older generations first."""
    parts = [
        table if mask.all() else table.filter(pa.array(mask))
        for ref, mask in winners(memtables)
        if (table := ref.table()).num_rows
    ]
    return pa.concat_tables(parts) if parts else schema.memory.empty_table()


class MemTableScanner:
    """A scan of one writer's memtables; the builder methods return the scanner."""

    def __init__(self, memtables: InMemoryMemTables, schema: TableSchema) -> None:
        self._memtables = memtables
        self._schema = schema
        self._columns: list[str] | None = None
        self._filters: list[RowFilter] = []
        self._limit: int | None = None

    def project(self, columns: Sequence[str]) -> MemTableScanner:
        """Return only `columns`, in this order."""
        for name in columns:
            if name not in self._schema.columns.names:
                raise InvalidInputError(f"column {name!r} is not in the table")
        self._columns = list(columns)
        return self

    def filter(self, expr: FilterLike) -> MemTableScanner:
        """Return only rows for which `expr` (SQL or a pyarrow expression) is true; several filters must all be true."""
        self._filters.append(RowFilter(expr, self._schema.columns))
        return self

    def limit(self, n: int) -> MemTableScanner:
        """Return at most `n` rows."""
        if n < 0:
            raise InvalidInputError(f"limit must not be negative: {n}")
        self._limit = n
        return self

    def to_table(self) -> pa.Table:
        """The rows as a table."""
        newest = newest_of(self._memtables.ascending, self._schema)
        dead = newest.column(TOMBSTONE).to_numpy()
        rows = newest.drop_columns([TOMBSTONE])
        if dead.any():
            rows = rows.filter(pa.array(~dead))
        for row_filter in self._filters:
            rows = row_filter.apply(rows)
        if self._limit is not None:
            rows = rows.slice(0, self._limit)
        return rows if self._columns is None else rows.select(self._columns)

    def count_rows(self) -> int:
        """The number of rows."""
        return int(self.to_table().num_rows)

    def __repr__(self) -> str:
        return f"MemTableScanner(columns={self._columns}, filters={self._filters}, limit={self._limit})"
