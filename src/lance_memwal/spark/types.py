"""Types of a table as Spark has them, and back.

Owns the mapping. Invariants:

1. Every value of a table column that has a Spark type reaches Spark unchanged: unsigned integers become the next wider
   signed type, uint64 a decimal(20, 0), 16-bit floats a float, lists of any kind an array, large types their plain ones,
   JSON and UUIDs their texts.
2. Every Spark type that Lance can hold has an Arrow type; the others are refused with the column's name.
3. `to_spark_batch` returns exactly the Arrow schema that Spark checks: Spark looks at the first batch only, a later one
   with another schema would crash the JVM.
4. Values that would lose precision (nanoseconds) are an error, never cut off silently.
5. TIMESTAMP, TIMESTAMP_NTZ and DATE are never converted into each other. Spark converts them in the time zone of the session;
   tasks do not know it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from lance_memwal.arguments import check_column
from lance_memwal.errors import InvalidInputError, reason_of
from lance_memwal.rows.uuid_text import is_uuid_text, uuids_as_texts, uuids_of_texts

_SIMPLE: dict[pa.DataType, st.DataType] = {
    pa.bool_(): st.BooleanType(),
    pa.int8(): st.ByteType(),
    pa.int16(): st.ShortType(),
    pa.int32(): st.IntegerType(),
    pa.int64(): st.LongType(),
    pa.uint8(): st.ShortType(),
    pa.uint16(): st.IntegerType(),
    pa.uint32(): st.LongType(),
    pa.uint64(): st.DecimalType(20, 0),
    pa.float16(): st.FloatType(),
    pa.float32(): st.FloatType(),
    pa.float64(): st.DoubleType(),
    pa.string(): st.StringType(),
    pa.large_string(): st.StringType(),
    pa.string_view(): st.StringType(),
    pa.binary(): st.BinaryType(),
    pa.large_binary(): st.BinaryType(),
    pa.binary_view(): st.BinaryType(),
    pa.date32(): st.DateType(),
    pa.date64(): st.DateType(),
    pa.null(): st.NullType(),
}
COMMENT = "comment"  # in the metadata of a Spark field, of an Arrow field, and in the configuration of a table
_COLLATIONS = "__COLLATIONS"  # in the metadata of a field, as Spark writes it in JSON
_MAX_DECIMAL_DIGITS = 38
_TO_ARROW: tuple[tuple[type[st.DataType], pa.DataType], ...] = (
    (st.BooleanType, pa.bool_()),
    (st.ByteType, pa.int8()),
    (st.ShortType, pa.int16()),
    (st.IntegerType, pa.int32()),
    (st.LongType, pa.int64()),
    (st.FloatType, pa.float32()),
    (st.DoubleType, pa.float64()),
    (st.StringType, pa.string()),
    (st.BinaryType, pa.binary()),
    (st.DateType, pa.date32()),
    (st.TimestampType, pa.timestamp("us", tz="UTC")),
    (st.TimestampNTZType, pa.timestamp("us")),
    (st.DayTimeIntervalType, pa.duration("us")),
    (st.TimeType, pa.time64("ns")),
)
_TIME_KINDS: dict[type[st.DataType], str] = {
    st.TimestampType: "TIMESTAMP",
    st.TimestampNTZType: "TIMESTAMP_NTZ",
    st.DateType: "DATE",
}


# ------------------------------------------------------------------------------------------------------ table to Spark


def spark_type(kind: pa.DataType, where: str = "a value") -> st.DataType:
    """The Spark type of a table type; `InvalidInputError` naming `where` if Spark has none."""
    simple = _SIMPLE.get(kind)
    if simple is not None:
        return simple
    types = pa.types
    if types.is_dictionary(kind):
        return spark_type(kind.value_type, where)
    if isinstance(kind, pa.UuidType | pa.JsonType):
        return st.StringType()
    if types.is_fixed_size_binary(kind):
        return st.BinaryType()
    if types.is_decimal128(kind) or (types.is_decimal(kind) and kind.precision <= _MAX_DECIMAL_DIGITS):
        if 0 <= kind.scale <= kind.precision:
            return st.DecimalType(kind.precision, kind.scale)
    elif types.is_timestamp(kind):
        return st.TimestampNTZType() if kind.tz is None else st.TimestampType()
    elif types.is_time(kind):
        return st.TimeType()
    elif types.is_duration(kind):
        return st.DayTimeIntervalType()
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return st.ArrayType(spark_type(kind.value_type, where), kind.value_field.nullable)
    elif types.is_map(kind):
        values = spark_type(kind.item_type, where)
        return st.MapType(spark_type(kind.key_type, where), values, kind.item_field.nullable)
    elif types.is_struct(kind) and not isinstance(kind, pa.BaseExtensionType):
        return st.StructType([_spark_field(kind.field(i), f"{where}.") for i in range(kind.num_fields)])
    raise InvalidInputError(
        f"column {where}: Spark has no type for {kind}; leave the column out with the option 'columns'"
    )


def struct_type(schema: pa.Schema, columns: Sequence[str] | None = None) -> st.StructType:
    """The Spark schema of a table, or of some of its columns."""
    names = schema.names if columns is None else list(columns)
    for name in names:
        check_column(name, schema.names)
    return st.StructType([_spark_field(schema.field(name)) for name in names])


def _spark_field(field: pa.Field, where: str = "") -> st.StructField:
    comment = (field.metadata or {}).get(COMMENT.encode())
    metadata = None if comment is None else {COMMENT: comment.decode(errors="replace")}
    name = f"{where}{field.name}" if where else repr(field.name)
    return st.StructField(field.name, spark_type(field.type, name), field.nullable, metadata)


def spark_arrow_schema(schema: st.StructType) -> pa.Schema:
    """The Arrow schema that Spark wants for rows of `schema`."""
    result: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return result


def to_spark_batch(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """`batch` with exactly the schema `wanted`: columns by name, values unchanged."""
    arrays = [_cast(batch.column(field.name), field) for field in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    if array.type == field.type:
        return array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if isinstance(array.type, pa.UuidType):
        return uuids_as_texts(array)
    if pa.types.is_float16(array.type) and pa.types.is_float32(field.type):
        return array.cast(pa.float32())
    try:
        return array.cast(field.type)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidInputError(
            f"column {field.name!r} of type {array.type} does not fit Spark's {field.type}: {reason_of(error)}"
        ) from None


# ------------------------------------------------------------------------------------------------------ Spark to table


def arrow_type(kind: st.DataType, where: str) -> pa.DataType:
    """The Arrow type in which a new table holds a Spark type; `InvalidInputError` naming `where` if there is none."""
    if isinstance(kind, st.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, st.ArrayType):
        return pa.list_(pa.field("item", arrow_type(kind.elementType, where), kind.containsNull))
    if isinstance(kind, st.MapType):
        key = pa.field("key", arrow_type(kind.keyType, where), nullable=False)
        return pa.map_(key, pa.field("value", arrow_type(kind.valueType, where), kind.valueContainsNull))
    if isinstance(kind, st.StructType):
        return pa.struct([_arrow_field(f, f"{where}.{f.name}") for f in kind])
    for spark_class, arrow in _TO_ARROW:
        if isinstance(kind, spark_class):
            return arrow
    raise InvalidInputError(f"column {where}: a table cannot hold Spark's {kind.simpleString()}; convert it first")


def refuse_time_casts(given: st.DataType, wanted: pa.DataType, where: str) -> None:
    """Return only if every time in a Spark value is of the kind that the table holds.

    Raises:
        InvalidInputError: Names the column or field, and both kinds.
    """
    wanted = wanted.value_type if pa.types.is_dictionary(wanted) else wanted
    kinds = _TIME_KINDS.get(type(given)), _time_kind(wanted)
    if None not in kinds and kinds[0] != kinds[1]:
        raise InvalidInputError(
            f"column {where} is a {kinds[0]}, and the table holds a {kinds[1]}: the result depends on the time zone of the "
            "session; cast it first"
        )
    for name, part, wanted_part in _common_parts(given, wanted):
        refuse_time_casts(part, wanted_part, f"{where}.{name}")


def _time_kind(kind: pa.DataType) -> str | None:
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP_NTZ" if kind.tz is None else "TIMESTAMP"
    return "DATE" if pa.types.is_date(kind) else None


def _common_parts(given: st.DataType, wanted: pa.DataType) -> list[tuple[str, st.DataType, pa.DataType]]:
    """The parts of two nested types, with their names."""
    if isinstance(given, st.StructType) and pa.types.is_struct(wanted):
        fields = {field.name: field.type for field in wanted}
        return [(field.name, field.dataType, fields[field.name]) for field in given if field.name in fields]
    if isinstance(given, st.MapType) and pa.types.is_map(wanted):
        return [("key", given.keyType, wanted.key_type), ("value", given.valueType, wanted.item_type)]
    is_list = pa.types.is_list(wanted) or pa.types.is_large_list(wanted) or pa.types.is_fixed_size_list(wanted)
    return [("element", given.elementType, wanted.value_type)] if isinstance(given, st.ArrayType) and is_list else []


def arrow_schema_for(schema: st.StructType) -> pa.Schema:
    """The Arrow schema with which `lance_memwal.create_table` makes a table for rows of a DataFrame."""
    for field in schema:
        if _COLLATIONS in field.json():
            raise InvalidInputError(
                f"column {field.name!r}: a table cannot keep a collation, and compares strings by their bytes; leave out COLLATE "
                "here, and use it in queries"
            )
    return pa.schema([_arrow_field(field, repr(field.name)) for field in schema])


def _arrow_field(field: st.StructField, where: str) -> pa.Field:
    comment = (field.metadata or {}).get(COMMENT)
    return pa.field(field.name, arrow_type(field.dataType, where), field.nullable, comment and {COMMENT: comment})


def to_arrow_columns(batch: pa.RecordBatch, table: pa.Schema) -> pa.RecordBatch:
    """A batch from Spark with the table's types where they need more than a plain cast (vectors, 16-bit floats, UUIDs)."""
    arrays, fields = [], []
    for field, array in zip(batch.schema, batch.columns, strict=True):
        wanted = table.field(field.name).type if field.name in table.names else array.type
        arrays.append(_to_table_type(array, wanted, field.name))
        fields.append(pa.field(field.name, arrays[-1].type, field.nullable))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _to_table_type(array: pa.Array, wanted: pa.DataType, name: str) -> Any:
    if pa.types.is_fixed_size_list(wanted) and pa.types.is_list(array.type):
        return _to_vectors(array, wanted, name)
    if pa.types.is_struct(wanted) and pa.types.is_struct(array.type) and array.type != wanted:
        return _cast(array, pa.field(name, wanted))
    if is_uuid_text(array.type, wanted):
        try:
            return uuids_of_texts(array)
        except InvalidInputError as error:
            raise InvalidInputError(f"column {name!r}: {error}") from None
    if pa.types.is_duration(wanted) or pa.types.is_time(wanted):
        return _cast(array, pa.field(name, wanted))
    return array


def _to_vectors(array: pa.Array, wanted: pa.DataType, name: str) -> pa.Array:
    """Lists as lists of one size; the error names the column and the size that does not fit."""
    lengths = array.value_lengths()
    wrong = pa.compute.any(pa.compute.not_equal(lengths, wanted.list_size)).as_py()
    if wrong:
        raise InvalidInputError(f"column {name!r} holds vectors of {wanted.list_size} values; a row has another number")
    if array.null_count == 0:
        values = array.flatten()
        return pa.FixedSizeListArray.from_arrays(values.cast(wanted.value_type), type=wanted)
    filled = [[None] * wanted.list_size if row is None else row for row in array.to_pylist()]
    flat = pa.array([value for row in filled for value in row], wanted.value_type)
    return pa.FixedSizeListArray.from_arrays(flat, type=wanted, mask=array.is_null())
