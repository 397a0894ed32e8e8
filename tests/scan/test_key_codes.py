"""Keys that are bytes: codes propose, keys decide. Beside sets and dictionaries of Python, and with codes that collide."""

from __future__ import annotations

import random
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_memwal.rows.key_codes import hash_code, hash_codes, sort_cells, tail_codes
from lance_memwal.rows.key_slots import KeySlots
from lance_memwal.rows.keys import KeySet, first_of_each, key_array, last_of_each, newest_of_each
from lance_memwal.rows.sorted_keys import find_one_sorted, find_sorted, merge_runs, searchable

_MASK = (1 << 64) - 1
_START, _FACTOR = 0x9E3779B97F4A7C15, 0xFF51AFD7ED558CCD


def colliding(count: int) -> list[bytes]:
    """Different keys of 16 bytes with one and the same code: the second word takes back what the first one changed."""

    def after(word: int) -> int:
        state = ((16 * _FACTOR & _MASK ^ _START ^ word) * _FACTOR) & _MASK
        return state ^ state >> 32

    return [n.to_bytes(8, "little") + (after(n) ^ 0x1234).to_bytes(8, "little") for n in range(count)]


def draw_texts(draw: random.Random, count: int) -> list[str]:
    letters = "ab\0é"
    return ["".join(draw.choices(letters, k=draw.choice([0, 1, 2, 7, 8, 9, 16, 17, 40]))) for _ in range(count)]


def as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else value


KINDS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3), pa.uuid()]


def keys_of(kind: pa.DataType, seed: int, count: int = 400) -> pa.Array:
    draw = random.Random(seed)
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([bytes(draw.choices(b"\0\1\xff", k=3)) for _ in range(count)], kind)
    if isinstance(kind, pa.UuidType):
        drawn = [uuid.UUID(int=draw.randrange(150) << 60).bytes for _ in range(count)]
        return key_array([pa.ExtensionArray.from_storage(kind, pa.array(drawn, pa.binary(16)))])
    texts = draw_texts(draw, count)
    return pa.array(texts if "string" in str(kind) else [text.encode() for text in texts], kind)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_one_key_has_the_code_and_the_place_that_it_has_among_many(kind: pa.DataType) -> None:
    keys = keys_of(kind, 7)
    values = [as_bytes(value) for value in keys.to_pylist()]
    assert list(map(hash_code, values)) == hash_codes(keys).tolist()
    ascending = searchable(pa.array(sorted(set(values)), pa.large_binary()))
    some = ascending.take(pa.array(np.arange(0, len(ascending), 2)))
    wanted = [*values, b"", b"\0", b"\xff" * 20]
    places = find_sorted(some, searchable(pa.array(wanted, pa.large_binary()))).tolist()
    assert [find_one_sorted(some, value) for value in wanted] == places
    assert min(places) < 0 < max(places)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 255, 256, 257, 1000])
def test_the_code_of_one_key_of_any_length_is_that_among_many(length: int) -> None:
    key = random.Random(length).randbytes(length)
    assert hash_code(key) == hash_codes(pa.array([b"other", key]))[1]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint64(), pa.bool_()], ids=str)
def test_one_number_is_found_where_it_is_among_many(kind: pa.DataType) -> None:
    some = searchable(pa.array([False, True] if kind == pa.bool_() else [0, 3, 9, 127], kind))
    for wanted in (0, 1, 3, 9, 100, 127):
        assert find_one_sorted(some, wanted) == (np.flatnonzero(some == wanted).tolist() or [-1])[0]
    assert find_one_sorted(some[:0], 0) == -1


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_sets_and_last_rows_are_those_of_python(kind: pa.DataType) -> None:
    whole = keys_of(kind, 1)
    keys = whole.slice(3)  # a part of buffers
    values = keys.to_pylist()
    last = {value: row for row, value in enumerate(values)}
    first = {value: row for row, value in reversed(list(enumerate(values)))}
    assert last_of_each(keys).tolist() == sorted(last.values())
    assert sorted(first_of_each(keys).tolist()) == sorted(first.values())
    parts = [keys.slice(0, 100), keys.slice(100)]
    assert np.concatenate(newest_of_each(parts)).nonzero()[0].tolist() == sorted(last.values())
    asked = keys_of(kind, 2)
    held = set(keys.slice(0, 50).to_pylist())
    assert KeySet(keys.slice(0, 50)).contains(asked).tolist() == [value in held for value in asked.to_pylist()]
    assert KeySlots(keys).find(asked).tolist() == [last.get(value, -1) for value in asked.to_pylist()]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_runs_are_merged_in_the_order_of_bytes_and_the_first_run_wins(kind: pa.DataType) -> None:
    runs = [pa.array(sorted(set(keys_of(kind, seed).to_pylist()), key=as_bytes)) for seed in range(3)]
    runs = [run.cast(keys_of(kind, 0).type) for run in runs]
    merged, rows = merge_runs(runs)
    every = [value for run in runs for value in run.to_pylist()]
    expected = {value: row for row, value in reversed(list(enumerate(every)))}
    assert merged.to_pylist() == sorted(expected, key=as_bytes)
    assert rows.tolist() == [expected[value] for value in merged.to_pylist()]
    asked = keys_of(kind, 9)
    places = {value: row for row, value in enumerate(merged.to_pylist())}
    assert find_sorted(searchable(merged), searchable(asked)).tolist() == [places.get(v, -1) for v in asked.to_pylist()]


def test_one_long_key_among_short_ones_needs_no_cells() -> None:
    keys = pa.array([b"a", b"b" * 100_000, b"c"])
    assert sort_cells(keys) is None
    merged, rows = merge_runs([keys, pa.array([b"b" * 100_000, b"d"])])
    assert rows.tolist() == [0, 1, 2, 4]
    assert len(merged) == 4
    assert last_of_each(pa.array([b"b" * 100_000, b"b" * 99_999 + b"c", b"b" * 100_000])).tolist() == [1, 2]


def test_cells_tell_keys_apart_that_end_with_zeros() -> None:
    cells = sort_cells(pa.array([b"a", b"a\0", b"a\0\0", b"a"]))
    assert cells is not None
    assert np.argsort(cells, kind="stable").tolist() == [0, 3, 1, 2]
    assert len(np.unique(cells)) == 3


def test_keys_whose_codes_collide_are_told_apart() -> None:
    values = colliding(300)
    keys = pa.array(values * 2)
    assert len(np.unique(hash_codes(keys))) == 1  # or this test tests nothing
    assert last_of_each(keys).tolist() == list(range(300, 600))
    assert first_of_each(keys).tolist() == list(range(300))
    held = KeySet(pa.array(values[:100]))
    assert held.contains(keys).tolist() == ([True] * 100 + [False] * 200) * 2
    assert KeySlots(keys).find(pa.array(values)).tolist() == list(range(300, 600))


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()], ids=str)
def test_keys_that_end_alike_have_one_tail_code_wherever_they_lie(kind: pa.DataType) -> None:
    draw = random.Random(4)
    for _ in range(60):
        texts = [bytes(draw.choices(b"abc", k=draw.randint(0, 12))) for _ in range(draw.randint(1, 30))]
        keys, before = pa.array(texts, pa.binary()).cast(kind), draw.randint(0, 4)
        sliced = pa.array([b"zz"] * before + texts, pa.binary()).cast(kind).slice(before)
        codes = tail_codes(keys).tolist()
        assert tail_codes(sliced).tolist() == codes
        known: dict[tuple[int, bytes], int] = {}
        assert all(known.setdefault((len(t), t[-8:]), code) == code for t, code in zip(texts, codes, strict=True))
        assert len(set(known.values())) == len(known)
        others = [bytes(draw.choices(b"abc", k=draw.randint(0, 12))) for _ in range(40)]
        newest = {text: row for row, text in enumerate(texts)}
        found = KeySlots(keys).find(pa.array(others, pa.binary()).cast(kind))
        assert found.tolist() == [newest.get(text, -1) for text in others]


@pytest.mark.parametrize("last", [pa.int64(), pa.int8(), pa.uint64(), pa.date32(), pa.timestamp("us")], ids=str)
def test_composite_keys_that_end_with_a_number_are_found_by_it(last: pa.DataType) -> None:
    draw = random.Random(5)
    low = 0 if last == pa.uint64() else -100

    def rows(count: int) -> pa.RecordBatch:
        numbers = pa.array([draw.randint(low, 100) for _ in range(count)], pa.int32())
        column = numbers.cast(last) if last == pa.date32() else numbers.cast(pa.int64()).cast(last)
        return pa.record_batch({"a": pa.array([draw.choice(["", "x", "x\0"]) for _ in range(count)]), "b": column})

    for size in (1, 5, 60):
        ours, asked = rows(size), rows(400)
        known = set(map(str, ours.to_pylist()))
        found = KeySet(key_array(ours.columns)).of_rows(asked, ["a", "b"])
        assert found.tolist() == [str(row) in known for row in asked.to_pylist()]
