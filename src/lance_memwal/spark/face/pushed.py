"""What the JVM pushed down into one scan, and what it is told about the snapshot that was taken for it.

Owns the option `__pushed` (JSON: `filters`, trees of predicates; `limit`; `count`) and the answer. Invariants:

1. The filter of a scan is the user's and the pushed one together.
2. A count is answered without tasks only where it is exact: there is no filter, and either no row that a newer one may
   hide, or so few rows that their keys are looked at here.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from pyspark.sql.types import StructType

from lance_memwal.spark.face.answers import answered
from lance_memwal.spark.face.predicates import filter_text
from lance_memwal.spark.options import Options
from lance_memwal.spark.read_options import columns_of
from lance_memwal.spark.source import TableReader


def with_pushed(options: Options) -> Options:
    """The options with what was pushed down among them."""
    if options.pushed is None:
        return options
    told: dict[str, Any] = json.loads(options.pushed)
    pushed = filter_text(told["filters"], columns_of(options)) if told["filters"] else None
    filters = [text for text in (options.filter, pushed) if text is not None]
    joined = filters[0] if len(filters) == 1 else " and ".join(f"({text}\n)" for text in filters)
    return replace(options, filter=joined or None, limit=told.get("limit"), count=told["count"])


def planned(reader: TableReader) -> StructType:
    """The schema that tells the JVM about the snapshot: rows before the filter, and the count where it is known."""
    options, outline = reader.parts.options, reader.outline
    count = _count(reader) if options.count and options.filter is None else None
    return answered({"rows": outline.rows, "count": count, "filter": options.filter or ""})


def _count(reader: TableReader) -> int | None:
    """All rows, if metadata tell, or if one task would read them: then the planner counts without starting it."""
    outline, pin, parts = reader.outline, reader.parts.pin, reader.partitions()
    if not outline.fresh or (outline.exact and not pin.schema.primary_key):
        return outline.rows
    return sum(reader.parts.count(part.value) for part in parts) if len(parts) == 1 else None
