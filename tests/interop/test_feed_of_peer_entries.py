"""The feed over logs that pylance writes, too: its entries have no footer, and its replay skips our marks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import lance
import pyarrow as pa

import lance_memwal as mw
from tests.kit.feeds import ops_of
from tests.kit.tables import create, keyed, rows_of

SCHEMA = keyed(pa.field("v", pa.int64()))
SHARD = mw.shard_id_for(mw.Unsharded())


def rows(ids: list[int], v: int) -> pa.Table:
    return pa.table({"id": ids, "v": [v] * len(ids)}, SCHEMA)


def test_changes_of_both_writers_are_one_feed_with_times_and_images(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = create(uri, SCHEMA)
    began = datetime.now(UTC) - timedelta(seconds=1)
    with table.shard_writer(max_entry_bytes=4096, fsync=False) as writer:
        writer.put(rows([1, 2], 1))
        writer.put(rows(list(range(1000, 2000)), 1))  # a generation of its own, with a mark
    peer = lance.dataset(uri).mem_wal_writer(SHARD)
    peer.put(rows([2, 3], 2))
    peer.close()
    with table.shard_writer(fsync=False) as writer:
        writer.delete([3])
    found = [row for batch in table.changes(until="now") for row in batch.to_pylist()]
    small = [(row["_op"], row["id"], row["v"]) for row in found if row["id"] < 1000]
    assert small == [("u", 1, 1), ("u", 2, 1), ("u", 2, 2), ("u", 3, 2), ("d", 3, None)]
    assert len(found) == 1005
    assert all(began <= row["_time"] <= datetime.now(UTC) + timedelta(seconds=1) for row in found)
    images = [op for op in ops_of(table.changes(until="now", before=True), "id", "v") if op[1] < 1000]
    assert images == [
        ("insert", 1, 1),
        ("insert", 2, 1),
        ("update_before", 2, 1),
        ("update_after", 2, 2),
        ("insert", 3, 2),
        ("delete", 3, 2),
    ]
    assert len(rows_of(table.scan())) == 1002
