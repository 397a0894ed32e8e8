"""Rows that a search can address by position: of a memtable, an SSTable or a base fragment.

Owns the sources: their rows have positions 0 .. `num_rows`, and all kinds answer alike. Invariants:

1. `live` masks what the snapshot hides: superseded rows, deleted rows, tombstones. A search scores and returns live rows
   only.
2. `matching` applies the filter to live rows, so that a prefilter never changes what is live.
3. What is derived from immutable rows (their text index, their vectors' norms) is kept, by what it was made of: files that
   never change, deletion vectors by their file, columns by their id or place there. Names, version numbers and counts mean
   something else after a rename or a restore.
4. Of an SSTable that is too large to be kept, a search reads the columns that it needs and no others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.memtable.index import Analyzer, FtsMemIndex
from lance_memwal.memtable.index.vectors import VectorBlock
from lance_memwal.memtable.memtable import InMemoryMemTableRef
from lance_memwal.process.cache import CACHE
from lance_memwal.process.lazy import lazy
from lance_memwal.read.base_rows import row_ids_of, shown_rows
from lance_memwal.read.fresh import live_rows
from lance_memwal.read.memory import matching_rows, narrowed
from lance_memwal.read.merge import Merge
from lance_memwal.read.superseded_rows import SupersededRows
from lance_memwal.rows.filter import RowFilter, pushdown
from lance_memwal.rows.keys import one_array
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.read import SsTableReader, keeps_rows

Mask = npt.NDArray[np.bool_]
_LARGE_BATCH_ROWS = 1 << 16
_NO_OFFSETS = np.empty(0, dtype=np.int64)


class _TableSource:
    """Rows that are in memory as a table."""

    def __init__(self, table: pa.Table, live: Mask, schema: TableSchema) -> None:
        self.table = table
        self.num_rows = table.num_rows
        self.live = live
        self._schema = schema

    def matching(self, row_filter: RowFilter | None) -> Mask:
        """Per row: whether it is live and the filter is true."""
        return matching_rows([(self.table, self.live)], row_filter)[0]

    def column(self, name: str) -> pa.Array:
        """One column of all rows."""
        return one_array(self.table.column(name))

    def take(self, rows: npt.NDArray[np.int64], columns: Sequence[str]) -> pa.Table:
        """`columns` of some rows, in the order of `rows`."""
        return self.table.select(list(columns)).take(pa.array(rows))


class MemorySource(_TableSource):
    """The captured rows of a memtable or WAL tail."""

    def __init__(self, ref: InMemoryMemTableRef, table: pa.Table, live: Mask) -> None:
        super().__init__(table, live, ref.memtable.schema)
        self.ref = ref

    def matching(self, row_filter: RowFilter | None) -> Mask:
        """Per row: whether it is live and the filter is true; a BTree index narrows the rows down first."""
        return matching_rows([(self.table, narrowed(self.ref, row_filter, self.live))], row_filter)[0]

    def text_index(self, column: str, analyzer: Analyzer) -> FtsMemIndex:
        """The memtable's own index if it has this analyzer, else one that is kept until rows are appended."""
        for index in self.ref.indexes:
            if isinstance(index, FtsMemIndex) and index.column == column and index.analyzer == analyzer:
                return index
        return _kept_texts((self.ref.memtable.mark, column), column, analyzer, self.column, self.num_rows)


class SsTableSource(_TableSource):
    """The newest rows of an SSTable."""

    def __init__(self, reader: SsTableReader, hidden: npt.NDArray[np.int64], schema: TableSchema) -> None:
        table, offsets = reader.all_rows(schema)
        super().__init__(table, live_rows(table, offsets, hidden), schema)
        self.reader = reader
        self.offsets = offsets

    def text_index(self, column: str, analyzer: Analyzer) -> FtsMemIndex:
        """The index over this generation's rows, kept: they never change."""
        return _kept_texts(self.reader.identity_of(column, self._schema), column, analyzer, self.column)

    def vectors(self, column: str) -> VectorBlock:
        """A vector column with its norms, kept: they never change."""
        slot = ("vectors", *self.reader.identity_of(column, self._schema))
        return CACHE.fetch(slot, lambda: VectorBlock.build(0, [self.column(column)]))


class LargeSsTableSource:
    """The newest rows of an SSTable that is not kept in memory. Its results are offsets in the file (`take` too)."""

    def __init__(self, reader: SsTableReader, hidden: npt.NDArray[np.int64], schema: TableSchema) -> None:
        self.reader = reader
        self.hidden = hidden
        self.schema = schema

    @lazy
    def _frame(self) -> tuple[npt.NDArray[np.int64], Mask]:
        parts = list(self.reader.batches(self.schema, [], None, _LARGE_BATCH_ROWS))
        offsets = np.concatenate([offsets for _, offsets in parts] or [_NO_OFFSETS])
        live = np.concatenate([live_rows(b, at, self.hidden) for b, at in parts] or [np.empty(0, bool)])
        return offsets, live

    @property
    def num_rows(self) -> int:
        """The newest rows of the file, hidden ones and tombstones included."""
        return len(self._frame[0])

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Per row its offset in the file, ascending."""
        return self._frame[0]

    @property
    def live(self) -> Mask:
        """Per row: whether the snapshot shows it."""
        return self._frame[1]

    def matching(self, row_filter: RowFilter | None) -> Mask:
        """Per row: whether it is live and the filter is true."""
        if row_filter is None:
            return self.live
        parts = self.reader.batches(self.schema, [], row_filter, _LARGE_BATCH_ROWS)
        found = np.concatenate([offsets for _, offsets in parts] or [_NO_OFFSETS])
        mask = np.zeros(self.num_rows, dtype=bool)
        mask[np.searchsorted(self.offsets, found)] = True
        return mask & self.live

    def column(self, name: str) -> pa.Array:
        """One column of all rows."""
        parts = self.reader.batches(self.schema, [name], None, _LARGE_BATCH_ROWS)
        kind = self.schema.columns.field(name).type
        return one_array(pa.chunked_array([batch.column(0) for batch, _ in parts], type=kind))

    def text_index(self, column: str, analyzer: Analyzer) -> FtsMemIndex:
        """The index over this generation's rows, kept: they never change."""
        return _kept_texts(self.reader.identity_of(column, self.schema), column, analyzer, self.column)

    def take(self, rows: npt.NDArray[np.int64], columns: Sequence[str]) -> pa.Table:
        """`columns` of the rows at some offsets, in that order."""
        return self.reader.take(self.schema, rows, columns).select(list(columns))


class FragmentSource:
    """The rows of one fragment of the base table, as of one version."""

    def __init__(self, fragment: Any, merge: Merge, hidden: SupersededRows) -> None:
        self._fragment = fragment
        self._merge = merge
        self.row_ids = self._kept_ids()
        self.num_rows = len(self.row_ids)
        self.live = ~hidden.hides(self.row_ids)

    def _kept_ids(self) -> npt.NDArray[np.int64]:
        """The ids of the rows that are not deleted, kept: equal messages are the same files with the same deletions."""
        base = self._merge.snapshot.base
        slot = ("row ids", base.location.key, base.fragment_messages[self._fragment.fragment_id])
        found: npt.NDArray[np.int64] | None = CACHE.find(slot)
        if found is None:
            with base.reading("reading the base table"):
                rows = self._fragment.scanner(columns=[], with_row_id=True).to_table()
            found = row_ids_of(rows)
            CACHE.keep(slot, found, found.nbytes)
        return found

    def matching(self, row_filter: RowFilter | None) -> Mask:
        """Per row: whether it is live and the filter is true."""
        if row_filter is None or not self.live.any():
            return self.live
        base, shared = self._merge.snapshot.base, pushdown(row_filter)
        with base.reading("filtering the base table", given=True):
            rows = self._fragment.scanner(columns=shared.columns, filter=shared.told, with_row_id=True).to_table()
        return self.live & np.isin(self.row_ids, row_ids_of(shared.finish(shown_rows(base, rows))))

    def column(self, name: str) -> pa.Array:
        """One column of all rows."""
        with self._merge.snapshot.base.reading("reading the base table"):
            return one_array(self._fragment.scanner(columns=[name]).to_table().column(name))

    def text_index(self, column: str, analyzer: Analyzer) -> FtsMemIndex:
        """The index over the fragment's rows, kept: the same files have the same rows, under whatever name."""
        snapshot = self._merge.snapshot
        told = self._fragment.metadata.to_json()
        files = json.dumps([told["files"], told["overlays"], told["deletion_file"]])
        key = (snapshot.location.key, files, str(snapshot.base.column_ids[column]))
        return _kept_texts(key, column, analyzer, self.column)


def _kept_texts(
    key: tuple[Hashable, ...],
    column: str,
    analyzer: Analyzer,
    read: Callable[[str], pa.Array],
    made_of: Hashable = None,
) -> FtsMemIndex:
    """The text index over the values that `key` and `made_of` identify, kept."""
    slot = ("text", *key, repr(analyzer))
    return CACHE.fetch(slot, lambda: FtsMemIndex.of_texts(column, read(column), analyzer), made_of)


FreshSource: TypeAlias = MemorySource | SsTableSource | LargeSsTableSource


def fresh_sources(merge: Merge) -> list[FreshSource]:
    """The sources above the base table."""
    found: list[FreshSource] = []
    for shard in merge.shards:
        found += (MemorySource(ref, table, live) for ref, table, live in shard.live_memory())
        for reader, hidden in shard.sstables():
            kind = SsTableSource if keeps_rows(reader.sstable) else LargeSsTableSource
            found.append(kind(reader, hidden, merge.snapshot.schema))
    return found
