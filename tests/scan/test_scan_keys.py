"""Keys of every type, in every tier, by scan, `get` and `lookup`; with rows cached and not, with base indexes and not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lance_memwal as mw
from lance_memwal.lance.base import NewestBase
from lance_memwal.process.cache import CACHE
from lance_memwal.read.reader import Reader
from lance_memwal.rows.key_encoding import encode_composite
from lance_memwal.rows.keys import KeySet, first_of_each, last_of_each, newest_of_each
from tests.harness.profile import scaled
from tests.kit.caches import nothing_kept
from tests.kit.effort import cpu_seconds
from tests.kit.tables import create, upsert_base


def _integers(bits: int, *, signed: bool) -> list[int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return [low, low + 1, 0 if signed else 2, 5, 7, 11, high - 1, high]


_TEXTS = ["", "a", "A", "ab", "ключ", "日本語", "with 'quotes' and \\", "z" * 300]
_BYTES = [b"", b"\0", b"\0\0", b"a", b"a\0", b"\xff", b"\xff\xfe", b"x" * 300]
KEYS: dict[str, tuple[list[pa.DataType], list[tuple[Any, ...]]]] = {
    **{
        f"{'' if signed else 'u'}int{bits}": (
            [getattr(pa, f"{'' if signed else 'u'}int{bits}")()],
            [(value,) for value in _integers(bits, signed=signed)],
        )
        for bits in (8, 16, 32, 64)
        for signed in (True, False)
    },
    "string": ([pa.string()], [(value,) for value in _TEXTS]),
    "large_string": ([pa.large_string()], [(value,) for value in _TEXTS]),
    "binary": ([pa.binary()], [(value,) for value in _BYTES]),
    "large_binary": ([pa.large_binary()], [(value,) for value in _BYTES]),
    "uint64 and binary": (
        [pa.uint64(), pa.binary()],
        [(number, value) for number in (0, 1 << 63, (1 << 64) - 1) for value in (b"", b"\0", b"\xff")],
    ),
    "bool, large_string and int8": (
        [pa.bool_(), pa.large_string(), pa.int8()],
        [(flag, text, number) for flag in (True, False) for text in ("", "ü") for number in (-128, 127)],
    ),
}


@pytest.fixture(params=[True, False], ids=["rows kept", "rows not kept"])
def _caching(request: pytest.FixtureRequest) -> Iterator[None]:
    """Small SSTables are kept in memory; without room they are streamed, and single rows are taken from their file."""
    CACHE.clear()
    with nullcontext() if request.param else nothing_kept():
        yield


def _make(uri: str, types: Sequence[pa.DataType]) -> tuple[mw.Table, list[str]]:
    names = [f"k{i}" for i in range(len(types))]
    fields = [pa.field(name, kind, nullable=False) for name, kind in zip(names, types, strict=True)]
    table = create(uri, pa.schema([*fields, pa.field("v", pa.string())]), primary_key=names)
    return table, names


def _fill(table: mw.Table, names: list[str], keys: list[tuple[Any, ...]]) -> tuple[dict[Any, str], list[Any]]:
    """Base rows, two SSTables and a memtable; returns what must be seen, and the keys that must not."""

    def rows(some: list[tuple[Any, ...]], tier: str) -> pa.Table:
        listed = [dict(zip(names, key, strict=True)) | {"v": tier} for key in some]
        return pa.Table.from_pylist(listed, schema=table.schema)

    upsert_base(table.uri, rows(keys[:6], "base"))
    writer = table.writer(compaction=None)
    writer.put(rows(keys[1:4] + keys[6:7], "first"))
    writer.flush()
    writer.put(rows(keys[2:3], "second"))
    writer.delete([dict(zip(names, key, strict=True)) for key in keys[4:5]])
    writer.flush()
    writer.put(rows([keys[3]], "memory"))
    writer.delete([dict(zip(names, key, strict=True)) for key in keys[5:6]])
    seen = {keys[0]: "base", keys[1]: "first", keys[2]: "second", keys[3]: "memory", keys[6]: "first"}
    return seen, keys[4:6] + keys[7:]


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.usefixtures("_caching")
def test_keys_of_every_type_are_found_in_every_tier(tmp_path: Path, name: str) -> None:
    types, keys = KEYS[name]
    table, names = _make(str(tmp_path / "t"), types)
    seen, missing = _fill(table, names, keys)
    found = {tuple(row[n] for n in names): row["v"] for row in table.scan().to_table().to_pylist()}
    assert found == seen
    looked_up = table.lookup([dict(zip(names, key, strict=True)) for key in reversed(keys)]).to_pylist()
    assert {tuple(row[n] for n in names): row["v"] for row in looked_up} == seen
    assert len(looked_up) == len(seen)
    for key in keys:
        row = table.get(key if len(key) > 1 else key[0])
        assert (None if row is None else row["v"]) == seen.get(key), key
    assert missing


@pytest.mark.usefixtures("_caching")
def test_a_table_of_two_boolean_keys_is_read(tmp_path: Path) -> None:
    table, _ = _make(str(tmp_path / "t"), [pa.bool_()])
    upsert_base(
        table.uri, pa.Table.from_pylist([{"k0": True, "v": "base"}, {"k0": False, "v": "base"}], schema=table.schema)
    )
    with table.writer(compaction=None) as writer:
        writer.put([{"k0": True, "v": "first"}])
        writer.flush()
        writer.delete([False])
        assert table.scan().to_table().to_pylist() == [{"k0": True, "v": "first"}]
        assert table.get(True) == {"k0": True, "v": "first"}
        assert table.get(False) is None
        assert table.lookup([True, False]).num_rows == 1


@pytest.mark.parametrize("name", [name for name in KEYS if len(KEYS[name][0]) == 1 and "large_binary" not in name])
def test_base_rows_are_found_by_its_scalar_index_and_without_room_for_our_own(tmp_path: Path, name: str) -> None:
    types, keys = KEYS[name]
    table, _ = _make(str(tmp_path / "t"), types)
    upsert_base(
        table.uri, pa.Table.from_pylist([{"k0": key[0], "v": repr(key)} for key in keys[:6]], schema=table.schema)
    )
    reader = Reader(NewestBase(table.base))
    for attempt in ("without an index", "with an index"):
        with nothing_kept():  # filters that Lance answers
            found = reader.lookup([key[0] for key in keys]).to_pylist()
            assert {row["k0"]: row["v"] for row in found} == {key[0]: repr(key) for key in keys[:6]}, attempt
            assert [reader.get(key[0]) is not None for key in keys] == [True] * 6 + [False] * (len(keys) - 6), attempt
        lance.dataset(table.uri).create_scalar_index("k0", "BTREE")


def test_composite_base_keys_are_found_without_room_for_our_own_index(tmp_path: Path) -> None:
    types, keys = KEYS["bool, large_string and int8"]
    table, names = _make(str(tmp_path / "t"), types)
    rows = [dict(zip(names, key, strict=True)) | {"v": "x"} for key in keys[:5]]
    upsert_base(table.uri, pa.Table.from_pylist(rows, schema=table.schema))
    with nothing_kept():
        found = Reader(NewestBase(table.base)).lookup(keys).to_pylist()
    assert sorted(found, key=repr) == sorted(rows, key=repr)


def test_lookups_follow_new_base_versions(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    for version in range(12):
        upsert_base(table.uri, pa.Table.from_pylist([{"id": version, "v": version, "s": "x"}], schema=table.schema))
        assert table.lookup(list(range(20))).num_rows == version + 1
        assert table.get(version, ["v"]) == {"v": version}
    lance.dataset(table.uri).delete("id < 6")
    assert table.get(3) is None
    assert table.get(7, ["v"]) == {"v": 7}
    lance.dataset(table.uri).optimize.compact_files()
    assert table.lookup(list(range(20))).num_rows == 6


def test_a_key_that_the_base_table_holds_twice_is_shown_twice_by_scan_and_lookup(tmp_path: Path) -> None:
    """Lance does not enforce its keys; memwal hides what it replaced, and nothing else."""
    table = create(str(tmp_path / "t"))
    twice = pa.table({"id": [1, 1, 2], "v": [1, 2, 3], "s": ["a", "b", "c"]}, schema=table.schema)
    lance.write_dataset(twice, table.uri, mode="append")
    assert sorted(table.lookup([1]).column("v").to_pylist()) == [1, 2]
    assert table.count_rows() == 3
    with table.writer() as writer:
        writer.put([{"id": 1, "v": 9, "s": "z"}])
        assert table.lookup([1]).column("v").to_pylist() == [9]
        assert table.count_rows() == 2


def test_keys_are_given_in_every_form(tmp_path: Path) -> None:
    table, _ = _make(str(tmp_path / "t"), [pa.int32(), pa.string()])
    with table.writer() as writer:
        writer.put([{"k0": i, "k1": f"x{i}", "v": str(i)} for i in range(5)])
        forms: list[Any] = [
            [(1, "x1"), (2, "x2"), (7, "x7")],
            [{"k0": 1, "k1": "x1"}, {"k1": "x2", "k0": 2}],
            pa.table({"k1": ["x1", "x2"], "k0": [1, 2], "other": [0, 0]}),
            pa.record_batch({"k0": pa.array([1, 2], pa.int64()), "k1": ["x1", "x2"]}),
            pa.StructArray.from_arrays([pa.array([1, 2]), pa.array(["x1", "x2"])], ["k0", "k1"]),
            {"k0": [1, 2], "k1": ["x1", "x2"]},
            [[1, "x1"], [2, "x2"]],
        ]
        for keys in forms:
            assert sorted(table.lookup(keys).column("v").to_pylist()) == ["1", "2"], keys
        assert table.lookup([]).num_rows == 0
        for bad in ([1], [(1,)], [{"k0": 1}], pa.array([1]), [(1, None)], [("x1", 1)], 5):
            with pytest.raises(mw.InvalidInputError):
                table.lookup(bad)


@pytest.mark.parametrize("bad", [None, "one", 1 << 63, (1, 2), b"1"])
def test_a_key_that_is_none_of_its_type_is_refused(tmp_path: Path, bad: Any) -> None:
    table = create(str(tmp_path / "t"))
    with table.writer() as writer:
        writer.put([{"id": 1}], missing="null")
        with pytest.raises(mw.InvalidInputError):
            table.get(bad)


def test_a_repeated_key_is_looked_up_once(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    upsert_base(table.uri, pa.Table.from_pylist([{"id": 1, "v": 1, "s": "x"}], schema=table.schema))
    with table.writer(compaction=None) as writer:
        writer.put([{"id": 2}], missing="null")
        writer.flush()
        writer.put([{"id": 3}], missing="null")
        assert sorted(table.lookup([3, 1, 2, 3, 1, 2, 2]).column("id").to_pylist()) == [1, 2, 3]


# ---------------------------------------------------------------------------------------------------------- key sets

_KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-5, 60)),
    "uint64": (pa.uint64(), st.integers(0, (1 << 64) - 1) | st.integers(0, 60)),
    "uint32": (pa.uint32(), st.integers(0, (1 << 32) - 1) | st.integers(0, 60)),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=4)),
    "large_binary": (pa.large_binary(), st.binary(max_size=4)),
}


@pytest.mark.parametrize("name", _KINDS)
@given(data=st.data())
def test_a_set_of_keys_holds_exactly_its_keys(name: str, data: st.DataObject) -> None:
    kind, values = _KINDS[name]
    held = data.draw(st.lists(values, max_size=scaled(ci=20, prove=60)))
    asked = data.draw(st.lists(values | st.sampled_from(held) if held else values, max_size=30))
    found = KeySet(pa.array(held, kind)).contains(pa.array(asked, kind))
    assert found.tolist() == [value in set(held) for value in asked]


@pytest.mark.parametrize("name", _KINDS)
@given(data=st.data())
def test_distinct_keys_are_first_occurrences(name: str, data: st.DataObject) -> None:
    kind, values = _KINDS[name]
    drawn = data.draw(st.lists(values, max_size=30))
    rows = first_of_each(pa.array(drawn, kind))
    assert sorted(rows.tolist()) == sorted({drawn.index(value) for value in drawn})


@pytest.mark.parametrize("name", _KINDS)
@given(data=st.data())
def test_the_newest_row_of_a_key_is_its_last_one_over_all_parts(name: str, data: st.DataObject) -> None:
    kind, values = _KINDS[name]
    parts = data.draw(st.lists(st.lists(values, max_size=9), min_size=1, max_size=4))
    drawn = [value for part in parts for value in part]
    last = sorted({key: row for row, key in enumerate(drawn)}.values())
    assert last_of_each(pa.array(drawn, kind)).tolist() == last
    masks = newest_of_each([pa.array(part, kind) for part in parts])
    assert [len(mask) for mask in masks] == [len(part) for part in parts]
    assert np.flatnonzero(np.concatenate(masks)).tolist() == last


def test_wide_and_narrow_ranges_of_integers_answer_alike() -> None:
    wide = np.array([-(1 << 62), 0, 5, 1 << 62])
    narrow = np.arange(-3, 90)
    for held in (wide, narrow):
        asked = np.concatenate([wide, narrow, wide + 1, narrow - 1000])
        found = KeySet(pa.array(held)).contains(pa.array(asked))
        assert found.tolist() == np.isin(asked, held).tolist()


def test_composite_keys_are_compared_by_their_encoding() -> None:
    keys = encode_composite([pa.array([1, 1, 2]), pa.array(["a", "b", "a"])])
    asked = encode_composite([pa.array([1, 2, 2]), pa.array(["b", "b", "a"])])
    assert KeySet(keys).contains(asked).tolist() == [True, False, True]


@pytest.mark.repro("reads-07b")
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_a_large_set_of_texts_is_asked_in_small_parts_without_building_it_anew(kind: pa.DataType) -> None:
    numbers = np.arange(0, 400_000, 2)
    keys = pa.array([f"key{number:09d}" for number in numbers]).cast(kind)
    known = KeySet(pa.concat_arrays([keys, keys.slice(0, 10)]))
    asked = pa.array([*(f"key{number:09d}" for number in range(1000)), "", "ü"]).cast(kind)
    built_and_asked = cpu_seconds(lambda: KeySet(keys).contains(asked), tries=3)
    asked_often = cpu_seconds(lambda: [known.contains(asked) for _ in range(100)])
    assert asked_often < 30 * built_and_asked
    assert known.contains(asked).tolist() == [number % 2 == 0 for number in range(1000)] + [False, False]
    everything = pa.array([f"key{number:09d}" for number in range(200_000)]).cast(kind)
    assert known.contains(everything).tolist() == [number % 2 == 0 for number in range(200_000)]
