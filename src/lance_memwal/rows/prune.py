"""Which shards a filter can match, from what it says of the shard column.

Owns `values_in_filter`: the values to which a filter pins a column. Invariant: it may miss a restriction, it never invents
one.
"""

from __future__ import annotations

from collections.abc import Sequence

from lance_memwal.rows.conjuncts import predicates
from lance_memwal.rows.predicate import Equals, In

__all__ = ["values_in_filter"]


def values_in_filter(sql: str, column: str, columns: Sequence[str]) -> list[object] | None:
    """The values that `column`, one of `columns`, can have where the filter is true; None if that is not certain."""
    for name, predicate in predicates(sql, columns):
        if name == column and isinstance(predicate, Equals | In):
            values = [predicate.value] if isinstance(predicate, Equals) else list(predicate.values)
            if all(isinstance(value, int | str) for value in values):
                return values
    return None
