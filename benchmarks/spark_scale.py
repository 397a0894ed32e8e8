"""What Spark with many shards and executors asks of the store: `python -m benchmarks.spark_scale`.

Owns the simulation. There is no Spark in it: the driver's steps and tasks are called one after the other, as Spark calls them, on
a table in memory, and the calls of our store are counted. A process that has not read the table yet is what every task of the
first read meets, so each kind of task is measured once, cold, and multiplied. What Lance reads of data files is not counted.
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections.abc import Callable
from typing import Any

import lance
import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

import lance_memwal as mw
from lance_memwal.process.cache import CACHE
from lance_memwal.spark.data_source import MemWalSource
from lance_memwal.store.location import resolve

_URI = "memory://scale/table"
_SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
_FRAME = StructType([StructField("id", LongType(), False), StructField("text", StringType())])
_READS = frozenset({"get", "get_range", "get_tail"})
_BASE_ROWS_PER_TASK = 1000


class Meter:
    """Prints what a step asked of the store."""

    def __init__(self) -> None:
        self._metrics = resolve(_URI).metrics
        print("| step | requests | of them LIST | of them PUT | KB read | driver seconds |\n|---|---|---|---|---|---|")

    def step(self, name: str, work: Callable[[], Any]) -> Any:
        """What `work` returns; its cost is printed."""
        self._metrics.reset()
        began = time.perf_counter()
        found = work()
        seconds = time.perf_counter() - began
        calls = self._metrics.snapshot()
        total = sum(call.count for call in calls.values())
        lists = sum(calls[kind].count for kind in ("list", "list_names") if kind in calls)
        puts = sum(calls[kind].count for kind in ("put", "put_new") if kind in calls)
        size = sum(call.size_bytes for kind, call in calls.items() if kind in _READS) / 1000
        cells = [name, *(f"{number:,.0f}" for number in (total, lists, puts, size)), f"{seconds:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
        return found


def micro_batch(number: int, rows: int, tasks: int) -> None:
    """One trigger of a stream: tasks that route rows, and the commit."""
    source = MemWalSource({"path": _URI, "maintenance": "off"})
    writer = source.streamWriter(_FRAME, False)
    ids = range(number * rows, (number + 1) * rows)
    share = -(-rows // tasks)
    messages = []
    for start in range(0, rows, share):
        some = list(ids[start : start + share])
        batch = pa.RecordBatch.from_pydict({"id": some, "text": ["fresh"] * len(some)}, schema=_SCHEMA)
        message = pickle.loads(pickle.dumps(writer.write(iter([batch]))))
        message.query_id = "scale"  # which a task of Spark knows
        messages.append(message)
    source.streamWriter(_FRAME, False).commit(messages, number)


def make_table(shards: int, executors: int) -> None:
    """A base table with a fragment for each executor."""
    rows = executors * _BASE_ROWS_PER_TASK
    base = pa.table({"id": list(range(rows)), "text": ["base"] * rows}, schema=_SCHEMA)
    fast = {"fsync": False}
    mw.create_table(_URI, _SCHEMA, primary_key="id", sharding=mw.Bucket("id", shards), writer_defaults=fast)
    lance.write_dataset(base, resolve(_URI).root_path, mode="append", max_rows_per_file=_BASE_ROWS_PER_TASK)


def measure(shards: int, executors: int, rows: int) -> None:
    """All steps of some micro-batches and of one read."""
    make_table(shards, executors)
    meter = Meter()
    meter.step(f"first micro-batch, {rows:,} rows: every shard is joined", lambda: micro_batch(0, rows, executors))
    meter.step("next micro-batch", lambda: micro_batch(1, rows, executors))
    meter.step("a micro-batch of 100 rows", lambda: micro_batch(1000, 100, 1))
    source = MemWalSource({"path": _URI, "rowsPerPartition": str(_BASE_ROWS_PER_TASK)})
    CACHE.clear()
    schema = meter.step("scan: the snapshot", source.schema)
    reader: Any = meter.step("scan: the plan, with the keys of all tails", lambda: source.reader(schema))
    parts = reader.partitions()
    base_parts = [part for part in parts if part.value.fragments]
    shard_parts = [part for part in parts if part.value.shards]

    def read(some: list[Any]) -> int:
        CACHE.clear()  # as a process that has just started
        sent = pickle.loads(pickle.dumps(reader))
        return sum(batch.num_rows for part in some for batch in sent.read(part))

    meter.step(f"scan: one of {len(base_parts)} base tasks", lambda: read(base_parts[:1]))
    meter.step(f"scan: one of {len(shard_parts)} shard tasks", lambda: read(shard_parts[:1]))
    meter.step("scan: all shard tasks", lambda: read(shard_parts))
    sent, largest = len(pickle.dumps(reader)), max(len(pickle.dumps(part)) for part in parts)
    print(f"\nbroadcast: {sent / 1000:,.0f} KB; largest partition: {largest / 1000:,.1f} KB; tasks: {len(parts)}")


def main() -> None:
    """Print one table of costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--executors", type=int, default=100)
    parser.add_argument("--rows", type=int, default=100_000)
    given = parser.parse_args()
    measure(given.shards, given.executors, given.rows)


if __name__ == "__main__":
    main()
