"""`write_batch`: the exactly-once write for foreachBatch, where executors append what is large.

Invariants:

1. A first job splits the rows by shard in their partitions, without a shuffle and for any sharding. Its tasks write nothing that
   a reader can see (`lance_memwal.spark.pieces`).
2. The driver appends rows that fit into messages, as a sink's commit does. Otherwise a second job appends. Each of its tasks
   appends to a group of shards, so that the number of tasks follows the executors and not the shards.
3. A task joins the epoch of its shards as any sink does (RFC 0017), with the claims that the driver knows. A task of a failed
   attempt that still runs adds nothing: a transaction is applied once. All attempts append the rows of the first job.
4. The driver keeps logs short, after every task of the version has ended.
5. Without an `app_id` a micro-batch has one call per table (`lance_memwal.spark.calls`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import InvalidInputError, MemWalError
from lance_memwal.spark.batch_reports import BatchStats, report
from lance_memwal.spark.calls import only_call, streaming_query
from lance_memwal.spark.evolving import with_columns_of
from lance_memwal.spark.jobs import run_tasks
from lance_memwal.spark.joining import known_table, lengths_of, sink_of, tidy
from lance_memwal.spark.options import STORAGE_PREFIX, Options, told_by
from lance_memwal.spark.pieces import Piece, Pieces, all_staged, by_shard, unstage, write_pieces
from lance_memwal.spark.refusals import error_of, error_text, refusing
from lance_memwal.spark.rows import WritePlan
from lance_memwal.spark.sink import append_pieces, commit_pieces, stats_of
from lance_memwal.spark.types import struct_type
from lance_memwal.store.location import resolve
from lance_memwal.types import Transaction
from lance_memwal.upkeep.short_logs import LogLength
from lance_memwal.write.append_queue import AppendResult
from lance_memwal.write.claim import ShardClaim

_PIECE = pa.schema(
    [
        ("shard_id", pa.string()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("data", pa.binary()),
        ("path", pa.string()),
        ("start", pa.int64()),
        ("refused", pa.string()),
    ]
)
_GROUPS_PER_CORE = 2
_GROUPS_OVER_CONNECT = 32


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The result of one `write_batch`. A condition, or the merge of the table, rejected `rejected_rows`.

    `skipped_shards` had this version already.
    """

    app: str
    version: int
    rows: int = 0
    shards: int = 0
    skipped_shards: int = 0
    rejected_rows: int = 0


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
    """Write the rows of `df` to the table once per (`app_id`, `batch_id`), also if this is called again.

    Args:
        df: The rows. An upsert or a delete needs a table with a primary key; an append-only table takes `operation="append"`.
        uri: Where the table is.
        batch_id: The version of this write. A version that was written is skipped, even if its rows differ.
        app_id: Who counts the versions, the same in every run. Default in `foreachBatch`: the id of the streaming query. Then a
            micro-batch may write to each table once; after an error, make the same call again. Needed over Spark Connect.
        operation: "upsert", "append", "update" or "delete".
        storage_options: As in `open_table`.
        **options: Further options of the sink, such as `missing="null"`.

    Raises:
        InvalidInputError: `app_id` is missing where it is needed, or an option or column is wrong.
    """
    given = {name: str(value) for name, value in options.items()}
    given = {**told_by(df.sparkSession), **given}
    given |= {f"{STORAGE_PREFIX}{name}": value for name, value in (storage_options or {}).items()}
    parsed = Options.parse({**given, "path": uri, "operation": operation})
    table = known_table(parsed)
    plan = WritePlan.make(
        with_columns_of(table, df.schema, parsed) if parsed.merge_schema else table, df.schema, parsed
    )
    query, run = streaming_query(df.sparkSession)
    app = app_id or query
    if app is None:
        raise InvalidInputError(
            "write_batch needs 'app_id' outside foreachBatch and over Spark Connect: a name for this writer, the same in "
            "every run"
        )
    place = f"{resolve(uri, parsed.storage_options).key} {plan.table_id}"
    with nullcontext() if app_id else only_call(f"{query} {run}", batch_id, place):
        stats = _write(df, plan, Transaction(app, batch_id, None if app_id else query))
    report(run, batch_id, stats)
    return BatchReport(app, batch_id, stats.rows, stats.shards, stats.skipped_shards, stats.rejected_rows)


def _write(df: Any, plan: WritePlan, txn: Transaction) -> BatchStats:
    job = SYSTEM_CLOCK.uuid4()
    handed_in = _handed_in(df, plan, job)
    if any(piece.path is not None for piece in handed_in.pieces):
        return _append_by_tasks(df.sparkSession, plan, job, by_shard([handed_in]), txn)
    return stats_of(commit_pieces(plan, [handed_in], txn), [handed_in])


def _handed_in(df: Any, plan: WritePlan, job: str) -> Pieces:
    """All rows of `df` as pieces, in the order of its partitions; raises what a task has refused."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        made = write_pieces(plan, job, batches)
        told = [_told_of(piece) for piece in made.pieces]
        if made.refused is not None:
            told = [{"refused": error_text(made.refused)}]
        if told:
            yield pa.RecordBatch.from_pylist(told, schema=_PIECE)

    found = df.mapInArrow(run, struct_type(_PIECE)).toArrow().to_pylist()
    return Pieces(tuple(_piece_of(item) for item in found), routed_by=plan.sharding)


def _told_of(piece: Piece) -> dict[str, Any]:
    """A piece as a row of `_PIECE`."""
    return {name: getattr(piece, name) for name in _PIECE.names if hasattr(piece, name)}


def _piece_of(answer: dict[str, Any]) -> Piece:
    refused = answer.pop("refused")
    if refused is not None:
        raise error_of(refused)
    return Piece(**answer)


# ---------------------------------------------------------------------------------------------------- the second job


@dataclass(frozen=True, slots=True)
class _Appended:
    """What a task answers of one shard."""

    shard_id: str
    rows: int
    skipped: bool
    rejected_rows: int
    log_entries: int
    log_bytes: int


def _append_by_tasks(
    spark: Any, plan: WritePlan, job: str, pieces: Mapping[str, Sequence[Piece]], txn: Transaction
) -> BatchStats:
    sink = sink_of(plan)
    location = sink.appender.location
    staged = all_staged(location, job, pieces)
    groups = [{shard_id: staged[shard_id] for shard_id in group} for group in balanced(staged, _most_groups(spark))]
    arguments = [json.dumps({s: [asdict(piece) for piece in found] for s, found in g.items()}) for g in groups]
    answers = run_tasks(spark, arguments, partial(_append_group, plan, sink.claims, txn))
    found = [_Appended(**item) for answer in answers for item in _told(answer)]
    unstage(location, [piece for given in staged.values() for piece in given])
    tidy(plan, {item.shard_id: LogLength(item.log_entries, item.log_bytes) for item in found})
    return BatchStats.of(found, [sum(piece.size_bytes for piece in pieces[item.shard_id]) for item in found])


def _append_group(plan: WritePlan, claims: Mapping[str, ShardClaim], txn: Transaction, argument: str) -> str:
    """Append what is staged for a group of shards, in a task; what it must not be tried again for is an answer."""
    pieces = {shard_id: [Piece(**item) for item in found] for shard_id, found in json.loads(argument).items()}
    sink = sink_of(plan)
    sink.learn(claims)
    results = refusing(lambda _: list(append_pieces(plan, sink, pieces, txn, plan.sharding)), iter(()))
    if isinstance(results, MemWalError):
        return json.dumps({"refused": error_text(results)})
    lengths = lengths_of(sink, sorted(pieces))
    return json.dumps([asdict(_answer(result, lengths[result.shard_id])) for result in results])


def _told(answer: str) -> list[dict[str, Any]]:
    """What a task did, by shard; raises what it has refused."""
    found: Any = json.loads(answer)
    if isinstance(found, dict):
        raise error_of(found["refused"])
    return list(found)


def _answer(result: AppendResult, log: LogLength) -> _Appended:
    skipped, rejected = result.skipped, result.rejected_rows
    return _Appended(result.shard_id, result.rows, skipped, rejected, log.entries, log.size_bytes)


def balanced(pieces: Mapping[str, Sequence[Piece]], most: int) -> list[list[str]]:
    """The shards in at most `most` groups of about the same size in bytes."""
    groups: list[tuple[int, list[str]]] = [(0, []) for _ in range(min(most, len(pieces)))]
    sizes = {shard_id: sum(piece.size_bytes for piece in found) for shard_id, found in pieces.items()}
    for shard_id in sorted(sizes, key=lambda shard_id: (-sizes[shard_id], shard_id)):
        number = min(range(len(groups)), key=lambda number: groups[number][0])
        size, members = groups[number]
        groups[number] = (size + sizes[shard_id], [*members, shard_id])
    return [members for _, members in groups]


def _most_groups(spark: Any) -> int:
    try:
        return max(1, _GROUPS_PER_CORE * int(spark.sparkContext.defaultParallelism))
    except Exception:  # over Connect there is no context
        return _GROUPS_OVER_CONNECT
