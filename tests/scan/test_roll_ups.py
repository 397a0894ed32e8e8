"""Roll-ups spare the way to the files of many generations, and never change an answer."""

from __future__ import annotations

import json
import shutil
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.process.cache import CACHE
from lance_memwal.sstable import rolling, several
from lance_memwal.sstable.roll_up import RollUp
from lance_memwal.store.location import resolve
from tests.harness.profile import scaled
from tests.kit.roll_ups import GENERATIONS, fill, generation_files, key_of, ranges, roll_up_all, roll_ups
from tests.kit.tables import watched_table

TOTAL = 150
NUMBERS = np.arange(TOTAL)
KEYS: dict[str, dict[str, pa.Array]] = {
    "int64": {"id": pa.array(NUMBERS * 7 - 300)},
    "string": {"id": pa.array([f"key {number}" for number in NUMBERS])},
    "binary": {"id": pa.array([bytes([number, 0, number % 7]) for number in NUMBERS])},
    "date, which filters ignore": {"id": pa.array([date(2020, 1, 1) + timedelta(days=int(n)) for n in NUMBERS])},
    "two columns": {"a": pa.array([f"t{n % 5}" for n in NUMBERS]), "b": pa.array(NUMBERS)},
}


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    CACHE.clear()
    yield
    CACHE.clear()


def made(place: Path, kind: str = "int64", generations: int = GENERATIONS, rolled: Sequence[str] = ()) -> str:
    keys = KEYS[kind]
    schema = pa.schema(
        [*(pa.field(name, column.type, nullable=False) for name, column in keys.items()), ("v", "string")]
    )
    table = mw.create_table(str(place), schema, primary_key=list(keys), sharding=mw.Unsharded())
    fill(table, keys, generations, rolled)
    return str(place)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table with the roll-ups that its flushes made."""
    return made(tmp_path_factory.mktemp("rolled") / "t", rolled=["1-64", "65-72"])


def copied(uri: str, place: Path) -> str:
    shutil.copytree(uri, place)
    return str(place)


def answers(uri: str, kind: str = "int64") -> list[Any]:
    """What every kind of read says, each beginning cold."""
    keys = pa.table(KEYS[kind])
    some = [key_of(keys, at) for at in range(0, TOTAL, 3)]

    def rows(found: pa.Table) -> list[Any]:
        return sorted(map(str, found.to_pylist()))

    reads = [
        lambda table: table.count_rows(),
        lambda table: rows(table.scan(with_generation=True).to_table()),
        lambda table: rows(table.scan(filter="v < 'g4'", columns=["v"]).to_table()),
        lambda table: rows(table.lookup(some)),
        lambda table: [table.get(key) for key in some[:20]],
    ]
    found = []
    for read in reads:
        CACHE.clear()
        found.append(read(mw.open_table(uri)))
    return found


# ------------------------------------------------------------------------------------------------------------ answers


@pytest.mark.parametrize("kind", KEYS)
def test_every_answer_is_the_same_with_and_without(tmp_path: Path, kind: str) -> None:
    uri = made(tmp_path / "t", kind, 18)
    wanted = answers(uri, kind)
    assert len(roll_up_all(uri)) == 2
    assert answers(uri, kind) == wanted


def test_flushes_roll_up_by_themselves_and_the_largest_block_comes_first(plain: str) -> None:
    assert {"1-64", "65-72"} <= ranges(plain)
    assert "57-64" not in ranges(plain), "the block of 64 has it"
    assert roll_up_all(plain) == [], "nothing is missing"


def test_a_shard_with_few_generations_has_none(tmp_path: Path) -> None:
    uri = made(tmp_path / "t", generations=24)
    assert roll_ups(uri) == []
    assert roll_up_all(uri, few_generations=32) == []


def test_rolled_generations_are_read_without_one_of_their_own_files(plain: str, tmp_path: Path) -> None:
    wanted = answers(plain)
    uri = copied(plain, tmp_path / "t")
    for directory in generation_files(uri, GENERATIONS):
        shutil.rmtree(directory)
    CACHE.clear()
    table = mw.open_table(uri)
    assert table.count_rows() == wanted[0]
    CACHE.clear()
    assert sorted(map(str, mw.open_table(uri).scan(with_generation=True).to_table().to_pylist())) == wanted[1]
    table = mw.open_table(uri)
    table.compact()
    assert table.count_rows() == wanted[0]


def test_a_key_that_is_nowhere_costs_a_slice_per_roll_up_and_no_file_of_a_generation(plain: str) -> None:
    calls: list[tuple[str, str]] = []
    table = watched_table(plain, lambda name, path: calls.append((name, path)))
    table.details()
    calls.clear()
    assert table.get(10_000) is None
    assert not [path for _, path in calls if "_gen_" in path]
    on_roll_ups = [name for name, path in calls if "memwal_rollups" in path]
    assert on_roll_ups.count("list_names") == 1
    assert len(on_roll_ups) - 1 <= 4, "a footer and a slice each"
    calls.clear()
    assert table.get(10_000) is None
    assert not [path for _, path in calls if "memwal_rollups" in path or "_gen_" in path], "what was read is kept"


def test_without_a_cache_answers_are_the_same(plain: str) -> None:
    wanted, limit = answers(plain), CACHE.limit_bytes
    mw.set_cache_bytes(0)
    try:
        assert answers(plain) == wanted
    finally:
        mw.set_cache_bytes(limit)


# -------------------------------------------------------------------------------------------------- what is not believed


def test_damage_anywhere_is_found_and_the_files_are_read_instead(plain: str, tmp_path: Path) -> None:
    wanted = answers(plain)
    uri = copied(plain, tmp_path / "t")
    largest = max(roll_ups(uri), key=lambda path: path.stat().st_size)
    whole = largest.read_bytes()
    rng = np.random.default_rng(1)
    damages = [b"", whole[: len(whole) // 2], whole[:-1], bytes(len(whole))]
    for at in [5, len(whole) // 3, len(whole) - 20, len(whole) - 2, *rng.integers(0, len(whole), 4).tolist()]:
        damages.append(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
    for damaged in damages:
        largest.write_bytes(damaged)
        CACHE.clear()
        table = mw.open_table(uri)
        assert table.count_rows() == wanted[0]
        assert sorted(map(str, table.scan(with_generation=True).to_table().to_pylist())) == wanted[1]
        CACHE.clear()
        assert [mw.open_table(uri).get(n * 7 - 300) for n in range(0, 9, 3)] == wanted[4][:3]


def test_a_roll_up_of_another_table_is_not_used(tmp_path: Path) -> None:
    uri, other = made(tmp_path / "t", generations=16), made(tmp_path / "other", generations=16)
    wanted = answers(uri)
    assert len(roll_up_all(uri)) == len(roll_up_all(other)) == 2
    for ours, theirs in zip(roll_ups(uri), roll_ups(other), strict=True):
        ours.write_bytes(theirs.read_bytes())
    CACHE.clear()
    assert answers(uri) == wanted
    assert roll_up_all(uri) == [], "their names are taken"


def test_a_roll_up_that_another_thread_finds_meanwhile_hides_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = made(tmp_path / "t", generations=16)
    roll_up_all(uri)
    CACHE.clear()
    keys = [key_of(pa.table(KEYS["int64"]), at) for at in range(0, TOTAL, 8)]
    wanted = mw.open_table(uri).lookup(keys).num_rows
    CACHE.clear()
    honest, ask = several.find_rolled, several._might_contain
    slow_one = threading.Thread(target=lambda: mw.open_table(uri).get(-1))
    has_found, may_go_on = threading.Event(), threading.Event()

    def find(*given: Any) -> Any:
        found = honest(*given)
        if threading.current_thread() is slow_one:
            has_found.set()
            may_go_on.wait(60)
        return found

    def ask_late(*given: Any) -> Any:
        if threading.current_thread() is not slow_one and not may_go_on.is_set():
            may_go_on.set()
            slow_one.join(60)  # it notes what it has found, between the grouping and the asking of this one
        return ask(*given)

    monkeypatch.setattr(several, "find_rolled", find)
    monkeypatch.setattr(several, "_might_contain", ask_late)
    slow_one.start()
    assert has_found.wait(60)
    monkeypatch.setattr(rolling, "_SIZES", (8, 16))
    assert len(roll_up_all(uri)) == 1
    assert mw.open_table(uri).lookup(keys).num_rows == wanted


def test_generations_that_were_compacted_do_not_come_back(plain: str, tmp_path: Path) -> None:
    uri = copied(plain, tmp_path / "t")
    wanted = answers(uri)
    mw.open_table(uri).compact(max_generations=30)
    CACHE.clear()
    found = answers(uri)
    assert [found[0], found[3], found[4]] == [wanted[0], wanted[3], wanted[4]]
    with mw.open_table(uri) as table:
        table.delete(where="id >= -300")
    CACHE.clear()
    assert answers(uri)[0] == 0
    assert roll_up_all(uri) == [], "what is left of a block is still in its roll-up"


def test_a_roll_up_that_goes_while_it_is_used_is_done_without(plain: str, tmp_path: Path) -> None:
    wanted = answers(plain)
    uri = copied(plain, tmp_path / "t")
    CACHE.clear()
    table = mw.open_table(uri)
    assert table.get(10_000) is None  # the footers are known now
    for path in roll_ups(uri):
        path.unlink()
    assert table.count_rows() == wanted[0]
    assert sorted(map(str, table.scan(with_generation=True).to_table().to_pylist())) == wanted[1]


def test_one_of_an_unknown_version_is_left_alone(tmp_path: Path) -> None:
    uri = made(tmp_path / "t", generations=10)
    wanted = answers(uri)
    assert len(roll_up_all(uri)) == 1
    path = roll_ups(uri)[0]
    footer = json.dumps({"v": 2}).encode()
    path.write_bytes(footer + struct.pack("<II8s", len(footer), zlib.crc32(footer), b"MWALROL1"))
    with pytest.raises(mw.UnsupportedFormatError):
        RollUp(resolve(uri), str(path.relative_to(uri)))
    CACHE.clear()
    assert answers(uri) == wanted
    assert mw.open_table(uri).verify().problems == []


# --------------------------------------------------------------------------------------------------------------- at scale


@pytest.mark.scaled
@pytest.mark.timeout(300)
def test_a_cold_get_over_many_generations_opens_few_objects(plain: str, tmp_path: Path) -> None:
    """At most 30 over 500 generations; Lance opens four more for a key that is there: two of the sidecar, the data, the base."""
    generations = scaled(ci=GENERATIONS, prove=500)
    uri = plain if generations == GENERATIONS else made(tmp_path / "t", generations=generations)
    roll_up_all(uri)
    there = key_of(pa.table(KEYS["int64"]), 0)
    for key in (10_000, there):
        read: set[str] = set()
        CACHE.clear()
        table = watched_table(uri, lambda name, path, read=read: read.add(path) if name.startswith("get") else None)
        table.get(key)
        assert len(read) + 4 <= 30
