"""Rows of one snapshot in the columns of another one.

Entry points: `rows_in_order` reads all rows, `find_rows` reads the rows of some keys.

Invariant: a column is matched by its field id, so that a renamed column keeps its values. A column that the snapshot does not
have is null, also if another column had the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from lance_memwal.read.lookup import lookup_rows
from lance_memwal.read.merge import Merge, Projection
from lance_memwal.read.tiers import Tiers
from lance_memwal.rows.adapt import in_columns_of
from lance_memwal.rows.schema import TableSchema


def rows_in_order(tiers: Tiers, wanted: TableSchema) -> Iterator[pa.RecordBatch]:
    """Read all rows, in the same order every time."""
    then = _common_columns(tiers.schema, wanted)
    batches = Merge(tiers, Projection(tuple(then.columns.names)), None).batches(in_order=True)
    return _adapted(wanted, then, batches)


def find_rows(tiers: Tiers, keys: pa.RecordBatch, wanted: TableSchema) -> pa.Table:
    """Read the live rows of `keys`, in no order. If the table had another key then, read all rows."""
    then = _common_columns(tiers.schema, wanted)
    if tiers.schema.primary_key == wanted.primary_key:
        rows = lookup_rows(tiers, keys, then.columns.names)
    else:
        merge = Merge(tiers, Projection(tuple(then.columns.names)), None)
        rows = pa.Table.from_batches(list(merge.batches()), schema=merge.schema)
    return as_columns_of(wanted, then, rows)


def as_columns_of(wanted: TableSchema, then: TableSchema, rows: pa.Table) -> pa.Table:
    """Rows that have the columns `then`, in the columns `wanted`."""
    return pa.Table.from_batches(list(_adapted(wanted, then, rows.to_batches())), schema=wanted.nullable)


def _adapted(wanted: TableSchema, then: TableSchema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if not wanted.is_like(then):
        yield from in_columns_of(wanted, then, batches)
        return
    for batch in batches:
        yield pa.RecordBatch.from_arrays(batch.columns, schema=wanted.nullable)


def column_of(then: TableSchema, wanted: TableSchema, name: str) -> str | None:
    """The name that a column of `wanted` has in `then`; None if `then` does not have it."""
    identity = _identity(wanted, name)
    return next((column for column in then.columns.names if _identity(then, column) == identity), None)


def _common_columns(then: TableSchema, wanted: TableSchema) -> TableSchema:
    """The key and those columns of `then` that `wanted` has too; at least one column, which carries the number of rows."""
    identities = {_identity(wanted, name) for name in wanted.columns.names}
    common = {name for name in then.columns.names if _identity(then, name) in identities}
    return then.narrowed(common.union(then.primary_key) or {then.columns.names[0]})


def _identity(schema: TableSchema, column: str) -> int | str:
    ids = schema.ids_of(column)
    return column if ids is None else ids.id
