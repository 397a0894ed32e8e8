"""Writes of whole rows to one shard, in the order in which they take effect.

Entry points: `put`, `put_nowait`, `delete`, `insert` (one encoded write), `Ack`. Invariants:

1. Input is fitted once. Rows that were fitted to columns which the table no longer has are fitted again
   (`with_current_columns`). An error in the input is raised before anything is inserted.
2. Small durable puts are fitted and inserted by the leader of the commit, other writes by their own threads.
3. Rows that do not fit one entry are published as a generation of their own.
4. A write that must be durable is on storage when its call returns. If its caller was interrupted, it is not in the table, or
   the ticker or the next open brings it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from lance_memwal.arguments import check_timeout
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.crash_points import reach
from lance_memwal.errors import ConflictError, InvalidInputError, UnavailableError
from lance_memwal.rows.fit import Missing
from lance_memwal.types import EntryTransaction, Transaction
from lance_memwal.write.bulk import publish_bulk
from lance_memwal.write.fitting import Fitting
from lance_memwal.write.group_commit import GroupCommit, RepeatedError, StaleRowsError, TooLargeError
from lance_memwal.write.queue import Pending, QueuedPut, WriteRows
from lance_memwal.write.results import ShardWrite, WriteResult, joined
from lance_memwal.write.shard import Shard

_QUEUED_BYTES = 256 * 1024  # larger puts are fitted by their own threads, where that takes longer than waiting
_MAX_COLUMN_CHANGES = 16  # of the table, while one write is fitted
_buffer_bytes = pa.RecordBatch.get_total_buffer_size
T = TypeVar("T")


class Begun(Protocol):
    """A write whose rows were inserted and become durable later."""

    @property
    def durable(self) -> bool:
        """Whether the rows are on storage."""

    def wait(self, timeout: float | None = None) -> WriteResult:
        """Return what the write did, once its rows are on storage."""


class Ack:
    """The durability of one write that did not wait for it. May be awaited."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Begun]) -> None:
        """`parts` are the writes of the shards."""
        self._parts = parts

    @property
    def durable(self) -> bool:
        """Whether the write is on storage, in every shard."""
        return all(part.durable for part in self._parts)

    def wait(self, timeout: float | None = None) -> WriteResult:
        """Return what the write did, once it is on storage in every shard.

        Args:
            timeout: How many seconds to wait; None: until it is durable or has failed.

        Raises:
            UnavailableError: It is not durable within `timeout` seconds.
            MemWalError: The error that prevented it.
        """
        timeout = check_timeout(timeout)
        if timeout is None:
            return joined([part.wait() for part in self._parts])
        deadline = SYSTEM_CLOCK.monotonic() + timeout
        return joined([part.wait(max(0.0, deadline - SYSTEM_CLOCK.monotonic())) for part in self._parts])

    def __await__(self) -> Generator[Any, None, WriteResult]:
        """As `wait`, without blocking the event loop."""
        return asyncio.to_thread(self.wait).__await__()

    def __repr__(self) -> str:
        return f"Ack(durable={self.durable})"


class InsertedRows:
    """The rows of one write that were inserted in one shard."""

    __slots__ = ("_commits", "_end", "_result")

    def __init__(self, commits: GroupCommit, result: WriteResult, end: int) -> None:
        """`end` is the batch position after the last row."""
        self._commits = commits
        self._result = result
        self._end = end

    @property
    def durable(self) -> bool:
        """Whether the rows are on storage."""
        return self._commits.durable >= self._end

    def wait(self, timeout: float | None = None) -> WriteResult:
        """Return once they are on storage."""
        if timeout is None:
            self._commits.make_durable(self._end)
        elif not self._commits.wait_durable(self._end, timeout):
            raise UnavailableError(f"the write was not durable within {timeout} seconds; wait again", ambiguous=True)
        return self._result


def put(shard: Shard, data: Any, txn: Transaction | None = None, missing: Missing | None = None) -> ShardWrite:
    """Insert or replace rows; in durable mode (and with `txn`) they are on storage when this returns."""
    batches, fill = shard.columns.fitting.take(data, missing)
    size = batches[0].get_total_buffer_size() if len(batches) == 1 else sum(map(_buffer_bytes, batches))
    if not batches or size > _QUEUED_BYTES or not shard.config.durable_write:
        return _write(shard, lambda fitting: fitting.fit(batches, fill, size), txn)
    try:
        txns = () if txn is None else (EntryTransaction(txn),)
        done = shard.health.inside(_queue, shard, batches, size, fill, txns)
    except TooLargeError:
        return _write(shard, lambda fitting: fitting.fit(batches, fill, size), txn)
    except RepeatedError as found:
        shard.commits.make_durable(found.end)
        return ShardWrite(range(found.end, found.end), skipped=True)
    reach("put.before_ack")
    return ShardWrite(range(done.start, done.end), done.rows.num_rows)


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


def put_nowait(shard: Shard, data: Any, missing: Missing | None = None, *, drain: bool = True) -> ShardWrite:
    """Insert rows. They become durable in the background (`drain`), or with the next call that waits."""
    batches, fill = shard.columns.fitting.take(data, missing)
    return _nowait(shard, lambda fitting: fitting.fit(batches, fill), drain)


def delete_nowait(shard: Shard, keys: Any, *, drain: bool = True) -> ShardWrite:
    """Delete rows by primary key; see `put_nowait`."""
    return _nowait(shard, lambda fitting: fitting.tombstones(keys), drain)


def _nowait(shard: Shard, fit: Callable[[Fitting], WriteRows], drain: bool) -> ShardWrite:
    def insert_rows(fitting: Fitting) -> ShardWrite:
        started = shard.clock.monotonic()
        rows = fit(fitting)
        if not rows.batches or not shard.commits.entries.encode_rows(rows):
            return _write_fitted(shard, rows, None)
        _, end = shard.commits.insert(rows, None, drain=drain)
        shard.count_put(started)
        return ShardWrite(range(end - len(rows.batches), end), written=rows.num_rows)

    return with_current_columns(shard, insert_rows)


def delete(shard: Shard, keys: Any, txn: Transaction | None = None) -> ShardWrite:
    """Write a tombstone for each key, whether or not it exists. It supersedes the key's rows in every older tier."""
    return _write(shard, lambda fitting: fitting.tombstones(keys), txn)


def _write(shard: Shard, fit: Callable[[Fitting], WriteRows], txn: Transaction | None) -> ShardWrite:
    return with_current_columns(shard, lambda fitting: _write_fitted(shard, fit(fitting), txn))


def _write_fitted(shard: Shard, rows: WriteRows, txn: Transaction | None) -> ShardWrite:
    commits = shard.commits
    if not rows.batches:
        with shard.health.lock:
            shard.health.refuse_writes()
            return ShardWrite(range(commits.buffered, commits.buffered))
    commits.refuse_on_top()  # before anything is inserted: the write would have to wait
    started = shard.clock.monotonic()
    result = insert(shard, rows, txn) if commits.entries.encode_rows(rows) else _publish(shard, rows, txn)
    shard.count_put(started)
    return result


def insert(
    shard: Shard, rows: WriteRows, txn: Transaction | None, decide: Callable[[], WriteRows | None] | None = None
) -> ShardWrite:
    """Insert one encoded write, or what `decide` gives instead (`GroupCommit.insert`); see `acknowledged`."""
    pending, end = shard.commits.insert(rows, txn, decide=decide)
    return acknowledged(shard, pending, end, txn)


def acknowledged(shard: Shard, pending: Pending | None, end: int, txn: Transaction | None) -> ShardWrite:
    """What an insertion did, told when it may be: in durable mode, and with `txn`, once all below `end` is on storage.

    Without `pending` its transaction was there already.
    """
    if shard.config.durable_write or txn is not None:
        shard.commits.make_durable(end, linger=True)
        reach("put.before_ack")
    if pending is None:
        return ShardWrite(range(end, end), skipped=True)
    return ShardWrite(range(pending.start, end), pending.rows.num_rows)


def _publish(shard: Shard, rows: WriteRows, txn: Transaction | None) -> ShardWrite:
    """Publish rows that are too large for one entry as a generation."""
    if not shard.config.enable_memtable:
        limit = shard.config.max_entry_bytes
        raise InvalidInputError(
            f"the rows need more than max_entry_bytes={limit}, the limit of one write in WAL-only mode; split them"
        )
    done = publish_bulk(shard, lambda: rows, txn)
    if done is None:
        return ShardWrite(range(0), skipped=True)
    return ShardWrite(done.positions, done.num_rows)
