"""Puts into tables that put their rows in order (`LastWrite`): a put that is not late looks nothing up.

Owns `put_in_order`. Invariant: a put whose rows of one key come in order, none below the highest sequence that the shard
knows at the moment of its insertion, holds no late row; every other put is resolved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lance_memwal.memtable.memtable import InMemoryMemTables
from lance_memwal.rows.fit import Fitted, Missing
from lance_memwal.rows.merging import LastWrite
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import Transaction
from lance_memwal.write import changes, resolved
from lance_memwal.write.fitting import Fitting
from lance_memwal.write.live_rows import KeysOfWrite, LookUp
from lance_memwal.write.queue import WriteRows
from lance_memwal.write.results import ShardWrite
from lance_memwal.write.sequences import Span, span_of
from lance_memwal.write.shard import Shard
from lance_memwal.write.writes import insert, with_current_columns


class _LateError(Exception):
    """The put may hold a late row."""


def put_in_order(
    shard: Shard,
    look_up: LookUp,
    highest: Callable[[InMemoryMemTables], Any],
    data: Any,
    txn: Transaction | None,
    missing: Missing | None,
    merge: LastWrite,
) -> ShardWrite:
    """Insert rows, without those that are late; `highest` finds the highest sequence of all tiers, once."""

    def put(fitting: Fitting) -> ShardWrite:
        rows = fitting.fit(*fitting.take(data, missing))
        span = span_of(rows.batches, merge.sequence)
        shard.sequences.know(lambda: highest(_memory(shard)))
        late = shard.sequences.is_late(span.lowest) or not (span.ascends or _has_each_key_once(rows, fitting.schema))
        if not late and shard.commits.entries.encode_rows(rows):
            try:
                return _insert(shard, rows, span, txn)
            except _LateError:
                pass
        change = changes.put(Fitted(rows.batches, fitting.schema), missing)(fitting)
        return resolved.write_fitted(shard, fitting, look_up, change, txn)

    return with_current_columns(shard, put)


def _has_each_key_once(rows: WriteRows, schema: TableSchema) -> bool:
    keys, _ = KeysOfWrite.of_batches(rows.batches, schema.primary_key)
    return len(keys.values) == rows.num_rows


def _memory(shard: Shard) -> InMemoryMemTables:
    """Everything that was inserted so far."""
    tables = shard.tables.need()
    shard.commits.refuse_on_top()
    with shard.health.lock:
        shard.health.refuse_writes()
        return tables.capture(shard.commits.buffered)


def _insert(shard: Shard, rows: WriteRows, span: Span, txn: Transaction | None) -> ShardWrite:
    def decide() -> WriteRows:
        if shard.sequences.is_late(span.lowest):
            raise _LateError
        shard.sequences.note(span.highest)
        return rows

    started = shard.clock.monotonic()
    result = insert(shard, rows, txn, decide)
    shard.count_put(started)
    return result
