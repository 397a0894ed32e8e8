"""Conditional writes: writes that depend on live rows, brought into the log of a shard that one writer owns.

Entry points: `write`, and `write_fitted` for one set of columns. Invariants:

1. A write is resolved against the rows that are live at the moment of its insertion: it was looked up before, without a
   lock, and what came in between is asked for under the lock, from memory.
2. A write of which nothing is left writes nothing, and leaves no mark of its transaction.
3. What a caller is told in durable mode rests on rows that are on storage, and was true while this writer owned the shard:
   a write of which nothing is left makes no entry that could find a successor, and asks the manifest.
"""

from __future__ import annotations

from collections.abc import Callable

from lance_memwal.crash_points import reach
from lance_memwal.errors import FencedError
from lance_memwal.rows.adapt import with_flags
from lance_memwal.rows.merging import LastWrite, order_of
from lance_memwal.rows.schema import TableSchema
from lance_memwal.store.sequenced import attempts
from lance_memwal.types import Transaction
from lance_memwal.write.bulk import publish_bulk
from lance_memwal.write.changes import Change, merged
from lance_memwal.write.fitting import Fitting
from lance_memwal.write.live_rows import LiveRows, Look, LookUp
from lance_memwal.write.queue import WriteRows
from lance_memwal.write.resolve import Resolved, resolve
from lance_memwal.write.results import ShardWrite
from lance_memwal.write.shard import Shard
from lance_memwal.write.writes import acknowledged, insert, with_current_columns


class _LookAgainError(Exception):
    """What was looked up cannot be brought up to date from memory."""


class _TooLargeError(Exception):
    """The rows do not fit one entry."""


class _Attempt:
    """One look at the live rows, and what the write becomes by it."""

    __slots__ = ("_change", "_fitting", "_live", "_shard", "is_asked", "look", "resolved", "rows")

    def __init__(self, shard: Shard, fitting: Fitting, live: LiveRows, change: Change) -> None:
        """Look and resolve; `_TooLargeError` if no entry can hold the rows."""
        self._shard = shard
        self._fitting = fitting
        self._live = live
        self._change = change
        self.is_asked = False
        self._use(live.find(change.keys, change.columns))

    def _use(self, look: Look) -> None:
        self.look = look
        self.resolved = _resolved(self._fitting, self._change, look)
        self.rows = _rows(self._fitting.schema, self.resolved)
        if self.rows is not None and not self._shard.commits.entries.encode_rows(self.rows):
            raise _TooLargeError

    def decide(self) -> WriteRows | None:
        """The rows that are written now, if any; the lock of the writer is held."""
        self.is_asked = True
        look = self._live.again(self._change.keys, self._change.columns, self.look)
        if look is None:
            raise _LookAgainError
        if look is not self.look:
            self._use(look)
        if self.rows is not None:
            _note_sequences(self._shard, self.rows)
        return self.rows


def write(
    shard: Shard,
    look_up: LookUp,
    change_of: Callable[[Fitting], Change],
    txn: Transaction | None,
) -> ShardWrite:
    """Resolve a write and bring it into the log; in durable mode (and with `txn`) it is on storage when this returns."""
    shard.tables.need()

    def write_change(fitting: Fitting) -> ShardWrite:
        return write_fitted(shard, fitting, look_up, change_of(fitting), txn)

    return with_current_columns(shard, write_change)


def write_fitted(
    shard: Shard, fitting: Fitting, look_up: LookUp, change: Change, txn: Transaction | None
) -> ShardWrite:
    """The same for one set of columns; `StaleRowsError` if they change before anything is inserted."""
    commits = shard.commits
    change = merged(change, fitting.merge)
    commits.refuse_on_top()
    started = shard.clock.monotonic()
    if not change.keys.values:
        with shard.health.lock:
            shard.health.refuse_writes()
            return ShardWrite(range(commits.buffered, commits.buffered), matched=0 if change.counts else None)
    end = None if txn is None else commits.repeated(txn)
    if end is not None:
        commits.make_durable(end)
        return ShardWrite(range(end, end), skipped=True)
    result = _write(shard, fitting, LiveRows(shard, look_up, fitting.schema), change, txn)
    shard.count_put(started)
    return result


def _write(shard: Shard, fitting: Fitting, live: LiveRows, change: Change, txn: Transaction | None) -> ShardWrite:
    for _ in attempts(f"shard {shard.log.shard_id}", shard.clock):
        try:
            attempt = _Attempt(shard, fitting, live, change)
            reach("resolve.before_insert")
            return _insert(shard, attempt, change, txn)
        except _LookAgainError:
            continue
        except _TooLargeError:
            return _publish(shard, fitting, live, change, txn)
    raise AssertionError("the last attempt returns or raises")


def _insert(shard: Shard, attempt: _Attempt, change: Change, txn: Transaction | None) -> ShardWrite:
    if attempt.rows is None:
        done = acknowledged(shard, None, attempt.look.end, txn)
    else:
        done = insert(shard, attempt.rows, txn, attempt.decide)
        if done.skipped and not attempt.is_asked:
            return done  # its transaction is there
    if done.skipped and shard.config.durable_write:
        _confirm_owner(shard)
    return _told(done, attempt.resolved, change)


def _confirm_owner(shard: Shard) -> None:
    """Return only if nobody has taken the shard over."""
    try:
        shard.manifests.check_fenced(shard.log.epoch)
    except FencedError as error:
        shard.health.fail(error)
        raise


def _publish(shard: Shard, fitting: Fitting, live: LiveRows, change: Change, txn: Transaction | None) -> ShardWrite:
    """Publish rows that are too large for one entry as a generation; they are resolved when nobody else writes."""
    resolved: list[Resolved] = []

    def decide() -> WriteRows | None:
        resolved.append(_resolved(fitting, change, live.find(change.keys, change.columns)))
        rows = _rows(fitting.schema, resolved[-1])
        if rows is not None:
            with shard.health.lock:
                _note_sequences(shard, rows)
        return rows

    published = publish_bulk(shard, decide, txn)
    if published is None:
        return ShardWrite(range(0), skipped=True)
    if not published.num_rows:
        _confirm_owner(shard)
    return _told(ShardWrite(published.positions, written=published.num_rows), resolved[-1], change)


def _resolved(fitting: Fitting, change: Change, look: Look) -> Resolved:
    return resolve(change.parts, look.live, change.rules, fitting.schema, fitting.check_whole)


def _note_sequences(shard: Shard, rows: WriteRows) -> None:
    """Remember the highest sequence that was inserted; the lock of the writer is held."""
    merge = shard.columns.target.merge
    if isinstance(merge, LastWrite):
        for batch in rows.batches:
            values, valid = order_of(batch.column(merge.sequence))
            values = values if valid is None else values[valid]
            if len(values):
                shard.sequences.note(values.max().item())


def _rows(schema: TableSchema, resolved: Resolved) -> WriteRows | None:
    batches, flags = resolved.batches, resolved.flags
    if not batches:
        return None
    if all(dead is None for dead in flags):
        return WriteRows.of(schema, batches)
    flagged = [with_flags(batch, dead, schema.memory) for batch, dead in zip(batches, flags, strict=True)]
    return WriteRows.flagged(schema, flagged)


def _told(done: ShardWrite, resolved: Resolved, change: Change) -> ShardWrite:
    """What was done, with what the caller is told of what was not."""
    rejected = resolved.rejected_keys if change.tells else None
    return ShardWrite(done.positions, done.written, resolved.matched if change.counts else None, rejected)
