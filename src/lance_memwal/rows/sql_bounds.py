"""What a text of SQL may ask for: Lance and DataFusion end the process at what is more.

Owns `longest_chain` and `excess`. A stack that overflows and memory that is not to be had cannot be caught: a text that would
need either is refused before anybody evaluates it, which both already do while they plan, over a table without rows. Invariants:

1. A text is taken apart here as Lance and DataFusion take it apart. What they read otherwise (`$$`, comments in comments, strings
   with a prefix) is refused, since anything could be hidden behind it.
2. A function that makes values of any size is told by literals how large, and what such functions make of each other's values is
   bounded. Not counted: what queries inside of queries make of each other's values (`a || a`, thirty times).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

__all__ = ["Token", "excess", "longest_chain"]

Token: TypeAlias = tuple[str, str]

_APART: Final = frozenset({"and", "or", "when", "then", "else"})
_LISTS_OF_TABLES: Final = frozenset({"from", "with"})
_NO_TABLES: Final = frozenset({"select", "where", "group", "having", "order", "limit", "window", "qualify"})
_MOST_COUNTED: Final = 10_000
_MOST_MADE: Final = 100_000  # characters or values, for one row: thousands of rows are evaluated at once
_OF_A_COLUMN: Final = 100
_DEEPEST_TYPE: Final = 50  # from about 3,000 on, the stack overflows
_LARGE: Final = 1 << 62
_TOO_LONG: Final = f"a number in brackets is too large: at most {_MOST_COUNTED:,} values in a list"
_PREFIXES: Final = frozenset({"b", "br", "e", "n", "nq", "q", "r", "rb"})
_FIXED_SIZE: Final = re.compile(r"FixedSize\w*\s*\(\s*(\d+)", re.IGNORECASE)
_CASTS: Final = frozenset({"arrow_cast", "arrow_try_cast"})
_SERIES: Final = ("range", "generate_series", "gen_series")
# By which of their arguments, from and to, they say how much they make.
_COUNTS: Final[Mapping[str, tuple[int, int | None]]] = {
    **dict.fromkeys(("repeat", "array_repeat", "list_repeat", "array_resize", "list_resize", "lpad", "rpad"), (1, 2)),
    **dict.fromkeys(("space", *_SERIES), (0, None)),
    "approx_percentile_cont": (1, None),
    "approx_percentile_cont_with_weight": (2, None),
}
_PADS: Final = frozenset({"lpad", "rpad"})
_REPLACES: Final = frozenset({"replace", "regexp_replace"})
_SPREADS: Final = frozenset(
    f"{kind}_{what}"
    for kind in ("array", "list")
    for what in ("to_string", "join", "replace", "replace_n", "replace_all")
)


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


def excess(tokens: Iterable[Token]) -> str | None:
    """What in a text asks for too much, and what to write instead; None if nothing does."""
    calls = [_Call("", "")]
    past: list[Token] = [("", "")] * 3
    listed = 1
    for kind, text in tokens:
        fault = _hidden(kind, text)
        if text in ("(", "[", "{"):
            calls.append(_Call(_function(past) if text == "(" else text, past[-1][1]))
        elif text in (")", "]", "}") and len(calls) > 1:
            call = calls.pop()
            calls[-1].take_call(call)
            listed = call.listed(listed)
            fault = fault or call.fault() or (_TOO_LONG if listed > _MOST_COUNTED else None)
        elif text == ",":
            calls[-1].arguments.append(_Argument())
        elif kind != "comment":
            calls[-1].take(kind, text)
        if fault is not None:
            return fault
        if kind != "comment":
            past = [*past[1:], (kind, text)]
    return next((fault for call in calls if (fault := call.fault()) is not None), None)


def _function(past: list[Token]) -> str:
    """The function that is named before a parenthesis, in quotes or not; a table that counts rows makes no value."""
    (_, before), (_, word), (kind, text) = past
    name = text.strip('"`').lower() if kind in ("name", "string") else ""
    is_table = word.lower() in ("from", "join") and before.lower() != "distinct"
    return "" if is_table and name in _SERIES else name


def _hidden(kind: str, text: str) -> str | None:
    if kind == "foreign" and (text in ("$", "") or text.lower() in _PREFIXES or text.startswith("/*")):
        shown = "a comment that is not closed" if text.startswith("/*") else f"{text!r} before a text"
        return f"{shown} is not understood: write texts as '...', with quotes inside of them doubled"
    if kind == "comment" and "/*" in text[2:] and text.startswith("/*"):
        return "a comment inside of a comment is not understood: leave it out"
    return None


@dataclass(slots=True)
class _Argument:
    """One argument of a call: how many characters or values it is at most, and its literal if it is nothing else."""

    size: int = 0
    parts: int = 0
    literal: Token | None = None

    def count(self) -> int | None:
        """The number that it is."""
        if self.parts != 1 or self.literal is None or self.literal[0] != "number":
            return None
        return math.ceil(min(float(self.literal[1]), _LARGE))

    def text_length(self) -> int | None:
        """How long the text is that it is."""
        is_text = self.parts == 1 and self.literal is not None and self.literal[0] == "string"
        return len(self.literal[1]) - 2 if is_text and self.literal is not None else None


@dataclass(slots=True)
class _Call:
    """What is in one pair of brackets, and the name of the function before it."""

    name: str
    follows: str
    arguments: list[_Argument] = field(default_factory=lambda: [_Argument()])

    def take(self, kind: str, text: str) -> None:
        """The next part."""
        last = self.arguments[-1]
        if text == "-" and last.parts == 0 and kind == "sign":
            return  # of a number
        last.parts += 1
        last.size += len(text) if kind in ("string", "number") else _OF_A_COLUMN if kind == "name" else 0
        last.literal = (kind, text)

    def take_call(self, call: _Call) -> None:
        """What brackets inside of it make."""
        last = self.arguments[-1]
        last.parts, last.size = last.parts + 2, min(last.size + call.made(), _LARGE)

    def listed(self, before: int) -> int:
        """How many values a type has that ends here, `int[3][4]`; `before` are those of the brackets before it."""
        if self.name != "[" or not (self.follows in ("]", ")", ">") or self.follows.isidentifier()):
            return 1
        count = self.arguments[0].count() if self.follows.lower() != "array" else None
        return 1 if count is None else count * (before if self.follows == "]" else 1)

    def made(self) -> int:
        """How many characters or values it makes at most."""
        sizes = [max(1, argument.size) for argument in self.arguments]
        if self.name in _PADS:
            return self._counted()
        if self.name in _COUNTS:
            return self._counted() * (sizes[0] if _COUNTS[self.name][0] == 1 else 1)
        if self.name in _REPLACES and len(sizes) > 2:
            searched, written = self.arguments[1].text_length(), self.arguments[2].text_length()
            if written is None:
                return sizes[0] * sizes[2]
            exact = self.name == "replace" and searched
            return sizes[0] * max(1, math.ceil(written / searched) if exact and searched else 2 * written)
        if self.name in _SPREADS:
            return sizes[0] * sizes[-1]
        if self.name == "concat_ws":
            return sum(sizes[1:]) + len(sizes) * sizes[0]
        return sum(argument.size for argument in self.arguments) * (2 if self.name == "encode" else 1)

    def _counted(self) -> int:
        start, end = _COUNTS[self.name]
        return max([1, *(argument.count() or 0 for argument in self.arguments[start:end])])

    def fault(self) -> str | None:
        """Why it is too much."""
        start, end = _COUNTS.get(self.name, (0, 0))
        counts = [argument.count() for argument in self.arguments[start:end]]
        if any(count is None or count > _MOST_COUNTED for count in counts):
            return f"{self.name} makes values of any size: give its counts as numbers of at most {_MOST_COUNTED:,}"
        made = self.made()
        if made > _MOST_MADE and made > sum(max(1, argument.size) for argument in self.arguments):
            return (
                f"{self.name} makes a value of {made:,} characters or more: at most {_MOST_MADE:,} are made for one row"
            )
        types = [argument.literal[1] for argument in self.arguments if argument.literal and self.name in _CASTS]
        sized = math.prod(int(found) for text in types for found in _FIXED_SIZE.findall(text))
        if sized > _MOST_COUNTED or any(text.count("(") > _DEEPEST_TYPE for text in types):
            return f"{self.name} makes values of a type that is too large: at most {_MOST_COUNTED:,} values in a list"
        return None
