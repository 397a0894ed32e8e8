"""Reads of a table whose base versions Lance cleans up: they start over, or say that they cannot."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("text", pa.string()),
        ("vector", pa.list_(pa.float32(), 4)),
    ]
)
ROWS = 400


def _rows(numbers: Any, text: str) -> pa.Table:
    ids = list(numbers)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.tile(np.float32(ids), (4, 1)).T.ravel()), 4)
    return pa.table([ids, [f"{text} {number}" for number in ids], vectors], schema=SCHEMA)


def _table(place: Path) -> mw.Table:
    table = mw.create_table(
        str(place), SCHEMA, primary_key="id", sharding=mw.Unsharded(), writer_defaults={"fsync": False}
    )
    for part in range(4):
        rows = _rows(range(part * 100, part * 100 + 100), "old")
        lance.write_dataset(rows.cast(table.schema), table.uri, mode="append")
    return table


def _clean_up(table: mw.Table) -> None:
    """Every file of the base table is written anew, and what was there before is removed at once."""
    lance.dataset(table.uri).delete("id = 1")
    lance.dataset(table.uri).optimize.compact_files(materialize_deletions_threshold=0.0)
    lance.dataset(table.uri).cleanup_old_versions(older_than=dt.timedelta(0), delete_unverified=True)


@pytest.mark.repro("reads-11")
@pytest.mark.parametrize(
    "read",
    [
        lambda scan: scan.to_table().num_rows,
        lambda scan: scan.count_rows(),
        lambda scan: sum(batch.num_rows for batch in scan.to_batches()),
        lambda scan: scan.to_reader().read_all().num_rows,
    ],
    ids=["to_table", "count_rows", "to_batches", "to_reader"],
)
@pytest.mark.parametrize("condition", [None, "text <> 'nothing'"])
def test_a_scan_whose_version_was_cleaned_up_reads_a_fresh_one(
    tmp_path: Path, read: Callable[[Any], int], condition: str | None
) -> None:
    table = _table(tmp_path / "t")
    with table.writer(compaction=None) as writer:
        held = table.scan(filter=condition)
        writer.put(_rows([1000, 1001], "new"))
        _clean_up(table)
        assert read(held) in (ROWS, ROWS + 1)  # what it captured, if Lance still has it in memory, or what is there now
        assert read(table.scan(filter=condition)) == ROWS + 1


def test_a_reader_that_has_handed_out_rows_says_that_its_version_is_gone(tmp_path: Path) -> None:
    table = _table(tmp_path / "t")
    wide = _rows(range(5000, 45000), "x" * 400)
    lance.write_dataset(wide.cast(table.schema), table.uri, mode="append", max_rows_per_file=2000)
    with table.writer(compaction=None) as writer:
        writer.put(_rows([1000], "new"))
        batches = table.scan().to_batches()
        seen = next(batches).num_rows  # from memory
        _clean_up(table)
        assert seen == 1
        with pytest.raises(mw.CollectedError, match="read again"):
            list(batches)
        assert table.count_rows() == ROWS + 40000


@pytest.mark.repro("reads-11")
@pytest.mark.parametrize("known", [False, True])
def test_lookups_and_searches_start_over(tmp_path: Path, known: bool) -> None:
    """With `known` the process has asked before, so that keys and texts of an earlier version are in memory."""
    table = _table(tmp_path / "t")
    ask: list[Callable[[], int]] = [
        lambda: table.lookup([2, 150, 399, 1000]).num_rows,
        lambda: table.search(vector=[150.0] * 4, k=3).num_rows,
        lambda: table.search(text="old", column="text", k=3).num_rows,
        lambda: table.count_rows("id >= 0"),
    ]
    for question in ask:
        if known:
            assert question()
        _clean_up(table)
        assert question() == (ROWS - 1 if question is ask[-1] else 3)


def test_a_file_of_the_newest_version_that_is_missing_is_damage(tmp_path: Path) -> None:
    table = _table(tmp_path / "t")
    shutil.rmtree(Path(table.uri, "data"))
    with pytest.raises(mw.CorruptDataError, match="newest version"):
        mw.open_table(table.uri).scan(filter="text = 'old 5'").to_table()
