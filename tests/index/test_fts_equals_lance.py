"""Full text in memory: the same rows, the same scores as Lance's inverted index over the same corpus."""

from __future__ import annotations

import random

import lance
import lance.query as lq
import numpy as np
import pyarrow as pa
import pytest

from lance_memwal.memtable.index import FtsIndex, FtsMemIndex, from_lance, search_texts
from tests.kit.text_peer import ANALYZERS, corpus, ours, peer, peer_hits, random_query

ROWS = 300
LETTERS = ["a1", "b1", "c1", "the", "d1"]


def _assert_same(index: FtsMemIndex, dataset: lance.LanceDataset, query: lq.FullTextQuery, rows: int) -> int:
    expected = peer_hits(dataset, query)
    parsed = from_lance(query, ["t"])
    positions, scores = index.search(parsed, rows, None)
    found = dict(zip(positions.tolist(), scores.tolist(), strict=True))
    assert set(found) == set(expected), parsed
    assert found == pytest.approx(expected, abs=1e-4), parsed
    assert list(scores) == sorted(scores, reverse=True)
    return len(found)


@pytest.mark.parametrize("analyzer", ANALYZERS)
def test_every_query_finds_the_rows_and_scores_of_lance(analyzer: str) -> None:
    seed = sum(analyzer.encode())
    texts = corpus(seed, ROWS)
    dataset, index = peer(texts, **ANALYZERS[analyzer]), ours(texts, **ANALYZERS[analyzer])
    rng = random.Random(seed)
    hits = sum(_assert_same(index, dataset, random_query(rng), ROWS) for _ in range(60))
    assert hits >= 5  # few rows are one word, which is all that the raw tokenizer can find


@pytest.mark.parametrize("analyzer", ANALYZERS)
def test_documents_have_the_terms_that_lance_counts(analyzer: str) -> None:
    texts = corpus(1, ROWS)
    dataset, index = peer(texts, **ANALYZERS[analyzer]), ours(texts, **ANALYZERS[analyzer])
    lance_index = dataset.stats.index_stats("t_idx")["indices"][0]
    tokens = index.analyzer.documents(pa.array(texts, pa.string()))
    assert index.stats([], ROWS).doc_count == lance_index["num_docs"]
    assert len(tokens.terms) == lance_index["num_tokens"]


def test_sloppy_phrases_find_what_lance_finds_in_rows_that_its_index_does_not_cover() -> None:
    texts = corpus(5, ROWS, words=LETTERS)
    dataset = peer(["zzz"])
    table = pa.table({"i": pa.array(range(1, ROWS + 1), pa.int64()), "t": pa.array(texts, pa.string())})
    dataset = lance.write_dataset(table, dataset, mode="append")
    index = ours(["zzz", *texts])
    rng = random.Random(5)
    hits = 0
    for _ in range(120):
        text = " ".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 4)))
        hits += _assert_same(index, dataset, lq.PhraseQuery(text, "t", slop=rng.randint(0, 4)), ROWS + 1)
    assert hits > 1000


def test_best_hits_come_in_the_order_of_lance() -> None:
    texts = corpus(9, ROWS)
    dataset, index = peer(texts), ours(texts)
    for query in ("apple tree", "running quick", "hello", "straße 42 foo"):
        table = dataset.scanner(full_text_query=query, columns=["i", "_score"], limit=10).to_table()
        positions, scores = index.search(query, ROWS, 10)
        assert scores.tolist() == pytest.approx(table["_score"].to_pylist(), abs=1e-4)
        expected = sorted(
            zip(table["_score"].to_pylist(), table["i"].to_pylist(), strict=True), key=lambda p: (-p[0], p[1])
        )
        assert positions.tolist()[:5] == [row for _, row in expected][:5]


def test_lists_of_strings_are_one_document_per_row() -> None:
    texts = [["hello world", "apple"], ["apple", None, "tree"], None, [], ["tree trie"], ["", "hello"]]
    data_type = pa.list_(pa.string())
    dataset, index = peer(texts, data_type), ours(texts, 2, data_type)
    for query in (lq.MatchQuery("apple tree", "t"), lq.PhraseQuery("world apple", "t"), lq.MatchQuery("hello", "t")):
        assert _assert_same(index, dataset, query, len(texts)) > 0


@pytest.mark.parametrize("data_type", [pa.large_string(), pa.string_view()])
def test_wide_and_view_strings_are_searched_like_strings(data_type: pa.DataType) -> None:
    texts = corpus(2, 50)
    wide, plain = ours(texts, data_type=data_type), ours(texts)
    assert wide.search("apple tree", 50, None)[0].tolist() == plain.search("apple tree", 50, None)[0].tolist() != []


def test_queries_over_two_columns_score_as_in_lance() -> None:
    first, second = corpus(3, ROWS), corpus(4, ROWS)
    table = pa.table({"i": pa.array(range(ROWS), pa.int64()), "t": first, "u": second})
    dataset = lance.write_dataset(table, "memory://text-two-columns")
    indexes = {}
    for column, texts in (("t", first), ("u", second)):
        dataset.create_scalar_index(column, "INVERTED", with_position=True)
        indexes[column] = FtsIndex(column).build(pa.schema([(column, pa.string())]))
        indexes[column].insert(pa.record_batch([pa.array(texts, pa.string())], names=[column]), 0)
    in_t, in_u = lq.MatchQuery("apple tree", "t"), lq.MatchQuery("hello", "u")
    queries = [
        lq.MultiMatchQuery("apple hello", ["t", "u"], boosts=[1.0, 2.0]),
        lq.MultiMatchQuery("apple hello", ["t", "u"], operator=lq.FullTextOperator.AND),
        lq.BooleanQuery([(lq.Occur.MUST, in_t), (lq.Occur.SHOULD, in_u)]),
        lq.BooleanQuery([(lq.Occur.MUST, in_t), (lq.Occur.MUST_NOT, in_u)]),
        lq.BoostQuery(in_t, in_u, negative_boost=0.3),
        lq.BooleanQuery([(lq.Occur.SHOULD, lq.MultiMatchQuery("quick", ["t", "u"])), (lq.Occur.SHOULD, in_u)]),
    ]
    for query in queries:
        positions, scores = search_texts(indexes, from_lance(query, ["t", "u"]), ROWS, None)
        expected = peer_hits(dataset, query)
        assert dict(zip(positions.tolist(), scores.tolist(), strict=True)) == pytest.approx(expected, abs=1e-4)
        assert len(expected) > 5


def test_statistics_over_live_rows_equal_those_of_an_index_that_lance_builds_from_them() -> None:
    texts = corpus(6, ROWS)
    live = [i % 3 != 0 for i in range(ROWS)]
    rebuilt = peer([text for text, alive in zip(texts, live, strict=True) if alive])
    index, mask = ours(texts), np.array(live)
    rows = np.flatnonzero(mask)
    for query in (lq.MatchQuery("apple hello", "t"), lq.MatchQuery("aple", "t", fuzziness=2, max_expansions=2)):
        positions, scores = index.search(from_lance(query, ["t"]), ROWS, None, allowed=mask, live=mask)
        expected = {int(rows[i]): score for i, score in peer_hits(rebuilt, query).items()}
        assert dict(zip(positions.tolist(), scores.tolist(), strict=True)) == pytest.approx(expected, abs=1e-4)
        assert expected
