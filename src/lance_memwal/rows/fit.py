"""Input made rows of a table: by name, in its order and types, validated, tombstones flagged.

Owns `Fitter`, through which every write goes, and `Fitted`, what it made. Invariants:

1. Fitted rows have exactly the table's types, only values that replay accepts, no null in a key and none in a NOT NULL
   column, or they were refused with the column's name. Only a tombstone may leave a NOT NULL column out.
2. Rows are fitted, and their values validated, once: `Fitted` batches say which columns they fit.
3. Rows that fit are not copied. `_tombstone` comes last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.arguments import check_choice, check_column
from lance_memwal.errors import InvalidInputError, reason_of
from lance_memwal.rows.adapt import live_flags
from lance_memwal.rows.blobs import as_stored, check_inline, is_second_layout, same_blobs
from lance_memwal.rows.ingest import left_out, may_cast, refuse_missing, to_batches, with_rows
from lance_memwal.rows.json_values import holds_json, spelled
from lance_memwal.rows.layouts import plain
from lance_memwal.rows.normal_form import is_always_normal, loose, normal, nulls
from lance_memwal.rows.schema import TableSchema
from lance_memwal.rows.uuid_text import is_uuid_text, uuids_of_texts
from lance_memwal.rows.validity import validate
from lance_memwal.types import TOMBSTONE, TOMBSTONE_FIELD

_KEPT_FLAGS = 64
_KEPT_FLAGS_ROWS = 65_536
_Plan: TypeAlias = list[tuple[int, pa.DataType | None]]


class Fitted(list[pa.RecordBatch]):
    """Batches as a `Fitter` of `schema` made them, for a writer with the same columns: it need not do so again.

    `fills`: columns that the writer has beside these become null; otherwise the rows are refused.
    """

    __slots__ = ("fills", "schema")

    def __init__(self, batches: Iterable[pa.RecordBatch], schema: TableSchema, *, fills: bool = True) -> None:
        super().__init__(batches)
        self.schema = schema
        self.fills = fills


class _Met(NamedTuple):
    """The schema of the last input, and what to do with such input: the plan (None: it fits), what it leaves out, and
    which NOT NULL column is among that; `part` is the schema of what it gives, `as_given` whether it is so already, and
    `not_null` are the places and names of columns in it that must not be null."""

    schema: pa.Schema
    plan: _Plan | None
    absent: list[str]
    required: str | None
    part: pa.Schema | None = None
    as_given: bool = False
    not_null: tuple[tuple[int, str], ...] = ()


class Fitter:
    """Makes input fit the columns of `schema`: by name, reordered, safely cast, null-filled.

    Threads may share it: what it remembers of its input is one value.
    """

    __slots__ = ("_blobs", "_equal", "_fills", "_json", "_live", "_loose", "_met", "_not_null", "_relaxed", "schema")

    def __init__(self, schema: TableSchema) -> None:
        columns, key = schema.columns, schema.primary_key
        self.schema = self._equal = schema
        self._fills = not key
        self._live = LiveFlags()
        self._not_null = [i for i, column in enumerate(columns) if not column.nullable or column.name in key]
        self._loose = [i for i, column in enumerate(columns) if not is_always_normal(column.type)]
        self._json = [i for i, column in enumerate(columns) if holds_json(column.type)]
        self._blobs = [i for i, column in enumerate(columns) if is_second_layout(column.type)]
        self._relaxed = pa.schema([column.with_nullable(True) for column in columns])
        self._met = _Met(columns, None, [], None)

    def take(self, data: Any, missing: Missing | None) -> tuple[list[pa.RecordBatch], bool]:
        """`data` as batches with rows, and whether columns that they leave out become null."""
        if type(data) is Fitted:
            return data, data.fills
        fill = self._fills if missing is None else fills_missing(missing, self.schema)
        if type(data) is pa.RecordBatch and data.num_rows:
            return [data], fill
        return with_rows(to_batches(data, self.schema.columns, whole=not fill)), fill

    def fit_all(self, batches: list[pa.RecordBatch], fill: bool) -> list[pa.RecordBatch]:
        """Every batch as `fit` makes it; those that were fitted to the same columns before as they are."""
        if type(batches) is Fitted:
            if batches.schema is self._equal or self._is_equal(batches.schema):
                return batches
            batches = self._renamed(batches)
        return [self.fit(batch, fill) for batch in batches]

    def _renamed(self, fitted: Fitted) -> list[pa.RecordBatch]:
        """Rows that were fitted before columns got the names that they have here: by field id."""
        given, ours = fitted.schema, self.schema
        if given.field_ids is None or ours.field_ids is None:
            return fitted
        names = {ids.id: name for ids, name in zip(ours.field_ids, ours.columns.names, strict=True)}
        now = [names.get(ids.id, name) for ids, name in zip(given.field_ids, given.columns.names, strict=True)]
        return [batch.rename_columns(now) for batch in fitted]

    def _is_equal(self, schema: TableSchema) -> bool:
        """Whether these are the same columns; remembered, since the same object comes with every put."""
        if schema != self.schema:
            return False
        self._equal = schema
        return True

    def fit(
        self, batch: pa.RecordBatch, fill: bool | None = None, flags: pa.BooleanArray | None = None
    ) -> pa.RecordBatch:
        """`batch` with exactly the table's columns, or `InvalidInputError` naming the column that does not fit.

        With `fill` columns that it leaves out are null; without they are refused. None: as the table has it. `flags` say
        which rows are tombstones; None: none is.
        """
        validate_rows(batch)
        met = self._met
        if not batch.schema.equals(met.schema):
            self._met = met = self._meet(batch.schema)
        if met.absent:
            if met.required is not None and flags is None:
                raise InvalidInputError(f"column {met.required!r} is missing and must not be null")
            if not (self._fills if fill is None else fill):
                raise refuse_missing(met.absent)
        if met.plan is not None:
            batch = self._apply(batch, met.plan)
        if self._json:
            batch = changed_columns(batch, self._json, spelled)
        if self._loose:
            batch = changed_columns(batch, self._loose, normal)
        for index in self._blobs:
            check_inline(batch.column(index), self.schema.columns.field(index).name)
        for index in self._not_null:
            if batch.column(index).null_count:
                self._check_nulls(batch.column(index), self.schema.columns.field(index).name, flags)
        return batch

    def fit_part(
        self, batch: pa.RecordBatch, flags: pa.BooleanArray | None = None
    ) -> tuple[pa.RecordBatch, tuple[str, ...]]:
        """As `fit`, of rows that may leave columns out: the result has none for these, and they are named beside it.

        Whether a NOT NULL column is among them is not asked here (`refuse_nulls`). Parts of a struct cannot be left out.
        """
        validate_rows(batch)
        met = self._met
        if not batch.schema.equals(met.schema):
            self._met = met = self._meet(batch.schema)
        if not met.absent:
            return self.fit(batch, True, flags), ()
        if met.part is None:
            raise self._refuse_part(met.absent)
        part = batch if met.as_given else self._changed_part(batch, met.plan or [], met.part)
        for at, name in met.not_null:
            if part.column(at).null_count:
                self._check_nulls(part.column(at), name, flags)
        return part, tuple(met.absent)

    def _changed_part(self, batch: pa.RecordBatch, plan: _Plan, schema: pa.Schema) -> pa.RecordBatch:
        """The columns that `batch` gives, in the order, types and form of the table."""
        arrays = []
        for (index, cast_from), column in zip(plan, self._relaxed, strict=True):
            if index >= 0:
                array = batch.column(index)
                arrays.append(array if cast_from is None else _cast(array, column))
        part = pa.RecordBatch.from_arrays(arrays, schema=schema)
        for change, columns in ((spelled, self._json), (normal, self._loose)):
            names = [self._relaxed.field(index).name for index in columns]
            if names:
                part = changed_columns(part, [i for i, name in enumerate(part.schema.names) if name in names], change)
        for name, array in zip(part.schema.names, part.columns, strict=True):
            if is_second_layout(array.type):
                check_inline(array, name)
        return part

    def _refuse_part(self, absent: list[str]) -> InvalidInputError:
        for name in absent:
            if name in self.schema.primary_key:
                return InvalidInputError(f"key column {name!r} is missing: it says which row is meant")
        return refuse_missing([name for name in absent if "." in name])

    def refuse_nulls(self, rows: pa.RecordBatch) -> None:
        """Return only if no row of `rows`, which are whole and fitted, is null where it must not be."""
        for index in self._not_null:
            if rows.column(index).null_count:
                self._check_nulls(rows.column(index), self.schema.columns.field(index).name, None)

    def fit_flagged(self, batch: pa.RecordBatch, *, fill: bool | None = None) -> pa.RecordBatch:
        """As `fit`, of rows of which `_tombstone`, if they have it, says which are tombstones; the result has it."""
        rows, flags = self.unflagged(batch)
        if flags is None:
            return self.fit(rows, fill).append_column(TOMBSTONE_FIELD, self._live[rows.num_rows])
        dead = flags.true_count
        fitted = self.fit(rows, dead == len(flags) or fill, flags if dead else None)
        return fitted.append_column(TOMBSTONE_FIELD, flags)

    def fit_flagged_part(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, tuple[str, ...]]:
        """As `fit_part`, of rows of which `_tombstone`, if they have it, says which are tombstones; the result has it."""
        rows, flags = self.unflagged(batch)
        part, absent = self.fit_part(rows, flags)
        return part.append_column(TOMBSTONE_FIELD, self._live[rows.num_rows] if flags is None else flags), absent

    def unflagged(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.BooleanArray | None]:
        """The rows, and which of them are tombstones; None: they do not say. `InvalidInputError` if that is no answer."""
        at = batch.schema.get_field_index(TOMBSTONE)
        if at < 0:
            return batch, None
        flags = batch.column(at)
        if not pa.types.is_boolean(flags.type) or flags.null_count:
            raise InvalidInputError(f"column {TOMBSTONE!r} must be boolean without nulls")
        if flags.true_count and self.schema.field_ids is not None:
            self.schema.need_key()
        return batch.remove_column(at), flags

    def _check_nulls(self, column: pa.Array, name: str, flags: pa.BooleanArray | None) -> None:
        """Return only if the column is null in tombstones alone, and is no part of the key."""
        may_be_null = flags is not None and name not in self.schema.primary_key
        if not may_be_null or pc.and_not(column.is_null(), flags).true_count:
            raise InvalidInputError(f"column {name!r} must not be null (a key or NOT NULL column)")

    def _meet(self, schema: pa.Schema) -> _Met:
        """What to do with input of this schema. The plan has per table column the input's column (-1: fill with nulls) and
        the type to cast from, if any."""
        columns = self.schema.columns
        if schema.names == columns.names and schema.types == columns.types:
            return _Met(schema, None, [], None)
        self._refuse_unknown(schema.names)
        plan: _Plan = []
        for column in columns:
            index = schema.get_field_index(column.name)
            source = schema.field(index).type if index >= 0 else None
            if source is not None and source != column.type and not may_cast(source, column.type):
                raise InvalidInputError(f"column {column.name!r} has type {source}, the table needs {column.type}")
            plan.append((index, source if source != column.type else None))
        required = (column.name for column in columns if not column.nullable and column.name not in schema.names)
        absent = left_out(schema, columns)
        if any("." in name or name in self.schema.primary_key for name in absent):
            return _Met(schema, plan, absent, next(required, None))
        part = pa.schema([column for column in self._relaxed if column.name not in absent])
        changed = {self._relaxed.field(at).name for at in (*self._json, *self._loose, *self._blobs)}
        as_given = schema.names == part.names and schema.types == part.types and changed.isdisjoint(part.names)
        names = [self._relaxed.field(at).name for at in self._not_null]
        not_null = tuple((part.get_field_index(name), name) for name in names if name in part.names)
        return _Met(schema, plan, absent, next(required, None), part, as_given, not_null)

    def _refuse_unknown(self, names: Iterable[str]) -> None:
        known = dict.fromkeys(self.schema.columns.names)
        seen: set[str] = set()
        for name in names:
            if name == TOMBSTONE:
                raise InvalidInputError(f"column {TOMBSTONE!r} is not for puts; use delete()")
            check_column(name, known)
            if name in seen:
                raise InvalidInputError(f"column {name!r} is there twice")
            seen.add(name)

    def _apply(self, batch: pa.RecordBatch, plan: _Plan) -> pa.RecordBatch:
        arrays = []
        for column, (index, cast_from) in zip(self.schema.columns, plan, strict=True):
            if index < 0:
                arrays.append(nulls(batch.num_rows, column.type))
            elif cast_from is None:
                arrays.append(batch.column(index))
            else:
                arrays.append(_cast(batch.column(index), column))
        return pa.RecordBatch.from_arrays(arrays, schema=self._relaxed)


class LiveFlags(dict[int, pa.BooleanArray]):
    """By number of rows: the flags of as many rows of which none is a tombstone; some are kept."""

    __slots__ = ("_longest",)

    def __init__(self) -> None:
        super().__init__()
        self._longest = live_flags(_KEPT_FLAGS_ROWS)

    def __missing__(self, rows: int) -> pa.BooleanArray:
        if rows > _KEPT_FLAGS_ROWS:
            return live_flags(rows)
        flags = self._longest.slice(0, rows)
        if len(self) < _KEPT_FLAGS:
            self[rows] = flags
        return flags


def at_most(limit: int, batches: list[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
    """`batches`, joined if they are more than `limit`; `schema` is theirs, whatever each says of nulls."""
    if len(batches) <= limit:
        return batches
    even = [pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches]
    return list(pa.Table.from_batches(even).combine_chunks().to_batches())


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
            "missing='keep' (leave what the row has) needs a look at the rows, as put() and update() of a writer take it; "
            "give whole rows, or missing='null'"
        )
    return missing == "null"


def keeps_missing(missing: Missing | None) -> bool:
    """Whether columns that a put leaves out stay as the live rows have them."""
    return isinstance(missing, str) and missing == "keep"


def validate_rows(batch: pa.RecordBatch) -> None:
    """Refuse what nobody could read back: an entry with it would make the shard impossible to open."""
    try:
        validate(batch)
    except (pa.ArrowException, ValueError):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            try:
                column.validate(full=True)
            except (pa.ArrowException, ValueError) as error:
                raise InvalidInputError(f"column {name!r} holds invalid values of type {column.type}") from error
        raise InvalidInputError("the batch is invalid, although each of its columns is sound") from None


def changed_columns(
    batch: pa.RecordBatch, indexes: Sequence[int], change: Callable[[pa.Array], pa.Array]
) -> pa.RecordBatch:
    """`batch` with some of its columns in another form."""
    arrays = batch.columns
    for index in indexes:
        try:
            arrays[index] = change(arrays[index])
        except InvalidInputError as error:
            raise InvalidInputError(f"column {batch.schema.field(index).name!r}: {error}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _cast(array: pa.Array, column: pa.Field) -> pa.Array:
    if is_second_layout(array.type):
        check_inline(array, column.name)  # the short form would drop what is beside the bytes
        return same_blobs(array, column.type)
    try:
        array = plain(array, column.type)
        if is_second_layout(column.type):
            return as_stored(array, column.type)
        if is_uuid_text(array.type, column.type):
            return uuids_of_texts(array)
        return normal(array.cast(loose(column.type), safe=True), column.type)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidInputError(f"column {column.name!r} cannot be cast to {column.type}: {reason_of(error)}") from None
