"""Rows of an answer in order.

Owns `Order`: what `order_by` says, and the sorting. Invariants:

1. Rows compare as Lance's own scanner compares them: texts and binaries by their bytes, floats in IEEE's total order (-0.0
   below 0.0, NaN above everything, a NaN with a sign below), and a null comes last, whichever way it is ordered.
2. Rows that `order_by` does not tell apart come in the order of their keys: the answer does not depend on the tier that a
   row is in. Without a key they come in no order.
3. With a count, memory holds at most that many rows and a bounded number more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.arguments import check_names
from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.key_encoding import comparable, is_key_type
from lance_memwal.rows.keys import one_array
from lance_memwal.rows.projection import column_at, field_at
from lance_memwal.rows.schema import TableSchema

_WAITING_ROWS = 1 << 16
_SIGN = np.int64(-(1 << 63))


@dataclass(frozen=True, slots=True)
class Order:
    """The columns and fields to sort by, each with whether the largest comes first."""

    by: tuple[tuple[str, bool], ...]

    @classmethod
    def of(cls, order_by: Sequence[str], schema: TableSchema) -> Order:
        """What a caller asked for ("-" in front: the largest first), and the key behind it."""
        by: dict[str, bool] = {}
        for item in check_names("order_by", order_by):
            falls = item.startswith("-") and item not in schema.columns.names
            path = item[1:] if falls else item
            kind = field_at(path, schema.columns).type
            if not _is_sortable(kind):
                raise InvalidInputError(f"order_by: rows cannot be ordered by {path!r}, which is {kind}")
            if path in by:
                raise InvalidInputError(f"order_by names {path!r} twice")
            by[path] = falls
        if not by:
            raise InvalidInputError("order_by names no column; leave it out for rows in no order")
        return cls((*by.items(), *((name, False) for name in schema.primary_key if name not in by)))

    @property
    def paths(self) -> tuple[str, ...]:
        """The columns that rows must have to be sorted."""
        return tuple(path for path, _ in self.by)

    def first(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, count: int | None) -> pa.Table:
        """The first `count` rows (None: all) in order; `batches` have `schema`, with `paths` in it."""
        kept: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            kept.append(batch)
            rows += batch.num_rows
            if count is not None and rows >= count + max(count, _WAITING_ROWS):
                kept = self._sorted(kept, schema, count).to_batches()
                rows = sum(part.num_rows for part in kept)
        return self._sorted(kept, schema, count)

    def _sorted(self, batches: list[pa.RecordBatch], schema: pa.Schema, count: int | None) -> pa.Table:
        rows = pa.Table.from_batches(batches, schema=schema).unify_dictionaries()
        columns = {str(i): _sortable(one_array(column_at(path, rows))) for i, path in enumerate(self.paths)}
        keys = [(str(i), "descending" if falls else "ascending") for i, (_, falls) in enumerate(self.by)]
        order = pc.sort_indices(pa.table(columns), sort_keys=keys)  # nulls at the end
        return rows.take(order if count is None else order.slice(0, count))

    def __str__(self) -> str:
        return ", ".join(f"-{path}" if falls else path for path, falls in self.by)


def _is_sortable(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_sortable(kind.value_type)
    return bool(is_key_type(kind) or pa.types.is_floating(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind))


def _sortable(array: pa.Array) -> pa.Array:
    """Values that Arrow sorts as they are compared here."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return _sortable(array.dictionary_decode())
    if pa.types.is_floating(kind):
        return _total_order(array)
    if pa.types.is_time(kind) or pa.types.is_duration(kind):
        return array
    return comparable(array)


def _total_order(array: pa.Array) -> pa.Array:
    """Floats as integers in the same order: of negative ones all bits but the sign are turned."""
    wide = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    bits = np.ascontiguousarray(wide).view(np.int64)
    ordered = np.where(bits < 0, ~bits ^ _SIGN, bits)
    return pa.array(ordered, mask=array.is_null().to_numpy(zero_copy_only=False))
