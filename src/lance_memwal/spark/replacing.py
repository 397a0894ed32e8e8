"""Overwriting a table: its rows go and new ones come, under one mark.

Owns the tombstones of an overwrite. Every key that is live when the write is committed gets one; a new row of its key wins over
it (`duplicates=live`). Rows and tombstones of a shard are one entry, so that a reader sees the old rows of a shard or the
new ones. What others write meanwhile stays. Without a primary key rows cannot go, and where a table decides which row of a
key wins (`merge=`) new rows could lose: both are refused.
"""

from __future__ import annotations

from dataclasses import replace

from lance_memwal.errors import InvalidInputError
from lance_memwal.spark.options import Options
from lance_memwal.spark.pieces import Pieces, write_pieces
from lance_memwal.spark.rows import WritePlan, needed_for_delete
from lance_memwal.table import Table, open_table


def overwriting(table: Table, options: Options) -> Options:
    """The options of a write that replaces all rows; `InvalidInputError` if the table does not take one."""
    if not table.primary_key and not table.count_rows():  # as after CREATE OR REPLACE TABLE: nothing has to go
        return options
    if not table.primary_key:
        raise InvalidInputError(
            "a table without a primary key is not overwritten, since its rows cannot go: append to it"
        )
    if table.merge is not None:
        raise InvalidInputError(
            "the table decides which row of a key wins (merge=), so that new rows may lose: delete rows, then write"
        )
    if options.sequence_by is not None or options.duplicates == "last" or options.operation == "delete":
        raise InvalidInputError(
            "an overwrite has every key once, and deletes the rest: leave out 'sequenceBy', 'duplicates' and 'operation'"
        )
    return replace(options, duplicates="live")


def all_gone(plan: WritePlan, job: str) -> Pieces:
    """A tombstone for every key that is live now."""
    if not plan.schema.primary_key:
        return Pieces()
    table = open_table(plan.options.path, storage_options=plan.options.storage_options)
    columns = needed_for_delete(plan.schema.primary_key, plan.sharding, plan.merge)
    return write_pieces(replace(plan, operation="delete"), job, table.scan(columns=columns).to_batches())
