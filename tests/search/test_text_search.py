"""Text search of a table is BM25 over its live rows, with the statistics of the base table's text index."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.errors import InvalidInputError
from tests.harness.profile import scaled
from tests.kit.search import SETTINGS, Row, Spread, ids, schema_of, scores_of, spread, to_table

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
    "all words": mw.query.Match("cedar otter", "t", operator="and"),
    "phrase": mw.query.Phrase("cedar otter", "t"),
    "phrase with slop": mw.query.Phrase("amber maple", "t", slop=2),
    "fuzzy": mw.query.Match("cedur oter", "t", fuzziness=1),
    "boolean": mw.query.Boolean(
        must=(mw.query.Match("maple", "t"),),
        should=(mw.query.Match("heron", "t"),),
        must_not=(mw.query.Match("quartz", "t"),),
    ),
    "boost": mw.query.Boost(mw.query.Match("maple", "t"), mw.query.Match("heron", "t"), negative_boost=0.5),
    "several columns, of which one": mw.query.MultiMatch("cedar pine", ("t",)),
    "boosted word": mw.query.Match("kelp iris", "t", boost=2.5),
    "no such word": "xylophone",
}


def check(made: Spread, options: dict[str, Any], query: Any) -> None:
    """The same rows, scores and order as in one index over the live rows."""
    expected = scores_of(query, {row.id: row.text for row in made.live.values()}, made.indexed, options)
    found = made.table.search(text=query, column="t", k=100_000, columns=["id"])
    scores = found.column("_score").to_pylist()
    assert set(ids(found)) == set(expected)
    rtol = 0.1 if "min_ngram_length" in options else 1e-4  # frequencies of n-grams that span words are estimates
    np.testing.assert_allclose(scores, [expected[key] for key in ids(found)], rtol=rtol, err_msg=str(query))
    assert scores == sorted(scores, reverse=True)
    best = made.table.search(text=query, column="t", k=5, columns=["id"])
    assert best.column("_score").to_pylist() == scores[:5]


@pytest.mark.scaled
@pytest.mark.parametrize("analyzer", ANALYZERS)
def test_scores_and_order_equal_a_bm25_over_the_live_rows(tmp_path: Path, analyzer: str) -> None:
    """Lesson 33: phrases, booleans, boosts and single-column multi-match, with or without positions in the base index."""
    options = ANALYZERS[analyzer]
    made = spread(tmp_path, rows=scaled(ci=400, prove=20_000), text_options=options, metric=None, nulls=0.05)
    for query in QUERIES.values():
        check(made, options, query)
    made.flush()  # the same, with nothing in memory
    for query in QUERIES.values():
        check(made, options, query)
    made.writer.close()


def test_a_phrase_is_found_on_a_column_without_any_index(tmp_path: Path) -> None:
    """Lessons 32 and 33: no index is no reason to contribute nothing."""
    made = spread(tmp_path, metric=None)
    assert made.table.search(text=QUERIES["phrase"]).num_rows
    for query in QUERIES.values():
        check(made, {}, query)
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
        found = writer.memtable_scanner().full_text_search("t", "cedar").to_table()
        peer = lance.write_dataset(
            to_table([Row(i, None, text, i) for i, text in enumerate(texts)], schema), str(tmp_path / "peer")
        )
        peer.create_scalar_index("t", "INVERTED")
        expected = peer.scanner(full_text_query="cedar", columns=["id", "_score"], limit=100).to_table()
        assert dict(zip(ids(found), found.column("_score").to_pylist(), strict=True)) == pytest.approx(
            dict(zip(ids(expected), expected.column("_score").to_pylist(), strict=True)), abs=1e-4
        )
        assert ids(writer.memtable_scanner().filter("tag > 0").limit(1).full_text_search("t", "cedar").to_table()) in (
            [1],
            [2],
        )
        with pytest.raises(InvalidInputError, match="not a text column"):
            writer.memtable_scanner().full_text_search("v", "cedar")


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
        assert ids(table.search(text=mw.query.Match("dog", "u"))) == [1]
        assert ids(table.search(text=mw.query.Phrase("quick fox", "t", slop=1), column="t")) == [1]
        assert ids(table.search(text=mw.query.Phrase("quick fox", "u"))) == [2]
        assert ids(writer.memtable_scanner().full_text_search("u", mw.query.Phrase("brown quick", "u")).to_table()) == [
            2
        ]
        assert sorted(ids(table.search(text=mw.query.MultiMatch("dog", ("t", "u"))))) == [1, 2]
        with pytest.raises(InvalidInputError, match="u"):
            table.search(text=mw.query.MultiMatch("dog", ("t", "u")), column="t")
        with pytest.raises(InvalidInputError, match="names 'u'"):
            table.search(text=mw.query.Phrase("quick fox", "u"), column="t")
        with pytest.raises(InvalidInputError, match="a text query must be a string"):
            writer.memtable_scanner().full_text_search("t", 5)
