"""The batch and the streaming sink: tasks hand in pieces, the driver commits them once per shard.

Owns the writers and the commit. Invariants:

1. A task writes nothing that a reader can see: its rows travel in the commit message, or lie staged below the table
   (`lance_memwal.spark.pieces`).
2. `commit` turns the union of all pieces of a shard into one WAL entry, or one generation, of one transaction: a repeated
   commit, and one that failed halfway, add nothing twice.
3. `abort` removes nothing: what a failed commit may have made visible stays, staged rows are left to collection.
4. Sinks fence nobody: they join the epoch of other sinks, and take turns with writers (RFC 0017). A task of a failed
   attempt that still lives can do no harm: a transaction is in a shard once.

Spark calls `streamWriter` anew for every step, so that state lives in commit messages and, of what was joined, per process.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.crash_points import reach
from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.sharding import Sharding
from lance_memwal.spark.batch_reports import BatchStats, report
from lance_memwal.spark.joining import lengths_of, sink_of, tidy
from lance_memwal.spark.pieces import Piece, Pieces, by_shard, load_pieces, split_here, unstage, write_pieces
from lance_memwal.spark.refusals import raise_first
from lance_memwal.spark.rows import WritePlan, inserted_keys, rows_in_order
from lance_memwal.spark.unchanged import check_inserts, check_statement, guard_of
from lance_memwal.types import Transaction
from lance_memwal.write.append_queue import AppendResult
from lance_memwal.write.table_appender import AT_ONCE, ShardAppend, TableAppender

_LOG = logging.getLogger(__name__)
_COMMIT_BYTES = 256 << 20


Also: TypeAlias = Callable[[WritePlan, str], Pieces]
"""What is written besides the rows of the tasks, made on the driver for a plan and a job."""


# -------------------------------------------------------------------------------------------------------- on the driver


def commit_pieces(plan: WritePlan, messages: Sequence[Pieces | None], txn: Transaction | None) -> list[AppendResult]:
    """Every piece is in its shard once when this returns; shards that got no row are not touched."""
    raise_first(message.refused for message in messages if message is not None)
    pieces = by_shard(messages)
    if not pieces:
        return []
    sink = sink_of(plan)
    location = sink.appender.location
    if plan.options.duplicates == "live":  # a statement is refused before its first shard is written
        inserted = []
        for shard_id in sorted(pieces):
            batches = load_pieces(location, pieces[shard_id])
            check_statement(plan, location, shard_id, rows_in_order(plan, batches))
            inserted += [] if plan.options.statement_on is None else [inserted_keys(plan, batches)]
        check_inserts(plan, inserted)
    routed_by = {message.routed_by for message in messages if message is not None and message.pieces}
    results = list(append_pieces(plan, sink, pieces, txn, routed_by.pop() if len(routed_by) == 1 else None))
    _log_commit(plan, txn, results)
    unstage(location, [piece for found in pieces.values() for piece in found])
    tidy(plan, lengths_of(sink, sorted(pieces)))
    return results


def append_pieces(
    plan: WritePlan,
    sink: TableAppender,
    pieces: Mapping[str, Sequence[Piece]],
    txn: Transaction | None,
    routed_by: Sharding | None,
) -> Iterator[AppendResult]:
    """Append the rows of every shard, in the order of their ids; memory holds those of so many that they have 256 MiB.

    `routed_by` is the sharding that chose the shards; None: not known, so that rows are routed once more to see it.
    """
    largest = max(sum(piece.size_bytes for piece in found) for found in pieces.values())
    at_once = max(1, min(AT_ONCE, _COMMIT_BYTES // max(1, largest)))
    location = sink.appender.location

    def given(shard_id: str) -> ShardAppend:
        batches = rows_in_order(plan, load_pieces(location, pieces[shard_id]))
        guard = guard_of(plan, location, shard_id, batches)
        return ShardAppend(batches, txn, guard, routed_by)

    for result in sink.append_all(sorted(pieces), given, terms=plan.terms, at_once=at_once):
        reach("spark.after_shard")
        yield result


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
        self._plan = plan
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
        commit_pieces(self._plan, pieces, txn)

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
        results = commit_pieces(self._plan, pieces, Transaction(app, batchId, query))
        report(run, batchId, stats_of(results, pieces))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove nothing: a commit that failed may have written some shards already."""


def stats_of(results: Sequence[AppendResult], messages: Sequence[Pieces | None]) -> BatchStats:
    """What the appends of one batch did."""
    sizes: Counter[str] = Counter()
    for piece in (piece for message in messages if message is not None for piece in message.pieces):
        sizes[piece.shard_id] += piece.size_bytes
    return BatchStats.of(results, [sizes[result.shard_id] for result in results])


def _with(
    also: Also | None, plan: WritePlan, job: str, messages: Sequence[WriterCommitMessage | None]
) -> list[Pieces | None]:
    handed_in = [split_here(plan, message) if isinstance(message, Pieces) else None for message in messages]
    return handed_in if also is None else [*handed_in, also(plan, job)]
