"""No rows and no keys, in every form: a no-op for the table, refused by the writer of one shard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest

import lance_memwal as mw

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
NO_ROWS: dict[str, Callable[[], Any]] = {
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "columns": lambda: {"id": [], "v": []},
    "table": SCHEMA.empty_table,
    "table without columns": lambda: pa.table({}),
    "tables": lambda: [SCHEMA.empty_table()],
    "batch": lambda: pa.RecordBatch.from_pylist([], schema=SCHEMA),
    "batches": lambda: [pa.RecordBatch.from_pylist([], schema=SCHEMA)],
    "reader": lambda: pa.RecordBatchReader.from_batches(SCHEMA, []),
    "pandas": pd.DataFrame,
    "pandas with columns": lambda: pd.DataFrame({"id": [], "v": []}),
    "polars": pl.DataFrame,
    "polars with columns": lambda: pl.DataFrame({"id": [], "v": []}),
}
NO_KEYS: dict[str, Callable[[], Any]] = {
    **NO_ROWS,
    "set": set,
    "range": lambda: range(0),
    "array": lambda: pa.array([], pa.int64()),
    "chunked": lambda: pa.chunked_array([], pa.int64()),
    "nulls": lambda: pa.array([]),
    "numpy": lambda: np.array([]),
    "series": lambda: pd.Series([], dtype=object),
}
SHARDINGS = [mw.Unsharded(), mw.Bucket("id", 2)]


@pytest.mark.repro("writer-17")
@pytest.mark.parametrize("sharding", SHARDINGS, ids=repr)
def test_no_rows_and_no_keys_change_nothing_at_the_table(tmp_path: Path, sharding: Any) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=sharding)
    with table.writer() as writer:
        for make in NO_ROWS.values():
            assert writer.put(make()) == {}
            assert writer.put(make(), txn=("app", 1)) == {}
            assert writer.put_nowait(make()).durable
        for make in NO_KEYS.values():
            assert writer.delete(make()) == {}
            for lookup in (table.lookup, writer.lookup):
                assert lookup(make()).to_pydict() == {"id": [], "v": []}
                assert lookup(make(), ["v"]).schema.names == ["v"]
    assert table.shards() == []


@pytest.mark.parametrize("form", NO_ROWS)
def test_the_writer_of_a_shard_refuses_no_rows(tmp_path: Path, form: str) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    with table.shard_writer() as writer:
        for put in (writer.put, writer.put_nowait):
            with pytest.raises(mw.InvalidInputError, match=r"empty batch list|Batch 0 is empty"):
                put(NO_ROWS[form]())
        assert writer.stats().put_count == 0


def test_a_row_or_a_key_without_columns_is_refused_and_not_dropped(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), pa.schema([("id", pa.int64())]), primary_key="id")
    with table.writer() as writer:
        for call in (lambda: writer.put([{}]), lambda: writer.delete([{}]), lambda: table.get({})):
            with pytest.raises(mw.InvalidInputError, match="empty"):
                call()
