"""The primary key of a table: how it is named, marked in Lance's schema, and taken back.

Owns the marks. Lance records a key as NOT NULL columns with metadata, in two commits, and never takes the metadata back by
itself. Invariants:

1. A key is marked only where the rows have it; a table that has one keeps it.
2. `unmark` leaves the columns as they were, with everything that others committed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from lance.dataset import LanceOperation

from lance_memwal.arguments import check_names, described
from lance_memwal.errors import ConflictError, InvalidInputError
from lance_memwal.lance.base import BaseTable, lance_errors
from lance_memwal.rows.key_encoding import check_primary_key, is_key_mark, key_marks
from lance_memwal.rows.keys import check_unique_keys
from lance_memwal.rows.schema import TableSchema, as_lance


def key_names(primary_key: str | Sequence[str]) -> tuple[str, ...]:
    """The columns of a key as a user names it."""
    if not isinstance(primary_key, str | list | tuple):
        raise InvalidInputError(f"primary_key is the name of a column or a list of names, not {described(primary_key)}")
    names = check_names("primary_key", [primary_key] if isinstance(primary_key, str) else primary_key)
    if not names or len(set(names)) != len(names):
        raise InvalidInputError(f"primary_key must name at least one column, each once: {list(names)}")
    return names


def keyed_schema(schema: pa.Schema, primary_key: str | Sequence[str] | None) -> pa.Schema:
    """`schema` with its primary key marked as Lance wants it; None keeps the marks that are there."""
    keyed = schema
    if primary_key is not None:
        names = key_names(primary_key)
        keyed = pa.schema([_marked(field, names) for field in schema], metadata=schema.metadata)
        check_primary_key(keyed, names)
    TableSchema.from_arrow(keyed)
    as_lance(keyed)
    return keyed


def _marked(field: pa.Field, names: Sequence[str]) -> pa.Field:
    metadata = {k: v for k, v in (field.metadata or {}).items() if not is_key_mark(k)}
    if field.name in names:
        field = field.with_nullable(False)
        metadata.update({k.encode(): v.encode() for k, v in key_marks(field.name, names).items()})
    return field.with_metadata(metadata or None)


def check_rows(base: BaseTable, names: Sequence[str]) -> None:
    """Return only if the rows of this version have these columns as their primary key."""

    def read() -> Iterable[pa.RecordBatch]:
        return base.handle().scanner(columns=list(names)).to_batches()

    with lance_errors("reading the keys of the base table"):
        check_unique_keys(read, names)


def mark(base: BaseTable, names: Sequence[str]) -> BaseTable:
    """The version that has this key, which the rows of `base` have; others may have committed rows before it."""
    marks: dict[str, Any] = {name: key_marks(name, names) for name in names}

    def commit(newest: BaseTable) -> None:
        nullable: list[Any] = [
            {"path": field.name, "nullable": False} for field in newest.schema if field.name in marks and field.nullable
        ]
        handle = newest.handle()
        handle.alter_columns(*nullable) if nullable else handle.update_field_metadata(marks)

    return base.commit_until("setting the primary key", commit, lambda newest: newest.primary_key == tuple(names))


def _field_ids(base: BaseTable) -> list[int]:
    return [number for field in base.columns.field_ids or () for number in field.in_order()]


def unmark(base: BaseTable, before: BaseTable) -> None:
    """Make the columns of the newest version those of `before` again."""

    def is_back(newest: BaseTable) -> bool:
        if newest.schema.equals(before.schema, check_metadata=True):
            return True
        if _field_ids(newest) != _field_ids(before):
            raise ConflictError(
                f"the columns of {base.location.describe()} changed while its key was set; the key columns are NOT NULL now"
            )
        return False

    project = LanceOperation.Project(before.dataset.lance_schema)
    base.refresh().commit_until("taking the primary key back", lambda newest: newest.commit(project), is_back)
