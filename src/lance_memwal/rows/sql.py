"""Lance's SQL dialect: what the text of a filter says, and values written into such text.

Owns `parse`, which reads a text once for all who ask (rows, pruning of shards, indexes), the `Predicate` values, and
`in_list` and `demand_text`, the only place that writes values into a text. `longest_chain` measures how deep a text nests, and
`fault_of` finds text that cannot be measured and deep types. Lance itself evaluates filters: nothing here does. Invariants:

1. Every row for which the filter is true satisfies every predicate that is found: a part may be missed, none is
   invented. Text that is not certainly understood (comments, prefixed strings, OR or CASE at the top) gives none.
2. A null value matches nothing, as in SQL; only `IsNull` finds nulls.
3. A value that is written into a text reads back as exactly that value: numbers are digits, binaries are hexadecimal
   digits, dates and timestamps are their numbers with their type, decimals their digits with their type, and a quote
   inside of a string or a name is doubled.

DataFusion's parser is not used: from Python it parses expressions only against a schema without columns, none of its
dialects reads quotes, backslashes and names as Lance does, and it does not know Lance's functions.

Lance and DataFusion overflow the stack, which ends the process, on terms that nest too deep. Memory is not bounded:
`repeat(s, 1000000000)` allocates what it says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.key_encoding import comparable

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


_KNOWN_TEXTS = 256
_TOKEN = re.compile(
    # every part of a long text is read a few times at most: what cannot end well takes all that it has seen
    r"(?P<space>\s+)|(?P<comment>--[^\n]*|/\*.*?\*/)|(?P<foreign>/\*.*|\$|\w++(?=['\"`]))"
    r"|(?P<string>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")"
    r"|(?P<name>`(?:[^`]|``)*`|[^\W\d]\w*)|(?P<number>\d++(?:\.\d++)?(?:[eE][+-]?\d++)?(?!\w))|(?P<sign><=|>=|<>|!=|[=<>(),-])"
    r"|(?P<other>\d+|.)",
    re.DOTALL,
)
_FLIPPED = {"=": "=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_UNCLEAR = frozenset({"or", "xor", "case", "when", "then", "else", "end"})
# Without quotes they are not (or not everywhere) the column that may have such a name.
_CLOCKS = frozenset({"current_date", "current_time", "current_timestamp"})
_KEYWORDS = frozenset({"and", "between", "false", "in", "is", "like", "not", "null", "true"}) | _UNCLEAR | _CLOCKS
_SMALLEST = -(1 << 63)
_MAX_CHAIN = 500  # from about 1,000 parts on, the stack of a thread of Lance overflows, which ends the process
_MAX_DEPTH = 200  # Lance refuses less
_MOST_DIGITS = 1_000  # Python refuses to read integers of more than 4,300


@dataclass(frozen=True, slots=True)
class Equals:
    """column = value."""

    value: object


@dataclass(frozen=True, slots=True)
class In:
    """column IN (values); nulls among the values match nothing."""

    values: Sequence[object]


@dataclass(frozen=True, slots=True)
class Range:
    """lower <(=) column <(=) upper; a bound of None is absent, a range without bounds is `IsNotNull`."""

    lower: object = None
    upper: object = None
    lower_inclusive: bool = True
    upper_inclusive: bool = True


@dataclass(frozen=True, slots=True)
class IsNull:
    """column IS NULL."""


@dataclass(frozen=True, slots=True)
class IsNotNull:
    """column IS NOT NULL."""


Predicate = Equals | In | Range | IsNull | IsNotNull


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a filter says. `names` (in lower case) may be columns; `fault` is a reason to refuse it, if one was found.

    `demands` are the parts of its top-level conjunction that were understood: name as written, predicate, SQL.
    """

    names: frozenset[str]
    demands: tuple[tuple[str, Predicate, str], ...]
    fault: str | None

    def predicates(self, columns: Sequence[str]) -> list[tuple[str, Predicate]]:
        """Each column of `columns` that the filter restricts, and its predicate."""
        return [(column, predicate) for column, predicate, _ in self._restricted(columns)]

    def conditions(self, columns: Sequence[str]) -> list[tuple[str, str]]:
        """Each column of `columns` that the filter restricts, and that part of the filter as SQL."""
        return [(column, sql) for column, _, sql in self._restricted(columns)]

    def _restricted(self, columns: Sequence[str]) -> list[tuple[str, Predicate, str]]:
        found = ((_matched(name, columns), predicate, sql) for name, predicate, sql in self.demands)
        return [(column, predicate, sql) for column, predicate, sql in found if column is not None]

    def values(self, column: str, columns: Sequence[str]) -> list[object] | None:
        """The values that `column`, one of `columns`, can have where the filter is true; None if that is not certain."""
        return values_of(column, self.predicates(columns))


def values_of(column: str, predicates: Iterable[tuple[str, Predicate]]) -> list[object] | None:
    """The values that `column` can have where all `predicates` hold; None if that is not certain."""
    for name, predicate in predicates:
        if name == column and isinstance(predicate, Equals | In):
            given = [predicate.value] if isinstance(predicate, Equals) else predicate.values
            values = [value.as_py() if isinstance(value, pa.Scalar) else value for value in given]
            if all(isinstance(value, int | str) for value in values):
                return values
    return None


def _matched(name: str, columns: Sequence[str]) -> str | None:
    """The column that a name means: Lance matches names whatever their case."""
    if name in columns:
        return name
    return next((column for column in columns if column.lower() == name.lower()), None)


@lru_cache(maxsize=_KNOWN_TEXTS)
def parse(sql: str) -> Parsed:
    """What the text of a filter says, as far as it is understood."""
    tokens = tokens_of(sql)
    unclear = any(kind in ("foreign", "comment") or (kind == "other" and text in "'\"`") for kind, text in tokens)
    names, depth, deepest, previous, fault = set(), 0, 0, "", None
    for kind, text in tokens:
        if kind == "comment":
            continue
        if kind == "name" and previous != ".":
            names.add(unquoted(text).lower())
        if (kind, text) == ("other", "?"):
            fault = "the filter has a ? without a value; use where('tenant = ?', value)"
        depth += (text == "(") - (text == ")")
        deepest = max(deepest, depth)
        if depth < 0:
            fault = "the filter cannot be applied: it closes a parenthesis that it did not open"
        previous = text
    if (asked := fault_of(tokens)) is not None:
        fault = f"the filter cannot be applied: {asked}"
    if longest_chain(tokens) > _MAX_CHAIN:
        fault = f"the filter cannot be applied: one of its terms has more than {_MAX_CHAIN} parts; make it shorter"
    if deepest > _MAX_DEPTH:
        fault = f"the filter cannot be applied: it nests more than {_MAX_DEPTH} parentheses; make it simpler"
    demands = () if unclear or deepest > _MAX_DEPTH else tuple(_demands(tokens))
    return Parsed(frozenset(names), demands, fault if previous else "the filter is empty")


def column_of(sql: str, columns: Sequence[str]) -> str | None:
    """Return the column of `columns` that an expression consists of, or None if it is another expression."""
    name = _name([token for token in tokens_of(sql) if token[0] != "comment" and token[1] not in "()"])
    return None if name is None else _matched(name, columns)


def tokens_of(sql: str) -> list[Token]:
    """The parts of a text, each with its kind: string, name, number, sign, comment, other, or foreign."""
    return [part for part in parts_of(sql) if part[0] != "space"]


def parts_of(sql: str) -> list[Token]:
    """All of a text as `tokens_of` splits it, with the spaces."""
    return [(str(part.lastgroup), part.group()) for part in _TOKEN.finditer(sql)]


def is_quoted(name: str) -> bool:
    """Whether a name is written in quotes, so that it is no keyword and no function."""
    return name.startswith("`")


def unquoted(name: str) -> str:
    """What a name in a text is, without its quotes."""
    return name[1:-1].replace("``", "`") if is_quoted(name) else name


def _demands(tokens: list[Token]) -> Iterator[tuple[str, Predicate, str]]:
    for part in _conjuncts(tokens):
        if len(part) > 2 and part[0] == ("sign", "(") and _closes(part) == len(part) - 1:
            yield from _demands(part[1:-1])
        elif (found := _demand(part)) is not None:
            yield *found, " ".join(text for _, text in part)


def _closes(tokens: list[Token]) -> int:
    """Where the parenthesis that opens `tokens` is closed, or -1."""
    depth = 0
    for number, (_, text) in enumerate(tokens):
        depth += (text == "(") - (text == ")")
        if depth == 0:
            return number
    return -1


def _conjuncts(tokens: list[Token]) -> list[list[Token]]:
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


def _demand(tokens: list[Token]) -> tuple[str, Predicate] | None:
    """What one part of the conjunction demands: the column comes first, or (after a literal and a sign) last."""
    if (name := _name(tokens[:1])) is not None:
        predicate = _of_rest(tokens[1:])
    elif (name := _name(tokens[-1:])) is not None and len(tokens) >= 3 and tokens[-2][1] in _FLIPPED:
        predicate = _compared(_FLIPPED[tokens[-2][1]], tokens[:-2])
    else:
        return None
    return None if predicate is None else (name, predicate)


def _name(tokens: list[Token]) -> str | None:
    """The name that these tokens are, and nothing else."""
    if len(tokens) != 1 or tokens[0][0] != "name" or tokens[0][1].lower() in _KEYWORDS:
        return None
    return unquoted(tokens[0][1])


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
        return None if None in values else In(values)
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


def _literals(tokens: list[Token]) -> tuple[object | None, ...]:
    commas = [at for at, token in enumerate(tokens) if token == ("sign", ",")]
    starts, ends = [0, *(at + 1 for at in commas)], [*commas, len(tokens)]
    return tuple(_literal(tokens[start:end]) for start, end in zip(starts, ends, strict=True))


def _literal(tokens: list[Token]) -> object | None:
    """The value of one literal; None if these tokens are something else."""
    negative = tokens[:1] == [("sign", "-")]
    kind, text = tokens[-1] if len(tokens) == 1 + negative else ("", "")
    if kind == "number":
        number = int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else float(text)
        return -number if negative else number
    if negative:
        return None
    if kind == "string":
        return text[1:-1].replace(text[0] * 2, text[0])
    return text.lower() == "true" if kind == "name" and text.lower() in ("true", "false") else None


# ------------------------------------------------------------------------------------------------------ values as text


def in_list(column: str, values: pa.Array, kind: pa.DataType) -> str:
    """SQL for "`column`, of type `kind`, has one of `values`" (without nulls), which may be in the form that is compared."""
    encode = _encoder(kind)
    listed = ", ".join(encode(value) for value in comparable(values).unique().to_pylist())
    return f"{quoted(column)} in ({listed})"


def demand_text(column: str, predicate: Predicate, kind: pa.DataType) -> str:
    """SQL for "`column`, of type `kind`, satisfies `predicate`", whose values are scalars of that type."""
    match predicate:
        case Equals(value):
            return in_list(column, pa.array([value], kind), kind)
        case In(values):
            return in_list(column, pa.array(values, kind), kind)
        case IsNull():
            return f"{quoted(column)} is null"
        case Range(lower, upper, lower_inclusive, upper_inclusive) if lower is not None or upper is not None:
            signs = (lower, ">=" if lower_inclusive else ">"), (upper, "<=" if upper_inclusive else "<")
            bounds = [(sign, literal_text(bound, kind)) for bound, sign in signs if bound is not None]
            return " and ".join(f"{quoted(column)} {sign} {bound}" for sign, bound in bounds)
    return f"{quoted(column)} is not null"


def literal_text(value: object, kind: pa.DataType) -> str:
    """SQL for one value of type `kind`."""
    return _encoder(kind)(comparable(pa.array([value], kind))[0].as_py())


def quoted(column: str) -> str:
    """The name of a column as SQL."""
    return f"`{column.replace('`', '``')}`"


def _integer(value: int) -> str:
    """The smallest 64-bit number has no literal: the minus sign is read after the digits, which are too large."""
    return str(value) if value > _SMALLEST else f"{_SMALLEST + 1} - 1"


def _decimal(ordered: bytes, scale: int) -> str:
    """The digits of a decimal that is in the form that is compared."""
    number = int.from_bytes(ordered, "big") - (1 << (8 * len(ordered) - 1))
    digits = str(abs(number)).zfill(scale + 1)
    whole = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return f"-{whole}" if number < 0 else whole


_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}


def _type_name(kind: pa.DataType) -> str:
    """A type as Lance's `arrow_cast` names it, inside of quotes."""
    if pa.types.is_date(kind):
        return "Date32" if pa.types.is_date32(kind) else "Date64"
    if pa.types.is_decimal(kind):
        return f"Decimal{kind.bit_width}({kind.precision}, {kind.scale})"
    if kind.tz is not None and any(sign in kind.tz for sign in "'\"\\"):
        raise InvalidInputError(f"a value of type {kind} cannot be written into a filter")
    zone = "None" if kind.tz is None else f'Some("{kind.tz}")'
    return f"Timestamp({_UNITS[kind.unit]}, {zone})"


def _encoder(kind: pa.DataType) -> Callable[[Any], str]:
    types = pa.types
    if types.is_integer(kind):
        return _integer
    if types.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if types.is_string(kind) or types.is_large_string(kind):
        return lambda value: "'" + str(value).replace("'", "''") + "'"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return lambda value: "X'" + bytes(value).hex() + "'"
    if isinstance(kind, pa.UuidType):
        return lambda value: "X'" + bytes(value).hex() + "'"
    if types.is_date(kind) or types.is_timestamp(kind):
        return lambda value: f"arrow_cast({_integer(value)}, '{_type_name(kind)}')"
    if types.is_floating(kind):
        return lambda value: f"arrow_cast('{float(value)!r}', 'Float{kind.bit_width}')"
    if types.is_duration(kind):
        return lambda value: f"arrow_cast({_integer(value)}, 'Duration({_UNITS[kind.unit]})')"
    if types.is_time(kind):  # integers become times of the same width only
        cast = f"arrow_cast(arrow_cast({{}}, 'Int{kind.bit_width}'), 'Time{kind.bit_width}({_UNITS[kind.unit]})')"
        return lambda value: cast.format(value)
    if (types.is_decimal128(kind) or types.is_decimal256(kind)) and kind.scale >= 0:
        return lambda value: f"arrow_cast('{_decimal(value, kind.scale)}', '{_type_name(kind)}')"
    raise InvalidInputError(f"a value of type {kind} cannot be written into a filter")
