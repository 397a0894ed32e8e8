"""What the engine knows of a table's columns.

Owns `TableSchema`. Invariants:

1. Field ids are all there or none is: the peer reads a column without an id as null when its neighbours have one.
2. Rows in memory and on storage have the table's columns in the table's order; non-key columns are nullable there, so
   that a tombstone can hold nulls; `_tombstone` is last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from lance.schema import LanceSchema

from lance_memwal.arguments import digits_of
from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.blobs import is_blob, is_second_layout, prepared_field, shown_field
from lance_memwal.rows.dictionaries import Place, small_dictionaries
from lance_memwal.rows.json_values import holds_json, logged
from lance_memwal.rows.key_encoding import check_primary_key, primary_key_columns
from lance_memwal.rows.one_key import KeyForm
from lance_memwal.types import LANCE_COLUMNS, TOMBSTONE, TOMBSTONE_FIELD

__all__ = [
    "FIELD_ID",
    "FieldId",
    "TableSchema",
    "as_lance",
    "id_of",
    "tagged",
]

FIELD_ID = b"lance:field_id"
_RESERVED = LANCE_COLUMNS | {TOMBSTONE}


def as_lance(schema: pa.Schema) -> pa.Schema:
    """`schema` with the types in which Lance stores it; refused with the column's name where it knows none."""
    fields = []
    for column in schema:
        try:
            stored = LanceSchema.from_pyarrow(pa.schema([column])).to_pyarrow().field(0)
        except (ValueError, OSError, pa.ArrowException):
            raise InvalidInputError(f"column {column.name!r}: Lance does not store {column.type}") from None
        fields.append(column if holds_json(column.type) else stored)  # which Lance shows as it is given
    return pa.schema(fields)


@dataclass(frozen=True, slots=True)
class FieldId:
    """The Lance id of a column and of its nested children."""

    id: int
    children: tuple[FieldId, ...] = ()

    @classmethod
    def of(cls, item: Any) -> FieldId:
        """The ids of a field of a Lance schema."""
        return cls(int(item.id()), tuple(cls.of(child) for child in item.children()))

    def in_order(self) -> Iterator[int]:
        """This id and those of all children, in pre-order."""
        yield self.id
        for child in self.children:
            yield from child.in_order()


@dataclass(frozen=True, slots=True)
class TableSchema:
    """Columns as the base table has them, its primary key in key order, and field ids where a base table exists.

    `nullable` is what rows in memory look like, `memory` is that with `_tombstone`, `with_ids` is `memory` with
    field ids, and `wal` is that as entries hold it.
    `key_form` says how one key that Python code gives becomes one of a memtable.

    `blobs` are the blob columns, whose values are bytes here. `shown` is the same table as readers see it, this value
    itself if there are none (`lance_memwal.rows.blobs`).
    """

    columns: pa.Schema
    primary_key: tuple[str, ...]
    field_ids: tuple[FieldId, ...] | None = None
    nullable: pa.Schema = field(init=False, compare=False, repr=False)
    memory: pa.Schema = field(init=False, compare=False, repr=False)
    with_ids: pa.Schema = field(init=False, compare=False, repr=False)
    wal: pa.Schema = field(init=False, compare=False, repr=False)
    small_dictionaries: dict[Place, int] = field(init=False, compare=False, repr=False)
    key_form: KeyForm = field(init=False, compare=False, repr=False)
    blobs: tuple[str, ...] = field(init=False, compare=False, repr=False)
    shown: TableSchema = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        nullable = pa.schema([column.with_nullable(column.name not in self.primary_key) for column in self.columns])
        memory = nullable.append(TOMBSTONE_FIELD)
        object.__setattr__(self, "nullable", nullable)
        object.__setattr__(self, "memory", memory)
        object.__setattr__(self, "with_ids", self._with_field_ids(memory))
        object.__setattr__(self, "wal", pa.schema(self._in_entries()))
        object.__setattr__(self, "small_dictionaries", small_dictionaries(self.columns))
        key = [self.columns.field(name).type for name in self.primary_key]
        object.__setattr__(self, "key_form", KeyForm.of(key))
        object.__setattr__(self, "blobs", tuple(column.name for column in self.columns if is_blob(column)))
        object.__setattr__(self, "shown", self._shown() if self.blobs else self)

    def _shown(self) -> TableSchema:
        names, ids = self.columns.names, self.field_ids
        if ids is not None:  # what is shown of a blob is no field of the table
            ids = tuple(FieldId(i.id) if name in self.blobs else i for name, i in zip(names, ids, strict=True))
        return TableSchema(pa.schema(map(shown_field, self.columns)), self.primary_key, ids)

    def __reduce__(self) -> tuple[Any, ...]:
        return TableSchema, (self.columns, self.primary_key, self.field_ids)  # the rest follows from these

    def _with_field_ids(self, memory: pa.Schema) -> pa.Schema:
        if self.field_ids is None:
            return memory
        with_ids = [tagged(column, ids) for column, ids in zip(memory, self.field_ids, strict=False)]
        return pa.schema([*with_ids, TOMBSTONE_FIELD])

    def _in_entries(self) -> Iterator[pa.Field]:
        """The columns as entries hold them."""
        for at, column in enumerate(self.with_ids):
            ids = None if self.field_ids is None or at == len(self.field_ids) else self.field_ids[at]
            yield _prepared(column, ids) if is_second_layout(column.type) else logged(column)

    @classmethod
    def from_arrow(cls, schema: pa.Schema) -> TableSchema:
        """The schema of a shard that has no base table yet: no field ids, columns are matched by name."""
        return cls._checked(schema, None)

    @classmethod
    def from_lance(cls, schema: pa.Schema, lance_schema: Any) -> TableSchema:
        """The schema of an existing base table, with the ids of its Lance schema."""
        return cls._checked(schema, tuple(FieldId.of(item) for item in lance_schema.fields()))

    @classmethod
    def _checked(cls, schema: pa.Schema, ids: tuple[FieldId, ...] | None) -> TableSchema:
        if len(set(schema.names)) != len(schema.names):
            raise InvalidInputError("column names must be unique")
        for name in schema.names:
            if name in _RESERVED:
                raise InvalidInputError(f"the column name {name!r} is reserved; rename that column")
            if not name or "." in name or "`" in name:
                raise InvalidInputError(f"Lance cannot read a column that is named {name!r}; rename that column")
        if len(schema) == 0:
            raise InvalidInputError("a table needs at least one column")
        primary_key = primary_key_columns(schema)
        check_primary_key(schema, primary_key)
        return cls(schema.remove_metadata(), tuple(primary_key), ids)

    def need_key(self) -> tuple[str, ...]:
        """The columns of the primary key; `InvalidInputError` if there is none."""
        if not self.primary_key:
            raise InvalidInputError(
                "the table has no primary key: its rows can be appended, not found or changed by key"
            )
        return self.primary_key

    @property
    def of_key(self) -> TableSchema:
        """The columns of the primary key alone, in key order; without one, of nothing."""
        ids = None if self.field_ids is None else tuple(self.field_ids[i] for i in map(self._place, self.primary_key))
        return TableSchema(pa.schema([self.columns.field(name) for name in self.primary_key]), self.primary_key, ids)

    def column_facts(self, name: str) -> tuple[pa.DataType, FieldId | None] | None:
        """The type and the field ids of a column, as far as they are known; None if there is no such column."""
        place = self.columns.get_field_index(name)
        if place < 0:
            return None
        return self.columns.field(place).type, None if self.field_ids is None else self.field_ids[place]

    def _place(self, column: str) -> int:
        place: int = self.columns.get_field_index(column)
        return place

    def ids_of(self, column: str) -> FieldId | None:
        """The ids of a column and of the fields inside it; None while the table has none."""
        return None if self.field_ids is None else self.field_ids[self._place(column)]


def _prepared(column: pa.Field, ids: FieldId | None) -> pa.Field:
    """A column of blobs of the second layout as entries hold it."""
    parts = () if ids is None else ids.children
    names = [part.name for part in column.type.storage_type]
    return prepared_field(column, {name: str(part.id).encode() for name, part in zip(names, parts, strict=False)})


def tagged(column: pa.Field, ids: FieldId) -> pa.Field:
    """`column` with the ids of itself and of the fields inside it in the metadata, as entries carry them."""
    metadata = {**(column.metadata or {}), FIELD_ID: str(ids.id).encode()}
    return column.with_type(_tag_children(column.type, ids.children)).with_metadata(metadata)


def id_of(field: pa.Field) -> int | None:
    """The field id that `tagged` put into the metadata; None if there is none."""
    return digits_of((field.metadata or {}).get(FIELD_ID, b""))


def _tag_children(kind: pa.DataType, ids: tuple[FieldId, ...]) -> pa.DataType:
    if not ids or isinstance(kind, pa.BaseExtensionType):
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([tagged(kind.field(i), child) for i, child in enumerate(ids)])
    if pa.types.is_map(kind):
        key, item = ids[0].children
        return pa.map_(tagged(kind.key_field, key), tagged(kind.item_field, item), keys_sorted=kind.keys_sorted)
    element = tagged(kind.field(0), ids[0])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(element, kind.list_size)
    return pa.large_list(element) if pa.types.is_large_list(kind) else pa.list_(element)
