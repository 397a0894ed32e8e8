"""Tables in Polars: `mw.polars.scan(uri)`.

Owns the name only; what Polars asks is answered in `engines.polars_source`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lance_memwal.engines.polars_source import polars_source
from lance_memwal.read.tiers import Consistency
from lance_memwal.table import Table, open_table

if TYPE_CHECKING:
    import polars

__all__ = ["scan"]


def scan(
    table: str | Table, *, storage_options: Mapping[str, str] | None = None, consistency: Consistency = "fresh"
) -> polars.LazyFrame:
    """A lazy frame over the live rows of a table, given as such or by its place; columns, filters and limits are pushed down.

    Every time it is collected, it reads the newest state.
    """
    opened = table if isinstance(table, Table) else open_table(table, storage_options=storage_options)
    frame: polars.LazyFrame = polars_source(opened, consistency)
    return frame
