"""Group commit: the writes of concurrent callers share one log entry.

Entry points: `GroupCommit.write` (insert a small put and wait until it is durable), `insert`, `make_durable`. Rows fit the
table already. Invariants:

1. All batches of one write get consecutive numbers and go into one generation and one log entry. A write exists once it is
   in `pending`; it leaves `pending` only after its entry is on storage.
2. Callers commit. One caller, the leader, writes one entry for the pending writes of one generation and for the small puts in
   the queue. The others sleep until their write is durable or they become the leader. A leader stops once its own write
   is durable, so it never raises an error of another caller's entry.
3. The durable watermark only grows. In durable mode readers see the writes below it, otherwise all inserted writes.
4. A leader that is interrupted (any `BaseException` that is not an `Exception`) poisons the writer: what its entry did is
   unknown until the shard is opened again. A caller that waits and is interrupted takes its put out of the queue; a write
   that was inserted already is committed by the ticker, and may be in the table.
5. A leader may wait briefly so that more puts join its entry. A flush, a close or a full buffer ends that wait.
6. Transaction ids are in the footer of the entry. Either all ids of an entry take effect, or none.
7. A call on top of another call of the same thread (in a signal handler) is refused if that call leads or holds the lock.

Lock order: the turn to lead, then the writer's lock. A caller gives up the turn before it waits for buffer space.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

from lance_memwal.clock import Clock
from lance_memwal.config import WriterConfig
from lance_memwal.crash_points import reach
from lance_memwal.errors import ClosedError, FencedError, MemWalError, TableReplacedError, WriterPoisonedError
from lance_memwal.log.blob_targets import blob_target
from lance_memwal.log.entry import encode_mark
from lance_memwal.log.tail import LogRun
from lance_memwal.log.transactions import TransactionMap, is_repeat
from lance_memwal.log.wal import ShardLog
from lance_memwal.process.background import Task
from lance_memwal.process.deadline import Deadline
from lance_memwal.process.telemetry import active, spanned
from lance_memwal.process.waiting import LOOK_AGAIN_SECONDS, is_held_here, on_top_error
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import EntryFooter, EntryTransaction, SeenTransaction, SsTable, Transaction
from lance_memwal.write.health import Health
from lance_memwal.write.queue import Entry, EntryBuilder, Pending, PutQueue, QueuedPut, WriteRows
from lance_memwal.write.stats import BackpressureStats, StatsHandle

_LOG = logging.getLogger(__name__)
_LINGER_SLICE_SECONDS = 0.002  # nobody who cannot wait waits for longer
T = TypeVar("T")


class Placement(Protocol):
    """Where the rows of writes are placed; every call is made under the lock of the writer."""

    def held_bytes(self, pending_bytes: int, /) -> int:
        """The bytes that backpressure bounds; `pending_bytes` are not in the log yet."""

    def place(self, rows: WriteRows, start: int, run: LogRun, /) -> LogRun:
        """Place one write, whose first batch is `start`; returns its run, which follows `run`."""

    def placed(self, end: int) -> None:
        """Go on: the write exists now, and `end` is the number after it."""

    def cover(self, generation: int, position: int) -> None:
        """Note that the log holds rows of `generation` up to `position`."""

    def make_room(self, end: int) -> None:
        """See to it that there will be room."""


class StaleRowsError(Exception):
    """Rows that were fitted to columns that the table no longer has; nothing of the write was inserted."""


class RepeatedError(Exception):
    """A queued put whose transaction is there already, or pending: it is on storage once all below `end` is."""

    def __init__(self, end: int) -> None:
        super().__init__("the transaction is there already")
        self.end = end


class TooLargeError(Exception):
    """A queued put that was taken for a small one, and whose rows do not fit one entry."""

    def __init__(self, rows: WriteRows) -> None:
        super().__init__("too large for one entry")
        self.rows = rows


class GroupCommit:
    """The way of writes into the log of one shard."""

    def __init__(
        self,
        *,
        config: WriterConfig,
        schema: TableSchema,
        log: ShardLog,
        transactions: TransactionMap,
        run: LogRun,
        health: Health,
        tables: Placement,
        stats: StatsHandle,
        clock: Clock,
        ticker: Task,
    ) -> None:
        """`run` is the one that the next write belongs to or follows."""
        self._limits = config
        self._log = log
        self._transactions = transactions
        self._health = health
        self._tables = tables
        self._stats = stats
        self._clock = clock
        self._ticker = ticker
        self.pending: deque[Pending] = deque()
        self.durable = 0
        self._durable_bytes = 0
        self._durable_run = run
        self._since = 0.0  # when the oldest pending write came, where nobody waits for it
        self._drain_at: float | None = None  # when the ticker must drain because somebody asked for it
        self._linger_seconds = config.commit_linger_ms / 1000
        self._hurried: set[int] = set()  # threads that wait for their writes to be durable, and cannot linger
        self._alone = 0  # the thread that keeps all others out
        self._times_alone = 0
        self._waits = 0
        self._wait_seconds = 0.0
        self._puts = PutQueue()
        self._is_led = False  # whether a leader has the turn: a hint, which comes a moment late
        self._attempt: Entry | None = None  # the entry that is being written
        self.use_columns(schema)
        self.make_locks()
        health.also_wake(self._wake_puts)

    def make_locks(self) -> None:
        """Create the locks: at the start, and in a forked child, where their holders do not exist."""
        self._turn = self._clock.rlock()  # which knows its thread; no thread takes it twice

    def use_columns(self, schema: TableSchema) -> None:
        """Switch to other columns; nothing is pending. Must come before callers see the columns: what they encode is of
        the columns that their rows were fitted to, or is refused as stale."""
        self._schema = schema
        log, limits = self._log, self._limits
        target = partial(blob_target, schema, log.table, log.shard_id, log.epoch, limits.max_memtable_batches)
        most = limits.max_memtable_batches
        self._base = schema.base
        self.entries = EntryBuilder(schema, log.epoch, limits.max_entry_bytes, target, max_batches=most)

    def _wake_puts(self) -> None:
        self._puts.wake_all()
        for item in tuple(self.pending):  # a leader may settle some meanwhile
            if item.put is not None:
                item.put.place.wake()

    # -------------------------------------------------------------------------------------------------------- looking

    @property
    def span_attributes(self) -> dict[str, str | int]:
        """What a span says of this shard."""
        return {"shard": self._log.shard_id, "epoch": self._log.epoch}

    @property
    def buffered(self) -> int:
        """The number after the newest batch that was inserted; whoever drains, closes or moves reads it without the lock."""
        try:
            return self.pending[-1].end
        except IndexError:  # all settled, and durable before it left the queue
            return self.durable

    @property
    def visible(self) -> int:
        """The number after the newest batch that readers may see."""
        return self.durable if self._limits.durable_write else self.buffered

    @property
    def pending_bytes(self) -> int:
        """Bytes of the writes that are not yet on storage."""
        return self.pending[-1].end_bytes - self._durable_bytes if self.pending else 0

    @property
    def held_bytes(self) -> int:
        """The bytes that backpressure bounds."""
        return self._tables.held_bytes(self.pending_bytes)

    def transactions(self) -> dict[str, SeenTransaction]:
        """The newest version per application that is on storage."""
        with self._health.lock:
            return self._transactions.whole()

    def backpressure(self) -> BackpressureStats:
        """Puts that waited for room."""
        with self._health.lock:
            return BackpressureStats(self._waits, self._wait_seconds * 1000)

    # ------------------------------------------------------------------------------------------------------ inserting

    def insert(
        self,
        rows: WriteRows,
        txn: Transaction | None,
        *,
        drain: bool = False,
        decide: Callable[[], WriteRows | None] | None = None,
    ) -> tuple[Pending | None, int]:
        """Insert one write; returns it, or None and the batch number to wait for if its transaction was applied already.

        `drain` asks the ticker to put it into the log. `decide` is called at the last moment, under the lock: it returns the
        encoded rows to insert instead of `rows`, or None for nothing. Raises `StaleRowsError` if the columns changed since
        the rows were fitted.
        """
        waited = False
        lock = self._health.lock
        self.refuse_on_top()
        while True:
            with lock:
                self._health.refuse_writes()
                if self._has_room:
                    return self._insert(rows, txn, drain=drain, decide=decide)
            waited = self._wait_for_room(rows.size_bytes, counted=waited)

    def repeated(self, txn: Transaction) -> int | None:
        """The batch number to wait for if `txn` is there or pending, else None; raises where its version went backwards."""
        self.refuse_on_top()
        with self._health.lock:
            self._health.refuse_writes()
            return self._repeat_of(txn)

    def refuse_repeated(self, txns: tuple[EntryTransaction, ...]) -> None:
        """Raise `RepeatedError` if one of `txns` is there or pending."""
        with self._health.lock:
            for item in txns:
                end = self._repeat_of(item.txn)
                if end is not None:
                    raise RepeatedError(end)

    def _insert(
        self, rows: WriteRows, txn: Transaction | None, *, drain: bool, decide: Callable[[], WriteRows | None] | None
    ) -> tuple[Pending | None, int]:
        limits = self._limits
        if txn is not None:
            repeat_of = self._repeat_of(txn)
            if repeat_of is not None:
                return None, repeat_of
        if decide is not None:
            decided = decide()
            if decided is None:
                return None, self.buffered
            rows = decided
        self.refuse_stale(rows.schema)
        if not limits.durable_write and not self.pending:
            self._since = self._clock.monotonic()
            self._ticker.poke()
        pending = self._add(rows, () if txn is None else (EntryTransaction(txn),))
        if not limits.durable_write and 0 < limits.max_wal_buffer_size <= self.pending_bytes:
            self._want_drain()
        elif drain:
            self._want_drain(self._linger_seconds)
        return pending, pending.end

    def _insert_queued(self, put: QueuedPut) -> bool:
        """Make rows of a queued put, and insert them; False if they find no room."""
        while True:
            rows = put.rows
            if rows is None:  # else they were fitted before, and found no room
                rows = put.fit(put.batches, put.fill, put.size_bytes)
                if not self.entries.encode_rows(rows):
                    raise TooLargeError(rows)
                put.rows = rows
            with self._health.lock:
                self._health.refuse_writes()
                if not self._has_room:
                    return False
                if put.txns:
                    self.refuse_repeated(put.txns)
                if rows.schema is self._schema:
                    put.pending = self._add(rows, put.txns)
                    put.pending.put = put
                    return True
                put.rows = None  # the columns changed: fit the rows again

    def refuse_stale(self, schema: TableSchema) -> None:
        """Raise if the shard no longer has the columns of `schema` (the lock is held)."""
        if schema is not self._schema:
            raise StaleRowsError

    def _add(self, rows: WriteRows, txns: tuple[EntryTransaction, ...]) -> Pending:
        """Place the rows of one write and make it pending. An interrupt in between poisons the writer."""
        try:
            pending = self._placed(rows, txns)
            self.pending.append(pending)
            self._tables.placed(pending.end)
        except Exception:
            raise
        except BaseException as interrupt:
            self._health.poisoned("a write was interrupted", interrupt)
            raise
        return pending

    def _placed(self, rows: WriteRows, txns: tuple[EntryTransaction, ...]) -> Pending:
        if self.pending:
            last = self.pending[-1]
            start, start_bytes, run = last.end, last.end_bytes, last.run
        else:
            start, start_bytes, run = self.durable, self._durable_bytes, self._durable_run
        return Pending(rows, start, start_bytes, self._tables.place(rows, start, run), txns)

    def _repeat_of(self, txn: Transaction) -> int | None:
        """The batch number to wait for if `txn` is there or pending; raises where its version went backwards."""
        for item in reversed(self.pending):
            for other in item.txns:
                if other.txn.app == txn.app:
                    return (
                        item.end
                        if is_repeat(txn, {txn.app: SeenTransaction(other.txn.version, 0, other.txn.query)})
                        else None
                    )
        return None if self.admit(txn) else 0

    def admit(self, txn: Transaction) -> bool:
        """Whether `txn` is new to the log; raises where its version went backwards, or there are too many applications."""
        if self._transactions.is_repeat(txn):
            return False
        self._transactions.admit(txn)
        return True

    # ----------------------------------------------------------------------------------------------------------- room

    @property
    def _has_room(self) -> bool:
        held = self._tables.held_bytes(self.pending_bytes)
        return held < self._limits.max_unflushed_memtable_bytes and not self._alone

    def _wait_for_room(self, size_bytes: int, *, counted: bool = False) -> bool:
        """Wait (backpressure, a bulk write); returns whether the put is counted as one that waited (`counted`: it is already).

        Room that was there may be gone when this returns. `UnavailableError` if nothing moves for longer than any flush
        takes. The lock is not held.
        """
        health, limit = self._health, self._limits.max_unflushed_memtable_bytes
        interval = self._limits.backpressure_log_interval_ms / 1000
        started = now = self._clock.monotonic()
        next_warning = started + interval
        found_full, attempts = False, health.flush_attempts
        deadline, before = Deadline(self._clock), (self.held_bytes, self._times_alone)
        try:
            while True:
                with health.lock:
                    health.refuse_writes()
                    health.refuse_failing_flush(attempts)
                    if self._has_room:
                        return counted
                    held = self.held_bytes
                    if held < before[0] or self._times_alone != before[1]:
                        deadline = Deadline(self._clock)
                    before = held, self._times_alone
                    deadline.refuse_passed(
                        f"nothing of shard {self._log.shard_id} was flushed, and the put found no room; "
                        "nothing of it was written, retry"
                    )
                    found_full = found_full or held >= limit
                    begins = held >= limit and not counted
                    if begins:
                        counted = True
                        self._waits += 1
                    if not self._alone:
                        self._tables.make_room(self.buffered)
                    self._want_drain()
                    place = health.changed.stand()
                if begins:
                    _LOG.debug(
                        "backpressure began [shard=%s, held_bytes=%d, limit_bytes=%d]", health.shard_id, held, limit
                    )
                health.sleep(place, max(0.001, next_warning - now))
                now = self._clock.monotonic()
                if now >= next_warning:
                    self._warn_of_wait(held, size_bytes, now - started)
                    next_warning = now + interval
        finally:
            if found_full:
                waited = self._clock.monotonic() - started
                self._wait_seconds += waited
                if (told := active()) is not None:
                    told.note("lance_mem_wal_backpressure_wait_seconds", waited)

    def _warn_of_wait(self, held_bytes: int, size_bytes: int, waited_seconds: float) -> None:
        _LOG.warning(
            "put waits for room [shard=%s, held_bytes=%d, limit_bytes=%d, put_bytes=%d, waited_seconds=%.1f]",
            self._log.shard_id,
            held_bytes,
            self._limits.max_unflushed_memtable_bytes,
            size_bytes,
            waited_seconds,
        )

    @property
    def is_exclusive(self) -> bool:
        """Whether a write keeps all others out."""
        return self._alone != 0

    def alone(self, write: Callable[[], T], deadline: Deadline | None = None) -> T:
        """Call `write` while nothing else is inserted, one caller at a time. An interrupt inside poisons the writer.

        Raises `UnavailableError` at the deadline, or if the call of another thread does not end.
        """
        me = threading.get_ident()
        self.refuse_on_top()
        try:
            try:
                self._keep_others_out(me, deadline)
                result = write()
            except Exception:
                self._let_others_in(me)
                raise
            self._let_others_in(me)
        except BaseException as interrupt:  # also one while the others were let in
            if self._alone == me and not isinstance(interrupt, Exception):
                self._health.poisoned("a bulk write or a change of columns was interrupted", interrupt)
                self._let_others_in(me)
            raise
        return result

    def _keep_others_out(self, me: int, deadline: Deadline | None) -> None:
        def taken() -> bool:
            if self._alone:
                return False
            self._health.refuse_writes()
            self._alone = me
            return True

        before, limit = self._times_alone, deadline or Deadline(self._clock)
        while not self._health.wait_until(taken, limit.left_seconds):
            if deadline is not None or before == self._times_alone:  # else the others have their turns, and end
                raise limit.error("a bulk write or a change of columns has not ended; nothing was written, retry")
            before, limit = self._times_alone, Deadline(self._clock)

    def _let_others_in(self, me: int) -> None:
        """End the turn of this thread, if it has it."""
        if self._alone != me:
            return
        with self._health.lock:
            self._alone = 0
            self._times_alone += 1
            self._health.changed.wake_all()
        self._puts.wake_next()  # it sleeps, if it came while the turn was taken for the mark

    def mark_bulk(self, sstable: SsTable, txns: tuple[EntryTransaction, ...]) -> EntryFooter:
        """Announce a generation that is not in the log, at its tip; nothing is pending. Its transactions do not count yet."""
        with self._turn:
            try:
                self._is_led = True
                self._health.refuse_commits()
                with self._health.lock:
                    footer = self._transactions.mark(table=self._log.table)._replace(txns=txns, bulk=sstable)
                self._log.append(encode_mark(self._log.epoch, footer))
                with self._health.lock:
                    self._transactions.take(footer, decided=False)
            finally:
                self._is_led = False
        return footer

    def skip_to(self, end: int, bulk: EntryFooter | None = None) -> None:
        """Go on after batches below `end`, which are on storage without an entry of ours, or as the mark `bulk` announced
        (the lock is held, and nothing is pending)."""
        if bulk is not None:
            self._transactions.take(bulk)
        self.durable = end

    # ------------------------------------------------------------------------------------------------- what is drained

    def _want_drain(self, within_seconds: float = 0.0) -> None:
        at = self._clock.monotonic() + within_seconds if within_seconds else 0.0
        if self._drain_at is None or at < self._drain_at:
            self._drain_at = at
        self._ticker.poke()

    def hurry(self, end: int) -> None:
        """Let the ticker make durable what is below `end`, for somebody who waits for it and does not lead."""
        with self._health.lock:
            if self.durable < end:
                self._want_drain()

    def take_due(self, now: float, interval: float | None) -> int:
        """The number that the ticker must make durable up to, 0 if there is none (the lock is held)."""
        wanted = self._drain_at is not None and now >= self._drain_at
        due = wanted or (interval is not None and now >= self._since + interval)
        if due or not self.pending:
            self._drain_at = None
        return self.buffered if self.pending and due else 0

    def next_due(self, interval: float | None) -> float | None:
        """When (`monotonic`) the ticker must drain, if nothing else happens (the lock is held)."""
        if not self.pending:
            return None
        if interval is None or (self._drain_at is not None and self._drain_at < self._since + interval):
            return self._drain_at
        return self._since + interval

    # ----------------------------------------------------------------------------------------------------- committing

    def write(self, put: QueuedPut) -> Pending:
        """Insert one put and return once it is on storage; the caller leads the commit where nobody else does."""
        self._health.refuse_writes()
        self.refuse_on_top()
        try:
            self._puts.append(put)
            while not self._is_done(put):
                self._sleep_or_lead(put)
        except BaseException as error:
            self._puts.withdraw(put)
            self._leave(error, 0 if put.pending is None else put.pending.end)
            raise
        finally:
            put.place.wake_follower()
        if put.error is not None:
            raise put.error
        if put.pending is None:
            raise AssertionError("a put is done that was never inserted")
        return put.pending

    def _sleep_or_lead(self, put: QueuedPut) -> None:
        if self._is_led or not self._puts.is_oldest(put):
            put.place.sleep(LOOK_AGAIN_SECONDS)
            if self._is_done(put):
                return
        room = True
        with self._turn:
            if not self._is_done(put):
                lingers = self._linger_seconds > 0 and put.pending is None  # else the leader before did
                room = self._lead(put, 0, lingers)
        if room:
            self._puts.wake_next()
            return
        self._puts.wake_all()  # each waits for room by itself
        if not put.is_taken:
            self._wait_queued_for_room(put)

    def _wait_queued_for_room(self, put: QueuedPut) -> None:
        """Wait for room; raise what makes that useless only if no leader took `put` meanwhile: then it may be in the log."""
        try:
            put.waited = self._wait_for_room(put.size_bytes, counted=put.waited)
        except MemWalError:
            with self._turn:  # nobody takes puts now
                if not put.is_taken:
                    self._puts.withdraw(put)
                    raise

    def _is_done(self, put: QueuedPut) -> bool:
        if put.error is not None:
            return True
        return put.pending is not None and put.pending.end <= self.durable

    def make_durable(self, end: int, *, linger: bool = False) -> None:
        """Return once every batch below `end` is on storage; the caller leads the commit where nobody else does.

        The caller that gets the turn commits for all others. A caller with `linger` can wait for others to join its entry.
        """
        if self.durable >= end:
            return
        lingers = linger and self._linger_seconds > 0
        self.refuse_on_top(is_inserted=True)
        try:
            if not lingers:
                self._hurried.add(threading.get_ident())
            while self.durable < end:
                with self._turn:
                    if self.durable < end:
                        self._lead(None, end, lingers)
                self._wake_next()
        except BaseException as error:
            self._leave(error, end)
            raise
        finally:
            self._hurried.discard(threading.get_ident())

    def wait_durable(self, end: int, seconds: float) -> bool:
        """Wait until every batch below `end` is on storage, led by the ticker or by others; False after `seconds`.

        A fence or an abort is raised only once it is known that they are not in the log: the leader may have written them.
        """
        self.refuse_on_top(is_inserted=True)
        deadline = Deadline(self._clock, seconds)
        self.hurry(end)
        try:
            return self._health.wait_until(lambda: self.durable >= end, seconds, of_flush=False)
        except (FencedError, TableReplacedError, ClosedError):
            if not self._turn.acquire(timeout=deadline.left_seconds):
                return False
            self._turn.release()  # no leader writes these now
            if self.durable < end:
                raise
        return True

    def _leave(self, error: BaseException, end: int) -> None:
        """Let others commit: this caller was interrupted or refused, and its rows below `end` may still be pending."""
        if isinstance(error, WriterPoisonedError):
            error.ambiguous = self._attempt is not None and self._attempt.group[0].start < end
        self._wake_next()
        self.hurry(self.buffered)

    def _wake_next(self) -> None:
        """Let the oldest caller lead whose put is not on storage."""
        if self.pending:
            for item in tuple(self.pending):
                if item.put is not None:
                    item.put.place.wake()
                    return
        self._puts.wake_next()

    def _linger(self) -> None:
        """Let others join the entry that is written next, which the caller leads: it has the turn."""
        limit = self._limits.max_wal_buffer_size or self._limits.max_entry_bytes
        until = self._clock.monotonic() + self._linger_seconds
        while (left := until - self._clock.monotonic()) > 0 and self._health.is_open and not self._health.has_failed:
            if self._hurried or self._puts.size_bytes + self.pending_bytes >= limit:
                return
            self._clock.sleep(min(left, _LINGER_SLICE_SECONDS))

    @property
    def is_entered_here(self) -> bool:
        """Whether this thread is in a commit, a bulk write or a change of columns, or holds the writer's lock."""
        return self._commits_here or (self._alone != 0 and self._alone == threading.get_ident())

    @property
    def _commits_here(self) -> bool:
        return is_held_here(self._turn) or is_held_here(self._health.lock)

    def refuse_on_top(self, *, is_inserted: bool = False) -> None:
        """Raise if this thread is in a commit already, as in a signal handler: it would wait for itself.

        `is_inserted`: the write that the caller waits for may reach storage all the same.
        """
        if self._commits_here if is_inserted else self.is_entered_here:
            error = on_top_error("a write")
            error.ambiguous = is_inserted
            raise error

    def _lead(self, own: QueuedPut | None, end: int, lingers: bool) -> bool:
        """Commit until `own`, or what is below `end`, is on storage; False if a queued put found no room. The caller has
        the turn, and lets others join if it `lingers`."""
        try:
            self._is_led = True
            if lingers:
                self._linger()
            self._health.refuse_commits()
            self._puts.gather(self._clock)
            room = self._puts.take(self._insert_queued, own)
            if own is not None:
                end = self._end_of(own)
            while self.durable < end:
                self._commit_group(own)
            self._puts.wake_served()
        except Exception:
            raise
        except BaseException as interrupt:
            self._health.poisoned("a commit was interrupted", interrupt)
            raise
        else:
            return room
        finally:
            self._is_led = False

    def _end_of(self, own: QueuedPut) -> int:
        """What a leader must make durable for its own put: all, where that found no room, and nothing where it is wrong."""
        if own.error is not None:
            return 0
        return self.buffered if own.pending is None else own.pending.end

    def _about_entry(self, *_: object, result: Entry | None) -> dict[str, str | int]:
        known = self.span_attributes
        if result is None:
            return known
        rows = sum(item.rows.num_rows for item in result.group)
        return {**known, "generation": result.group[0].generation, "rows": rows}

    @spanned("memwal.wal_flush", about=_about_entry)
    def _commit_group(self, own: QueuedPut | None) -> Entry:
        health = self._health
        with health.lock:
            entry = self._next_entry()
        started = self._clock.monotonic()
        try:
            entry.data = self.entries.encode(entry)
            io_started = self._clock.monotonic()
            reach("wal.before_put")
            self._attempt = entry
            self._log.append(entry.data)
        except (FencedError, TableReplacedError, WriterPoisonedError) as error:
            health.fail(error)
            raise
        except Exception as error:
            raise health.poisoned(f"the log of shard {self._log.shard_id} failed", error) from error
        ended = self._clock.monotonic()
        reach("wal.after_put")
        with health.lock:
            self._settle(entry)
            health.changed.wake_all()
            puts, rows = [], 0
            for item in entry.group:
                put = item.put
                rows += item.rows.num_rows
                if put is not None:
                    puts.append((ended - put.started, len(put.txns) or 1))
                    if put is not own:
                        self._puts.serve(put)
            self._stats.count_entry(len(entry.data), ended - started, ended - io_started, puts, rows)
        return entry

    def _next_entry(self) -> Entry:
        """The entry that is written next."""
        first = self.pending[0]
        if len(self.pending) == 1:
            group, txns = [first], _transactions_of([first]) if first.txns else ()
        else:
            group = self._next_group(first)
            txns = _transactions_of(group)
        footer = self._transactions.footer(first.run.generation, txns, self._log.table, self._base)
        return Entry(group, footer)

    def _next_group(self, first: Pending) -> list[Pending]:
        """The pending writes of the next entry: one generation, at most `max_entry_bytes`."""
        group = [first]
        size, limit = first.rows.most_bytes, self._limits.max_entry_bytes
        for item in islice(self.pending, 1, None):
            size += item.rows.most_bytes
            if item.generation != first.generation or size > limit:
                break
            group.append(item)
        return group

    def _settle(self, entry: Entry) -> None:
        """Record that `entry` is on storage (the lock is held)."""
        last = entry.group[-1]
        generation = last.run.generation
        self._tables.cover(generation, self._log.next_position - 1)
        self._transactions.take(entry.footer, generation)
        self.durable, self._durable_bytes, self._durable_run = last.end, last.end_bytes, last.run
        while self.pending and self.pending[0].end <= self.durable:
            self.pending.popleft()
        self._attempt = None
        if not self._limits.durable_write:
            self._since = self._clock.monotonic()


def _transactions_of(group: list[Pending]) -> tuple[EntryTransaction, ...]:
    """The transactions of an entry, each with its rows: three puts of 2, 1 and 4 rows, of which the first and the last
    are transactions, give the rows 0 to 1 and 3 to 6."""
    found, first_row = [], 0
    for item in group:
        for own in item.txns:
            rows = item.rows.num_rows if own.num_rows is None else own.num_rows
            found.append(EntryTransaction(own.txn, first_row + own.first_row, rows))
        first_row += item.rows.num_rows
    return tuple(found)
