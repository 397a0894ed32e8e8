"""The state of one shard writer and the order of effects in it.

Owns pending writes, memtables, watermarks and the group commit. Invariants:

1. A write is inserted whole: its batches get consecutive numbers and go into one memtable and one WAL entry.
2. The calling thread leads: whoever holds the commit lock writes one entry for everything that is pending (of one
   generation); the others find themselves durable when they get the lock. A single caller hands over to nobody.
3. The durable watermark is writer-wide and only grows. In durable mode readers see what is below it, otherwise what was
   inserted; either way active and frozen memtables are captured together.
4. Pending writes leave the queue only after their entry is on storage: a failed append leaves them queued.
5. A poisoned writer accepts, shows and commits nothing; a fenced one accepts and commits nothing but still answers reads.

Conditions: `changed` for callers that wait (room, drain, acknowledgement), `tick` for the ticker, `work` for the
flusher; a put that nobody waits for wakes nobody.

Locks: `_commit_lock` (who writes the log) is taken before `lock` (state), never the other way round, and `lock` is
never held during I/O.

Called by: the shard engine, the flush worker, the ticker.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from memwal.clock import Clock
from memwal.config import WriterConfig
from memwal.errors import ClosedError, FencedError, InvalidInputError, MemWalError, WriterPoisonedError
from memwal.format.wal_entry import TOMBSTONE_FIELD, EntryEncoder
from memwal.hooks import reach
from memwal.log_run import LogRun
from memwal.memtable import InMemoryMemTables, MemTable
from memwal.schema import TableSchema
from memwal.transactions import is_repeat, with_transaction
from memwal.types import SeenTransaction, Transaction
from memwal.wal import ShardLog
from memwal.writer.stats import StatsHandle

__all__ = ["OPEN", "Pending", "ShardCore", "WriteRows"]

_LOG = logging.getLogger(__name__)
OPEN, CLOSING, CLOSED = "open", "closing", "closed"
_FLUSH_FAILURES_TO_REPORT = 5
_FLAG_CACHE_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Rows of one write, fitted to the table: batches, and per batch its tombstone flags (None: all live)."""

    batches: list[pa.RecordBatch]
    flags: list[pa.BooleanArray | None]
    num_rows: int
    size_bytes: int


class Pending:
    """One inserted write that is not yet on storage."""

    __slots__ = ("end", "generation", "rows", "start", "txn")

    def __init__(self, rows: WriteRows, start: int, generation: int, txn: Transaction | None) -> None:
        self.rows = rows
        self.start = start
        self.end = start + len(rows.batches)
        self.generation = generation
        self.txn = txn


class ShardCore:
    """Everything that the threads of one writer share."""

    def __init__(
        self,
        *,
        config: WriterConfig,
        schema: TableSchema,
        log: ShardLog,
        seen: dict[str, SeenTransaction],
        run: LogRun,
        clock: Clock,
    ) -> None:
        self.config = config
        self.schema = schema
        self.log = log
        self.clock = clock
        self.stats = StatsHandle()
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.tick = threading.Condition(self.lock)
        self.work = threading.Condition(self.lock)
        self._commit_lock = threading.Lock()
        self.state = OPEN
        self.poison: WriterPoisonedError | None = None
        self.fenced: FencedError | None = None
        self.exclusive = False
        self.pending: deque[Pending] = deque()
        self.pending_bytes = 0
        self.pending_since = 0.0
        self.drain_wanted = False
        self.buffered = 0
        self.durable = 0
        self.seen = seen
        self._seen_pending: dict[str, tuple[SeenTransaction, int]] = {}
        self.run = run
        self.active = MemTable(schema, run.generation, 0, log.next_position - 1) if config.enable_memtable else None
        self.frozen: list[MemTable] = []
        self.memory_bytes = 0
        self.flush_error: MemWalError | None = None
        self.flush_failures = 0
        self.waits = 0
        self.wait_seconds = 0.0
        self._encoder: EntryEncoder | None = None
        self._live_flags = pa.array(np.zeros(_FLAG_CACHE_ROWS, dtype=bool))
        self._flag_slices: dict[int, pa.BooleanArray] = {}

    # ---------------------------------------------------------------------------------------------- accepting writes

    def insert(self, rows: WriteRows, txn: Transaction | None) -> tuple[Pending | None, int]:
        """Insert one write; returns it, or None and the batch number to wait for if its transaction is there already."""
        with self.lock:
            self._admit(rows.size_bytes)
            if txn is not None:
                repeat_of = self._repeat_of(txn)
                if repeat_of is not None:
                    return None, repeat_of
            generation = self._place(rows)
            pending = Pending(rows, self.buffered, generation, txn)
            self.buffered = pending.end
            if txn is not None:
                mark = SeenTransaction(txn.version, self.clock.now_ms(), txn.query)
                self._seen_pending[txn.app] = (mark, pending.end)
            if not self.pending:
                self.pending_since = self.clock.monotonic()
                if not self.config.durable_write:
                    self.tick.notify()
            self.pending.append(pending)
            self.pending_bytes += rows.size_bytes
            if self.active is not None:
                self._freeze_if_full(self.active)
            if not self.config.durable_write and 0 < self.config.max_wal_buffer_size <= self.pending_bytes:
                self.drain_wanted = True
                self.tick.notify()
            return pending, pending.end

    def refuse(self) -> None:
        """Raise if this writer must not accept or show rows any more."""
        if self.poison is not None:
            raise WriterPoisonedError(str(self.poison)) from (self.poison.__cause__ or self.poison)
        if self.state != OPEN:
            raise ClosedError(f"the writer of shard {self.log.shard_id} is closed; open a new one")

    def refuse_writes(self) -> None:
        """Raise if this writer must not accept rows any more."""
        self.refuse()
        if self.fenced is not None:
            raise FencedError(self.fenced.our_epoch, self.fenced.current_epoch, f"shard {self.log.shard_id}")

    def _admit(self, size_bytes: int) -> None:
        """Wait for room (backpressure) and for a bulk write to end; raise if the writer cannot accept."""
        self.refuse_writes()
        limit = self.config.max_unflushed_memtable_bytes
        if self._held_bytes() < limit and not self.exclusive:
            return
        started = self.clock.monotonic()
        self.waits += 1
        interval = self.config.backpressure_log_interval_ms / 1000
        next_warning = started + interval
        while self.exclusive or self._held_bytes() >= limit:
            if self.active is not None and not self.frozen and not self.exclusive:
                self.freeze(self.active)
            self.drain_wanted = True
            self.tick.notify()
            self.changed.wait(max(0.001, next_warning - self.clock.monotonic()))
            now = self.clock.monotonic()
            if now >= next_warning:
                _LOG.warning(
                    "put waits for room [shard=%s, held_bytes=%d, limit_bytes=%d, put_bytes=%d, waited_seconds=%.1f]",
                    self.log.shard_id,
                    self._held_bytes(),
                    limit,
                    size_bytes,
                    now - started,
                )
                next_warning = now + interval
            self.refuse_writes()
            self.raise_flush_error()
        self.wait_seconds += self.clock.monotonic() - started

    def _held_bytes(self) -> int:
        return self.memory_bytes if self.active is not None else self.pending_bytes

    def raise_flush_error(self) -> None:
        """Raise the error of a flush that failed again and again (retries go on)."""
        if self.flush_error is not None and self.flush_failures >= _FLUSH_FAILURES_TO_REPORT:
            raise self.flush_error

    def _repeat_of(self, txn: Transaction) -> int | None:
        """The batch number to wait for if `txn` is there or pending; raises where its version went backwards."""
        pending = self._seen_pending.get(txn.app)
        if pending is not None and is_repeat(txn, {txn.app: pending[0]}):
            return pending[1]
        return 0 if is_repeat(txn, self.seen) else None

    def _place(self, rows: WriteRows) -> int:
        """Put the rows into the active memtable, or count them in the run; returns their generation."""
        limits, count = self.config, len(rows.batches)
        active = self.active
        if active is None:
            return self.run.add(rows.num_rows, count, rows.size_bytes, limits)
        if active.num_rows and (
            active.num_rows + rows.num_rows > limits.max_memtable_rows
            or active.num_batches + count > limits.max_memtable_batches
        ):
            active = self.freeze(active)
        for batch, flags in zip(rows.batches, rows.flags, strict=True):
            self.memory_bytes += active.append(batch, flags)
        return active.generation

    # ------------------------------------------------------------------------------------------------ group commit

    def make_durable(self, end: int) -> None:
        """Return once every batch below `end` is on storage; the caller leads the commit where nobody else does."""
        while self.durable < end:
            with self._commit_lock:
                if self.durable < end:
                    self._commit_group()

    def _commit_group(self) -> None:
        with self.lock:
            self._refuse_commit()
            group = self._next_group()
            seen = self._seen_after(group[-1].txn)
        started = self.clock.monotonic()
        data = self._encode(group, seen)
        reach("wal.before_put")
        io_started = self.clock.monotonic()
        try:
            position = self.log.append(data)
        except FencedError as error:
            self._fail(fenced=error)
            raise
        except WriterPoisonedError as error:
            self._fail(poison=error)
            raise
        except Exception as error:
            poison = WriterPoisonedError(f"the log of shard {self.log.shard_id} failed; reopen the shard: {error}")
            poison.__cause__ = error
            self._fail(poison=poison)
            raise poison from error
        ended = self.clock.monotonic()
        reach("wal.after_put")
        with self.lock:
            self._settle(group, seen, position)
            stats = self.stats
            stats.wal_flush_count += 1
            stats.wal_flush_bytes += len(data)
            stats.wal_flush_time += ended - started
            stats.wal_io_count += 1
            stats.wal_io_time += ended - io_started

    def _refuse_commit(self) -> None:
        if self.poison is not None:
            raise WriterPoisonedError(str(self.poison)) from (self.poison.__cause__ or self.poison)
        if self.fenced is not None:
            raise FencedError(self.fenced.our_epoch, self.fenced.current_epoch, f"shard {self.log.shard_id}")
        if self.state == CLOSED:
            raise ClosedError(f"the writer of shard {self.log.shard_id} is closed; the write was not acknowledged")

    def _next_group(self) -> list[Pending]:
        """The pending writes of the next entry: one generation, at most `max_entry_bytes`; a transaction is alone."""
        first = self.pending[0]
        group, size = [first], first.rows.size_bytes
        if first.txn is not None:
            return group
        for item in list(self.pending)[1:]:
            size += item.rows.size_bytes
            if item.txn is not None or item.generation != first.generation or size > self.config.max_entry_bytes:
                break
            group.append(item)
        return group

    def _seen_after(self, txn: Transaction | None) -> dict[str, SeenTransaction]:
        return self.seen if txn is None else with_transaction(self.seen, txn, self._seen_pending[txn.app][0].written_ms)

    def _encode(self, group: list[Pending], seen: dict[str, SeenTransaction]) -> bytes:
        generation = group[0].generation
        if self._encoder is None or self._encoder.generation != generation:
            self._encoder = EntryEncoder(self.schema.wal, self.log.epoch, generation)
        batches = [
            batch.append_column(TOMBSTONE_FIELD, flags if flags is not None else self._all_live(batch.num_rows))
            for item in group
            for batch, flags in zip(item.rows.batches, item.rows.flags, strict=True)
        ]
        return self._encoder.encode(batches, txn=group[0].txn, seen=seen)

    def _all_live(self, rows: int) -> pa.BooleanArray:
        flags = self._flag_slices.get(rows)
        if flags is None:
            if rows > _FLAG_CACHE_ROWS:
                return pa.array(np.zeros(rows, dtype=bool))
            flags = self._live_flags.slice(0, rows)
            if len(self._flag_slices) < 64:
                self._flag_slices[rows] = flags
        return flags

    def _settle(self, group: list[Pending], seen: dict[str, SeenTransaction], position: int) -> None:
        """Record that `group` is on storage at `position`."""
        for item in group:
            self.pending.popleft()
            self.pending_bytes -= item.rows.size_bytes
            if item.txn is not None and self._seen_pending[item.txn.app][1] == item.end:
                del self._seen_pending[item.txn.app]
        self.seen = seen
        self.durable = group[-1].end
        if self.active is not None:
            for memtable in (*self.frozen, self.active):
                if memtable.generation == group[0].generation:
                    memtable.covered_position = position
        self.pending_since = self.clock.monotonic()
        self.changed.notify_all()

    def _fail(self, *, poison: WriterPoisonedError | None = None, fenced: FencedError | None = None) -> None:
        with self.lock:
            self.poison = self.poison or poison
            self.fenced = self.fenced or fenced
            self.wake_all()
        _LOG.warning("writer stops [shard=%s, epoch=%d]: %s", self.log.shard_id, self.log.epoch, poison or fenced)

    def wake_all(self) -> None:
        """Wake every thread of this writer; `lock` is held."""
        for condition in (self.changed, self.tick, self.work):
            condition.notify_all()

    # ---------------------------------------------------------------------------------------------- freeze and capture

    def _freeze_if_full(self, active: MemTable) -> None:
        limits = self.config
        if (
            active.num_rows >= limits.max_memtable_rows
            or active.num_batches >= limits.max_memtable_batches
            or active.size_bytes >= limits.max_memtable_size
        ):
            self.freeze(active)

    def freeze(self, active: MemTable) -> MemTable:
        """Swap in a new memtable (`lock` is held); the frozen one stays readable until its SSTable is published."""
        if active.num_rows == 0:
            return active
        self.frozen.append(active)
        self.active = MemTable(self.schema, active.generation + 1, active.end_batch, active.covered_position)
        self.work.notify_all()
        return self.active

    def seal(self) -> None:
        """Freeze the active memtable if it holds rows."""
        with self.lock:
            if self.active is not None:
                self.freeze(self.active)

    def capture(self) -> InMemoryMemTables:
        """What readers may see now: active and frozen memtables together, one watermark for all."""
        with self.lock:
            self.refuse()
            if self.active is None:
                raise InvalidInputError("this writer is in WAL-only mode and has no memtable")
            visible = self.durable if self.config.durable_write else self.buffered

            def shown(memtable: MemTable) -> int:
                return max(0, min(visible - memtable.first_batch, memtable.num_batches))

            frozen = tuple(memtable.capture(shown(memtable)) for memtable in self.frozen)
            active = self.active.capture(shown(self.active))
            return InMemoryMemTables(active, frozen, self.log.shard_id, self.log.epoch)

    def release(self, memtable: MemTable) -> None:
        """Drop a frozen memtable whose SSTable is published."""
        with self.lock:
            self.frozen.remove(memtable)
            self.memory_bytes -= memtable.size_bytes
            self.flush_error, self.flush_failures = None, 0
            self.changed.notify_all()

    def wait_until(self, done: Callable[[], bool], timeout_seconds: float | None) -> bool:
        """Wait, holding `lock`, until `done`; False on time-out. Poison, fences and failing flushes raise."""
        deadline = None if timeout_seconds is None else self.clock.monotonic() + timeout_seconds
        while not done():
            if self.poison is not None or self.fenced is not None:
                self._refuse_commit()
            self.raise_flush_error()
            left = None if deadline is None else deadline - self.clock.monotonic()
            if left is not None and left <= 0:
                return False
            self.changed.wait(left if left is not None else 1.0)
        return True
