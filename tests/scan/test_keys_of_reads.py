"""Keys of every type in every tier: codes propose, keys decide, and rows of the base table stay hidden."""

import random
import uuid
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
from lance_memwal.read import base_rows
from lance_memwal.read.reader import Reader
from lance_memwal.read.superseded_rows import SupersededRows
from lance_memwal.rows.key_codes import hash_code, hash_codes, sort_cells, tail_codes
from lance_memwal.rows.key_encoding import encode_composite
from lance_memwal.rows.key_slots import KeySlots
from lance_memwal.rows.keys import KeySet, first_of_each, key_array, last_of_each, newest_of_each
from lance_memwal.rows.sorted_keys import find_one_sorted, find_sorted, merge_runs, searchable
from lance_memwal.table import newest_base
from tests.harness.profile import scaled
from tests.kit.effort import cpu_seconds
from tests.kit.tables import create, nothing_kept, upsert_base

BASE_ROWS = 120
KINDS = ["int64", "string", "binary", "composite"]


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    CACHE.clear()
    yield
    CACHE.clear()


def key_of(kind: str, number: int) -> dict[str, Any]:
    return {
        "int64": {"id": number},
        "string": {"id": "é" * (number % 4) + str(number)},
        "binary": {"id": bytes(number % 5) + bytes([number % 256, 0, number // 256])},
        "composite": {"tenant": "\0" * (number % 3), "id": number},
    }[kind]


class Life:
    def __init__(self, place: Path, kind: str, *, stable: bool = False, sharding: Any = None) -> None:
        self.kind = kind
        self.live: dict[int, str] = dict.fromkeys(range(BASE_ROWS), "base")
        rows = self.rows(list(range(BASE_ROWS)), "base")
        key = [name for name in rows.schema.names if name != "v"]
        schema = pa.schema([f.with_nullable(f.name == "v") for f in rows.schema])
        first, second = rows.cast(schema).slice(0, 70), rows.cast(schema).slice(70)
        lance.write_dataset(first, str(place), enable_stable_row_ids=stable)
        lance.write_dataset(second, str(place), mode="append")
        sharding = sharding if sharding is not None else mw.Unsharded()
        self.table = mw.enable(str(place), primary_key=key, sharding=sharding, writer_defaults={"fsync": False})
        self.writer = self.table.writer(compaction=None)

    def rows(self, numbers: list[int], word: str) -> pa.Table:
        return pa.Table.from_pylist([key_of(self.kind, n) | {"v": f"{word} {n}"} for n in numbers])

    def put(self, numbers: list[int], word: str) -> None:
        self.writer.put(self.rows(numbers, word))
        self.live.update(dict.fromkeys(numbers, word))

    def delete(self, numbers: list[int]) -> None:
        keys = [tuple(key_of(self.kind, n).values()) for n in numbers]
        self.writer.delete(keys if self.kind == "composite" else [key[0] for key in keys])
        for number in numbers:
            self.live.pop(number, None)

    def expected(self) -> list[str]:
        return sorted(f"{word} {n}" for n, word in self.live.items())

    def check(self) -> None:
        for columns in (["v"], None, ["v"], None):
            assert sorted(self.table.scan(columns).to_table().column("v").to_pylist()) == self.expected()
        some = sorted(self.table.scan(["v"], filter="v like 'base 1%'").to_table().column("v").to_pylist())
        assert some == [text for text in self.expected() if text.startswith("base 1")]
        assert self.table.count_rows() == len(self.live)


def live_through(life: Life) -> None:
    with life.writer:
        life.check()
        life.put([3, 50, 99, 200], "one")
        life.delete([4, 71, 300])
        life.check()
        life.put([3, 51, 201], "two")
        life.check()
        life.writer.flush()
        life.check()
        life.delete([51, 52])
        life.check()
        life.put([4, 52, 118], "three")
        life.check()
        CACHE.clear()
        life.check()
        life.writer.flush()
        life.put([0], "four")
        life.check()
        life.table.compact()
        life.check()
        life.put([5, 3], "five")
        life.check()


@pytest.mark.parametrize("kind", KINDS)
def test_reads_beside_writes_hide_what_was_replaced_so_far(tmp_path: Path, kind: str) -> None:
    live_through(Life(tmp_path / "t", kind))


@pytest.mark.parametrize("rows_per_taken", [0, 1 << 20])
def test_stable_row_ids_hide_their_rows(tmp_path: Path, rows_per_taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_rows, "_PASSED_PER_TAKEN", rows_per_taken)  # compared one by one, or by a pass
    live_through(Life(tmp_path / "t", "string", stable=True, sharding=mw.Bucket("id", 3)))


def test_a_cache_that_keeps_nothing_changes_nothing(tmp_path: Path) -> None:
    limit = CACHE.limit_bytes
    mw.set_cache_bytes(0)
    try:
        live_through(Life(tmp_path / "t", "string"))
    finally:
        mw.set_cache_bytes(limit)


@pytest.mark.parametrize("kind", ["string", "binary", "composite"])
def test_repeated_scans_compare_no_key_of_the_base(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(tmp_path / "t", kind)
    compared: list[int] = []
    honest = KeySet.of_rows
    monkeypatch.setattr(KeySet, "of_rows", lambda s, rows, key: compared.append(rows.num_rows) or honest(s, rows, key))
    with life.writer:
        life.put([1, 2, 80], "one")
        life.writer.flush()
        life.put([2, 81, 400], "two")
        for _ in range(2):
            list(life.table.scan().to_batches())
        assert sum(compared) == 2 * BASE_ROWS
        compared.clear()
        for _ in range(2):
            assert life.table.scan(["v"]).to_table().num_rows == len(life.live)
            assert life.table.count_rows() == len(life.live)
        assert not compared
        life.put([5], "three")
        life.check()
        assert compared
        compared.clear()
        life.check()
        assert not compared


def test_a_scan_that_stops_early_teaches_nothing(tmp_path: Path) -> None:
    life = Life(tmp_path / "t", "string")
    with life.writer:
        life.put([1, 2, 119], "one")
        assert life.table.scan(limit=10).to_table().num_rows == 10
        batches = life.table.scan().to_batches()
        next(batches), next(batches)
        batches.close()
        assert life.table.scan(filter="v = 'base 7'").to_table().num_rows == 1
        life.check()


def test_an_older_snapshot_does_not_miss_what_newer_ones_hide(tmp_path: Path) -> None:
    life = Life(tmp_path / "t", "string")
    with life.writer:
        life.put([1, 2], "one")
        older, before = life.table.scan(["v"]), life.expected()
        life.put([3, 4], "two")
        life.check()
        assert sorted(older.to_table().column("v").to_pylist()) == before
        life.check()
        assert sorted(older.to_table().column("v").to_pylist()) == before


def test_row_ids_in_any_order_are_found() -> None:
    hidden = SupersededRows(np.array([2, 5, 9, 1 << 40]), np.array([5, 7]), None)
    for row_ids in ([0, 2, 3, 7, 9], [9, 2, 0, 5], [5], [], [10, 11], [1 << 40], [0, 1], [7, 7, 8]):
        found = hidden.hides(np.array(row_ids, np.int64))
        assert found.tolist() == [i in {2, 5, 7, 9, 1 << 40} for i in row_ids]
    assert hidden.all.tolist() == [2, 5, 7, 9, 1 << 40]


# Keys that are bytes: codes propose, keys decide. Beside sets and dictionaries of Python, and with codes that
# collide.

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


CODED_KINDS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3), pa.uuid()]


def keys_of(kind: pa.DataType, seed: int, count: int = 400) -> pa.Array:
    draw = random.Random(seed)
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([bytes(draw.choices(b"\0\1\xff", k=3)) for _ in range(count)], kind)
    if isinstance(kind, pa.UuidType):
        drawn = [uuid.UUID(int=draw.randrange(150) << 60).bytes for _ in range(count)]
        return key_array([pa.ExtensionArray.from_storage(kind, pa.array(drawn, pa.binary(16)))])
    texts = draw_texts(draw, count)
    return pa.array(texts if "string" in str(kind) else [text.encode() for text in texts], kind)


@pytest.mark.parametrize("kind", CODED_KINDS, ids=str)
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


@pytest.mark.parametrize("kind", CODED_KINDS, ids=str)
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


@pytest.mark.parametrize("kind", CODED_KINDS, ids=str)
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


# Keys of every type, in every tier, by scan, `get` and `lookup`; with rows cached and not, with base indexes and not.


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
    reader = Reader(NewestBase(newest_base(table)))
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
        found = Reader(NewestBase(newest_base(table))).lookup(keys).to_pylist()
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
