"""The table that soaks: its columns, its indexes, and its rows.

Owns `make_table`, `rows_of` and `numbers_of`. A row carries the number of the write that made it, and its own key once more in
its text, so that a mixed-up row shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import lance_memwal as mw

__all__ = ["DIM", "make_table", "numbers_of", "rows_of"]

DIM = 16
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("t", pa.string()),
        pa.field("v", pa.list_(pa.float32(), DIM)),
    ]
)
_SETTINGS = {"fsync": False, "max_memtable_rows": 1_000, "stats_log_interval_ms": None}


def make_table(place: Path, rows: int, shards: int) -> mw.Table:
    """The table before the load: `rows` rows of write number 0, a BTree, a text and a vector index."""
    dataset = lance.write_dataset(rows_of(range(rows), 0), str(place))
    dataset.create_scalar_index("n", "BTREE", name="by_n")
    dataset.create_scalar_index("t", "INVERTED", name="by_text")
    dataset.create_index("v", "IVF_FLAT", name="by_vector", num_partitions=8)
    return mw.enable(str(place), primary_key="id", sharding=mw.Bucket("id", shards), writer_defaults=_SETTINGS)


def rows_of(keys: Any, number: int) -> pa.Table:
    """Whole rows of these keys, made by write `number`."""
    ids = np.fromiter(keys, np.int64)
    vectors = np.random.default_rng([number, len(ids)]).normal(size=(len(ids), DIM)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
    texts = [f"key{key} word{(key + number) % 500} turn{number % 7}" for key in ids.tolist()]
    return pa.table([pa.array(ids), pa.array(np.full(len(ids), number)), pa.array(texts), column], schema=SCHEMA)


def numbers_of(found: pa.Table) -> dict[int, int]:
    """The write of every row, by key; an error if a row is mixed up, or a key is there twice."""
    rows = found.select(["id", "n", "t"]).to_pylist()
    mixed = [row for row in rows if not row["t"].startswith(f"key{row['id']} ")]
    assert not mixed, f"rows with the text of another key: {mixed[:3]}"
    seen = {row["id"]: row["n"] for row in rows}
    assert len(seen) == len(rows), "a key is there twice"
    return seen
