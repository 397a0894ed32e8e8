"""Filters in SQL, as Spark reads them: Lance evaluates them, and what the two read differently is refused.

Owns `as_spark_reads`. The text stays Lance's; only timestamps are written anew, with the zone that they are meant in. Invariants:

1. A timestamp without a zone is meant in the time zone of the session; where that is not known, it is refused. Compared with a
   column without a zone it is what it says.
2. Whatever is not known to mean the same in both is refused, with what to write instead. Functions that only Lance has are its
   own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa

from lance_memwal.arguments import described
from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.sql import Token, is_quoted, tokens_of, unquoted
from lance_memwal.spark.names import found

__all__ = ["as_spark_reads"]

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2}):?(\d{2})?")
_ZONE_IN_TEXT = re.compile(r"(?:Z|UTC|[+-]\d{1,2}(?::?\d{2})?(?P<seconds>:?\d{2})?|\s[A-Za-z_/]+)$")
_LONGEST_STAMP = 100  # a zone has a name
_STAMP = re.compile(r"\btimestamp\s+('(?:[^']|'')*')", re.IGNORECASE)
_ALIKE = frozenset(
    {"abs", "coalesce", "length", "char_length", "character_length", "lower", "upper", "nullif", "ifnull"}
)
_LANCES_OWN = frozenset(
    {"array_has", "array_has_all", "array_has_any", "contains_tokens", "regexp_match", "regexp_like"}
)
_OWN_PREFIXES = ("json_", "st_")
_CLOCKS = frozenset({"current_date", "current_time", "current_timestamp", "now", "interval"})
_CASTS = frozenset({"cast", "try_cast", "arrow_cast"})
_WORDS = frozenset(
    {"and", "or", "not", "in", "between", "is", "null", "like", "ilike", "true", "false", "case", "when"}
) | {*("then", "else", "end", "date", "timestamp", "escape", "distinct", "from", "as", "time", "excluded")}
_INSTEAD = "use .where(...) on the DataFrame, which Spark evaluates"


def as_spark_reads(sql: str, schema: pa.Schema, *, zone: str | None = None, case_sensitive: bool = False) -> str:
    """The filter for Lance that selects what Spark would select; `InvalidInputError` if there is none."""
    tokens = tokens_of(sql)
    stamps = _stamp_columns(tokens, schema, case_sensitive=case_sensitive)
    written: dict[str, str] = {}
    for number, (kind, text) in enumerate(tokens):
        before = tokens[number - 1] if number else ("", "")
        after = tokens[number + 1] if number + 1 < len(tokens) else ("", "")
        word = text.lower() if kind == "name" else ""
        _refuse_unlike(kind, text, after)
        if kind == "string" and before[1].lower() == "timestamp" and stamps:
            written[text] = _timestamp(text, stamps, zone)
        if word == "date" and after[0] == "string" and any(stamp.tz is not None for stamp in stamps):
            raise InvalidInputError(
                f"a date and a timestamp are compared in the filter, which depends on the time zone: write timestamp {after[1]}"
            )
    return _STAMP.sub(lambda match: f"timestamp {written.get(match[1], match[1])}", sql)


def _refuse_unlike(kind: str, text: str, after: Token) -> None:
    word = text.lower() if kind == "name" else ""
    if kind == "string" and "\\" in text:
        raise InvalidInputError(f"a backslash in a text means another thing to Spark than to Lance: {_INSTEAD}")
    if text == "/":
        raise InvalidInputError(f"Spark divides whole numbers to a fraction, and Lance does not: {_INSTEAD}")
    if word in _CLOCKS or text == ":" or (word in _CASTS and after[1] == "("):
        shown = "::" if text == ":" else text
        raise InvalidInputError(f"{shown!r} in the filter may mean another thing to Spark than to Lance: {_INSTEAD}")
    if word and after[1] == "(" and word not in _ALIKE | _LANCES_OWN | _WORDS and not word.startswith(_OWN_PREFIXES):
        raise InvalidInputError(f"function {text!r} may mean another thing to Spark than to Lance: {_INSTEAD}")


def _stamp_columns(tokens: list[Token], schema: pa.Schema, *, case_sensitive: bool) -> list[pa.DataType]:
    """The types of the timestamp columns that the filter names; every name is one that Spark would take."""
    types = []
    for name in _names(tokens):
        column = found(name, schema.names, case_sensitive=case_sensitive)
        if column is None and case_sensitive and found(name, schema.names) is not None:
            raise InvalidInputError(f"column {name!r} is not in the table, and spark.sql.caseSensitive is set")
        if column is not None and pa.types.is_timestamp(schema.field(column).type):
            types.append(schema.field(column).type)
    return types


def _names(tokens: list[Token]) -> Iterator[str]:
    previous = ""
    for number, (kind, text) in enumerate(tokens):
        is_call = number + 1 < len(tokens) and tokens[number + 1][1] == "("
        is_field = previous == "." and tokens[number - 2][1].lower() != "excluded"
        if kind == "name" and not is_field and not (is_call and not is_quoted(text)):
            yield unquoted(text)
        previous = text


def _timestamp(literal: str, stamps: list[pa.DataType], zone: str | None) -> str:
    text = literal[1:-1].strip()
    if len(text) > _LONGEST_STAMP:
        raise _no_timestamp(text)
    given = _ZONE_IN_TEXT.search(text[10:])
    if len({stamp.tz is None for stamp in stamps}) > 1:
        raise InvalidInputError(f"the filter compares timestamps with and without a time zone: {_INSTEAD}")
    if stamps[0].tz is None:
        if given is not None:
            raise InvalidInputError(f"the column has no time zone: write timestamp {literal} without one")
        return literal
    if given is not None:
        return literal if given["seconds"] is None else f"'{_in_utc(text, 'UTC')}'"  # Lance reads no seconds of zones
    if zone is None:
        raise InvalidInputError(
            f"timestamp {literal} has no time zone, and the one of the session is not known here: write "
            f"timestamp '{text}+00:00', or give the option 'timeZone'"
        )
    return f"'{_in_utc(text, zone)}'"


def _in_utc(text: str, zone: str) -> str:
    """A timestamp as UTC writes it: in the zone that it names, or else in `zone`."""
    known = _zone(zone)
    try:
        there = datetime.fromisoformat(re.sub(r"\s+(?=[+-])", "", text))
        there = there if there.tzinfo is not None else there.replace(tzinfo=known)
        return there.astimezone(UTC).isoformat(" ", "microseconds")
    except (ValueError, OverflowError):
        raise _no_timestamp(text) from None


def _no_timestamp(text: str) -> InvalidInputError:
    return InvalidInputError(f"{described(text)} is no timestamp such as '2026-01-31 12:00:00'")


def _zone(name: str) -> tzinfo:
    offset = _OFFSET.fullmatch(name)
    try:
        if offset is not None:
            sign, hours, minutes = offset.groups()
            ahead = timedelta(hours=int(hours), minutes=int(minutes or 0))
            return timezone(ahead if sign == "+" else -ahead)
        return UTC if name in ("Z", "UTC", "GMT") else ZoneInfo(name)
    except (
        ZoneInfoNotFoundError,
        ValueError,
        OSError,
        RecursionError,
    ):  # it is the name of a file, however long or deep
        raise InvalidInputError(
            f"the time zone {described(name)} is not known: write timestamps with their zone"
        ) from None
