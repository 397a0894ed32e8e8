"""Reads the query objects of `lance.query`.

Owns the translation into `query` values. pylance's objects are opaque (no attributes, no pickle), but an explained
plan prints a boolean query's parts in full; the plan is made over an empty in-memory dataset, never executed.
Invariants:

1. What is not understood completely is refused, never guessed: an unknown kind, field or trailing text.
2. Only columns that the caller names can occur, as Lance refuses others.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

import lance
import lance.query
import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index.query import Boolean, Boost, Match, MultiMatch, Phrase, TextQuery, columns_of, parse

__all__ = ["as_query", "from_lance", "to_lance"]

_probes = itertools.count()
_PREFIX = "BooleanQuery: should=["
_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[A-Za-z_]\w*|-?\d[\w.+-]*|[{}()\[\],:])', re.DOTALL)
_ESCAPE = re.compile(r"\\(u\{[0-9a-fA-F]+\}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "'": "'", '"': '"', "\\": "\\"}


def as_query(query: Any, columns: Sequence[str]) -> TextQuery:
    """A string, one of our queries or a `lance.query` object as our value; it may name only these text `columns`."""
    if isinstance(query, lance.query.FullTextQuery):
        return from_lance(query, columns)
    if not isinstance(query, str | Match | Phrase | Boolean | Boost | MultiMatch):
        raise InvalidInputError(f"a text query is a string or a query object, not {type(query).__name__}")
    parsed = parse(query)
    elsewhere = sorted(name for name in columns_of(parsed) if name is not None and name not in columns)
    if elsewhere:
        raise InvalidInputError(f"the query names {elsewhere[0]!r}; it may name {', '.join(columns)}")
    return parsed


def from_lance(query: lance.query.FullTextQuery, columns: Sequence[str]) -> TextQuery:
    """Return a `lance.query` object as our value; `columns` are the text columns that it may name."""
    wrapped = lance.query.BooleanQuery([(lance.query.Occur.SHOULD, query)])
    try:
        plan = _probe(tuple(columns)).scanner(full_text_query=wrapped, limit=1).explain_plan()
    except (ValueError, OSError) as error:
        raise InvalidInputError(f"Lance refuses the query on columns {list(columns)}: {error}") from error
    start = plan.find(_PREFIX)
    if start < 0:
        raise InvalidInputError("this kind of Lance query is not supported on tables with a memtable")
    parser = _Parser(plan, start + len(_PREFIX))
    try:
        parsed = _query(parser.value())
        parser.expect("]")
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InvalidInputError("this Lance query is not understood; use memwal's own query classes") from error
    return parsed


def to_lance(query: TextQuery) -> lance.query.FullTextQuery:
    """Return our value, which names its columns, as a `lance.query` object."""
    known = lance.query
    match query:
        case Match():
            return known.MatchQuery(
                query.text,
                str(query.column),
                boost=query.boost,
                fuzziness=cast("int", query.fuzziness),  # None lets the term's length decide
                max_expansions=query.max_expansions,
                operator=_operator(query.operator),
                prefix_length=query.prefix_length,
            )
        case Phrase():
            return known.PhraseQuery(query.text, str(query.column), slop=query.slop)
        case MultiMatch():
            boosts = None if query.boosts is None else list(query.boosts)
            return known.MultiMatchQuery(
                query.text, list(query.columns), boosts=boosts, operator=_operator(query.operator)
            )
        case Boost():
            positive, negative = to_lance(query.positive), to_lance(query.negative)
            return known.BoostQuery(positive, negative, negative_boost=query.negative_boost)
        case Boolean():
            kinds = ((known.Occur.MUST, query.must), (known.Occur.SHOULD, query.should))
            parts = [*kinds, (known.Occur.MUST_NOT, query.must_not)]
            return known.BooleanQuery([(occur, to_lance(part)) for occur, some in parts for part in some])


def _operator(operator: str) -> lance.query.FullTextOperator:
    return lance.query.FullTextOperator.AND if operator == "and" else lance.query.FullTextOperator.OR


@lru_cache(maxsize=16)
def _probe(columns: tuple[str, ...]) -> lance.LanceDataset:
    """An empty dataset that has `columns`."""
    table = pa.table({column: pa.array([], pa.string()) for column in columns})
    return lance.write_dataset(table, f"memory://text-query-probe-{next(_probes)}")


class _Parser:
    """Recursive descent over the debug notation that Lance prints: `Name { field: value, ... }`."""

    def __init__(self, text: str, position: int) -> None:
        self._text = text
        self._position = position

    def value(self) -> Any:
        word = self._next()
        if word == "[":
            return self._items("]", self.value)
        if word.startswith('"'):
            return _ESCAPE.sub(_unescape, word[1:-1])
        if word[0].isdigit() or word[0] == "-":
            return float(word) if "." in word or "e" in word else int(word)
        if self._peek() == "{":
            self._next()
            return word, dict(self._items("}", self._field))
        if self._peek() == "(":
            self._next()
            return word, self._items(")", self.value)
        return word

    def expect(self, wanted: str) -> None:
        if self._next() != wanted:
            raise ValueError(f"expected {wanted}")

    def _field(self) -> tuple[str, Any]:
        name = self._next()
        self.expect(":")
        return name, self.value()

    def _items(self, end: str, item: Callable[[], Any]) -> list[Any]:
        items = []
        while self._peek() != end:
            items.append(item())
            if self._peek() == ",":
                self._next()
        self._next()
        return items

    def _peek(self) -> str:
        found = _TOKEN.match(self._text, self._position)
        if found is None:
            raise ValueError("unknown notation")
        return found.group(1)

    def _next(self) -> str:
        found = _TOKEN.match(self._text, self._position)
        if found is None:
            raise ValueError("unknown notation")
        self._position = found.end()
        return found.group(1)


def _unescape(found: re.Match[str]) -> str:
    code = found.group(1)
    return chr(int(code[2:-1], 16)) if code.startswith("u{") else _ESCAPES[code]


def _query(value: Any) -> TextQuery:
    """Build a query from `Kind(KindQuery { ... })`."""
    kind, (inner,) = value
    return _BUILDERS[kind](inner[1])


def _match(fields: dict[str, Any]) -> Match:
    _known(fields, "column terms boost fuzziness max_expansions operator prefix_length document_granularity")
    return Match(
        fields["terms"],
        _option(fields["column"]),
        operator="and" if fields["operator"] == "And" else "or",
        boost=float(fields["boost"]),
        fuzziness=_option(fields["fuzziness"]),
        prefix_length=fields["prefix_length"],
        max_expansions=fields["max_expansions"],
    )


def _phrase(fields: dict[str, Any]) -> Phrase:
    _known(fields, "column terms slop document_granularity")
    return Phrase(fields["terms"], _option(fields["column"]), fields["slop"])


def _boost(fields: dict[str, Any]) -> Boost:
    _known(fields, "positive negative negative_boost")
    return Boost(_query(fields["positive"]), _query(fields["negative"]), float(fields["negative_boost"]))


def _boolean(fields: dict[str, Any]) -> Boolean:
    _known(fields, "must should must_not")
    return Boolean(**{name: tuple(_query(part) for part in parts) for name, parts in fields.items()})


def _multi_match(fields: dict[str, Any]) -> MultiMatch:
    _known(fields, "match_queries")
    matches = [_match(inner) for _, inner in fields["match_queries"]]
    columns = tuple(match.column for match in matches if match.column is not None)
    return MultiMatch(matches[0].text, columns, tuple(match.boost for match in matches), matches[0].operator)


_BUILDERS: dict[str, Callable[[dict[str, Any]], TextQuery]] = {
    "Match": _match,
    "Phrase": _phrase,
    "Boost": _boost,
    "Boolean": _boolean,
    "MultiMatch": _multi_match,
}


def _option(value: Any) -> Any:
    """`Some(x)` or `None`."""
    return None if value == "None" else value[1][0]


def _known(fields: dict[str, Any], names: str) -> None:
    if set(fields) != set(names.split()):
        raise ValueError("unknown fields")
