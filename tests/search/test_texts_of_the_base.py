"""Text search of a base table with an index: Lance ranks its rows, and fresh rows are scored with the index's statistics."""

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from benchmarks.texts import Texts
from lance_memwal.errors import InvalidInputError
from tests.harness.profile import scaled
from tests.kit.search import SETTINGS, ids, scores_of
from tests.kit.tables import nothing_kept

PLAIN: dict[str, Any] = {"stem": False, "remove_stop_words": False}


class World:
    """A table and, as a plain dictionary, its live rows."""

    def __init__(
        self, path: Path, rows: int, *, words: int = 300, index: dict[str, Any] | None = None, **how: Any
    ) -> None:
        self.make = Texts(words)
        first = self.make.rows(0, rows, 1)
        dataset = lance.write_dataset(first, str(path / "t"), max_rows_per_file=rows // 2 + 1, **how)
        dataset.create_scalar_index("t", "INVERTED", name="t_fts", **{**PLAIN, **(index or {})})
        self.table = mw.enable(str(path / "t"), primary_key="id")
        self.live = _as_dict(first)
        self.indexed: list[str | None] = first["t"].to_pylist()
        self._appended: list[str | None] = []

    def put(self, writer: mw.ShardWriter, first: int, count: int, seed: int) -> None:
        rows = self.make.rows(first, count, seed)
        writer.put(rows)
        self.live.update(_as_dict(rows))

    def delete(self, writer: mw.ShardWriter, keys: range) -> None:
        writer.delete(list(keys))
        for key in keys:
            self.live.pop(key, None)

    def append_to_base(self, first: int, count: int, seed: int) -> None:
        rows = self.make.rows(first, count, seed)
        lance.write_dataset(rows, self.table.uri, mode="append")
        self.live.update(_as_dict(rows))
        self._appended += rows["t"].to_pylist()

    def index_appended(self) -> None:
        self.table.dataset.optimize.optimize_indices(num_indices_to_merge=0)
        self.indexed += self._appended
        self._appended = []

    def delete_in_base(self, keys: range) -> None:
        self.table.dataset.delete(f"id >= {keys.start} and id < {keys.stop}")
        for key in keys:
            self.live.pop(key, None)

    def update_in_base(self, first: int, count: int, seed: int) -> None:
        rows = self.make.rows(first, count, seed)
        self.table.dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)
        self.live.update(_as_dict(rows))

    def fresh_rows(self, writer: mw.ShardWriter, seed: int) -> None:
        """Rows in two SSTables and a memtable, which replace and delete some of the base and of each other."""
        for number in range(3):
            self.put(writer, 150 + 40 * number, 60, seed + number)
            self.put(writer, 1_000_000 * (seed + number), 40, seed + number + 50)
            self.delete(writer, range(20 * number, 20 * number + 15))
            if number < 2:
                writer.force_seal_active()
                writer.wait_for_flush_drain(60)

    def check(self, queries: list[Any]) -> None:
        for query in queries:
            expected = scores_of(query, self.live, self.indexed, PLAIN)
            found = self.table.search(text=query, column="t", k=100_000, columns=["id"])
            assert sorted(ids(found)) == sorted(expected), query
            scores = found["_score"].to_numpy()
            np.testing.assert_allclose(
                scores, [expected[key] for key in ids(found)], rtol=1e-4, atol=1e-6, err_msg=str(query)
            )
            best = self.table.search(text=query, column="t", k=10, columns=["id"])
            np.testing.assert_allclose(best["_score"].to_numpy(), scores[:10], rtol=1e-6)

    def check_rows(self, queries: list[Any]) -> None:
        """Same rows; their scores are not those of the index's statistics, which Lance changed."""
        for query in queries:
            found = self.table.search(text=query, column="t", k=100_000, columns=["id"])
            assert sorted(ids(found)) == sorted(scores_of(query, self.live, self.indexed, PLAIN)), query


def _as_dict(rows: pa.Table) -> dict[int, str]:
    return dict(zip(rows["id"].to_pylist(), rows["t"].to_pylist(), strict=True))


def queries_of(world: World) -> list[Any]:
    """Of every kind, over common and rare words."""
    words = world.make.words.to_pylist()
    common, rare = words[0], words[250]
    return [
        common,
        f"{common} {words[1]}",
        f"{rare} {common}",
        *world.make.queries(6, 11),
        mw.query.Match(f"{common} {words[3]}", "t", operator="and"),
        mw.query.Match(words[20][:-1] + "q", "t", fuzziness=1),
        mw.query.Match(f"{words[20][:-1]}q {words[4]}", "t", fuzziness=2, operator="and"),
        mw.query.Phrase(f"{words[0]} {words[1]}", "t"),
        mw.query.Phrase(f"{words[1]} {words[2]}", "t", slop=2),
        mw.query.Boolean(
            must=(mw.query.Match(common, "t"),),
            should=(mw.query.Match(rare, "t"),),
            must_not=(mw.query.Match(words[5], "t"),),
        ),
        mw.query.Boost(mw.query.Match(common, "t"), mw.query.Match(words[2], "t"), negative_boost=0.3),
        "nosuchword",
    ]


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_scores_are_those_of_the_index_after_any_change_of_the_base(tmp_path: Path, stable: bool) -> None:
    world = World(tmp_path, 600, enable_stable_row_ids=stable)
    queries = queries_of(world)
    with world.table.shard_writer(**SETTINGS) as writer:
        world.check(queries[:3])
        world.fresh_rows(writer, 2)
        world.check(queries)
        world.append_to_base(20_000, 50, 31)  # in no index
        world.delete_in_base(range(300, 340))
        world.check(queries)
        world.index_appended()
        world.update_in_base(400, 30, 32)
        world.append_to_base(30_000, 20, 33)
        world.check(queries)
    world.table.compact()
    world.check(queries)
    world.table.dataset.optimize.compact_files()
    world.check_rows(queries[::3])
    world.table.dataset.optimize.optimize_indices()
    world.check_rows(queries[::3])


def test_a_row_is_not_found_by_its_earlier_text_and_not_twice(tmp_path: Path) -> None:
    """A row keeps its id and is replaced between two segments of the index. Lance keeps both texts, and merges them."""
    world = World(tmp_path, 200, enable_stable_row_ids=True)
    word = world.make.words[0].as_py()
    world.update_in_base(50, 40, 21)
    world.table.dataset.optimize.optimize_indices(num_indices_to_merge=0)
    plain = world.table.dataset.scanner(full_text_query=word, columns=["id", "_score"]).to_table()
    assert len(plain) > len(set(ids(plain)))
    world.check_rows(queries_of(world))
    world.append_to_base(30_000, 20, 33)
    world.table.dataset.optimize.optimize_indices(num_indices_to_merge=2)
    world.check_rows(queries_of(world))
    best = world.table.search(text=word, k=30, columns=["id"])
    assert len(set(ids(best))) == 30


def test_each_column_is_searched_in_the_fragments_that_its_index_covers(tmp_path: Path) -> None:
    """The index on one column covers a fragment more than that on the other, and a query names both."""
    make, uri = Texts(40), str(tmp_path / "t")

    def rows(first: int) -> pa.Table:
        return make.rows(first, 60, first + 1).append_column("u", make.rows(first, 60, first + 2)["t"])

    dataset = lance.write_dataset(rows(0), uri)
    dataset.create_scalar_index("u", "INVERTED", **PLAIN)
    lance.write_dataset(rows(60), uri, mode="append")
    lance.dataset(uri).create_scalar_index("t", "INVERTED", **PLAIN)
    table = mw.enable(uri, primary_key="id")
    live = pa.concat_tables([rows(0), rows(60)]).to_pylist()
    one, two = make.words.to_pylist()[:2]
    in_t, in_u = mw.query.Match(one, "t"), mw.query.Match(two, "u")
    for query, wanted in (
        (mw.query.Boolean(must=(in_t, in_u)), lambda t, u: one in t and two in u),
        (mw.query.Boolean(must=(in_t,), must_not=(in_u,)), lambda t, u: one in t and two not in u),
    ):
        expected = [row["id"] for row in live if wanted(row["t"].split(), row["u"].split())]
        assert sorted(ids(table.search(text=query, k=1_000))) == expected
        assert len(set(ids(table.search(text=query, k=3)))) == 3


LAYOUTS: dict[str, dict[str, Any]] = {
    "version 1": {"format_version": 1},
    "version 2": {"format_version": 2},
    "version 3": {"format_version": 3},
    "with positions": {"with_position": True},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_the_index_gives_the_same_answers(tmp_path: Path, layout: str) -> None:
    world = World(tmp_path, 900, words=60, index=LAYOUTS[layout])  # some words are in more than a block of documents
    words = world.make.words.to_pylist()
    with world.table.shard_writer(**SETTINGS) as writer:
        world.put(writer, 500, 30, 7)
        world.check([words[0], f"{words[1]} {words[40]}", mw.query.Phrase(f"{words[0]} {words[1]}", "t"), words[59]])


def test_fresh_rows_have_own_statistics_if_lance_scores_otherwise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Lance (14.0.2) rounds the lengths of rows in an index with large blocks."""
    world = World(tmp_path, 900, words=60, index={"block_size": 256})
    word = world.make.words[0].as_py()
    with world.table.shard_writer(**SETTINGS) as writer:
        world.put(writer, 2_000, 30, 7)
        for _ in range(2):
            found = world.table.search(text=word, k=10_000, columns=["id"])
            assert sorted(ids(found)) == sorted(scores_of(word, world.live, [], PLAIN))
        fresh = {key: text for key, text in world.live.items() if key >= 2_000}
        scores = {
            key: score for key, score in zip(ids(found), found["_score"].to_pylist(), strict=True) if key in fresh
        }
        assert scores == pytest.approx(scores_of(word, fresh, [], PLAIN), rel=1e-4)
    assert [record.message for record in caplog.records if "BM25" in record.message] == [
        "Lance does not score by BM25: new rows are scored by their own statistics [column=t]"
    ]


@pytest.mark.parametrize(
    "word", ["x" * 20_000, "y" * 600 + "dimensional"], ids=["a word", "a word whose stem has a stem"]
)
def test_a_word_of_any_length_is_found(tmp_path: Path, word: str) -> None:
    """Lance refuses fuzzy queries for words of some hundred characters."""
    world = World(tmp_path, 90, index={"max_token_length": None, "stem": True})
    with world.table.shard_writer(**SETTINGS) as writer:
        writer.put({"id": [3, 500], "t": [f"{word} other", word]})
        assert ids(world.table.search(text=word)) == [500, 3]
        writer.force_seal_active()
        writer.wait_for_flush_drain(60)
        world.table.compact()
        world.table.dataset.optimize.optimize_indices(num_indices_to_merge=2)
        writer.put({"id": [4, 501], "t": [f"{word} other", word]})
        assert sorted(ids(world.table.search(text=word))) == [3, 4, 500, 501]


def test_an_index_of_several_parts_is_one_index(tmp_path: Path) -> None:
    """Lance makes parts if it has little memory; each has its own terms."""
    world = World(tmp_path, 20_000, words=2_000, index={"memory_limit": 1})
    assert len(list(Path(world.table.uri).glob("_indices/*/part_*_docs.lance"))) > 1
    words = world.make.words.to_pylist()
    with world.table.shard_writer(**SETTINGS) as writer:
        world.put(writer, 19_900, 200, 7)
        world.delete_in_base(range(50, 90))
        near = mw.query.Match(words[20][:-1] + "q", "t", fuzziness=1)
        world.check([words[9], f"{words[0]} {words[1_500]}", near, mw.query.Phrase(f"{words[3]} {words[2]}", "t")])


@pytest.mark.parametrize(("rows", "index"), [(0, {}), (200, {"train": False})], ids=["no rows", "not trained"])
def test_index_over_no_rows_has_statistics_of_later_segments(tmp_path: Path, rows: int, index: dict[str, Any]) -> None:
    """Lance reports nothing about a segment without rows."""
    world = World(tmp_path, rows, index=index)
    with world.table.shard_writer(**SETTINGS) as writer:
        world.put(writer, 20_000, 30, 7)
        world.check_rows(queries_of(world)[:3])
        world.append_to_base(1_000, 300, 31)
        world.check_rows(queries_of(world)[:3])
        world.index_appended()
        assert {} in world.table.dataset.stats.index_stats("t_fts")["segments"]
        world.check(queries_of(world))


def test_answers_depend_neither_on_the_cache_nor_on_concurrent_searches(tmp_path: Path) -> None:
    world = World(tmp_path, 600)
    queries = [query for query in queries_of(world) if isinstance(query, str)]
    with world.table.shard_writer(**SETTINGS) as writer:
        world.fresh_rows(writer, 2)

        def answer(query: str) -> list[float]:
            return [
                float(score) for score in world.table.search(text=query, k=20, columns=["id"])["_score"].to_pylist()
            ]

        expected = [answer(query) for query in queries]
        with nothing_kept():
            assert [answer(query) for query in queries] == expected
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(answer, queries * 5)) == expected * 5


def test_best_rows_that_are_replaced_are_not_found_again_but_in_an_earlier_snapshot(tmp_path: Path) -> None:
    """Lance takes the superseded rows as a list that is not rebuilt for each of them."""
    world = World(tmp_path, 900, words=60)
    word = world.make.words[0].as_py()
    with world.table.shard_writer(**SETTINGS) as writer:
        world.put(writer, 895, 10, 7)
        snapshot, first = world.table.snapshot(), ids(world.table.search(text=word, k=1_000))
        for number in range(12):
            best = ids(world.table.search(text=word, k=3 + 8 * number))
            rows = pa.table({"id": pa.array(best, pa.int64()), "t": ["nosuchword"] * len(best)})
            writer.put(rows)
            world.live.update(_as_dict(rows))
            world.check([word])
        assert ids(world.table.at(snapshot).search(text=word, k=1_000)) == first
        world.check([word])


def test_a_phrase_needs_no_positions_unless_it_is_part_of_a_query(tmp_path: Path) -> None:
    world = World(tmp_path, 900, words=60)
    words = world.make.words.to_pylist()
    phrase = mw.query.Phrase(f"{words[2]} {words[3]}", "t")
    assert 64 < len(scores_of(mw.query.Match(phrase.text, operator="and"), world.live, [], PLAIN)) < 900
    world.check([phrase])
    with pytest.raises(InvalidInputError, match="recreating the index with position"):
        world.table.search(text=mw.query.Boolean(must=(phrase,)))


FILTERS: dict[str, Callable[[int], bool]] = {
    "id < 2000": lambda key: key < 2000,
    "id >= 3985": lambda key: key >= 3985,
    "id = 17 or id = 3999": lambda key: key in (17, 3999),
    "id < 0": lambda key: key < 0,
}


def test_a_filter_finds_rows_however_deep_they_are(tmp_path: Path) -> None:
    world = World(tmp_path, 4_000, words=50)
    word = world.make.words[0].as_py()
    with world.table.shard_writer(**SETTINGS) as writer:
        world.put(writer, 3_990, 20, 7)
        everything = world.table.search(text=word, k=100_000, columns=["id"])
        for wanted, keep in FILTERS.items():
            scores = zip(ids(everything), everything["_score"].to_pylist(), strict=True)
            expected = [score for key, score in scores if keep(key)]
            found = world.table.search(text=word, k=5, filter=wanted, columns=["id"])
            assert found["_score"].to_pylist() == expected[:5]
            assert all(keep(key) for key in ids(found))


@pytest.mark.scaled
@pytest.mark.parametrize(("share", "least"), [(0.02, 0.99), (0.2, 0.97)])
def test_ten_best_are_nearly_those_of_one_index_over_live_rows(tmp_path: Path, share: float, least: float) -> None:
    """Half of the fresh rows replace base rows; some are only in memory. Rows with the score of the tenth are equally good."""
    rows = scaled(ci=10_000, prove=1_000_000)
    fresh = int(rows * share)
    world = World(tmp_path, rows, words=rows // 2)
    with world.table.shard_writer(**SETTINGS) as writer:
        world.put(writer, rows - fresh // 2, fresh * 9 // 10, 5)
        writer.force_seal_active()
        writer.wait_for_flush_drain(100)
        world.put(writer, rows + fresh, fresh // 20, 6)
        world.put(writer, 0, fresh // 20, 7)
        right = total = 0
        for query in world.make.queries(60, 99):
            exact = scores_of(query, world.live, [], PLAIN)
            best = sorted(exact.values(), reverse=True)[:10]
            found = ids(world.table.search(text=query, k=10, columns=["id"]))
            assert len(found) == len(set(found)) == len(best)
            right += sum(exact[key] >= best[-1] * (1 - 1e-5) for key in found)
            total += len(best)
    assert right >= least * total


def test_a_text_search_prints_nothing(tmp_path: Path) -> None:
    """Lance would log that the MemWAL index has no columns."""
    world = World(tmp_path, 50)
    search = f"mw.open_table({world.table.uri!r}).search(text={world.make.words[0].as_py()!r})"
    code = f"import lance_memwal as mw; print({search}.num_rows)"
    environment = {name: value for name, value in os.environ.items() if name != "LANCE_LOG"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("10\n", "")
