"""Writes that depend on the rows that are there: partial updates, conditions, deletes that count.

Owns `write`, which brings one such write into the log, and the changes that a user asks for. Invariants:

1. A write is resolved against the rows that are live at the moment of its insertion: it was looked up before, without a
   lock, and what came in between is asked for under the lock, from memory.
2. A write of which nothing is left writes nothing, and leaves no mark of its transaction.
3. What a caller is told in durable mode rests on rows that are on storage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.arguments import check_column, check_flag, check_names
from lance_memwal.crash_points import reach
from lance_memwal.errors import ConflictError, InvalidInputError
from lance_memwal.log.transactions import as_transaction
from lance_memwal.rows.adapt import with_flags
from lance_memwal.rows.filter import FilterLike, RowExpressions, RowFilter
from lance_memwal.rows.fit import Missing, at_most, fills_missing, keeps_missing
from lance_memwal.rows.ingest import key_batch, to_batches, to_parts, with_rows
from lance_memwal.rows.merging import LastWrite, Merge, order_of
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import Transaction
from lance_memwal.write.bulk import publish_bulk
from lance_memwal.write.fitting import Fitting
from lance_memwal.write.live_rows import KeysOfWrite, LiveRows, Look, LookUp
from lance_memwal.write.queue import WriteRows
from lance_memwal.write.resolve import (
    MustExist,
    NotLate,
    OnlyAbsent,
    OnlyIf,
    OnlyIfEqual,
    OnlyMatching,
    Part,
    Resolved,
    Rule,
    resolve,
)
from lance_memwal.write.results import WriteResult
from lance_memwal.write.sequences import span_of
from lance_memwal.write.shard import Shard

__all__ = [
    "Change",
    "checked_settings",
    "compared",
    "delete",
    "deleted_where",
    "merged",
    "note_sequences",
    "put",
    "update",
    "updated_where",
    "write",
]

_MAX_TRIES = 64


@dataclass(frozen=True, slots=True)
class Change:
    """A write that is to be resolved: its keys, its rows, and its rules; `counts`: the caller is told what it met,
    `tells`: and what was kept out."""

    keys: KeysOfWrite
    parts: list[Part]
    rules: tuple[Rule, ...] = ()
    counts: bool = False
    tells: bool = True
    columns: tuple[str, ...] = field(init=False)

    @property
    def inserts_only(self) -> bool:
        """Whether it writes no row whose key is there."""
        return any(
            isinstance(rule, OnlyAbsent) or (isinstance(rule, OnlyIfEqual) and rule.expected is None)
            for rule in self.rules
        )

    def __post_init__(self) -> None:
        """`columns` of live rows are those that it depends on."""
        kept = [part.name_of(name) for part in self.parts for name in part.kept]
        kept += [name for part in self.parts if part.computed is not None for name in part.computed.columns]
        needed = dict.fromkeys([*kept, *(name for rule in self.rules for name in rule.columns)])
        object.__setattr__(self, "columns", tuple(needed))


# ------------------------------------------------------------------------------------------------------- what is asked


def put(
    data: Any, missing: Missing | None, *, if_absent: bool = False, where: FilterLike | None = None
) -> Callable[[Fitting], Change]:
    """A put with conditions, or one that keeps what its rows leave out."""
    check_flag("if_absent", if_absent)

    def change(fitting: Fitting) -> Change:
        schema = fitting.schema
        rules: list[Rule] = [OnlyAbsent()] if if_absent else []
        if where is not None:
            rules.append(OnlyIf(where, schema))
        if keeps_missing(missing):
            return _change(fitting, to_parts(data, schema.columns), tuple(rules))
        fill = fills_missing(missing, schema)
        return _change(fitting, to_batches(data, schema.columns, whole=not fill), tuple(rules), fill)

    return change


def update(data: Any, *, insert: bool) -> Callable[[Fitting], Change]:
    """The columns that are given change, the others stay."""
    check_flag("insert", insert)

    def change(fitting: Fitting) -> Change:
        rules = () if insert else (MustExist(fitting.schema.primary_key),)
        return _change(fitting, to_parts(data, fitting.schema.columns), rules, counts=True)

    return change


def _change(
    fitting: Fitting,
    batches: list[pa.RecordBatch],
    rules: tuple[Rule, ...],
    fill: bool | None = None,
    *,
    counts: bool = False,
) -> Change:
    key, blobs = fitting.schema.need_key(), fitting.schema.blobs
    fitted = fitting.fit_parts(with_rows(batches), fill)
    keys, numbered = KeysOfWrite.of_batches([batch for batch, _ in fitted], key)
    parts = [Part(batch, at, kept, blobs=blobs) for (batch, kept), at in zip(fitted, numbered, strict=True)]
    return Change(keys, parts, rules, counts)


def delete(keys: Any, *, count: bool, sequence: Any = None) -> Callable[[Fitting], Change]:
    """A delete that meets live rows: it counts them, or comes too late for them."""

    def change(fitting: Fitting) -> Change:
        fitting.schema.need_key()
        if isinstance(fitting.merge, LastWrite):
            name = fitting.merge.sequence
            batch = fitting.tombstone_rows(_sequenced(keys, sequence, fitting.schema, name), name)
        elif sequence is not None:
            raise InvalidInputError("sequence= is for tables with merge=LastWrite(...)")
        else:
            batch = fitting.tombstone_rows(key_batch(keys, fitting.schema))
        named, numbers = KeysOfWrite.of([batch.column(name) for name in fitting.schema.primary_key])
        dead = pa.array(np.ones(batch.num_rows, dtype=bool))
        return Change(named, [Part(batch, numbers, flags=dead)], counts=count)

    return change


def _sequenced(keys: Any, sequence: Any, schema: TableSchema, name: str) -> pa.RecordBatch:
    """Keys of a delete, with the sequence of each, in the column `name`, beside them."""
    if sequence is None:
        try:
            return key_batch(keys, replace(schema, primary_key=(*schema.primary_key, name)))
        except InvalidInputError as error:
            raise InvalidInputError(
                f"{error} (the table puts its rows in the order of {name!r}: give it beside the keys, or sequence=)"
            ) from None
    named = key_batch(keys, schema)
    column = to_batches({name: [sequence]}, schema.columns)[0].column(0)
    if column.type != schema.columns.field(name).type:
        column = column.cast(schema.columns.field(name).type)
    if column.null_count:
        raise InvalidInputError("sequence= must not be null")
    return named.append_column(name, column.take(pa.array(np.zeros(named.num_rows, dtype=np.int64))))


def merged(change: Change, merge: Merge | None) -> Change:
    """`change`, as a table with this merge takes it; refused where it would be against its rule."""
    if merge is None or not change.keys.values:
        return change
    if isinstance(merge, LastWrite):
        name = merge.sequence
        for part in change.parts:
            if not part.is_dead and part.computed is None and name not in part.kept:
                span_of([part.rows], name)
        parts = [
            replace(part, kept=(name,)) if part.is_dead and part.rows.column(name).null_count else part
            for part in change.parts
        ]
        return replace(change, parts=parts, rules=(*change.rules, NotLate(name)))
    if all(part.is_dead for part in change.parts) or change.inserts_only:
        return change
    if change.rules or change.counts or any(part.kept or part.computed is not None for part in change.parts):
        raise InvalidInputError(
            "the table keeps the first row of each key (merge=FirstRow()): its rows cannot be changed"
        )
    return replace(change, rules=(OnlyAbsent(one_by_one=any(part.flags is not None for part in change.parts)),))


def note_sequences(shard: Shard, rows: WriteRows) -> None:
    """Remember the highest sequence that was inserted; the lock of the writer is held."""
    merge = shard.columns.target.merge
    if isinstance(merge, LastWrite):
        for batch in rows.batches:
            values, valid = order_of(batch.column(merge.sequence))
            values = values if valid is None else values[valid]
            if len(values):
                shard.sequences.note(values.max().item())


def compared(key: Any, expected: Any, new: Any) -> Callable[[Fitting], Change]:
    """The row of `key` becomes `new` if it is `expected`; None is no row."""

    def change(fitting: Fitting) -> Change:
        schema = fitting.schema
        fitting.schema.need_key()
        if schema.blobs:
            raise InvalidInputError(
                f"column {schema.blobs[0]!r} holds blobs, which are not compared; use put(where=...)"
            )
        named = key_batch([key], schema)
        before = None if expected is None else _row_of(fitting, named, expected, "expected")
        flags = None
        if new is None:
            rows, flags = fitting.tombstone_rows(named), pa.array([True])
        else:
            rows = _row_of(fitting, named, new, "new")
        rule = OnlyIfEqual(None if before is None else before.to_pylist()[0], tuple(schema.columns.names))
        keys, numbers = KeysOfWrite.of(named.columns)
        return Change(keys, [Part(rows, numbers, flags=flags)], (rule,))

    return change


def deleted_where(keys: pa.Table, where: FilterLike) -> Callable[[Fitting], Change]:
    """Delete the rows of `keys` for which the filter is true when they are deleted."""

    def change(fitting: Fitting) -> Change:
        named, numbers = _named(fitting, keys)
        batch = fitting.tombstone_rows(named)
        part = Part(batch, numbers, flags=pa.array(np.ones(batch.num_rows, dtype=bool)))
        rule = OnlyMatching(RowFilter(where, fitting.schema.shown.columns))
        return Change(KeysOfWrite.of(named.columns)[0], [part], (rule,), counts=True, tells=False)

    return change


def updated_where(keys: pa.Table, where: FilterLike, values: Mapping[str, str]) -> Callable[[Fitting], Change]:
    """Set columns of the rows of `keys` for which the filter is true when they are set, to what expressions make of them."""

    def change(fitting: Fitting) -> Change:
        schema = fitting.schema
        named, numbers = _named(fitting, keys)
        settings = _Settings(fitting, values)
        kept = tuple(name for name in schema.columns.names if name not in values and name not in schema.primary_key)
        part = Part(named, numbers, kept, computed=settings, blobs=schema.blobs)
        rule = OnlyMatching(RowFilter(where, schema.shown.columns))
        return Change(KeysOfWrite.of(named.columns)[0], [part], (rule,), counts=True, tells=False)

    return change


def checked_settings(values: Mapping[str, str], schema: TableSchema) -> RowExpressions:
    """What an update sets columns to; `InvalidInputError` if it names none, one that cannot be set, or is no SQL."""
    names = check_names("set", values)
    if not names:
        raise InvalidInputError("set= names no column")
    for name in names:
        check_column(name, schema.columns.names)
        if name in schema.primary_key:
            raise InvalidInputError(f"column {name!r} is part of the key, and cannot be set: delete and put")
    return RowExpressions(values, schema.shown.columns)


class _Settings:
    """The columns that an update sets, each by an expression over the live row."""

    __slots__ = ("_expressions", "_fitting", "columns")

    def __init__(self, fitting: Fitting, values: Mapping[str, str]) -> None:
        self._fitting = fitting
        self._expressions = checked_settings(values, fitting.schema)
        self.columns = tuple(dict.fromkeys([*fitting.schema.primary_key, *self._expressions.columns]))

    def make(self, rows: pa.Table) -> dict[str, pa.Array]:
        """What the expressions give, in the types of the columns."""
        made = self._expressions.evaluate(rows)
        for name in self._fitting.schema.primary_key:
            made = made.append_column(name, rows.column(name))
        fitted, _ = self._fitting.fit_parts(made.combine_chunks().to_batches(), None)[0]
        return {name: fitted.column(name) for name in fitted.schema.names}


def _named(fitting: Fitting, keys: pa.Table) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
    """Keys that are there once each, and their numbers."""
    named = key_batch(keys, fitting.schema)
    return named, np.arange(named.num_rows)


def _row_of(fitting: Fitting, named: pa.RecordBatch, row: Any, what: str) -> pa.RecordBatch:
    """The one whole row that is given; it may leave its key out."""
    if isinstance(row, dict):
        row = [{**named.to_pylist()[0], **row}]
    fitted = [batch for batch, _ in fitting.fit_parts(to_batches(row, fitting.schema.columns, whole=True), False)]
    if sum(batch.num_rows for batch in fitted) != 1:
        raise InvalidInputError(f"{what} must be one whole row, or None for no row")
    if not fitted[0].select(named.schema.names).to_pylist() == named.to_pylist():
        raise InvalidInputError(f"{what} has another key than the one that is compared")
    return fitted[0]


# ------------------------------------------------------------------------------------------------------------- writing


class _LookAgainError(Exception):
    """What was looked up cannot be brought up to date from memory."""


class _TooLargeError(Exception):
    """The rows do not fit one entry."""


class _Attempt:
    """One look at the live rows, and what the write becomes by it."""

    __slots__ = ("_change", "_live", "_shard", "is_asked", "look", "resolved", "rows")

    def __init__(self, shard: Shard, live: LiveRows, change: Change) -> None:
        """Look and resolve; `_TooLargeError` if no entry can hold the rows."""
        self._shard = shard
        self._live = live
        self._change = change
        self.is_asked = False
        self._use(live.find(change.keys, change.columns))

    def _use(self, look: Look) -> None:
        self.look = look
        self.resolved = _resolved(self._shard, self._change, look)
        self.rows = _rows(self._shard, self.resolved)
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
            note_sequences(self._shard, self.rows)
        return self.rows


def write(
    shard: Shard,
    look_up: LookUp,
    change_of: Callable[[Fitting], Change],
    txn: Transaction | tuple[str, int] | None,
) -> WriteResult:
    """Resolve a write and bring it into the log; in durable mode (and with `txn`) it is on storage when this returns."""
    transaction, commits = as_transaction(txn), shard.commits
    shard.tables.need()
    with shard.gate:
        change = merged(change_of(shard.columns.fitting), shard.columns.target.merge)
        commits.refuse_on_top()
        started = shard.clock.monotonic()
        if not change.keys.values:
            with shard.health.lock:
                shard.health.refuse_writes()
                return WriteResult(range(commits.buffered, commits.buffered), matched=0 if change.counts else None)
        end = None if transaction is None else commits.repeated(transaction)
        if end is not None:
            commits.make_durable(end)
            return WriteResult(range(end, end), skipped=True)
        result = _write(shard, LiveRows(shard, look_up), change, transaction)
        shard.count_put(started)
        return result


def _write(shard: Shard, live: LiveRows, change: Change, txn: Transaction | None) -> WriteResult:
    for _ in range(_MAX_TRIES):
        try:
            attempt = _Attempt(shard, live, change)
            reach("resolve.before_insert")
            return _insert(shard, attempt, change, txn)
        except _LookAgainError:
            continue
        except _TooLargeError:
            return _publish(shard, live, change, txn)
    raise ConflictError(f"shard {shard.log.shard_id} is flushed faster than its rows can be looked up; retry")


def _insert(shard: Shard, attempt: _Attempt, change: Change, txn: Transaction | None) -> WriteResult:
    commits, end = shard.commits, attempt.look.end
    start, written = end, 0
    if attempt.rows is not None:
        pending, end = commits.insert(attempt.rows, txn, decide=attempt.decide)
        if pending is None and not attempt.is_asked:
            commits.make_durable(end)
            return WriteResult(range(end, end), skipped=True)
        start = end if pending is None else pending.start
        written = 0 if pending is None else pending.rows.num_rows
    if shard.config.durable_write or txn is not None:
        commits.make_durable(end)
        reach("put.before_ack")
    return _result(range(start, end), written, attempt.resolved, change)


def _publish(shard: Shard, live: LiveRows, change: Change, txn: Transaction | None) -> WriteResult:
    """Publish rows that are too large for one entry as a generation; they are resolved when nobody else writes."""
    resolved: list[Resolved] = []

    def decide() -> WriteRows | None:
        resolved.append(_resolved(shard, change, live.find(change.keys, change.columns)))
        rows = _rows(shard, resolved[-1])
        if rows is not None:
            with shard.health.lock:
                note_sequences(shard, rows)
        return rows

    published = publish_bulk(shard, decide, txn)
    if published is None:
        return WriteResult(range(0), skipped=True)
    return _result(published.positions, published.num_rows, resolved[-1], change)


def _resolved(shard: Shard, change: Change, look: Look) -> Resolved:
    fitting = shard.columns.fitting
    return resolve(change.parts, look.live, change.rules, fitting.schema, fitting.check_whole)


def _rows(shard: Shard, resolved: Resolved) -> WriteRows | None:
    schema, limit = shard.columns.fitting.schema, shard.config.max_memtable_batches
    batches, flags = resolved.batches, resolved.flags
    if not batches:
        return None
    if all(dead is None for dead in flags):
        return WriteRows.of(at_most(limit, batches, schema.nullable))
    flagged = [with_flags(batch, dead, schema.memory) for batch, dead in zip(batches, flags, strict=True)]
    return WriteRows.flagged(at_most(limit, flagged, schema.memory))


def _result(positions: range, written: int, resolved: Resolved, change: Change) -> WriteResult:
    rejected = pa.Table.from_batches(_alike(resolved.rejected)) if resolved.rejected and change.tells else None
    matched = resolved.matched if change.counts else None
    return WriteResult(positions, written=written, rejected=rejected, matched=matched)


def _alike(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Batches of the same columns, whatever each says of nulls."""
    return [pa.RecordBatch.from_arrays(batch.columns, schema=batches[0].schema) for batch in batches]
