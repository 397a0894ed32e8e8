"""Full-text queries as values, their reading from strings, and their translation for Lance.

Entry points besides the values: `as_query` for a query of a caller, `to_lance` for Lance. Invariants:

1. A query is immutable and says everything that decides its result, apart from the analyzer.
2. `column=None` means the column that is searched; `on_column` fills it in.
3. Meaning and defaults are those of Lance's queries of the same name: `Match` is `lance.query.MatchQuery`. Objects of
   `lance.query` are refused: they have no attributes, so they could only be read from the debug print of a plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import lance.query

from lance_memwal.arguments import check_text
from lance_memwal.errors import InvalidInputError

Operator = Literal["or", "and"]


def _check_factor(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise InvalidInputError(f"{name} must be finite and not negative, not {value}")


@dataclass(frozen=True, slots=True)
class Match:
    """Rows with any (or) or every (and) term of `text`, scored by BM25 times `boost`.

    `fuzziness` is the edit distance up to which other terms count as the term; None chooses by the term's
    length in bytes (0 up to two, 1 up to five, 2 beyond). The first `prefix_length` characters must agree.
    At most `max_expansions` terms are taken for the whole query, in order of its terms and then of the alphabet.
    """

    text: str
    column: str | None = None
    operator: Operator = "or"
    boost: float = 1.0
    fuzziness: int | None = 0
    prefix_length: int = 0
    max_expansions: int = 50

    def __post_init__(self) -> None:
        """Refuse what no search could honour."""
        if self.operator not in ("or", "and"):
            raise InvalidInputError(f"operator must be 'or' or 'and', not {self.operator!r}")
        if (self.fuzziness is not None and self.fuzziness < 0) or self.prefix_length < 0 or self.max_expansions < 0:
            raise InvalidInputError("fuzziness, prefix_length and max_expansions cannot be negative")
        _check_factor("boost", self.boost)


@dataclass(frozen=True, slots=True)
class Phrase:
    """Rows with the terms of `text` in order, each at most `slop` positions later than it would follow exactly."""

    text: str
    column: str | None = None
    slop: int = 0

    def __post_init__(self) -> None:
        """Refuse what no search could honour."""
        if self.slop < 0:
            raise InvalidInputError("slop cannot be negative")


@dataclass(frozen=True, slots=True)
class Boolean:
    """Rows that satisfy every `must` and no `must_not`; with no `must`, at least one `should`.

    The score is the sum over the `must` and the satisfied `should`.
    """

    must: tuple[TextQuery, ...] = ()
    should: tuple[TextQuery, ...] = ()
    must_not: tuple[TextQuery, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a query that selects nothing by itself."""
        if not self.must and not self.should:
            raise InvalidInputError("a boolean query needs at least one must or should query")


@dataclass(frozen=True, slots=True)
class Boost:
    """Rows of `positive`; those that satisfy `negative` too lose its score times `negative_boost`."""

    positive: TextQuery
    negative: TextQuery
    negative_boost: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what no search could honour."""
        _check_factor("negative_boost", self.negative_boost)


@dataclass(frozen=True, slots=True)
class MultiMatch:
    """Rows that match `text` in any of `columns`; the best column's score counts."""

    text: str
    columns: tuple[str, ...]
    boosts: tuple[float, ...] | None = None
    operator: Operator = "or"

    def __post_init__(self) -> None:
        """Refuse columns and boosts that do not pair."""
        if not self.columns:
            raise InvalidInputError("a multi-match query needs at least one column")
        if self.boosts is not None and len(self.boosts) != len(self.columns):
            raise InvalidInputError("a multi-match query needs one boost per column")

    def matches(self) -> tuple[Match, ...]:
        """Return the match query of every column."""
        boosts = self.boosts or (1.0,) * len(self.columns)
        return tuple(
            Match(self.text, column, self.operator, boost) for column, boost in zip(self.columns, boosts, strict=True)
        )


TextQuery = Match | Phrase | Boolean | Boost | MultiMatch


def parse(query: str | TextQuery) -> TextQuery:
    """Return `query` as a tree: a string in double quotes is a phrase, any other string a match."""
    if isinstance(query, str):
        check_text("a text query", query)
        if len(query) > 2 and query.startswith('"') and query.endswith('"'):
            return Phrase(query[1:-1])
        return Match(query)
    if isinstance(query, TextQuery):
        return query
    raise InvalidInputError(f"not a text query: {type(query).__name__}")


def columns_of(query: TextQuery) -> set[str | None]:
    """Return every column that `query` names, and None where it leaves the column open."""
    match query:
        case Match() | Phrase():
            return {query.column}
        case MultiMatch():
            return set(query.columns)
        case Boost():
            return columns_of(query.positive) | columns_of(query.negative)
        case Boolean():
            return set().union(*(columns_of(part) for part in (*query.must, *query.should, *query.must_not)))


def on_column(query: TextQuery, column: str) -> TextQuery:
    """Return `query` with `column` wherever it names none."""
    match query:
        case Match() | Phrase():
            return query if query.column is not None else replace(query, column=column)
        case MultiMatch():
            return query
        case Boost():
            return replace(
                query, positive=on_column(query.positive, column), negative=on_column(query.negative, column)
            )
        case Boolean():
            return Boolean(
                must=_each_on(query.must, column),
                should=_each_on(query.should, column),
                must_not=_each_on(query.must_not, column),
            )


def _each_on(queries: Sequence[TextQuery], column: str) -> tuple[TextQuery, ...]:
    return tuple(on_column(query, column) for query in queries)


# -------------------------------------------------------------------------------------------------------- lance query


_KINDS = (Match, Phrase, Boolean, Boost, MultiMatch)


def as_query(query: Any, columns: Sequence[str]) -> TextQuery:
    """A string or a query of `lance_memwal.query` as a query that names only these text `columns`."""
    if not isinstance(query, (str, *_KINDS)):
        kind = type(query).__name__
        ours = [known.__name__ for known in _KINDS if f"{known.__name__}Query" == kind]
        use = f"lance_memwal.query.{ours[0] if ours else 'Match'}"
        raise InvalidInputError(
            f"a text query must be a string or a query of lance_memwal.query, not {kind}; use {use}"
        )
    parsed = parse(query)
    elsewhere = sorted(name for name in columns_of(parsed) if name is not None and name not in columns)
    if elsewhere:
        raise InvalidInputError(f"the query names {elsewhere[0]!r}; it may name {', '.join(columns)}")
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
