"""Filters, which select the same rows wherever the rows are.

Owns `RowFilter` and the only way from a filter to Lance, `pushdown`. Lance itself evaluates SQL, also over rows in
memory: their columns are written to a dataset in memory first. No other evaluator agrees with it on the width of
literals, fields of null structs, JSON, names and quotes. Invariants:

1. The same filter selects the same rows in memory, in an SSTable and in the base table. A pyarrow expression means
   what pyarrow makes of it: Lance is told it only where it is known to read it alike.
2. Lance is told what `pushdown` returns, and nothing else; what it was not told is applied to the rows that it returns.
   Of an expression that it does not read alike it is told what the expression demands of columns.
3. A filter names columns of the table only. What Lance would add (`_rowid`) differs from tier to tier.
4. Rows keep their order.
5. A filter that cannot be read is an `InvalidInputError`, when it is made and whatever rows there are. Values are never
   formatted into filter text here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias, TypeVar

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.errors import InvalidInputError, is_failure, reason_of
from lance_memwal.rows.blobs import shows_blobs, unmarked
from lance_memwal.rows.expressions import demands_of
from lance_memwal.rows.normal_form import no_rows
from lance_memwal.rows.sql import Predicate, demand_text, parse
from lance_memwal.types import LANCE_COLUMNS, ROW_ADDRESS

__all__ = ["FilterLike", "Pushdown", "RowExpressions", "RowFilter", "as_filter", "pushdown"]

FilterLike: TypeAlias = str | pc.Expression
Mask: TypeAlias = npt.NDArray[np.bool_]
T = TypeVar("T")
_POSITION = "memwal_position"
_FLAT_FILES: Final = "2.0"  # plain values, not compressed: the cheapest to write and to read back
_NESTED_FILES: Final = "2.2"  # knows null structs and maps
_KNOWN_FILTERS = 256
_KNOWN_TABLES = 16
_CALL = re.compile(r"(\w+)\(")
_ALIKE = frozenset({"invert", "is_null", "is_valid"})


class RowFilter:
    """One filter, ready for rows with the columns of `schema`."""

    __slots__ = ("_alike", "_also", "_demands", "_needed", "_schema", "_source", "columns")

    def __init__(self, source: FilterLike, schema: pa.Schema, *, also: RowFilter | None = None) -> None:
        """`columns` are those that it needs; `also` must be true, too."""
        self._source = source
        self._schema = schema
        self._also = also
        if isinstance(source, str):
            self.columns = list(_planned(source, schema.serialize().to_pybytes()))
            self._demands = parse(source).predicates(schema.names)
            self._alike = True
        elif isinstance(source, pc.Expression):
            _evaluated(lambda: no_rows(schema).filter(source))
            self.columns = _referenced(source, schema)
            self._demands = demands_of(source, schema)
            self._alike = _reads_alike(source, schema, self.columns)
        else:
            raise InvalidInputError(f"a filter is SQL text or a pyarrow expression, not {type(source).__name__}")
        if any(shows_blobs(schema.field(name)) for name in self.columns):
            self._alike = False  # Lance shows a null blob in several ways, and does not know the fields of all
        self._needed = self.columns
        if also is not None:
            self.columns = list(dict.fromkeys([*also.columns, *self._needed]))
            self._alike = False

    def apply(self, table: pa.Table) -> pa.Table:
        """The rows of `table` for which the filter is true, in order."""
        mask = self.mask(table)
        return table if mask.all() else table.filter(pa.array(mask))

    def mask(self, table: pa.Table) -> Mask:
        """Per row of `table`, which has at least `columns`: whether the filter is true."""
        found = np.ones(table.num_rows, dtype=bool) if self._also is None else self._also.mask(table)
        if found.any():
            left = table if found.all() else table.filter(pa.array(found))
            matching = np.flatnonzero(found)[_evaluated(lambda: self._positions(left))]
            found[:] = False
            found[matching] = True
        return found

    def _positions(self, table: pa.Table) -> npt.NDArray[np.int64]:
        counted = _counted(table.num_rows)
        if isinstance(self._source, str):
            return _matches(_image(table.select(self._needed) if self._needed else counted), self._source)
        found = table.select(self._needed).append_column(_POSITION, counted.column(_POSITION)).filter(self._source)
        return np.asarray(found.column(_POSITION).to_numpy())

    def predicates(self) -> list[tuple[str, Predicate]]:
        """What every row for which the filter is true satisfies, by column; a part may be missing."""
        return self._demands if self._also is None else [*self._also.predicates(), *self._demands]

    def _weaker(self) -> str | None:
        """What an expression demands of columns, as SQL: true for every row for which the filter is."""
        if isinstance(self._source, str) or not self._demands:
            return None
        plain = [(name, predicate) for name, predicate in self._demands if not shows_blobs(self._schema.field(name))]
        return " and ".join(demand_text(name, what, self._schema.field(name).type) for name, what in plain) or None

    def _holds_alike(self, stored: pa.Schema) -> bool:
        """Whether the names of this filter mean the same columns in `stored` as in the table."""
        named = {name.lower() for name in self.columns}
        ours, theirs = ([(f.name, f.type) for f in of if f.name.lower() in named] for of in (self._schema, stored))
        return ours == theirs

    def __str__(self) -> str:
        return str(self._source) if self._also is None else f"({self._also}) and ({self._source})"

    def __repr__(self) -> str:
        return f"RowFilter({str(self)!r})"


def as_filter(source: FilterLike | RowFilter | None, schema: pa.Schema) -> RowFilter | None:
    """The filter that a caller gave, ready for rows with the columns of `schema`; None if there is none."""
    return source if source is None or isinstance(source, RowFilter) else RowFilter(source, schema)


@dataclass(frozen=True, slots=True)
class Pushdown:
    """A filter, shared with Lance: it is told `told`, and `late` is applied to what it returns."""

    told: FilterLike | None
    late: RowFilter | None

    @property
    def columns(self) -> list[str]:
        """The columns that `finish` needs."""
        return [] if self.late is None else self.late.columns

    def finish(self, rows: pa.Table) -> pa.Table:
        """`rows`, which Lance returned, without those for which the filter is not true."""
        return rows if self.late is None else self.late.apply(rows)


def pushdown(row_filter: RowFilter | None, stored: pa.Schema | None = None) -> Pushdown:
    """What Lance is told of a filter over a dataset with the columns `stored`, by default the table's."""
    if row_filter is None:
        return Pushdown(None, None)
    if stored is not None and not row_filter._holds_alike(stored):
        return Pushdown(None, row_filter)
    return Pushdown(row_filter._source, None) if row_filter._alike else Pushdown(row_filter._weaker(), row_filter)


class RowExpressions:
    """SQL expressions over rows with the columns of `schema`, by the name of their result; Lance evaluates them."""

    __slots__ = ("_expressions", "columns")

    def __init__(self, expressions: Mapping[str, str], schema: pa.Schema) -> None:
        """`InvalidInputError` if Lance does not take one of them; `columns` are those that they need."""
        self._expressions = {_POSITION: _POSITION}  # else Lance takes no constants
        named: set[str] = set()
        for name, sql in expressions.items():
            if not isinstance(sql, str):
                raise InvalidInputError(
                    f"the expression for column {name!r} must be SQL text, not {type(sql).__name__}"
                )
            named.update(_named(sql, schema.names))
            self._expressions[name] = f"({sql}\n)"  # all of the text: Lance ignores what follows an expression
        self.columns = [name for name in schema.names if name in named]
        self.evaluate(no_rows(schema))

    def evaluate(self, table: pa.Table) -> pa.Table:
        """The results for every row of `table`, in order."""
        counted = _counted(table.num_rows)
        for name in self.columns:
            counted = counted.append_column(name, table.column(name))
        try:
            return _image(counted).scanner(columns=self._expressions).to_table().drop_columns([_POSITION])
        except BaseException as error:
            if not is_failure(error):
                raise
            raise InvalidInputError(f"the expressions cannot be evaluated: {reason_of(error)}") from None


def _counted(rows: int) -> pa.Table:
    return pa.table({_POSITION: np.arange(rows)})


def _evaluated(run: Callable[[], T]) -> T:
    try:
        return run()
    except BaseException as error:
        if not is_failure(error):
            raise
        raise InvalidInputError(f"the filter cannot be applied: {reason_of(error)}") from None


# ---------------------------------------------------------------------------------------------------------------- SQL


def _image(rows: pa.Table) -> lance.LanceDataset:
    """`rows` as one fragment of a dataset in memory, which goes when nobody holds it."""
    rows = unmarked(rows)
    nested = any(pa.types.is_nested(column.type) for column in rows.schema)
    return lance.write_dataset(
        rows.unify_dictionaries(),
        "memory://",
        data_storage_version=_NESTED_FILES if nested else _FLAT_FILES,
        max_rows_per_file=max(1, rows.num_rows),
        max_rows_per_group=max(1, rows.num_rows),
    )


def _matches(image: lance.LanceDataset, sql: str) -> npt.NDArray[np.int64]:
    found = image.scanner(columns=[], filter=sql, with_row_address=True).to_table()
    return np.asarray(found.column(ROW_ADDRESS).to_numpy()).astype(np.int64)


@lru_cache(maxsize=_KNOWN_FILTERS)
def _planned(sql: str, serialized: bytes) -> tuple[str, ...]:
    """The columns that a filter needs of a table with this schema; `InvalidInputError` if Lance does not take it there."""
    table = _empty_image(serialized)
    names = table.schema.names
    columns = _named(sql, names)
    _evaluated(lambda: _matches(table, sql))
    # Lance ignores what follows an expression. As a part of one it must be all of the text: at its end, where a column may
    # be called `select`, or at its start, where one may be called `any`.
    try:
        _matches(table, f"({sql}\n) and true")
    except Exception:
        _evaluated(lambda: _matches(table, f"(true and {sql}\n)"))
    try:
        _matches(_image(_empty(serialized).select(columns) if columns else _counted(0)), sql)
    except Exception:
        return tuple(names)  # it names them in a way that we do not know
    return columns


@lru_cache(maxsize=_KNOWN_TABLES)
def _empty_image(serialized: bytes) -> lance.LanceDataset:
    return _evaluated(lambda: _image(_empty(serialized)))


def _empty(serialized: bytes) -> pa.Table:
    return no_rows(pa.ipc.read_schema(pa.py_buffer(serialized)))


def _named(sql: str, names: list[str]) -> tuple[str, ...]:
    """The columns among `names` that the text may name: Lance matches names whatever their case."""
    parsed = parse(sql)
    if parsed.fault is not None:
        raise InvalidInputError(parsed.fault)
    lower = {name.lower() for name in names}
    if foreign := sorted(parsed.names & LANCE_COLUMNS - lower):
        raise InvalidInputError(f"the filter cannot be applied: {foreign[0]} is no column of the table")
    return tuple(name for name in names if name.lower() in parsed.names)


# -------------------------------------------------------------------------------------------------- pyarrow expressions


def _referenced(expression: pc.Expression, schema: pa.Schema) -> list[str]:
    """The columns without which the expression cannot be applied."""
    rows, names = no_rows(schema), []
    for name in schema.names:
        try:
            rows.drop_columns([name]).filter(expression)
        except pa.ArrowInvalid:
            names.append(name)
    return names


def _reads_alike(expression: pc.Expression, schema: pa.Schema, named: list[str]) -> bool:
    """Whether Lance can be told the expression, and compares the values of these columns as pyarrow does."""
    types = pa.types
    for kind in (schema.field(name).type for name in named):
        plain = (
            types.is_signed_integer(kind) or types.is_boolean(kind) or types.is_string(kind) or types.is_binary(kind)
        )
        if not (plain or types.is_date32(kind) or types.is_timestamp(kind)):
            return False
    # Lists of values match nulls in pyarrow alone, arithmetic overflows there and wraps in Lance.
    if not set(_CALL.findall(str(expression))) <= _ALIKE:
        return False
    # Vectors are what Lance itself leaves out when it is told an expression; any other type must convert.
    told = pa.schema([column for column in schema if not types.is_fixed_size_list(column.type)])
    try:
        expression.to_substrait(told)
    except (pa.ArrowException, NotImplementedError):
        return False
    return True
