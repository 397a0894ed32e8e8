"""What a user asks of the rows that are there: puts with conditions, partial updates, deletes that count.

Owns `Change` and the functions that make one of what a user gives. Invariants:

1. A change is a value. What it becomes depends on the live rows, and may be asked again: nothing here looks a row up.
2. What a table's merge says holds for every change (`merged`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.arguments import check_column, check_flag, check_instance, check_names
from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.blobs import bytes_of
from lance_memwal.rows.filter import FilterLike, RowExpressions, RowFilter
from lance_memwal.rows.fit import Missing, fills_missing, keeps_missing
from lance_memwal.rows.ingest import key_batch, refuse_missing, to_batches, to_parts, with_rows
from lance_memwal.rows.lookup_key import one_key
from lance_memwal.rows.merging import LastWrite, Merge
from lance_memwal.rows.schema import TableSchema
from lance_memwal.write.fitting import Fitting
from lance_memwal.write.live_rows import KeysOfWrite
from lance_memwal.write.resolve import Numbers, Part, Rule
from lance_memwal.write.rules import MustBeNew, MustExist, NotLate, OnlyAbsent, OnlyIf, OnlyIfEqual, OnlyMatching
from lance_memwal.write.sequences import span_of


@dataclass(frozen=True, slots=True)
class Change:
    """A write that is to be resolved: its keys, its rows, and its rules; `counts`: the caller is told what it met,
    `tells`: and what was kept out."""

    keys: KeysOfWrite
    parts: list[Part]
    rules: tuple[Rule, ...] = ()
    counts: bool = False
    tells: bool = True
    columns: tuple[str, ...] = field(init=False)

    @property
    def inserts_only(self) -> bool:
        """Whether it writes no row whose key is there."""
        return any(
            isinstance(rule, (OnlyAbsent, MustBeNew)) or (isinstance(rule, OnlyIfEqual) and rule.expected is None)
            for rule in self.rules
        )

    def __post_init__(self) -> None:
        """`columns` of live rows are those that it depends on."""
        needed: dict[str, None] = {}
        for part in self.parts:
            needed.update(dict.fromkeys(part.kept_names))
            if part.computed is not None:
                needed.update(dict.fromkeys(part.computed.columns))
        for rule in self.rules:
            needed.update(dict.fromkeys(rule.columns))
        object.__setattr__(self, "columns", tuple(needed))


# ------------------------------------------------------------------------------------------------------- what is asked


def put(
    data: Any, missing: Missing | None, *, if_absent: bool = False, where: FilterLike | None = None
) -> Callable[[Fitting], Change]:
    """A put with conditions, or one that keeps what its rows leave out."""

    def change(fitting: Fitting) -> Change:
        schema = fitting.schema
        rules = _conditions(schema, if_absent, where)
        if keeps_missing(missing):
            return _change(fitting, to_parts(data, schema.columns), rules)
        fill = fills_missing(missing, schema)
        return _change(fitting, to_batches(data, schema.columns, whole=not fill), rules, fill)

    return change


def insert(data: Any) -> Callable[[Fitting], Change]:
    """Rows of keys that are not there."""

    def change(fitting: Fitting) -> Change:
        rules = (MustBeNew(fitting.schema.need_key()),)
        return _change(fitting, to_batches(data, fitting.schema.columns, whole=True), rules, fill=False)

    return change


def _conditions(
    schema: TableSchema, if_absent: bool, where: FilterLike | None, *, deletes: bool = False
) -> tuple[Rule, ...]:
    """The rules of a put; `deletes`: tombstones are among its rows."""
    absent: tuple[Rule, ...] = (OnlyAbsent(one_by_one=deletes),) if if_absent else ()
    return absent if where is None else (*absent, OnlyIf(where, schema))


@dataclass(frozen=True, slots=True)
class Terms:
    """Under which terms rows are appended: as `missing`, `if_absent` and `where` of a put, and without `insert` as an update.

    Tombstones are rows: they are under `where`, and neither under `if_absent` nor under `insert=False`. With `sequence` rows
    and tombstones are decided by this column, as a table with `LastWrite` decides all of its writes; the table has no merge
    and knows of the column (`note_sequence`).
    """

    missing: Missing | None = None
    if_absent: bool = False
    where: FilterLike | None = None
    insert: bool = True
    sequence: str | None = None

    @property
    def decide_each(self) -> bool:
        """Whether each row of a key may matter, although a later one follows."""
        return self.if_absent or self.where is not None or not self.insert or keeps_missing(self.missing)

    @property
    def need_a_look(self) -> bool:
        """Whether what is written depends on the rows that are there."""
        return self.decide_each or self.sequence is not None

    def check(self, schema: TableSchema) -> None:
        """Return only if rows of a table with these columns can be written so."""
        check_flag("if_absent", self.if_absent)
        check_flag("insert", self.insert)
        if self.if_absent and not self.insert:
            raise InvalidInputError("if_absent=True writes new keys only, insert=False none of them: give one of them")
        if self.need_a_look:
            schema.need_key()
        _conditions(schema, self.if_absent, self.where)


def appended(batches: list[pa.RecordBatch], terms: Terms) -> Callable[[Fitting], Change]:
    """Rows of which `_tombstone`, if they have it, says which are tombstones."""

    def change(fitting: Fitting) -> Change:
        terms.check(fitting.schema)
        key = fitting.schema.need_key()
        fitted = fitting.fit_flagged_parts(batches, terms.missing)
        keys, numbered = KeysOfWrite.of_batches([batch for batch, _ in fitted], key)
        parts = [
            part
            for (batch, kept), at in zip(fitted, numbered, strict=True)
            for part in _separated(fitting, _flagged(batch, at, kept, fitting.schema.blobs))
        ]
        deletes = any(part.flags is not None for part in parts)
        rules = _conditions(fitting.schema, terms.if_absent, terms.where, deletes=deletes)
        merge = fitting.merge if terms.sequence is None else LastWrite(terms.sequence)
        if isinstance(merge, LastWrite):
            for part in parts:
                if part.flags is not None:
                    span_of([part.rows], merge.sequence)
        asked = Change(keys, parts, rules if terms.insert else (MustExist(key), *rules))
        return asked if terms.sequence is None else merged(asked, merge)

    return change


def _flagged(batch: pa.RecordBatch, keys: Numbers, kept: tuple[str, ...], blobs: tuple[str, ...]) -> Part:
    flags = batch.column(batch.num_columns - 1)
    rows = batch.remove_column(batch.num_columns - 1)
    return Part(rows, keys, kept, flags=flags if flags.true_count else None, blobs=blobs)


def _separated(fitting: Fitting, part: Part) -> list[Part]:
    """`part`, with tombstones apart from rows that keep columns, which tombstones do not.

    Keys [a, b, c] of which b is one: [a, c], [b]. Where a key is there twice the order stays: [a, b, b] gives [a], [b], [b].
    """
    if part.flags is None or not part.kept:
        return [part]
    dead = part.flags.to_numpy(zero_copy_only=False)
    if len(np.unique(part.keys)) == len(part.keys):
        masks = [~dead, dead]
    else:
        run = np.cumsum(np.append(0, dead[1:] != dead[:-1]))
        masks = [run == number for number in range(int(run[-1]) + 1)]
    parts = [part.filter(mask) for mask in masks if mask.any()]
    return [
        replace(one, rows=fitting.whole_tombstones(one.rows), kept=()) if one.is_dead else replace(one, flags=None)
        for one in parts
    ]


def update(data: Any, *, insert: bool) -> Callable[[Fitting], Change]:
    """The columns that are given change, the others stay."""

    def change(fitting: Fitting) -> Change:
        rules = () if insert else (MustExist(fitting.schema.primary_key),)
        return _change(fitting, to_parts(data, fitting.schema.columns), rules, counts=True)

    return change


def _change(
    fitting: Fitting,
    batches: list[pa.RecordBatch],
    rules: tuple[Rule, ...],
    fill: bool | None = None,
    *,
    counts: bool = False,
) -> Change:
    key, blobs = fitting.schema.need_key(), fitting.schema.blobs
    fitted = fitting.fit_parts(with_rows(batches), fill)
    keys, numbered = KeysOfWrite.of_batches([batch for batch, _ in fitted], key)
    parts = [Part(batch, at, kept, blobs=blobs) for (batch, kept), at in zip(fitted, numbered, strict=True)]
    return Change(keys, parts, rules, counts)


def delete(keys: Any, *, count: bool, sequence: Any = None) -> Callable[[Fitting], Change]:
    """A delete that meets live rows: it counts them, or comes too late for them."""

    def change(fitting: Fitting) -> Change:
        fitting.schema.need_key()
        if isinstance(fitting.merge, LastWrite):
            named = _sequenced(keys, sequence, fitting.schema, fitting.merge)
            batch = fitting.tombstone_rows(named, fitting.merge.sequence)
        else:
            if sequence is not None:
                sequence_of(sequence, fitting.schema, fitting.merge)
            batch = fitting.tombstone_rows(key_batch(keys, fitting.schema))
        distinct, numbers = KeysOfWrite.of([batch.column(name) for name in fitting.schema.primary_key])
        dead = pa.array(np.ones(batch.num_rows, dtype=bool))
        return Change(distinct, [Part(batch, numbers, flags=dead)], counts=count)

    return change


def _sequenced(keys: Any, sequence: Any, schema: TableSchema, merge: LastWrite) -> pa.RecordBatch:
    """Keys of a delete, with the sequence of each beside them."""
    name = merge.sequence
    if sequence is None:
        try:
            found = key_batch(keys, replace(schema, primary_key=(*schema.primary_key, name)))
        except InvalidInputError as error:
            raise InvalidInputError(
                f"{error} (the table puts its rows in the order of {name!r}: give it beside the keys, or sequence=)"
            ) from None
        if found.num_rows:
            span_of([found], name)
        return found
    named, column = key_batch(keys, schema), sequence_of(sequence, schema, merge)
    return named.append_column(name, column.take(pa.array(np.zeros(named.num_rows, dtype=np.int64))))


def sequence_of(given: Any, schema: TableSchema, merge: Merge | None) -> pa.Array:
    """The one value that is given as a sequence, as the sequence column has it; `InvalidInputError` if it is none."""
    if not isinstance(merge, LastWrite):
        raise InvalidInputError("sequence= is for tables with merge=LastWrite(...)")
    name = merge.sequence
    batch = to_batches({name: [given]}, schema.columns)[0]
    kind = schema.columns.field(name).type
    if batch.column(0).type != kind:
        batch = pa.record_batch({name: batch.column(0).cast(kind)})
    span_of([batch], name)
    return batch.column(0)


def merged(change: Change, merge: Merge | None) -> Change:
    """`change`, as a table with this merge takes it; refused where it would be against its rule."""
    if merge is None or not change.keys.values:
        return change
    if isinstance(merge, LastWrite):
        name = merge.sequence
        for part in change.parts:
            if not part.is_dead and part.computed is None and name not in part.kept:
                span_of([part.rows], name)
        parts = [
            replace(part, kept=(name,)) if part.is_dead and part.rows.column(name).null_count else part
            for part in change.parts
        ]
        return replace(change, parts=parts, rules=(*change.rules, NotLate(name)))
    if all(part.is_dead for part in change.parts) or change.inserts_only:
        return change
    if change.rules or change.counts or any(part.kept or part.computed is not None for part in change.parts):
        raise InvalidInputError(
            "the table keeps the first row of each key (merge=FirstRow()): its rows cannot be changed"
        )
    return replace(change, rules=(OnlyAbsent(one_by_one=any(part.flags is not None for part in change.parts)),))


def compared(key: Any, expected: Any, new: Any) -> Callable[[Fitting], Change]:
    """The row of `key` becomes `new` if it is `expected`; None is no row. A blob that is left out is not compared, or kept."""

    def change(fitting: Fitting) -> Change:
        schema = fitting.schema
        fitting.schema.need_key()
        named = one_key(key, schema)
        keys, numbers = KeysOfWrite.of(named.columns)
        if new is None:
            part = Part(fitting.tombstone_rows(named), numbers, flags=pa.array([True]))
        else:
            rows, kept = _row_of(fitting, named, new, "new")
            part = Part(rows, numbers, kept, blobs=schema.blobs)
        before = None
        if expected is not None:
            given, _ = _row_of(fitting, named, expected, "expected")
            values = given.to_pylist()[0]
            before = {bytes_of(name) if name in schema.blobs else name: value for name, value in values.items()}
        return Change(keys, [part], (OnlyIfEqual(before),))

    return change


def deleted_where(keys: pa.Table, where: FilterLike) -> Callable[[Fitting], Change]:
    """Delete the rows of `keys` for which the filter is true when they are deleted."""

    def change(fitting: Fitting) -> Change:
        named, numbers = _named(fitting, keys)
        batch = fitting.tombstone_rows(named)
        part = Part(batch, numbers, flags=pa.array(np.ones(batch.num_rows, dtype=bool)))
        rule = OnlyMatching(RowFilter(where, fitting.schema.shown.columns))
        return Change(KeysOfWrite.of(named.columns)[0], [part], (rule,), counts=True, tells=False)

    return change


@dataclass(frozen=True, slots=True)
class Settings:
    """What an update sets columns to: `sql` over the columns of the row, or values, of which `given` is one row."""

    sql: Mapping[str, str]
    given: pa.RecordBatch | None = None

    @classmethod
    def of(cls, sql: Mapping[str, str] | None, values: Mapping[str, Any] | None, schema: TableSchema) -> Settings:
        """What the caller says; `InvalidInputError` if it names no column, one that cannot be set, or is no SQL."""
        for what, asked in (("set", sql), ("values", values)):
            if asked is not None:
                check_instance(what, asked, Mapping, "a dict of columns")
                check_names(what, asked)
        given = to_parts([dict(values)], schema.columns)[0] if values else None
        settings = cls(dict(sql or {}), given)
        if not settings.names:
            raise InvalidInputError("an update names no column to set: set={column: SQL}, or values={column: value}")
        for name in settings.names:
            check_column(name, schema.columns.names)
            if name in schema.primary_key:
                raise InvalidInputError(f"column {name!r} is part of the key, and cannot be set: delete and put")
        if len(set(settings.names)) != len(settings.names):
            raise InvalidInputError("set= and values= name the same column")
        RowExpressions(settings.sql, schema.shown.columns)
        return settings

    @property
    def names(self) -> list[str]:
        """The columns that are set."""
        return [*self.sql, *([] if self.given is None else self.given.schema.names)]


def updated_where(
    keys: pa.Table, where: FilterLike, settings_of: Callable[[TableSchema], Settings]
) -> Callable[[Fitting], Change]:
    """Set columns of the rows of `keys` for which the filter is true when they are set."""

    def change(fitting: Fitting) -> Change:
        schema = fitting.schema
        settings = settings_of(schema)
        named, numbers = _named(fitting, keys)
        kept = tuple(
            name for name in schema.columns.names if name not in settings.names and name not in schema.primary_key
        )
        part = Part(named, numbers, kept, computed=_Made(fitting, settings), blobs=schema.blobs)
        rule = OnlyMatching(RowFilter(where, schema.shown.columns))
        return Change(KeysOfWrite.of(named.columns)[0], [part], (rule,), counts=True, tells=False)

    return change


class _Made:
    """The columns that an update sets, made of the live rows."""

    __slots__ = ("_expressions", "_fitting", "_given", "columns")

    def __init__(self, fitting: Fitting, settings: Settings) -> None:
        self._fitting = fitting
        self._given = settings.given
        self._expressions = RowExpressions(settings.sql, fitting.schema.shown.columns)
        self.columns = tuple(dict.fromkeys([*fitting.schema.primary_key, *self._expressions.columns]))

    def make(self, rows: pa.Table) -> dict[str, pa.Array]:
        """What the expressions give, and the values, in the types of the columns."""
        made = rows.select(list(self._fitting.schema.primary_key))
        evaluated = self._expressions.evaluate(rows)
        for name in evaluated.schema.names:
            made = made.append_column(name, evaluated.column(name))
        if self._given is not None:
            repeated = self._given.take(pa.array(np.zeros(rows.num_rows, dtype=np.int64)))
            for name in repeated.schema.names:
                made = made.append_column(name, repeated.column(name))
        fitted, _ = self._fitting.fit_parts(made.combine_chunks().to_batches(), None)[0]
        return {name: fitted.column(name) for name in fitted.schema.names}


def _named(fitting: Fitting, keys: pa.Table) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
    """Keys that are there once each, and their numbers."""
    named = key_batch(keys, fitting.schema)
    return named, np.arange(named.num_rows)


def _row_of(fitting: Fitting, named: pa.RecordBatch, row: Any, what: str) -> tuple[pa.RecordBatch, tuple[str, ...]]:
    """The one whole row that is given, and the blobs that it leaves out; a dict may leave out its key."""
    if isinstance(row, dict):
        row = [{**named.to_pylist()[0], **row}]
    fitted = fitting.fit_parts(to_batches(row, fitting.schema.columns, whole=True), None)
    if sum(batch.num_rows for batch, _ in fitted) != 1:
        raise InvalidInputError(f"{what} must be one whole row, or None for no row")
    one, absent = fitted[0]
    missing = [name for name in absent if name not in fitting.schema.blobs]
    if missing:
        raise refuse_missing(missing)
    if not one.select(named.schema.names).to_pylist() == named.to_pylist():
        raise InvalidInputError(f"{what} has another key than the one that is compared")
    return one, absent
