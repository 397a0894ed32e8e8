"""A value of every type that a table and Spark both have."""

from __future__ import annotations

import datetime
import decimal

import pyarrow as pa
from pyspark.sql import types as st

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
