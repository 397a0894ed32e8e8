"""What the engine knows of a table's columns.

Owns `TableSchema`. Invariants:

1. Field ids are all there or none is: the peer reads a column without an id as null when its neighbours have one.
2. Rows in memory and on storage have the table's columns in the table's order; non-key columns are nullable there, so
   that a tombstone can hold nulls; `_tombstone` is last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from lance.schema import LanceSchema

from lance_memwal.arguments import digits_of
from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.blobs import is_blob, is_prepared, is_second_layout, prepared_field, shown_field
from lance_memwal.rows.dictionaries import Place, small_dictionaries
from lance_memwal.rows.json_values import holds_json, logged
from lance_memwal.rows.key_encoding import check_primary_key, primary_key_columns
from lance_memwal.rows.one_key import KeyForm
from lance_memwal.rows.past_columns import Past
from lance_memwal.types import LANCE_COLUMNS, TOMBSTONE, TOMBSTONE_FIELD, BaseMark

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
    itself if there are none (`lance_memwal.rows.blobs`). `past` knows earlier columns of the base table, all of them
    also where this value has some of the columns only; None without a base table.
    """

    columns: pa.Schema
    primary_key: tuple[str, ...]
    field_ids: tuple[FieldId, ...] | None = None
    past: Past | None = field(default=None, compare=False, repr=False)
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
        return TableSchema(pa.schema(map(shown_field, self.columns)), self.primary_key, ids, self.past)

    def __reduce__(self) -> tuple[Any, ...]:
        # the rest follows from these
        return TableSchema, (self.columns, self.primary_key, self.field_ids, self.past)

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
    def from_lance(cls, schema: pa.Schema, lance_schema: Any, past: Past | None = None) -> TableSchema:
        """The schema of an existing base table, with the ids of its Lance schema."""
        return cls._checked(schema, tuple(FieldId.of(item) for item in lance_schema.fields()), past)

    @classmethod
    def _checked(cls, schema: pa.Schema, ids: tuple[FieldId, ...] | None, past: Past | None = None) -> TableSchema:
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
        return cls(schema.remove_metadata(), tuple(primary_key), ids, past)

    @property
    def base(self) -> BaseMark | None:
        """The base version whose columns these are; None without a base table."""
        return None if self.past is None else self.past.mark

    def is_like(self, other: TableSchema) -> bool:
        """Whether rows of `other` are rows of this table: equal columns, of which none was dropped and added again."""
        if self is other:
            return True
        return self == other and (self.past is None or other.past is None or self.past.reads_like(other.past))

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
        return self._only(self.primary_key)

    def narrowed(self, names: Collection[str]) -> TableSchema:
        """The table with these columns alone, in the order of the table; the key is among them."""
        return self._only([name for name in self.columns.names if name in names])

    def _only(self, names: Sequence[str]) -> TableSchema:
        ids = None if self.field_ids is None else tuple(self.field_ids[i] for i in map(self._place, names))
        return TableSchema(pa.schema([self.columns.field(name) for name in names]), self.primary_key, ids, self.past)

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


def named_ids(column: pa.Field) -> Iterator[tuple[int, str]]:
    """The field id and the name of a stored column, and of the struct fields inside it."""
    number = id_of(column)
    if number is not None:
        yield number, column.name
    if not is_prepared(column):
        yield from _named_ids_below(column.type)


def _named_ids_below(kind: pa.DataType) -> Iterator[tuple[int, str]]:
    if pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            yield from named_ids(kind.field(i))
    elif pa.types.is_map(kind):  # whose key and item are named by Arrow
        yield from _named_ids_below(kind.key_type)
        yield from _named_ids_below(kind.item_type)
    elif pa.types.is_nested(kind):
        yield from _named_ids_below(kind.field(0).type)


def with_field_ids(columns: pa.Schema, ids: Mapping[int, int]) -> pa.Schema:
    """`columns` with other field ids, at any depth; those that `ids` does not have stay."""
    return pa.schema([with_other_ids(column, ids) for column in columns], metadata=columns.metadata)


def with_other_ids(column: pa.Field, ids: Mapping[int, int]) -> pa.Field:
    """A stored column with other field ids, at any depth; those that `ids` does not have stay."""
    number = id_of(column)
    inner = _with_fields(column.type, lambda _, part: with_other_ids(part, ids))
    if number is None:
        return column.with_type(inner)
    metadata = {**column.metadata, FIELD_ID: str(ids.get(number, number)).encode()}
    return column.with_type(inner).with_metadata(metadata)


def _tag_children(kind: pa.DataType, ids: tuple[FieldId, ...]) -> pa.DataType:
    if not ids:
        return kind
    below = ids[0].children if pa.types.is_map(kind) else ids
    return _with_fields(kind, lambda at, part: tagged(part, below[at]))


def _with_fields(kind: pa.DataType, change: Callable[[int, pa.Field], pa.Field]) -> pa.DataType:
    """A type with other fields inside it: of a struct all, of a map key and item, of a list the element."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return kind
    if types.is_struct(kind):
        return pa.struct([change(i, kind.field(i)) for i in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(change(0, kind.key_field), change(1, kind.item_field), keys_sorted=kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(change(0, kind.field(0)), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(change(0, kind.field(0)))
    return pa.list_(change(0, kind.field(0))) if types.is_list(kind) else kind
