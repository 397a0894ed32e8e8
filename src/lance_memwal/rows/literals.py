"""Values written into filter text: the only place that does it.

Owns `in_list`. Invariant: whatever the value, the text reads back as exactly that value and nothing else: numbers are
digits, binaries are hexadecimal digits, and a quote inside of a string or a name is doubled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from lance_memwal.errors import InvalidInputError

__all__ = ["in_list"]

_SMALLEST = -(1 << 63)


def in_list(column: str, values: pa.Array) -> str:
    """SQL for "`column` has one of `values`" (without nulls), in the dialect of Lance's filters."""
    encode = _encoder(values.type)
    listed = ", ".join(encode(value) for value in values.unique().to_pylist())
    return f"{_name(column)} in ({listed})"


def _name(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def _integer(value: int) -> str:
    """The smallest 64-bit number has no literal: the minus sign is read after the digits, which are too large."""
    return str(value) if value > _SMALLEST else f"{_SMALLEST + 1} - 1"


def _encoder(kind: pa.DataType) -> Callable[[Any], str]:
    types = pa.types
    if types.is_integer(kind):
        return _integer
    if types.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if types.is_string(kind) or types.is_large_string(kind):
        return lambda value: "'" + str(value).replace("'", "''") + "'"
    if types.is_binary(kind) or types.is_large_binary(kind):
        return lambda value: "X'" + bytes(value).hex() + "'"
    raise InvalidInputError(f"a value of type {kind} cannot be written into a filter")
