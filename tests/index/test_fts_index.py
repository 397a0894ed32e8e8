"""Full text in memory: queries, analysis, watermarks, masks, memory; the same rows and scores as Lance's inverted index."""

from __future__ import annotations

import random
import sys

import lance
import lance.query as lq
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lance_memwal as mw
from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index import (
    Analyzer,
    AnalyzerOptions,
    Boolean,
    Boost,
    CorpusStats,
    FtsIndex,
    FtsMemIndex,
    Match,
    MemIndex,
    MultiMatch,
    Phrase,
    TextQuery,
    analyzer_for,
    as_query,
    bind_over,
    search_texts,
    terms_of,
    to_lance,
)
from lance_memwal.memtable.index.analyzer import _MARK
from lance_memwal.memtable.index.query import columns_of, on_column, parse
from tests.kit.text_peer import ANALYZERS, WORDS, corpus, ours, peer, peer_hits, random_query
from tests.kit.writers import SECONDS, in_thread

ROWS = 240
QUERIES: list[str | TextQuery] = [
    "apple",
    "apple tree hello",
    Match("apple tree", operator="and"),
    Phrase("hello world"),
    Phrase("apple tree", slop=3),
    Match("aplpe tre", fuzziness=2, max_expansions=7),
    Match("apple", fuzziness=None),
    Boolean(must=(Match("apple"),), should=(Match("tree"),), must_not=(Match("hello"),)),
    Boost(Match("apple tree"), Match("world"), 0.4),
]


def _found(result: tuple[np.ndarray, np.ndarray]) -> dict[int, float]:
    return dict(zip(result[0].tolist(), result[1].tolist(), strict=True))


@pytest.mark.parametrize("n", [0, 1, 36, 37, 111, ROWS - 1])
def test_rows_above_the_watermark_neither_match_nor_count(n: int) -> None:
    texts = corpus(11, ROWS)
    everything, prefix = ours(texts), ours(texts[:n])
    for query in QUERIES:
        assert _found(everything.search(query, n, None)) == pytest.approx(_found(prefix.search(query, n, None)))


def test_mask_is_applied_before_the_best_are_chosen() -> None:
    index = ours(corpus(12, ROWS))
    positions, scores = index.search("apple tree hello", ROWS, None)
    allowed = np.ones(ROWS, bool)
    allowed[positions[:10]] = False
    masked_positions, masked_scores = index.search("apple tree hello", ROWS, 10, allowed=allowed)
    assert masked_positions.tolist() == positions[10:20].tolist()
    assert masked_scores.tolist() == scores[10:20].tolist()


def test_statistics_of_live_rows_equal_an_index_of_only_those_rows() -> None:
    texts = corpus(13, ROWS)
    live = np.array([random.Random(i).random() < 0.7 for i in range(ROWS)])
    rows = np.flatnonzero(live)
    whole, survivors = ours(texts), ours([texts[i] for i in rows])
    for query in QUERIES:
        found = _found(whole.search(query, ROWS, None, allowed=live, live=live))
        expected = {int(rows[i]): score for i, score in _found(survivors.search(query, len(rows), None)).items()}
        assert found == pytest.approx(expected)


def test_tiers_scored_with_summed_statistics_equal_one_index() -> None:
    texts = corpus(14, ROWS)
    cut = 150
    whole, first, second = ours(texts), ours(texts[:cut]), ours(texts[cut:])
    for query in QUERIES:
        bound = bind_over(query, {"t": [first.view(cut), second.view(ROWS - cut)]}, column="t")
        terms = terms_of(bound)["t"]
        stats = first.stats(terms, cut) + second.stats(terms, ROWS - cut)
        found = _found(first.search(bound, cut, None, stats=stats))
        later = _found(second.search(bound, ROWS - cut, None, stats=stats))
        found.update({cut + row: score for row, score in later.items()})
        assert found == pytest.approx(_found(whole.search(query, ROWS, None)))


def test_tiers_with_their_own_watermarks_and_live_rows_equal_one_index_of_what_is_live() -> None:
    texts = corpus(17, ROWS)
    cut, n_first, n_second = 150, 120, 60
    first, second = ours(texts[:cut]), ours(texts[cut:])
    live = np.array([random.Random(i).random() < 0.6 for i in range(n_first)])
    kept = [*np.flatnonzero(live).tolist(), *range(cut, cut + n_second)]
    survivors = ours([texts[i] for i in kept])
    for query in QUERIES:
        views = [first.view(n_first, live), second.view(n_second)]
        bound = bind_over(query, {"t": views}, column="t")
        stats = sum((view.stats(terms_of(bound)["t"]) for view in views), CorpusStats())
        found = _found(first.search(bound, n_first, None, stats=stats, allowed=live))
        later = _found(second.search(bound, n_second, None, stats=stats))
        found.update({cut + row: score for row, score in later.items()})
        expected = {kept[i]: score for i, score in _found(survivors.search(query, len(kept), None)).items()}
        assert found == pytest.approx(expected)


def test_view_does_not_see_what_comes_later() -> None:
    index = ours(["apple", "pear"])
    view = index.view(2)
    before = view.stats(["appl"])
    index.insert(pa.record_batch({"t": ["apple"] * 50}), 2)
    index.catch_up()
    assert view.stats(["appl"]) == before == CorpusStats(2, 2, {"appl": 1})


def test_an_index_made_for_a_few_texts_scores_them_as_a_larger_one() -> None:
    texts = corpus(15, ROWS)
    index = ours(texts)
    for query in QUERIES:
        bound = index.bind(query, ROWS)
        stats = index.stats(terms_of(bound)["t"], ROWS)
        few = FtsMemIndex.of_texts("t", pa.array(texts[:50], pa.string()), index.analyzer)
        alone = few.search(bound, 50, None, stats=stats)
        expected = {row: score for row, score in _found(index.search(query, ROWS, None)).items() if row < 50}
        assert _found(alone) == pytest.approx(expected)
    whole = FtsMemIndex.of_texts("t", pa.array(texts, pa.string()), index.analyzer)
    assert _found(whole.search("apple tree", ROWS, None)) == pytest.approx(
        _found(index.search("apple tree", ROWS, None))
    )


def test_score_is_the_bm25_formula() -> None:
    index = ours(["apple apple pear", "pear", None, "the", "plum pear plum pear"])
    stats = index.stats(["appl", "pear", "kiwi"], 5)
    assert stats == CorpusStats(3, 8, {"appl": 1, "pear": 3, "kiwi": 0})
    idf, average = np.log((3 - 1 + 0.5) / 1.5 + 1), 8 / 3
    expected = idf * 2.2 * 2 / (2 + 1.2 * (0.25 + 0.75 * 3 / average))
    assert _found(index.search("apple", 5, None)) == pytest.approx({0: expected})


def test_equal_scores_are_ordered_by_row_and_the_best_k_are_the_first_k() -> None:
    index = ours(["apple pear"] * 50 + ["apple"] + ["apple pear"] * 50)
    assert index.search("apple", 101, 4)[0].tolist() == [50, 0, 1, 2]
    assert index.search("apple", 101, 0)[0].tolist() == []


def test_phrase_sees_the_gap_of_a_stop_word() -> None:
    index = ours(["war and peace", "war peace", "peace and war"])
    assert index.search('"war and peace"', 3, None)[0].tolist() == [0]
    assert index.search('"war peace"', 3, None)[0].tolist() == [1]
    assert index.search(Phrase("war peace", slop=1), 3, None)[0].tolist() == [0, 1]


def test_phrase_never_reaches_into_the_next_row() -> None:
    index = ours(["x apple", "tree x", "apple tree"])
    assert index.search(Phrase("apple tree", slop=1000), 3, None)[0].tolist() == [2]


def test_query_without_a_term_finds_nothing() -> None:
    index = ours(["the apple", ""])
    for query in ("", "the", "...", Phrase("the"), Match("the", operator="and")):
        assert index.search(query, 2, None)[0].tolist() == []


def test_fuzzy_expansions_are_the_alphabetically_first() -> None:
    index = ours(["apply", "apple", "ample", "maple"], stem=False)
    assert index.view(4).candidates("apple", 1, 0, 10) == ["ample", "apple", "apply"]
    assert index.view(4).candidates("apple", 2, 0, 2) == ["ample", "apple"]
    assert index.view(4).candidates("apple", 2, 1, 10) == ["ample", "apple", "apply"]
    assert index.view(1).candidates("apple", 1, 0, 10) == ["apply"]


def test_query_for_another_column_is_refused() -> None:
    index = ours(["apple"])
    for query in (Match("apple", "u"), MultiMatch("apple", ("t", "u")), Phrase("apple", "u")):
        with pytest.raises(InvalidInputError, match="'u'"):
            index.search(query, 1, 10)
        with pytest.raises(InvalidInputError, match="'u'"):
            search_texts({"t": index}, query, 1, 10)
    bound = bind_over(MultiMatch("apple", ("t", "u")), {"t": [index.view(1)], "u": [index.view(1)]})
    with pytest.raises(InvalidInputError, match="'u'"):
        index.search(bound, 1, 10)


def test_catch_up_builds_in_portions() -> None:
    index = FtsIndex("t").build(pa.schema([("t", pa.string())]))
    for start in range(0, 300_000, 50_000):
        index.insert(pa.record_batch([pa.repeat(f"apple w{start}", 50_000)], names=["t"]), start)
    left = [index.catch_up(1) for _ in range(3)]
    assert left == [250_000, 200_000, 150_000]
    assert index.catch_up() == 0
    assert len(index.search("apple", 300_000, None)[0]) == 300_000


def test_memory_grows_with_rows() -> None:
    few, many = ours(corpus(16, 100)), ours(corpus(16, 4000))
    for index in (few, many):
        index.catch_up()
    assert few.size_bytes < 100_000
    assert 4000 * 30 < many.size_bytes < 4000 * 200


def test_replayed_batch_is_ignored_and_a_gap_or_a_short_mask_is_refused() -> None:
    index = ours(["apple", "pear"])
    assert isinstance(index, MemIndex)
    index.insert(pa.record_batch({"t": ["apple", "pear"]}), 0)
    assert index.stats(["appl"], 2) == CorpusStats(2, 2, {"appl": 1})
    with pytest.raises(InvalidInputError, match="expects row 2"):
        index.insert(pa.record_batch({"t": ["apple"]}), 3)
    with pytest.raises(InvalidInputError, match="1 entries for 2 rows"):
        index.search("apple", 2, 10, allowed=np.ones(1, bool))


def test_readers_see_exactly_the_rows_below_their_watermark_while_a_writer_inserts() -> None:
    index: FtsMemIndex = FtsIndex("t").build(pa.schema([("t", pa.string())]))
    rng = random.Random(0)
    texts = [" ".join(rng.choice(WORDS) for _ in range(5)) for _ in range(2000)]
    has_apple = np.array(["apple" in text.split() or "apples" in text.split() for text in texts])
    checked = [0]

    def write() -> None:
        for start in range(0, len(texts), 10):
            index.insert(pa.record_batch({"t": texts[start : start + 10]}), start)

    def read() -> None:
        while True:
            n = index.indexed_rows
            positions, _ = index.search("apples", n, None)
            assert np.array_equal(np.sort(positions), np.flatnonzero(has_apple[:n]))
            assert index.stats(["appl"], n).doc_freq["appl"] == int(has_apple[:n].sum())
            checked[0] += 1
            if n == len(texts):
                return

    threads = [in_thread(action) for action in (read, read, write)]
    for thread in threads:
        thread.result(4 * SECONDS)
    assert checked[0] >= 2


CORPUS_ROWS = 300
LETTERS = ["a1", "b1", "c1", "the", "d1"]


def _assert_same(index: FtsMemIndex, dataset: lance.LanceDataset, asked: TextQuery, rows: int) -> int:
    expected = peer_hits(dataset, asked)
    positions, scores = index.search(asked, rows, None)
    found = dict(zip(positions.tolist(), scores.tolist(), strict=True))
    assert set(found) == set(expected), asked
    assert found == pytest.approx(expected, abs=1e-4), asked
    assert list(scores) == sorted(scores, reverse=True)
    return len(found)


@pytest.mark.parametrize("analyzer", ANALYZERS)
def test_every_query_finds_the_rows_and_scores_of_lance(analyzer: str) -> None:
    seed = sum(analyzer.encode())
    texts = corpus(seed, CORPUS_ROWS)
    dataset, index = peer(texts, **ANALYZERS[analyzer]), ours(texts, **ANALYZERS[analyzer])
    rng = random.Random(seed)
    hits = sum(_assert_same(index, dataset, random_query(rng), CORPUS_ROWS) for _ in range(60))
    assert hits >= 5  # few rows are one word, which is all that the raw tokenizer can find


@pytest.mark.parametrize("analyzer", ANALYZERS)
def test_documents_have_the_terms_that_lance_counts(analyzer: str) -> None:
    texts = corpus(1, CORPUS_ROWS)
    dataset, index = peer(texts, **ANALYZERS[analyzer]), ours(texts, **ANALYZERS[analyzer])
    lance_index = dataset.stats.index_stats("t_idx")["indices"][0]
    tokens = index.analyzer.documents(pa.array(texts, pa.string()))
    assert index.stats([], CORPUS_ROWS).doc_count == lance_index["num_docs"]
    assert len(tokens.terms) == lance_index["num_tokens"]


def test_sloppy_phrases_find_what_lance_finds_in_rows_that_its_index_does_not_cover() -> None:
    texts = corpus(5, CORPUS_ROWS, words=LETTERS)
    dataset = peer(["zzz"])
    table = pa.table({"i": pa.array(range(1, CORPUS_ROWS + 1), pa.int64()), "t": pa.array(texts, pa.string())})
    dataset = lance.write_dataset(table, dataset, mode="append")
    index = ours(["zzz", *texts])
    rng = random.Random(5)
    hits = 0
    for _ in range(120):
        text = " ".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 4)))
        hits += _assert_same(index, dataset, Phrase(text, "t", slop=rng.randint(0, 4)), CORPUS_ROWS + 1)
    assert hits > 1000


def test_best_hits_come_in_the_order_of_lance() -> None:
    texts = corpus(9, CORPUS_ROWS)
    dataset, index = peer(texts), ours(texts)
    for text in ("apple tree", "running quick", "hello", "straße 42 foo"):
        table = dataset.scanner(full_text_query=text, columns=["i", "_score"], limit=10).to_table()
        positions, scores = index.search(text, CORPUS_ROWS, 10)
        assert scores.tolist() == pytest.approx(table["_score"].to_pylist(), abs=1e-4)
        expected = sorted(
            zip(table["_score"].to_pylist(), table["i"].to_pylist(), strict=True), key=lambda p: (-p[0], p[1])
        )
        assert positions.tolist()[:5] == [row for _, row in expected][:5]


def test_lists_of_strings_are_one_document_per_row() -> None:
    texts = [["hello world", "apple"], ["apple", None, "tree"], None, [], ["tree trie"], ["", "hello"]]
    data_type = pa.list_(pa.string())
    dataset, index = peer(texts, data_type), ours(texts, 2, data_type)
    for asked in (Match("apple tree", "t"), Phrase("world apple", "t"), Match("hello", "t")):
        assert _assert_same(index, dataset, asked, len(texts)) > 0


@pytest.mark.parametrize("data_type", [pa.large_string(), pa.string_view()])
def test_wide_and_view_strings_are_searched_like_strings(data_type: pa.DataType) -> None:
    texts = corpus(2, 50)
    wide, plain = ours(texts, data_type=data_type), ours(texts)
    assert wide.search("apple tree", 50, None)[0].tolist() == plain.search("apple tree", 50, None)[0].tolist() != []


def test_queries_over_two_columns_score_as_in_lance() -> None:
    first, second = corpus(3, CORPUS_ROWS), corpus(4, CORPUS_ROWS)
    table = pa.table({"i": pa.array(range(CORPUS_ROWS), pa.int64()), "t": first, "u": second})
    dataset = lance.write_dataset(table, "memory://text-two-columns")
    indexes = {}
    for column, texts in (("t", first), ("u", second)):
        dataset.create_scalar_index(column, "INVERTED", with_position=True)
        indexes[column] = FtsIndex(column).build(pa.schema([(column, pa.string())]))
        indexes[column].insert(pa.record_batch([pa.array(texts, pa.string())], names=[column]), 0)
    in_t, in_u = Match("apple tree", "t"), Match("hello", "u")
    queries = [
        MultiMatch("apple hello", ("t", "u"), boosts=(1.0, 2.0)),
        MultiMatch("apple hello", ("t", "u"), operator="and"),
        Boolean(must=(in_t,), should=(in_u,)),
        Boolean(must=(in_t,), must_not=(in_u,)),
        Boost(in_t, in_u, negative_boost=0.3),
        Boolean(should=(MultiMatch("quick", ("t", "u")), in_u)),
    ]
    for asked in queries:
        positions, scores = search_texts(indexes, asked, CORPUS_ROWS, None)
        expected = peer_hits(dataset, asked)
        assert dict(zip(positions.tolist(), scores.tolist(), strict=True)) == pytest.approx(expected, abs=1e-4)
        assert len(expected) > 5


def test_statistics_over_live_rows_equal_those_of_an_index_that_lance_builds_from_them() -> None:
    texts = corpus(6, CORPUS_ROWS)
    live = [i % 3 != 0 for i in range(CORPUS_ROWS)]
    rebuilt = peer([text for text, alive in zip(texts, live, strict=True) if alive])
    index, mask = ours(texts), np.array(live)
    rows = np.flatnonzero(mask)
    for asked in (Match("apple hello", "t"), Match("aple", "t", fuzziness=2, max_expansions=2)):
        positions, scores = index.search(asked, CORPUS_ROWS, None, allowed=mask, live=mask)
        expected = {int(rows[i]): score for i, score in peer_hits(rebuilt, asked).items()}
        assert dict(zip(positions.tolist(), scores.tolist(), strict=True)) == pytest.approx(expected, abs=1e-4)
        assert expected


FAST = ["default", "whitespace", "custom_stop_words", "short_tokens", "accents_kept"]


def _options(analyzer: str) -> AnalyzerOptions:
    return AnalyzerOptions(**ANALYZERS[analyzer])


def _tokens(analyzer: Analyzer, texts: list[str | None]) -> list[list[tuple[str, int]]]:
    """Terms and positions per document, positions counted from the first kept token, as Lance reports them."""
    tokens = analyzer.documents(pa.array(texts, pa.string()))
    each: list[list[tuple[str, int]]] = [[] for _ in texts]
    for document, position, code in zip(tokens.documents, tokens.positions, tokens.codes, strict=True):
        each[document].append((tokens.terms[code], int(position)))
    return [[(term, position - terms[0][1]) for term, position in terms] for terms in each]


def _expected(analyzer: Analyzer, texts: list[str | None]) -> list[list[tuple[str, int]]]:
    options = analyzer.options.lance_options()
    return [
        [(t.text, t.position) for t in lance.tokenize(text, **options)] if text is not None else [] for text in texts
    ]


@pytest.mark.parametrize("name", ANALYZERS)
def test_random_documents_are_split_as_lance_splits_them(name: str) -> None:
    analyzer, texts = Analyzer(_options(name)), corpus(21, 150)
    assert _tokens(analyzer, texts) == _expected(analyzer, texts)


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=150, deadline=None)
@given(texts=st.lists(st.none() | st.text(max_size=12), max_size=6))
def test_any_text_is_split_as_lance_splits_it(name: str, texts: list[str | None]) -> None:
    analyzer = analyzer_for(_options(name))
    assert _tokens(analyzer, texts) == _expected(analyzer, texts)


@pytest.mark.parametrize("base_tokenizer", ["simple", "whitespace"])
def test_every_character_of_unicode_joins_or_separates_as_in_lance(base_tokenizer: str) -> None:
    analyzer = Analyzer(AnalyzerOptions(base_tokenizer=base_tokenizer, stem=False, remove_stop_words=False))
    codes = [code for code in range(0, sys.maxunicode, 7) if not 0xD800 <= code <= 0xDFFF]
    texts: list[str | None] = [
        " ".join(f"a{chr(code)}b" for code in codes[start : start + 2000]) for start in range(0, len(codes), 2000)
    ]
    assert _tokens(analyzer, texts) == _expected(analyzer, texts)


def test_slice_of_an_array_is_split_like_the_array() -> None:
    analyzer = Analyzer(AnalyzerOptions())
    array = pa.array(["drop", "one two", None, "three", "drop"])
    tokens = analyzer.documents(array.slice(1, 3))
    assert [(int(d), tokens.terms[c]) for d, c in zip(tokens.documents, tokens.codes, strict=True)] == [
        (0, "one"),
        (0, "two"),
        (2, "three"),
    ]


@pytest.mark.parametrize("name", ["icu", "icu_split"])
def test_document_that_holds_the_mark_between_documents_is_still_one_document(name: str) -> None:
    analyzer = Analyzer(_options(name))
    texts: list[str | None] = ["one", f"two {_MARK} three", "four"]
    assert _tokens(analyzer, texts) == _expected(analyzer, texts)


def test_analyzer_that_removes_every_token_yields_none() -> None:
    analyzer = Analyzer(AnalyzerOptions(max_token_length=1))
    assert _tokens(analyzer, ["a bc", "0"]) == [[], []]


def test_defaults_are_those_of_lances_index() -> None:
    dataset = lance.write_dataset(pa.table({"t": ["word"]}), "memory://analyzer-defaults")
    for base_tokenizer in ("simple", "ngram"):
        dataset.create_scalar_index("t", "INVERTED", base_tokenizer=base_tokenizer, replace=True)
        params = dataset.stats.index_stats("t_idx")["indices"][0]["params"]
        spelled_out = AnalyzerOptions(**{name: params[name] for name in AnalyzerOptions.__dataclass_fields__})
        texts = corpus(22, 50)
        ours, theirs = Analyzer(AnalyzerOptions(base_tokenizer=base_tokenizer)), Analyzer(spelled_out)
        assert _tokens(ours, texts) == _tokens(theirs, texts)


@pytest.mark.parametrize(
    "options",
    [
        {"base_tokenizer": "nonsense"},
        {"base_tokenizer": "code"},
        {"language": "Klingon"},
        {"max_token_length": -1},
        {"base_tokenizer": "ngram", "min_ngram_length": 4, "max_ngram_length": 3},
        {"stem": "yes"},
    ],
)
def test_options_that_lance_does_not_know_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        Analyzer(AnalyzerOptions(**options))  # type: ignore[arg-type]


TRICKY = 'he"l\\lo\n\t ü\x00\x7f\u200b\U0001f600 \'x\' ] } ), should=[Match(MatchQuery { terms: "y" })]'

PAIRS: list[tuple[lq.FullTextQuery, TextQuery]] = [
    (lq.MatchQuery("a b", "t"), Match("a b", "t")),
    (lq.MatchQuery(TRICKY, "t"), Match(TRICKY, "t")),
    (
        lq.MatchQuery(
            "a", "u", boost=2.5e-7, fuzziness=2, max_expansions=7, operator=lq.FullTextOperator.AND, prefix_length=3
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


def explained(query: lq.FullTextQuery) -> str:
    """A query as Lance prints it."""
    table = pa.table({"t": pa.array([], pa.string()), "u": pa.array([], pa.string())})
    return str(lance.write_dataset(table, "memory://explained").scanner(full_text_query=query).explain_plan())


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_query_is_the_query_of_lance_with_the_same_name(theirs: lq.FullTextQuery, ours: TextQuery) -> None:
    assert explained(to_lance(ours)) == explained(theirs)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (lq.MatchQuery("a", "t"), "Match"),
        (lq.PhraseQuery("a", "t"), "Phrase"),
        (lq.BooleanQuery([(lq.Occur.SHOULD, lq.MatchQuery("a", "t"))]), "Boolean"),
        (lq.BoostQuery(lq.MatchQuery("a", "t"), lq.MatchQuery("b", "t")), "Boost"),
        (lq.MultiMatchQuery("a", ["t"]), "MultiMatch"),
        (lq.CombinedFieldsQuery("a", ["t", "u"]), "Match"),
        (7, "Match"),
    ],
)
def test_query_of_another_kind_is_refused_with_the_class_to_use(theirs: object, ours: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"use lance_memwal\.query\.{ours}$"):
        as_query(theirs, ["t", "u"])


def test_query_that_names_another_column_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="elsewhere"):
        as_query(mw.query.Match("a", "elsewhere"), ["t", "u"])


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
