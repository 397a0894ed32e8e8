"""`write_batch`: the exactly-once write for foreachBatch, where each executor appends to its own shard.

Owns executor mode and the routing expression. Invariants:

1. Routing in Spark equals the table's: `(hash(-1693959553, column) & 2147483647) % n` is the bucket of every type that
   both sides hash alike (the constant makes Spark's chained Murmur3 start at seed 0). A table that is sharded otherwise
   is written through the sink, which routes in Python.
2. One task per shard, which appends itself, and refuses rows that belong elsewhere.
3. A task joins the epoch of its shard as any sink does (RFC 0017); the driver hands out what it knows of them. A task of a
   failed attempt that is still alive adds nothing: its transaction is there once.
4. Flushing happens on the driver, after every task of the version has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as f

from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.sharding import Bucket
from lance_memwal.spark.batch_reports import BatchStats, report
from lance_memwal.spark.joining import sink_of, tidy
from lance_memwal.spark.options import STORAGE_PREFIX, Options
from lance_memwal.spark.rows import WritePlan, rows_in_order
from lance_memwal.table import open_table
from lance_memwal.types import Transaction
from lance_memwal.write.claim import ShardClaim

__all__ = ["BUCKET_SEED", "BatchReport", "bucket_expression", "write_batch"]

BUCKET_SEED = -1693959553
_ANSWER = "shard string, rows long, rejected_rows long, size_bytes long, skipped boolean"
_PARITY = frozenset(
    {
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.large_string(),
        pa.date32(),
    }
)


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one `write_batch` did; `rejected_rows` were kept out by a condition or by the merge of the table.

    Shards that had this version already are `skipped_shards`. A table whose rows Spark cannot route is written through the
    sink, which reports to the log and to the listener alone: then all counts are 0.
    """

    app: str
    version: int
    rows: int = 0
    shards: int = 0
    skipped_shards: int = 0
    rejected_rows: int = 0


def has_parity(kind: pa.DataType) -> bool:
    """Whether Spark's hash of a column of this table type is the table's."""
    return kind in _PARITY or (pa.types.is_timestamp(kind) and kind.unit == "us")


def bucket_expression(column: str, num_buckets: int) -> Any:
    """The bucket of a row as a Spark column; null is bucket 0. The column must have the table's type."""
    quoted = f.col(f"`{column.replace('`', '``')}`")
    hashed = f.hash(f.lit(BUCKET_SEED), quoted).bitwiseAND(f.lit(2147483647)) % f.lit(num_buckets)
    return f.when(quoted.isNull(), f.lit(0)).otherwise(hashed).cast("int")


def write_batch(
    df: Any,
    uri: str,
    batch_id: int,
    *,
    app_id: str | None = None,
    operation: str = "upsert",
    storage_options: Mapping[str, str] | None = None,
    **options: Any,
) -> BatchReport:
    """The rows of `df` are in the table once per (`app_id`, `batch_id`), however often this is called.

    `app_id` defaults to the id of the streaming query that calls. Further options are those of the sink. The table must
    have a primary key for upserts and deletes; an append-only table takes `operation="append"`.
    """
    given = {name: str(value) for name, value in options.items()}
    given |= {f"{STORAGE_PREFIX}{name}": value for name, value in (storage_options or {}).items()}
    query, run = _query_of(df)
    app = app_id or query
    if app is None:
        raise InvalidInputError("outside a streaming query 'app_id' is needed: it names who writes these versions")
    parsed = Options.parse({**given, "path": uri, "operation": operation})
    table = open_table(uri, storage_options=parsed.storage_options)
    plan = WritePlan.make(table, df.schema, parsed)
    txn = Transaction(app, batch_id, query if app_id is None else None)
    spread = _spread(df, plan)
    if spread is None:
        return _through_sink(df, given, uri, operation, txn)
    return _write(spread, plan, run, txn)


def _query_of(df: Any) -> tuple[str | None, str | None]:
    """The ids of the streaming query and of its run, where the session tells them."""
    try:
        context = df.sparkSession.sparkContext
        return context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("spark.jobGroup.id")
    except Exception:  # over Connect there is no context
        return None, None


def _spread(df: Any, plan: WritePlan) -> Any:
    """The rows with one partition per shard, or None if Spark cannot route them."""
    sharding = plan.sharding
    if sharding.column is None:
        return df.coalesce(1)
    if not isinstance(sharding, Bucket) or "." in sharding.column:
        return None
    kind = plan.schema.columns.field(sharding.column).type
    if not has_parity(kind):
        return None
    from lance_memwal.spark.types import spark_type

    column, wanted = sharding.column, spark_type(kind)
    typed = df
    if (column, wanted) not in [(item.name, item.dataType) for item in df.schema]:
        typed = df.withColumn(column, f.col(f"`{column}`").cast(wanted))
    return typed.repartitionById(sharding.num_buckets, bucket_expression(column, sharding.num_buckets))


def _through_sink(df: Any, given: dict[str, str], uri: str, operation: str, txn: Transaction) -> BatchReport:
    writer = df.write.format("memwal").mode("append").options(**given).option("operation", operation)
    writer.option("txnAppId", txn.app).option("txnVersion", str(txn.version)).save(uri)
    return BatchReport(txn.app, txn.version)


def _write(spread: Any, plan: WritePlan, run: str | None, txn: Transaction) -> BatchReport:
    sink = sink_of(plan)
    answers = spread.mapInArrow(_append_task(plan, sink.claims, txn), _ANSWER).collect()
    tidy(plan.options, sink, sorted({answer["shard"] for answer in answers}))
    stats = sum((_stats_of(answer) for answer in answers), BatchStats())
    report(run, txn.version, stats)
    return BatchReport(txn.app, txn.version, stats.rows, stats.shards, stats.skipped_shards, stats.rejected_rows)


def _stats_of(answer: Any) -> BatchStats:
    """What one task answered."""
    if answer["skipped"]:
        return BatchStats(shards=1, skipped_shards=1)
    return BatchStats(answer["rows"], answer["size_bytes"], shards=1, rejected_rows=answer["rejected_rows"])


def _append_task(plan: WritePlan, claims: Mapping[str, ShardClaim], txn: Transaction) -> Any:
    """The function of one task: all rows of its partition belong to one shard and become one transaction there."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        by_shard: dict[str, list[pa.RecordBatch]] = {}
        for shard_id, rows in plan.split(batches):
            by_shard.setdefault(shard_id, []).append(rows)
        if len(by_shard) > 1:
            raise InvalidInputError("a task got rows of several shards: Spark and the table do not route alike")
        for shard_id, parts in by_shard.items():
            newest = rows_in_order(plan, parts)
            sink = sink_of(plan)
            sink.learn(claims)
            result = sink.append(shard_id, newest, txn=txn, terms=plan.terms)
            answer = {
                "shard": [shard_id],
                "rows": [result.rows],
                "rejected_rows": [result.rejected_rows],
                "size_bytes": [sum(batch.nbytes for batch in newest)],
                "skipped": [result.skipped],
            }
            yield pa.RecordBatch.from_pydict(answer)

    return run
