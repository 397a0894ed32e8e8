"""Values of every form: key types, composite keys, no key, dictionaries, and other Arrow layouts of the same values."""

from __future__ import annotations

import datetime as dt
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_memwal as mw
from lance_memwal import InvalidInputError
from tests.kit.writers import (
    SHARD,
    UNKEYED,
    base_table,
    enabled_table,
    flushed,
    key_field,
    open_writer,
    positions_of,
    rows,
    scanned,
)

TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    **{f"int{b}": (getattr(pa, f"int{b}")(), [0, -1, 1, 2 ** (b - 1) - 1, -(2 ** (b - 1))]) for b in (8, 16, 32, 64)},
    **{f"uint{b}": (getattr(pa, f"uint{b}")(), [0, 1, 2, 2**b - 1, 2 ** (b - 1)]) for b in (8, 16, 32, 64)},
    "bool": (pa.bool_(), [True, False]),
    "string": (pa.string(), ["", "a", "ä", "a\0", "long" * 50]),
    "large_string": (pa.large_string(), ["", "a", "b", "日本"]),
    "binary": (pa.binary(), [b"", b"\0", b"\xff", b"a"]),
    "large_binary": (pa.large_binary(), [b"", b"\0\0", b"\xfe"]),
}


@pytest.mark.parametrize("kind", TYPES)
def test_every_key_type_puts_overwrites_deletes_and_replays(tmp_path: Path, kind: str) -> None:
    key_type, keys = TYPES[kind]
    table = base_table(tmp_path / "t", pa.schema([key_field("id", key_type), pa.field("v", pa.int64())]))
    writer = table.shard_writer(SHARD, fsync=False)
    writer.put({"id": pa.array(keys, key_type), "v": [1] * len(keys)})
    writer.put({"id": keys[:-1], "v": [2] * (len(keys) - 1)})
    writer.delete([keys[0]])
    expected = dict.fromkeys(keys[1:-1], 2) | {keys[-1]: 1}
    in_memory = writer.memtable_scanner().to_table().to_pylist()
    assert {row["id"]: row["v"] for row in in_memory} == expected
    writer.abort()
    writer = table.shard_writer(SHARD, fsync=False)
    assert {row["id"]: row["v"] for row in writer.memtable_scanner().to_table().to_pylist()} == expected
    writer.close()
    assert {row["id"]: row["v"] for row in table.scan().to_table().to_pylist()} == expected
    for key in keys:
        found = table.get(key)
        assert (None if found is None else found["v"]) == expected.get(key)


@pytest.mark.parametrize("key_type", [pa.float64(), pa.list_(pa.int64()), pa.struct([("a", pa.int8())])], ids=str)
def test_key_types_that_the_format_does_not_know_are_refused_at_open(tmp_path: Path, key_type: pa.DataType) -> None:
    with pytest.raises(InvalidInputError):
        open_writer(tmp_path, pa.schema([key_field("id", key_type), pa.field("v", pa.int64())]))


PAIR = pa.schema(
    [
        pa.field("v", pa.int64(), nullable=False),
        key_field("second", pa.int32(), position=2),
        key_field("first", pa.string(), position=1),
    ]
)


def pairs(table: pa.Table) -> dict[tuple[str, int], int]:
    return {(row["first"], row["second"]): row["v"] for row in table.to_pylist()}


def test_composite_keys_are_one_key(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t", PAIR)
    assert table.primary_key == ["first", "second"]
    writer = table.shard_writer(SHARD, fsync=False)
    writer.put({"first": ["a", "a", "b"], "second": [1, 2, 1], "v": [1, 2, 3]})
    writer.put({"first": ["a"], "second": [2], "v": [20]})
    assert pairs(writer.memtable_scanner().to_table()) == {("a", 1): 1, ("a", 2): 20, ("b", 1): 3}
    writer.delete([("a", 1)])
    writer.delete([{"second": 1, "first": "b"}])
    assert pairs(writer.memtable_scanner().to_table()) == {("a", 2): 20}
    writer.put({"first": ["b"], "second": [1], "v": [30]})
    writer.force_seal_active()
    writer.wait_for_flush_drain()
    writer.delete(pa.table({"first": ["a"], "second": [2], "ignored": [0]}))
    assert pairs(writer.scan().to_table()) == {("b", 1): 30}
    writer.abort()
    with table.shard_writer(SHARD, fsync=False) as writer:
        assert pairs(writer.scan().to_table()) == {("b", 1): 30}
        assert writer.get(("b", 1)) == {"v": 30, "second": 1, "first": "b"}


def test_composite_keys_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with open_writer(tmp_path, PAIR) as writer:
        for keys in (["a"], [("a",)], [("a", 1, 2)], pa.array(["a"]), np.array([1])):
            with pytest.raises(InvalidInputError):
                writer.delete(keys)
        with pytest.raises(InvalidInputError, match="'second' is missing"):
            writer.delete([{"first": "a"}])
        with pytest.raises(InvalidInputError, match="'second' must not be null"):
            writer.delete([("a", None)])


KEYS: dict[str, Any] = {
    "list": [1, 2],
    "tuple": (1, 2),
    "set": {1, 2},
    "range": range(1, 3),
    "list of one-tuples": [(1,), (2,)],
    "list of dicts": [{"id": 1}, {"id": 2}],
    "array": pa.array([1, 2]),
    "narrow array": pa.array([1, 2], pa.int8()),
    "chunked array": pa.chunked_array([[1], [2]]),
    "struct array": pa.array([{"id": 1}, {"id": 2}]),
    "table with more columns": pa.table({"v": ["x", "y"], "id": [1, 2]}),
    "record batch": rows([1, 2]),
    "dict of columns": {"id": [1, 2]},
    "numpy": np.array([1, 2]),
    "pandas series": pd.Series([1, 2], index=["x", "y"]),
    "polars series": pl.Series([1, 2]),
    "pandas frame": pd.DataFrame({"id": [1, 2]}),
    "polars frame": pl.DataFrame({"id": [1, 2], "w": [0, 0]}),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_may_be_given_in_many_ways(tmp_path: Path, kind: str) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1, 2, 3]))
        assert positions_of(writer.delete(KEYS[kind])) == range(1, 2)
        assert scanned(writer) == {3: "a"}


@pytest.mark.parametrize("keys", [5.5, "abc", ["a"], pa.array(["1"]), [1.5], [True, "x"], None, [dt.date(2024, 1, 1)]])
def test_what_is_no_key_is_refused(tmp_path: Path, keys: Any) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1]))
        with pytest.raises(InvalidInputError):
            writer.delete(keys)
        assert scanned(writer) == {1: "a"}


def test_deleting_nothing_writes_nothing(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        writer.put(rows([1]))
        assert positions_of(writer.delete([])) == range(1, 1)
        assert writer.stats().wal_flush_count == 1
    with pytest.raises(mw.ClosedError):
        writer.delete([])


def test_a_delete_works_with_not_null_columns_and_whether_or_not_the_key_exists(tmp_path: Path) -> None:
    schema = pa.schema(
        [key_field(), pa.field("v", pa.string(), nullable=False), pa.field("n", pa.int64(), nullable=False)]
    )
    table = base_table(tmp_path / "t", schema, [{"id": 1, "v": "base", "n": 1}, {"id": 2, "v": "base", "n": 2}])
    writer = table.shard_writer(SHARD, fsync=False)
    writer.put([{"id": 3, "v": "x", "n": 3}])
    writer.delete([1, 3, 99])
    assert [row["id"] for row in writer.scan().to_table().to_pylist()] == [2]
    writer.abort()
    with table.shard_writer(SHARD, fsync=False) as writer:
        assert writer.get(1) is None
    assert table.scan().to_table().to_pylist() == [{"id": 2, "v": "base", "n": 2}]


def test_a_key_deleted_and_inserted_again_lives(tmp_path: Path) -> None:
    table = base_table(tmp_path / "t")
    with table.shard_writer(SHARD, fsync=False) as writer:
        for step in range(3):
            writer.put(rows([1], str(step)))
            assert writer.get(1) == {"id": 1, "v": str(step)}
            writer.delete([1])
            assert writer.get(1) is None
            if step == 1:
                writer.force_seal_active()
                writer.wait_for_flush_drain()
                assert writer.get(1) is None
        writer.put(rows([1], "alive"))
        assert writer.scan().to_table().to_pylist() == [{"id": 1, "v": "alive"}]
    assert table.get(1) == {"id": 1, "v": "alive"}


def test_newest_wins_and_a_generation_of_deletes_alone_is_flushed(tmp_path: Path) -> None:
    """Lesson 21: a lookup returned the oldest row of a key that was in one memtable twice. 36: deletes alone failed."""
    table = base_table(tmp_path / "t", data=[{"id": 2, "v": "base"}])
    with table.shard_writer(SHARD, fsync=False) as writer:
        writer.put([rows([1], "oldest"), rows([1], "older"), rows([1], "newest")])
        assert writer.get(1) == {"id": 1, "v": "newest"}
        assert writer.lookup([1]).to_pylist() == [{"id": 1, "v": "newest"}]
    assert table.get(1) == {"id": 1, "v": "newest"}
    with table.shard_writer(SHARD, fsync=False) as writer:
        writer.delete([1, 2])
    assert table.scan().count_rows() == 0


def test_an_append_only_table_counts_every_row_and_has_no_deletes(tmp_path: Path) -> None:
    """Lesson E2: without a key, rows could be written but never read."""
    table = base_table(tmp_path / "t", UNKEYED)
    writer = table.shard_writer(SHARD, fsync=False)
    writer.put(rows([1, 1, 2], schema=UNKEYED))
    writer.put({"id": [None, 1], "v": ["a", None]})
    with pytest.raises(InvalidInputError, match="no primary key"):
        writer.delete([1])
    assert writer.memtable_scanner().to_table().column("id").to_pylist() == [1, 1, 2, None, 1]
    writer.force_seal_active()
    writer.wait_for_flush_drain()
    writer.put(rows([1], schema=UNKEYED))
    assert writer.scan().count_rows() == 6
    writer.abort()
    with table.shard_writer(SHARD, fsync=False) as writer:
        assert writer.memtable_scanner().count_rows() == 1
        assert writer.scan().count_rows() == 6
    assert table.scan().count_rows() == 6


SMALL = pa.dictionary(pa.int8(), pa.string())
SCHEMA = pa.schema([key_field(), pa.field("kind", SMALL)])


def batch(start: int, kinds: pa.Array) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(start, start + len(kinds))), kinds], schema=SCHEMA)


def words(start: int, count: int) -> pa.RecordBatch:
    """Rows with a word of their own each."""
    return batch(start, pa.array([f"word {k}" for k in range(start, start + count)], SMALL))


def found(root: Path) -> dict[int, str | None]:
    rows = mw.open_table(str(root)).scan().to_table()
    return dict(zip(rows.column("id").to_pylist(), rows.column("kind").to_pylist(), strict=True))


def test_a_null_among_the_values_of_a_dictionary_is_a_null(tmp_path: Path) -> None:
    """Arrow cannot join such dictionaries: the rows could be neither read nor flushed."""
    enabled_table(tmp_path, SCHEMA)
    writer = open_writer(tmp_path, None)
    writer.put(batch(0, pa.DictionaryArray.from_arrays(pa.array([1, 0, None], pa.int8()), pa.array(["z", None]))))
    writer.put(batch(3, pa.array(["a"], SMALL)))
    expected = {0: None, 1: "z", 2: None, 3: "a"}
    assert found(tmp_path) == expected
    writer.close()
    assert found(tmp_path) == expected


@pytest.mark.parametrize("ending", ["close", "abort"])
def test_memtable_ends_before_its_dictionary_outgrows_the_indices(tmp_path: Path, ending: str) -> None:
    enabled_table(tmp_path, SCHEMA)
    writer = open_writer(tmp_path, None)
    for start in range(0, 500, 100):
        writer.put(words(start, 100))
        writer.delete([start])
    expected = {k: f"word {k}" for k in range(500) if k % 100}
    assert found(tmp_path) == expected
    getattr(writer, ending)()
    assert found(tmp_path) == expected
    open_writer(tmp_path, None).close()
    assert found(tmp_path) == expected
    kinds = [{row["kind"] for row in rows} - {None} for rows in flushed(tmp_path, SHARD).values()]
    assert [len(each) for each in kinds] == [99] * 5


def test_dictionary_values_are_counted_once_up_to_what_indices_count(tmp_path: Path) -> None:
    enabled_table(tmp_path, SCHEMA)
    with open_writer(tmp_path, None) as writer:
        for start in (0, 60, 0, 60, 20):
            writer.put(words(start, 60))
        assert writer.memtable_stats().batch_count == 5, "values that come again do not end a memtable"
        with pytest.raises(mw.InvalidInputError, match=r"column 'kind'.*split it"):
            writer.put([words(0, 100), words(100, 100)])
        writer.put([words(0, 100), words(0, 100), words(100, 27)])
        assert len(found(tmp_path)) == 127
        writer.put(words(1000, 128))
        writer.put(words(2000, 1))
        assert len(found(tmp_path)) == 256
    assert len(found(tmp_path)) == 256


def test_a_search_over_generations_finds_rows_whose_dictionaries_cannot_be_joined(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("v", pa.list_(pa.float32(), 2)))
    enabled_table(tmp_path, schema)
    with open_writer(tmp_path, None) as writer:
        for start in (0, 100, 200):
            vectors = pa.array([[k, 0] for k in range(start, start + 100)], schema.field("v").type)
            writer.put(pa.record_batch([*words(start, 100).columns, vectors], schema=schema))
        near = writer.memtable_scanner().nearest("v", [250, 0], 3).to_table()
        assert near.column("kind").to_pylist() == ["word 250", "word 249", "word 251"]
        for _ in range(2):
            near = mw.open_table(str(tmp_path)).search(vector=[0, 0], k=250)
            assert near.column("kind").to_pylist() == [f"word {k}" for k in range(250)]
            writer.force_seal_active()
            writer.wait_for_flush_drain(100)


@pytest.mark.repro("writer-19")
@pytest.mark.parametrize(
    "kind", [pa.list_(SMALL), pa.large_list(SMALL), pa.struct([("a", pa.int8()), ("b", SMALL)])], ids=str
)
def test_dictionaries_inside_columns_are_kept_readable_too(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema([key_field(), pa.field("kind", kind)])
    enabled_table(tmp_path, schema)

    def rows(start: int, values: pa.Array) -> pa.RecordBatch:
        if pa.types.is_struct(kind):
            column = pa.StructArray.from_arrays([pa.nulls(len(values), pa.int8()), values], fields=list(kind))
        else:
            make = pa.ListArray if pa.types.is_list(kind) else pa.LargeListArray
            column = make.from_arrays(list(range(len(values) + 1)), values, type=kind)
        return pa.record_batch([pa.array(range(start, start + len(values))), column], schema=schema)

    with open_writer(tmp_path, None) as writer:
        for start in (0, 100, 200):
            writer.put(rows(start, words(start, 100).column("kind")))
        writer.delete([0])
        writer.put(rows(1, pa.DictionaryArray.from_arrays(pa.array([1], pa.int8()), pa.array(["z", None]))))
        with pytest.raises(mw.InvalidInputError, match=r"column 'kind'.*split it"):
            writer.put([rows(0, words(0, 100).column("kind")), rows(0, words(100, 100).column("kind"))])
        assert len(found(tmp_path)) == 299
    read = found(tmp_path)
    assert len(read) == 299
    assert read[205] in (["word 205"], {"a": None, "b": "word 205"})
    assert read[1] in ([None], {"a": None, "b": None})


STRICT_TAG = pa.struct([pa.field("tag", SMALL, nullable=False)])
STRICT = pa.schema([key_field(), pa.field("kind", STRICT_TAG)])


def tagged(start: int, tags: list[str | None]) -> pa.RecordBatch:
    """Rows with a struct each; None is a null struct above a null tag."""
    words = pa.array(tags, SMALL)
    structs = pa.StructArray.from_arrays([words], fields=list(STRICT_TAG), mask=words.is_null())
    return pa.record_batch([pa.array(range(start, start + len(tags))), structs], schema=STRICT)


@pytest.mark.repro("writer-03", "writer-03b")
@pytest.mark.parametrize("ending", ["close", "abort"])
def test_null_structs_and_tombstones_over_strict_dictionaries_can_be_read_back(tmp_path: Path, ending: str) -> None:
    """The log of such a shard could not be read any more, by nobody, after one acknowledged delete."""
    enabled_table(tmp_path, STRICT)
    writer = open_writer(tmp_path, None)
    writer.put(tagged(0, ["red", None, "blue"]))
    writer.put([{"id": 3, "kind": None}, {"id": 4, "kind": {"tag": "green"}}])
    writer.delete([0, 99])
    expected = {1: None, 2: {"tag": "blue"}, 3: None, 4: {"tag": "green"}}
    assert found(tmp_path) == expected
    getattr(writer, ending)()
    assert found(tmp_path) == expected
    open_writer(tmp_path, None).close()
    assert found(tmp_path) == expected
    mw.open_table(str(tmp_path)).compact()
    assert found(tmp_path) == expected


def test_a_tombstone_of_an_appender_over_a_strict_dictionary_can_be_read_back(tmp_path: Path) -> None:
    enabled_table(tmp_path, STRICT)
    appender = mw.WalAppender.open(str(tmp_path), SHARD)
    appender.append(tagged(0, ["red", "blue"]))
    dead = pa.record_batch([pa.array([0]), pa.array([True])], names=["id", "_tombstone"])
    appender.append(dead)
    assert found(tmp_path) == {1: {"tag": "blue"}}


def test_rows_that_our_decoder_would_refuse_fail_their_put_and_nothing_else(tmp_path: Path) -> None:
    enabled_table(tmp_path, STRICT)
    with open_writer(tmp_path, None) as writer:
        broken = pa.DictionaryArray.from_arrays(pa.array([5], pa.int8()), pa.array(["red"]), safe=False)
        structs = pa.StructArray.from_arrays([broken], fields=list(STRICT_TAG))
        with pytest.raises(mw.InvalidInputError, match="column 'kind'"):
            writer.put(pa.record_batch([pa.array([7]), structs], schema=STRICT))
        writer.put(tagged(0, ["red"]))
    assert found(tmp_path) == {0: {"tag": "red"}}


TEXTS = ["a", "a", None, "a longer text that is not inlined", "ä"]
LISTS = [[3, 4], [0, 1, 2], [], None, [None]]
PAIRS = [[1, 2], None, [3, None], [3, None], [5, 6]]
BLOB = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})

_INT, _TEXT = pa.int64(), pa.string()
_HOLES = [False, False, False, True, False]
_ITEMS = pa.array([0, 1, 2, 3, 4, None])
_STARTS, _SIZES = [3, 0, 2, 0, 5], [2, 3, 0, 1, 1]  # out of order, overlapping, and with values below a null


def views(items: pa.Array, *, large: bool = False) -> pa.Array:
    make = pa.LargeListViewArray if large else pa.ListViewArray
    return make.from_arrays(_STARTS, _SIZES, items, mask=pa.array(_HOLES))


def runs(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Five rows: the first two are one run."""
    return pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 4, 5], kind), values)


def struct(name: str, array: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([array], [name], mask=pa.array([False, True, False, False, False]))


def structs(name: str, values: list[Any]) -> list[Any]:
    return [None if row == 1 else {name: value} for row, value in enumerate(values)]


def each(values: list[Any]) -> list[Any]:
    return [[value] for value in values]


VIEWS = pa.array(TEXTS, pa.string_view())
TABLE: list[tuple[pa.DataType, pa.Array, list[Any]]] = [
    (pa.list_(_INT), views(_ITEMS), LISTS),
    (pa.list_(pa.int32()), views(_ITEMS, large=True), LISTS),
    (pa.large_list(_INT), views(_ITEMS), LISTS),
    (pa.list_(_INT, 2), pa.array(PAIRS, pa.list_view(_INT)), PAIRS),
    (pa.list_(_INT), pa.array(PAIRS, pa.list_(_INT, 2)), PAIRS),
    (pa.list_(_INT), pa.array(LISTS, pa.large_list(_INT)), LISTS),
    (pa.list_(_INT, 2), pa.array(PAIRS, pa.large_list(_INT)), PAIRS),
    (_TEXT, VIEWS, TEXTS),
    (pa.large_string(), VIEWS, TEXTS),
    (pa.binary(), VIEWS.cast(pa.binary_view()), [t and t.encode() for t in TEXTS]),
    (_TEXT, runs(VIEWS.slice(1), pa.int16()), TEXTS),
    (_TEXT, pa.DictionaryArray.from_arrays(pa.array([0, 0, None, 3, 4]), VIEWS), TEXTS),
    (_TEXT, pc.run_end_encode(pa.array(TEXTS)), TEXTS),
    (pa.dictionary(pa.int8(), _TEXT), VIEWS, TEXTS),
    (pa.dictionary(pa.int8(), _TEXT), runs(pa.array(TEXTS[1:]), pa.int64()), TEXTS),
    (pa.dictionary(pa.int8(), _TEXT), pa.DictionaryArray.from_arrays(pa.array([0, 0, 2, 3, 4]), VIEWS), TEXTS),
    (pa.int32(), pa.array([1, 1, None, 2, 3]).dictionary_encode(), [1, 1, None, 2, 3]),
    (pa.int16(), pc.run_end_encode(pa.array([7, 7, None, 8, 9])), [7, 7, None, 8, 9]),
    (pa.list_(_INT), runs(views(_ITEMS).slice(1), pa.int32()), [LISTS[1], *LISTS[1:]]),
    (pa.list_(_INT), pa.DictionaryArray.from_arrays(pa.array([4, 3, 2, 1, 0]), views(_ITEMS)), LISTS[::-1]),
    (pa.struct([("x", pa.list_(_INT))]), struct("x", views(_ITEMS)), structs("x", LISTS)),
    (pa.struct([("x", _TEXT)]), struct("x", pc.run_end_encode(pa.array(TEXTS))), structs("x", TEXTS)),
    (pa.struct([("x", pa.list_(_INT))]), struct("x", pa.array(PAIRS, pa.list_(_INT, 2))), structs("x", PAIRS)),
    (pa.list_(pa.list_(_INT)), pa.ListArray.from_arrays([0, 1, 2, 3, 4, 5], views(_ITEMS)), each(LISTS)),
    (pa.list_(_TEXT), pa.ListViewArray.from_arrays([0, 1, 2, 3, 4], [1] * 5, VIEWS), each(TEXTS)),
    (pa.list_(_TEXT), pa.FixedSizeListArray.from_arrays(VIEWS, 1), each(TEXTS)),
    (
        pa.list_(pa.struct([("x", _TEXT)])),
        pa.LargeListViewArray.from_arrays([0, 1, 2, 3, 4], [1] * 5, struct("x", runs(VIEWS.slice(1), pa.int32()))),
        each(structs("x", TEXTS)),
    ),
    (
        pa.map_(_TEXT, pa.list_(_INT)),
        pa.MapArray.from_arrays([0, 1, 2, 3, 4, 5], pa.array(list("abcde"), pa.string_view()), views(_ITEMS)),
        [[(key, value)] for key, value in zip("abcde", LISTS, strict=True)],
    ),
    (
        pa.map_(_TEXT, _TEXT),
        pa.MapArray.from_arrays(
            [0, 1, 2, 3, 4, 5], pa.array(list("abcde")).dictionary_encode(), runs(VIEWS.slice(1), pa.int32())
        ),
        [[(key, value)] for key, value in zip("abcde", TEXTS, strict=True)],
    ),
]
NAMES = [f"c{number}" for number in range(len(TABLE))]


@pytest.mark.parametrize("start", [0, 2], ids=["whole", "slices"])
def test_values_of_other_layouts_are_those_of_the_column(tmp_path: Path, start: int) -> None:
    fields = [pa.field(name, kind) for name, (kind, _, _) in zip(NAMES, TABLE, strict=True)]
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *fields])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id", writer_defaults={"fsync": False})
    expected = [{"id": row} for row in range(start, 5)]
    for name, (_, _, values) in zip(NAMES, TABLE, strict=True):
        for row, value in zip(expected, values[start:], strict=True):
            row[name] = value
    given = pa.record_batch([pa.array(range(5)), *(array for _, array, _ in TABLE)], names=["id", *NAMES]).slice(start)
    with table.writer(compaction=None) as writer:
        writer.put(given)
        assert writer.scan().to_table().sort_by("id").to_pylist() == expected
    assert table.scan().to_table().sort_by("id").to_pylist() == expected
    table.update(given.select(["id", *NAMES[1::2]]))
    assert table.scan().to_table().sort_by("id").to_pylist() == expected
    table.close()


REFUSED: list[tuple[pa.DataType, pa.Array]] = [
    (pa.list_(_INT), pa.array([["a"]], pa.list_view(_TEXT))),
    (pa.list_(_INT, 3), pa.array([[1, 2]], pa.large_list_view(_INT))),
    (pa.int8(), pc.run_end_encode(pa.array([1000]))),
    (pa.int8(), pa.array([1000]).dictionary_encode()),
    (_TEXT, pc.run_end_encode(pa.array([1]))),
    (pa.list_(pa.int8()), pa.array([[1000]], pa.list_view(_INT))),
    (pa.struct([("x", _INT)]), pa.array([{"x": ["a"]}], pa.struct([("x", pa.list_view(_TEXT))]))),
]


@pytest.mark.parametrize(("kind", "array"), REFUSED, ids=[f"{array.type} to {kind}" for kind, array in REFUSED])
def test_values_that_would_change_are_refused(tmp_path: Path, kind: pa.DataType, array: pa.Array) -> None:
    table = mw.create_table(str(tmp_path / "t"), pa.schema([("id", pa.int64()), ("v", kind)]), primary_key="id")
    with pytest.raises(InvalidInputError, match="column 'v'"):
        table.put(pa.record_batch([pa.array([1]), array], names=["id", "v"]))
    assert table.count_rows() == 0
    table.close()


def test_fields_of_a_struct_in_another_layout_are_not_left_out_unseen(tmp_path: Path) -> None:
    kind = pa.struct([("x", _INT), ("y", _INT)])
    table = mw.create_table(str(tmp_path / "t"), pa.schema([("id", _INT), ("v", kind)]), primary_key="id")
    array = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([{"x": 1}]))
    with pytest.raises(InvalidInputError, match=r"v\.y"):
        table.put(pa.record_batch([pa.array([1]), array], names=["id", "v"]))
    table.close()


def test_keys_json_uuids_and_blobs_take_other_layouts(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", _TEXT, nullable=False), ("doc", pa.json_()), ("u", pa.uuid()), BLOB])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id", writer_defaults={"fsync": False})
    keys = pa.array(["k1", "k2"])
    documents, number = pa.array(['{"a":1}', None]), uuid.UUID(int=7)
    data = {
        "id": keys.cast(pa.string_view()),
        "doc": documents.dictionary_encode(),
        "u": pc.run_end_encode(pa.array([str(number)] * 2)),
        "blob": pa.array([b"x", b"y"], pa.binary_view()),
    }
    expected = [{"id": "k1", "doc": '{"a":1}', "u": number}, {"id": "k2", "doc": None, "u": number}]
    table.put(pa.table(data))
    assert table.scan(["id", "doc", "u"]).to_table().sort_by("id").to_pylist() == expected
    large = pa.json_(pa.large_string()).wrap_array(documents.cast(pa.large_string()))
    table.put(pa.table(data | {"id": pc.run_end_encode(keys), "doc": large}))
    assert table.scan(["id", "doc", "u"]).to_table().sort_by("id").to_pylist() == expected
    for layout in (keys.cast(pa.string_view()), pc.run_end_encode(keys), keys.dictionary_encode()):
        assert table.lookup(layout, ["id"]).num_rows == 2
    with pytest.raises(InvalidInputError, match="must not be null"):
        table.delete(pc.run_end_encode(pa.array(["k1", None])))
    table.delete(pc.run_end_encode(keys))
    assert table.count_rows() == 0
    table.close()
