"""A table as a source of Polars: columns, filters and limits of a lazy frame reach the scan.

Owns `polars_source`. Invariants:

1. Polars itself evaluates every predicate, on the rows that come: its rules for NaN and null are not pyarrow's. A scan is
   only told what the predicate demands, which is true for every row that Polars keeps.
2. What is not certainly understood of a predicate is not told.
"""

from __future__ import annotations

import io
import json
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.engines.dataset import Readable, columns_of
from lance_memwal.errors import need
from lance_memwal.read.tiers import Consistency
from lance_memwal.rows.normal_form import no_rows

_SIGNS: Mapping[str, Callable[[Any, Any], pc.Expression]] = {
    "Eq": operator.eq, "Lt": operator.lt, "LtEq": operator.le, "Gt": operator.gt, "GtEq": operator.ge,
}  # fmt: skip
_FLIPPED = {"Eq": "Eq", "Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
_CLOSED = {"Both": ("GtEq", "LtEq"), "Left": ("GtEq", "Lt"), "Right": ("Gt", "LtEq"), "None": ("Gt", "Lt")}
_INTEGERS = frozenset(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))
_UNITS = {"Nanoseconds": "ns", "Microseconds": "us", "Milliseconds": "ms"}


def polars_source(table: Readable, consistency: Consistency) -> Any:
    """A lazy frame over the live rows; every time it is collected, it reads the newest state."""
    polars = need("polars", "polars", "a Polars frame")
    plugins = need("polars.io.plugins", "polars", "a Polars frame")

    def rows(columns: list[str] | None, predicate: Any, n_rows: int | None, batch_rows: int | None) -> Iterator[Any]:
        asked = None if columns is None or predicate is None else [*columns, *predicate.meta.root_names()]
        told = None if predicate is None else demanded(predicate.meta.serialize(format="json"), columns_of(table))
        limit = n_rows if predicate is None else None
        named = columns if asked is None else list(dict.fromkeys(asked))
        left = n_rows
        for batch in table.scan(named, told, limit, consistency=consistency):
            frame = polars.from_arrow(batch)
            frame = frame if predicate is None else frame.filter(predicate)
            frame = frame if columns is None else frame.select(columns)
            yield from (frame if left is None else frame.head(left)).iter_slices(batch_rows or max(frame.height, 1))
            left = None if left is None else left - frame.height
            if left is not None and left <= 0:
                return

    def schema() -> Any:
        return polars.from_arrow(no_rows(columns_of(table))).schema

    return plugins.register_io_source(rows, schema=schema, explain_name="lance-memwal")


# ------------------------------------------------------------------------------------------------------- predicates


def demanded(predicate: str, schema: pa.Schema) -> pc.Expression | None:
    """What a predicate of Polars, as JSON, demands of columns; None if nothing is certain."""
    return _demanded(json.loads(predicate), schema)


def _demanded(node: Any, schema: pa.Schema) -> pc.Expression | None:
    match node:
        case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
            sides = [side for side in (_demanded(left, schema), _demanded(right, schema)) if side is not None]
            return sides[0] & sides[1] if len(sides) == 2 else next(iter(sides), None)
        case {"BinaryExpr": {"left": left, "op": "Or", "right": right}}:
            first, second = _demanded(left, schema), _demanded(right, schema)
            return None if first is None or second is None else first | second
        case {"BinaryExpr": {"left": {"Column": name}, "op": sign, "right": {"Literal": value}}}:
            return _compared(name, sign, value, schema)
        case {"BinaryExpr": {"left": {"Literal": value}, "op": sign, "right": {"Column": name}}}:
            return _compared(name, _FLIPPED.get(sign, ""), value, schema)
        case {"Function": {"input": [{"Column": name}, *others], "function": {"Boolean": what}}}:
            return _of_function(name, what, [other.get("Literal") for other in others], schema)
    return None


def _compared(name: str, sign: str, literal: Any, schema: pa.Schema) -> pc.Expression | None:
    value = _value(literal, name, schema)
    return None if value is None or sign not in _SIGNS else _SIGNS[sign](pc.field(name), value)


def _of_function(name: str, what: Any, literals: list[Any], schema: pa.Schema) -> pc.Expression | None:
    match what, literals:
        case "IsNotNull", []:
            return pc.field(name).is_valid() if _is_compared(name, schema) else None
        case {"IsBetween": {"closed": closed}}, [lower, upper] if closed in _CLOSED:
            low, high = (
                _compared(name, sign, one, schema) for sign, one in zip(_CLOSED[closed], (lower, upper), strict=True)
            )
            return None if low is None or high is None else low & high
        case {"IsIn": {"nulls_equal": False}}, [{"Scalar": {"List": stream}}]:
            return _among(name, stream, schema)
    return None


def _among(name: str, stream: list[int], schema: pa.Schema) -> pc.Expression | None:
    """`stream` is an Arrow stream with one column: the values."""
    values = pa.ipc.open_stream(io.BytesIO(bytes(stream))).read_all().column(0).combine_chunks()
    if not _is_compared(name, schema):
        return None
    try:
        return pc.field(name).isin(values.drop_null().cast(schema.field(name).type))
    except pa.ArrowException:
        return None


def _is_compared(name: str, schema: pa.Schema) -> bool:
    """Whether Polars and pyarrow compare values of the column alike."""
    types = pa.types
    alike = (
        types.is_integer,
        types.is_string,
        types.is_large_string,
        types.is_boolean,
        types.is_date32,
        types.is_timestamp,
    )
    return name in schema.names and any(is_alike(schema.field(name).type) for is_alike in alike)


def _value(literal: Any, name: str, schema: pa.Schema) -> pa.Scalar | None:
    """A literal as a value of its column; None if it has another type."""
    if not _is_compared(name, schema):
        return None
    kind, types = schema.field(name).type, pa.types
    match literal:
        case {"Scalar": {"String": str(text)}} if types.is_string(kind) or types.is_large_string(kind):
            return pa.scalar(text, kind)
        case {"Scalar": {"Boolean": bool(flag)}} if types.is_boolean(kind):
            return pa.scalar(flag, kind)
        case {"Scalar": {"Date": int(days)}} if types.is_date32(kind):
            return pa.scalar(days, pa.int32()).cast(kind)
        case {"Scalar": {"Datetime": [int(count), unit, zone]}} if types.is_timestamp(kind):
            same = _UNITS.get(unit) == kind.unit and (zone is None) == (kind.tz is None)
            return pa.scalar(count, pa.int64()).cast(kind) if same else None
        case {"Scalar": dict(found)} if types.is_integer(kind):
            ((variant, number),) = found.items()
            return pa.scalar(number, kind) if variant in _INTEGERS and isinstance(number, int) else None
    return None
