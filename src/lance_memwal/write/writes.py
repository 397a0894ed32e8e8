"""Writes of whole rows to one shard, in the order in which they take effect.

Entry points: `put`, `put_together`, `put_nowait`, `delete`, `insert` (one encoded write), `Ack`. Invariants:

1. Input is fitted once. Rows that were fitted to columns which the table no longer has are fitted again
   (`with_current_columns`). An error in the input is raised before anything is inserted.
2. Small durable puts are fitted and inserted by the leader of the commit, other writes by their own threads.
3. Rows that do not fit one entry are published as a generation of their own.
4. A write that must be durable is on storage when its call returns. If its caller was interrupted, it is not in the table, or
   the ticker or the next open brings it there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from lance_memwal.arguments import check_timeout
from lance_memwal.crash_points import reach
from lance_memwal.errors import ConflictError, InvalidInputError, UnavailableError
from lance_memwal.log.transactions import as_transaction
from lance_memwal.rows.fit import Missing
from lance_memwal.rows.ingest import reread
from lance_memwal.types import EntryTransaction, Transaction
from lance_memwal.write.bulk import publish_bulk
from lance_memwal.write.fitting import Fitting
from lance_memwal.write.group_commit import GroupCommit, RepeatedError, StaleRowsError, TooLargeError
from lance_memwal.write.queue import Pending, QueuedPut, WriteRows
from lance_memwal.write.results import WriteResult
from lance_memwal.write.shard import Shard

_LOG = logging.getLogger(__name__)
_QUEUED_BYTES = 256 * 1024  # larger puts are fitted by their own threads, where that takes longer than waiting
_MAX_COLUMN_CHANGES = 16  # of the table, while one write is fitted
_buffer_bytes = pa.RecordBatch.get_total_buffer_size
T = TypeVar("T")


class Ack:
    """The durability of one write that did not wait for it; `result` is what it did. May be awaited."""

    __slots__ = ("_commits", "_end", "result")

    def __init__(self, commits: GroupCommit, result: WriteResult) -> None:
        self._commits = commits
        self._end = result.batch_positions.stop
        self.result: Any = result  # of one shard, or of all

    @property
    def durable(self) -> bool:
        """Whether the write is on storage."""
        return self._commits.durable >= self._end

    def wait(self, timeout: float | None = None) -> None:
        """Return once the write is on storage; raise what prevented it, or `UnavailableError` after `timeout` seconds."""
        timeout = check_timeout(timeout)
        if timeout is None:
            self._commits.make_durable(self._end)
            return
        if not self._commits.wait_durable(self._end, timeout):
            raise UnavailableError(f"the write was not durable within {timeout} seconds; wait again", ambiguous=True)

    def __await__(self) -> Generator[Any, None, None]:
        """As `wait`, without a wait of the event loop."""
        return asyncio.to_thread(self.wait).__await__()

    def __repr__(self) -> str:
        return f"Ack(durable={self.durable})"


def put(
    shard: Shard, data: Any, txn: Transaction | tuple[str, int] | None = None, missing: Missing | None = None
) -> WriteResult:
    """Insert or replace rows; in durable mode (and with `txn`) they are on storage when this returns."""
    batches, fill = shard.columns.fitting.take(data, missing)
    size = batches[0].get_total_buffer_size() if len(batches) == 1 else sum(map(_buffer_bytes, batches))
    transaction = as_transaction(txn)
    if not batches or size > _QUEUED_BYTES or not shard.config.durable_write:
        return _write(shard, lambda fitting: fitting.fit(batches, fill, size), transaction)
    try:
        txns = () if transaction is None else (EntryTransaction(transaction),)
        done = shard.health.inside(_queue, shard, batches, size, fill, txns)
    except TooLargeError:
        return _write(shard, lambda fitting: fitting.fit(batches, fill, size), transaction)
    except RepeatedError as found:
        shard.commits.make_durable(found.end)
        return WriteResult(range(found.end, found.end), skipped=True)
    reach("put.before_ack")
    return WriteResult(range(done.start, done.end), False, done.rows.num_rows)


def with_current_columns(shard: Shard, write: Callable[[Fitting], T]) -> T:
    """The result of `write` with the columns of the shard; it is called again if they changed before it inserted rows."""
    for _ in range(_MAX_COLUMN_CHANGES):
        try:
            return shard.health.inside(write, shard.columns.fitting)
        except StaleRowsError:
            continue
    raise ConflictError(
        f"the columns of shard {shard.log.shard_id} change faster than rows can be fitted to them; retry"
    )


def put_together(
    shard: Shard, data: pa.RecordBatch, txns: Sequence[EntryTransaction], missing: Missing | None = None
) -> list[WriteResult | Exception]:
    """Insert the rows of several puts, each a transaction of its own; durable when this returns.

    They become one write, which costs little more than one of them. Where that cannot be (one of them was there already,
    or is wrong), each is put for itself, and has its own result or error.
    """
    _refuse_other_rows(txns, data.num_rows)
    batches, fill = shard.columns.fitting.take(data, missing)
    size = sum(map(_buffer_bytes, batches))
    if size <= _QUEUED_BYTES and shard.config.durable_write:
        try:
            marks = _marks_of(txns)
            done = shard.health.inside(_queue, shard, batches, size, fill, marks)
        except Exception as error:
            _LOG.debug("puts are put one by one [shard=%s, why=%s]", shard.log.shard_id, type(error).__name__)
        else:
            reach("put.before_ack")
            return [WriteResult(range(done.start, done.end), False, item.num_rows or 0) for item in marks]
    return [_own_result(shard, data, item, missing) for item in txns]


def _refuse_other_rows(txns: Sequence[EntryTransaction], num_rows: int) -> None:
    """Return only if every row belongs to one of the puts, and each put has some."""
    end = 0
    for item in txns:
        own = item.num_rows
        if type(item.first_row) is not int or item.first_row != end or type(own) is not int or own < 1:
            end = -1
            break
        end += own
    if end != num_rows or not txns:
        raise InvalidInputError("the puts of one write have its rows, one after the other, and each at least one")


def _marks_of(txns: Sequence[EntryTransaction]) -> tuple[EntryTransaction, ...]:
    """The transactions, checked, which are of different applications."""
    marks = tuple(map(_checked, txns))
    if len({item.txn.app for item in marks}) < len(marks):
        raise InvalidInputError("an application has one version in a write")
    return marks


def _checked(item: EntryTransaction) -> EntryTransaction:
    txn = as_transaction(item.txn)
    if txn is None:
        raise InvalidInputError("a put that shares a write has a transaction of its own")
    return item if txn is item.txn else replace(item, txn=txn)


def _own_result(
    shard: Shard, data: pa.RecordBatch, item: EntryTransaction, missing: Missing | None
) -> WriteResult | Exception:
    try:
        return put(shard, data.slice(item.first_row, item.num_rows), _checked(item).txn, missing)
    except Exception as error:
        return error


def _queue(
    shard: Shard, batches: list[pa.RecordBatch], size: int, fill: bool, txns: tuple[EntryTransaction, ...]
) -> Pending:
    """Let a leader insert one small write; returns it once it is on storage."""
    clock = shard.clock

    def fit(given: list[pa.RecordBatch], filled: bool, size_bytes: int) -> WriteRows:
        return shard.columns.fitting.fit(
            given, filled, size_bytes
        )  # the columns at the time when a leader takes the put

    small = QueuedPut(batches, size, fit, fill, clock.monotonic(), txns, clock)
    if txns:
        shard.commits.refuse_repeated(txns)
    return shard.commits.write(small)


def put_nowait(shard: Shard, data: Any, missing: Missing | None = None, *, drain: bool = True) -> Ack:
    """Insert rows and return at once; they become durable in the background (`drain`) or when somebody waits for the
    `Ack`."""
    batches, fill = shard.columns.fitting.take(data, missing)
    return _nowait(shard, lambda fitting: fitting.fit(batches, fill), drain)


def delete_nowait(shard: Shard, keys: Any, *, drain: bool = True) -> Ack:
    """Delete rows by primary key and return at once; see `put_nowait`."""
    keys = reread(keys)
    return _nowait(shard, lambda fitting: fitting.tombstones(keys), drain)


def _nowait(shard: Shard, fit: Callable[[Fitting], WriteRows], drain: bool) -> Ack:
    def insert_rows(fitting: Fitting) -> WriteResult:
        started = shard.clock.monotonic()
        rows = fit(fitting)
        if not rows.batches or not shard.commits.entries.encode_rows(rows):
            return _write_fitted(shard, rows, None)
        _, end = shard.commits.insert(rows, None, drain=drain)
        shard.count_put(started)
        return WriteResult(range(end - len(rows.batches), end), written=rows.num_rows)

    return Ack(shard.commits, with_current_columns(shard, insert_rows))


def delete(shard: Shard, keys: Any, txn: Transaction | tuple[str, int] | None = None) -> WriteResult:
    """Delete rows by primary key: a tombstone hides each key in every older tier, whether or not it exists."""
    keys = reread(keys)
    return _write(shard, lambda fitting: fitting.tombstones(keys), as_transaction(txn))


def _write(shard: Shard, fit: Callable[[Fitting], WriteRows], txn: Transaction | None) -> WriteResult:
    return with_current_columns(shard, lambda fitting: _write_fitted(shard, fit(fitting), txn))


def _write_fitted(shard: Shard, rows: WriteRows, txn: Transaction | None) -> WriteResult:
    commits = shard.commits
    if not rows.batches:
        with shard.health.lock:
            shard.health.refuse_writes()
            return WriteResult(range(commits.buffered, commits.buffered))
    commits.refuse_on_top()  # before anything is inserted: the write would have to wait
    started = shard.clock.monotonic()
    result = insert(shard, rows, txn) if commits.entries.encode_rows(rows) else _publish(shard, rows, txn)
    shard.count_put(started)
    return result


def insert(
    shard: Shard, rows: WriteRows, txn: Transaction | None, decide: Callable[[], WriteRows | None] | None = None
) -> WriteResult:
    """Insert one encoded write, or what `decide` gives instead (`GroupCommit.insert`); see `acknowledged`."""
    pending, end = shard.commits.insert(rows, txn, decide=decide)
    return acknowledged(shard, pending, end, txn)


def acknowledged(shard: Shard, pending: Pending | None, end: int, txn: Transaction | None) -> WriteResult:
    """What an insertion did, told when it may be: in durable mode, and with `txn`, once all below `end` is on storage.

    Without `pending` its transaction was there already.
    """
    if shard.config.durable_write or txn is not None:
        shard.commits.make_durable(end, linger=True)
        reach("put.before_ack")
    if pending is None:
        return WriteResult(range(end, end), skipped=True)
    return WriteResult(range(pending.start, end), False, pending.rows.num_rows)  # by name takes longer


def _publish(shard: Shard, rows: WriteRows, txn: Transaction | None) -> WriteResult:
    """Publish rows that are too large for one entry as a generation."""
    if not shard.config.enable_memtable:
        limit = shard.config.max_entry_bytes
        raise InvalidInputError(
            f"the rows need more than max_entry_bytes={limit}, the limit of one write in WAL-only mode; split them"
        )
    done = publish_bulk(shard, lambda: rows, txn)
    if done is None:
        return WriteResult(range(0), skipped=True)
    return WriteResult(done.positions, written=done.num_rows)
