"""The batch and the streaming sink: tasks hand in pieces, the driver commits them once per shard.

Owns the writers and their commit messages. Invariants:

1. A task writes nothing that a reader can see: its rows travel in the commit message, or lie staged below the table.
2. `commit` turns the union of all pieces of a shard into one WAL entry, or one generation, of one transaction: a repeated
   commit, and one that failed halfway, add nothing twice.
3. `abort` removes nothing: what a failed commit may have made visible stays, staged rows are left to collection.
4. Sinks fence nobody: they join the epoch of other sinks, and take turns with writers (RFC 0017). A task of a failed
   attempt that still lives can do no harm: a transaction is in a shard once.

Spark calls `streamWriter` anew for every step, so that state lives in commit messages and, of what was joined, per process.
"""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from lance_memwal.clock import SYSTEM_CLOCK, in_order
from lance_memwal.crash_points import reach
from lance_memwal.errors import InvalidInputError, MemWalError
from lance_memwal.rows.digest import RowDigest
from lance_memwal.spark.batch_reports import BatchStats, leave, report
from lance_memwal.spark.joining import sink_of, tidy
from lance_memwal.spark.options import Options
from lance_memwal.spark.refusals import raise_first, refusing
from lance_memwal.spark.rows import WritePlan, rows_in_order
from lance_memwal.spark.unchanged import guard_of
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.types import Transaction
from lance_memwal.write.once import AppendResult

__all__ = ["BatchSink", "Pieces", "StreamSink", "commit_pieces"]

_LOG = logging.getLogger(__name__)
_SPILL_BYTES = 64 << 20
_PARALLEL_SHARDS = 4


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one shard from one task: inline, or staged at `path`; `digest` is the sum of theirs (`RowDigest`)."""

    shard_id: str
    rows: int
    size_bytes: int
    digest: int = 0
    data: bytes | None = field(default=None, repr=False)
    path: str | None = None


@dataclass
class Pieces(WriterCommitMessage):
    """What one task hands to the commit: rows, or why it has refused them."""

    pieces: tuple[Piece, ...] = ()
    query_id: str | None = None
    run_id: str | None = None
    refused: MemWalError | None = None


Also: TypeAlias = Callable[[WritePlan, str], Pieces]
"""What is written besides the rows of the tasks, made on the driver for a plan and a job."""


# ---------------------------------------------------------------------------------------------------------- in a task


def write_pieces(plan: WritePlan, job: str, batches: Iterator[pa.RecordBatch]) -> Pieces:
    """All rows of one task, split by shard; nothing becomes visible."""
    pieces = refusing(partial(_collected, plan, job), batches)
    context = TaskContext.get()
    query = run = None
    if context is not None:
        query = context.getLocalProperty("sql.streaming.queryId")
        run = context.getLocalProperty("spark.jobGroup.id")
    if isinstance(pieces, MemWalError):
        return Pieces((), query, run, pieces)
    return Pieces(pieces, query, run)


def _collected(plan: WritePlan, job: str, batches: Iterator[pa.RecordBatch]) -> tuple[Piece, ...]:
    collector = _Collector(plan, job)
    for shard_id, rows in plan.split(batches):
        collector.add(shard_id, rows)
    return collector.finish()


class _Collector:
    """Rows by shard until the task ends; what is too much for a message is staged."""

    def __init__(self, plan: WritePlan, job: str) -> None:
        self._plan = plan
        self._options = plan.options
        self._job = job
        self._held: dict[str, list[pa.RecordBatch]] = {}
        self._held_bytes = 0
        self._pieces: list[Piece] = []

    def add(self, shard_id: str, rows: pa.RecordBatch) -> None:
        self._held.setdefault(shard_id, []).append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes >= max(_SPILL_BYTES, self._options.inline_bytes):
            self._stage()

    def finish(self) -> tuple[Piece, ...]:
        if self._pieces or self._held_bytes > self._options.inline_bytes:
            self._stage()
        for shard_id, batches in self._held.items():
            data = _encode(batches)
            self._pieces.append(Piece(shard_id, _rows(batches), len(data), self._plan.digest(batches).total, data=data))
        return tuple(self._pieces)

    def _stage(self) -> None:
        location = _location(self._options)
        for shard_id, batches in self._held.items():
            path = paths.stage_path(self._job, SYSTEM_CLOCK.token_hex(16))
            data = _encode(batches)
            location.store.put_new(path, data)
            self._pieces.append(Piece(shard_id, _rows(batches), len(data), self._plan.digest(batches).total, path=path))
        self._held, self._held_bytes = {}, 0


def _rows(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def _encode(batches: Sequence[pa.RecordBatch]) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def _location(options: Options) -> Location:
    return resolve(options.path, options.storage_options)


# -------------------------------------------------------------------------------------------------------- on the driver


def commit_pieces(plan: WritePlan, messages: Sequence[Pieces | None], txn: Transaction | None) -> list[AppendResult]:
    """Every piece is in its shard once when this returns; shards that got no row are not touched."""
    raise_first(message.refused for message in messages if message is not None)
    by_shard: dict[str, list[Piece]] = {}
    for message in messages:
        for piece in message.pieces if message is not None else ():
            by_shard.setdefault(piece.shard_id, []).append(piece)
    if not by_shard:
        return []
    sink = sink_of(plan)
    location = sink.appender.location
    if plan.options.duplicates == "live":  # a statement is refused before its first shard is written
        for pieces in by_shard.values():
            rows_in_order(plan, _load(location, pieces))

    def append(shard_id: str) -> AppendResult:
        batches = rows_in_order(plan, _load(location, by_shard[shard_id]))
        mark, guard = _txn_of(plan, txn, by_shard[shard_id]), guard_of(plan, location, shard_id, batches)
        result = sink.append(shard_id, batches, txn=mark, terms=plan.terms, guard=guard)
        reach("spark.after_shard")
        return result

    results = list(in_order(append, sorted(by_shard), _PARALLEL_SHARDS, "memwal-commit"))
    _log_commit(plan, txn, results)
    for shard_id, pieces in by_shard.items():
        _unstage(location, shard_id, pieces)
    tidy(plan.options, sink, sorted(by_shard))
    return results


def _txn_of(plan: WritePlan, txn: Transaction | None, pieces: Sequence[Piece]) -> Transaction | None:
    digests = (RowDigest(piece.digest) for piece in pieces)
    return None if txn is None else plan.txn_of(txn, sum(digests, RowDigest()))


def _load(location: Location, pieces: Sequence[Piece]) -> list[pa.RecordBatch]:
    batches = []
    for piece in pieces:
        data = piece.data if piece.data is not None else location.store.get(str(piece.path))
        with pa.ipc.open_stream(data) as reader:
            batches += list(reader)
    return batches


def _unstage(location: Location, shard_id: str, pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        if piece.path is not None:
            try:
                location.store.delete(piece.path)
            except MemWalError as error:  # collection removes it later
                _LOG.debug("staged rows were left [shard=%s]: %s", shard_id, error)


def _log_commit(plan: WritePlan, txn: Transaction | None, results: Sequence[AppendResult]) -> None:
    written = [result for result in results if not result.skipped]
    _LOG.info(
        "committed [table=%s, app=%s, version=%s, rows=%d, rejected=%d, shards=%d, skipped=%d]",
        plan.options.path.partition("?")[0],
        None if txn is None else txn.app,
        None if txn is None else txn.version,
        sum(result.rows for result in written),
        sum(result.rejected_rows for result in written),
        len(results),
        len(results) - len(written),
    )


# ------------------------------------------------------------------------------------------------------------ the sinks


class BatchSink(DataSourceArrowWriter):
    """`df.write.format("memwal")`: exactly once per (txnAppId, txnVersion), at least once without them.

    What `also` gives at commit goes with the rows, under the same mark: the tombstones of an overwrite.
    """

    def __init__(self, plan: WritePlan, also: Also | None = None) -> None:
        if plan.options.txn_app_id is not None and plan.options.txn_version is None:
            raise InvalidInputError("a batch write needs 'txnVersion' beside 'txnAppId'")
        self._plan = plan if plan.options.txn_app_id is not None else plan.on_trust  # nobody repeats it
        self._also = also
        self._job = SYSTEM_CLOCK.uuid4()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Pieces:
        """Hand in the rows of one task."""
        return write_pieces(self._plan, self._job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write every piece to its shard, once."""
        options = self._plan.options
        txn = None
        if options.txn_app_id is not None and options.txn_version is not None:
            txn = Transaction(options.txn_app_id, options.txn_version)
        pieces = _with(self._also, self._plan, self._job, messages)
        leave(options.report_to, _stats(commit_pieces(self._plan, pieces, txn), pieces))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove nothing: a commit that failed may have written some shards already."""


class StreamSink(DataSourceStreamArrowWriter):
    """`df.writeStream.format("memwal")`: exactly once per (query id, batch id); `also` as in `BatchSink`."""

    def __init__(self, plan: WritePlan, also: Also | None = None) -> None:
        if plan.options.txn_version is not None:
            raise InvalidInputError("a stream has its own versions (the batch ids); leave 'txnVersion' out")
        self._plan = plan
        self._also = also
        self._job = SYSTEM_CLOCK.uuid4()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Pieces:
        """Hand in the rows of one task."""
        return write_pieces(self._plan, self._job, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Write every piece of this micro-batch to its shard, once."""
        pieces = _with(self._also, self._plan, self._job, messages)
        query = next((m.query_id for m in pieces if m is not None and m.query_id), None)
        run = next((m.run_id for m in pieces if m is not None and m.run_id), None)
        if query is None:
            if any(m is not None and m.pieces for m in pieces):
                raise InvalidInputError(
                    "Spark did not tell the id of the query, so that repeats could not be recognised"
                )
            return
        app = self._plan.options.txn_app_id or query
        stats = _stats(commit_pieces(self._plan, pieces, Transaction(app, batchId, query)), pieces)
        report(run, batchId, stats)
        leave(self._plan.options.report_to, stats)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove nothing: a commit that failed may have written some shards already."""


def _stats(results: Sequence[AppendResult], messages: Sequence[Pieces | None]) -> BatchStats:
    sizes: Counter[str] = Counter()
    for piece in (piece for message in messages if message is not None for piece in message.pieces):
        sizes[piece.shard_id] += piece.size_bytes
    return BatchStats.of(results, [sizes[result.shard_id] for result in results])


def _with(
    also: Also | None, plan: WritePlan, job: str, messages: Sequence[WriterCommitMessage | None]
) -> list[Pieces | None]:
    handed_in = [message if isinstance(message, Pieces) else None for message in messages]
    if also is None:
        return handed_in
    more = also(plan, job)  # made anew by every attempt, of what is there then: no part of what a repeat must have
    return [*handed_in, replace(more, pieces=tuple(replace(piece, digest=0) for piece in more.pieces))]
