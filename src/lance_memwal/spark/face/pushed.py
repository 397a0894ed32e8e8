"""What the JVM pushed down into one scan, and what it is told about the snapshot that was taken for it.

Owns the option `pushed` (JSON: `filters`, trees of predicates; `limit`; `count`) and the answer. Invariants:

1. The filter of a scan is the user's and the pushed one together.
2. A count is answered from metadata only where it is exact: no filter, and no row that a newer one may hide.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from lance_memwal.read.tiers import Tiers
from lance_memwal.spark.face.answers import answered
from lance_memwal.spark.face.predicates import filter_text
from lance_memwal.spark.options import Options
from lance_memwal.spark.pin import Pin, pin_table, rebuild
from lance_memwal.spark.source import fresh_rows
from lance_memwal.table import open_table

__all__ = ["planned", "with_pushed"]


def with_pushed(options: Options) -> Options:
    """The options with what was pushed down among them."""
    if options.pushed is None:
        return options
    told: dict[str, Any] = json.loads(options.pushed)
    pushed = filter_text(told["filters"], _columns(options)) if told["filters"] else None
    filters = [text for text in (options.filter, pushed) if text is not None]
    joined = filters[0] if len(filters) == 1 else " and ".join(f"({text}\n)" for text in filters)
    return replace(options, filter=joined or None, limit=told.get("limit"), count=told["count"])


def _columns(options: Options) -> pa.Schema:
    if options.as_of is not None:
        return pin_table(options).schema.columns
    return open_table(options.path, storage_options=options.storage_options).base.columns.shown.columns


def planned(options: Options, pin: Pin) -> StructType:
    """The schema that tells the JVM about the snapshot: rows before the filter, and the count where it is known."""
    snapshot = rebuild(options, pin)
    base_rows = snapshot.base.dataset.count_rows()
    above = sum(fresh_rows(view) for view in snapshot.shards)
    exact = options.filter is None and (not above or _counts_above(snapshot))
    return answered(
        {"rows": base_rows + above, "count": base_rows + above if exact else None, "filter": options.filter or ""}
    )


def _counts_above(snapshot: Tiers) -> bool:
    """Whether rows above the base table hide none, and all are counted."""
    listed = [sstable for view in snapshot.shards for sstable in view.sstables]
    return not snapshot.schema.primary_key and all(sstable.physical_rows is not None for sstable in listed)
