"""Rows of a DataFrame on their way to a table: operation, columns, shard, duplicates.

Owns `WritePlan`, what the driver decided about a write, and the functions that tasks and commits run with it. Invariants:

1. Everything that the schema of the DataFrame can get wrong is refused on the driver, before a task starts.
2. A row goes to the shard that the table's sharding names, whatever partition it came from.
3. Of several rows with one key in one version the one with the largest `sequenceBy` wins; without it, duplicates are an
   error, since the order of rows inside a partition is not repeatable, unless the user says that it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st

from lance_memwal.arguments import check_column
from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.fit import Fitter, fills_missing
from lance_memwal.rows.ingest import refuse_missing
from lance_memwal.rows.keys import key_array, last_of_each
from lance_memwal.rows.merging import LastWrite, Merge
from lance_memwal.rows.schema import TableSchema
from lance_memwal.rows.sharding import Sharding
from lance_memwal.spark.options import Operation, Options
from lance_memwal.spark.types import arrow_type, to_arrow_columns
from lance_memwal.table import Table
from lance_memwal.types import TOMBSTONE

__all__ = ["OP", "SEQUENCE", "WritePlan", "newest_rows"]

OP = "_op"
SEQUENCE = "_memwal_sequence"
_DELETES = pa.array(["d"])
_KNOWN_OPS = pa.array(["u", "i", "d"])


@dataclass(frozen=True, slots=True)
class WritePlan:
    """How rows of one DataFrame become rows of one table; small, and sent to every task."""

    options: Options
    schema: TableSchema
    sharding: Sharding
    operation: Operation
    merge: Merge | None = None

    @classmethod
    def make(cls, table: Table, frame: st.StructType, options: Options) -> WritePlan:
        """The plan, or `InvalidInputError` saying what of the DataFrame does not fit the table."""
        key = table.primary_key
        operation = options.operation or ("upsert" if key else "append")
        if operation in ("upsert", "delete") and not key:
            raise InvalidInputError(
                f"operation {operation!r} needs a primary key, which the table has not; use 'append'"
            )
        if operation == "append" and key:
            raise InvalidInputError("operation 'append' would replace rows of a table with a primary key; use 'upsert'")
        sharding = table.sharding
        if not sharding.is_routed:
            raise InvalidInputError(
                "the table has manual shards, so that rows cannot be routed; use Table.shard_writer"
            )
        schema = table.base.columns
        plan = cls(options, schema, sharding, operation, table.merge)
        plan._check(frame)
        return plan

    @property
    def _needed_for_delete(self) -> list[str]:
        names, column = list(self.schema.primary_key), self.sharding.column
        if isinstance(self.merge, LastWrite):
            names.append(self.merge.sequence)
        return names if column is None or column in names else [*names, column]

    def _check(self, frame: st.StructType) -> None:
        names = set(frame.names)
        columns = self.schema.columns
        special = {OP, TOMBSTONE} | ({self.options.sequence_by} if self.options.sequence_by else set())
        if {OP, TOMBSTONE} <= names:
            raise InvalidInputError(f"columns {OP!r} and {TOMBSTONE!r} both say what is deleted: give one of them")
        if names & {OP, TOMBSTONE}:
            self.schema.need_key()
        if self.options.sequence_by and self.options.sequence_by not in names:
            raise InvalidInputError(
                f"option 'sequenceBy' names column {self.options.sequence_by!r}, which is not there"
            )
        needed = self._needed_for_delete if self.operation == "delete" else [f.name for f in columns if not f.nullable]
        missing = [name for name in needed if name not in names]
        if missing:
            raise InvalidInputError(f"column {missing[0]!r} is missing and must not be null")
        may_leave_out = self.operation == "delete" or names & {OP, TOMBSTONE}  # deletes need no more than the key
        if not may_leave_out and not fills_missing(self.options.missing, self.schema):
            absent = [name for name in columns.names if name not in names]
            if absent:
                raise refuse_missing(absent)
        for item in frame:
            if item.name in columns.names:
                arrow_type(item.dataType, repr(item.name))
            elif item.name not in special and self.operation != "delete":
                check_column(item.name, columns.names)

    # ------------------------------------------------------------------------------------------------------ in a task

    def split(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows by shard, as the table holds them, `_tombstone` (and the sequence, if one is used) behind."""
        fitter = Fitter(self.schema)
        for batch in batches:
            if batch.num_rows:
                yield from self.sharding.route(self._fit(fitter, batch), self.schema.columns)

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of one batch as the table holds them."""
        return self._fit(Fitter(self.schema), batch)

    def _fit(self, fitter: Fitter, batch: pa.RecordBatch) -> pa.RecordBatch:
        flags = self._flags(batch)
        sequence = batch.column(self.options.sequence_by) if self.options.sequence_by else None
        keep = self._needed_for_delete if self.operation == "delete" else self.schema.columns.names
        rows = batch.select([name for name in batch.schema.names if name in keep])
        rows = to_arrow_columns(rows, self.schema.columns)
        fitted = fitter.fit_flagged(
            rows.append_column(TOMBSTONE, flags), fill=fills_missing(self.options.missing, self.schema)
        )
        return fitted if sequence is None else fitted.append_column(SEQUENCE, sequence)

    def _flags(self, batch: pa.RecordBatch) -> pa.Array:
        if self.operation == "delete":
            return pa.repeat(True, batch.num_rows)
        if TOMBSTONE in batch.schema.names:
            return batch.column(TOMBSTONE).cast(pa.bool_()).fill_null(False)
        if OP not in batch.schema.names:
            return pa.repeat(False, batch.num_rows)
        ops = batch.column(OP).cast(pa.string()).fill_null("u")
        known = pc.is_in(ops, value_set=_KNOWN_OPS)
        if known.true_count < len(ops):
            raise InvalidInputError(
                f"column {OP!r} holds 'u' (or 'i') for rows that stay and 'd' for deletes, nothing else"
            )
        return pc.is_in(ops, value_set=_DELETES)


# ---------------------------------------------------------------------------------------------------------- at commit


def newest_rows(plan: WritePlan, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows of one shard and version with every key once; without a primary key all rows."""
    if not plan.schema.primary_key or not batches:
        return batches
    table = pa.Table.from_batches(batches)
    if plan.options.sequence_by:
        order = pc.sort_indices(table, sort_keys=[(SEQUENCE, "ascending")], null_placement="at_start")
        table = table.take(order).drop_columns([SEQUENCE])
    last = last_of_each(key_array([table.column(name) for name in plan.schema.primary_key]))
    if len(last) == table.num_rows and not plan.options.sequence_by:
        return batches
    if len(last) < table.num_rows and not plan.options.sequence_by and plan.options.duplicates == "error":
        raise InvalidInputError(
            f"{table.num_rows - len(last)} rows of this write repeat the key of another one, and nothing says which wins: "
            "give the option 'sequenceBy' (the largest wins), or 'duplicates=last' if the order of rows is repeatable"
        )
    newest: list[pa.RecordBatch] = table.take(pa.array(last)).to_batches()
    return newest
