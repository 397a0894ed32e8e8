"""Filters: the same filter selects the same rows in every tier.

Entry points: `RowFilter` is a filter for rows in memory, `pushdown` says what of a filter Lance evaluates.

Lance evaluates all SQL. Rows in memory are written to a dataset in memory first: no other evaluator agrees with Lance on
the width of literals, fields of null structs, JSON, names and quotes. pyarrow evaluates its expressions.

1. The same filter selects the same rows in memory, in an SSTable and in the base table.
2. Lance evaluates only the SQL that `pushdown` returns: the whole filter, or the conditions on single columns that all
   matching rows satisfy. In the second case the filter is applied to the rows that Lance returns.
3. A filter names columns of the table only. The columns that Lance adds (`_rowid`) differ from tier to tier.
4. Rows keep their order.
5. A filter that cannot be read raises `InvalidInputError` when it is created, also for a table without rows. This module
   never formats values into SQL.
6. A stream of Lance never evaluates SQL whose error may name a value of a row: a NUL in the error text crashes the
   process, since Arrow's C interface panics. Such SQL runs in `delete` and `add_columns`, which raise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
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
from lance_memwal.rows.expressions import demands_of, sql_of
from lance_memwal.rows.normal_form import no_rows
from lance_memwal.rows.sql import Predicate, column_of, demand_text, parse
from lance_memwal.rows.where import Where
from lance_memwal.types import LANCE_COLUMNS, ROW_ADDRESS

FilterLike: TypeAlias = str | pc.Expression | Where
Mask: TypeAlias = npt.NDArray[np.bool_]
T = TypeVar("T")
_POSITION = "memwal_position"
_FLAT_FILES: Final = "2.0"  # plain values, not compressed: the cheapest to write and to read back
_NESTED_FILES: Final = "2.2"  # knows null structs and maps
_KNOWN_FILTERS = 256
_KNOWN_TABLES = 16
_CALL = re.compile(r"(\w+)\(")
_CAST = re.compile(r"(?<!TRY_)CAST\((?:(\w+) AS )?+(?!\w*(?:Utf8|Binary)(?:View)?\b)")
# Errors name the argument that is a pattern or a path. As a literal, it is not a value of a row.
_PATTERN_OF_ROWS = re.compile(r"(?:regexp_match|json_\w+)\((?!\w+, Utf8\()|~\*? (?!Utf8\()")
# A word before a parenthesis in a plan: a type, or a function whose errors name no value of a row.
_SAFE_CALL = re.compile(
    "[A-Z][a-z]\\w*|(?:TRY_)?CAST|abs|ceil|floor|round|trunc|sqrt|power|exp|ln|log|log2|log10|isnan|nanvl|greatest|least|random"
    "|coalesce|nullif|lower|upper|length|char_length|character_length|octet_length|bit_length|starts_with|ends_with"
    "|contains|contains_tokens|strpos|reverse|replace|concat|[blr]trim|left|right|[lr]pad|initcap|regexp_match|date_part"
    "|date_trunc|array_(?:has|has_any|has_all|contains|length|element|position)|list_has|list_contains|cardinality|make_array"
    "|get_field|json_get|json_get_(?:int|float|bool|string)|json_exists|json_extract|json_array_(?:contains|length)"
)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A filter that was read for one schema. `whole` is SQL for the same rows, `parts` hold for all of them, by column."""

    columns: list[str]
    predicates: list[tuple[str, Predicate]]
    parts: list[tuple[str, str]]
    whole: str | None
    positions: Callable[[pa.Table], npt.NDArray[np.int64]]


class RowFilter:
    """One filter, ready for rows with the columns of `schema`."""

    __slots__ = ("_also", "_is_exact", "_prepared", "_pushed", "_schema", "_source", "columns")

    def __init__(self, source: FilterLike, schema: pa.Schema, *, also: RowFilter | None = None) -> None:
        """`columns` are the columns that it needs. A row must also match `also`."""
        self._source = source = source.sql(schema) if isinstance(source, Where) else source
        self._schema = schema
        self._also = also
        if isinstance(source, str):
            prepared = _prepared_sql(source, schema)
        elif isinstance(source, pc.Expression):
            prepared = _prepared_expression(source, schema)
        else:
            raise InvalidInputError(
                f"a filter is SQL text, a pyarrow expression or mw.where(...), not {type(source).__name__}"
            )
        self._prepared: Final = prepared
        # Lance shows a null blob in several ways, and does not know all fields of blobs.
        shown = [sql for name, sql in prepared.parts if not shows_blobs(schema.field(name))]
        whole = None if any(shows_blobs(schema.field(name)) for name in prepared.columns) else prepared.whole
        self._pushed = whole if whole is not None else " and ".join(shown) or None
        self._is_exact = whole is not None and also is None
        self.columns: list[str] = list(dict.fromkeys([*(() if also is None else also.columns), *prepared.columns]))

    def apply(self, table: pa.Table) -> pa.Table:
        """The rows of `table` for which the filter is true, in order."""
        mask = self.mask(table)
        return table if mask.all() else table.filter(pa.array(mask))

    def mask(self, table: pa.Table) -> Mask:
        """Per row of `table`, which has at least `columns`: whether the filter is true."""
        found = np.ones(table.num_rows, dtype=bool) if self._also is None else self._also.mask(table)
        if found.any():
            left = table if found.all() else table.filter(pa.array(found))
            matching = np.flatnonzero(found)[_evaluated(lambda: self._prepared.positions(left))]
            found[:] = False
            found[matching] = True
        return found

    def predicates(self) -> list[tuple[str, Predicate]]:
        """What every row for which the filter is true satisfies, by column; a part may be missing."""
        own = self._prepared.predicates
        return own if self._also is None else [*self._also.predicates(), *own]

    def pushdown(self, stored: pa.Schema | None) -> Pushdown:
        """Split this filter over a dataset with the columns `stored`, by default those of the table."""
        if stored is not None and not self._has_same_columns(stored):
            return Pushdown(None, self)
        return Pushdown(self._pushed, None if self._is_exact else self)

    def _has_same_columns(self, stored: pa.Schema) -> bool:
        """Whether the names of this filter are the same columns in `stored` as in the table."""
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
    """A filter in two parts: Lance evaluates `told`, and `late` is applied to the rows that it returns."""

    told: str | None
    late: RowFilter | None

    @property
    def columns(self) -> list[str]:
        """The columns that `finish` needs."""
        return [] if self.late is None else self.late.columns

    def finish(self, rows: pa.Table) -> pa.Table:
        """`rows`, which Lance returned, without those for which the filter is not true."""
        return rows if self.late is None else self.late.apply(rows)


def pushdown(row_filter: RowFilter | None, stored: pa.Schema | None = None) -> Pushdown:
    """Split a filter over a dataset with the columns `stored`, by default those of the table."""
    return Pushdown(None, None) if row_filter is None else row_filter.pushdown(stored)


class RowExpressions:
    """SQL expressions over rows with the columns of `schema`, by the name of their result; Lance evaluates them."""

    __slots__ = ("_copied", "_evaluated", "_names", "columns")

    def __init__(self, expressions: Mapping[str, str], schema: pa.Schema) -> None:
        """`InvalidInputError` if Lance refuses one of them. `columns` are the columns that they need."""
        self._names = list(expressions)
        self._copied: dict[str, str] = {}
        self._evaluated: dict[str, str] = {}
        named: set[str] = set()
        for name, sql in expressions.items():
            if not isinstance(sql, str):
                raise InvalidInputError(
                    f"the expression for column {name!r} must be SQL text, not {type(sql).__name__}"
                )
            named.update(_named(sql, schema.names))
            column = column_of(sql, schema.names)
            if column is not None and isinstance(schema.field(column).type, pa.JsonType):
                self._copied[name] = column  # Lance would return its own bytes
            else:  # in parentheses it is all of the text: Lance ignores what follows an expression
                self._evaluated[f"{_POSITION}_{len(self._evaluated)}"] = f"({sql}\n)"
        self.columns = [name for name in schema.names if name in named]
        self.evaluate(no_rows(schema))

    def evaluate(self, table: pa.Table) -> pa.Table:
        """The results for every row of `table`, in order."""
        counted = _counted(table.num_rows)
        for name in self.columns:
            counted = counted.append_column(name, table.column(name))
        results = iter(_added(_image(counted), self._evaluated) if self._evaluated else ())
        copied = self._copied
        return pa.table({name: table.column(copied[name]) if name in copied else next(results) for name in self._names})


def _added(image: lance.LanceDataset, expressions: dict[str, str]) -> list[pa.ChunkedArray]:
    """The results of expressions, which become columns of `image`."""
    try:
        image.add_columns(expressions)
        return list(image.scanner(columns=list(expressions)).to_table().columns)
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


def _prepared_sql(sql: str, schema: pa.Schema) -> _Prepared:
    parsed, (columns, has_safe_errors) = parse(sql), _planned(sql, schema.serialize().to_pybytes())
    matches = _scanned if has_safe_errors else _deleted

    def positions(table: pa.Table) -> npt.NDArray[np.int64]:
        return matches(_image(table.select(columns) if columns else _counted(table.num_rows)), sql)

    whole = sql if has_safe_errors else None
    return _Prepared(list(columns), parsed.predicates(schema.names), parsed.conditions(schema.names), whole, positions)


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


def _scanned(image: lance.LanceDataset, sql: str) -> npt.NDArray[np.int64]:
    """The positions of the matching rows, for SQL with safe errors."""
    return _addresses(image.scanner(columns=[], filter=sql, with_row_address=True))


def _deleted(image: lance.LanceDataset, sql: str) -> npt.NDArray[np.int64]:
    """The positions of the matching rows; they are deleted from `image`."""
    rows = image.count_rows()
    image.delete(sql)
    return np.setdiff1d(np.arange(rows), _addresses(image.scanner(columns=[], with_row_address=True)))


def _addresses(scanner: lance.LanceScanner) -> npt.NDArray[np.int64]:
    return np.asarray(scanner.to_table().column(ROW_ADDRESS).to_numpy()).astype(np.int64)


@lru_cache(maxsize=_KNOWN_FILTERS)
def _planned(sql: str, serialized: bytes) -> tuple[tuple[str, ...], bool]:
    """The columns that a filter needs of a table with this schema, and whether its errors name no value of a row.

    `InvalidInputError` if Lance refuses the filter for this table.
    """
    table = _empty_image(serialized)
    names = table.schema.names
    columns = _named(sql, names)
    _evaluated(lambda: _check(table, sql))
    # Lance ignores what follows an expression. As a part of one it must be all of the text: at its end, where a column may
    # be called `select`, or at its start, where one may be called `any`.
    try:
        _check(table, f"({sql}\n) and true")
    except Exception:
        _evaluated(lambda: _check(table, f"(true and {sql}\n)"))
    try:
        _check(_image(_empty(serialized).select(columns) if columns else _counted(0)), sql)
    except Exception:
        columns = tuple(names)  # it names them in a way that we do not know
    return columns, _has_safe_errors(
        table.scanner(columns=[], filter=sql).explain_plan(), _empty(serialized).schema, columns
    )


def _check(image: lance.LanceDataset, sql: str) -> None:
    image.scanner(columns=[], filter=sql, with_row_address=True).count_rows()


def _has_safe_errors(plan: str, schema: pa.Schema, columns: Sequence[str]) -> bool:
    """Whether no error of a filter with this plan can name a value of these columns, or a NUL of its own.

    A plan shows every cast, also those that Lance adds: `s = i` is `CAST(s AS Int32) = i`.
    """
    condition = plan.partition("full_filter=")[2]
    if not condition or "\0" in condition or not all(map(_SAFE_CALL.fullmatch, _CALL.findall(condition))):
        return False
    textless = {name for name in columns if not _holds_text(schema.field(name).type)}
    if len(textless) == len(columns):
        return True
    return set(_CAST.findall(condition)) <= textless and not _PATTERN_OF_ROWS.search(condition)


def _holds_text(kind: pa.DataType) -> bool:
    """Whether values of the type may have text or bytes in them."""
    if pa.types.is_nested(kind):
        return any(_holds_text(kind.field(number).type) for number in range(kind.num_fields))
    return not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind))


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


def _prepared_expression(expression: pc.Expression, schema: pa.Schema) -> _Prepared:
    _evaluated(lambda: no_rows(schema).filter(expression))
    columns = _referenced(expression, schema)

    def positions(table: pa.Table) -> npt.NDArray[np.int64]:
        counted = _counted(table.num_rows).column(_POSITION)
        found = table.select(columns).append_column(_POSITION, counted).filter(expression)
        return np.asarray(found.column(_POSITION).to_numpy())

    demands = demands_of(expression, schema)
    parts = [(name, demand_text(name, predicate, schema.field(name).type)) for name, predicate in demands]
    return _Prepared(columns, demands, parts, sql_of(expression, schema), positions)


def _referenced(expression: pc.Expression, schema: pa.Schema) -> list[str]:
    """The columns without which the expression cannot be applied."""
    rows, names = no_rows(schema), []
    for name in schema.names:
        try:
            rows.drop_columns([name]).filter(expression)
        except pa.ArrowInvalid:
            names.append(name)
    return names
