"""Which values a filter leaves a column."""

from __future__ import annotations

from collections.abc import Sequence

from lance_memwal.rows.sql import parse

__all__ = ["values_in_filter"]


def values_in_filter(sql: str, column: str, columns: Sequence[str]) -> list[object] | None:
    """The values that `column`, one of `columns`, can have where the filter is true; None if that is not certain."""
    return parse(sql).values(column, columns)
