"""Rebuilding a writer's memory from the log, before it accepts anything.

Owns replay. Invariants:

1. Entries are read from the cursor of the manifest to our sentinel, in order; a missing position is an error.
2. Entries of a generation below the manifest's `current_generation` are flushed already and are skipped.
3. A memtable ends only where the generation number of the entries changes; it is flushed at once, so that memory holds
   one generation at a time.
4. Replayed rows are durable: they are not appended again, and readers see them.
5. An entry of a higher epoch means that we were fenced while opening.

Called by: the shard engine, while it opens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from memwal.adapt import RowAdapter
from memwal.errors import CorruptDataError
from memwal.hooks import reach
from memwal.log_run import unflushed
from memwal.store import paths
from memwal.types import WalEntry
from memwal.wal import OpenedLog
from memwal.writer.core import ShardCore

__all__ = ["replay"]

_LOG = logging.getLogger(__name__)


def replay(core: ShardCore, opened: OpenedLog, flush_frozen: Callable[[], object]) -> int:
    """Load the tail of the log into the core's memtables; returns the number of rows."""
    adapter = RowAdapter(core.schema)
    rows = 0
    for entry in unflushed(opened):
        memtable = core.active
        if memtable is None:
            break
        generation = memtable.generation if entry.generation is None else entry.generation
        if generation != memtable.generation:
            _check_step(opened, entry, memtable.generation, empty=memtable.num_rows == 0)
            with core.lock:
                memtable = core.freeze(memtable)
            flush_frozen()
        reach("replay.before_insert")
        for batch in entry.batches:
            fitted, flags = adapter.adapt(batch, position=entry.position)
            memtable.append(fitted, flags)
            rows += fitted.num_rows
        memtable.covered_position = entry.position
        core.durable = memtable.end_batch
    if core.active is not None:
        core.active.index_rows()
        core.active.covered_position = opened.log.next_position - 1
    if rows:
        _LOG.info("replayed [shard=%s, epoch=%d, rows=%d]", core.log.shard_id, core.log.epoch, rows)
    return rows


def _check_step(opened: OpenedLog, entry: WalEntry, current: int, *, empty: bool) -> None:
    if entry.generation != current + 1 or empty:
        raise CorruptDataError(
            f"generation {entry.generation} follows generation {current}; generations never fall and never skip",
            path=paths.wal_entry_path(opened.log.shard_id, entry.position),
            position=entry.position,
        )
