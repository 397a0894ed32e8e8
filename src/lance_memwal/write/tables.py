"""The memtables of one shard writer: where rows are placed, what room there is, what readers may see.

Owns `Tables`, the only writer of the active and the frozen memtables, and `WalOnly`, which keeps no rows in memory. Both
answer what the group commit asks: which generation a write belongs to, and what is held. Invariants:

1. The rows of one write go into one memtable, which has one generation.
2. Active and frozen memtables are captured together, under one watermark.
3. A frozen memtable stays readable until its SSTable is published.
4. What was appended by a write that was interrupted before it was pending is forgotten by the next write, and by a
   freeze: the numbers of the caller say what exists.
5. A freeze is one step, as far as interrupts go.
6. A memtable that has rows freezes at its age limit at the latest, whether or not somebody writes.

Whoever calls holds the `lock` of the writer, where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa

from lance_memwal.clock import Clock
from lance_memwal.config import WriterConfig
from lance_memwal.errors import InvalidInputError
from lance_memwal.log.tail import LogRun
from lance_memwal.memtable.memtable import ByteMeter, InMemoryMemTableRef, InMemoryMemTables, MemTable
from lance_memwal.process.background import Task
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.mirrors import IndexSet
from lance_memwal.write.health import Health
from lance_memwal.write.indexing import Indexing
from lance_memwal.write.queue import WriteRows

_LONGEST_TAIL_ENTRIES = 64
_LONGEST_TAIL_BYTES = 1 << 20


class Tables:
    """The active memtable, and the frozen ones that are not SSTables yet."""

    def __init__(
        self,
        config: WriterConfig,
        schema: TableSchema,
        health: Health,
        indexing: Indexing,
        flusher: Task,
        ticker: Task,
        clock: Clock,
    ) -> None:
        """Has no memtable before `begin`."""
        self._limits = config
        age_ms = config.max_memtable_age_ms
        self._max_age_seconds = None if age_ms is None else age_ms / 1000
        self._old_at: float | None = None  # when the active memtable is too old; None while it is empty
        self._ticker = ticker
        self._clock = clock
        self._schema = schema
        self._health = health
        self.indexing = indexing
        self._flusher = flusher
        self._meter = ByteMeter()
        self.frozen: tuple[MemTable, ...] = ()
        self._frozen_bytes = 0

    def begin(self, generation: int, first_batch: int, covered_position: int) -> None:
        """Go on with an empty memtable; whatever the active one held is on storage."""
        self._old_at = None
        self.active = self._new(generation, first_batch, covered_position)

    def _new(self, generation: int, first_batch: int, covered_position: int) -> MemTable:
        indexes, on_search = self.indexing.build(), self.indexing.want_graph
        return MemTable(
            self._schema, generation, first_batch, covered_position, self._meter, indexes, on_search=on_search
        )

    def need(self) -> Tables:
        """These memtables: this writer is not in WAL-only mode."""
        return self

    def use_columns(self, schema: TableSchema, indexes: IndexSet) -> None:
        """Go on with other columns; everything that was written is flushed."""
        self._schema = schema
        self.indexing.use(indexes)
        self.begin(self.active.generation, self.active.first_batch, self.active.covered_position)

    @property
    def generation(self) -> int:
        """The generation of the newest write."""
        return self.active.generation

    @property
    def active_rows(self) -> int:
        """Rows of the active memtable."""
        return self.active.num_rows

    @property
    def unflushed_rows(self) -> int:
        """Rows of all memtables; may be read without the lock."""
        return self.active_rows + sum(memtable.num_rows for memtable in self.frozen)

    @property
    def unpublished_generation(self) -> int:
        """The oldest generation that is not published; may be read without the lock."""
        active = self.active  # first: what is frozen in between must not look published
        frozen = self.frozen
        return frozen[0].generation if frozen else active.generation

    @property
    def is_long_to_replay(self) -> bool:
        """Whether the rows that are in no SSTable would take long to read again from the log."""
        active = self.active
        return active.num_batches > _LONGEST_TAIL_ENTRIES or active.size_bytes > _LONGEST_TAIL_BYTES

    # -------------------------------------------------------------------------------------------------------- placing

    def held_bytes(self, _pending_bytes: int) -> int:
        """The bytes that backpressure bounds: memtables with their indexes."""
        return self._frozen_bytes + self.active.size_bytes + self._meter.total

    def place(self, rows: WriteRows, start: int, run: LogRun) -> LogRun:
        """Put the rows of a write into the memtable for them; returns the run that they belong to.

        `start` is the number of its first batch, `run` that of the write before.
        """
        limits, active = self._limits, self.active
        batches, num_rows, _ = active.totals
        if active.first_batch + batches != start:  # a write that was interrupted before it was pending
            active.truncate(start - active.first_batch)
            batches, num_rows, _ = active.totals
        if batches and (
            num_rows + rows.num_rows > limits.max_memtable_rows
            or batches + len(rows.batches) > limits.max_memtable_batches
            or not active.can_hold(rows.batches)
        ):
            active, batches = self.freeze(start), 0
        if not batches:
            self._begin_to_age()
        for batch, flags, size in zip(rows.batches, rows.flags, rows.sizes, strict=True):
            active.append(batch, flags, size)
        return run if run.generation == active.generation else LogRun(active.generation)

    def placed(self, end: int) -> None:
        """Index the rows of a write that exists now, and freeze the active memtable if it is full."""
        limits, active = self._limits, self.active
        if active.indexes:
            self.indexing.inserted(active)
        batches, num_rows, size_bytes = active.totals
        if (
            num_rows >= limits.max_memtable_rows
            or batches >= limits.max_memtable_batches
            or size_bytes + active.index_bytes >= limits.max_memtable_size
        ):
            self.freeze(end)

    def cover(self, generation: int, position: int) -> None:
        """Note that the log holds rows of `generation` up to `position`."""
        if self.active.generation == generation:
            self.active.covered_position = position
        else:
            for memtable in self.frozen:
                if memtable.generation == generation:
                    memtable.covered_position = position

    def replayed(self, batch: pa.RecordBatch, flags: pa.BooleanArray | None, position: int) -> None:
        """Put rows that the log holds at `position` into the active memtable."""
        if self._old_at is None:
            self._begin_to_age()
        self.active.append(batch, flags)
        self.active.covered_position = position

    # ------------------------------------------------------------------------------------------- freezing and capture

    def freeze(self, end: int) -> MemTable:
        """Swap in a new memtable if the active one has rows; `end` is the number after the newest batch that exists."""
        active = self.active
        active.truncate(end - active.first_batch)
        if active.num_batches == 0:
            return active
        fresh = self._new(active.generation + 1, active.end_batch, active.covered_position)
        frozen, size = (*self.frozen, active), self._frozen_bytes + active.size_bytes
        self.frozen, self._frozen_bytes, self.active = frozen, size, fresh  # one step
        self._old_at = None
        self._flusher.poke()
        return fresh

    def _begin_to_age(self) -> None:
        """The active memtable gets its first row."""
        if self._max_age_seconds is not None:
            self._old_at = self._clock.monotonic() + self._max_age_seconds
            self._ticker.poke()  # it may sleep for longer

    def _freeze_if_old(self, now: float, end: int) -> None:
        if self._old_at is not None and now >= self._old_at:
            self._old_at = None  # also if there is nothing to freeze: a write was interrupted
            self.freeze(end)

    def make_room(self, end: int) -> None:
        """Freeze the active memtable if nothing else will give room."""
        if not self.frozen:
            self.freeze(end)

    def capture(self, visible: int) -> InMemoryMemTables:
        """Active and frozen memtables together, with the batches below `visible`."""

        def captured(memtable: MemTable) -> InMemoryMemTableRef:
            return memtable.capture(max(0, min(visible - memtable.first_batch, memtable.num_batches)))

        health, frozen = self._health, tuple(map(captured, self.frozen))
        return InMemoryMemTables(captured(self.active), frozen, health.shard_id, health.epoch, health.table_id)

    def release(self, memtable: MemTable) -> None:
        """Drop a frozen memtable whose SSTable is published. Takes the lock itself."""
        memtable.detach()  # before, since it may wait for a reader, and a waiting put must find the room at once
        with self._health.lock:
            self.frozen = tuple(item for item in self.frozen if item is not memtable)
            self._frozen_bytes -= memtable.size_bytes
            self._health.flushed()

    # --------------------------------------------------------------------------------------------------- in background

    def due_work(self, now: float, end: int) -> list[Callable[[], None]]:
        """Freeze a memtable that is too old; what the ticker must do for the indexes now, without the lock."""
        self._freeze_if_old(now, end)
        work: list[Callable[[], None]] = []
        if self.indexing.take_graph():
            work.append(partial(self.indexing.grow, lambda: self.active))
        if self.indexing.take_due(now):
            ends = [(m, min(m.num_batches, end - m.first_batch)) for m in (*self.frozen, self.active)]
            work.append(partial(self.indexing.index, ends))
        return work

    @property
    def next_due(self) -> float | None:
        """When (`monotonic`) there is work for the ticker, if nothing else happens."""
        due = (self.indexing.next_due, self._old_at)
        return min((moment for moment in due if moment is not None), default=None)


class WalOnly:
    """No memtables: rows are in the log and nowhere else, in generations that a run of entries counts."""

    frozen: tuple[MemTable, ...] = ()
    active_rows = 0
    unflushed_rows = 0
    is_long_to_replay = False
    unpublished_generation = 0
    next_due: float | None = None

    def __init__(self, config: WriterConfig, schema: TableSchema, generation: int) -> None:
        self._limits = config
        self._schema = schema
        self.generation = generation

    def need(self) -> Tables:
        """Raise: there are no memtables."""
        raise InvalidInputError(
            "this writer is in WAL-only mode and has no memtable; open it with enable_memtable=True"
        )

    def use_columns(self, schema: TableSchema, _indexes: IndexSet) -> None:
        """Go on with other columns."""
        self._schema = schema

    def held_bytes(self, pending_bytes: int) -> int:
        """The bytes that backpressure bounds: writes that are not in the log yet."""
        return pending_bytes

    def place(self, rows: WriteRows, _start: int, run: LogRun) -> LogRun:
        """The run that a write belongs to, which follows one that belongs to `run`."""
        run = run.after(rows.batches, rows.wire_bytes, self._limits, self._schema.small_dictionaries)
        self.generation = run.generation
        return run

    def placed(self, end: int) -> None:
        """Nothing follows."""

    def cover(self, generation: int, position: int) -> None:
        """Nothing follows."""

    def freeze(self, end: int) -> None:
        """There is nothing to freeze."""

    def make_room(self, end: int) -> None:
        """Room comes with what is drained into the log."""

    def due_work(self, _now: float, _end: int) -> list[Callable[[], None]]:
        """Nothing."""
        return []
