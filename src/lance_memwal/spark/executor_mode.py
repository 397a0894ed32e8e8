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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as f

from lance_memwal.errors import InvalidInputError, MemWalError
from lance_memwal.rows.sharding import Bucket
from lance_memwal.serve.wire import decode_answer, encode_error
from lance_memwal.spark.batch_reports import BatchStats, report
from lance_memwal.spark.calls import caller_of, finished, next_call
from lance_memwal.spark.joining import sink_of, tidy
from lance_memwal.spark.options import STORAGE_PREFIX, Options, told_by
from lance_memwal.spark.refusals import refusing
from lance_memwal.spark.rows import WritePlan, rows_in_order
from lance_memwal.spark.types import spark_type, struct_type
from lance_memwal.spark.unchanged import guard_of
from lance_memwal.table import open_table
from lance_memwal.types import Transaction
from lance_memwal.write.claim import ShardClaim

__all__ = ["BUCKET_SEED", "BatchReport", "bucket_expression", "write_batch"]

BUCKET_SEED = -1693959553
_ANSWER = pa.schema(
    [
        ("shard", pa.string()),
        ("rows", pa.int64()),
        ("rejected_rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("skipped", pa.bool_()),
        ("refused", pa.binary()),
    ]
)
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

    Inside of `foreachBatch` leave `app_id` out: then each call counts, also several for one table, and a micro-batch that is
    tried again repeats its calls. Further options are those of the sink. The table must have a primary key for upserts and
    deletes; an append-only table takes `operation="append"`.
    """
    given = {name: str(value) for name, value in options.items()}
    given = {**told_by(df.sparkSession), **given}
    given |= {f"{STORAGE_PREFIX}{name}": value for name, value in (storage_options or {}).items()}
    parsed = Options.parse({**given, "path": uri, "operation": operation})
    table = open_table(uri, storage_options=parsed.storage_options)
    plan = WritePlan.make(table, df.schema, parsed)
    caller = caller_of(df.sparkSession)
    call = None if caller is None or app_id else next_call(caller, f"{table.location.key} {plan.table_id}", batch_id)
    if call is not None:
        txn = Transaction(call.app, batch_id, call.caller.query)
    elif app_id:
        txn = Transaction(app_id, batch_id)
    else:
        raise InvalidInputError("outside a streaming query 'app_id' is needed: it names who writes these versions")
    spread = _spread(df, plan)
    if spread is None:
        done = _through_sink(df, given, uri, operation, txn)
    else:
        done = _write(spread, plan, None if caller is None else caller.run, txn)
    if call is not None:
        finished(call)
    return done


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
    task = partial(_answers, partial(_append_task, plan, sink.claims, txn))
    answers = spread.mapInArrow(task, struct_type(_ANSWER)).collect()
    for answer in answers:
        if answer["refused"] is not None:
            decode_answer(answer["refused"])  # raises the error
    tidy(plan.options, sink, sorted({answer["shard"] for answer in answers}))
    stats = sum((_stats_of(answer) for answer in answers), BatchStats())
    report(run, txn.version, stats)
    return BatchReport(txn.app, txn.version, stats.rows, stats.shards, stats.skipped_shards, stats.rejected_rows)


def _stats_of(answer: Any) -> BatchStats:
    """What one task answered."""
    if answer["skipped"]:
        return BatchStats(shards=1, skipped_shards=1)
    return BatchStats(answer["rows"], answer["size_bytes"], shards=1, rejected_rows=answer["rejected_rows"])


def _answers(
    task: Callable[[Iterator[pa.RecordBatch]], list[dict[str, Any]]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a task tells the driver: what it did with its rows, or why it has refused them."""
    done = refusing(task, batches)
    told = [{"refused": encode_error(done)}] if isinstance(done, MemWalError) else done
    yield pa.RecordBatch.from_pylist(told, schema=_ANSWER)


def _append_task(
    plan: WritePlan, claims: Mapping[str, ShardClaim], txn: Transaction, batches: Iterator[pa.RecordBatch]
) -> list[dict[str, Any]]:
    """One task: all rows of its partition belong to one shard and become one transaction there."""
    by_shard: dict[str, list[pa.RecordBatch]] = {}
    for shard_id, rows in plan.split(batches):
        by_shard.setdefault(shard_id, []).append(rows)
    if len(by_shard) > 1:
        raise InvalidInputError("a task got rows of several shards: Spark and the table do not route alike")
    return [_append(plan, claims, txn, shard_id, parts) for shard_id, parts in by_shard.items()]


def _append(
    plan: WritePlan, claims: Mapping[str, ShardClaim], txn: Transaction, shard_id: str, parts: list[pa.RecordBatch]
) -> dict[str, Any]:
    newest = rows_in_order(plan, parts)
    sink = sink_of(plan)
    sink.learn(claims)
    mark = plan.txn_of(txn, plan.digest(parts))
    guard = guard_of(plan, sink.appender.location, shard_id, newest)
    result = sink.append(shard_id, newest, txn=mark, terms=plan.terms, guard=guard)
    return {
        "shard": shard_id,
        "rows": result.rows,
        "rejected_rows": result.rejected_rows,
        "size_bytes": sum(batch.nbytes for batch in newest),
        "skipped": result.skipped,
    }
