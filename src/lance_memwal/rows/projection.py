"""Columns of an answer: columns of the table, or fields inside of their structs (`meta.a`).

Owns what such a path means. Invariants:

1. A column of the answer is named as it was asked for, as Lance does it; names of a table's columns have no dots.
2. A field is null wherever a struct around it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.arguments import check_column, check_names
from lance_memwal.errors import InvalidInputError


def checked_paths(columns: Sequence[str] | None, table: pa.Schema) -> tuple[str, ...]:
    """The columns and fields that a reader asked for (None: all columns); `InvalidInputError` if the table lacks one."""
    if columns is None:
        return tuple(table.names)
    paths = check_names("columns", columns)
    for path in paths:
        field_at(path, table)
    if len(set(paths)) != len(paths):
        raise InvalidInputError("columns must not repeat")
    return paths


def check_free(name: str, columns: Sequence[str]) -> None:
    """Return only if an answer of these columns can have another one of this name."""
    if name in columns:
        raise InvalidInputError(
            f"the answer has a column {name!r} of its own: name the columns to read without that one"
        )


def root_of(path: str) -> str:
    """The table's column that holds a field."""
    return path.partition(".")[0]


def roots_of(paths: Iterable[str]) -> tuple[str, ...]:
    """The table's columns that hold these fields, each once."""
    return tuple(dict.fromkeys(map(root_of, paths)))


def field_at(path: str, table: pa.Schema) -> pa.Field:
    """The field that a column of the answer is, under the name that was asked for."""
    root, *inner = path.split(".")
    check_column(root, table.names)
    field = table.field(root)
    nullable = field.nullable
    for name in inner:
        kind = field.type
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            known = ", ".join(child.name for child in kind) if pa.types.is_struct(kind) else "none: it is no struct"
            raise InvalidInputError(f"{path!r}: there is no field {name!r} in {field.name!r}; its fields: {known}")
        field = kind.field(name)
        nullable = nullable or field.nullable
    return field if not inner else pa.field(path, field.type, nullable, field.metadata)


def column_at(path: str, rows: pa.Table | pa.RecordBatch) -> pa.Array | pa.ChunkedArray:
    """The values of a column of the answer, from rows that have it under its name or have the column that holds it."""
    if rows.schema.get_field_index(path) >= 0:
        return rows.column(path)
    root, *inner = path.split(".")
    return pc.struct_field(rows.column(root), inner)


def value_at(path: str, columns: Mapping[str, pa.Array] | pa.Table, row: int) -> Any:
    """One value of a column of the answer, as Python has it; `columns` are those of the table, by name."""
    if "." not in path:
        return columns[path][row].as_py()
    root, *inner = path.split(".")
    value = columns[root][row]
    for name in inner:
        if not value.is_valid:
            return None
        value = value[name]
    return value.as_py()
