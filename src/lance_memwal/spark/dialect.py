"""Filters that users write in Spark's SQL, translated to Lance's.

Entry point: `as_spark_reads`. A small grammar reads the filter, and each part is written again for Lance.

1. The result selects the rows that `.where(...)` selects with the same text. Text outside the grammar is refused.
2. A column is compared with literals of its own type, or with a column of the same type. Only types that Lance compares as
   Spark does are allowed (`face/predicates.py`). Spark converts no operand then, so that its rules of conversion do not matter.
3. A timestamp without a time zone is in the zone of the session. It is refused if that zone is not known.

condition    conjunction {OR conjunction}
conjunction  negation {AND negation}
negation     NOT negation | ( condition ) | column | column test
test         sign value | IS [NOT] NULL | [NOT] IN (value, ...) | [NOT] BETWEEN value AND value | [NOT] LIKE value
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa

from lance_memwal.arguments import described
from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.sql import Token, literal_text, parse, quoted, tokens_of, unquoted
from lance_memwal.spark.face.predicates import is_exact
from lance_memwal.spark.options import found, resolved

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2}):?(\d{2})?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?)?)(?:(Z)| ?([+-]\d\d:\d\d(?::\d\d)?))?", re.ASCII
)
_NUMBER = re.compile(r"\d{1,38}(\.\d{1,38})?", re.ASCII)
_FIRST_COMMON_YEAR = 1970  # for earlier years, Java and Python may have different histories of a zone
_SIGNS = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_KEYWORDS = frozenset({"and", "or", "not", "in", "is", "between", "like", "null", "true", "false", "case", "exists"})
_INSTEAD = "use .where(...) on the DataFrame, which Spark evaluates"
_END: Token = ("end", "")


def as_spark_reads(
    sql: str, schema: pa.Schema, *, zone: str | None = None, case_sensitive: bool = False, instead: str = _INSTEAD
) -> str:
    """SQL for Lance that selects the rows that Spark would select.

    `InvalidInputError` if that is not certain. Its text ends with `instead`.
    """
    if (fault := parse(sql).fault) is not None:
        raise InvalidInputError(fault)
    tokens = [token for token in tokens_of(sql) if not _is_plain_comment(*token)]
    reader = _Reader(tokens, schema, zone, case_sensitive, instead)
    try:
        condition = reader.condition()
    except RecursionError:
        raise InvalidInputError(f"the filter nests too deep; {instead}") from None
    if reader.next != _END:
        raise reader.refusal()
    return condition


def _is_plain_comment(kind: str, text: str) -> bool:
    """Whether a token is a comment that Spark ends at the same character, and that is not a hint."""
    return kind == "comment" and not text.startswith("/*+") and not any(part in text[2:] for part in ("\\", "\r", "/*"))


@dataclass(frozen=True, slots=True)
class _Column:
    """A column: its name, as SQL, and its type."""

    name: str
    sql: str
    kind: pa.DataType


@dataclass(slots=True)
class _Reader:
    """Reads the tokens of a filter from left to right, and returns each part as SQL for Lance."""

    tokens: list[Token]
    schema: pa.Schema
    zone: str | None
    case_sensitive: bool
    instead: str
    at: int = 0

    def condition(self) -> str:
        """Conjunctions joined by OR."""
        parts = [self.conjunction()]
        while self.takes("or"):
            parts.append(self.conjunction())
        return f"({' or '.join(parts)})" if len(parts) > 1 else parts[0]

    def conjunction(self) -> str:
        """Negations joined by AND."""
        parts = [self.negation()]
        while self.takes("and"):
            parts.append(self.negation())
        return f"({' and '.join(parts)})" if len(parts) > 1 else parts[0]

    def negation(self) -> str:
        """A test of a column, or a condition in parentheses, perhaps after NOT."""
        if self.takes("not"):
            return f"(not {self.negation()})"
        if not self.takes("("):
            return f"({self.test(self.column())})"
        inner = self.condition()
        self.needs(")")
        return inner

    def test(self, column: _Column) -> str:
        """The tokens after a column, up to the next AND, OR or parenthesis."""
        name = column.sql
        if self.takes("is"):
            test = "is not null" if self.takes("not") else "is null"
            self.needs("null")
            return f"{name} {test}"
        if not is_exact(column.kind):
            raise InvalidInputError(
                f"column {column.name!r} of type {column.kind} is compared differently by Spark and Lance; {self.instead}"
            )
        if self.next[1] in _SIGNS:
            sign = _SIGNS[self.take()[1]]
            if sign == "=":
                self.takes("=")  # ==
            return f"{name} {sign} {self.value(column)}"
        negated = "not " if self.takes("not") else ""
        if self.takes("between"):
            lower = self.value(column)
            self.needs("and")
            return f"{negated}({name} >= {lower} and {name} <= {self.value(column)})"
        if self.takes("in"):
            return f"{name} {negated}in ({', '.join(self.values(column))})"
        if pa.types.is_string(column.kind) and self.takes("like"):
            return f"{name} {negated}like {self.literal(column)}"
        if negated or not pa.types.is_boolean(column.kind):
            raise self.refusal()
        return name

    def column(self) -> _Column:
        """A column. `excluded.name` is the same column of the row that is written."""
        kind, text = self.take()
        if kind != "name" or text.lower() in _KEYWORDS or self.next[1] == "(":
            raise self.refusal(text)
        name, prefix = unquoted(text), ""
        if name.lower() == "excluded" and self.takes("."):
            name, prefix = unquoted(self.take()[1]), "excluded."
        names = self.schema.names
        if self.case_sensitive and name not in names and found(name, names) is not None:
            raise InvalidInputError(f"column {name!r} is not in the table, and spark.sql.caseSensitive is set")
        column = resolved(name, names, case_sensitive=self.case_sensitive)
        return _Column(column, prefix + quoted(column), self.schema.field(column).type)

    def values(self, column: _Column) -> list[str]:
        """The literals of a list, in parentheses."""
        self.needs("(")
        values = [self.literal(column)]
        while self.takes(","):
            values.append(self.literal(column))
        self.needs(")")
        return values

    def value(self, column: _Column) -> str:
        """A literal of the type of `column`, or another column of that type."""
        kind, text = self.next
        is_column = kind == "name" and text.lower() not in _KEYWORDS and self.following[0] != "string"
        if not is_column:
            return self.literal(column)
        other = self.column()
        if other.kind != column.kind:
            raise self.refusal(f"{column.name} and {other.name}")
        return other.sql

    def literal(self, column: _Column) -> str:
        """A literal of the type of `column`."""
        kind, types = column.kind, pa.types
        start = self.at
        value: object = None
        if types.is_boolean(kind):
            value = {"true": True, "false": False}.get(self.take()[1].lower())
        elif types.is_string(kind):
            value = self.text()
        elif types.is_date32(kind) and self.take()[1].lower() == "date":
            value = _parsed(_DATE, self.text())
        elif types.is_timestamp(kind):
            value = self.timestamp(column)
        elif types.is_integer(kind) or types.is_decimal(kind):
            value = self.number(whole=types.is_integer(kind))
        try:
            if value is not None:
                return literal_text(value, kind)
        except (pa.ArrowException, OverflowError):
            pass
        shown = " ".join(text for _, text in self.tokens[start : self.at])
        raise InvalidInputError(
            f"{described(shown)} is not a literal of type {kind}, which column {column.name!r} has; {self.instead}"
        )

    def number(self, *, whole: bool) -> Decimal | int | None:
        """A number of digits. With an exponent it has another type in Spark."""
        sign = -1 if self.takes("-") else 1
        kind, text = self.take()
        match = _NUMBER.fullmatch(text)
        if kind != "number" or match is None or (whole and match[1]):
            return None
        return sign * (int(match[0]) if whole else Decimal(match[0]))

    def text(self) -> str | None:
        """The text of a string without escapes."""
        kind, token = self.take()
        is_plain = kind == "string" and token.startswith("'") and "\\" not in token
        return token[1:-1].replace("''", "'") if is_plain else None

    def timestamp(self, column: _Column) -> datetime | None:
        """A timestamp in UTC, or for a column without a time zone the local time."""
        word = self.take()[1].lower()
        text = self.text()
        local = _parsed(_TIMESTAMP, text)
        if word not in ("timestamp", "timestamp_ltz", "timestamp_ntz") or not isinstance(local, datetime):
            return None
        if column.kind.tz is None:
            fixed = self.zone is not None and isinstance(_zone(self.zone), timezone)
            if local.tzinfo is not None or not (word == "timestamp_ntz" or fixed):
                day = local.replace(tzinfo=None).isoformat(" ")
                raise InvalidInputError(f"column {column.name!r} has no time zone; write timestamp_ntz '{day}'")
            return local
        if word == "timestamp_ntz":
            raise InvalidInputError(f"column {column.name!r} has a time zone; write timestamp '{text}'")
        zone = local.tzinfo or (None if self.zone is None else _zone(self.zone))
        if zone is None or not (isinstance(zone, timezone) or local.year >= _FIRST_COMMON_YEAR):
            option = "" if zone else ", or give the option 'timeZone'"
            raise InvalidInputError(f"timestamp '{text}' has no time zone; write timestamp '{text}+00:00'{option}")
        try:
            return local.replace(tzinfo=zone).astimezone(UTC)
        except OverflowError:
            return None

    # ----------------------------------------------------------------------------------------------------------- tokens

    @property
    def next(self) -> Token:
        """The token that is read next."""
        return self.tokens[self.at] if self.at < len(self.tokens) else _END

    @property
    def following(self) -> Token:
        """The token after the next one."""
        return self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else _END

    def take(self) -> Token:
        """Read the next token."""
        token = self.next
        self.at += 1
        return token

    def takes(self, word: str) -> bool:
        """Read the next token if it is `word`."""
        is_next = self.next[1].lower() == word
        self.at += is_next
        return is_next

    def needs(self, word: str) -> None:
        """Read the next token, which must be `word`."""
        if not self.takes(word):
            raise self.refusal()

    def refusal(self, text: str | None = None) -> InvalidInputError:
        """The error for `text`, by default the next token."""
        shown = self.next[1] if text is None else text
        if not shown:
            return InvalidInputError("the filter is incomplete")
        return InvalidInputError(f"{described(shown)} in the filter may have another meaning in Spark; {self.instead}")


def _parsed(form: re.Pattern[str], text: str | None) -> date | None:
    """The date or timestamp that `text` stands for, in a form that Spark and Python read the same way."""
    match = None if text is None else form.fullmatch(text)
    try:
        if match is not None:
            return (
                date.fromisoformat(match[0])
                if form is _DATE
                else datetime.fromisoformat("".join(filter(None, match.groups())))
            )
    except ValueError:
        pass
    return None


def _zone(name: str) -> tzinfo:
    offset = _OFFSET.fullmatch(name)
    try:
        if offset is not None:
            sign, hours, minutes = offset.groups()
            ahead = timedelta(hours=int(hours), minutes=int(minutes or 0))
            return timezone(ahead if sign == "+" else -ahead)
        return UTC if name in ("Z", "UTC", "GMT") else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, RecursionError):  # the name is that of a file, of any length
        raise InvalidInputError(f"unknown time zone {described(name)}; write timestamps with their zone") from None
