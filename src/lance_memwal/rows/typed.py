"""Values that a person typed: text becomes a value of a column's type.

Owns `typed_value` and `typed_key`. Invariant: what does not fit is an `InvalidInputError` that names the column, its type, and
how to write it.
"""

from __future__ import annotations

import datetime
import json
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.schema import TableSchema

__all__ = ["typed_key", "typed_value"]


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
