"""Types, both ways: every value reaches the other side unchanged, or is refused by name."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as st

import lance_memwal as mw
from lance_memwal.spark.types import (
    arrow_schema_for,
    spark_arrow_schema,
    spark_type,
    struct_type,
    to_arrow_columns,
    to_spark_batch,
)
from tests.kit.spark_values import VALUES

NAMES = [str(kind) for kind, _, _ in VALUES]


@pytest.mark.parametrize(("kind", "expected", "value"), VALUES, ids=NAMES)
def test_a_table_type_has_a_spark_type_and_its_values_arrive_unchanged(
    kind: pa.DataType, expected: st.DataType, value: object
) -> None:
    assert spark_type(kind) == expected
    schema = pa.schema([("c", kind)])
    array = pa.array([value, None], kind if not pa.types.is_dictionary(kind) else kind.value_type)
    batch = pa.record_batch([array.dictionary_encode() if pa.types.is_dictionary(kind) else array], ["c"])
    wanted = spark_arrow_schema(struct_type(schema))
    converted = to_spark_batch(batch, wanted)
    assert converted.schema == wanted
    plain = converted.column(0).to_pylist()
    assert plain == [value, None]


@pytest.mark.parametrize(("kind", "expected", "value"), VALUES, ids=NAMES)
def test_values_that_spark_sends_back_fit_the_table(kind: pa.DataType, expected: st.DataType, value: object) -> None:
    from lance_memwal.rows.fit import Fitter
    from lance_memwal.rows.schema import TableSchema

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    wanted = spark_arrow_schema(st.StructType([st.StructField("c", expected)]))
    sent = to_spark_batch(pa.record_batch([pa.array([value, None], kind)], ["c"]), wanted)
    table = TableSchema.from_arrow(pa.schema([("c", kind)]))
    fitted = Fitter(table).fit_flagged(to_arrow_columns(sent, table.columns))
    assert fitted.column(0).type == kind
    assert fitted.column(0).to_pylist() == [value, None]


@pytest.mark.parametrize("kind", [pa.decimal256(50, 2), pa.month_day_nano_interval()])
def test_a_table_type_that_spark_lacks_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(mw.InvalidInputError, match=r"'odd'.*columns"):
        struct_type(pa.schema([("odd", kind)]))


@pytest.mark.parametrize("kind", [st.VariantType(), st.YearMonthIntervalType(), st.CalendarIntervalType()])
def test_a_spark_type_that_lance_lacks_is_refused_by_name(kind: st.DataType) -> None:
    with pytest.raises(mw.InvalidInputError, match="'odd'"):
        arrow_schema_for(st.StructType([st.StructField("odd", kind)]))


def test_nanoseconds_that_spark_would_lose_are_an_error() -> None:
    batch = pa.record_batch([pa.array([1], pa.timestamp("ns"))], ["t"])
    wanted = spark_arrow_schema(struct_type(batch.schema))
    with pytest.raises(mw.InvalidInputError, match="'t'"):
        to_spark_batch(batch, wanted)


def test_a_vector_of_the_wrong_length_is_refused_by_name() -> None:
    table = pa.schema([("v", pa.list_(pa.float32(), 3))])
    sent = pa.record_batch([pa.array([[1.0, 2.0]], pa.list_(pa.float32()))], ["v"])
    with pytest.raises(mw.InvalidInputError, match=r"'v'.*3"):
        to_arrow_columns(sent, table)


def test_a_new_table_can_be_made_from_the_schema_of_a_dataframe(uri: str) -> None:
    frame = st.StructType(
        [
            st.StructField("id", st.LongType(), nullable=False),
            st.StructField("at", st.TimestampType()),
            st.StructField("tags", st.ArrayType(st.StringType())),
            st.StructField("price", st.DecimalType(10, 2)),
        ]
    )
    table = mw.create_table(uri, arrow_schema_for(frame), primary_key="id")
    assert struct_type(table.schema).simpleString() == frame.simpleString()
