"""`write_batch`: the exactly-once write for foreachBatch, where executors append what is large.

Owns executor mode. Invariants:

1. A first job splits the rows by shard, where they are: there is no shuffle, and any sharding is routed as the table does it.
   Its tasks write nothing that a reader can see (`lance_memwal.spark.pieces`).
2. What fits into messages is appended by the driver, as a sink's commit does it. Else a second job appends: each of its tasks
   for a group of shards, so that their number follows the executors and not the shards.
3. A task joins the epoch of its shards as any sink does (RFC 0017); the driver hands out what it knows of them. A task of a
   failed attempt that is still alive adds nothing: its transaction is there once. All attempts append the same rows: those
   that the first job handed in.
4. Logs are kept short by the driver, after every task of the version has ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import InvalidInputError, MemWalError
from lance_memwal.serve.wire import decode_answer, encode_error
from lance_memwal.spark.batch_reports import BatchStats, report
from lance_memwal.spark.calls import caller_of, finished, next_call
from lance_memwal.spark.jobs import run_tasks
from lance_memwal.spark.joining import known_table, lengths_of, sink_of, tidy
from lance_memwal.spark.options import STORAGE_PREFIX, Options, told_by
from lance_memwal.spark.pieces import Piece, Pieces, all_staged, by_shard, unstage, write_pieces
from lance_memwal.spark.refusals import refusing
from lance_memwal.spark.rows import WritePlan
from lance_memwal.spark.sink import append_pieces, commit_pieces, stats_of
from lance_memwal.spark.types import struct_type
from lance_memwal.store.location import resolve
from lance_memwal.types import Transaction
from lance_memwal.upkeep.short_logs import LogLength
from lance_memwal.write.claim import ShardClaim
from lance_memwal.write.once import AppendResult

__all__ = ["BatchReport", "write_batch"]

_PIECE = pa.schema(
    [
        ("shard_id", pa.string()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("data", pa.binary()),
        ("path", pa.string()),
        ("start", pa.int64()),
        ("digest", pa.string()),
        ("refused", pa.binary()),
    ]
)
_GROUPS_PER_CORE = 2
_GROUPS_OVER_CONNECT = 32


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What one `write_batch` did; `rejected_rows` were kept out by a condition or by the merge of the table.

    Shards that had this version already are `skipped_shards`.
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
    """The rows of `df` are in the table once per (`app_id`, `batch_id`), however often this is called.

    Inside of `foreachBatch` leave `app_id` out: then each call counts, also several for one table, and a micro-batch that is
    tried again repeats its calls. Further options are those of the sink. The table must have a primary key for upserts and
    deletes; an append-only table takes `operation="append"`.
    """
    given = {name: str(value) for name, value in options.items()}
    given = {**told_by(df.sparkSession), **given}
    given |= {f"{STORAGE_PREFIX}{name}": value for name, value in (storage_options or {}).items()}
    parsed = Options.parse({**given, "path": uri, "operation": operation})
    plan = WritePlan.make(known_table(parsed), df.schema, parsed)
    caller = caller_of(df.sparkSession)
    place = f"{resolve(uri, parsed.storage_options).key} {plan.table_id}"
    call = None if caller is None or app_id else next_call(caller, place, batch_id)
    if call is not None:
        txn = Transaction(call.app, batch_id, call.caller.query)
    elif app_id:
        txn = Transaction(app_id, batch_id)
    else:
        raise InvalidInputError("outside a streaming query 'app_id' is needed: it names who writes these versions")
    stats = _write(df, plan, txn)
    report(None if caller is None else caller.run, txn.version, stats)
    if call is not None:
        finished(call)
    return BatchReport(txn.app, txn.version, stats.rows, stats.shards, stats.skipped_shards, stats.rejected_rows)


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
            told = [{"refused": encode_error(made.refused)}]
        if told:
            yield pa.RecordBatch.from_pylist(told, schema=_PIECE)

    found = df.mapInArrow(run, struct_type(_PIECE)).toArrow().to_pylist()
    return Pieces(tuple(_piece_of(item) for item in found), routed_by=plan.sharding)


def _told_of(piece: Piece) -> dict[str, Any]:
    """A piece as a row of `_PIECE`."""
    return {name: getattr(piece, name) for name in _PIECE.names if hasattr(piece, name)} | {"digest": str(piece.digest)}


def _piece_of(answer: dict[str, Any]) -> Piece:
    refused = answer.pop("refused")
    if refused is not None:
        decode_answer(refused)  # raises the error
    return Piece(**{**answer, "digest": int(answer["digest"])})


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
        return json.dumps({"refused": encode_error(results).hex()})
    lengths = lengths_of(sink, sorted(pieces))
    return json.dumps([asdict(_answer(result, lengths[result.shard_id])) for result in results])


def _told(answer: str) -> list[dict[str, Any]]:
    """What a task did, by shard; raises what it has refused."""
    found: Any = json.loads(answer)
    if isinstance(found, dict):
        decode_answer(bytes.fromhex(found["refused"]))  # raises the error
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
