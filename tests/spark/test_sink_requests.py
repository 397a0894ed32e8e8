"""What a micro-batch costs on S3, counted by the service: the driver's part of a stream, without a JVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql import types as st

import lance_memwal as mw
from lance_memwal.spark.data_source import MemWalSource

FRAME = st.StructType([st.StructField("id", st.LongType(), False), st.StructField("n", st.IntegerType())])
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int32())])
BUDGET = 6
Requests = Callable[[str], Counter[tuple[str, str]]]


class Stream:
    """Micro-batches of 200 rows, as Spark calls for them: planned anew each time, in one process."""

    def __init__(self, uri: str, storage: dict[str, str], **options: str) -> None:
        self._options = {"path": uri, **options, **{f"storage.{name}": value for name, value in storage.items()}}
        self._number = 0

    def write(self) -> None:
        sink = MemWalSource(self._options).streamWriter(FRAME, overwrite=False)
        ids = pa.array(range(self._number * 200, self._number * 200 + 200), pa.int64())
        rows = pa.record_batch({"id": ids, "n": ids.cast(pa.int32())})
        messages = [sink.write(iter([half])) for half in (rows.slice(0, 100), rows.slice(100))]
        sink.commit([replace(message, query_id="query") for message in messages], self._number)
        self._number += 1


def by_kind(after: Counter[tuple[str, str]], before: Counter[tuple[str, str]]) -> Counter[str]:
    """Requests by method and the directory of the table that they went to."""
    found: Counter[str] = Counter()
    for (method, below), number in (after - before).items():
        parts = below.split("/")
        found[f"{method} {'/'.join(part for part in parts[:-1] if '-' not in part) or parts[-1]}"] += number
    return found


@pytest.mark.parametrize("shards", [2, 5])
def test_a_micro_batch_costs_at_most_six_requests_per_shard(
    s3_table: tuple[str, dict[str, str]], s3_requests: Requests, shards: int
) -> None:
    uri, storage = s3_table
    table = mw.create_table(uri, SCHEMA, primary_key="id", sharding=mw.Bucket("id", shards), storage_options=storage)
    stream = Stream(uri, storage, upkeep="off")
    for _ in range(2):
        stream.write()
    before, batches = s3_requests(uri), 3
    for _ in range(batches):
        stream.write()
    kinds = by_kind(s3_requests(uri), before)
    assert sum(kinds.values()) <= BUDGET * shards * batches, kinds
    assert kinds["PUT _mem_wal/wal"] == shards * batches
    assert kinds["LIST _versions"] == 2 * batches, (
        "one look at the table when a batch is planned, one when it is committed"
    )
    assert kinds["LIST _mem_wal/wal"] == kinds["LIST _mem_wal/manifest"] == 0
    assert table.count_rows() == 1000
