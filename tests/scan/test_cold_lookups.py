"""A get of few keys over many cold SSTables asks their filters, and reads more only where a filter says "maybe"."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.process.cache import CACHE
from lance_memwal.sstable import sidecar, write
from tests.kit.tables import watched_table

GENERATIONS, ROWS = 12, 40
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    CACHE.clear()
    yield
    CACHE.clear()


def made(place: Path, schema: pa.Schema = SCHEMA) -> str:
    """Generation n has keys 100 n to 100 n + 39, and -1; the last one deletes the key 5."""
    table = mw.create_table(str(place), schema, primary_key="id", sharding=mw.Unsharded())
    with table.writer(compaction=None, fsync=False) as writer:
        for number in range(GENERATIONS):
            keys = [-1 if schema is SCHEMA else 9999, *range(100 * number, 100 * number + ROWS)]
            writer.put(pa.table([pa.array(keys, schema.field(0).type), pa.array([f"g{number}"] * len(keys))], schema))
            if number == GENERATIONS - 1:
                writer.delete([5])
            writer.flush()
    return str(place)


def directories(uri: str) -> list[Path]:
    return sorted(Path(uri, "_mem_wal").glob("*/*_gen_*"), key=lambda path: int(path.name.rpartition("_")[2]))


class Watched:
    """A table whose store calls below SSTables are counted."""

    def __init__(self, uri: str) -> None:
        self.calls: list[tuple[str, str]] = []
        self.table = watched_table(uri, lambda name, path: self.calls.append((name, path)))
        self.table.details()

    def get(self, key: int) -> tuple[dict[str, object] | None, list[tuple[str, str]]]:
        self.calls.clear()
        row = self.table.get(key)
        return row, [(name, path) for name, path in self.calls if "_gen_" in path]


def test_a_missing_key_costs_one_small_read_per_sstable_and_later_ones_none(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    for directory in directories(uri):  # what a filter that says no makes unnecessary
        for part in ("_pk_index", "data", "_versions", "_deletions"):
            shutil.rmtree(directory / part, ignore_errors=True)
    watched = Watched(uri)
    row, calls = watched.get(50)
    assert row is None
    assert sorted(name for name, _ in calls) == ["get"] * GENERATIONS
    assert all(path.endswith("bloom_filter.bin") for _, path in calls)
    assert watched.get(51) == (None, [])


def test_a_key_is_read_from_the_sstable_that_has_it(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    for directory in directories(uri)[:3] + directories(uri)[4:]:
        shutil.rmtree(directory / "data")
        shutil.rmtree(directory / "_pk_index")
    watched = Watched(uri)
    row, calls = watched.get(301)
    assert row == {"id": 301, "v": "g3"}
    filters = [path for _, path in calls if path.endswith("bloom_filter.bin")]
    assert len(filters) == GENERATIONS - 3, "older ones are not asked"
    assert len(calls) - len(filters) == 2, "which versions there are, and the newest manifest"
    row, calls = watched.get(302)
    assert row == {"id": 302, "v": "g3"}
    assert calls == []


def test_the_newest_row_and_the_newest_delete_win(tmp_path: Path) -> None:
    table = mw.open_table(made(tmp_path / "t"))
    assert table.get(-1) == {"id": -1, "v": f"g{GENERATIONS - 1}"}
    assert table.get(5) is None
    found = table.lookup([-1, 5, 6, 107, 1105, 4711])
    assert sorted(found.column("id").to_pylist()) == [-1, 6, 107, 1105]


def test_many_keys_or_many_gets_have_all_keys_read(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    keys = [100 * number + at for number in range(GENERATIONS) for at in range(ROWS) if (number, at) != (0, 5)]
    watched = Watched(uri)
    assert watched.table.lookup([*keys, 5]).num_rows == len(keys)
    assert not [path for _, path in watched.calls if path.endswith("bloom_filter.bin")]
    CACHE.clear()
    watched = Watched(uri)
    for key in keys[:100]:
        row, _ = watched.get(key)
        assert row is not None
        assert row["id"] == key
    for directory in directories(uri):
        (directory / "bloom_filter.bin").unlink()
        shutil.rmtree(directory / "_pk_index")
    assert watched.get(77)[0] is None, "the keys of all are in memory by now"


def test_without_a_filter_or_where_it_ignores_values_the_sidecar_is_asked(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    for directory in directories(uri):
        (directory / "bloom_filter.bin").unlink()
    assert mw.open_table(uri).get(407) == {"id": 407, "v": "g4"}
    assert mw.open_table(uri).get(50) is None
    other = made(tmp_path / "u", pa.schema([pa.field("id", pa.uint64(), nullable=False), ("v", pa.string())]))
    watched = Watched(other)
    row, calls = watched.get(407)
    assert row == {"id": 407, "v": "g4"}
    assert not [path for _, path in calls if path.endswith("bloom_filter.bin")]


def test_a_damaged_filter_is_named(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    directories(uri)[6].joinpath("bloom_filter.bin").write_bytes(b"\1" * 100)
    with pytest.raises(mw.CorruptDataError) as caught:
        mw.open_table(uri).get(50)
    assert caught.value.path is not None
    assert caught.value.path.endswith("bloom_filter.bin")


def test_a_short_sidecar_hides_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(columns: list[pa.Array]) -> sidecar.SortedKeys:
        known = sidecar.sort_keys([column.slice(0, 10) for column in columns])
        return sidecar.SortedKeys(known.values, known.stored, known.order, np.empty(0, np.int64))

    monkeypatch.setattr(write, "sort_keys", short)
    table = mw.open_table(made(tmp_path / "t"))
    assert table.get(307) == {"id": 307, "v": "g3"}
    assert table.get(339) == {"id": 339, "v": "g3"}
    assert table.get(5) is None
    assert table.get(350) is None


def test_what_is_kept_of_cold_sstables_counts(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    table = mw.open_table(uri)
    table.get(50)
    assert CACHE.size_bytes >= GENERATIONS * 32768
    limit = CACHE.limit_bytes
    try:
        CACHE.limit_bytes = 4 * 65536
        assert table.get(301) == {"id": 301, "v": "g3"}
        assert table.get(50) is None
        assert CACHE.size_bytes <= 4 * 65536
    finally:
        CACHE.limit_bytes = limit
