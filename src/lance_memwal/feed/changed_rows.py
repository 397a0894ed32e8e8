"""Changes as rows: what a feed hands out, made of many entries at once.

Owns `ChangedRows` (rows of one shard, in the order in which they were written) and `Shape`, the columns of a feed. Invariants:

1. Rows keep the order of their positions, and within an entry the order in which they were put.
2. Nothing is done per row: small entries of like columns are joined before they are made to fit the table.
3. A row that was deleted has its key, and nulls.
4. A row of a snapshot is no change: it has position 0, before all changes, and no shard, time or transaction.
5. A change that matches the filter is handed out. A delete has only its key: unless the key alone decides, it matches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.log.transactions import OWN_PREFIX
from lance_memwal.rows.adapt import RowAdapter
from lance_memwal.rows.blobs import shown_batch
from lance_memwal.rows.filter import FilterLike, RowFilter, as_filter
from lance_memwal.rows.keys import one_array
from lance_memwal.rows.projection import check_free, checked_paths, column_at, field_at, roots_of
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import BaseMark, EntryTransaction, WalEntry

TXN_TYPE = pa.struct([pa.field("app", pa.string()), pa.field("version", pa.int64())])
TIME_TYPE = pa.timestamp("ms", tz="UTC")
EXTRA = (
    pa.field("_op", pa.string(), nullable=False),
    pa.field("_shard", pa.string()),
    pa.field("_position", pa.int64(), nullable=False),
    pa.field("_time", TIME_TYPE),
    pa.field("_txn", TXN_TYPE),
)


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Rows of one shard: the columns that a feed needs, whether each is a delete, and where it comes from."""

    shard_id: str | None
    rows: pa.RecordBatch
    dead: npt.NDArray[np.bool_]
    positions: npt.NDArray[np.int64]
    times: pa.Array
    txns: pa.Array

    @classmethod
    def of_snapshot(cls, rows: pa.RecordBatch) -> ChangedRows:
        """Rows that are read before the changes begin."""
        count = rows.num_rows
        nowhere = np.zeros(count, dtype=np.int64)
        times, txns = pa.nulls(count, TIME_TYPE), pa.nulls(count, TXN_TYPE)
        return cls(None, rows, np.zeros(count, dtype=np.bool_), nowhere, times, txns)

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return len(self.positions)

    def take(self, chosen: npt.NDArray[np.int64]) -> ChangedRows:
        """Some of the rows, in this order."""
        at = pa.array(chosen)
        return ChangedRows(
            self.shard_id,
            self.rows.take(at),
            self.dead[chosen],
            self.positions[chosen],
            self.times.take(at),
            self.txns.take(at),
        )


class Shape:
    """The columns of a feed, of which rows it consists, and what must be read to tell."""

    __slots__ = ("_by_key", "_filter", "_paths", "schema", "stored")

    def __init__(self, table: TableSchema, columns: Sequence[str] | None, row_filter: FilterLike | None) -> None:
        """`table` are the columns of the table as they are stored; `stored` are those of them that are read."""
        shown = table.shown.columns
        self._paths = checked_paths(columns, shown)
        for field in EXTRA:
            check_free(field.name, self._paths)
        self._filter: RowFilter | None = as_filter(row_filter, shown)
        needed = () if self._filter is None else tuple(self._filter.columns)
        self._by_key = bool(table.primary_key) and set(needed) <= set(table.primary_key)
        self.stored = table.narrowed({*roots_of(self._paths), *needed, *table.primary_key})
        fields = [field_at(path, shown) for path in self._paths]
        self.schema = pa.schema([*(field.with_nullable(True) for field in fields), *EXTRA])

    def dressed(self, changes: ChangedRows, ops: pa.Array) -> pa.RecordBatch:
        """The rows that match, as the feed hands them out; `ops` says what each is."""
        matching = self._matching(changes)
        if matching is not None:
            changes, ops = changes.take(matching), ops.take(pa.array(matching))
        arrays = [column_at(path, changes.rows) for path in self._paths]
        shard_id, count = changes.shard_id, changes.num_rows
        extra = (
            ops,
            pa.nulls(count, pa.string()) if shard_id is None else pa.repeat(shard_id, count),
            pa.array(changes.positions),
            changes.times,
            changes.txns,
        )
        return pa.RecordBatch.from_arrays([*arrays, *extra], schema=self.schema)

    def plain(self, changes: ChangedRows) -> pa.RecordBatch:
        """The rows that match, each an upsert or a delete."""
        return self.dressed(changes, letters(changes.dead))

    def _matching(self, changes: ChangedRows) -> npt.NDArray[np.int64] | None:
        """Which rows match; None: all of them."""
        if self._filter is None or not changes.num_rows:
            return None
        mask = self._filter.mask(pa.Table.from_batches([changes.rows]))
        if not self._by_key:
            mask = mask | changes.dead
        return None if mask.all() else np.flatnonzero(mask)


def letters(dead: npt.NDArray[np.bool_]) -> pa.Array:
    """`u` for rows that were put, `d` for rows that were deleted."""
    if not dead.any():
        return pa.repeat("u", len(dead))
    return pa.array(["u", "d"]).take(pa.array(dead.astype(np.int8)))


# --------------------------------------------------------------------------------------------------- rows of entries


def changed_rows(
    shard_id: str, entries: Sequence[tuple[WalEntry, int | None]], adapter: RowAdapter, stored: TableSchema
) -> ChangedRows | None:
    """The rows of these entries, each with its time in milliseconds; None if they have none."""
    parts = [_adapted(list(group), adapter, stored) for _, group in groupby(_batches(entries), _columns_of)]
    if not parts:
        return None
    rows = [part for part, _ in parts]
    counts = np.array([entry.num_rows for entry, _ in entries])
    return ChangedRows(
        shard_id,
        rows[0] if len(rows) == 1 else _joined(rows, rows[0].schema),
        parts[0][1] if len(parts) == 1 else np.concatenate([dead for _, dead in parts]),
        np.repeat(np.array([entry.position for entry, _ in entries], dtype=np.int64), counts),
        times_of([time for _, time in entries], counts),
        _transactions(entries, counts),
    )


def _batches(entries: Iterable[tuple[WalEntry, int | None]]) -> Iterator[tuple[WalEntry, pa.RecordBatch]]:
    for entry, _ in entries:
        for batch in entry.batches:
            yield entry, batch


class _Alike:
    """The columns of a batch and their base version, equal to those of another batch if rows of both can be joined."""

    __slots__ = ("_base", "_columns")

    def __init__(self, columns: pa.Schema, base: BaseMark | None) -> None:
        self._columns = columns
        self._base = base

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Alike):
            return NotImplemented
        mine, theirs = self._columns, other._columns
        if self._base != other._base:
            return False
        if mine is theirs:
            return True
        return bool(mine.remove_metadata().equals(theirs.remove_metadata(), check_metadata=True))

    __hash__ = None  # type: ignore[assignment]


def _columns_of(item: tuple[WalEntry, pa.RecordBatch]) -> _Alike:
    return _Alike(item[1].schema, item[0].base)


def _adapted(
    group: list[tuple[WalEntry, pa.RecordBatch]], adapter: RowAdapter, stored: TableSchema
) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
    """The joined rows of batches with the same columns, and which of them are deletes."""
    entry, first = group[0]
    batch = first if len(group) == 1 else _joined([batch for _, batch in group], first.schema)
    rows, flags = adapter.adapt(batch, entry.base, position=entry.position)
    if stored.blobs:
        rows = shown_batch(rows, stored.shown.nullable)
    dead = np.zeros(rows.num_rows, dtype=np.bool_) if flags is None else flags.to_numpy(zero_copy_only=False)
    return rows, dead


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if any(batch.schema is not schema for batch in batches):  # they say of which generation they are
        batches = [batch.replace_schema_metadata(schema.metadata) for batch in batches]
    table = pa.Table.from_batches(batches, schema=schema)
    return pa.RecordBatch.from_arrays([one_array(column) for column in table.columns], schema=schema)


def times_of(times: Sequence[int | None], counts: npt.NDArray[np.int64]) -> pa.Array:
    """The time of each row; `counts` are the rows of each time."""
    missing = np.array([time is None for time in times], dtype=np.bool_)
    known = np.array([time or 0 for time in times], dtype=np.int64)
    mask = np.repeat(missing, counts) if missing.any() else None
    return pa.array(np.repeat(known, counts), mask=mask).cast(TIME_TYPE)


def _transactions(entries: Sequence[tuple[WalEntry, int | None]], counts: npt.NDArray[np.int64]) -> pa.Array:
    total = int(counts.sum())
    index: npt.NDArray[np.int64] | None = None
    known: list[dict[str, str | int]] = []
    start = 0
    for (entry, _), count in zip(entries, counts.tolist(), strict=True):
        for item in () if entry.footer is None else entry.footer.txns:
            if not item.txn.app.startswith(OWN_PREFIX):
                index = np.full(total, -1, dtype=np.int64) if index is None else index
                end = count if item.num_rows is None else item.first_row + item.num_rows
                index[start + item.first_row : start + end] = len(known)
                known.append({"app": item.txn.app, "version": item.txn.version})
        start += count
    if index is None:
        return pa.nulls(total, TXN_TYPE)
    return pa.array(known, TXN_TYPE).take(pa.array(index, mask=index < 0))


def one_transaction(txns: Sequence[EntryTransaction], count: int) -> pa.Array:
    """The transaction of a bulk write, for each of `count` rows of it."""
    shown = [item.txn for item in txns if not item.txn.app.startswith(OWN_PREFIX)]
    if not shown:
        return pa.nulls(count, TXN_TYPE)
    return pa.repeat(pa.scalar({"app": shown[0].app, "version": shown[0].version}, TXN_TYPE), count)
