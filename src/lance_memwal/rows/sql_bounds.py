"""Bounds of SQL text: Lance and DataFusion overflow the stack, which ends the process, on terms that nest too deep.

Entry points: `longest_chain` measures how deep a text nests, `fault_of` finds text that cannot be measured and deep types.
Memory is not bounded: `repeat(s, 1000000000)` allocates what it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

Token: TypeAlias = tuple[str, str]

_APART: Final = frozenset({"and", "or", "when", "then", "else"})
_LISTS_OF_TABLES: Final = frozenset({"from", "with"})
_NO_TABLES: Final = frozenset({"select", "where", "group", "having", "order", "limit", "window", "qualify"})
_PREFIXES: Final = frozenset({"b", "br", "e", "n", "nq", "q", "r", "rb"})
_CASTS: Final = frozenset({"arrow_cast", "arrow_try_cast"})
_DEEPEST_TYPE: Final = 50  # from about 3,000 on, the stack overflows


def longest_chain(tokens: Iterable[Token], joins: Mapping[str, int] | None = None) -> int:
    """How many parts the longest term has: it nests at most so deep. `and`, `or`, commas and branches part terms.

    a = 1 or b + c > 2        5 parts: b + c > 2
    a in (1, 2, 3) and b = 1  3 parts: b = 1; a value of a list counts once
    (a + 1) * 2 > b           7 parts

    Words in `joins` nest what they join, each by so many parts; a comma does between tables: `from t, u`, `with t as (...), u`
    """
    joins = joins or {}
    outer: list[tuple[int, int, int, int, bool]] = []
    start = here = longest = ranges = joined = 0
    tables = False
    for kind, text in tokens:
        word = text.lower() if kind == "name" else text
        tables = word in _LISTS_OF_TABLES or (tables and word not in _NO_TABLES)
        is_range = word == "and" and ranges > 0
        if word == "(":
            outer.append((start, longest, ranges, joined, tables))
            start, longest, ranges, joined, tables = here, here, 0, 0, False
        elif word == ")":
            here = longest + joined
            start, before, ranges, joined, tables = outer.pop() if outer else (0, 0, 0, 0, False)
            longest = max(before, here)
        elif not is_range and (word == "," or word in _APART or word in joins):
            here = start
            joined += joins.get(word, 0) if word != "," or tables else 0
        else:
            ranges += (word == "between") - (word == "and")
            here += kind != "comment"
            longest = max(longest, here)
    # what is opened and never closed is read, too
    return max([longest, *(before for _, before, _, _, _ in outer)]) + joined + sum(level[3] for level in outer)


def fault_of(tokens: Iterable[Token]) -> str | None:
    """Return why a text is refused: a type that nests too deep, or a notation that Lance and DataFusion split differently."""
    casts = False
    for kind, text in tokens:
        if kind == "foreign" and (text in ("$", "") or text.lower() in _PREFIXES or text.startswith("/*")):
            shown = "an unclosed comment" if text.startswith("/*") else f"{text!r} before a string"
            return f"{shown} is not supported: write strings as '...', with quotes inside them doubled"
        if kind == "comment" and text.startswith("/*") and "/*" in text[2:]:
            return "a nested comment is not supported: remove it"
        if casts and kind == "string" and text.count("(") > _DEEPEST_TYPE:
            return f"the type of a cast nests more than {_DEEPEST_TYPE} deep"
        casts = casts or text.strip('"`').lower() in _CASTS
    return None
