"""A compaction as a user asks for it: of what is published, or of everything, with what stayed behind.

Owns `compact_table`. Invariant: rows that are in a log only are never passed over in silence.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from dataclasses import replace

from lance_memwal.compact.reports import CompactionReport, Progress
from lance_memwal.compact.run import Compactor
from lance_memwal.lance.base import BaseTable
from lance_memwal.types import check_shard_ids
from lance_memwal.upkeep.reports import FlushReport
from lance_memwal.upkeep.tails import flush_live, in_log_only

_FLUSH_SECONDS = 60.0  # for a writer of this process that is asked to flush


def compact_table(
    newest_base: Callable[[], BaseTable],
    flush: Callable[[Collection[str] | None], FlushReport] | None,
    *,
    shards: Collection[str | uuid.UUID] | None,
    max_generations: int | None,
    progress: Progress | None,
    memory_bytes: int,
) -> CompactionReport:
    """Fold published generations; with `flush`, which publishes logs that were left behind, everything that can be."""
    named = None if shards is None else check_shard_ids(shards)
    base = newest_base()
    location, busy = base.location, dict[str, str]()
    if flush is not None:
        busy = flush_live(location, _FLUSH_SECONDS, shards=named) | flush(named).skipped
    compactor = Compactor(location, newest_base, memory_bytes=memory_bytes)
    report = compactor.run(shards=named, max_generations=max_generations, progress=progress)
    left = in_log_only(location, shards=named, tag=base.tag)
    reasons = {
        shard_id: busy.get(shard_id, f"{entries} entries are in its log only: compact(flush=True) folds them, too")
        for shard_id, entries in left.items()
    }
    return replace(report, in_log_only=reasons)
