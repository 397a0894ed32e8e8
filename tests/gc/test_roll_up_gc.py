"""Collection and verify know roll-ups: they go with their generations, and damage in one holds nothing back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.process.cache import CACHE
from tests.kit.roll_ups import fill, generation_files, roll_up_all, roll_ups

KEYS = {"id": pa.array(range(60))}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rolled") / "t"
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    table = mw.create_table(
        str(place), schema, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )
    fill(table, KEYS, 20)
    assert len(roll_up_all(str(place))) == 2
    return place


@pytest.fixture
def table(template: Path, tmp_path: Path) -> mw.Table:
    shutil.copytree(template, tmp_path / "t")
    CACHE.clear()
    return mw.open_table(str(tmp_path / "t"))


def test_a_roll_up_goes_when_the_last_of_its_generations_is_gone(table: mw.Table) -> None:
    rows = table.count_rows()
    table.compact(max_generations=12)
    assert table.gc(grace_seconds=0).count("rollup") == 1, "that of 1 to 8"
    assert [path.name.rpartition("-")[0] for path in roll_ups(table.uri)] == ["9-16"]
    table.compact()
    dry = table.gc(grace_seconds=0, dry_run=True)
    assert dry.count("rollup") == 1
    assert table.gc(grace_seconds=3600).count("rollup") == 0, "not within the grace period"
    assert table.gc(grace_seconds=0).count("rollup") == 1
    assert roll_ups(table.uri) == []
    assert table.count_rows() == rows


def test_roll_ups_that_are_in_use_and_names_that_are_none_stay(table: mw.Table) -> None:
    stray = roll_ups(table.uri)[0].with_name("notes.txt")
    stray.write_text("mine")
    assert table.gc(grace_seconds=0).count("rollup") == 0
    table.compact()
    table.gc(grace_seconds=0)
    assert roll_ups(table.uri) == [stray]


def test_a_reader_of_an_older_snapshot_needs_no_roll_up(table: mw.Table) -> None:
    wanted = sorted(map(str, table.scan().to_table().to_pylist()))
    table.checkpoint_create("then")
    table.compact()
    table.gc(grace_seconds=0)
    assert roll_ups(table.uri) == []
    CACHE.clear()
    assert sorted(map(str, table.at("then").scan().to_table().to_pylist())) == wanted


def test_verify_compares_roll_ups_with_their_generations(table: mw.Table) -> None:
    assert table.verify().problems == []
    first, second = roll_ups(table.uri)
    whole = first.read_bytes()
    for at in (3, len(whole) // 2, len(whole) - 30):
        first.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert [(p.invariant, p.where.endswith(first.name)) for p in table.verify().problems] == [("V-14", True)]
    first.write_bytes(whole)
    bloom = generation_files(table.uri, 20)[0].parent.glob("*_gen_11/bloom_filter.bin")
    next(bloom).write_bytes(b"\xff" * 32768)  # a filter that denies nothing is no fault, and no other copy either
    assert table.verify().problems == []
    assert second.exists()


def test_a_damaged_roll_up_holds_neither_collection_nor_repair_back(table: mw.Table) -> None:
    for path in roll_ups(table.uri):
        path.write_bytes(b"nonsense")
    rows = table.count_rows()
    table.compact()
    report = table.gc(grace_seconds=0)
    assert report.refused == {}
    assert report.count("rollup") == 2
    assert table.repair().problems == []
    assert table.count_rows() == rows
