"""Pages, distance ranges, several text columns, vectors of bytes: alike in every tier, and as in Lance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import lance.query as lq
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.errors import InvalidInputError, SearchIncompleteWarning
from lance_memwal.memtable.index import Boolean, Boost, Match, MultiMatch, Phrase
from tests.kit.search import SETTINGS, Spread, ids, spread

# ---------------------------------------------------------------------------------------------------------------- pages


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Spread]:
    world = spread(tmp_path, text_options={}, metric="l2", index={"num_partitions": 1})
    yield world
    world.writer.close()


@pytest.mark.parametrize("kind", ["vector", "text", "both"])
def test_pages_of_an_answer_are_the_answer(made: Spread, kind: str) -> None:
    asked: dict[str, Any] = {"columns": ["id"]}
    if kind != "text":
        asked["vector"] = made.make.vector()
    if kind != "vector":
        asked["text"] = "cedar otter"
    pages = [ids(made.table.search(**asked, k=5, offset=offset)) for offset in (0, 5, 10, 15)]
    whole = ids(made.table.search(**asked, k=20))
    if kind == "both":  # how deep both rankings go depends on how much is wanted
        assert pages[1] == ids(made.table.search(**asked, k=10))[5:]
    else:
        assert [key for page in pages for key in page] == whole
    assert ids(made.table.search(**asked, k=5, offset=100_000)) == []
    with made.table.writer(**SETTINGS) as writer:
        assert ids(writer.search(**asked, k=5, offset=5)) == pages[1]


@pytest.mark.parametrize("metric", ["l2", "cosine", "dot"])
def test_a_distance_range_is_half_open_and_filled_from_every_tier(made: Spread, metric: str) -> None:
    for _ in range(5):
        query = made.make.vector()
        everything = made.table.search(vector=query, k=100_000, metric=metric, columns=["id"])
        distances = everything["_distance"].to_numpy()
        low, high = float(distances[20]), float(distances[60])
        for bounds in ((low, high), (low, None), (None, high), (None, None), (low, None)):
            found = made.table.search(vector=query, k=15, metric=metric, columns=["id"], distance_range=bounds)
            kept = distances >= (-np.inf if bounds[0] is None else np.float32(low))
            kept &= distances < (np.inf if bounds[1] is None else np.float32(high))
            np.testing.assert_allclose(found["_distance"].to_numpy(), distances[kept][:15], rtol=1e-6)


def test_ranges_that_say_nothing_are_refused(made: Spread) -> None:
    query = made.make.vector()
    for bounds in ((2.0, 1.0), (1.0,), "ab", (float("nan"), 1.0)):
        with pytest.raises(InvalidInputError, match="distance_range"):
            made.table.search(vector=query, distance_range=bounds)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="distance_range"):
        made.table.search(text="cedar", distance_range=(0.0, 1.0))
    with pytest.raises(InvalidInputError, match="offset"):
        made.table.search(text="cedar", offset=-1)


# ------------------------------------------------------------------------------------------------------ several columns

WORDS = ("amber", "basalt", "cedar", "delta", "ember", "fjord")
TWO = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("t", pa.string()), pa.field("u", pa.string())])


def two_columns(keys: range, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    words = [[" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in keys] for _ in range(2)]
    return pa.table([pa.array(keys, pa.int64()), *map(pa.array, words)], schema=TWO)


def test_a_text_is_found_in_several_columns_of_which_the_best_counts(tmp_path: Path) -> None:
    """Only one column has an index, which covers a part of the base."""
    table = mw.create_table(str(tmp_path / "t"), two_columns(range(100), 1), primary_key="id")
    table.dataset.create_scalar_index("t", "INVERTED", name="t_fts", stem=False, remove_stop_words=False)
    table.dataset.create_scalar_index("u", "INVERTED", name="u_fts", stem=False, remove_stop_words=False)
    lance.write_dataset(two_columns(range(100, 140), 2), table.uri, mode="append")
    live = {
        row["id"]: row
        for seed, keys in ((1, range(100)), (2, range(100, 140)))
        for row in two_columns(keys, seed).to_pylist()
    }
    with table.writer(compaction=None, **SETTINGS) as writer:
        for seed, keys in ((3, range(80, 120)), (4, range(200, 220))):
            writer.put(two_columns(keys, seed))
            live.update({row["id"]: row for row in two_columns(keys, seed).to_pylist()})
            if seed == 3:
                writer.flush()
        peer = lance.write_dataset(pa.Table.from_pylist(list(live.values()), schema=TWO), str(tmp_path / "peer"))
        for column in ("t", "u"):
            peer.create_scalar_index(column, "INVERTED", with_position=True, stem=False, remove_stop_words=False)
        for asked, query in (
            ("cedar fjord", lq.MultiMatchQuery("cedar fjord", ["t", "u"])),
            ("amber", lq.MultiMatchQuery("amber", ["t", "u"])),
            (
                MultiMatch("ember delta", ("t", "u"), (2.0, 0.5)),
                lq.MultiMatchQuery("ember delta", ["t", "u"], boosts=[2.0, 0.5]),
            ),
        ):
            expected = peer.scanner(full_text_query=query, columns=["id", "_score"], limit=1000).to_table()
            scores = dict(zip(expected["id"].to_pylist(), expected["_score"].to_pylist(), strict=True))
            for reader in (table, writer):
                found = reader.search(text=asked, column=["t", "u"], k=1000, columns=["id"])
                assert set(ids(found)) == set(scores)
                np.testing.assert_allclose(found["_score"].to_numpy(), [scores[key] for key in ids(found)], atol=1e-4)
                best = reader.search(text=asked, column=["t", "u"], k=10, columns=["id"])
                np.testing.assert_allclose(best["_score"].to_numpy(), found["_score"].to_numpy()[:10], atol=1e-6)
        phrase = ids(table.search(text='"amber cedar"', column=["t", "u"], k=1000))
        assert sorted(phrase) == sorted(
            key for key, row in live.items() if any("amber cedar" in row[name] for name in ("t", "u"))
        )
        for column in ([], ["t", "id"], ["nosuch"], 5):
            with pytest.raises(InvalidInputError):
                table.search(text="cedar", column=column)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------- vectors of bytes


def byte_rows(keys: range, kind: pa.DataType, seed: int) -> tuple[pa.Table, npt.NDArray[Any]]:
    dtype = kind.to_pandas_dtype()
    info = np.iinfo(dtype)
    matrix = np.random.default_rng(seed).integers(info.min, info.max + 1, (len(keys), 16)).astype(dtype)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), 16)
    return pa.table({"id": pa.array(keys, pa.int64()), "v": vectors}), matrix


def byte_distances(matrix: npt.NDArray[Any], query: npt.NDArray[Any], metric: str) -> npt.NDArray[np.float64]:
    if metric == "hamming":
        return np.asarray(np.bitwise_count(matrix ^ query).sum(axis=1), np.float64)
    wide, q = matrix.astype(np.float64), query.astype(np.float64)
    if metric == "l2":
        return np.asarray(((wide - q) ** 2).sum(axis=1))
    cos = wide @ q / np.linalg.norm(wide, axis=1) / np.linalg.norm(q)
    return np.asarray(1 - (cos if metric == "cosine" else wide @ q))


@pytest.mark.parametrize("index", [False, True], ids=["no index", "index"])
@pytest.mark.parametrize(
    ("kind", "metric"),
    [(pa.int8(), "l2"), (pa.int8(), "cosine"), (pa.int8(), "dot"), (pa.uint8(), "hamming"), (pa.uint8(), "l2")],
    ids=str,
)
def test_vectors_of_bytes_are_searched_exactly_in_every_tier(
    tmp_path: Path, kind: pa.DataType, metric: Any, index: bool
) -> None:
    base, matrix = byte_rows(range(300), kind, 1)
    table = mw.create_table(str(tmp_path / "t"), base, primary_key="id")
    if index and kind == pa.uint8():
        table.dataset.create_index("v", "IVF_FLAT", metric="hamming", num_partitions=1)
    live = dict(enumerate(matrix))
    with table.writer(compaction=None, **SETTINGS) as writer:
        for seed, keys in ((2, range(280, 340)), (3, range(330, 360))):
            rows, matrix = byte_rows(keys, kind, seed)
            writer.put(rows)
            live.update(zip(keys, matrix, strict=True))
            if seed == 2:
                writer.flush()
        writer.delete([5])
        del live[5]
        keys, vectors = np.array(list(live)), np.stack(list(live.values()))
        for query in vectors[:10]:
            expected = np.sort(byte_distances(vectors, query, metric))[:10]
            found = table.search(vector=query, metric=metric, k=10)
            np.testing.assert_allclose(found["_distance"].to_numpy(), expected, rtol=1e-5, atol=1e-5)
            again = byte_distances(np.stack([live[key] for key in ids(found)]), query, metric)
            np.testing.assert_allclose(again, expected, rtol=1e-5, atol=1e-5)
    assert len(keys) == 359


def test_unsigned_bytes_are_compared_by_their_bits_unless_a_metric_is_named(tmp_path: Path) -> None:
    rows, matrix = byte_rows(range(50), pa.uint8(), 1)
    table = mw.create_table(str(tmp_path / "t"), rows, primary_key="id")
    plain = table.dataset.scanner(nearest={"column": "v", "q": pa.array(matrix[7]), "k": 5}, columns=["id"]).to_table()
    assert ids(table.search(vector=matrix[7], k=5)) == ids(plain)
    for query in (matrix[7] + 0.5, matrix[7].astype(np.int64) + 256, [1.0] * 3):
        with pytest.raises(InvalidInputError, match="query vector"):
            table.search(vector=query)
    floats = mw.create_table(
        str(tmp_path / "f"), pa.table({"id": [1], "v": pa.array([[1.0]], pa.list_(pa.float32(), 1))}), primary_key="id"
    )
    with pytest.raises(InvalidInputError, match="hamming"):
        floats.search(vector=[1.0], metric="hamming")


# -------------------------------------------------------------------------------------- analyzers that we do not have

QUERIES = [
    "parse_entry",
    Match("parse_entry", fuzziness=1),
    Phrase("parse_entry wal"),
    Boolean(must=(Match("entry"),), must_not=(Match("wal"),)),
    Boost(Match("entry"), Match("wal"), 0.5),
]


def test_a_code_analyzer_answers_from_the_base_and_says_what_is_left_out(tmp_path: Path) -> None:
    texts = ["def parse_entry(wal):", "parseEntry of the log", "entry", "something else", "wal.entry"]
    rows = pa.table([pa.array(range(5), pa.int64()), pa.array(texts), pa.array(["dog"] * 5)], schema=TWO)
    table = mw.create_table(str(tmp_path / "t"), rows, primary_key="id")
    table.dataset.create_scalar_index("t", "INVERTED", base_tokenizer="code", with_position=True)
    plain = ids(
        table.dataset.scanner(full_text_query=lq.MatchQuery("parse_entry", "t"), columns=["id"], limit=9).to_table()
    )
    assert plain
    assert ids(table.search(text="parse_entry", column="t")) == plain  # nothing is fresh, nothing is said
    for query in QUERIES:
        table.search(text=query, column="t")
    with table.writer(compaction=None, **SETTINGS) as writer:
        writer.put([{"id": plain[0], "t": "gone", "u": None}, {"id": 9, "t": "parse_entry", "u": None}])
        with pytest.warns(SearchIncompleteWarning, match="2 fresh rows") as caught:
            assert ids(table.search(text="parse_entry", column="t")) == plain[1:]
        assert caught[0].message.left_out == 2  # type: ignore[union-attr]
        with pytest.warns(SearchIncompleteWarning):
            assert ids(table.search(text="parse_entry", column="t", filter="id > 100")) == []
        with pytest.raises(InvalidInputError, match="alone"):
            table.search(text="parse_entry", column=["t", "u"])
    table.compact()
    assert 9 in ids(table.search(text="parse_entry", column="t"))  # in no index yet: Lance reads such rows


def test_an_index_over_the_elements_of_lists_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("t", pa.list_(pa.string()))])
    rows = pa.Table.from_pylist([{"id": 1, "t": ["amber cedar", "otter"]}, {"id": 2, "t": ["fjord"]}], schema=schema)
    table = mw.create_table(str(tmp_path / "t"), rows, primary_key="id")
    table.dataset.create_scalar_index("t", "INVERTED", document_granularity=lq.DocumentGranularity.LIST_ELEMENT)
    with table.writer(compaction=None, **SETTINGS) as writer:  # and is no index that memtables and SSTables mirror
        writer.put([{"id": 3, "t": ["cedar"]}])
        writer.flush()
        with pytest.raises(InvalidInputError, match="elements"):
            table.search(text="cedar", column="t")


@pytest.mark.parametrize("metric", ["L2", "Cosine", "DOT"])
def test_a_vector_is_given_by_position_and_a_metric_in_any_case(tmp_path: Path, metric: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.list_(pa.float32(), 2))])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id", writer_defaults={"fsync": False})
    with table.writer() as writer:
        writer.put({"id": [1, 2], "v": [[1.0, 0.0], [0.0, 1.0]]})
        expected = table.search(vector=[0.1, 1.0], metric=metric.lower())
        assert table.search([0.1, 1.0], metric=metric) == expected
        assert writer.search([0.1, 1.0], metric=metric) == expected
        assert expected["id"].to_pylist()[0] == 2
    with pytest.raises(InvalidInputError, match="metric"):
        table.search([0.1, 1.0], metric="manhattan")
