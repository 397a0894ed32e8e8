"""Types, both ways: every value reaches the other side unchanged, or is refused by name."""

from __future__ import annotations

import datetime
import decimal

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

DAY = datetime.datetime(2024, 2, 29, 12, 30, 1, 123456)
VALUES: list[tuple[pa.DataType, st.DataType, object]] = [
    (pa.bool_(), st.BooleanType(), True),
    (pa.int8(), st.ByteType(), -128),
    (pa.int16(), st.ShortType(), -32768),
    (pa.int32(), st.IntegerType(), -(2**31)),
    (pa.int64(), st.LongType(), -(2**63)),
    (pa.uint8(), st.ShortType(), 255),
    (pa.uint16(), st.IntegerType(), 65535),
    (pa.uint32(), st.LongType(), 2**32 - 1),
    (pa.uint64(), st.DecimalType(20, 0), 2**64 - 1),
    (pa.float16(), st.FloatType(), 0.5),
    (pa.float32(), st.FloatType(), 0.25),
    (pa.float64(), st.DoubleType(), 0.1),
    (pa.string(), st.StringType(), "é"),
    (pa.large_string(), st.StringType(), "é"),
    (pa.binary(), st.BinaryType(), b"\x00\xff"),
    (pa.large_binary(), st.BinaryType(), b"\x00\xff"),
    (pa.binary(3), st.BinaryType(), b"abc"),
    (pa.date32(), st.DateType(), DAY.date()),
    (pa.timestamp("us", tz="UTC"), st.TimestampType(), DAY.replace(tzinfo=datetime.UTC)),
    (pa.timestamp("ms", tz="UTC"), st.TimestampType(), DAY.replace(microsecond=123000, tzinfo=datetime.UTC)),
    (pa.timestamp("us"), st.TimestampNTZType(), DAY),
    (pa.time64("us"), st.TimeType(), DAY.time()),
    (pa.duration("ms"), st.DayTimeIntervalType(), datetime.timedelta(days=1, milliseconds=5)),
    (pa.decimal128(38, 10), st.DecimalType(38, 10), decimal.Decimal("1234567890.0123456789")),
    (pa.list_(pa.int32()), st.ArrayType(st.IntegerType()), [1, None, 3]),
    (pa.list_(pa.float32(), 2), st.ArrayType(st.FloatType()), [0.5, 1.5]),
    (pa.list_(pa.float16(), 2), st.ArrayType(st.FloatType()), [0.5, 1.5]),
    (pa.struct([("a", pa.uint8())]), st.StructType([st.StructField("a", st.ShortType())]), {"a": 200}),
    (pa.map_(pa.string(), pa.int32()), st.MapType(st.StringType(), st.IntegerType()), [("k", 1)]),
    (pa.dictionary(pa.int32(), pa.string()), st.StringType(), "word"),
]
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
    from lance_memwal.rows.schema import TableSchema
    from lance_memwal.write.once import RowFitter

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    wanted = spark_arrow_schema(st.StructType([st.StructField("c", expected)]))
    sent = to_spark_batch(pa.record_batch([pa.array([value, None], kind)], ["c"]), wanted)
    table = TableSchema.from_arrow(pa.schema([("c", kind)]))
    fitted = RowFitter(table).fit(to_arrow_columns(sent, table.columns))
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
