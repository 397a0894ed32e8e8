"""What it costs to turn 50,000 buffered rows into a generation.

The peer's side is `close()` of a writer whose rows are all in its memtable and in its log: it offers no other way to
flush. That call also commits the shard manifest (two small files), ours does not; both sides write without fsync.
Rows come as batches of 1,000 on both sides.
"""

from __future__ import annotations

import time
from functools import partial

import lance
import numpy as np
import pyarrow as pa

from benchmarks.harness import Bench, Case, Sample
from lance_memwal.lance.base import BaseTable
from lance_memwal.sstable.write import write_sstable
from lance_memwal.store.location import resolve

SHARD = "7a2f3c64-55a1-4d0e-9c44-0f6b2f9d1c10"
BATCH_ROWS = 1_000
_KEY = {"lance-schema:unenforced-primary-key": "true"}
_LOG_INTERVAL_SECONDS = 0.1


def cases() -> list[Case]:
    """The cases of this module."""
    kinds = {"integer": ["number"], "string": ["text"], "composite": ["number", "text"]}
    return [
        Case(f"flush 50,000 rows, {kind} key", partial(ours, key), partial(peer, key), goal=1.0, unit="ms", rounds=9)
        for kind, key in kinds.items()
    ]


def rows_of(bench: Bench, key: list[str]) -> pa.Table:
    """Rows in random key order: number, text, value, name."""
    count = bench.scale(50_000, 5_000)
    numbers = np.random.default_rng(7).permutation(count)
    columns = {
        "number": pa.array(numbers),
        "text": pa.array([f"key-{number}" for number in numbers.tolist()]),
        "value": pa.array(np.arange(count, dtype=np.float32)),
        "name": pa.array([f"event number {i}" for i in range(count)]),
    }
    names = [*key, "value", "name"]
    schema = pa.schema([_field(name, columns[name].type, name in key) for name in names])
    return pa.table({name: columns[name] for name in names}, schema=schema)


def _field(name: str, kind: pa.DataType, is_key: bool) -> pa.Field:
    return pa.field(name, kind, nullable=not is_key, metadata=_KEY if is_key else None)


def ours(key: list[str], bench: Bench) -> Sample:
    """Write the generation."""
    rows = rows_of(bench, key)
    uri = f"{bench.directory}/table"
    lance.write_dataset(rows.slice(0, 10), uri).initialize_mem_wal()
    location = resolve(uri)
    base = BaseTable.open(location)
    assert base is not None
    live = pa.field("_tombstone", pa.bool_(), nullable=False)
    batches = [
        batch.append_column(live, pa.array(np.zeros(len(batch), np.bool_)))
        for batch in rows.to_batches(max_chunksize=BATCH_ROWS)
    ]
    schema = base.columns
    start = time.perf_counter()
    write_sstable(location, SHARD, 1, batches, schema=schema, storage_version=base.data_storage_version, fsync=False)
    return Sample((time.perf_counter() - start) * 1e3)


def peer(key: list[str], bench: Bench) -> Sample:
    """Close the writer."""
    rows = rows_of(bench, key)
    uri = f"{bench.directory}/table"
    lance.write_dataset(rows.slice(0, 10), uri).initialize_mem_wal()
    writer = lance.dataset(uri).mem_wal_writer(SHARD, durable_write=False)
    for start_row in range(0, rows.num_rows, BATCH_ROWS):
        writer.put(rows.slice(start_row, BATCH_ROWS))
    time.sleep(3 * _LOG_INTERVAL_SECONDS)  # its log has all rows by then; the API tells us of no event to wait for
    start = time.perf_counter()
    writer.close()
    return Sample((time.perf_counter() - start) * 1e3)
