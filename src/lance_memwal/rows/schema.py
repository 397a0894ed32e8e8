"""What the engine knows of a table's columns, and how input is made to fit them.

Owns `TableSchema` and `Reconciler`. Invariants:

1. Field ids are all there or none is: the peer reads a column without an id as null when its neighbours have one.
2. Rows in memory and on storage have the table's columns in the table's order; non-key columns are nullable there, so
   that a tombstone can hold nulls; `_tombstone` is last.
3. A reconciled batch has exactly the table's types, only values that replay accepts, no null in a key and none in a NOT
   NULL column, or it was refused with the column's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import pyarrow as pa
from lance.schema import LanceSchema

from lance_memwal.arguments import check_choice, check_names
from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.dictionaries import Place, small_dictionaries
from lance_memwal.rows.key_encoding import check_primary_key, primary_key_columns
from lance_memwal.rows.normal_form import is_always_normal, loose, normal, nulls
from lance_memwal.types import TOMBSTONE, TOMBSTONE_FIELD

__all__ = [
    "FIELD_ID",
    "FieldId",
    "Fitted",
    "Missing",
    "Reconciler",
    "TableSchema",
    "as_lance",
    "checked_columns",
    "fills_missing",
    "is_another_column",
    "may_cast",
    "nullable_except",
    "refuse_missing",
    "tagged",
    "tombstones",
    "validate_rows",
]

FIELD_ID = b"lance:field_id"
_RESERVED = frozenset(
    {TOMBSTONE, "_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"}
)


def as_lance(schema: pa.Schema) -> pa.Schema:
    """`schema` with the types in which Lance stores it; refused with the column's name where it knows none."""
    fields = []
    for column in schema:
        try:
            stored = LanceSchema.from_pyarrow(pa.schema([column])).to_pyarrow().field(0)
        except (ValueError, OSError, pa.ArrowException):
            raise InvalidInputError(f"column {column.name!r}: Lance does not store {column.type}") from None
        fields.append(column if _holds_json(column.type) else stored)
    return pa.schema(fields)


def _holds_json(kind: pa.DataType) -> bool:
    """Whether Lance shows the column as it is given, although it stores other bytes."""
    return isinstance(kind, pa.JsonType) or any(_holds_json(kind.field(i).type) for i in range(kind.num_fields))


def checked_columns(columns: Sequence[str] | None, table: pa.Schema) -> tuple[str, ...]:
    """The columns that a reader asked for (None: all); `InvalidInputError` if the table does not have them."""
    if columns is None:
        return tuple(table.names)
    names = check_names("columns", columns)
    for name in names:
        if name not in table.names:
            raise InvalidInputError(f"column {name!r} is not in the table; its columns: {', '.join(table.names)}")
    if len(set(names)) != len(names):
        raise InvalidInputError("columns must not repeat")
    return names


def is_another_column(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a stored column with the id of a table's column is another one all the same, which was dropped.

    Lance gives a column that is cast a new id, but while no data file knows a dropped column, the next one that is added
    gets its id. What may be another form of the same values (dictionaries, large offsets, nested types, of which a child may
    have been dropped) is not told apart this way.
    """
    return _family(stored) != _family(wanted)


def _family(kind: pa.DataType) -> pa.DataType | str:
    if isinstance(kind, pa.BaseExtensionType):
        return _family(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    if pa.types.is_nested(kind):
        return "nested"
    if pa.types.is_large_string(kind) or pa.types.is_string(kind):
        return "text"
    return "bytes" if pa.types.is_large_binary(kind) or pa.types.is_binary(kind) else kind


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

    `nullable` is what rows in memory look like, `memory` is that with `_tombstone`, `wal` is `memory` with field ids.
    `key_classes` are the Python types of the key's values, in key order.
    """

    columns: pa.Schema
    primary_key: tuple[str, ...]
    field_ids: tuple[FieldId, ...] | None = None
    nullable: pa.Schema = field(init=False, compare=False, repr=False)
    memory: pa.Schema = field(init=False, compare=False, repr=False)
    wal: pa.Schema = field(init=False, compare=False, repr=False)
    small_dictionaries: dict[Place, int] = field(init=False, compare=False, repr=False)
    key_classes: tuple[type, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        nullable = nullable_except(self.columns, self.primary_key)
        memory = nullable.append(TOMBSTONE_FIELD)
        object.__setattr__(self, "nullable", nullable)
        object.__setattr__(self, "memory", memory)
        object.__setattr__(self, "wal", self._with_field_ids(memory))
        object.__setattr__(self, "small_dictionaries", small_dictionaries(self.columns))
        key = (self.columns.field(name).type for name in self.primary_key)
        object.__setattr__(self, "key_classes", tuple(map(_python_class, key)))

    def _with_field_ids(self, memory: pa.Schema) -> pa.Schema:
        if self.field_ids is None:
            return memory
        with_ids = [tagged(column, ids) for column, ids in zip(memory, self.field_ids, strict=False)]
        return pa.schema([*with_ids, TOMBSTONE_FIELD])

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

    def ids_of(self, column: str) -> FieldId | None:
        """The ids of a column and of the fields inside it; None while the table has none."""
        return None if self.field_ids is None else self.field_ids[self.columns.get_field_index(column)]


def _python_class(key: pa.DataType) -> type:
    if pa.types.is_integer(key):
        return int
    if pa.types.is_boolean(key):
        return bool
    return str if pa.types.is_string(key) or pa.types.is_large_string(key) else bytes


def nullable_except(columns: pa.Schema, primary_key: Sequence[str]) -> pa.Schema:
    """`columns` with every non-key column nullable, as rows beside tombstones must be."""
    return pa.schema([column.with_nullable(column.name not in primary_key) for column in columns])


def tagged(column: pa.Field, ids: FieldId) -> pa.Field:
    """`column` with the ids of itself and of the fields inside it in the metadata, as entries carry them."""
    metadata = {**(column.metadata or {}), FIELD_ID: str(ids.id).encode()}
    return column.with_type(_tag_children(column.type, ids.children)).with_metadata(metadata)


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


# ------------------------------------------------------------------------------------------------- reconciliation


_Plan: TypeAlias = list[tuple[int, pa.DataType | None]]


class _Met(NamedTuple):
    """The schema of the last input, and what to do with such input: the plan (None: it fits) and what it leaves out."""

    schema: pa.Schema
    plan: _Plan | None
    absent: list[str]


class Fitted(list[pa.RecordBatch]):
    """Batches as a `Reconciler` of `schema` made them, for a writer with the same columns: it need not do so again."""

    __slots__ = ("schema",)

    def __init__(self, batches: Iterable[pa.RecordBatch], schema: TableSchema) -> None:
        super().__init__(batches)
        self.schema = schema


class Reconciler:
    """Makes input batches fit a table: by name, reordered, safely cast, null-filled. Zero copy where they fit already.

    Threads may share it: what it remembers is one value.
    """

    __slots__ = ("_fills", "_loose", "_met", "_not_null", "columns")

    def __init__(self, schema: TableSchema) -> None:
        self.columns = schema.columns
        self._not_null = [
            i for i, column in enumerate(schema.columns) if not column.nullable or column.name in schema.primary_key
        ]
        self._loose = [i for i, column in enumerate(schema.columns) if not is_always_normal(column.type)]
        self._fills = not schema.primary_key
        self._met = _Met(schema.columns, None, [])

    def fit(self, batch: pa.RecordBatch, *, fill: bool | None = None) -> pa.RecordBatch:
        """`batch` with exactly the table's columns, or `InvalidInputError` naming the column that does not fit.

        With `fill` columns that it leaves out are null; without they are refused. None: as the table has it.
        """
        validate_rows(batch)
        schema, met = batch.schema, self._met
        if not schema.equals(met.schema):
            plan = self._make_plan(schema)
            self._met = met = _Met(schema, plan, [] if plan is None else _left_out(schema, self.columns))
        if met.absent and not (self._fills if fill is None else fill):
            raise refuse_missing(met.absent)
        if met.plan is not None:
            batch = self._apply(batch, met.plan)
        if self._loose:
            batch = self._in_normal_form(batch)
        for index in self._not_null:
            if batch.column(index).null_count:
                name = self.columns.field(index).name
                raise InvalidInputError(f"column {name!r} must not be null (a key or NOT NULL column)")
        return batch

    def _in_normal_form(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = batch.columns
        for index in self._loose:
            try:
                arrays[index] = normal(arrays[index])
            except InvalidInputError as error:
                raise InvalidInputError(f"column {self.columns.field(index).name!r}: {error}") from None
        return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)

    def _make_plan(self, schema: pa.Schema) -> _Plan | None:
        """Per table column: the input's column (-1: fill with nulls) and the type to cast from, if any."""
        if schema.names == self.columns.names and schema.types == self.columns.types:
            return None
        self._refuse_unknown(schema.names)
        plan: _Plan = []
        for column in self.columns:
            index = schema.get_field_index(column.name)
            if index < 0 and not column.nullable:
                raise InvalidInputError(f"column {column.name!r} is missing and must not be null")
            source = schema.field(index).type if index >= 0 else None
            if source is not None and source != column.type and not may_cast(source, column.type):
                raise InvalidInputError(f"column {column.name!r} has type {source}, the table needs {column.type}")
            plan.append((index, source if source != column.type else None))
        return plan

    def _refuse_unknown(self, names: Iterable[str]) -> None:
        known = set(self.columns.names)
        seen: set[str] = set()
        for name in names:
            if name == TOMBSTONE:
                raise InvalidInputError(f"column {TOMBSTONE!r} is not for puts; use delete()")
            if name not in known:
                raise InvalidInputError(f"column {name!r} is not in the table; its columns: {', '.join(sorted(known))}")
            if name in seen:
                raise InvalidInputError(f"column {name!r} is there twice")
            seen.add(name)

    def _apply(self, batch: pa.RecordBatch, plan: _Plan) -> pa.RecordBatch:
        arrays = []
        for column, (index, cast_from) in zip(self.columns, plan, strict=True):
            if index < 0:
                arrays.append(nulls(batch.num_rows, column.type))
            elif cast_from is None:
                arrays.append(batch.column(index))
            else:
                arrays.append(_cast(batch.column(index), column))
        relaxed = pa.schema([column.with_nullable(True) for column in self.columns])
        return pa.RecordBatch.from_arrays(arrays, schema=relaxed)


def tombstones(keys: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    """The rows of tombstones of `keys`: nulls outside the key, in a form that can be read back."""
    arrays = [
        keys.column(column.name) if column.name in schema.primary_key else nulls(keys.num_rows, column.type)
        for column in schema.nullable
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.nullable)


Missing = Literal["error", "null", "keep"]


def fills_missing(missing: Missing | None, schema: TableSchema) -> bool:
    """Whether columns that a put leaves out become null; None: only where no row is replaced, on append-only tables."""
    if missing is None:
        return not schema.primary_key
    check_choice("missing", missing, ("error", "null", "keep"))
    if missing == "keep":
        raise InvalidInputError(
            "missing='keep' (leave what the row has) is not there yet; give whole rows, or missing='null'"
        )
    return missing == "null"


def refuse_missing(names: Sequence[str]) -> InvalidInputError:
    """The error of rows that leave columns out: on a table with a primary key a put replaces whole rows."""
    listed = ", ".join(repr(name) for name in names[:8]) + (", …" if len(names) > 8 else "")
    return InvalidInputError(
        f"left out: {listed}. A put replaces whole rows, and would erase what they have there: give every column, or pass "
        "missing='null' to make these null (partial updates will come with missing='keep')"
    )


def _left_out(given: pa.Schema | pa.DataType, wanted: pa.Schema | pa.DataType) -> list[str]:
    """The columns, and fields of structs at any depth, that `given` does not have; paths with dots."""
    if isinstance(wanted, pa.Schema) or pa.types.is_struct(wanted):
        if not isinstance(wanted, pa.Schema) and not pa.types.is_struct(given):
            return []
        found = []
        for field in wanted:
            at = given.get_field_index(field.name)
            if at < 0:
                found.append(field.name)
            else:
                found += [f"{field.name}.{path}" for path in _left_out(given.field(at).type, field.type)]
        return found
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return _left_out(given.item_type, wanted.item_type)
    return _left_out(given.value_type, wanted.value_type) if _is_list(given) and _is_list(wanted) else []


def validate_rows(batch: pa.RecordBatch) -> None:
    """Refuse what nobody could read back: an entry with it would make the shard impossible to open."""
    try:
        batch.validate(full=True)
    except (pa.ArrowException, ValueError):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.validate(full=True)
            except (pa.ArrowException, ValueError) as error:
                raise InvalidInputError(f"column {name!r} holds invalid values of type {column.type}") from error
        raise InvalidInputError("the batch is invalid, although each of its columns is sound") from None


def _cast(array: pa.Array, column: pa.Field) -> pa.Array:
    try:
        return normal(array.cast(loose(column.type), safe=True), column.type)
    except (pa.ArrowException, ValueError) as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        raise InvalidInputError(f"column {column.name!r} cannot be cast to {column.type}: {reason}") from None


def may_cast(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast keeps the meaning; the values are then checked by the safe cast itself."""
    types = pa.types
    if source == target or types.is_null(source):
        return True
    if types.is_dictionary(source):
        return may_cast(source.value_type, target)
    if types.is_dictionary(target):
        return may_cast(source, target.value_type)
    if _is_list(source) and _is_list(target):
        return may_cast(source.value_type, target.value_type)
    if types.is_struct(source) and types.is_struct(target):
        return _may_cast_struct(source, target)
    if types.is_map(source) and types.is_map(target):
        return may_cast(source.key_type, target.key_type) and may_cast(source.item_type, target.item_type)
    if types.is_decimal(target):  # a float would be rounded
        return bool(types.is_integer(source) or types.is_decimal(source))
    if types.is_date(source) and types.is_timestamp(target):
        return True
    families = (_is_number, _is_text, _is_binary, types.is_timestamp, types.is_date, types.is_time, types.is_duration)
    return any(family(source) and family(target) for family in families)


def _may_cast_struct(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether every field has its place: Arrow itself would drop the others and read missing ones as null."""
    given = {source.field(i).name: source.field(i) for i in range(source.num_fields)}
    wanted = [target.field(i) for i in range(target.num_fields)]
    if len(given) != source.num_fields or not given.keys() <= {field.name for field in wanted}:
        return False
    return all(
        may_cast(given[field.name].type, field.type) if field.name in given else field.nullable for field in wanted
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))
