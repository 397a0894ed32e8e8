"""New columns of a table, from Spark: `mergeSchema`, and ALTER TABLE.

Owns how columns are added. Invariants:

1. A new column is nullable and the last one; existing rows have null in it.
2. A column of the change feed, and the one that `sequenceBy` names, is never added: it orders the rows of one source.
3. Somebody else who adds the same column at the same time is no error: what counts is that it is there.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as st

from lance_memwal.errors import InvalidInputError, MemWalError
from lance_memwal.feed.changed_rows import EXTRA
from lance_memwal.lance.base import lance_errors
from lance_memwal.spark.changelog import CHANGELOG_COLUMNS
from lance_memwal.spark.options import Options, found
from lance_memwal.spark.rows import OP
from lance_memwal.spark.types import arrow_schema_for
from lance_memwal.store.sequenced import FEW_TRIES
from lance_memwal.table import Table
from lance_memwal.types import TOMBSTONE

_SPECIAL = (OP, TOMBSTONE)
_FEED_COLUMNS = frozenset([field.name for field in EXTRA] + CHANGELOG_COLUMNS)


def with_columns_of(table: Table, frame: st.StructType, options: Options) -> Table:
    """The table, with a column for each of `frame` that it had not."""
    known, sequence = [*table.schema.names, *_SPECIAL], options.sequence_by
    if sequence is not None and found(sequence, known, case_sensitive=options.case_sensitive) is None:
        known.append(sequence)
    new = [field for field in frame if found(field.name, known, case_sensitive=options.case_sensitive) is None]
    for field in new:
        refuse_feed_column(field.name)
    if new:
        add_columns(table, arrow_schema_for(st.StructType(new)))
    return table


def refuse_feed_column(name: str) -> None:
    """Return only if a table may get a column of this name."""
    if name.lower() in _FEED_COLUMNS:
        raise InvalidInputError(
            f"column {name!r} belongs to the change feed and is not added to a table; drop it from the rows, or rename it"
        )


def add_columns(table: Table, columns: pa.Schema) -> None:
    """Add these columns, where they are not there yet."""
    for attempt in range(1, FEW_TRIES + 1):
        missing = [field.with_nullable(True) for field in columns if field.name not in table.schema.names]
        if not missing:
            return
        try:
            with lance_errors("adding columns"):
                table.dataset.add_columns(pa.schema(missing))
        except MemWalError:
            if attempt == FEW_TRIES:
                raise
