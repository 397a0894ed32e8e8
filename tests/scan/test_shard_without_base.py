"""A shard is read although its base table is not there yet: SSTables, frozen and active memtables."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.store.location import resolve

KEY = {b"lance-schema:unenforced-primary-key": b"true"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=KEY), ("v", pa.string())])
SHARD = "11111111-2222-4333-8444-555555555555"


def rows(ids: range, tag: str) -> list[dict[str, object]]:
    return [{"id": i, "v": f"{tag}{i}"} for i in ids]


def test_all_tiers_of_a_shard_without_a_base_table_are_read(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    expected = (
        {i: f"a{i}" for i in range(10)} | {i: f"b{i}" for i in range(5, 15)} | {i: f"c{i}" for i in range(12, 18)}
    )
    del expected[0], expected[6]
    with mw.ShardWriter.open(uri, SCHEMA, shard_id=SHARD, fsync=False) as writer:
        for tag, ids in (("a", range(10)), ("b", range(5, 15))):
            writer.put(rows(ids, tag))
            writer.force_seal_active()
            writer.wait_for_flush_drain()
        writer.put(rows(range(12, 18), "c"))
        writer.delete([0, 6, 99])
        found = writer.lsm_scan().to_table()
        assert dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True)) == expected
        assert writer.lsm_scan(["id"], "v like 'b%'", limit=3, order_by=["-id"]).to_table()["id"].to_pylist() == [
            11,
            10,
            9,
        ]
        assert writer.lsm_scan(with_generation=True).to_table()["_memtable_gen"].to_pylist().count(0) == 0
        assert "base table" not in writer.lsm_scan().explain()
        assert writer.lsm_scan().count_rows() == len(expected)
        assert {i: (writer.get(i) or {}).get("v") for i in range(20)} == {i: expected.get(i) for i in range(20)}
        assert writer.lookup(list(range(20))).num_rows == len(expected)
        dead = writer.lookup([0, 1, 6], with_tombstones=True)
        assert {row["id"]: row["_tombstone"] for row in dead.to_pylist()} == {0: True, 1: False, 6: True}
    with mw.ShardWriter.open(uri, SCHEMA, shard_id=SHARD, fsync=False) as writer:
        assert writer.lsm_scan().count_rows() == len(expected)


def test_once_the_base_table_is_there_its_rows_count(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    with mw.ShardWriter.open(uri, SCHEMA, shard_id=SHARD, fsync=False) as writer:
        writer.put(rows(range(3), "fresh"))
        assert writer.get(7) is None
    base = pa.Table.from_pylist(rows(range(2, 8), "base"), SCHEMA)
    lance.write_dataset(base, uri)
    table = mw.enable(uri, sharding=mw.Manual(), allow_keys_across_shards=True, adopt_shards=True)
    assert table.get(7) == {"id": 7, "v": "base7"}
    assert table.get(2) == {"id": 2, "v": "fresh2"}
    with pytest.raises(mw.InvalidInputError):
        mw.open_table(str(tmp_path / "none"))


def test_a_get_from_memory_opens_nothing(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    with mw.ShardWriter.open(uri, SCHEMA, shard_id=SHARD, fsync=False) as writer:
        writer.put(rows(range(3), "a"))
        writer.delete([1])
        assert writer.get(2) == {"id": 2, "v": "a2"}
        assert writer.get(2, ["v"]) == {"v": "a2"}
        assert writer.get(1) is None
        with pytest.raises(mw.InvalidInputError, match="nonsense"):
            writer.get(2, ["nonsense"])
        metrics = resolve(uri).metrics
        metrics.reset()
        writer.get(2)
        calls = {kind: stats.count for kind, stats in metrics.snapshot().items()}
        assert calls == {"list_names": 2} | calls, (
            "whether there is a base table by now, and which manifest is the newest"
        )
        assert sum(calls.values()) <= 4
