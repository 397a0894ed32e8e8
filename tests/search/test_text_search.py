"""Text search of a table equals a BM25 over its live rows, made from scratch by Lance with the same analyzer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import lance.query as lq
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index import Phrase
from tests.harness.profile import scaled
from tests.kit.search import SETTINGS, Row, Spread, ids, schema_of, spread, to_table

ANALYZERS: dict[str, dict[str, Any]] = {
    "default": {},
    "unstemmed, stop words kept": {"stem": False, "remove_stop_words": False},
    "whitespace, case kept": {"base_tokenizer": "whitespace", "lower_case": False},
    "ngram": {"base_tokenizer": "ngram", "min_ngram_length": 3, "max_ngram_length": 4},
    "german": {"language": "German"},
    "own stop words": {"custom_stop_words": ["amber", "cedar"]},
}
QUERIES: dict[str, Any] = {
    "one word": "cedar",
    "several words": "cedar otter pine",
    "all words": lq.MatchQuery("cedar otter", "t", operator=lq.FullTextOperator.AND),
    "phrase": lq.PhraseQuery("cedar otter", "t"),
    "phrase with slop": lq.PhraseQuery("amber maple", "t", slop=2),
    "fuzzy": lq.MatchQuery("cedur oter", "t", fuzziness=1),
    "boolean": lq.BooleanQuery(
        [
            (lq.Occur.MUST, lq.MatchQuery("maple", "t")),
            (lq.Occur.SHOULD, lq.MatchQuery("heron", "t")),
            (lq.Occur.MUST_NOT, lq.MatchQuery("quartz", "t")),
        ]
    ),
    "boost": lq.BoostQuery(lq.MatchQuery("maple", "t"), lq.MatchQuery("heron", "t"), negative_boost=0.5),
    "several columns, of which one": lq.MultiMatchQuery("cedar pine", ["t"]),
    "boosted word": lq.MatchQuery("kelp iris", "t", boost=2.5),
    "no such word": "xylophone",
}


class Peer:
    """Lance over the live rows alone, in one fragment with one index."""

    def __init__(self, made: Spread, path: Path, options: dict[str, Any]) -> None:
        rows = to_table(sorted(made.live.values(), key=lambda row: row.id), made.schema)
        self._dataset = lance.write_dataset(rows, str(path / "peer"), mode="overwrite")
        self._dataset.create_scalar_index("t", "INVERTED", **{**options, "with_position": True})

    def hits(self, query: Any) -> dict[int, float]:
        found = self._dataset.scanner(full_text_query=query, columns=["id", "_score"], limit=100_000).to_table()
        return dict(zip(found["id"].to_pylist(), found["_score"].to_pylist(), strict=True))


def check(made: Spread, peer: Peer, query: Any) -> None:
    """Same rows, same scores, same order."""
    expected = peer.hits(query)
    found = made.table.search(text=query, column="t", k=100_000, columns=["id"])
    scores = found.column("_score").to_pylist()
    assert set(ids(found)) == set(expected)
    np.testing.assert_allclose(scores, [expected[key] for key in ids(found)], atol=1e-4)
    assert scores == sorted(scores, reverse=True)
    best = made.table.search(text=query, column="t", k=5, columns=["id"])
    assert best.column("_score").to_pylist() == scores[:5]


@pytest.mark.scaled
@pytest.mark.parametrize("analyzer", ANALYZERS)
def test_scores_and_order_equal_a_bm25_over_the_live_rows(tmp_path: Path, analyzer: str) -> None:
    """Lesson 33: phrases, booleans, boosts and single-column multi-match, with or without positions in the base index."""
    options = ANALYZERS[analyzer]
    made = spread(tmp_path, rows=scaled(ci=400, prove=20_000), text_options=options, metric=None, nulls=0.05)
    peer = Peer(made, tmp_path, options)
    for query in QUERIES.values():
        check(made, peer, query)
    made.flush()  # the same, with nothing in memory
    for query in QUERIES.values():
        check(made, peer, query)
    made.writer.close()


def test_a_phrase_is_found_on_a_column_without_any_index(tmp_path: Path) -> None:
    """Lessons 32 and 33: no index is no reason to contribute nothing."""
    made = spread(tmp_path, metric=None)
    peer = Peer(made, tmp_path, {})
    assert peer.hits(QUERIES["phrase"])
    for query in QUERIES.values():
        check(made, peer, query)
    made.writer.close()


def test_a_filter_restricts_the_rows_but_not_the_statistics(tmp_path: Path) -> None:
    made = spread(tmp_path, text_options={}, metric=None)
    everything = made.table.search(text="cedar otter", k=100_000)
    scores = dict(zip(ids(everything), everything.column("_score").to_pylist(), strict=True))
    for tag in range(10):
        found = made.table.search(text="cedar otter", k=100_000, filter=f"tag = {tag}")
        assert set(ids(found)) == {key for key in scores if made.live[key].tag == tag}
        assert found.column("_score").to_pylist() == [scores[key] for key in ids(found)]
    made.writer.close()


def test_full_text_search_within_a_memtable_scores_its_live_rows(tmp_path: Path) -> None:
    schema = schema_of(4)
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id")
    texts = ["amber cedar", "cedar", "cedar cedar maple", "maple", None, "otter"]
    with table.shard_writer(**SETTINGS) as writer:
        writer.put(to_table([Row(i, None, "cedar cedar", 0) for i in range(20)], schema))
        writer.put(to_table([Row(i, None, text, i) for i, text in enumerate(texts)], schema))
        writer.delete(range(6, 20))
        found = writer.scan().full_text_search("t", "cedar").to_table()
        peer = lance.write_dataset(
            to_table([Row(i, None, text, i) for i, text in enumerate(texts)], schema), str(tmp_path / "peer")
        )
        peer.create_scalar_index("t", "INVERTED")
        expected = peer.scanner(full_text_query="cedar", columns=["id", "_score"], limit=100).to_table()
        assert dict(zip(ids(found), found.column("_score").to_pylist(), strict=True)) == pytest.approx(
            dict(zip(ids(expected), expected.column("_score").to_pylist(), strict=True)), abs=1e-4
        )
        assert ids(writer.scan().filter("tag > 0").limit(1).full_text_search("t", "cedar").to_table()) in ([1], [2])
        with pytest.raises(InvalidInputError, match="not a text column"):
            writer.scan().full_text_search("v", "cedar")


def test_hybrid_is_the_reciprocal_rank_fusion_of_both_rankings(tmp_path: Path) -> None:
    made = spread(tmp_path, text_options={}, metric="l2", index={"num_partitions": 1})
    for _ in range(5):
        query, text = made.make.vector(), "cedar otter"
        near = ids(made.table.search(vector=query, k=40))
        matching = ids(made.table.search(text=text, k=40))
        relevance: dict[int, float] = {}
        for ranking in (near, matching):
            for rank, key in enumerate(ranking, 1):
                relevance[key] = relevance.get(key, 0.0) + 1 / (60 + rank)
        found = made.table.search(vector=query, text=text, k=10)
        best = sorted(relevance.values(), reverse=True)[:10]
        np.testing.assert_allclose(found.column("_relevance").to_pylist(), best, rtol=1e-6)
        np.testing.assert_allclose([relevance[key] for key in ids(found)], best, rtol=1e-6)
    made.writer.close()


def test_a_query_object_names_its_column(tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("t", pa.string()), pa.field("u", pa.string())]
    )
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id")
    with table.shard_writer(**SETTINGS) as writer:
        writer.put([{"id": 1, "t": "quick brown fox", "u": "dog"}, {"id": 2, "t": "dog", "u": "brown quick fox"}])
        assert ids(table.search(text=lq.MatchQuery("dog", "u"))) == [1]
        assert ids(table.search(text=lq.PhraseQuery("quick fox", "t", slop=1), column="t")) == [1]
        assert ids(table.search(text=Phrase("quick fox", "u"))) == [2]
        assert ids(writer.scan().full_text_search("u", lq.PhraseQuery("brown quick", "u")).to_table()) == [2]
        assert sorted(ids(table.search(text=lq.MultiMatchQuery("dog", ["t", "u"])))) == [1, 2]
        with pytest.raises(InvalidInputError, match="u"):
            table.search(text=lq.MultiMatchQuery("dog", ["t", "u"]), column="t")
        with pytest.raises(InvalidInputError, match="names 'u'"):
            table.search(text=Phrase("quick fox", "u"), column="t")
        with pytest.raises(InvalidInputError, match="a text query is a string"):
            writer.scan().full_text_search("t", 5)
