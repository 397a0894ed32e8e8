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

_EXACT = frozenset({pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.date32()})
_COMPARED: dict[str, Callable[[Any], Predicate]] = {
    "=": Equals,
    "<=>": Equals,
    "<": lambda value: Range(upper=value, upper_inclusive=False),
    "<=": lambda value: Range(upper=value),
    ">": lambda value: Range(lower=value, lower_inclusive=False),
    ">=": lambda value: Range(lower=value),
}
_OPPOSITE = {"and": "or", "or": "and", "is_null": "is_not_null", "is_not_null": "is_null"}


def exact_columns(schema: pa.Schema) -> list[str]:
    """The columns that Lance compares with a value as Spark does."""
    lower = Counter(name.lower() for name in schema.names)
    plain = [field for field in schema if field.name.isidentifier() and lower[field.name.lower()] == 1]
    return [field.name for field in plain if is_exact(field.type)]


def is_exact(kind: pa.DataType) -> bool:
    """Whether Lance compares values of the type as Spark does."""
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "us")
    return kind in _EXACT or (pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision)


def filter_text(trees: Sequence[Any], schema: pa.Schema) -> str | None:
    """The filter that is true where all of these trees are; None if there are none."""
    return " and ".join(_text(tree, schema) for tree in trees) or None


def _text(tree: Any, schema: pa.Schema, *, negated: bool = False) -> str:
    """A tree, or with `negated` its negation, with every `not` around one comparison.

    Lance simplifies `x in (1) and x in (2)` to false, and `x not in (1) or x not in (2)` to true, also if `x` is null. Inside
    a `not`, the first selects rows that Spark does not select. With each `not` at a comparison, false and null select the
    same rows. A negated comparison names the nulls, because of the second.
    """
    name, *rest = tree
    if name in ("and", "or"):
        joined = _OPPOSITE[name] if negated else name
        return f"({f' {joined} '.join(_text(part, schema, negated=negated) for part in rest)})"
    if name == "not":
        return _text(rest[0], schema, negated=not negated)
    if negated and name in _OPPOSITE:
        name, negated = _OPPOSITE[name], False
    column, *sent = rest
    kind = schema.field(column).type
    values = [_value(value, kind) for value in sent]
    found, null, present = (demand_text(column, what, kind) for what in (_demand(name, values), IsNull(), IsNotNull()))
    if name == "<=>":  # never null
        return f"({null} or not ({found}))" if negated else f"({present} and {found})"
    return f"({present} and not ({found}))" if negated else f"({found})"


def _demand(name: str, values: Sequence[Any]) -> Predicate:
    if name == "is_null":
        return IsNull()
    if name == "is_not_null":
        return IsNotNull()
    if name == "in":
        return In(values)
    if name in _COMPARED:
        (value,) = values
        return _COMPARED[name](value)
    raise InvalidInputError(f"a predicate that is not known was pushed down: {name}")


def _value(value: Any, kind: pa.DataType) -> Any:
    """A value as Spark keeps it: days, microseconds and numbers are what Arrow has, too; decimals are digits."""
    return Decimal(value) if pa.types.is_decimal(kind) else value
