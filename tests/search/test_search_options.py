"""Options of searches, alike in every tier and as in Lance: pages, ranges, columns, filters; only live rows, and k of
them.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import lance.query as lq
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_memwal as mw
from lance_memwal.errors import InvalidInputError, SearchIncompleteWarning
from lance_memwal.memtable.index import Boolean, Boost, Match, MultiMatch, Phrase
from tests.harness.profile import scaled
from tests.kit.search import SETTINGS, Spread, ids, scores_of, spread
from tests.kit.search import WORDS as STALE_WORDS

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
PLAIN: dict[str, Any] = {"stem": False, "remove_stop_words": False}
TWO = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("t", pa.string()), pa.field("u", pa.string())])


def two_columns(keys: range, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    words = [[" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in keys] for _ in range(2)]
    return pa.table([pa.array(keys, pa.int64()), *map(pa.array, words)], schema=TWO)


def test_a_text_is_found_in_several_columns_of_which_the_best_counts(tmp_path: Path) -> None:
    """Only one column has an index, which covers a part of the base."""
    table = mw.create_table(str(tmp_path / "t"), two_columns(range(100), 1), primary_key="id")
    table.dataset.create_scalar_index("t", "INVERTED", name="t_fts", **PLAIN)
    table.dataset.create_scalar_index("u", "INVERTED", name="u_fts", **PLAIN)
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
        indexed = two_columns(range(100), 1)
        for asked, boosts in (
            ("cedar fjord", (1.0, 1.0)),
            (MultiMatch("ember delta", ("t", "u"), (2.0, 0.5)), (2.0, 0.5)),
        ):
            expected: dict[int, float] = {}
            for column, boost in zip(("t", "u"), boosts, strict=True):
                texts = {key: row[column] for key, row in live.items()}
                query = Match(asked if isinstance(asked, str) else asked.text, boost=boost)
                for key, score in scores_of(query, texts, indexed[column].to_pylist(), PLAIN).items():
                    expected[key] = max(score, expected.get(key, 0.0))
            for reader in (table, writer):
                found = reader.search(text=asked, column=["t", "u"], k=1000, columns=["id"])
                assert sorted(ids(found)) == sorted(expected)
                np.testing.assert_allclose(found["_score"].to_numpy(), [expected[key] for key in ids(found)], rtol=1e-4)
                best = reader.search(text=asked, column=["t", "u"], k=10, columns=["id"])
                assert best["_score"].to_pylist() == found["_score"].to_pylist()[:10]
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
def test_byte_vectors_are_searched_in_every_tier(tmp_path: Path, kind: pa.DataType, metric: Any, index: bool) -> None:
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


# A search is restricted to the rows that a scan with the same filter shows, whatever the filter and the tier.

FILTER_SETTINGS: dict[str, Any] = {"fsync": False, "stats_log_interval_ms": None}
NAN = float("nan")
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("f", pa.float64()),
        pa.field("half", pa.float32()),
        pa.field("u", pa.uint32()),
        pa.field("text", pa.string()),
        pa.field("st", pa.struct([("a", pa.int32())])),
        pa.field("v", pa.list_(pa.float32(), 4)),
    ]
)
ROWS = [
    {
        "id": i,
        "f": [1.0, NAN, None, -1.0, -NAN][i % 5],
        "half": [0.1, NAN, None, 0.3][i % 4],
        "u": i,
        "text": f"word w{i}",
        "st": None if i % 7 == 6 else {"a": i},
        "v": [float(i), 1.0, 0.0, 0.0],
    }
    for i in range(40)
]
FILTERS = {
    "a comparison that NaN fails": pc.field("f") > 0,
    "unsigned": pc.field("u") > 20,
    "a field of a struct": pc.field("st", "a") > 30,
    "a function that Lance cannot be told": pc.utf8_length(pc.field("text")) > 7,
    "one that Lance is told": pc.field("id") < 10,
    "both": (pc.field("f") > 0) & (pc.field("id") < 30),
    "SQL with NaN": "f > 0",
    "SQL with a literal of another width": "half = 0.1",
    "SQL with a field of null structs": "st.a is null",
}


def found(table: mw.Table, question: Any) -> dict[str, list[int]]:
    """The rows that a scan and each kind of search find."""
    ways = {
        "scan": table.scan(filter=question).to_table(),
        "vector": table.search(vector=[0.0] * 4, k=100, filter=question),
        "text": table.search(text="word", column="text", k=100, filter=question),
        "hybrid": table.search(vector=[0.0] * 4, text="word", k=100, filter=question),
    }
    return {way: sorted(answer.column("id").to_pylist()) for way, answer in ways.items()}


@pytest.mark.repro("reads-08")
@pytest.mark.parametrize("question", FILTERS.values(), ids=FILTERS.keys())
def test_a_search_with_a_filter_finds_the_rows_of_the_scan_in_every_tier(tmp_path: Path, question: Any) -> None:
    rows = pa.Table.from_pylist(ROWS, schema=SCHEMA)
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Unsharded())
    writer = table.shard_writer(**FILTER_SETTINGS)
    writer.put(rows)
    in_memory = found(table, question)
    writer.close()
    in_sstable = found(table, question)
    table.compact()
    in_base = found(table, question)
    assert lance.dataset(table.uri).count_rows() == len(ROWS)
    expected = in_memory["scan"]
    assert 0 < len(expected) < len(ROWS)
    for tier in (in_memory, in_sstable, in_base):
        assert tier == dict.fromkeys(in_memory, expected)


def test_a_filter_that_lance_is_not_told_keeps_what_fresh_tiers_hide_out_of_the_nearest(tmp_path: Path) -> None:
    """The base table is then searched by us: rows that were replaced or deleted since must not take a place."""
    rows = pa.Table.from_pylist(ROWS, schema=SCHEMA)
    table = mw.create_table(str(tmp_path / "t"), rows, primary_key="id", sharding=mw.Unsharded())
    with table.writer(**FILTER_SETTINGS) as writer:
        writer.delete([0])
        writer.put([{**ROWS[5], "f": -1.0}])
        nearest = table.search(vector=[0.0] * 4, k=2, filter=pc.field("f") > 0)
    assert nearest.column("id").to_pylist() == [10, 15]
    assert nearest.column("_distance").to_pylist() == [101.0, 226.0]
    assert nearest.column("text").to_pylist() == ["word w10", "word w15"]


NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("v", pa.list_(pa.float32(), 2)),
        ("t", pa.string()),
        ("meta", pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])),
    ]
)
NESTED_ROWS = [
    {"id": 0, "v": [0.0, 1.0], "t": "red fox", "meta": {"a": 1, "b": {"c": "x"}}},
    {"id": 1, "v": [0.1, 1.0], "t": "red red hen", "meta": None},
    {"id": 2, "v": [0.2, 1.0], "t": "red owl and more words", "meta": {"a": None, "b": None}},
]


@pytest.mark.parametrize("stage", ["memtable", "SSTable", "base"])
@pytest.mark.parametrize(
    "asked", [{"vector": [0.0, 1.0]}, {"text": "red"}, {"vector": [0.0, 1.0], "text": "red"}], ids=str
)
def test_a_search_shows_fields_as_a_scan_does(tmp_path: Path, stage: str, asked: dict[str, object]) -> None:
    table = mw.create_table(str(tmp_path / "t"), NESTED, primary_key="id", writer_defaults={"fsync": False})
    with table.writer() as writer:
        writer.put(NESTED_ROWS)
        if stage != "memtable":
            writer.flush()
        if stage == "base":
            table.compact()
        paths = ["meta.b.c", "id", "meta.a"]
        found = table.search(**asked, columns=paths)  # type: ignore[arg-type]
        shown = {row["id"]: row for row in table.scan(paths).to_table().to_pylist()}
        score = found.schema.names[-1]
        assert found.schema.names == [*paths, score]
        assert found.num_rows == len(NESTED_ROWS)
        assert all({**row, score: None} == {**shown[row["id"]], score: None} for row in found.to_pylist())
        assert found["id"].to_pylist() == table.search(**asked)["id"].to_pylist()  # type: ignore[arg-type]


def test_a_field_that_is_not_there_is_refused(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), NESTED, primary_key="id")
    with pytest.raises(mw.InvalidInputError, match="no field 'z' in 'meta'"):
        table.search([0.0, 1.0], columns=["meta.z"])


# Randomised searches between puts, deletes, flushes and compactions: only live rows, and k of them.


def one_search(made: Spread, chance: random.Random) -> None:
    kind, k = chance.choice(["vector", "text", "both", "memtable"]), chance.choice([1, 3, 10, 50])
    tag = chance.choice([None, chance.randrange(10)])
    options: dict[str, Any] = {"k": k, "filter": None if tag is None else f"tag = {tag}"}
    word = chance.choice(STALE_WORDS)
    if kind == "memtable":
        scan = made.writer.memtable_scanner().nearest("v", made.make.vector(), k)
        check_rows(made, scan.to_table())
        return
    if kind != "text":
        options.update(vector=made.make.vector(), nprobes=chance.choice([1, 20]))
    if kind != "vector":
        options["text"] = word
    found = made.table.search(**options)
    check_rows(made, found)
    matching = made.matching(tag)
    near = sum(row.vector is not None for row in matching) if kind != "text" else 0
    texts = sum(row.text is not None and word in row.text.split(" ") for row in matching) if kind != "vector" else 0
    assert found.num_rows >= min(k, max(near, texts)), f"{kind}: k is not filled"
    assert tag is None or set(found.column("tag").to_pylist()) <= {tag}


def check_rows(made: Spread, found: pa.Table) -> None:
    """Every row is live, once, and in its newest version."""
    assert len(set(ids(found))) == found.num_rows
    for row in found.select(["id", "v", "t", "tag"]).to_pylist():
        live = made.live.get(row["id"])
        assert live is not None, f"row {row['id']} was deleted"
        assert (row["t"], row["tag"]) == (live.text, live.tag), f"row {row['id']} was replaced"
        if live.vector is not None:
            np.testing.assert_array_equal(np.array(row["v"], np.float32), live.vector)


@pytest.mark.scaled
@pytest.mark.parametrize("deferred", [False, True], ids=["indexed at once", "indexed later"])
def test_random_searches_return_k_live_rows_in_their_newest_version(tmp_path: Path, deferred: bool) -> None:
    """Lessons 12, 21 to 25: 10,000 queries at full scale (two times 5,000)."""
    made = spread(
        tmp_path,
        rows=300,
        text_options={},
        metric="l2",
        nulls=0.05,
        sync_indexed_write=not deferred,
        max_memtable_rows=200,
    )
    chance = random.Random(7)
    for step in range(scaled(ci=120, prove=5_000)):
        action = chance.random()
        keys = sorted(made.live)
        if action < 0.25:
            made.put(chance.sample(keys, min(len(keys), 10)) + [6_000_000 + step * 10 + i for i in range(2)])
        elif action < 0.4 and len(keys) > 120:
            made.delete(chance.sample(keys, 8))
        elif action < 0.43:
            made.writer.force_seal_active()
        elif action < 0.44:
            made.flush()
            made.table.compact()
        one_search(made, chance)
    made.writer.close()
    for _ in range(10):
        found = made.table.search(vector=made.make.vector(), k=10)
        check_rows(made, found)
        assert found.num_rows == 10
