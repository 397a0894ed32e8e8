"""What a process keeps for the tables that its sinks write, and what it does after a commit.

Owns `known_table`, `sink_of` and `tidy`. Invariants:

1. A table has one sink per process: it remembers what it read of the logs, and which epochs it has joined. A table that was
   made anew at the same place has a sink of its own. The sinks of the last 64 tables are kept; a new one knows nothing, and
   reads it again. A table that is known is not opened again either: one look shows whether it is still that one.
2. The logs that sinks leave behind are kept short by the process that commits (`lance_memwal.upkeep.short_logs`): beside the
   commits, or at their end (`upkeep=commit`), or not at all (`upkeep=off`). That never fails a commit.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from lance_memwal.errors import TableReplacedError
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.lance.identity import TableWatch
from lance_memwal.read.reader import Reader
from lance_memwal.serve.sink_owners import SinkOwners
from lance_memwal.spark.options import Options
from lance_memwal.spark.rows import WritePlan
from lance_memwal.store.location import Location, resolve
from lance_memwal.table import Table, open_table
from lance_memwal.upkeep.short_logs import UNKNOWN_LENGTH, LogLength, LogLimits, ShortLogs
from lance_memwal.write.joining import Patience, Sink
from lance_memwal.write.once import OnceAppender

__all__ = ["known_table", "lengths_of", "release", "sink_of", "tidy"]

_LOG = logging.getLogger(__name__)
_MOST_TABLES = 64


@dataclass(frozen=True, slots=True)
class _Kept:
    """The sink of a table, and who keeps its logs short, once a commit was made here."""

    table_id: str | None
    sink: Sink
    logs: dict[LogLimits, ShortLogs]

    def end(self) -> None:
        for logs in self.logs.values():
            logs.stop()

    def join(self) -> None:
        for logs in self.logs.values():
            logs.join()


_KEPT: dict[tuple[str, int, int], _Kept] = {}


def known_table(options: Options) -> Table:
    """The table that the options name, kept open; whoever asks it for its base sees the newest."""
    return _opened(os.getpid(), resolve(options.path, options.storage_options))


@lru_cache(maxsize=_MOST_TABLES)
def _opened(_process: int, location: Location) -> Table:
    """One table for all plans of this process: a forked child must not go on with what its parent opened."""
    return open_table(location)


def sink_of(plan: WritePlan) -> Sink:
    """The sink of the plan's table in this process; `TableReplacedError` if another table is at its place by now."""
    return _kept(plan).sink


def _kept(plan: WritePlan) -> _Kept:
    options = plan.options
    location = resolve(options.path, options.storage_options)
    slot = (location.key, options.max_entry_bytes, options.owner_wait_seconds)
    found = _KEPT.get(slot)
    if found is None or found.sink.appender.is_replaced or found.table_id != plan.table_id:
        made = _Kept(plan.table_id, _new_sink(plan, location), {})
        _forget(slot)
        _KEPT[slot] = found = made
        while len(_KEPT) > _MOST_TABLES:
            _forget(next(iter(_KEPT)))
    return found


def release() -> None:
    """Forget all sinks of this process, and return when nothing runs beside them any more, at most a minute later."""
    while _KEPT:
        _KEPT.popitem()[1].join()
    _opened.cache_clear()


def _forget(slot: tuple[str, int, int]) -> None:
    old = _KEPT.pop(slot, None)
    if old is not None:
        old.end()


def _new_sink(plan: WritePlan, location: Location) -> Sink:
    base = BaseTable.need(location)
    if plan.table_id is not None and base.table_id != plan.table_id:
        raise TableReplacedError(f"the table at {location.describe()} was made anew since this write was planned")
    look_up = Reader(NewestBase(base)).stored_rows
    appender = OnceAppender(location, max_entry_bytes=plan.options.max_entry_bytes, look_up=look_up)
    owners = None if appender.table_id is None else SinkOwners(location, appender.table_id)
    return Sink(appender, patience=Patience(plan.options.owner_wait_seconds), find_owner=owners)


def lengths_of(sink: Sink, shards: Sequence[str]) -> dict[str, LogLength]:
    """How long the logs of these shards are, as far as the sink knows; no request."""
    tails = {shard_id: sink.appender.known_tail(shard_id) for shard_id in shards}
    return {shard_id: UNKNOWN_LENGTH if tail is None else LogLength.of(tail) for shard_id, tail in tails.items()}


def tidy(plan: WritePlan, lengths: Mapping[str, LogLength]) -> None:
    """Keep logs of these lengths short; no failure of that reaches the commit."""
    options = plan.options
    if options.upkeep == "off":
        return
    try:
        logs = _logs_of(_kept(plan), options)
        too_long = logs.note(lengths)
        if options.upkeep == "commit":
            logs.run()
        else:
            logs.flush(too_long)
            logs.start()
    except Exception as error:  # the rows are in the table, whatever it was
        _LOG.warning("logs are not kept short for now, the next commit tries again: %s", error)


def _logs_of(kept: _Kept, options: Options) -> ShortLogs:
    limits = LogLimits(
        entries=options.flush_entries,
        size_bytes=options.flush_bytes,
        age_seconds=options.flush_seconds,
        generations=options.compact_generations,
        maintain_seconds=options.maintain_seconds,
    )
    found = kept.logs.get(limits)
    if found is None:
        location = kept.sink.appender.location
        watch = TableWatch(BaseTable.need(location))
        maintain = known_table(options).maintain
        found = kept.logs.setdefault(limits, ShortLogs(location, watch.look, maintain, limits=limits))
    return found
