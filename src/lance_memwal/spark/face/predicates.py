"""Predicates of Spark, as filters of Lance.

Owns the translation, and the rule which columns Lance compares exactly as Spark does. The JVM sends trees of what it was
asked; only comparisons of such columns with values of their own type come here. Invariants:

1. A row passes the filter if and only if Spark's predicate is true for it, nulls included.
2. Types that the two compare differently are never in `exact_columns`: floats (NaN, negative zero), types that Spark sees in
   another form (unsigned numbers, UUIDs, JSON, dictionaries, other units of time), nested ones, binaries.
3. A name that Lance could take for another column (it ignores the case of names) is not in it either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.sql import Equals, In, IsNotNull, IsNull, Predicate, Range, demand_text

__all__ = ["exact_columns", "filter_text"]

_EXACT = frozenset({pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.date32()})
_COMPARED: dict[str, Callable[[Any], Predicate]] = {
    "=": Equals,
    "<": lambda value: Range(upper=value, upper_inclusive=False),
    "<=": lambda value: Range(upper=value),
    ">": lambda value: Range(lower=value, lower_inclusive=False),
    ">=": lambda value: Range(lower=value),
}


def exact_columns(schema: pa.Schema) -> list[str]:
    """The columns that Lance compares with a value as Spark does."""
    lower = Counter(name.lower() for name in schema.names)
    plain = [field for field in schema if field.name.isidentifier() and lower[field.name.lower()] == 1]
    return [field.name for field in plain if _is_exact(field.type)]


def _is_exact(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "us")
    return kind in _EXACT or (pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision)


def filter_text(trees: Sequence[Any], schema: pa.Schema) -> str | None:
    """The filter that is true where all of these trees are; None if there are none."""
    return " and ".join(_text(tree, schema) for tree in trees) or None


def _text(tree: Any, schema: pa.Schema) -> str:
    name, *rest = tree
    if name in ("and", "or"):
        return f"({f' {name} '.join(_text(part, schema) for part in rest)})"
    if name == "not":
        return f"(not {_text(rest[0], schema)})"
    column, *values = rest
    kind = schema.field(column).type
    return f"({_demanded(name, column, [_value(value, kind) for value in values], kind)})"


def _demanded(name: str, column: str, values: Sequence[Any], kind: pa.DataType) -> str:
    if name == "is_null":
        return demand_text(column, IsNull(), kind)
    if name == "is_not_null":
        return demand_text(column, IsNotNull(), kind)
    if name == "in":
        return demand_text(column, In(values), kind)
    (value,) = values
    if name == "<=>":  # never null, so that a NOT around it is right, too
        return f"{demand_text(column, IsNotNull(), kind)} and {demand_text(column, Equals(value), kind)}"
    if name in _COMPARED:
        return demand_text(column, _COMPARED[name](value), kind)
    raise InvalidInputError(f"a predicate that is not known was pushed down: {name}")


def _value(value: Any, kind: pa.DataType) -> Any:
    """A value as Spark keeps it: days, microseconds and numbers are what Arrow has, too; decimals are digits."""
    return Decimal(value) if pa.types.is_decimal(kind) else value
