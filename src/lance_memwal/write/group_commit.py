"""The order of effects in one shard writer: the group commit.

Owns the way of writes into the log. Invariants (those of the state hold too):

1. The calling thread leads: one thread at a time writes one entry for everything that is pending (of one generation)
   and for the small puts that wait in the queue; the others sleep until theirs are durable, or lead next. A single
   caller hands over to nobody.
2. The durable watermark is writer-wide and only grows.
3. Pending writes leave the queue only after their entry is on storage: a failed append leaves them queued.
4. An entry whose bytes may be on storage, left by a thread that was interrupted, is sent again as it is.

Locks: the turn to lead is taken before `lock`, never inside it, and is given up before anybody waits for room.
"""

from __future__ import annotations

import threading
from itertools import islice
from typing import Any

from lance_memwal.crash_points import reach
from lance_memwal.errors import FencedError, TableReplacedError, WriterPoisonedError
from lance_memwal.process.waiting import LOOK_AGAIN_SECONDS, is_on_top, on_top_error, refuse_on_top
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import EntryTransaction
from lance_memwal.write.pending import Entry, EntryBuilder, Pending, WriteRows
from lance_memwal.write.put_queue import PutQueue, QueuedPut
from lance_memwal.write.state import ShardState

__all__ = ["ShardCore"]


class ShardCore(ShardState):
    """The state of a writer, and its commits."""

    def __init__(self, **state: Any) -> None:
        """Takes what the state takes."""
        super().__init__(**state)
        self._puts = PutQueue()
        self._leader = 0  # the thread that has the turn, or had it
        self._in_flight: Entry | None = None
        self.entries = EntryBuilder(self.schema, self.log.epoch, self.config.max_entry_bytes)

    def make_locks(self) -> None:
        """Make all locks anew: at the start, and in a forked child, where their holders do not exist."""
        super().make_locks()
        self._turn = threading.Lock()

    def use_columns(self, schema: TableSchema) -> None:
        """Go on with other columns; nothing is pending."""
        self.schema = schema
        self.entries = EntryBuilder(schema, self.log.epoch, self.config.max_entry_bytes)

    def wake_all(self) -> None:
        """Let everybody who waits for this writer look again."""
        super().wake_all()
        self._puts.wake_all()
        for item in self.pending:
            if item.put is not None:
                item.put.wake()

    def write(self, put: QueuedPut) -> Pending:
        """Insert one put and return once it is on storage; the caller leads the commit where nobody else does."""
        self.refuse_writes()
        self.refuse_on_top()
        try:
            self._puts.append(put)
            self._sleep_or_lead(put)
            while not self._is_done(put):
                self._sleep_or_lead(put)
        except BaseException:
            self._puts.withdraw(put)
            self._puts.wake_next()
            raise
        finally:
            put.wake_follower()
        if put.error is not None:
            raise put.error
        if put.pending is None:
            raise AssertionError("a put is done that was never inserted")
        return put.pending

    def _sleep_or_lead(self, put: QueuedPut) -> None:
        if self._turn.locked() or not self._puts.is_oldest(put):
            put.sleep(LOOK_AGAIN_SECONDS)
            if self._is_done(put):
                return
        room = True
        with self._turn:
            if not self._is_done(put):
                room = self._lead(put)
        if room:
            self._puts.wake_next()
            return
        self._puts.wake_all()  # each waits for room by itself
        if put.pending is None and put.error is None:  # nobody took it meanwhile
            put.waited = self._wait_for_room(put.size_bytes, counted=put.waited)

    def _is_done(self, put: QueuedPut) -> bool:
        if put.error is not None:
            return True
        pending = put.pending
        # What is still in the queue may be half inserted, by a leader that was interrupted: its numbers mean nothing.
        return pending is not None and pending.end <= self.durable and put not in self._puts

    def make_durable(self, end: int) -> None:
        """Return once every batch below `end` is on storage; the caller leads the commit where nobody else does.

        Whoever gets the turn commits for all; the others find themselves durable when they get it.
        """
        while self.durable < end:
            self.refuse_on_top()
            with self._turn:
                if self.durable < end:
                    self._lead(None)
            self._puts.wake_next()

    def refuse_on_top(self) -> None:
        """Raise if this thread is at a commit already: a signal handler must not wait for what it interrupted."""
        refuse_on_top(self.lock, "a write")
        if self._leader == threading.get_ident() and self._turn.locked() and is_on_top():
            raise on_top_error("a write")

    def _lead(self, own: QueuedPut | None) -> bool:
        """Commit everything that was written until now; False if a queued put found no room. The caller has the turn."""
        self._leader = threading.get_ident()
        self.refuse_commits()
        self._puts.gather(self.clock)
        room = self._puts.take(self.pending, self._insert_queued, own)
        end = self.buffered
        while self.durable < end:
            self._commit_group(own)
        self._puts.wake_served()
        self._leader = 0
        return room

    def _insert_queued(self, put: QueuedPut, rows: WriteRows) -> bool:
        with self.lock:
            self.refuse_writes()
            if not self._has_room:
                return False
            pending = self._place(rows, None)
            pending.put, put.pending = put, pending
            self._append(pending)
            return True

    def _commit_group(self, own: QueuedPut | None) -> None:
        with self.lock:
            entry = self._next_entry()
        started = io_started = self.clock.monotonic()
        try:
            if not entry.data:
                entry.data = self.entries.encode(entry)
                io_started = self.clock.monotonic()
            reach("wal.before_put")
            self._in_flight = entry
            if self.log.next_position == entry.position:  # else an interrupted leader appended it already
                self.log.append(entry.data)
        except FencedError as error:
            self.fail(fenced=error)
            raise
        except TableReplacedError as error:
            self.fail(replaced=error)
            raise
        except WriterPoisonedError as error:
            self.fail(poison=error)
            raise
        except Exception as error:
            raise self.poisoned(f"the log of shard {self.log.shard_id} failed", error) from error
        ended = self.clock.monotonic()
        reach("wal.after_put")
        with self.lock:
            self._settle(entry)
            self.changed.wake_all()
            stats = self.stats
            stats.wal_flush_count += 1
            stats.wal_flush_bytes += len(entry.data)
            stats.wal_flush_time += ended - started
            stats.wal_io_count += 1
            stats.wal_io_time += ended - io_started
            for item in entry.group:
                put = item.put
                if put is not None:
                    stats.put_count += 1
                    stats.put_time += ended - put.started
                    if put is not own:
                        self._puts.serve(put)

    def _next_entry(self) -> Entry:
        """The entry that must be written next: one that an interrupted leader left, or a new one."""
        left = self._in_flight
        if left is not None and left.group[-1].end > self.durable:
            return left
        if self.pending[0].end <= self.durable:  # an interrupted leader did not come to it
            self._drop_settled()
        group = self._next_group()
        first = group[0]
        txns = () if first.txn is None else (EntryTransaction(first.txn, 0, first.rows.num_rows),)
        footer = self.transactions.footer(first.generation, txns, self.log.table)
        return Entry(group, footer, self.log.next_position)

    def _next_group(self) -> list[Pending]:
        """The pending writes of the next entry: one generation, at most `max_entry_bytes`; a transaction is alone."""
        first = self.pending[0]
        group = [first]
        if first.txn is not None or len(self.pending) == 1:
            return group
        limit = self._durable_bytes + self.config.max_entry_bytes
        for item in islice(self.pending, 1, None):
            if item.txn is not None or item.generation != first.generation or item.end_bytes > limit:
                break
            group.append(item)
        return group

    def _settle(self, entry: Entry) -> None:
        """Record that `entry` is on storage; doing it again changes nothing."""
        last, position = entry.group[-1], self.log.next_position - 1
        if self.active is not None:
            for memtable in (*self.frozen, self.active):
                if memtable.generation == last.generation:
                    memtable.covered_position = position
        self.transactions.take(entry.footer, last.generation)
        self.durable, self._durable_bytes, self._durable_run = last.totals
        self._drop_settled()
        self._in_flight = None
        if not self.config.durable_write:
            self.pending_since = self.clock.monotonic()

    def _drop_settled(self) -> None:
        while self.pending and self.pending[0].end <= self.durable:
            self.pending.popleft()
