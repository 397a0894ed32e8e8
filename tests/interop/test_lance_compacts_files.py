"""Lance compacts the files of a table that we enabled as it does those of one that pylance initialised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw

KEY = {b"lance-schema:unenforced-primary-key": b"true"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), False, KEY), ("v", pa.string())])


def rows(*numbers: int) -> pa.Table:
    return pa.table({"id": list(numbers), "v": ["x"] * len(numbers)}, schema=SCHEMA)


def append(uri: str) -> None:
    first = lance.dataset(uri).count_rows() + 100
    lance.write_dataset(rows(first, first + 1), uri, mode="append")


def merge(uri: str) -> None:
    """An upsert of one row that is there and one that is not."""
    merging = lance.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merging.execute(rows(7, 200 + lance.dataset(uri).count_rows()))


def update(uri: str) -> None:
    lance.dataset(uri).update({"v": "'y'"}, where="id % 2 = 0")


def write(uri: str) -> None:
    table = mw.open_table(uri)
    with table.writer(compaction=None) as writer:
        writer.put({"id": [7, 300], "v": ["p", "p"]})
    table.compact()


@pytest.mark.parametrize(
    "steps", [(), (merge, merge), (append, merge, append), (merge, update, append), (write, merge)]
)
@pytest.mark.parametrize("first", [(), (1, 2)], ids=["empty", "with rows"])
@pytest.mark.parametrize("stable", [True, False], ids=["stable row ids", "addresses"])
def test_lance_compacts_the_files_of_a_table_that_we_enabled(
    tmp_path: Path, stable: bool, first: tuple[int, ...], steps: tuple[Callable[[str], None], ...]
) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(*first), uri, enable_stable_row_ids=stable)
    mw.enable(uri)
    for step in steps:
        step(uri)
    shown = mw.open_table(uri).scan().to_table().sort_by("id")
    lance.dataset(uri).optimize.compact_files()
    assert mw.open_table(uri).scan().to_table().sort_by("id") == shown
    assert lance.dataset(uri).to_table().sort_by("id").to_pylist() == shown.to_pylist()


@pytest.mark.parametrize("stable", [True, False], ids=["stable row ids", "addresses"])
def test_pylance_writes_a_table_that_we_enabled_and_we_read_it(tmp_path: Path, stable: bool) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(rows(1, 2), uri, enable_stable_row_ids=stable)
    mw.enable(uri)
    assert lance.dataset(uri).mem_wal_index_details()["num_shards"] == 1
    with lance.dataset(uri).mem_wal_writer(mw.shard_id_for(mw.Unsharded())) as writer:
        writer.put(rows(2, 3))
    assert sorted(mw.open_table(uri).scan().to_table()["id"].to_pylist()) == [1, 2, 3]
    mw.open_table(uri).compact()
    assert lance.dataset(uri).count_rows() == 3
