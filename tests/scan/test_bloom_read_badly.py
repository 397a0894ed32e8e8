"""A bloom filter that came back short is damage with a place, and only for the read that met it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.shards import newest_manifests
from lance_memwal.sstable.rolling import roll_up
from lance_memwal.store.location import resolve

_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    table = mw.create_table(str(tmp_path / "t"), _SCHEMA, primary_key="id")
    with table.writer(compaction=None) as writer:
        for key in range(8):
            writer.put([{"id": key, "value": key}])
            writer.flush()
    return table


@pytest.fixture
def cut(table: mw.Table, tmp_path: Path) -> tuple[Path, bytes]:
    """A filter of which half is there, and all of it."""
    path = min(tmp_path.glob("t/_mem_wal/*/*_gen_1/bloom_filter.bin"))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path, whole


def test_a_lookup_after_a_short_read_of_a_filter_reads_it_again(table: mw.Table, cut: tuple[Path, bytes]) -> None:
    path, whole = cut
    with pytest.raises(mw.CorruptDataError) as told:
        table.get(0)
    assert told.value.path is not None
    assert str(path).endswith(told.value.path)
    path.write_bytes(whole)
    assert table.get(0) == {"id": 0, "value": 0}


def test_a_roll_up_says_which_filter_is_damaged(tmp_path: Path, cut: tuple[Path, bytes]) -> None:
    location = resolve(str(tmp_path / "t"))
    (manifest,) = newest_manifests(location)
    with pytest.raises(mw.CorruptDataError) as told:
        roll_up(location, manifest, BaseTable.need(location).columns, few_generations=0)
    assert told.value.path is not None
    assert str(cut[0]).endswith(told.value.path)
