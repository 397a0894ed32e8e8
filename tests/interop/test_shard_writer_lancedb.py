"""LanceDB 0.40 (Lance 13) and our writer take turns on one shard, each after a clean close of the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest

from lance_memwal import ShardWriter, Unsharded, shard_id_for

KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=KEY), ("maker", pa.string())])
SHARD = shard_id_for(Unsharded(), None)


def rows(maker: str, *numbers: int) -> pa.Table:
    return pa.Table.from_pylist([{"id": number, "maker": maker} for number in numbers], schema=SCHEMA)


def as_dict(table: pa.Table) -> dict[int, str]:
    found = dict(zip(table["id"].to_pylist(), table["maker"].to_pylist(), strict=True))
    assert len(found) == table.num_rows, "a key is there twice"
    return found


def upsert(table: Any, data: pa.Table) -> None:
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(data)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "events.lance")
    lance.write_dataset(rows("base", 0, 1, 2, 3), uri).initialize_mem_wal(unsharded=True)
    return uri


def test_lancedb_reads_and_goes_on_with_what_we_closed_and_we_with_what_it_closed(uri: str, tmp_path: Path) -> None:
    expected = dict.fromkeys((1, 2), "base")
    with ShardWriter.open(uri, shard_id=SHARD, fsync=False, max_memtable_rows=3) as ours:
        ours.put(rows("ours", 3, 4, 5))
        ours.delete([0, 5])
        ours.put(rows("ours", 6))
    expected |= dict.fromkeys((3, 4, 6), "ours")

    table = lancedb.connect(str(tmp_path)).open_table("events")
    assert as_dict(table.search().use_lsm(True).to_arrow()) == expected
    upsert(table, rows("lancedb", 2, 6, 7))
    table.close_lsm_writers()
    expected |= dict.fromkeys((2, 6, 7), "lancedb")
    assert as_dict(table.search().use_lsm(True).to_arrow()) == expected

    with ShardWriter.open(uri, shard_id=SHARD, fsync=False) as again:
        assert as_dict(again.lsm_scan().to_table()) == expected
        again.delete([7])
        again.put(rows("ours", 2))
    del expected[7]
    expected[2] = "ours"
    reopened = lancedb.connect(str(tmp_path)).open_table("events")
    assert as_dict(reopened.search().use_lsm(True).to_arrow()) == expected


def test_we_replay_what_lancedb_left_in_the_log(uri: str, tmp_path: Path) -> None:
    table = lancedb.connect(str(tmp_path)).open_table("events")
    upsert(table, rows("lancedb", 3, 4))
    upsert(table, rows("lancedb", 4, 5))
    with ShardWriter.open(uri, shard_id=SHARD, fsync=False) as ours:
        expected = dict.fromkeys((0, 1, 2), "base") | dict.fromkeys((3, 4, 5), "lancedb")
        assert as_dict(ours.lsm_scan().to_table()) == expected
