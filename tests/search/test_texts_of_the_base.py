"""Text search of base rows goes through the base table's inverted index, and is the same as one index over all live rows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import lance.query as lq
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from benchmarks.texts import SCHEMA, Texts
from lance_memwal.errors import CorruptDataError
from tests.harness.profile import scaled
from tests.kit.caches import nothing_kept
from tests.kit.search import SETTINGS, ids

PLAIN: dict[str, Any] = {"stem": False, "remove_stop_words": False}


class World:
    """A table and, as a plain dictionary, its live rows."""

    def __init__(
        self, path: Path, rows: int, *, words: int = 300, index: dict[str, Any] | None = None, **how: Any
    ) -> None:
        self.path = path
        self.make = Texts(words)
        first = self.make.rows(0, rows, 1)
        dataset = lance.write_dataset(first, str(path / "t"), max_rows_per_file=rows // 2 + 1, **how)
        dataset.create_scalar_index("t", "INVERTED", name="t_fts", **{**PLAIN, **(index or {})})
        self.table = mw.enable(str(path / "t"), primary_key="id")
        self.live = _as_dict(first)

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

    def peer(self) -> lance.LanceDataset:
        """One index over the live rows."""
        keys = sorted(self.live)
        rows = pa.table([pa.array(keys, pa.int64()), pa.array([self.live[key] for key in keys])], schema=SCHEMA)
        dataset = lance.write_dataset(rows, str(self.path / "peer"), mode="overwrite")
        dataset.create_scalar_index("t", "INVERTED", with_position=True, **PLAIN)
        return dataset

    def check(self, queries: list[Any]) -> None:
        """Same rows, same scores."""
        peer = self.peer()
        for query in queries:
            asked = lq.MatchQuery(query, "t") if isinstance(query, str) else query
            expected = peer.scanner(full_text_query=asked, columns=["id", "_score"], limit=100_000).to_table()
            scores = dict(zip(expected["id"].to_pylist(), expected["_score"].to_pylist(), strict=True))
            found = self.table.search(text=query, column="t", k=100_000, columns=["id"])
            assert set(ids(found)) == set(scores)
            np.testing.assert_allclose(
                found["_score"].to_pylist(), [scores[key] for key in ids(found)], atol=1e-4, err_msg=str(query)
            )
            best = self.table.search(text=query, column="t", k=10, columns=["id"])
            np.testing.assert_allclose(best["_score"].to_numpy(), found["_score"].to_numpy()[:10], atol=1e-6)


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
        lq.MatchQuery(f"{common} {words[3]}", "t", operator=lq.FullTextOperator.AND),
        lq.MatchQuery(words[20][:-1] + "q", "t", fuzziness=1),
        lq.MatchQuery(f"{words[20][:-1]}q {words[4]}", "t", fuzziness=2, operator=lq.FullTextOperator.AND),
        lq.PhraseQuery(f"{words[0]} {words[1]}", "t"),
        lq.PhraseQuery(f"{words[1]} {words[2]}", "t", slop=2),
        lq.BooleanQuery(
            [
                (lq.Occur.MUST, lq.MatchQuery(common, "t")),
                (lq.Occur.SHOULD, lq.MatchQuery(rare, "t")),
                (lq.Occur.MUST_NOT, lq.MatchQuery(words[5], "t")),
            ]
        ),
        lq.BoostQuery(lq.MatchQuery(common, "t"), lq.MatchQuery(words[2], "t"), negative_boost=0.3),
        "nosuchword",
    ]


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_scores_are_right_whatever_happened_to_the_base_since_its_index_was_made(tmp_path: Path, stable: bool) -> None:
    world = World(tmp_path, 600, enable_stable_row_ids=stable)
    queries = queries_of(world)
    with world.table.shard_writer(**SETTINGS) as writer:
        world.check(queries[:3])
        world.fresh_rows(writer, 2)
        world.check(queries)
        world.append_to_base(20_000, 50, 31)  # in no index
        world.delete_in_base(range(300, 340))
        world.check(queries)
        world.table.dataset.optimize.optimize_indices(num_indices_to_merge=0)  # a second segment
        world.update_in_base(400, 30, 32)
        world.append_to_base(30_000, 20, 33)
        world.check(queries)
    world.table.compact()
    world.check(queries)
    world.table.dataset.optimize.compact_files()
    world.check(queries[::3])
    world.table.dataset.optimize.optimize_indices()
    world.check(queries[::3])


def test_an_index_that_knows_a_row_by_what_it_was_is_not_trusted(tmp_path: Path) -> None:
    """Rows that keep their ids, replaced between two parts of the index that Lance merges later: both texts stay in it."""
    world = World(tmp_path, 200, enable_stable_row_ids=True)
    world.update_in_base(50, 40, 21)
    world.table.dataset.optimize.optimize_indices(num_indices_to_merge=0)
    world.check(queries_of(world)[:6])
    world.append_to_base(30_000, 20, 33)
    world.table.dataset.optimize.optimize_indices(num_indices_to_merge=2)
    assert len([e for e in world.table.base.index_entries if e.name == "t_fts"]) == 1
    world.check(queries_of(world)[:6])


LAYOUTS: dict[str, dict[str, Any]] = {
    "version 1": {"format_version": 1},
    "version 2": {"format_version": 2},
    "version 3": {"format_version": 3},
    "with positions": {"with_position": True},
    "large blocks, which we do not read": {"block_size": 256},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_the_index_gives_the_same_answers(tmp_path: Path, layout: str) -> None:
    world = World(tmp_path, 900, words=60, index=LAYOUTS[layout])  # some words are in more than a block of documents
    words = world.make.words.to_pylist()
    with world.table.shard_writer(**SETTINGS) as writer:
        world.put(writer, 500, 30, 7)
        world.check([words[0], f"{words[1]} {words[40]}", lq.PhraseQuery(f"{words[0]} {words[1]}", "t"), words[59]])


def test_an_index_of_several_parts_is_one_index(tmp_path: Path) -> None:
    """Lance makes parts where it was given little memory; terms and documents of each have numbers of their own."""
    world = World(tmp_path, 20_000, words=2_000, index={"memory_limit": 1})
    assert len(list(Path(world.table.uri).glob("_indices/*/part_*_docs.lance"))) > 1
    words = world.make.words.to_pylist()
    with world.table.shard_writer(**SETTINGS) as writer:
        world.put(writer, 19_900, 200, 7)
        world.delete_in_base(range(50, 90))
        near = lq.MatchQuery(words[20][:-1] + "q", "t", fuzziness=1)
        world.check([words[9], f"{words[0]} {words[1_500]}", near, lq.PhraseQuery(f"{words[3]} {words[2]}", "t")])


def test_a_covered_fragment_is_searched_through_the_index_alone(tmp_path: Path) -> None:
    """Seen by what is missed: without the index's lists the search cannot answer."""
    world = World(tmp_path, 400)
    word = world.make.words[0].as_py()
    (lists,) = Path(world.table.uri).glob("_indices/*/part_0_invert.lance")
    lists.rename(lists.with_suffix(".gone"))
    with pytest.raises(CorruptDataError) as caught:
        world.table.search(text=word, k=3)
    assert caught.value.path is not None
    assert caught.value.path.endswith("part_0_invert.lance")
    lists.with_suffix(".gone").rename(lists)
    assert world.table.search(text=word, k=3).num_rows == 3


def test_nothing_depends_on_what_is_kept_or_on_who_searches_at_the_same_time(tmp_path: Path) -> None:
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
def test_the_ten_best_are_those_of_one_index_over_all_live_rows(tmp_path: Path) -> None:
    """Half of the fresh rows replace base rows; some are only in memory."""
    rows, fresh, count = scaled(ci=20_000, prove=1_000_000), scaled(ci=600, prove=20_000), scaled(ci=100, prove=1_000)
    world = World(tmp_path, rows, words=scaled(ci=5_000, prove=100_000))
    with world.table.shard_writer(**SETTINGS) as writer:
        world.put(writer, rows - fresh // 2, fresh * 9 // 10, 5)
        writer.force_seal_active()
        writer.wait_for_flush_drain(100)
        world.put(writer, rows + fresh, fresh // 20, 6)
        world.put(writer, 0, fresh // 20, 7)
        peer, same = world.peer(), 0
        for query in world.make.queries(count, 99):
            found = world.table.search(text=query, k=10, columns=["id"])["_score"].to_numpy()
            best = (
                peer.scanner(full_text_query=query, columns=["id", "_score"], limit=10).to_table()["_score"].to_numpy()
            )
            same += len(found) == len(best) and bool(
                np.allclose(found, best, atol=1e-4)
            )  # rows of one score are equally good
    assert same >= 0.99 * count
