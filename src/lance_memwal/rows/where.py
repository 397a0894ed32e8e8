"""Filters with values: `where("tenant = ? and at > :since", "a", since=...)`.

Entry points: `where` makes a `Where`, which goes wherever a filter goes. `Where.sql` writes its values into the text.

1. A value has the type of the column that it is compared with. A value that the column cannot hold is refused.
2. Values are written by the literal encoder of `rows/sql.py` only, so that no value is read as SQL.
3. A `?` or a `:name` in quotes or in a comment is text.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from lance_memwal.arguments import described
from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.sql import Token, literal_text, parts_of, unquoted

_COMPARISONS = frozenset({"=", "<>", "!=", "<", "<=", ">", ">=", "like", "ilike"})


@dataclass(frozen=True, slots=True)
class Where:
    """SQL with placeholders, and their values."""

    text: str
    values: tuple[object, ...]
    named: Mapping[str, object]

    def sql(self, schema: pa.Schema) -> str:
        """The filter for a table with these columns."""
        parts = parts_of(self.text)
        values = iter(self.values)
        written = [text for _, text in parts]
        for at, name in _placeholders(parts):
            value = next(values) if name is None else self.named[name]
            kind = _compared_type(parts, at, 1 if name is None else 2, schema)
            written[at] = _literal(value, kind, name or "?")
            if name is not None:
                written[at + 1] = ""
        return "".join(written)

    def __str__(self) -> str:
        return self.text


def where(text: str, /, *values: object, **named: object) -> Where:
    """Make a filter from SQL and values.

    Args:
        text: SQL with a `?` for each of `values`, and `:name` for each of `named`.
        values: The values, in order. Each has the type of the column that it is compared with.
        named: Further values, by name.

    Raises:
        InvalidInputError: The placeholders and the values do not match.

    Example:
        `table.scan(filter=mw.where("tenant = ? and at > :since", "a", since=midnight))`
    """
    if not isinstance(text, str):
        raise InvalidInputError(f"a filter with values is SQL text, not {type(text).__name__}")
    names = [name for _, name in _placeholders(parts_of(text))]
    if names.count(None) != len(values):
        raise InvalidInputError(f"the filter has {names.count(None)} placeholders ? for {len(values)} values")
    if (wanted := {name for name in names if name is not None}) != set(named):
        raise InvalidInputError(f"the filter names the values {sorted(wanted)}, and these are given: {sorted(named)}")
    return Where(text, values, named)


def _placeholders(parts: Sequence[Token]) -> list[tuple[int, str | None]]:
    """The positions of the placeholders, each with its name; a `?` has none."""
    found: list[tuple[int, str | None]] = []
    for at, (kind, text) in enumerate(parts):
        if kind != "other":
            continue
        follows = parts[at + 1] if at + 1 < len(parts) else ("", "")
        if text == "?":
            found.append((at, None))
        elif text == ":" and follows[0] == "name" and (at == 0 or parts[at - 1][1] != ":"):
            found.append((at, follows[1]))
    return found


def _compared_type(parts: Sequence[Token], at: int, width: int, schema: pa.Schema) -> pa.DataType | None:
    """The type of the column that the placeholder at `at` is compared with; None if it is not compared with a column."""
    before = [token for token in parts[:at] if token[0] not in ("space", "comment")]
    after = [token for token in parts[at + width :] if token[0] not in ("space", "comment")]
    kind = _type_at_end(_left_side(before), schema)
    if kind is None and after and after[0][1] in _COMPARISONS:
        path = 2
        while path + 1 < len(after) and after[path][1] == ".":
            path += 2
        kind = _type_at_end(after[1:path], schema)
    return kind


def _left_side(before: list[Token]) -> list[Token]:
    """The tokens before the operator that compares what follows them."""
    words = [text.lower() for _, text in before]
    at = len(words) - 1
    if at >= 0 and words[at] in ("(", ","):  # x in (1, ?
        at = max((i for i, word in enumerate(words) if word == "in"), default=0)
    elif at >= 0 and words[at] == "and":  # x between 1 and ?
        at = max((i for i, word in enumerate(words) if word == "between"), default=0)
        if {"and", "or"} & set(words[at:-1]):
            return []
    elif at < 0 or words[at] not in _COMPARISONS | {"between"}:
        return []
    while at > 0 and words[at - 1] in ("not", "=", "<", "!"):  # not like, ==
        at -= 1
    return before[:at]


def _type_at_end(tokens: Sequence[Token], schema: pa.Schema) -> pa.DataType | None:
    """The type of the column, or of the field of a struct, that the last tokens name."""
    path: list[str] = []
    for at in range(len(tokens) - 1, -1, -2):
        if tokens[at][0] != "name":
            return None
        path.insert(0, unquoted(tokens[at][1]))
        if at == 0 or tokens[at - 1][1] != ".":
            break
    if len(path) > 1 and path[0].lower() == "excluded" and path[0] not in schema.names:
        path = path[1:]  # the same column of the row that is written
    fields = list(schema)
    for name in path:
        same = [field for field in fields if field.name == name] or [
            f for f in fields if f.name.lower() == name.lower()
        ]
        if not same:
            return None
        kind = same[0].type
        fields = list(kind) if pa.types.is_struct(kind) else []
    return kind if path else None


def _literal(value: Any, kind: pa.DataType | None, name: str) -> str:
    """A value as SQL."""
    value = value.as_py() if isinstance(value, pa.Scalar) else value
    if value is None:
        raise InvalidInputError(f"the value of {name!r} is None, which equals nothing; write `is null` into the text")
    try:
        kind = pa.scalar(value).type if kind is None else kind
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        kind = pa.string() if isinstance(kind, pa.JsonType) else kind
        if isinstance(kind, pa.UuidType):
            return literal_text((value if isinstance(value, uuid.UUID) else uuid.UUID(value)).bytes, kind)
        # pyarrow cuts fractions off
        if _is_of(value, kind) and (pa.types.is_floating(kind) or pa.array([value], kind)[0].as_py() == value):
            return literal_text(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass
    raise InvalidInputError(f"the value of {name!r}, {described(value)}, is not a value of type {kind}")


def _is_of(value: Any, kind: pa.DataType) -> bool:
    """Whether a value is of a class that is not converted for the type."""
    types = pa.types
    if isinstance(value, bool):
        return bool(types.is_boolean(kind))
    if types.is_timestamp(kind):
        return isinstance(value, datetime) and (value.tzinfo is None) == (kind.tz is None)
    if types.is_date(kind):
        return isinstance(value, date) and not isinstance(value, datetime)
    if types.is_time(kind) or types.is_duration(kind):
        return not isinstance(value, int)
    return not types.is_string(kind) or isinstance(value, str)
