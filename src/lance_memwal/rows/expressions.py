"""Read pyarrow expressions: what they demand of columns, and the same condition as SQL.

Entry points: `demands_of` lists predicates that all matching rows satisfy, `sql_of` translates a whole expression,
`with_sql_nulls` gives lists of values the null rules of SQL. An expression is read from its serialized form, which names
calls, fields and literals one by one. Its `str` is for people.

1. All rows for which the expression is true satisfy all demands. Parts that are not supported (casts, arithmetic, other
   functions, a null among the values) give no demand, and the whole has no SQL then.
2. Demands and SQL depend only on the columns that the expression names. A table may have other columns of any type.
3. The values of a demand have the type of their column, unchanged. A value that the column cannot hold gives no demand.
4. Only integers, booleans, strings, dates and timestamps give demands. Lance and pyarrow compare other types differently,
   such as NaN and -0.0.
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
from lance_memwal.rows.sql import Equals, In, IsNotNull, IsNull, Predicate, Range, demand_text, parse

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
    node = _read(expression, schema)
    try:
        return [] if node is None else list(_demands(node, schema))
    except RecursionError:
        return []


def sql_of(expression: pc.Expression, schema: pa.Schema) -> str | None:
    """SQL that selects the same rows in Lance, or None if that is not certain."""
    node = _read(expression, schema)
    try:
        sql = None if node is None else _sql(node, schema)
    except RecursionError:
        return None
    return sql if sql is not None and parse(sql).fault is None else None


# ----------------------------------------------------------------------------------------------- the serialized form


def _read(expression: pc.Expression, schema: pa.Schema | None = None) -> _Node | None:
    """The tree of an expression over these columns, or None if a part of it is not supported."""
    if schema is not None and any("\n" in name for name in schema.names):
        return None  # the metadata has one line per part
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
        case _Call(function, (_, _), _) if function in _AND:
            for side in _joined(node, _AND):
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
        case _Call(function, (_, _), _) if function in _OR:
            return _either(_joined(node, _OR), schema)
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


def _either(sides: list[_Node], schema: pa.Schema) -> Demand | None:
    """`a = 1 or a = 2` is `a in (1, 2)`."""
    values: list[object] = []
    names = set()
    for side in sides:
        found = _demand(side, schema) if isinstance(side, _Call) else None
        listed = None if found is None else _listed(found[1])
        if found is None or listed is None:
            return None
        names.add(found[0])
        values += listed
    return (names.pop(), In(tuple(values))) if len(names) == 1 else None


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


# ------------------------------------------------------------------------------------------------------------ SQL


def _sql(node: _Node, schema: pa.Schema, *, negated: bool = False) -> str | None:
    """SQL that is true for the same rows; if `negated`, also null for the same rows."""
    match node:
        case _Call(function, (_, _), _) if function in _AND | _OR:
            found = None if negated else _demand(node, schema)
            if found is not None:  # a = 1 or a = 2
                return _condition(found, schema)
            sides = [_sql(side, schema, negated=negated) for side in _joined(node, _AND if function in _AND else _OR)]
            return None if None in sides else f" {function.partition('_')[0]} ".join(f"({side})" for side in sides)
        case _Call("invert", (inner,), _):
            return _not(_sql(inner, schema, negated=True))
        case _Call("not_equal", sides, options):
            return _not(_sql(_Call("equal", sides, options), schema))
        case _Call():
            found = _demand(node, schema)
            sql = None if found is None else _condition(found, schema)
            # In pyarrow a null is not in a list. In SQL that is null.
            return (
                f"{sql} and {_condition((found[0], IsNotNull()), schema)}"
                if found and negated and node.function == "is_in"
                else sql
            )
    return None


def _condition(demand: Demand, schema: pa.Schema) -> str:
    name, predicate = demand
    return demand_text(name, predicate, schema.field(name).type)


def _not(sql: str | None) -> str | None:
    return None if sql is None else f"not ({sql})"


def _joined(node: _Node, functions: frozenset[str]) -> list[_Node]:
    """The nodes that a chain of one operator joins: a and (b and c) has three."""
    parts, left = [], [node]
    while left:
        match left.pop():
            case _Call(function, (first, second), _) if function in functions:
                left += [second, first]
            case part:
                parts.append(part)
    return parts


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
    try:
        return _rebuilt(node)
    except RecursionError:
        raise _untold() from None


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
