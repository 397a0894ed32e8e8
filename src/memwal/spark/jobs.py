"""Maintenance as Spark jobs: flush, compact and collect where the executors are.

Owns `flush`, `compact` and `gc`. Invariants:

1. The work is the engine's own (`Table.flush`, `Table.compact`, `Table.gc`): a job adds where it runs, nothing else.
2. Flushing is one task per shard. Compaction commits once for all shards, so it is one task; so is collection.
3. Tasks answer with plain values; the report is put together by the caller, also over Connect.

Called by: users, and by schedulers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from memwal.reports import (
    CollectedObject,
    CompactionReport,
    FlushedShard,
    FlushReport,
    GcReport,
    Problem,
    ShardCompaction,
)
from memwal.table import open_table

__all__ = ["compact", "flush", "gc", "run_tasks"]


def run_tasks(spark: Any, arguments: Sequence[str], work: Callable[[str], str]) -> list[str]:
    """`work(argument)` of every argument, each in a task of its own; the answers in the order of the arguments."""
    if not arguments:
        return []

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number, argument in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                answer = {"number": [number], "answer": [work(argument)]}
                yield pa.RecordBatch.from_pydict(answer)

    frame = spark.createDataFrame(list(enumerate(arguments)), "number long, argument string")
    spread = frame.repartitionById(len(arguments), frame["number"].cast("int"))
    rows = spread.mapInArrow(run, "number long, answer string").collect()
    return [row["answer"] for row in sorted(rows, key=lambda row: row["number"])]


def flush(
    spark: Any,
    uri: str,
    *,
    idle_seconds: float = 60,
    force: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> FlushReport:
    """Turn the log tails of shards that nobody writes any more into SSTables, a task per shard; see `Table.flush`."""
    options = dict(storage_options or {})
    shards = [info.shard_id for info in open_table(uri, storage_options=options).shards() if info.wal_tail]

    def work(shard_id: str) -> str:
        table = open_table(uri, storage_options=options)
        return json.dumps(asdict(table.flush(shards=[shard_id], idle_seconds=idle_seconds, force=force)))

    found = [json.loads(answer) for answer in run_tasks(spark, shards, work)]
    results = [
        FlushedShard(**{**item, "generations": tuple(item["generations"])})
        for report in found
        for item in report["shards"]
    ]
    return FlushReport(tuple(results))


def compact(
    spark: Any,
    uri: str,
    *,
    max_generations: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> CompactionReport:
    """Fold published generations into the base table, on an executor; see `Table.compact`."""
    options = dict(storage_options or {})

    def work(_: str) -> str:
        table = open_table(uri, storage_options=options)
        return json.dumps(asdict(table.compact(max_generations=max_generations)))

    (answer,) = run_tasks(spark, ["compact"], work)
    found = json.loads(answer)
    return CompactionReport(**{**found, "shards": tuple(ShardCompaction(**item) for item in found["shards"])})


def gc(
    spark: Any,
    uri: str,
    *,
    dry_run: bool = False,
    grace_seconds: float = 3600,
    storage_options: Mapping[str, str] | None = None,
) -> GcReport:
    """Delete what nobody needs any more, on an executor; see `Table.gc`."""
    options = dict(storage_options or {})

    def work(_: str) -> str:
        table = open_table(uri, storage_options=options)
        return json.dumps(asdict(table.gc(dry_run=dry_run, grace_seconds=grace_seconds)))

    (answer,) = run_tasks(spark, ["gc"], work)
    found = json.loads(answer)
    objects = tuple(CollectedObject(**item) for item in found["objects"])
    refused = {shard: [Problem(**item) for item in items] for shard, items in found["refused"].items()}
    return GcReport(**{**found, "objects": objects, "refused": refused})
