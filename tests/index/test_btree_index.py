"""BTree index and index specs: every answer equals a scan, in every type, at every watermark."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import itertools
import math
from collections.abc import Callable
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index import (
    BTreeIndex,
    BTreeMemIndex,
    Equals,
    FtsIndex,
    HnswIndex,
    In,
    IndexSpec,
    IsNotNull,
    IsNull,
    MemIndex,
    Predicate,
    Range,
)
from tests.kit.writers import in_threads

NEGATIVE_NAN, OTHER_NAN = np.array([0xFFF8_0000_0000_0000, 0x7FF8_0001_0000_0000], np.uint64).view(np.float64).tolist()


def _floats(width: int) -> st.SearchStrategy[float]:
    special = st.sampled_from([0.0, -0.0, 1.5, math.nan, NEGATIVE_NAN, math.inf, -math.inf])
    return special | st.integers(-2000, 2000).map(lambda i: i / 8) | _any_float(width)


def _any_float(width: int) -> st.SearchStrategy[float]:
    return st.nothing() if width == 16 else st.floats(width=width, allow_nan=False)  # type: ignore[arg-type]


_DAY = st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1))
_MOMENT = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1))
_AMOUNT = st.decimals(-999, 999, places=2, allow_nan=False, allow_infinity=False)

COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 3) | st.integers(0, 2**64 - 1)),
    "float16": (pa.float16(), _floats(16)),
    "float32": (pa.float32(), _floats(32)),
    "float64": (pa.float64(), _floats(64)),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=3)),
    "large_string": (pa.large_string(), st.text("ab\u00e9\U0001f600", max_size=2)),
    "string_view": (pa.string_view(), st.text("ab", max_size=2)),
    "binary": (pa.binary(), st.binary(max_size=2)),
    "fixed_binary": (pa.binary(2), st.binary(min_size=2, max_size=2)),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", "c"])),
    "date32": (pa.date32(), _DAY),
    "date64": (pa.date64(), _DAY),
    "time64": (pa.time64("us"), st.times()),
    "timestamp": (pa.timestamp("us"), _MOMENT),
    "timestamp_utc": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(datetime.UTC))),
    "duration": (pa.duration("us"), st.timedeltas(datetime.timedelta(-9), datetime.timedelta(9))),
    "decimal": (pa.decimal128(7, 2), _AMOUNT),
}


def _key(value: Any) -> Any:
    """How Lance's filters order floats: -0.0 is 0.0, NaNs are beyond the infinity of their sign."""
    if isinstance(value, float):
        beyond = int(math.copysign(1, value)) if math.isnan(value) else 0
        return (beyond, 0.0 if math.isnan(value) else value + 0.0)
    return value


def _satisfies(value: Any, predicate: Predicate) -> bool:
    match predicate:
        case IsNull():
            return value is None
        case IsNotNull():
            return value is not None
        case Equals(wanted):
            return value is not None and wanted is not None and bool(_key(value) == _key(wanted))
        case In(wanted_values):
            return any(_satisfies(value, Equals(wanted)) for wanted in wanted_values)
        case Range(lower, upper, with_lower, with_upper):
            if value is None:
                return False
            above = lower is None or _key(value) > _key(lower) or (with_lower and _key(value) == _key(lower))
            below = upper is None or _key(value) < _key(upper) or (with_upper and _key(value) == _key(upper))
            return bool(above and below)


def _index(values: list[Any], data_type: pa.DataType, cuts: list[int], query_between: bool = False) -> BTreeMemIndex:
    index = BTreeIndex("x").build(pa.schema([("x", data_type)]))
    bounds = sorted({0, len(values), *(cut % (len(values) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(bounds):
        index.insert(pa.record_batch([pa.array(values[start:end], data_type)], names=["x"]), start)
        if query_between:
            index.positions(IsNull(), end)
    return index


def _predicates(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Predicate]:
    optional = st.none() | values
    return st.one_of(
        st.builds(Equals, optional),
        st.builds(In, st.lists(optional, max_size=5)),
        st.builds(Range, optional, optional, st.booleans(), st.booleans()),
        st.just(IsNull()),
        st.just(IsNotNull()),
    )


@pytest.mark.parametrize("column", COLUMNS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_index_answers_what_a_scan_answers(column: str, data: st.DataObject) -> None:
    data_type, values_of = COLUMNS[column]
    values = data.draw(st.lists(st.none() | values_of, max_size=40))
    cuts = data.draw(st.lists(st.integers(0, 40), max_size=8))
    n = data.draw(st.integers(0, len(values)))
    index = _index(values, data_type, cuts, query_between=data.draw(st.booleans()))
    present = st.sampled_from([value for value in values if value is not None] or [None])
    predicate = data.draw(_predicates(values_of | present))
    expected = [i for i, value in enumerate(values[:n]) if _satisfies(value, predicate)]
    assert index.positions(predicate, n).tolist() == expected


@pytest.mark.parametrize("column", COLUMNS)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_long_list_of_values_is_found_like_a_short_one(column: str, data: st.DataObject) -> None:
    data_type, values_of = COLUMNS[column]
    values = data.draw(st.lists(values_of, min_size=20, max_size=60))
    wanted = values[::2] + data.draw(st.lists(st.none() | values_of, min_size=10, max_size=20))
    expected = [i for i, value in enumerate(values) if _satisfies(value, In(wanted))]
    assert _index(values, data_type, [7]).positions(In(wanted), len(values)).tolist() == expected


@pytest.mark.parametrize("width", ["float", "double"])
def test_floats_compare_as_in_lance_filters(width: str) -> None:
    data_type = pa.float32() if width == "float" else pa.float64()
    values = [-0.0, 0.0, math.nan, math.inf, -math.inf, 1.5, None, 0.1, -1.0, NEGATIVE_NAN, OTHER_NAN]
    dataset = lance.write_dataset(
        pa.table({"i": range(len(values)), "x": pa.array(values, data_type)}), f"memory://btree-{width}"
    )
    index = _index(values, data_type, [4])
    same: list[tuple[str, Predicate]] = [
        ("x = 0.0", Equals(0.0)),
        ("x = -0.0", Equals(-0.0)),
        ("x < 0.0", Range(upper=0.0, upper_inclusive=False)),
        ("x <= 0.0", Range(upper=0.0)),
        ("x > 1.5", Range(lower=1.5, lower_inclusive=False)),
        ("x > cast('inf' as double)", Range(lower=math.inf, lower_inclusive=False)),
        ("x = cast('NaN' as double)", Equals(math.nan)),
        ("x > cast('NaN' as double)", Range(lower=math.nan, lower_inclusive=False)),
        ("x = 0.1", Equals(0.1)),
        ("x IN (0.0, 0.1)", In([0.0, 0.1])),
        ("x BETWEEN -1 AND 0.1", Range(-1.0, 0.1)),
        ("x IS NULL", IsNull()),
        ("x IS NOT NULL", IsNotNull()),
    ]
    for text, predicate in same:
        expected = dataset.to_table(columns=["i"], filter=text)["i"].to_pylist()
        assert index.positions(predicate, len(values)).tolist() == expected, text


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (pa.int64(), 1.5),
        (pa.int64(), pa.scalar(1.5)),
        (pa.int8(), 1000),
        (pa.uint8(), -1),
        (pa.int64(), "1"),
        (pa.string(), 1),
        (pa.binary(2), b"abc"),
        (pa.decimal128(4, 2), decimal.Decimal("1.234")),
    ],
)
def test_value_that_the_column_cannot_hold_is_refused(data_type: pa.DataType, value: object) -> None:
    index = _index([], data_type, [])
    for predicate in (Equals(value), In([value]), Range(lower=value), Range(upper=value)):
        with pytest.raises(InvalidInputError, match="'x'"):
            index.positions(predicate, 0)


def test_integral_float_and_arrow_scalar_are_taken_for_an_integer_column() -> None:
    index = _index([1, 2, 3], pa.int64(), [])
    assert index.positions(Equals(2.0), 3).tolist() == [1]
    assert index.positions(Equals(pa.scalar(2, pa.int8())), 3).tolist() == [1]


def test_replayed_batch_is_ignored_and_a_gap_is_refused() -> None:
    index = _index([1, 2, 3], pa.int64(), [])
    assert isinstance(index, MemIndex)
    batch = pa.record_batch({"x": [2, 3]})
    index.insert(batch, 1)
    assert index.indexed_rows == 3
    assert index.positions(Equals(2), 3).tolist() == [1]
    for start in (2, 4):
        with pytest.raises(InvalidInputError, match="expects row 3"):
            index.insert(batch, start)


def test_memory_grows_with_rows_also_before_they_are_indexed() -> None:
    few, many = _index(list(range(100)), pa.int64(), []), _index(list(range(10_000)), pa.int64(), [])
    for index in (few, many):
        index.catch_up()
    assert 100 * 16 <= few.size_bytes < 100 * 16 + 1000
    assert 10_000 * 16 <= many.size_bytes < 10_000 * 16 + 1000
    before = few.size_bytes
    for i in range(10):
        few.insert(pa.record_batch({"x": [i]}), 100 + i)
    assert few.size_bytes > before


def _concurrently(readers: list[Callable[[], None]], write: Callable[[], None]) -> None:

    def run(action: Callable[[], None]) -> None:
        action()

    in_threads(run, (*readers, write))


def test_readers_see_exactly_the_rows_below_their_watermark_while_a_writer_inserts() -> None:
    index = BTreeIndex("x").build(pa.schema([("x", pa.int64())]))
    total, batch = 6000, 20
    checked = [0]

    def write() -> None:
        for start in range(0, total, batch):
            index.insert(pa.record_batch({"x": np.arange(start, start + batch) % 7}), start)

    def read() -> None:
        while True:
            n = index.indexed_rows
            expected = np.flatnonzero(np.arange(n) % 7 == 3)
            assert np.array_equal(index.positions(Equals(3), n), expected)
            checked[0] += 1
            if n == total:
                return

    _concurrently([read, read, read], write)
    assert checked[0] >= 3


SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("vector", pa.list_(pa.float32(), 4)),
        ("double_vector", pa.list_(pa.float64(), 4)),
        ("int_vector", pa.list_(pa.int8(), 4)),
        ("point", pa.struct([("x", pa.float64())])),
    ]
)


@pytest.mark.parametrize(
    "spec",
    [
        BTreeIndex("id"),
        BTreeIndex("text", "by_text"),
        FtsIndex("text"),
        FtsIndex("tags", "by_tags", stem=False),
        HnswIndex("vector"),
        HnswIndex("double_vector", metric="cosine", m=4, ef_construction=10),
    ],
)
def test_index_is_built_empty_and_under_its_name(spec: IndexSpec) -> None:
    first, second = spec.build(SCHEMA), spec.build(SCHEMA)
    assert isinstance(first, MemIndex)
    assert first is not second
    assert (first.name, first.column) == (spec.name or f"{spec.column}_idx", spec.column)
    assert (first.indexed_rows, first.size_bytes) == (0, 0)


@pytest.mark.parametrize(
    "spec",
    [
        BTreeIndex("missing"),
        BTreeIndex("vector"),
        BTreeIndex("point"),
        FtsIndex("missing"),
        FtsIndex("id"),
        FtsIndex("text", base_tokenizer="nonsense"),
        FtsIndex("text", language="Klingon"),
        HnswIndex("missing"),
        HnswIndex("id"),
        HnswIndex("int_vector"),
        HnswIndex("vector", metric="hamming"),  # type: ignore[arg-type]
        HnswIndex("vector", m=1),
        HnswIndex("vector", ef_construction=0),
    ],
)
def test_spec_that_cannot_be_honoured_is_refused_by_validate_and_build(spec: IndexSpec) -> None:
    with pytest.raises(InvalidInputError):
        spec.validate(SCHEMA)
    with pytest.raises(InvalidInputError):
        spec.build(SCHEMA)


def test_spec_is_frozen_and_hashable_and_refuses_a_column_that_occurs_twice() -> None:
    spec = FtsIndex("text", custom_stop_words=["a", "b"])  # type: ignore[arg-type]
    assert hash(spec) == hash(dataclasses.replace(spec))
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.column = "other"  # type: ignore[misc]
    btree = BTreeIndex("id")
    assert (btree.lance_type, btree.lance_options()) == ("BTREE", {})
    with pytest.raises(InvalidInputError, match="twice"):
        btree.validate(pa.schema([("id", pa.int64()), ("id", pa.int64())]))


def test_mirror_of_a_lance_index_has_its_options_and_builds_the_same_index() -> None:
    table = pa.table({"text": ["the running dogs", "un été à la mer", "x" * 60]})
    options = {"language": "French", "stem": False, "custom_stop_words": ["dogs"], "max_token_length": 50}
    dataset = lance.write_dataset(table, "memory://spec-mirror")
    dataset.create_scalar_index("text", "INVERTED", name="base", with_position=True, **options)
    params = dataset.stats.index_stats("base")["indices"][0]["params"]
    spec = FtsIndex.from_lance("text", params, "base")
    assert spec.custom_stop_words == ("dogs",)
    assert spec.with_position
    dataset.create_scalar_index("text", spec.lance_type, name="again", replace=False, **spec.lance_options())
    assert dataset.stats.index_stats("again")["indices"][0]["params"] == params
    index = spec.build(table.schema)
    index.insert(table.to_batches()[0], 0)
    assert index.search("running", 3, None)[0].tolist() == [0]
    assert index.search("dogs", 3, None)[0].tolist() == []


def test_lance_index_without_a_mirror_is_refused() -> None:
    dataset = lance.write_dataset(pa.table({"text": ["a_b"]}), "memory://spec-code")
    dataset.create_scalar_index("text", "INVERTED", analyzer="code")
    params = dataset.stats.index_stats("text_idx")["indices"][0]["params"]
    with pytest.raises(InvalidInputError, match="code analyzer"):
        FtsIndex.from_lance("text", params)
    with pytest.raises(InvalidInputError, match="plain text"):
        FtsIndex.from_lance("text", {**params, "base_tokenizer": "simple", "lance_tokenizer": "json"})
