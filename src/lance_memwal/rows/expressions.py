"""What a pyarrow expression says: what it demands of columns, and what it would be in SQL.

Owns `demands_of` and `with_sql_nulls`. An expression is read from its serialized form, which names calls, fields and
literals one by one: its text is for people. Invariants:

1. Every row for which the expression is true satisfies every demand that is found: a part may be missed, none is
   invented. What is not certainly understood (casts, arithmetic, other functions, a null among the values) gives none.
2. The values of a demand have the type of their column, unchanged; one that the column cannot hold gives no demand.
3. Only integers, booleans, texts, dates and timestamps give any: Lance and pyarrow compare them alike. They differ on NaN
   and on -0.0.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.sql import Equals, In, IsNotNull, IsNull, Predicate, Range

__all__ = ["demands_of", "with_sql_nulls"]

_LINE = re.compile(r"^(call|end|field_ref|nested_field_ref|literal|options): '(.*)'$")
_AND = frozenset({"and", "and_kleene"})
_OR = frozenset({"or", "or_kleene"})
_FLIPPED = {
    "equal": "equal",
    "less": "greater",
    "greater": "less",
    "less_equal": "greater_equal",
    "greater_equal": "less_equal",
}


@dataclass(frozen=True, slots=True)
class _Field:
    name: str


@dataclass(frozen=True, slots=True)
class _Literal:
    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class _Call:
    """A function of other nodes; `options` is a struct, or None."""

    function: str
    arguments: tuple[_Node, ...]
    options: pa.Scalar | None


_Node = _Field | _Literal | _Call
Demand = tuple[str, Predicate]


def demands_of(expression: pc.Expression, schema: pa.Schema) -> list[Demand]:
    """The columns of `schema` of which the expression demands something, and what; values are scalars of their types."""
    if any("\n" in name for name in schema.names):
        return []  # the lines below would not be what they seem
    node = _read(expression)
    return [] if node is None else list(_demands(node, schema))


# ----------------------------------------------------------------------------------------------- the serialized form


def _read(expression: pc.Expression) -> _Node | None:
    """The tree of an expression; None if it has something in it that we do not know."""
    try:
        batch = pa.ipc.open_file(expression.__reduce__()[1][0]).get_batch(0)
        return _tree(iter(_lines(batch.schema)), batch)
    except (pa.ArrowException, NotImplementedError, ValueError, IndexError, StopIteration):
        return None


def _lines(schema: pa.Schema) -> list[tuple[str, str]]:
    """The metadata in order: as a dictionary, pyarrow leaves repeated names out."""
    text = schema.to_string(truncate_metadata=False, show_field_metadata=False)
    found = [_LINE.match(line) for line in text.partition("-- schema metadata --\n")[2].splitlines()]
    if not all(found):
        raise ValueError("an unknown part")
    return [(line.group(1), line.group(2)) for line in found if line is not None]


def _tree(lines: Iterator[tuple[str, str]], batch: pa.RecordBatch) -> _Node:
    """(call equal)(field_ref id)(literal 0)(end equal) is id = the value of column 0."""
    open_calls: list[tuple[str, list[_Node], list[pa.Scalar]]] = [("", [], [])]
    for kind, text in lines:
        _, arguments, options = open_calls[-1]
        if kind == "call":
            open_calls.append((text, [], []))
        elif kind == "field_ref":
            arguments.append(_Field(text))
        elif kind == "literal":
            arguments.append(_Literal(batch.column(int(text))[0]))
        elif kind == "options":
            options.append(batch.column(int(text))[0])
        elif kind == "end" and open_calls[-1][0] == text:
            open_calls.pop()
            open_calls[-1][1].append(_Call(text, tuple(arguments), options[0] if options else None))
        else:
            raise ValueError(f"an unknown part: {kind}")
    (root,) = open_calls[-1][1]
    return root


# -------------------------------------------------------------------------------------------------------- demands


def _demands(node: _Node, schema: pa.Schema) -> Iterator[Demand]:
    match node:
        case _Call(function, sides, _) if function in _AND:
            for side in sides:
                yield from _demands(side, schema)
        case _Call("if_else", (_, then, _Literal(otherwise)), _) if not otherwise.as_py():
            yield from _demands(then, schema)  # where the condition is not true, neither is the whole
        case _Call():
            found = _demand(node, schema)
            if found is not None:
                yield found


def _demand(node: _Call, schema: pa.Schema) -> Demand | None:
    match node:
        case _Call("is_valid", (_Field(name),), _):
            return _of_column(name, IsNotNull(), schema)
        case _Call("is_null", (_Field(name),), options) if _plain_nulls(options):
            return _of_column(name, IsNull(), schema)
        case _Call("invert", (_Call("is_null", (_Field(name),), options),), _) if _plain_nulls(options):
            return _of_column(name, IsNotNull(), schema)
        case _Call("is_in", (_Field(name),), options) if options is not None:
            return _among(name, list(options["value_set"].values), schema)
        case _Call(function, (left, right), _) if function in _OR:
            return _either(left, right, schema)
        case _Call(function, (_Field(name), _Literal(value)), _) if function in _FLIPPED:
            return _compared(function, name, value, schema)
        case _Call(function, (_Literal(value), _Field(name)), _) if function in _FLIPPED:
            return _compared(_FLIPPED[function], name, value, schema)
    return None


def _plain_nulls(options: pa.Scalar | None) -> bool:
    return options is None or options["nan_is_null"].as_py() is False


def _of_column(name: str, predicate: Predicate, schema: pa.Schema) -> Demand | None:
    return (name, predicate) if _family(name, schema) is not None else None


def _among(name: str, values: list[pa.Scalar], schema: pa.Schema) -> Demand | None:
    fitted = [_fitted(value, name, schema) for value in values]
    return None if None in fitted or not fitted else _of_column(name, In(tuple(fitted)), schema)


def _either(left: _Node, right: _Node, schema: pa.Schema) -> Demand | None:
    """`a = 1 or a = 2` is `a in (1, 2)`."""
    sides = [_demand(side, schema) if isinstance(side, _Call) else None for side in (left, right)]
    if sides[0] is None or sides[1] is None or sides[0][0] != sides[1][0]:
        return None
    listed = [_listed(side[1]) for side in sides if side is not None]
    return None if None in listed else (sides[0][0], In(tuple(value for values in listed for value in values or ())))


def _listed(predicate: Predicate) -> tuple[object, ...] | None:
    if isinstance(predicate, Equals):
        return (predicate.value,)
    return tuple(predicate.values) if isinstance(predicate, In) else None


def _compared(function: str, name: str, value: pa.Scalar, schema: pa.Schema) -> Demand | None:
    fitted = _fitted(value, name, schema)
    if fitted is None:
        return None
    predicates: dict[str, Predicate] = {
        "equal": Equals(fitted),
        "less": Range(upper=fitted, upper_inclusive=False),
        "less_equal": Range(upper=fitted),
        "greater": Range(lower=fitted, lower_inclusive=False),
        "greater_equal": Range(lower=fitted),
    }
    return _of_column(name, predicates[function], schema)


def _family(name: str, schema: pa.Schema) -> Callable[[pa.DataType], bool] | None:
    """What values are compared alike with those of the column; None if Lance or pyarrow has ways of its own."""
    if schema.names.count(name) != 1:
        return None
    kind, types = schema.field(name).type, pa.types
    families = (types.is_integer, types.is_boolean, _is_text, types.is_date32, types.is_timestamp)
    return next((family for family in families if family(kind)), None)


def _fitted(value: pa.Scalar, name: str, schema: pa.Schema) -> pa.Scalar | None:
    """The value as the column has it; None if it cannot hold it as it is, or compares it in another way."""
    family = _family(name, schema)
    if family is None or not value.is_valid or not family(value.type):
        return None
    kind = schema.field(name).type
    if pa.types.is_timestamp(kind) and (kind.tz is None) != (value.type.tz is None):
        return None
    try:
        return value.cast(kind)
    except pa.ArrowException:
        return None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


# ------------------------------------------------------------------------------------------------------ IN as in SQL


def with_sql_nulls(expression: pc.Expression) -> pc.Expression:
    """The expression with the IN of SQL: a null is neither in a list nor not in it. pyarrow takes it for not in it.

    `InvalidInputError` if that cannot be told in what surrounds the list.
    """
    if "is_in(" not in str(expression):
        return expression
    node = _read(expression)
    if node is None:
        raise _untold()
    return _rebuilt(node)


def _untold() -> InvalidInputError:
    return InvalidInputError("a list of values cannot stand inside of such an expression: compare with each value")


_COMPARED = {"equal": operator.eq, "not_equal": operator.ne, "less": operator.lt, "greater": operator.gt,
             "less_equal": operator.le, "greater_equal": operator.ge}  # fmt: skip


def _rebuilt(node: _Node) -> pc.Expression:
    if isinstance(node, _Field):
        return pc.field(node.name)
    if isinstance(node, _Literal):
        return pc.scalar(node.value)
    arguments: list[Any] = [_rebuilt(argument) for argument in node.arguments]
    match node.function, arguments:
        case (("and" | "and_kleene"), [left, right]):
            return left & right
        case (("or" | "or_kleene"), [left, right]):
            return left | right
        case "invert", [one]:
            return ~one
        case "is_valid", [one]:
            return one.is_valid()
        case "is_null", [one] if _plain_nulls(node.options):
            return one.is_null()
        case "is_in", [one] if node.options is not None:
            found = one.isin(node.options["value_set"].values)
            return pc.if_else(one.is_valid(), found, pc.scalar(pa.scalar(None, pa.bool_())))
        case function, [left, right] if function in _COMPARED:
            return _COMPARED[function](left, right)
    raise _untold()
