"""Indexes of a writer's memtables, kept up beside the puts.

Owns what happens to indexes in the background: rows whose indexing was deferred, the set of indexes that a new memtable
gets, and graphs that searches would gain by. Invariants:

1. Nothing here is needed for a right answer: a search takes in what is missing, or compares it row by row.
2. Nothing here runs in the path of a put, and no lock of the writer is held while something is built.
3. A graph is built only after searches asked for it, by one thread at a time, and no further than the writer lives.
"""

from __future__ import annotations

import logging

from lance_memwal.memtable.index import HnswMemIndex
from lance_memwal.process.background import Task
from lance_memwal.write.group_commit import ShardCore
from lance_memwal.write.state import OPEN

__all__ = ["grow_graphs", "index_deferred", "start_growing", "use_newest_indexes"]

_LOG = logging.getLogger(__name__)
_SLICE_ROWS = 512


def index_deferred(core: ShardCore) -> None:
    """Take every row that exists into the indexes of its memtable."""
    with core.lock:
        core.unindexed_since = None
        memtables = [*core.frozen, core.active] if core.active is not None else []
        ends = [min(m.num_batches, core.buffered - m.first_batch) for m in memtables]
    started = core.clock.monotonic()
    for memtable, end in zip(memtables, ends, strict=True):
        memtable.index_rows(end)
    core.count_indexed(memtables, core.clock.monotonic() - started)


def use_newest_indexes(core: ShardCore) -> None:
    """Look the maintained indexes up anew, and give the active memtable those that it lacks."""
    if core.indexes.refresh():
        active = core.active
        if active is not None:  # frozen meanwhile, it does no harm; the next one has the new set anyway
            active.adopt(core.indexes.build(active.indexes))


def start_growing(core: ShardCore) -> None:
    """Grow graphs beside everything else, unless somebody is at it."""
    with core.lock:
        if core.growing or core.state != OPEN:
            return
        core.growing = True
        core.grower.cancel()
        core.grower = Task(lambda: _grow_until_done(core), "index")
    core.grower.start(core.clock).poke()


def _grow_until_done(core: ShardCore) -> None:
    try:
        grow_graphs(core)
    except Exception as error:  # searches are exact without the graph
        _LOG.warning("building a graph failed [shard=%s]: %s", core.log.shard_id, error)
    finally:
        with core.lock:
            core.growing = False


def grow_graphs(core: ShardCore) -> None:
    """Bring the graphs of the active memtable that searches asked for up to date."""
    memtable = core.active
    if memtable is None:
        return
    for index in memtable.indexes:
        if isinstance(index, HnswMemIndex) and index.wants_graph:
            while index.catch_up(_SLICE_ROWS) and core.state == OPEN and core.active is memtable:
                memtable.measure()
            memtable.measure()
