"""Filters over rows in memory, read as Lance reads them.

Owns `RowFilter`. Lance's SQL differs from DataFusion's in three ways, which are translated token by token: column names
match whatever their case, double quotes hold a string, and `regexp_match` is a condition. Invariants:

1. The same filter selects the same rows in memory and in a Lance dataset. What Lance would read otherwise (pyarrow
   expressions over numbers with NaN, and what it cannot be told about) is never handed to it: `pushed`.
2. Rows keep their order.
3. A filter that cannot be read is an `InvalidInputError`; values are never formatted into filter text here.

Called by: the memtable scanner, the read path.
"""

from __future__ import annotations

import re
import threading
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from datafusion import SessionConfig, SessionContext

from memwal.errors import InvalidInputError

__all__ = ["FilterLike", "RowFilter"]

FilterLike: TypeAlias = str | pc.Expression
_TOKEN = re.compile(
    r"""(?P<string>'(?:[^']|'')*')|(?P<double>"(?:[^"]|"")*")|(?P<quoted>`(?:[^`]|``)*`)"""
    r"""|(?P<word>[^\W\d]\w*)|(?P<number>\d\w*(?:\.\d+)?)|(?P<other>\s+|.)""",
    re.DOTALL,
)
_contexts = threading.local()


class RowFilter:
    """One filter, ready for rows with the columns of `schema`."""

    __slots__ = ("_sql", "columns", "pushed", "source")

    def __init__(self, source: FilterLike, schema: pa.Schema) -> None:
        """`columns` are those that it names; `pushed` is what Lance may apply in its place, None if that is nothing."""
        self.source = source
        self._sql: str | None = None
        self.pushed: FilterLike | None = source
        if isinstance(source, str):
            self._sql, self.columns = _translate(source, schema)
        elif isinstance(source, pc.Expression):
            self.check(schema)
            self.columns = _referenced(source, schema)
            if not _reads_alike(source, schema, self.columns):
                self.pushed = None
        else:
            raise InvalidInputError(f"a filter is SQL text or a pyarrow expression, not {type(source).__name__}")

    def check(self, schema: pa.Schema) -> None:
        """Raise `InvalidInputError` if the filter cannot be applied to rows with these columns."""
        self._evaluate(schema.empty_table())

    def apply(self, table: pa.Table) -> pa.Table:
        """The rows of `table` for which the filter is true, in order."""
        return self._evaluate(table) if table.num_rows else table

    def _evaluate(self, table: pa.Table) -> pa.Table:
        try:
            if self._sql is None:
                return table.filter(self.source)
            return _run(table, self._sql)
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # native code gave up
                raise
            reason = (str(error).splitlines() or ["no reason given"])[0]
            raise InvalidInputError(f"the filter cannot be applied: {reason}") from None

    def __repr__(self) -> str:
        return f"RowFilter({str(self.source)!r})"


def _run(table: pa.Table, sql: str) -> pa.Table:
    context = getattr(_contexts, "context", None)
    if context is None:
        context = _contexts.context = SessionContext(SessionConfig().with_target_partitions(1))
    try:
        found = context.from_arrow(_unsliced(table), name="rows").filter(sql).to_arrow_table()
    finally:
        context.deregister_table("rows")
    return found.cast(table.schema) if found.schema != table.schema else found


def _unsliced(table: pa.Table) -> pa.Table:
    """`table`, with nested columns copied where they are slices: DataFusion's import of structs in structs fails on those."""
    for i, column in enumerate(table.columns):
        if pa.types.is_nested(column.type) and any(chunk.offset for chunk in column.chunks):
            chunks = [pa.concat_arrays([chunk, chunk.slice(0, 0)]) for chunk in column.chunks]
            table = table.set_column(i, table.schema.field(i), pa.chunked_array(chunks, column.type))
    return table


def _referenced(expression: pc.Expression, schema: pa.Schema) -> list[str]:
    """The columns without which the expression cannot be applied."""
    rows, names = schema.empty_table(), []
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
    # Vectors are what Lance itself leaves out when it is told an expression; any other type must convert.
    told = pa.schema([column for column in schema if not types.is_fixed_size_list(column.type)])
    try:
        expression.to_substrait(told)
    except (pa.ArrowException, NotImplementedError):
        return False
    return True


def _translate(sql: str, schema: pa.Schema) -> tuple[str, list[str]]:
    """The filter in DataFusion's dialect, and the columns that it names."""
    by_lower = {name.lower(): name for name in reversed(schema.names)}
    exact = set(schema.names)
    used: dict[str, None] = {}
    parts: list[str] = []
    for match in _TOKEN.finditer(sql):
        kind, text = match.lastgroup, match.group()
        if kind == "double":
            text = "'" + text[1:-1].replace('""', '"').replace("'", "''") + "'"
        elif kind in ("word", "quoted"):
            name = text[1:-1].replace("``", "`") if kind == "quoted" else text
            column = name if name in exact else by_lower.get(name.lower())
            after_dot = bool(parts) and parts[-1] == "."
            if column is not None and not after_dot:
                used[column] = None
                text = _quote(column)
            elif kind == "quoted" or after_dot:
                text = _quote(name)
        parts.append(text)
    if not "".join(parts).strip():
        raise InvalidInputError("the filter is empty")
    return "".join(_conditions(_field_access(parts))), list(used)


def _field_access(parts: list[str]) -> list[str]:
    """`column.field` as bracket access, since DataFusion would read it as `table.column`."""
    out: list[str] = []
    i = 0
    while i < len(parts):
        if parts[i] == "." and out and out[-1].endswith(('"', "]")) and i + 1 < len(parts) and parts[i + 1][:1] == '"':
            out.append("['" + parts[i + 1][1:-1].replace('""', '"').replace("'", "''") + "']")
            i += 2
        else:
            out.append(parts[i])
            i += 1
    return out


def _conditions(parts: list[str]) -> list[str]:
    """`regexp_match(...)`, which returns the matches, as a condition wherever Lance takes it for one."""
    out = list(parts)
    calls: list[int] = []  # per open parenthesis: where its regexp_match starts, or -1
    groups: list[bool] = []  # per open parenthesis: whether it holds a condition
    before, before_at = "", -1
    for i, part in enumerate(parts):
        word = part.strip().lower()
        if word == "(":
            calls.append(before_at if before == "regexp_match" else -1)
            groups.append(before in ("", "(", "and", "or", "not"))
        elif word == ")" and calls:
            start = calls.pop()
            groups.pop()
            after = next((later.strip().lower() for later in parts[i + 1 :] if later.strip()), "")
            if start >= 0 and (after in ("", "and", "or") or (after == ")" and groups and groups[-1])):
                out[start] = "(" + out[start]
                out[i] = ") IS NOT NULL)"
        if word:
            before, before_at = word, i
    return out


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
