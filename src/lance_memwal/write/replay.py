"""Rebuilding a writer's memory from the log, before it accepts anything.

Owns replay. Invariants:

1. Entries are read from the cursor of the manifest to our sentinel, in order; a missing position is an error. Which of
   them count is `lance_memwal.log.tail`'s to say.
2. A memtable ends only where the generation number of the entries changes; it is flushed at once, so that memory holds
   one generation at a time. A generation that passes `max_unflushed_memtable_bytes` (its writer had more memory) is
   streamed into its SSTable and published whole.
3. Replayed rows are durable: they are not appended again, and readers see them.
4. A generation whose files the peer has named is flushed, too: we do not go on with it.
5. An entry of a higher epoch means that we were fenced while opening.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TypeAlias

import pyarrow as pa

from lance_memwal.crash_points import reach
from lance_memwal.errors import CorruptDataError
from lance_memwal.log.reading import with_texts
from lance_memwal.log.tail import is_reserved, may_follow, unflushed_of
from lance_memwal.log.wal import OpenedLog
from lance_memwal.process.telemetry import active
from lance_memwal.rows.adapt import RowAdapter, with_flags
from lance_memwal.sstable.write import not_published
from lance_memwal.store import paths
from lance_memwal.write.flush import flush_once, publish
from lance_memwal.write.shard import Shard

_LOG = logging.getLogger(__name__)
_Item: TypeAlias = tuple[int, int, pa.RecordBatch, pa.BooleanArray | None]


def replay(shard: Shard, opened: OpenedLog) -> None:
    """Load the tail of the log into the memtables."""
    tables, commits = shard.tables.need(), shard.commits
    tail, started = _Tail(shard, opened), shard.clock.monotonic()
    rows = 0
    for generation, position, batch, flags in tail:
        if generation != tables.active.generation:
            shard.seal()
            flush_once(shard)
        tables.replayed(batch, flags, position)
        rows += batch.num_rows
        commits.skip_to(tables.active.end_batch)
        if tables.active.size_bytes > shard.config.max_unflushed_memtable_bytes:
            rows += _stream(shard, tail)
    if tail.reserved == tables.active.generation and tables.active.num_rows:
        shard.seal()
        flush_once(shard)
    tables.active.index_rows()
    tables.cover(tables.active.generation, opened.log.next_position - 1)
    if rows:
        if (told := active()) is not None:
            told.note("lance_mem_wal_replay_rows_total", rows)
            told.note("lance_mem_wal_replay_duration_seconds", shard.clock.monotonic() - started)
        _LOG.info("replayed [shard=%s, epoch=%d, rows=%d]", shard.log.shard_id, shard.log.epoch, rows)


def _stream(shard: Shard, tail: _Tail) -> int:
    """Publish the generation of the active memtable and of the entries that follow; returns how many rows followed."""
    tables, started = shard.tables.need(), shard.clock.monotonic()
    memtable, memory = tables.active, shard.columns.target.schema.memory
    generation, held = memtable.generation, memtable.num_rows
    count, covered = memtable.end_batch, memtable.covered_position

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal count, covered
        yield from memtable.capture().stored()
        memtable.truncate(0)
        for _, position, batch, flags in tail.of_generation(generation):
            count, covered = count + 1, position
            yield with_flags(batch, flags, memory)

    sstable = shard.write_sstable(generation, batches())
    rows = sstable.physical_rows or 0
    with not_published(shard.manifests.location, shard.log.shard_id, sstable.path):
        reach("flush.before_commit")
        shard.health.look_at_table()
    publish(shard.manifests, shard.log.epoch, sstable, covered)
    with shard.health.lock:
        memtable.detach()
        tables.begin(generation + 1, count, covered)
        shard.commits.skip_to(count)
        shard.stats.count_flush(rows, shard.clock.monotonic() - started)
    _LOG.info("streamed a large generation [shard=%s, generation=%d]", shard.log.shard_id, generation)
    return rows - held


class _Tail:
    """The batches of the tail in order, each with its generation, its position and its tombstones."""

    def __init__(self, shard: Shard, opened: OpenedLog) -> None:
        self._opened = opened
        self._schema = shard.columns.target.schema
        self._adapter = RowAdapter(self._schema, keeps_all=True)
        self._items = self._read(shard.log.shard_id, opened.manifest.current_generation)
        self._put_back: list[_Item] = []
        self.reserved = 0  # the newest generation whose files the peer has named

    def __iter__(self) -> Iterator[_Item]:
        while (item := self._next()) is not None:
            yield item

    def of_generation(self, generation: int) -> Iterator[_Item]:
        """The batches that follow, up to the next generation."""
        while (item := self._next()) is not None:
            if item[0] != generation:
                self._put_back.append(item)
                return
            yield item

    def _next(self) -> _Item | None:
        return self._put_back.pop() if self._put_back else next(self._items, None)

    def _read(self, shard_id: str, newest: int) -> Iterator[_Item]:
        empty = True
        for generation, entry in with_texts(unflushed_of(self._opened), self._schema):
            if not may_follow(generation, newest, is_first=empty):
                raise CorruptDataError(
                    f"generation {generation} follows generation {newest}; generations never fall and never skip",
                    path=paths.wal_entry_path(shard_id, entry.position),
                    position=entry.position,
                )
            newest, empty = generation, False
            self.reserved = generation if is_reserved(entry) else self.reserved
            reach("replay.before_insert")
            for batch in entry.batches:
                fitted, flags = self._adapter.adapt(batch, entry.base, position=entry.position)
                yield generation, entry.position, fitted, flags
