"""Which shards a filter can match, from what it says of the shard column.

Owns `values_in_filter`: the values to which a filter pins a column, read from its top-level conjunction only.
Invariant: it may miss a restriction, it never invents one.

Called by: the table facade.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["values_in_filter"]

_LITERAL = r"(?:-?\d+|'(?:[^']|'')*'|true|false)"
_EQUALS = re.compile(rf"\s*`?(\w+)`?\s*=\s*({_LITERAL})\s*", re.IGNORECASE)
_IN = re.compile(rf"\s*`?(\w+)`?\s+in\s*\(\s*({_LITERAL}(?:\s*,\s*{_LITERAL})*)\s*\)\s*", re.IGNORECASE)
_SPLIT = re.compile(
    r"(?P<quoted>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`)|(?P<open>\()|(?P<close>\))|(?P<and>\band\b)"
    r"|(?P<unclear>\bor\b|\bcase\b|\bbetween\b)|(?P<foreign>--|/\*|\$|\w(?=')|['\"`])",
    re.IGNORECASE,
)


def values_in_filter(sql: str, column: str, columns: Sequence[str]) -> list[int | str | bool] | None:
    """The values that `column`, one of `columns`, can have where the filter is true; None if that is not certain."""
    for conjunct in _conjuncts(sql):
        match = _EQUALS.fullmatch(conjunct) or _IN.fullmatch(conjunct)
        if match is not None and _named(match.group(1), columns) == column:
            return [_value(text) for text in re.findall(_LITERAL, match.group(2), re.IGNORECASE)]
    return None


def _named(name: str, columns: Sequence[str]) -> str | None:
    """The column that `name` means: the one of exactly that name, else the first one that differs in case only."""
    if name in columns:
        return name
    return next((column for column in columns if column.lower() == name.lower()), None)


def _conjuncts(sql: str) -> list[str]:
    """The parts joined by AND at the top level; nothing if something else is there too.

    Something else is an OR, CASE or BETWEEN, and whatever changes what is text and what is not: comments, dollar quotes,
    prefixed strings, quotes without an end.
    """
    parts, start, depth = [], 0, 0
    for match in _SPLIT.finditer(sql):
        kind = match.lastgroup
        if kind == "open":
            depth += 1
        elif kind == "close":
            depth -= 1
        elif kind == "foreign" or (depth == 0 and kind == "unclear"):
            return []
        elif depth == 0 and kind == "and":
            parts.append(sql[start : match.start()])
            start = match.end()
    return [*parts, sql[start:]]


def _value(text: str) -> int | str | bool:
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    return text.lower() == "true" if text.lower() in ("true", "false") else int(text)
