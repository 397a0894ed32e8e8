"""What a process keeps for the tables that its sinks write, and what it does after a commit.

Owns `sink_of` and `tidy`. Invariants:

1. A table has one sink per process: it remembers what it read of the logs, and which epochs it has joined. A table that was
   made anew at the same place has a sink of its own. The sinks of the last 64 tables are kept; a new one knows nothing, and
   reads it again.
2. The log that sinks leave behind is bounded (`flushBytes`), and so is the number of generations
   (`compactGenerations`); both happen after the commit and never fail it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from lance_memwal.errors import MemWalError, TableReplacedError
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.read.reader import Reader
from lance_memwal.serve.sink_owners import SinkOwners
from lance_memwal.spark.options import Options
from lance_memwal.spark.rows import WritePlan
from lance_memwal.store.location import resolve
from lance_memwal.table import open_table
from lance_memwal.write.joining import Patience, Sink
from lance_memwal.write.once import OnceAppender

__all__ = ["sink_of", "tidy"]

_LOG = logging.getLogger(__name__)
_MOST_SINKS = 64
_SINKS: dict[tuple[str, int, int], tuple[str | None, Sink]] = {}


def sink_of(plan: WritePlan) -> Sink:
    """The sink of the plan's table in this process; `TableReplacedError` if another table is at its place by now."""
    options = plan.options
    location = resolve(options.path, options.storage_options)
    slot = (location.key, options.max_entry_bytes, options.owner_wait_seconds)
    table_id, found = _SINKS.get(slot, (None, None))
    if found is None or found.appender.is_replaced or table_id != plan.table_id:
        base = BaseTable.need(location)
        if plan.table_id is not None and base.table_id != plan.table_id:
            raise TableReplacedError(f"the table at {location.describe()} was made anew since this write was planned")
        look_up = Reader(NewestBase(base)).stored_rows
        appender = OnceAppender(location, max_entry_bytes=options.max_entry_bytes, look_up=look_up)
        owners = None if appender.table_id is None else SinkOwners(location, appender.table_id)
        found = Sink(appender, patience=Patience(options.owner_wait_seconds), find_owner=owners)
        _SINKS.pop(slot, None)
        _SINKS[slot] = (plan.table_id, found)
        while len(_SINKS) > _MOST_SINKS:
            _SINKS.pop(next(iter(_SINKS)), None)
    return found


def tidy(options: Options, sink: Sink, shards: Sequence[str]) -> None:
    """Flush long tails and fold many generations; a failure is logged and left to the next commit."""
    try:
        due = []
        for shard_id in shards:
            tail = sink.tail(shard_id)
            if tail is not None and options.flush_bytes and tail.size_bytes >= options.flush_bytes:
                sink.flush(shard_id)
                tail = sink.tail(shard_id)
            if tail is not None and 0 < options.compact_generations <= len(tail.manifest.sstables):
                due.append(shard_id)
        if due:
            open_table(options.path, storage_options=options.storage_options).compact(shards=due)
    except MemWalError as error:
        _LOG.warning("maintenance after a commit failed, the next one tries again: %s", error)
