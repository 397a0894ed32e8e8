"""The sinks of a process, and the maintenance of logs after a commit.

Entry points: `known_table`, `sink_of`, `tidy`.

1. A table has one sink per process. It remembers the logs that it read and the epochs that it joined. A table that was
   re-created at the same URI gets a sink of its own. The sinks of the last 64 tables are kept; a new sink reads the logs again.
   A known table is not opened again; one check shows whether it is still the same table.
2. The process that commits also keeps the logs of its sinks short, in the background (`lance_memwal.upkeep.short_logs`), unless
   `maintenance=off`. That never fails a commit.
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
from lance_memwal.spark.options import Options
from lance_memwal.spark.rows import WritePlan
from lance_memwal.store.location import Location, resolve
from lance_memwal.table import Table, open_table
from lance_memwal.upkeep.short_logs import UNKNOWN_LENGTH, LogLength, LogLimits, ShortLogs
from lance_memwal.write.once import OnceAppender
from lance_memwal.write.table_appender import TableAppender
from lance_memwal.write.table_target import writer_config

_LOG = logging.getLogger(__name__)
_MOST_TABLES = 64


@dataclass(slots=True)
class _Kept:
    """The sink of a table, and its `ShortLogs` once a commit was made here."""

    table_id: str | None
    sink: TableAppender
    logs: ShortLogs | None = None


_KEPT: dict[str, _Kept] = {}


def known_table(options: Options) -> Table:
    """The table that the options name, kept open; whoever asks it for its base sees the newest."""
    return _opened(os.getpid(), resolve(options.path, options.storage_options))


@lru_cache(maxsize=_MOST_TABLES)
def _opened(_process: int, location: Location) -> Table:
    """One table for all plans of this process: a forked child must not go on with what its parent opened."""
    return open_table(location)


def sink_of(plan: WritePlan) -> TableAppender:
    """The sink of the plan's table in this process; `TableReplacedError` if another table is at its place by now."""
    return _kept(plan).sink


def _kept(plan: WritePlan) -> _Kept:
    location = resolve(plan.options.path, plan.options.storage_options)
    found = _KEPT.get(location.key)
    if found is None or found.sink.appender.is_replaced or found.table_id != plan.table_id:
        made = _Kept(plan.table_id, _new_sink(plan, location))
        _forget(location.key)
        _KEPT[location.key] = found = made
        while len(_KEPT) > _MOST_TABLES:
            _forget(next(iter(_KEPT)))
    return found


def release() -> None:
    """Forget all sinks of this process, and return when nothing runs beside them any more, at most a minute later."""
    while _KEPT:
        logs = _KEPT.popitem()[1].logs
        if logs is not None:
            logs.join()
    _opened.cache_clear()


def _forget(key: str) -> None:
    old = _KEPT.pop(key, None)
    if old is not None and old.logs is not None:
        old.logs.stop()


def _new_sink(plan: WritePlan, location: Location) -> TableAppender:
    base = BaseTable.need(location)
    if plan.table_id is not None and base.table_id != plan.table_id:
        raise TableReplacedError(f"the table at {location.describe()} was made anew since this write was planned")
    look_up = Reader(NewestBase(base)).stored_rows
    return TableAppender(OnceAppender(location, look_up=look_up))


def lengths_of(sink: TableAppender, shards: Sequence[str]) -> dict[str, LogLength]:
    """How long the logs of these shards are, as far as the sink knows; no request."""
    tails = {shard_id: sink.appender.known_tail(shard_id) for shard_id in shards}
    return {shard_id: UNKNOWN_LENGTH if tail is None else LogLength.of(tail) for shard_id, tail in tails.items()}


def tidy(plan: WritePlan, lengths: Mapping[str, LogLength]) -> None:
    """Keep logs of these lengths short; no failure of that reaches the commit."""
    if plan.options.maintenance == "off":
        return
    try:
        logs = _logs_of(_kept(plan), plan.options)
        logs.flush(logs.note(lengths))
        logs.start()
    except Exception as error:  # the rows are in the table, so the commit succeeds
        _LOG.warning("logs are not kept short for now, the next commit tries again: %s", error)


def _logs_of(kept: _Kept, options: Options) -> ShortLogs:
    if kept.logs is None:
        location = kept.sink.appender.location
        base = BaseTable.need(location)
        limits = LogLimits.of(writer_config(base, None, {}, ()))
        watch, maintain = TableWatch(base), known_table(options).maintain
        kept.logs = ShortLogs(location, watch.look, maintain, limits=limits)
    return kept.logs
