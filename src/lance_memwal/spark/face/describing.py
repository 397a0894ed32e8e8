"""What the JVM must know about a table to plan with it.

Owns `described`: columns as Spark sees them, the key, what a tombstone needs, and which columns Lance compares exactly.
"""

from __future__ import annotations

import json
from typing import Any

from lance_memwal.rows.merging import FirstRow, text_of_merge
from lance_memwal.spark.face.predicates import exact_columns
from lance_memwal.spark.feed import feed_schema
from lance_memwal.spark.options import Options
from lance_memwal.spark.read_options import columns_of, resolved_options
from lance_memwal.spark.rows import needed_for_delete
from lance_memwal.spark.types import COMMENT, struct_type
from lance_memwal.table import Table, newest_base, open_table


def described(options: Options) -> dict[str, Any]:
    """The table that these options name, for the planner."""
    table = open_table(options.path, storage_options=options.storage_options)
    columns = columns_of(options)
    options = resolved_options(options)
    schema = feed_schema(columns, options.columns) if options.change_feed else struct_type(columns, options.columns)
    key = table.primary_key
    comment = newest_base(table).manifest.config(COMMENT)
    return {
        "schema": json.loads(schema.json()),
        "key": key,
        "for_delete": needed_for_delete(key, table.sharding, table.merge) if key else [],
        "unchanging": _unchanging(table),
        "exact": [] if options.change_feed else exact_columns(columns),
        "properties": {
            "primary_key": ",".join(key),
            "sharding": str(table.sharding),
            "merge": text_of_merge(table.merge),
            "location": table.uri,
            "provider": "memwal",
            **({} if comment is None else {COMMENT: comment}),
        },
    }


def _unchanging(table: Table) -> str:
    """Why UPDATE and MERGE are refused; empty if they are not."""
    if isinstance(table.merge, FirstRow):
        return "the first row of a key stays in this table (merge first-row): rows cannot be changed, only deleted"
    return ""
