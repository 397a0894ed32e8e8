"""The order of effects in one shard writer: the group commit.

Owns `GroupCommit`: pending writes, the queue of puts, the turn to commit, the watermark and the transactions. It takes
rows that are fitted, and calls nobody above. Invariants:

1. A write is inserted whole: its batches get consecutive numbers and go into one generation and one WAL entry. It exists
   from the moment in which it is in `pending`; what follows from it is derived, so that a thread that is interrupted
   anywhere leaves a state that the next caller makes good.
2. The calling thread leads: one thread at a time writes one entry for everything that is pending (of one generation)
   and for the small puts that wait in the queue; the others sleep until theirs are durable, or lead next. A single
   caller hands over to nobody.
3. The durable watermark is writer-wide and only grows. In durable mode readers see what is below it, otherwise what was
   inserted.
4. Pending writes leave the queue only after their entry is on storage: a failed append leaves them queued.
5. An entry whose bytes may be on storage, left by a thread that was interrupted, is sent again as it is. A thread leads
   until its own write is on storage and no further, so that nobody is told of a failure that another's entry met. Then
   it lets the next one lead who waits; what only interrupted callers left is the ticker's. A fence is told to a write once
   it is known that it is not in the log, also where the wait has a limit: whoever is told that had the turn since.
6. A leader that must be durable for its own caller may linger, so that others share its entry; it keeps the turn. Whoever
   cannot wait (a flush, a close, a full buffer) ends that at once.
7. Transactions share entries with each other and with other writes, and several may come in one write: the footer says
   which rows are whose. All of them are in the map once the entry is on storage, or none.
8. A signal handler's write waits for other threads, and never for the call that the signal interrupted: where that has the
   turn (which knows its thread) or the lock, it is refused before anything is inserted.

Who waits: callers, for room or for an acknowledgement; the ticker is poked. A put that nobody waits for wakes nobody.

Locks: the turn to lead is taken before the writer's lock, never inside it, and is given up before anybody waits for room.
"""

from __future__ import annotations

import logging
import threading
import weakref
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
from lance_memwal.log.transactions import TransactionMap, is_repeat, seen_of
from lance_memwal.log.wal import ShardLog
from lance_memwal.process.background import Task
from lance_memwal.process.deadline import Deadline
from lance_memwal.process.telemetry import active
from lance_memwal.process.turns import TakenError, Taking
from lance_memwal.process.waiting import LOOK_AGAIN_SECONDS, is_held_here, on_top_error, refuse_on_top
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import EntryFooter, EntryTransaction, SeenTransaction, SsTable, Transaction
from lance_memwal.write.health import Health
from lance_memwal.write.queue import Entry, EntryBuilder, Pending, PutQueue, QueuedPut, WriteRows
from lance_memwal.write.stats import BackpressureStats, StatsHandle

__all__ = ["GroupCommit", "Placement", "RepeatedError", "TooLargeError"]

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


class _Hurry:
    """Somebody who wants to be durable and cannot wait."""

    __slots__ = ("__weakref__",)


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
        self._hurried: weakref.WeakSet[_Hurry] = weakref.WeakSet()  # whoever is interrupted leaves nothing here
        self._alone = 0  # the thread that keeps all others out
        self._times_alone = 0
        self._waits = 0
        self._wait_seconds = 0.0
        self._puts = PutQueue()
        self._is_led = False  # whether somebody has the turn: a hint, which comes a moment late
        self._in_flight: Entry | None = None
        self.use_columns(schema)
        self.make_locks()
        health.also_wake(self._wake_puts)

    def make_locks(self) -> None:
        """Make all locks anew: at the start, and in a forked child, where their holders do not exist."""
        self._turn = self._clock.rlock()  # which knows its thread; no thread takes it twice

    def use_columns(self, schema: TableSchema) -> None:
        """Go on with other columns; nothing is pending."""
        log, limits = self._log, self._limits
        target = partial(blob_target, schema, log.table, log.shard_id, log.epoch, limits.max_memtable_batches)
        self.entries = EntryBuilder(schema, log.epoch, limits.max_entry_bytes, target)

    def _wake_puts(self) -> None:
        self._puts.wake_all()
        for item in tuple(self.pending):  # a leader may settle some meanwhile
            if item.put is not None:
                item.put.place.wake()

    # -------------------------------------------------------------------------------------------------------- looking

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
        """Insert one write; returns it, or None and the batch number to wait for if its transaction is there already.

        `drain` asks the ticker to put it into the log. `decide` is asked at the last moment, under the lock, what is
        inserted in place of `rows`: encoded rows, or None for nothing.
        """
        waited = False
        lock = self._health.lock
        refuse_on_top(lock, "a write")
        while True:
            with lock:
                self._health.refuse_writes()
                if self._has_room:
                    return self._insert(rows, txn, drain=drain, decide=decide)
            self.refuse_on_top()  # who makes room may want the turn
            waited = self._wait_for_room(rows.size_bytes, counted=waited)

    def repeated(self, txn: Transaction) -> int | None:
        """The batch number to wait for if `txn` is there or pending, else None; raises where its version went backwards."""
        refuse_on_top(self._health.lock, "a write")
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
        pending = self._place(rows, () if txn is None else (EntryTransaction(txn),))
        if not limits.durable_write and not self.pending:
            self._since = self._clock.monotonic()
            self._ticker.poke()
        self.pending.append(pending)
        self._tables.placed(pending.end)
        if not limits.durable_write and 0 < limits.max_wal_buffer_size <= self.pending_bytes:
            self._want_drain()
        elif drain:
            self._want_drain(self._linger_seconds)
        return pending, pending.end

    def _insert_queued(self, put: QueuedPut) -> bool:
        """Make rows of a queued put, and insert them; False if they find no room."""
        rows = put.rows
        if rows is None:  # else they found no room before
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
            pending = self._place(rows, put.txns)
            pending.put, put.pending = put, pending
            self.pending.append(pending)
            self._tables.placed(pending.end)
            return True

    def _place(self, rows: WriteRows, txns: tuple[EntryTransaction, ...]) -> Pending:
        """The write of `rows`, placed and not yet pending."""
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
                    return item.end if is_repeat(txn, {txn.app: seen_of(other.txn)}) else None
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
        found_full = False
        deadline, before = Deadline(self._clock), (self.held_bytes, self._times_alone)
        try:
            while True:
                with health.lock:
                    health.refuse_writes()
                    if now > started:
                        health.refuse_failing_flush()
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
                    if held >= limit and not counted:
                        counted = True
                        self._waits += 1
                    if not self._alone:
                        self._tables.make_room(self.buffered)
                    self._want_drain()
                    place = health.changed.stand()
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

    def alone(self, write: Callable[[], T]) -> T:
        """What `write` returns, while nothing else is inserted; one caller at a time, `UnavailableError` if one has no end."""
        me = threading.get_ident()
        try:
            self._keep_others_out(me)
            return write()
        finally:
            if self._alone == me:  # no call, and so no signal, comes before they are let in
                self._alone = 0
                self._let_others_in()

    def _keep_others_out(self, me: int) -> None:
        def taken() -> bool:
            if self._alone:
                return False
            self._health.refuse_writes()
            self._alone = me
            return True

        before, deadline = self._times_alone, Deadline(self._clock)
        while not self._health.wait_until(taken, deadline.left_seconds):
            if before == self._times_alone:  # else they have their turns, one after the other
                raise deadline.error("another large put has not ended; nothing of this one was written, retry")
            before, deadline = self._times_alone, Deadline(self._clock)

    def _let_others_in(self) -> None:
        with self._health.lock:  # whoever looked before stands in line now
            self._times_alone += 1
            self._health.changed.wake_all()
        self._puts.wake_next()  # it sleeps, if it came while the turn was taken for the mark

    def mark_bulk(self, sstable: SsTable, txns: tuple[EntryTransaction, ...]) -> EntryFooter:
        """Announce a generation that is not in the log, at its tip; nothing is pending. Its transactions do not count yet."""
        self.refuse_on_top()
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
            self._sleep_or_lead(put)
            while not self._is_done(put):
                self._sleep_or_lead(put)
        except BaseException:
            put.is_left = True  # before it is withdrawn: a leader that has just taken it sees this
            self._puts.withdraw(put)
            self._let_lead()
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
        pending = put.pending
        # What is still in the queue may be half inserted, by a leader that was interrupted: its numbers mean nothing.
        return pending is not None and pending.end <= self.durable and put not in self._puts

    def make_durable(self, end: int, *, linger: bool = False) -> None:
        """Return once every batch below `end` is on storage; the caller leads the commit where nobody else does.

        Whoever gets the turn commits for all; the others find themselves durable when they get it. With `linger` the
        caller can wait for others.
        """
        lingers, hurry = linger and self._linger_seconds > 0, _Hurry()
        try:
            if not lingers:
                self._hurried.add(hurry)
            while self.durable < end:
                self.refuse_on_top(is_inserted=True)
                with self._turn:
                    if self.durable < end:
                        self._lead(None, end, lingers)
                self._puts.wake_next()
        except BaseException:
            self._let_lead()
            raise
        finally:
            self._hurried.discard(hurry)

    def wait_durable(self, end: int, seconds: float) -> bool:
        """Wait until every batch below `end` is on storage, led by the ticker or by others; False after `seconds`.

        A fence or an abort is raised once it is known that they are not in the log: whoever has the turn may have put them
        there.
        """
        deadline = Deadline(self._clock, seconds)
        self.hurry(end)
        try:
            return self._health.wait_until(lambda: self.durable >= end, seconds, of_flush=False)
        except (FencedError, TableReplacedError, ClosedError):
            pass
        try:
            with Taking(self._turn, partial(self._turn.acquire, timeout=deadline.left_seconds)):
                if self.durable < end:
                    self._lead(None, end, False)
        except TakenError:
            return False
        except BaseException:
            self._let_lead()
            raise
        return True

    def _let_lead(self) -> None:
        """Let others lead, of whom the caller may have taken puts: it was interrupted, or refused."""
        self._puts.wake_next()
        self._hand_over()

    def _linger(self) -> None:
        """Let others join the entry that is written next, which the caller leads: it has the turn."""
        limit = self._limits.max_wal_buffer_size or self._limits.max_entry_bytes
        until = self._clock.monotonic() + self._linger_seconds
        while (left := until - self._clock.monotonic()) > 0 and self._health.is_open and not self._health.has_failed:
            if self._hurried or self._puts.size_bytes + self.pending_bytes >= limit:
                return
            self._clock.sleep(min(left, _LINGER_SLICE_SECONDS))

    def refuse_on_top(self, *, is_inserted: bool = False) -> None:
        """Raise if this thread is at a commit already: a signal handler must not wait for what it interrupted.

        `is_inserted`: what the caller waits for may get to storage all the same.
        """
        if is_held_here(self._turn) or is_held_here(self._health.lock):
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
            if not self._is_in_left(own, end):
                self._health.refuse_commits()
            self._puts.gather(self._clock)
            room = self._puts.take(self.pending, self._insert_queued, own)
            if own is not None:
                end = self._end_of(own)
            while self.durable < end:
                self._commit_group(own)
            self._puts.wake_served()
            self._hand_over()
            return room
        finally:
            self._is_led = False

    def _end_of(self, own: QueuedPut) -> int:
        """What a leader must make durable for its own put: all, where that found no room, and nothing where it is wrong."""
        if own.error is not None:
            return 0
        return self.buffered if own.pending is None else own.pending.end

    def _is_in_left(self, own: QueuedPut | None, end: int) -> bool:
        """Whether a writer that was fenced finds what is wanted in the log, in an entry that an interrupted leader left."""
        left = self._in_flight
        if left is None or left.group[-1].end <= self.durable or not self._health.is_only_fenced:
            return False
        self._commit_group(own)
        return self.durable >= end if own is None else self._is_done(own)

    def _hand_over(self) -> None:
        """Let the first caller lead who waits for a write that is not on storage, or the ticker if interrupted callers left
        some. Writes that never were in the queue have callers who want the turn by themselves, the ticker, or nobody yet."""
        puts = [item.put for item in tuple(self.pending) if item.put is not None] if self.pending else ()
        for put in puts:
            if not put.is_left:
                put.place.wake()
                return
        if puts:
            self.hurry(self.buffered)

    def _commit_group(self, own: QueuedPut | None) -> None:
        health = self._health
        with health.lock:
            entry = self._next_entry()
        started = io_started = self._clock.monotonic()
        try:
            if not entry.data:
                entry.data = self.entries.encode(entry)
                io_started = self._clock.monotonic()
            reach("wal.before_put")
            self._in_flight = entry
            self._log.append_once(entry.position, entry.data)
        except (FencedError, TableReplacedError, WriterPoisonedError) as error:
            self._in_flight = None  # its end is known, or never will be
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

    def _next_entry(self) -> Entry:
        """The entry that must be written next: one that an interrupted leader left, or a new one."""
        left = self._in_flight
        if left is not None and left.group[-1].end > self.durable:
            return left
        if self.pending[0].end <= self.durable:  # an interrupted leader did not come to it
            self._drop_settled()
        first = self.pending[0]
        if len(self.pending) == 1:
            group, txns = [first], _transactions_of([first]) if first.txns else ()
        else:
            group = self._next_group(first)
            txns = _transactions_of(group)
        footer = self._transactions.footer(first.run.generation, txns, self._log.table)
        return Entry(group, footer, self._log.next_position)

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
        """Record that `entry` is on storage; doing it again changes nothing."""
        last = entry.group[-1]
        generation = last.run.generation
        self._tables.cover(generation, self._log.next_position - 1)
        self._transactions.take(entry.footer, generation)
        self.durable, self._durable_bytes, self._durable_run = last.end, last.end_bytes, last.run
        self._drop_settled()
        self._in_flight = None
        if not self._limits.durable_write:
            self._since = self._clock.monotonic()

    def _drop_settled(self) -> None:
        while self.pending and self.pending[0].end <= self.durable:
            self.pending.popleft()


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
