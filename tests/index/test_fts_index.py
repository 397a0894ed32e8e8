"""Full text in memory: watermarks, masks, statistics over several tiers, memory, threads."""

from __future__ import annotations

import random
import threading

import numpy as np
import pyarrow as pa
import pytest

from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index import (
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
    bind_over,
    search_texts,
    terms_of,
)
from tests.kit.text_peer import WORDS, corpus, ours

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


def test_an_index_made_for_a_search_without_statistics_is_its_own_corpus() -> None:
    texts = corpus(15, ROWS)
    index = ours(texts)
    alone = FtsMemIndex.of_texts("t", pa.array(texts, pa.string()), index.analyzer).search("apple tree", ROWS, None)
    assert _found(alone) == pytest.approx(_found(index.search("apple tree", ROWS, None)))


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


def test_mask_that_is_too_short_is_refused() -> None:
    index = ours(["apple", "pear"])
    with pytest.raises(InvalidInputError, match="1 entries for 2 rows"):
        index.search("apple", 2, 10, allowed=np.ones(1, bool))


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


def test_index_keeps_the_protocol() -> None:
    assert isinstance(ours([]), MemIndex)


def test_replayed_batch_is_ignored_and_a_gap_is_refused() -> None:
    index = ours(["apple", "pear"])
    index.insert(pa.record_batch({"t": ["apple", "pear"]}), 0)
    assert index.stats(["appl"], 2) == CorpusStats(2, 2, {"appl": 1})
    with pytest.raises(InvalidInputError, match="expects row 2"):
        index.insert(pa.record_batch({"t": ["apple"]}), 3)


def test_readers_see_exactly_the_rows_below_their_watermark_while_a_writer_inserts() -> None:
    index: FtsMemIndex = FtsIndex("t").build(pa.schema([("t", pa.string())]))
    rng = random.Random(0)
    texts = [" ".join(rng.choice(WORDS) for _ in range(5)) for _ in range(2000)]
    has_apple = np.array(["apple" in text.split() or "apples" in text.split() for text in texts])
    failures: list[BaseException] = []
    checked = [0]

    def write() -> None:
        for start in range(0, len(texts), 10):
            index.insert(pa.record_batch({"t": texts[start : start + 10]}), start)

    def read() -> None:
        try:
            while True:
                n = index.indexed_rows
                positions, _ = index.search("apples", n, None)
                assert np.array_equal(np.sort(positions), np.flatnonzero(has_apple[:n]))
                assert index.stats(["appl"], n).doc_freq["appl"] == int(has_apple[:n].sum())
                checked[0] += 1
                if n == len(texts):
                    return
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=action) for action in (read, read, write)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert checked[0] >= 2
