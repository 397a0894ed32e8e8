"""What Spark pushes down selects the rows that Spark would: a model of SQL's logic, and Lance, agree on every tree."""

from __future__ import annotations

import datetime
import operator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.filter import RowFilter
from lance_memwal.spark.face.predicates import exact_columns, filter_text

DAY = datetime.date(1970, 1, 1)
MOMENT = datetime.datetime(1970, 1, 1)
TEXTS = ["", "a", "A", "a'b", "ä", "\U0001f600", "a`b", "%", "\\", 'q"q', "b"]
SCHEMA = pa.schema(
    [
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("number", pa.int32()),
        ("big", pa.int64()),
        ("text", pa.string()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(10, 2)),
    ]
)
# Per column: values as Spark sends them, and as Python has them.
VALUES: dict[str, list[tuple[Any, Any]]] = {
    "flag": [(True, True), (False, False)],
    "tiny": [(v, v) for v in (-128, -1, 0, 127)],
    "small": [(v, v) for v in (-(2**15), 0, 5, 2**15 - 1)],
    "number": [(v, v) for v in (-(2**31), -1, 0, 7, 2**31 - 1)],
    "big": [(v, v) for v in (-(2**63), -1, 0, 2**53 + 1, 2**63 - 1)],
    "text": [(v, v) for v in TEXTS],
    "day": [(v, DAY + datetime.timedelta(days=v)) for v in (-719162, -1, 0, 20000)],
    "moment": [
        (v, MOMENT.replace(tzinfo=datetime.UTC) + datetime.timedelta(microseconds=v)) for v in (-1, 0, 1, 10**15 + 7)
    ],
    "local": [(v, MOMENT + datetime.timedelta(microseconds=v)) for v in (-1, 0, 1, 10**15 + 7)],
    "price": [(v, Decimal(v)) for v in ("-99999999.99", "-0.01", "0.00", "1.10", "99999999.99")],
}
ROWS = pa.table(
    {name: [([None, *(python for _, python in VALUES[name])] * 12)[i] for i in range(24)] for name in SCHEMA.names},
    schema=SCHEMA,
)
SIGNS = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def _byte_order(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def holds(tree: Any, row: dict[str, Any]) -> bool | None:
    """SQL's logic of three values."""
    name, *rest = tree
    if name in ("and", "or"):
        found = [holds(part, row) for part in rest]
        decides = name == "or"
        return decides if decides in found else None if None in found else not decides
    if name == "not":
        inner = holds(rest[0], row)
        return None if inner is None else not inner
    column, *values = rest
    mine = row[column]
    if name in ("is_null", "is_not_null"):
        return (mine is None) == (name == "is_null")
    given = [python for sent, python in VALUES[column] for value in values if value == sent]
    if name == "<=>":
        return mine is not None and mine == given[0]
    if mine is None:
        return None
    if name == "in":
        return mine in given
    return bool(SIGNS[name](_byte_order(mine), _byte_order(given[0])))


def _leaf(column: str) -> st.SearchStrategy[list[Any]]:
    value = st.sampled_from([sent for sent, _ in VALUES[column]])
    return st.one_of(
        st.tuples(st.sampled_from(["=", "<=>", "<", "<=", ">", ">="]), st.just(column), value).map(list),
        st.sampled_from([["is_null", column], ["is_not_null", column]]),
        st.lists(value, min_size=1, max_size=3).map(lambda values: ["in", column, *values]),
    )


LEAVES = st.sampled_from(SCHEMA.names).flatmap(_leaf)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), inner, inner).map(list), inner.map(lambda tree: ["not", tree])
    ),
    max_leaves=5,
)


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(TREES, min_size=1, max_size=2))
@example([["not", ["and", ["in", "flag", True], ["not", ["in", "flag", True]]]]])
@example([["not", ["and", ["in", "tiny", -1, 0], ["in", "tiny", 127, -128]]]])
def test_a_filter_selects_the_rows_for_which_the_trees_are_true(trees: list[Any]) -> None:
    text = filter_text(trees, SCHEMA)
    assert text is not None
    expected = [all(holds(tree, row) is True for tree in trees) for row in ROWS.to_pylist()]
    assert RowFilter(text, SCHEMA).mask(ROWS).tolist() == expected


def test_only_columns_that_are_compared_alike_are_exact() -> None:
    kinds = {
        "f": pa.float64(), "h": pa.float32(), "u": pa.uint32(), "b": pa.binary(), "ns": pa.timestamp("ns"),
        "l": pa.list_(pa.int32()), "s": pa.struct([("a", pa.int32())]), "id": pa.uuid(),
        "d": pa.dictionary(pa.int32(), pa.string()), "t": pa.time64("us"),
    }  # fmt: skip
    assert exact_columns(pa.schema(list(kinds.items()))) == []
    assert exact_columns(SCHEMA) == SCHEMA.names
    assert exact_columns(pa.schema([("Name", pa.string()), ("name", pa.string()), ("a.b", pa.int32())])) == []


def test_a_tree_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match="not known"):
        filter_text([["like", "text", "a"]], SCHEMA)
