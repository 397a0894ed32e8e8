"""Values that a person typed: text becomes a value of a column's type, a vector, a range, or the columns of a table.

Owns the readers of such texts, and `to_plain`, which makes JSON of values. Invariants:

1. What does not fit is an `InvalidInputError` that says how to write it, and of a value which column it is for.
2. In JSON NaN and infinities are null; bytes are base64, times are in ISO form; a dataclass is an object of its fields, an
   enum its name in lower case.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import json
import math
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lance_memwal.arguments import check_text, digits_of
from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.schema import TableSchema

_LONGEST_VECTOR = (1 << 31) - 1
_TYPES = {
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(),
    "uint8": pa.uint8(), "uint16": pa.uint16(), "uint32": pa.uint32(), "uint64": pa.uint64(),
    "float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64(), "bool": pa.bool_(),
    "string": pa.string(), "binary": pa.binary(), "date": pa.date32(), "timestamp": pa.timestamp("us"),
    "uuid": pa.uuid(), "json": pa.json_(),
}  # fmt: skip


def typed_key(schema: TableSchema, text: str) -> Any:
    """A key as typed: a value for a single key, a JSON array or object for a composite one."""
    names = schema.need_key()
    columns = [schema.columns.field(name) for name in names]
    if len(columns) == 1:
        return typed_value(text, columns[0])
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and set(value) == set(names):
        value = [value[name] for name in names]
    if not isinstance(value, list) or len(value) != len(columns):
        listed = ", ".join(names)
        raise InvalidInputError(f"the key has several columns ({listed}): give a JSON array or object of their values")
    return tuple(typed_value(item, column) for item, column in zip(value, columns, strict=True))


def typed_value(value: Any, column: pa.Field, what: str = "key column") -> Any:
    """A text as a value of the column's type; what JSON has types for is left to the table."""
    if not isinstance(value, str):
        return Decimal(str(value)) if pa.types.is_decimal(column.type) and isinstance(value, float) else value
    try:
        return _parsed(value, column.type)
    except (pa.ArrowException, ValueError):
        raise InvalidInputError(
            f"{what} {column.name!r} is {column.type}, and {value!r} is no such value{_hint(column.type)}"
        ) from None


def typed_vector(text: str) -> list[float]:
    """A vector: a JSON array of numbers."""
    try:
        value = json.loads(text)
        if isinstance(value, list) and all(type(item) in (int, float) for item in value):
            return [float(item) for item in value]
    except (ValueError, RecursionError, OverflowError):
        pass
    raise InvalidInputError("a vector is a JSON array of numbers, as in [0.1, 0.2]")


def typed_range(text: str) -> tuple[float | None, float | None]:
    """Two numbers with a colon between them; one that is left out is no bound."""
    try:
        lower, upper = [float(side) if side.strip() else None for side in text.split(":")]
    except ValueError:
        raise InvalidInputError("give two numbers, as in 0.5:2, :2 or 0.5:") from None
    return lower, upper


def typed_columns(text: str) -> pa.Schema:
    """The columns of a new table: name:type, separated by commas."""
    fields = []
    for part in text.split(","):
        name, _, kind = part.strip().partition(":")
        is_vector = kind.startswith("vector[") and kind.endswith("]")
        size = digits_of(kind[7:-1], most=_LONGEST_VECTOR) if is_vector else None
        if not name or (size is None and kind not in _TYPES):
            raise InvalidInputError(f"{part.strip()!r}: give name:type with type {', '.join(_TYPES)} or vector[n]")
        check_text("a column name", name)
        fields.append(pa.field(name, _TYPES[kind] if size is None else pa.list_(pa.float32(), size)))
    return pa.schema(fields)


def _parsed(text: str, kind: pa.DataType) -> Any:
    types = pa.types
    if isinstance(kind, pa.UuidType):
        return uuid.UUID(text)
    if types.is_fixed_size_binary(kind):
        raw = text.encode()
        return raw if len(raw) == kind.byte_width else _from_hexadecimal(text, kind.byte_width)
    if types.is_timestamp(kind):  # with an offset, or the time of day in UTC
        aware = datetime.datetime.fromisoformat(text).tzinfo is not None
        written = pa.scalar(text).cast(pa.timestamp(kind.unit, "UTC" if aware else None))
        return pa.scalar(written.value, kind)
    return pa.scalar(text).cast(kind).as_py()


def _from_hexadecimal(text: str, width: int) -> bytes:
    raw = bytes.fromhex(text.replace("-", ""))
    if len(raw) != width:
        raise ValueError(f"{len(raw)} bytes instead of {width}")
    return raw


def _hint(kind: pa.DataType) -> str:
    if pa.types.is_fixed_size_binary(kind):
        return f"; give {2 * kind.byte_width} hexadecimal digits"
    return "; give it as 2026-01-31T12:00:00, with or without an offset" if pa.types.is_timestamp(kind) else ""


def to_plain(value: Any) -> Any:
    """`value` as JSON can hold it: bytes in base64, times in ISO form, values as objects of what they were made of."""
    if value is None or isinstance(value, bool | int | str):
        return value.name.lower() if isinstance(value, enum.Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = [field.name for field in dataclasses.fields(value) if field.init]
        return {name: to_plain(getattr(value, name)) for name in given}
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [to_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    return str(value)
