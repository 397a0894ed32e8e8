"""The state of one shard writer: what was written, where it is, and whether more may be.

Owns pending writes, memtables and watermarks; `lance_memwal.write.group_commit` adds the commits. Invariants:

1. A write is inserted whole: its batches get consecutive numbers and go into one memtable and one WAL entry.
2. In durable mode readers see what is below the durable watermark, otherwise what was inserted; either way active and
   frozen memtables are captured together.
3. A poisoned writer accepts, shows and commits nothing; a fenced one, or one whose table is another one now, accepts and
   commits nothing but still answers reads.
4. A thread that is interrupted anywhere (KeyboardInterrupt) leaves a state that the next caller makes good: a write
   exists from the moment in which it is in `pending`, and what follows from it is derived.

Who waits: callers, for room, for a drain or for an acknowledgement, in `changed`; the `ticker` and the `flusher` are
tasks that are poked. A put that nobody waits for wakes nobody.

Locks: `lock` guards all state. It is held neither during I/O nor by anybody who waits. It is reentrant, since a writer
may be collected anywhere.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from lance_memwal.clock import Clock
from lance_memwal.config import WriterConfig
from lance_memwal.errors import (
    ClosedError,
    FencedError,
    InvalidInputError,
    MemWalError,
    TableReplacedError,
    WriterPoisonedError,
)
from lance_memwal.lance.identity import TableWatch
from lance_memwal.log.tail import LogRun
from lance_memwal.log.transactions import TransactionMap, is_repeat
from lance_memwal.log.wal import ShardLog
from lance_memwal.memtable.memtable import ByteMeter, InMemoryMemTables, MemTable
from lance_memwal.process.background import Task
from lance_memwal.process.waiting import LOOK_AGAIN_SECONDS, Place, Waiters, refuse_on_top
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.mirrors import IndexSet
from lance_memwal.types import SeenTransaction, Transaction
from lance_memwal.write.pending import Pending, WriteRows
from lance_memwal.write.stats import StatsHandle

__all__ = ["CLOSED", "CLOSING", "OPEN", "ShardState"]

_LOG = logging.getLogger(__name__)
OPEN, CLOSING, CLOSED = "open", "closing", "closed"
_FLUSH_FAILURES_TO_REPORT = 5


class ShardState:
    """Everything that the threads of one writer share."""

    def __init__(
        self,
        *,
        config: WriterConfig,
        schema: TableSchema,
        log: ShardLog,
        transactions: TransactionMap,
        run: LogRun,
        clock: Clock,
        indexes: IndexSet | None = None,
        watch: TableWatch | None = None,
    ) -> None:
        self.config = config
        self.schema = schema
        self.indexes = indexes if indexes is not None else IndexSet(schema)
        self.unindexed_since: float | None = None
        self.index_wanted = False
        self.graph_wanted = False
        self.growing = False
        self.log = log
        self._watch = watch
        self.clock = clock
        self.ticker = self.flusher = self.grower = Task.none()
        self.errand: Callable[[], None] | None = None  # what the ticker does first, for a caller that must not wait
        self.make_locks()
        self.stats = StatsHandle(self.lock)
        self.state = OPEN
        self.poison: WriterPoisonedError | None = None
        self.fenced: FencedError | None = None
        self.replaced: TableReplacedError | None = None
        self.has_failed = False  # whether one of the three is there: nothing is written any more
        self.exclusive = False
        self.pending: deque[Pending] = deque()
        self.pending_since = 0.0
        self.drain_wanted = False
        self.durable = 0
        self._durable_bytes = 0
        self._durable_run = run
        self.transactions = transactions
        self._meter = ByteMeter()
        self.active = self.new_memtable(run.generation, 0, log.next_position - 1) if config.enable_memtable else None
        self.frozen: tuple[MemTable, ...] = ()
        self._frozen_bytes = 0
        self.flush_error: MemWalError | None = None
        self.flush_failures = 0
        self.waits = 0
        self.wait_seconds = 0.0

    def make_locks(self) -> None:
        """Make all locks anew: at the start, and in a forked child, where their holders do not exist."""
        self.lock = threading.RLock()
        self.changed = Waiters()

    @property
    def buffered(self) -> int:
        """The number behind the newest batch that was inserted; whoever drains, closes or moves reads it without `lock`."""
        try:
            return self.pending[-1].end
        except IndexError:  # all settled, and durable before it left the queue
            return self.durable

    @property
    def pending_bytes(self) -> int:
        """Bytes of the writes that are not yet on storage."""
        return self.pending[-1].end_bytes - self._durable_bytes if self.pending else 0

    @property
    def held_bytes(self) -> int:
        """The bytes that backpressure bounds: memtables with their indexes, or the queue where there is no memtable."""
        if self.active is None:
            return self.pending_bytes
        return self._frozen_bytes + self.active.size_bytes + self._meter.total

    # ---------------------------------------------------------------------------------------------- accepting writes

    def insert(self, rows: WriteRows, txn: Transaction | None, *, drain: bool = False) -> tuple[Pending | None, int]:
        """Insert one write; returns it, or None and the batch number to wait for if its transaction is there already.

        `drain` asks the ticker to put it into the log.
        """
        waited = False
        refuse_on_top(self.lock, "a write")
        while True:
            with self.lock:
                self.refuse_writes()
                if self._has_room:
                    return self._insert(rows, txn, drain=drain)
            waited = self._wait_for_room(rows.size_bytes, counted=waited)

    def _insert(self, rows: WriteRows, txn: Transaction | None, *, drain: bool) -> tuple[Pending | None, int]:
        config = self.config
        if txn is not None:
            repeat_of = self._repeat_of(txn)
            if repeat_of is not None:
                return None, repeat_of
        pending = self._place(rows, txn)
        if not config.durable_write and not self.pending:
            self.pending_since = self.clock.monotonic()
            self.ticker.poke()
        self._append(pending)
        if drain or (not config.durable_write and 0 < config.max_wal_buffer_size <= self.pending_bytes):
            self.drain_wanted = True
            self.ticker.poke()
        return pending, pending.end

    def _append(self, pending: Pending) -> None:
        self.pending.append(pending)
        if self.active is not None:
            if self.active.indexes:
                self._index(self.active)
            self._freeze_if_full(self.active)

    def _index(self, active: MemTable) -> None:
        """Take the new rows into the indexes, or see to it that the ticker does."""
        now = self.clock.monotonic()
        if self.config.sync_indexed_write:
            active.index_rows()
            self.count_indexed([active], self.clock.monotonic() - now)
            return
        if self.unindexed_since is None:
            self.unindexed_since = now
            self.ticker.poke()
        if active.unindexed_rows >= self.config.async_index_buffer_rows and not self.index_wanted:
            self.index_wanted = True
            self.ticker.poke()

    def count_indexed(self, memtables: Sequence[MemTable], seconds: float) -> None:
        """Count one update of the indexes."""
        rows = sum(memtable.take_indexed() for memtable in memtables)
        if rows:
            with self.lock:
                self.stats.index_update_count += 1
                self.stats.index_update_rows += rows
                self.stats.index_update_time += seconds

    def want_graph(self) -> None:
        """Ask the ticker to have a graph built; a search calls this."""
        with self.lock:
            if not self.growing and not self.graph_wanted:
                self.graph_wanted = True
                self.ticker.poke()

    def refuse(self) -> None:
        """Raise if this writer must not accept or show rows any more."""
        if self.poison is not None:
            raise WriterPoisonedError(str(self.poison)) from (self.poison.__cause__ or self.poison)
        if self.state != OPEN:
            raise ClosedError(f"the writer of shard {self.log.shard_id} is closed; open a new one")

    def refuse_writes(self) -> None:
        """Raise if this writer must not accept rows any more."""
        if self.has_failed or self.state != OPEN:
            self.refuse()
            self._refuse_stopped()

    def _refuse_stopped(self) -> None:
        if self.replaced is not None:
            raise TableReplacedError(str(self.replaced))
        if self.fenced is not None:
            raise FencedError(self.fenced.our_epoch, self.fenced.current_epoch, f"shard {self.log.shard_id}")

    @property
    def is_stopped(self) -> bool:
        """Whether the shard, or its table, belongs to somebody else now."""
        return self.fenced is not None or self.replaced is not None

    def look_at_table(self) -> None:
        """Return only if the table is still the one that this writer opened."""
        if self._watch is not None:
            try:
                self._watch.look()
            except TableReplacedError as error:
                self.fail(replaced=error)
                raise

    def refuse_commits(self) -> None:
        """Raise if this writer must not write to storage any more."""
        if self.has_failed:
            if self.poison is not None:
                raise WriterPoisonedError(str(self.poison)) from (self.poison.__cause__ or self.poison)
            self._refuse_stopped()
        if self.state == CLOSED:
            raise ClosedError(f"the writer of shard {self.log.shard_id} is closed; the write was not acknowledged")

    @property
    def _has_room(self) -> bool:
        return not self.exclusive and self.held_bytes < self.config.max_unflushed_memtable_bytes

    def _wait_for_room(self, size_bytes: int, *, counted: bool = False) -> bool:
        """Wait (backpressure, a bulk write); returns whether the put is counted as one that waited (`counted`: it is already).

        Room that was there may be gone when this returns. `lock` is not held.
        """
        interval = self.config.backpressure_log_interval_ms / 1000
        started = now = self.clock.monotonic()
        next_warning = started + interval
        found_full = False
        try:
            while True:
                with self.lock:
                    self.refuse_writes()
                    if now > started:
                        self.raise_flush_error()
                    if self._has_room:
                        return counted
                    full = self.held_bytes >= self.config.max_unflushed_memtable_bytes
                    found_full = found_full or full
                    if full and not counted:
                        counted = True
                        self.waits += 1
                    if self.active is not None and not self.frozen and not self.exclusive:
                        self.freeze(self.active)
                    self.drain_wanted = True
                    self.ticker.poke()
                    place = self.changed.stand()
                self._sleep(place, max(0.001, next_warning - now))
                now = self.clock.monotonic()
                if now >= next_warning:
                    self._warn_of_wait(size_bytes, now - started)
                    next_warning = now + interval
        finally:
            if found_full:
                self.wait_seconds += self.clock.monotonic() - started

    def _sleep(self, place: Place, seconds: float) -> None:
        """Wait for a change; where the program ends and nobody else flushes, flush."""
        if not self.flusher.run_here():
            place.sleep(seconds)
        self.changed.leave(place)

    def _warn_of_wait(self, size_bytes: int, waited_seconds: float) -> None:
        _LOG.warning(
            "put waits for room [shard=%s, held_bytes=%d, limit_bytes=%d, put_bytes=%d, waited_seconds=%.1f]",
            self.log.shard_id,
            self.held_bytes,
            self.config.max_unflushed_memtable_bytes,
            size_bytes,
            waited_seconds,
        )

    def raise_flush_error(self) -> None:
        """Raise the error of a flush that failed again and again (retries go on)."""
        if self.flush_error is not None and self.flush_failures >= _FLUSH_FAILURES_TO_REPORT:
            raise self.flush_error.with_traceback(None)  # raised many times: its traceback must not grow

    def _repeat_of(self, txn: Transaction) -> int | None:
        """The batch number to wait for if `txn` is there or pending; raises where its version went backwards."""
        for item in reversed(self.pending):
            if item.txn is not None and item.txn.app == txn.app:
                if is_repeat(txn, {txn.app: SeenTransaction(item.txn.version, 0, item.txn.query)}):
                    return item.end
                return None
        if self.transactions.is_repeat(txn):
            return 0
        self.transactions.admit(txn)
        return None

    def _place(self, rows: WriteRows, txn: Transaction | None) -> Pending:
        """Put the rows into the active memtable, or count them in the run; returns the write, not yet pending."""
        start, start_bytes, run = self._totals
        active = self.active
        if active is None:
            run = replace(run)
            small = self.schema.small_dictionaries
            generation = run.add(
                rows.num_rows, len(rows.batches), rows.wire_bytes, self.config, held=rows.batches, small=small
            )
        else:
            active = self._room_in(active, start, rows)
            generation = active.generation
            for batch, flags, size in zip(rows.batches, rows.flags, rows.sizes, strict=True):
                active.append(batch, flags, size)
        return Pending(rows, (start, start_bytes, run), generation, txn)

    @property
    def _totals(self) -> tuple[int, int, LogRun]:
        """Batches, bytes and run behind everything that was inserted."""
        return self.pending[-1].totals if self.pending else (self.durable, self._durable_bytes, self._durable_run)

    def _room_in(self, active: MemTable, start: int, rows: WriteRows) -> MemTable:
        """The memtable for `rows`: `active`, or the next one if they would take it past its row or batch limit, or do not
        go together with its dictionaries."""
        limits, (batches, num_rows, _) = self.config, active.totals
        if active.first_batch + batches != start:  # a write that was interrupted before it was pending
            active.truncate(start - active.first_batch)
            batches, num_rows, _ = active.totals
        if batches and (
            num_rows + rows.num_rows > limits.max_memtable_rows
            or batches + len(rows.batches) > limits.max_memtable_batches
            or not active.can_hold(rows.batches)
        ):
            return self.freeze(active)
        return active

    def poisoned(self, what: str, cause: BaseException) -> WriterPoisonedError:
        """Poison this writer because of `cause`; the caller raises what is returned."""
        poison = WriterPoisonedError(f"{what}; reopen the shard: {cause}")
        poison.__cause__ = cause
        self.fail(poison=poison)
        return poison

    def fail(
        self,
        *,
        poison: WriterPoisonedError | None = None,
        fenced: FencedError | None = None,
        replaced: TableReplacedError | None = None,
    ) -> None:
        """Remember for good why this writer writes nothing any more, and tell everybody who waits; logged once."""
        with self.lock:
            known = self.has_failed
            why = (self.poison or poison, self.fenced or fenced, self.replaced or replaced)
            self.poison, self.fenced, self.replaced, self.has_failed = *why, True  # one step, as far as interrupts go
            self.wake_all()
        if not known:
            reason = poison or fenced or replaced
            _LOG.warning("writer stops [shard=%s, epoch=%d]: %s", self.log.shard_id, self.log.epoch, reason)

    def wake_all(self) -> None:
        """Let everybody who waits for this writer look again."""
        self.changed.wake_all()
        self.ticker.poke()
        self.flusher.poke()

    # ---------------------------------------------------------------------------------------------- freeze and capture

    def new_memtable(self, generation: int, first_batch: int, covered_position: int) -> MemTable:
        """An empty memtable of this writer."""
        indexes = self.indexes.build()
        return MemTable(
            self.schema, generation, first_batch, covered_position, self._meter, indexes, on_search=self.want_graph
        )

    def _freeze_if_full(self, active: MemTable) -> None:
        limits, (batches, num_rows, size_bytes) = self.config, active.totals
        if (
            num_rows >= limits.max_memtable_rows
            or batches >= limits.max_memtable_batches
            or size_bytes + active.index_bytes >= limits.max_memtable_size
        ):
            self.freeze(active)

    def freeze(self, active: MemTable) -> MemTable:
        """Swap in a new memtable (`lock` is held); the frozen one stays readable until its SSTable is published."""
        active.truncate(self.buffered - active.first_batch)
        if active.num_batches == 0:
            return active
        fresh = self.new_memtable(active.generation + 1, active.end_batch, active.covered_position)
        frozen, size = (*self.frozen, active), self._frozen_bytes + active.size_bytes
        self.frozen, self._frozen_bytes, self.active = frozen, size, fresh  # one step, as far as interrupts go
        self.flusher.poke()
        return fresh

    def seal(self) -> None:
        """Freeze the active memtable if it holds rows."""
        with self.lock:
            if self.active is not None:
                self.freeze(self.active)

    def capture(self) -> InMemoryMemTables:
        """What readers may see now: active and frozen memtables together, one watermark for all."""
        refuse_on_top(self.lock, "a read")
        with self.lock:
            self.refuse()
            if self.active is None:
                raise InvalidInputError("this writer is in WAL-only mode and has no memtable")
            visible = self.durable if self.config.durable_write else self.buffered

            def shown(memtable: MemTable) -> int:
                return max(0, min(visible - memtable.first_batch, memtable.num_batches))

            frozen = tuple(memtable.capture(shown(memtable)) for memtable in self.frozen)
            active = self.active.capture(shown(self.active))
            table_id = None if self._watch is None else self._watch.table_id
            return InMemoryMemTables(active, frozen, self.log.shard_id, self.log.epoch, table_id)

    def release(self, memtable: MemTable) -> None:
        """Drop a frozen memtable whose SSTable is published."""
        memtable.detach()  # before, since it may wait for a reader, and a waiting put must find the room at once
        with self.lock:
            self.frozen = tuple(item for item in self.frozen if item is not memtable)
            self._frozen_bytes -= memtable.size_bytes
            self.flush_error, self.flush_failures = None, 0
            self.changed.wake_all()

    def wait_until(self, done: Callable[[], bool], timeout_seconds: float | None) -> bool:
        """Wait until `done`, which is asked under `lock`; False on time-out. Poison, fences, aborts and failing flushes raise."""
        deadline = None if timeout_seconds is None else self.clock.monotonic() + timeout_seconds
        while True:
            with self.lock:
                if done():
                    return True
                self.refuse_commits()
                self.raise_flush_error()
                left = LOOK_AGAIN_SECONDS if deadline is None else deadline - self.clock.monotonic()
                if left <= 0:
                    return False
                place = self.changed.stand()
            self._sleep(place, left)
