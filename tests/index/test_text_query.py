"""Text queries: strings and Lance's query objects as our values."""

from __future__ import annotations

import lance.query as lq
import pytest

from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index import Boolean, Boost, Match, MultiMatch, Phrase, TextQuery, from_lance
from lance_memwal.memtable.index.query import columns_of, on_column, parse

TRICKY = 'he"l\\lo\n\t ü\x00\x7f\u200b\U0001f600 \'x\' ] } ), should=[Match(MatchQuery { terms: "y" })]'

PAIRS: list[tuple[lq.FullTextQuery, TextQuery]] = [
    (lq.MatchQuery("a b", "t"), Match("a b", "t")),
    (lq.MatchQuery(TRICKY, "t"), Match(TRICKY, "t")),
    (
        lq.MatchQuery(
            "a",
            "u",
            boost=2.5e-7,
            fuzziness=2,
            max_expansions=7,
            operator=lq.FullTextOperator.AND,
            prefix_length=3,
        ),
        Match("a", "u", "and", 2.5e-7, 2, 3, 7),
    ),
    (lq.PhraseQuery(TRICKY, "t", slop=3), Phrase(TRICKY, "t", 3)),
    (
        lq.BoostQuery(lq.MatchQuery("a", "t"), lq.PhraseQuery("b", "u"), negative_boost=0.25),
        Boost(Match("a", "t"), Phrase("b", "u"), 0.25),
    ),
    (
        lq.BooleanQuery(
            [
                (lq.Occur.MUST, lq.MatchQuery("a", "t")),
                (lq.Occur.SHOULD, lq.MatchQuery("b", "t")),
                (lq.Occur.SHOULD, lq.PhraseQuery("c", "t")),
                (lq.Occur.MUST_NOT, lq.BooleanQuery([(lq.Occur.SHOULD, lq.MatchQuery("d", "u"))])),
            ]
        ),
        Boolean(
            must=(Match("a", "t"),),
            should=(Match("b", "t"), Phrase("c", "t")),
            must_not=(Boolean(should=(Match("d", "u"),)),),
        ),
    ),
    (
        lq.MultiMatchQuery("a", ["t", "u"], boosts=[1.0, 2.0], operator=lq.FullTextOperator.AND),
        MultiMatch("a", ("t", "u"), (1.0, 2.0), "and"),
    ),
    (lq.MatchQuery("a", "t") & lq.MatchQuery("b", "t"), Boolean(must=(Match("a", "t"), Match("b", "t")))),
]


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_lance_query_is_read_completely(theirs: lq.FullTextQuery, ours: TextQuery) -> None:
    assert from_lance(theirs, ["t", "u"]) == ours


def test_lance_query_that_names_another_column_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="columns"):
        from_lance(lq.MatchQuery("a", "elsewhere"), ["t", "u"])


def test_lance_query_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        from_lance(lq.CombinedFieldsQuery("a", ["t", "u"]), ["t", "u"])


def test_columns_with_awkward_names_are_told_apart() -> None:
    columns = ["a column", "Ünï", "UPPER"]
    for column in columns:
        assert from_lance(lq.MatchQuery("a", column), columns) == Match("a", column)


def test_quoted_string_is_a_phrase_and_any_other_a_match() -> None:
    assert parse('"war and peace"') == Phrase("war and peace")
    assert parse("war and peace") == Match("war and peace")
    assert parse('"') == Match('"')
    assert parse(Phrase("x")) == Phrase("x")
    with pytest.raises(InvalidInputError, match="not a text query"):
        parse(7)  # type: ignore[arg-type]


def test_column_is_filled_in_where_it_is_open() -> None:
    query = Boolean(
        must=(Match("a"), Phrase("b", "u")), should=(Boost(Match("c"), Match("d", "u")),), must_not=(Match("e"),)
    )
    filled = on_column(query, "t")
    assert columns_of(query) == {None, "u"}
    assert columns_of(filled) == {"t", "u"}
    assert filled == Boolean(
        must=(Match("a", "t"), Phrase("b", "u")),
        should=(Boost(Match("c", "t"), Match("d", "u")),),
        must_not=(Match("e", "t"),),
    )


def test_senseless_queries_are_refused() -> None:
    for make in (
        lambda: Match("a", operator="xor"),  # type: ignore[arg-type]
        lambda: Match("a", fuzziness=-1),
        lambda: Match("a", boost=float("nan")),
        lambda: Match("a", boost=-1.0),
        lambda: Phrase("a", slop=-1),
        lambda: Boolean(must_not=(Match("a"),)),
        lambda: Boost(Match("a"), Match("b"), -0.5),
        lambda: MultiMatch("a", ()),
        lambda: MultiMatch("a", ("t", "u"), (1.0,)),
    ):
        with pytest.raises(InvalidInputError):
            make()
