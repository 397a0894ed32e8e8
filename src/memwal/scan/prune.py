"""Which shards a filter can match, from what it says of the shard column.

Owns `values_in_filter`: the values to which a filter pins a column, read from its top-level conjunction only.
Invariant: it may miss a restriction, it never invents one.

Called by: the table facade.
"""

from __future__ import annotations

import re

__all__ = ["values_in_filter"]

_LITERAL = r"(?:-?\d+|'(?:[^']|'')*'|true|false)"
_EQUALS = re.compile(rf"\s*`?(\w+)`?\s*=\s*({_LITERAL})\s*", re.IGNORECASE)
_IN = re.compile(rf"\s*`?(\w+)`?\s+in\s*\(\s*({_LITERAL}(?:\s*,\s*{_LITERAL})*)\s*\)\s*", re.IGNORECASE)
_SPLIT = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\(|\)|\bcase\b|\bend\b|\bbetween\b|\band\b|\bor\b", re.IGNORECASE
)


def values_in_filter(sql: str, column: str) -> list[int | str | bool] | None:
    """The values that `column` can have where the filter is true, or None if it says nothing certain."""
    for conjunct in _conjuncts(sql):
        match = _EQUALS.fullmatch(conjunct) or _IN.fullmatch(conjunct)
        if match is not None and match.group(1).lower() == column.lower():
            return [_value(text) for text in re.findall(_LITERAL, match.group(2), re.IGNORECASE)]
    return None


def _conjuncts(sql: str) -> list[str]:
    """The parts joined by AND at the top level; nothing if an OR, CASE or BETWEEN is there too."""
    parts, start, depth = [], 0, 0
    for match in _SPLIT.finditer(sql):
        word = match.group().lower()
        if word == "(":
            depth += 1
        elif word == ")":
            depth -= 1
        elif depth == 0 and word in ("or", "case", "between"):
            return []
        elif depth == 0 and word == "and":
            parts.append(sql[start : match.start()])
            start = match.end()
    return [*parts, sql[start:]]


def _value(text: str) -> int | str | bool:
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    return text.lower() == "true" if text.lower() in ("true", "false") else int(text)
