"""Conditions that a BTree index answers, on its one column.

Owns frozen values only. Invariants:

1. A null value matches nothing, as in SQL; only `IsNull` finds nulls.
2. A value that the column's type cannot hold is refused when the index is asked, not rounded or clamped
   (floats excepted: a value is rounded to the width of the column, as Lance does with literals).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Equals", "In", "IsNotNull", "IsNull", "Predicate", "Range"]


@dataclass(frozen=True, slots=True)
class Equals:
    """column = value."""

    value: object


@dataclass(frozen=True, slots=True)
class In:
    """column IN (values); nulls among the values match nothing."""

    values: Sequence[object]


@dataclass(frozen=True, slots=True)
class Range:
    """lower <(=) column <(=) upper; a bound of None is absent, a range without bounds is `IsNotNull`."""

    lower: object = None
    upper: object = None
    lower_inclusive: bool = True
    upper_inclusive: bool = True


@dataclass(frozen=True, slots=True)
class IsNull:
    """column IS NULL."""


@dataclass(frozen=True, slots=True)
class IsNotNull:
    """column IS NOT NULL."""


Predicate = Equals | In | Range | IsNull | IsNotNull
