"""New columns of a table, from Spark: `mergeSchema`, and ALTER TABLE.

Owns how columns are added. Invariants:

1. A new column is nullable and the last one; rows that are there have no value of it.
2. Somebody else who adds the same column at the same time is no error: what counts is that it is there.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as st

from lance_memwal.errors import MemWalError
from lance_memwal.lance.base import lance_errors
from lance_memwal.spark.names import found
from lance_memwal.spark.rows import OP
from lance_memwal.spark.types import arrow_schema_for
from lance_memwal.table import Table
from lance_memwal.types import TOMBSTONE

__all__ = ["add_columns", "with_columns_of"]

_TRIES = 5
_SPECIAL = frozenset({OP, TOMBSTONE})


def with_columns_of(table: Table, frame: st.StructType, *, case_sensitive: bool = False) -> Table:
    """The table, with a column for each of `frame` that it had not."""
    known = [*table.schema.names, *_SPECIAL]
    new = [field for field in frame if found(field.name, known, case_sensitive=case_sensitive) is None]
    if new:
        add_columns(table, arrow_schema_for(st.StructType(new)))
    return table


def add_columns(table: Table, columns: pa.Schema) -> None:
    """Add these columns, where they are not there yet."""
    for attempt in range(1, _TRIES + 1):
        missing = [field.with_nullable(True) for field in columns if field.name not in table.schema.names]
        if not missing:
            return
        try:
            with lance_errors("adding columns"):
                table.dataset.add_columns(pa.schema(missing))
        except MemWalError:
            if attempt == _TRIES:
                raise
