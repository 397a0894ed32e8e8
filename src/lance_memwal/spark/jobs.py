"""Maintenance as Spark jobs: flush, compact and collect where the executors are.

Owns `flush`, `compact`, `gc` and `maintain`. Invariants:

1. The work is the engine's own (`Table.flush`, `Table.compact`, `Table.gc`, `Table.maintain`): a job adds where it runs,
   nothing else.
2. Flushing is one task per shard. Collection is one task, and so is the compaction of a small table: one merge is
   faster there than many tasks. That of a big one is a task per shard and per base fragment, and one commit.
3. Tasks answer with plain values; the report is put together by the caller, also over Connect.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import Any, Literal, get_args

import pyarrow as pa

from lance_memwal.compact.reports import CompactionReport, ShardCompaction
from lance_memwal.compact.run import DEFAULT_MEMORY_BYTES
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.epochs import IDLE_SECONDS
from lance_memwal.spark.distributed import distributed_compactor, is_big
from lance_memwal.spark.stages import Job
from lance_memwal.table import newest_base, open_table
from lance_memwal.upkeep.maintain import (
    DEFAULT_VERSIONS,
    IndexUpkeep,
    check_maintenance,
    claimable_after_seconds,
)
from lance_memwal.upkeep.reports import (
    CollectedObject,
    FlushedShard,
    FlushReport,
    GcReport,
    MaintenanceReport,
    Problem,
)
from lance_memwal.write.table_target import writer_config

DEFAULT_DISTRIBUTED_BYTES = 4 << 30
CompactionMode = Literal["auto", "single", "distributed"]


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
    idle_seconds: float = IDLE_SECONDS,
    force: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> FlushReport:
    """Turn the log tails of shards that nobody writes any more into SSTables, a task per shard; see `Table.flush`."""
    options = dict(storage_options or {})
    shards = [info.shard_id for info in open_table(uri, storage_options=options).shards() if info.wal_tail]

    def work(shard_id: str) -> str:
        table = open_table(uri, storage_options=options)
        return json.dumps(asdict(table.flush(shards=[shard_id], idle_seconds=idle_seconds, force=force)))

    found = [_flush_report(json.loads(answer)) for answer in run_tasks(spark, shards, work)]
    return FlushReport(tuple(shard for report in found for shard in report.shards))


def compact(
    spark: Any,
    uri: str,
    *,
    mode: CompactionMode = "auto",
    distributed_bytes: int = DEFAULT_DISTRIBUTED_BYTES,
    max_generations: int | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    storage_options: Mapping[str, str] | None = None,
) -> CompactionReport:
    """Fold published generations into the base table, data and progress together, on the executors.

    `mode` is "single" (one task, one merge; see `Table.compact`), "distributed" (a task per shard and per base
    fragment) or "auto": distributed from `distributed_bytes` on, counted over waiting generations and the base table
    (without it, if its key is indexed). `memory_bytes` bounds the rows that one task keeps.
    """
    if mode not in get_args(CompactionMode):
        raise InvalidInputError(f"mode must be one of {', '.join(get_args(CompactionMode))}, not {mode!r}")
    options = dict(storage_options or {})
    location = open_table(uri, storage_options=options).location
    base = BaseTable.need(location)
    if mode == "distributed" and not base.takes_staged_commit:
        raise InvalidInputError(
            "the base table has a feature that a distributed commit does not keep (stable row ids, a branch, an old "
            "file format): use mode='single'"
        )
    if mode == "distributed" or (
        mode == "auto" and base.takes_staged_commit and is_big(location, base, distributed_bytes)
    ):
        fsync = writer_config(base, None, {}, ()).fsync
        job = Job(uri, memory_bytes, fsync, options)
        compactor = distributed_compactor(job, partial(run_tasks, spark), location, partial(BaseTable.need, location))
        return compactor.run(max_generations=max_generations)

    limits = {"max_generations": max_generations, "memory_bytes": memory_bytes}
    return _compaction_report(_in_one_task(spark, uri, options, "compact", limits))


def _in_one_task(
    spark: Any, uri: str, options: dict[str, str], verb: str, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """The report of one call of a `Table`, which an executor makes."""

    def work(_: str) -> str:
        return json.dumps(asdict(getattr(open_table(uri, storage_options=options), verb)(**arguments)))

    (answer,) = run_tasks(spark, [verb], work)
    report: dict[str, Any] = json.loads(answer)
    return report


def gc(
    spark: Any,
    uri: str,
    *,
    dry_run: bool = False,
    grace_seconds: float = 3600,
    storage_options: Mapping[str, str] | None = None,
) -> GcReport:
    """Delete what nobody needs any more, on an executor; see `Table.gc`."""
    arguments = {"dry_run": dry_run, "grace_seconds": grace_seconds}
    return _gc_report(_in_one_task(spark, uri, dict(storage_options or {}), "gc", arguments))


def maintain(
    spark: Any,
    uri: str,
    *,
    indexes: IndexUpkeep = "catch_up",
    base_files: bool = True,
    versions: timedelta | None = DEFAULT_VERSIONS,
    grace_seconds: float = 3600,
    storage_options: Mapping[str, str] | None = None,
) -> MaintenanceReport:
    """Keep a table healthy, on the executors; see `Table.maintain`.

    Logs are flushed by a task per shard, generations compacted as `compact` does it; the rest is one task.
    """
    check_maintenance(indexes, base_files, versions, grace_seconds)
    options = dict(storage_options or {})
    base = newest_base(open_table(uri, storage_options=options))
    flushed = flush(spark, uri, idle_seconds=claimable_after_seconds(base), storage_options=options)
    compaction = compact(spark, uri, storage_options=options)

    steps = {"indexes": indexes, "base_files": base_files, "versions": versions, "grace_seconds": grace_seconds}
    found = _in_one_task(spark, uri, options, "maintain", steps)
    garbage, named = _gc_report(found.pop("garbage")), tuple(found.pop("indexes"))
    return MaintenanceReport(
        **{**found, "flushed": flushed, "compaction": compaction, "garbage": garbage, "indexes": named}
    )


# ------------------------------------------------------------------------------------------------- what tasks answered


def _flush_report(found: Mapping[str, Any]) -> FlushReport:
    shards = [FlushedShard(**{**item, "generations": tuple(item["generations"])}) for item in found["shards"]]
    return FlushReport(tuple(shards))


def _compaction_report(found: Mapping[str, Any]) -> CompactionReport:
    return CompactionReport(**{**found, "shards": tuple(ShardCompaction(**item) for item in found["shards"])})


def _gc_report(found: Mapping[str, Any]) -> GcReport:
    objects = tuple(CollectedObject(**item) for item in found["objects"])
    refused = {shard: [Problem(**item) for item in items] for shard, items in found["refused"].items()}
    return GcReport(**{**found, "objects": objects, "refused": refused})
