"""Tables with indexes, for the tests of what memtables and SSTables mirror."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import lance_memwal as mw
from lance_memwal.clock import SYSTEM_CLOCK

DIM = 8
SETTINGS: dict[str, Any] = {"fsync": False, "stats_log_interval_ms": None}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.list_(pa.float32(), DIM)),
        pa.field("t", pa.string()),
        pa.field("n", pa.int64()),
        pa.field("x", pa.float64()),
    ]
)


def rows(keys: Sequence[int], *, vectors: bool = True) -> pa.Table:
    """Rows of these keys: the vector of a key is (key, 0, 0, ...), its text names it."""
    values = np.zeros((len(keys), DIM), np.float32)
    values[:, 0] = keys
    mask = pa.array([not vectors] * len(keys), pa.bool_())
    v = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), DIM, mask=mask)
    n = pa.array([None if key % 10 == 9 else key % 10 for key in keys], pa.int64())
    x = pa.array([key / 4 for key in keys], pa.float64())
    return pa.table([pa.array(keys, pa.int64()), v, pa.array([f"row number{k}" for k in keys]), n, x], schema=SCHEMA)


def index_all(dataset: lance.LanceDataset, metric: str = "l2", **text: Any) -> None:
    dataset.create_scalar_index("n", "BTREE", name="n_btree")
    dataset.create_scalar_index("t", "INVERTED", name="t_fts", **text)
    dataset.create_index("v", "IVF_FLAT", name="v_ann", num_partitions=2, metric=metric)


def table_with_indexes(path: Path, maintained: Any = "all", metric: str = "l2", **text: Any) -> mw.Table:
    """A base table of a hundred rows with three indexes, enabled."""
    created = mw.create_table(str(path / "t"), rows(range(100)), primary_key="id")
    schema = created.dataset.schema
    lance.write_dataset(rows(range(100)).cast(schema), str(path / "e"))
    index_all(lance.dataset(str(path / "e")), metric, **text)
    return mw.enable(str(path / "e"), maintained_indexes=maintained)


def flush(writer: mw.ShardWriter) -> None:
    writer.force_seal_active()
    writer.wait_for_flush_drain(100)


def sstables(table: mw.Table, writer: mw.ShardWriter) -> list[lance.LanceDataset]:
    root = f"{table.dataset.uri}/_mem_wal/{writer.shard_id}"
    return [lance.dataset(f"{root}/{sstable.path}") for sstable in writer.manifest().sstables]


def index_names(dataset: lance.LanceDataset) -> list[str]:
    return sorted(index.name for index in dataset.describe_indices())


def memtable_indexes(writer: mw.ShardWriter) -> list[str]:
    return sorted(index.name for index in writer.active_memtable_ref().indexes)


def wait_until(done: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether `done` became true in time."""
    deadline = SYSTEM_CLOCK.monotonic() + seconds
    while not done():
        if SYSTEM_CLOCK.monotonic() > deadline:
            return False
        SYSTEM_CLOCK.sleep(0.005)
    return True
