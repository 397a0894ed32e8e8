"""What a filter says of single columns, as far as a BTree index can use it.

Owns the reading of a filter's top-level conjunction. Invariants:

1. Every row for which the filter is true satisfies every predicate that is returned: a part may be missed, none is
   invented. Whoever uses the predicates evaluates the filter itself on what they leave.
2. Text that is not certainly understood (comments, prefixed strings, OR or CASE at the top) gives nothing.

Called by: scans of memtables.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lance_memwal.rows.predicate import Equals, In, IsNotNull, IsNull, Predicate, Range

__all__ = ["name_of", "predicates", "tokens"]

_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<comment>--[^\n]*|/\*.*?\*/)|(?P<foreign>/\*|\$|\w+(?=['\"`]))|(?P<string>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")"
    r"|(?P<name>`(?:[^`]|``)*`|[^\W\d]\w*)|(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w))|(?P<sign><=|>=|<>|!=|[=<>(),-])"
    r"|(?P<other>.)",
    re.DOTALL,
)
_FLIPPED = {"=": "=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_UNCLEAR = frozenset({"or", "xor", "case", "when", "then", "else", "end"})
# Without quotes they are not (or not everywhere) the column that may have such a name.
_CLOCKS = frozenset({"current_date", "current_time", "current_timestamp"})
_KEYWORDS = frozenset({"and", "between", "false", "in", "is", "like", "not", "null", "true"}) | _UNCLEAR | _CLOCKS
Token = tuple[str, str]


def predicates(sql: str, columns: Sequence[str]) -> list[tuple[str, Predicate]]:
    """The columns among `columns` of which the filter demands something, and what."""
    found = tokens(sql)
    if any(kind in ("foreign", "comment") or (kind == "other" and text in "'\"`") for kind, text in found):
        return []
    return _conjunction(found, columns)


def tokens(sql: str) -> list[Token]:
    """The words and signs of filter text in Lance's dialect, each with its kind; comments too."""
    return [(str(m.lastgroup), m.group()) for m in _TOKEN.finditer(sql) if m.lastgroup != "space"]


def name_of(text: str) -> str:
    """The name that a token stands for."""
    return text[1:-1].replace("``", "`") if text.startswith("`") else text


def _conjunction(tokens: list[Token], columns: Sequence[str]) -> list[tuple[str, Predicate]]:
    parts = _split(tokens)
    found: list[tuple[str, Predicate]] = []
    for part in parts:
        if len(part) > 2 and part[0] == ("sign", "(") and _closes(part) == len(part) - 1:
            found += _conjunction(part[1:-1], columns)
        elif (one := _predicate(part, columns)) is not None:
            found.append(one)
    return found


def _closes(tokens: list[Token]) -> int:
    """Where the parenthesis that opens `tokens` is closed, or -1."""
    depth = 0
    for number, (_, text) in enumerate(tokens):
        depth += (text == "(") - (text == ")")
        if depth == 0:
            return number
    return -1


def _split(tokens: list[Token]) -> list[list[Token]]:
    """The parts joined by AND; nothing if something weaker binds them."""
    parts: list[list[Token]] = [[]]
    depth, between = 0, False
    for kind, text in tokens:
        word = text.lower() if kind == "name" else ""
        if depth == 0 and word in _UNCLEAR:
            return []
        if kind == "sign":
            depth += (text == "(") - (text == ")")
        if depth == 0 and word == "and" and not between:
            parts.append([])
            continue
        between = word == "between" or (between and not (depth == 0 and word == "and"))
        parts[-1].append((kind, text))
    return parts


def _predicate(tokens: list[Token], columns: Sequence[str]) -> tuple[str, Predicate] | None:
    for start in range(2):  # the column first, or (behind a literal and a sign) last
        if start == 0:
            column = _column(tokens[:1], columns)
            if column is not None:
                found = _of_rest(tokens[1:])
                return None if found is None else (column, found)
        else:
            column = _column(tokens[-1:], columns)
            if column is not None and len(tokens) >= 3 and tokens[-2][1] in _FLIPPED:
                found = _compared(_FLIPPED[tokens[-2][1]], tokens[:-2])
                return None if found is None else (column, found)
    return None


def _column(tokens: list[Token], columns: Sequence[str]) -> str | None:
    if not tokens or tokens[0][0] != "name":
        return None
    if tokens[0][1].lower() in _KEYWORDS:
        return None
    name = name_of(tokens[0][1])
    if name in columns:
        return name
    return next((column for column in columns if column.lower() == name.lower()), None)


def _of_rest(tokens: list[Token]) -> Predicate | None:
    """The predicate that these tokens, which follow a column, stand for."""
    words = [text.lower() if kind == "name" else text for kind, text in tokens]
    if words == ["is", "null"]:
        return IsNull()
    if words == ["is", "not", "null"]:
        return IsNotNull()
    if words[:1] == ["between"] and words.count("and") == 1:
        middle = words.index("and")
        lower, upper = _literal(tokens[1:middle]), _literal(tokens[middle + 1 :])
        return None if lower is None or upper is None else Range(lower, upper)
    if words[:2] == ["in", "("] and words[-1:] == [")"]:
        values = _literals(tokens[2:-1])
        return None if values is None else In(values)
    return _compared(words[0], tokens[1:]) if words else None


def _compared(sign: str, tokens: list[Token]) -> Predicate | None:
    value = _literal(tokens)
    if value is None:
        return None
    if sign == "=":
        return Equals(value)
    if sign in (">", ">="):
        return Range(lower=value, lower_inclusive=sign == ">=")
    if sign in ("<", "<="):
        return Range(upper=value, upper_inclusive=sign == "<=")
    return None


def _literals(tokens: list[Token]) -> list[object] | None:
    parts: list[list[Token]] = [[]]
    for token in tokens:
        if token == ("sign", ","):
            parts.append([])
        else:
            parts[-1].append(token)
    values = [_literal(part) for part in parts]
    return None if any(value is None for value in values) else values


def _literal(tokens: list[Token]) -> object | None:
    """The value of one literal; None if these tokens are something else."""
    negative = tokens[:1] == [("sign", "-")]
    kind, text = tokens[-1] if len(tokens) == 1 + negative else ("", "")
    if kind == "number":
        number = int(text) if text.isdecimal() else float(text)
        return -number if negative else number
    if negative:
        return None
    if kind == "string":
        return text[1:-1].replace(text[0] * 2, text[0])
    return text.lower() == "true" if kind == "name" and text.lower() in ("true", "false") else None
