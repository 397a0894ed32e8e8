"""One key of a memtable: found without arrays, and the same row that arrays find."""

from __future__ import annotations

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

import lance_memwal as mw
from lance_memwal.memtable.key_index import KeyIndex
from lance_memwal.rows.fit import Fitted
from lance_memwal.rows.schema import TableSchema

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"}),
        pa.field("v", pa.string()),
    ]
)
SHARD = "7a2f3c64-55a1-4d0e-9c44-0f6b2f9d1c10"


def rows(ids: list[int], v: str) -> pa.RecordBatch:
    return pa.record_batch({"id": ids, "v": [v] * len(ids)}, schema=COLUMNS)


def made(path: Path) -> str:
    lance.write_dataset(COLUMNS.empty_table(), path).initialize_mem_wal()
    return str(path)


def test_one_key_is_found_where_many_are_for_every_capture() -> None:
    index, keys = KeyIndex(), np.random.default_rng(3).integers(0, 20, 200)
    for start in range(0, 200, 40):
        index.extend([pa.array(keys[start : start + 40])])
    for captured in range(201):
        many = index.find(list(range(21)), captured)
        assert [index.find_one(key, captured) for key in range(21)] == many.tolist()


def test_a_get_of_a_shard_writer_sees_the_newest_row_in_every_tier(tmp_path: Path) -> None:
    with mw.ShardWriter.open(made(tmp_path / "t"), shard_id=SHARD, fsync=False) as writer:
        writer.put(rows([1, 2, 3], "flushed"))
        writer.force_seal_active()
        writer.wait_for_flush_drain()
        writer.put(rows([2, 3], "kept"))
        writer.delete([3])
        assert writer.get(1) == {"id": 1, "v": "flushed"}
        assert writer.get(2) == {"id": 2, "v": "kept"}
        assert writer.get(2, ["v"]) == {"v": "kept"}
        assert writer.get(3) is None
        assert writer.get(4) is None


def test_gets_between_puts_never_see_columns_of_an_older_state(tmp_path: Path) -> None:
    with mw.ShardWriter.open(made(tmp_path / "t"), shard_id=SHARD, fsync=False) as writer:
        for k in range(50):
            writer.put(rows([k, 0], str(k)))
            assert writer.get(0) == {"id": 0, "v": str(k)}
            assert writer.get(k // 2 + 1 if k > 2 else 0) is not None


def test_rows_that_were_fitted_to_other_columns_are_fitted_again(tmp_path: Path) -> None:
    uri = made(tmp_path / "t")
    with mw.ShardWriter.open(uri, shard_id=SHARD, fsync=False) as writer:
        before = TableSchema.from_arrow(COLUMNS)
        lance.dataset(uri).add_columns({"more": "cast(null as int)"})
        writer.evolve_schema()
        writer.put(Fitted([rows([1], "a")], before))
        assert writer.get(1) == {"id": 1, "v": "a", "more": None}
