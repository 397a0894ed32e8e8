"""The write side of one shard: what a user calls, in the order in which it takes effect.

Owns `ShardEngine`. Invariants:

1. Everything that can be refused is refused before the claim: a doomed open fences nobody.
2. Open returns after replay: a writer that exists shows every acknowledged row of the shard.
3. `close` makes everything flushed and visible to any reader, or raises the first failure; it never hangs on a fence, and
   every wait for other threads has a deadline.
4. A writer that is dropped without close flushes nothing, and its background work ends.
5. A writer in a forked child is closed.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lance_memwal.arguments import check_timeout
from lance_memwal.clock import Clock
from lance_memwal.config import WriterConfig
from lance_memwal.crash_points import reach
from lance_memwal.errors import FencedError, InvalidInputError, MemWalError, UnavailableError
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.tail import LogRun
from lance_memwal.log.transactions import as_transaction
from lance_memwal.log.understood import KnownColumns
from lance_memwal.log.wal import OpenedLog, PersistPolicy, open_log
from lance_memwal.memtable import live
from lance_memwal.memtable.memtable import InMemoryMemTableRef, InMemoryMemTables
from lance_memwal.process.background import JOIN_SECONDS, Task
from lance_memwal.process.deadline import Deadline
from lance_memwal.process.forking import close_in_child
from lance_memwal.process.waiting import is_on_top, on_top_error
from lance_memwal.rows.fit import Missing
from lance_memwal.sstable.mirrors import IndexSet
from lance_memwal.sstable.target import ShardTarget
from lance_memwal.types import SeenTransaction, ShardManifest, Transaction
from lance_memwal.write.bulk import publish_bulk
from lance_memwal.write.columns import WriteGate, drain, move_core
from lance_memwal.write.fitting import Fitting
from lance_memwal.write.flush import Flushing, SsTableWriter, Ticking, flush_once
from lance_memwal.write.group_commit import ShardCore
from lance_memwal.write.parking import LONGEST_TAIL_BYTES, LONGEST_TAIL_ENTRIES, Parked, opened_again
from lance_memwal.write.pending import WriteRows
from lance_memwal.write.put_queue import QueuedPut
from lance_memwal.write.replay import replay
from lance_memwal.write.state import CLOSED, CLOSING, OPEN
from lance_memwal.write.stats import BackpressureStats, MemTableStats, StatsHandle, WalStats, WriteStats
from lance_memwal.write.table_target import target_of

__all__ = ["Ack", "ShardEngine", "WriteResult"]

_LOG = logging.getLogger(__name__)
_PARK_SECONDS = 10.0  # others wait for the place meanwhile
_HANGING_SECONDS = 0.25  # for work that has not ended in a much longer time
_QUEUED_BYTES = 256 * 1024  # larger puts are fitted by their own threads, where that takes longer than waiting
_buffer_bytes = pa.RecordBatch.get_total_buffer_size


class _TooLargeError(Exception):
    """A put that was taken for a small one, and whose rows do not fit one entry."""

    def __init__(self, rows: WriteRows) -> None:
        super().__init__("too large for one entry")
        self.rows = rows


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What a write did: its batch positions, and whether its transaction was there already."""

    batch_positions: range
    skipped: bool = False


class Ack:
    """The durability of one write that did not wait for it."""

    __slots__ = ("_core", "_end")

    def __init__(self, core: ShardCore, end: int) -> None:
        self._core = core
        self._end = end

    @property
    def durable(self) -> bool:
        """Whether the write is on storage."""
        return self._core.durable >= self._end

    def wait(self, timeout: float | None = None) -> None:
        """Return once the write is on storage; raise what prevented it, or `UnavailableError` after `timeout` seconds."""
        if is_on_top():
            raise on_top_error("Ack.wait")
        timeout = check_timeout(timeout)
        if timeout is None:
            self._core.make_durable(self._end)
            return
        if not self._core.wait_until(lambda: self.durable, timeout):
            raise UnavailableError(f"the write was not durable within {timeout} seconds; wait again", ambiguous=True)

    def __repr__(self) -> str:
        return f"Ack(durable={self.durable})"


class ShardEngine:
    """One claimed shard: puts, deletes, freezing, flushing, closing."""

    def __init__(
        self, target: ShardTarget, config: WriterConfig, clock: Clock, *, parked: Parked | None = None
    ) -> None:
        """Claim and replay the shard, or take a parked one up again; the caller validated `target` and `config`."""
        shard_id = config.shard_id if config.shard_id is not None else clock.uuid4()
        self._config = config = config.replace(shard_id=shard_id, shard_spec_id=config.shard_spec_id or target.spec_id)
        self._targets = [target]  # shared with the flusher, which holds no reference to this writer
        self._gate = WriteGate(clock)
        self._clock = clock
        self._fitting = Fitting(target, config)
        self._closer = 0
        self.is_parked = False
        self._promised = False  # a signal handler was told that the writer will be closed
        self._manifests = ShardManifestStore(
            target.location,
            shard_id,
            scan_batch_size=config.manifest_scan_batch_size,
            fsync=config.fsync and target.location.is_local,
            clock=clock,
        )
        self._core = core = self._open(parked)
        manifests, write = self._manifests, self._write_sstable
        core.ticker = Task(Ticking(core), "ticker")
        core.flusher = Task(Flushing(core, lambda: flush_once(core, manifests, write)), "flush")
        try:
            for task in (core.ticker, core.flusher):
                task.start(clock).poke()
            self._finalizer = weakref.finalize(self, _abandon, core)
            self._finalizer.atexit = False  # a program's own hook may still close this writer
            live.register(target.location.key, self)
            close_in_child(self)
        except BaseException:  # no second thread to be had, or interrupted: the first one must not live on
            _abandon(core)
            raise

    def _open(self, parked: Parked | None) -> ShardCore:
        config, target = self._config, self._target
        opened = self._claim() if parked is None else opened_again(parked, self._manifests)
        memtables = config.enable_memtable
        core = ShardCore(
            config=config,
            schema=target.schema,
            log=opened.log,
            transactions=opened.transactions,
            run=LogRun(opened.manifest.current_generation) if memtables else LogRun.of_tail(opened),
            clock=self._clock,
            indexes=target.indexes,
            watch=target.watch,
        )
        if parked is not None:
            core.stats = parked.stats
            core.stats.use_lock(core.lock)
        self._write_sstable = self._sstable_writer()
        if memtables:
            replay(core, opened, self._manifests, self._write_sstable)
        return core

    def _claim(self) -> OpenedLog:
        config, target = self._config, self._target
        opened = open_log(
            self._manifests,
            spec_id=config.shard_spec_id,
            policy=PersistPolicy.of(config, fsync=config.fsync and target.location.is_local),
            watch=target.watch,
            known=KnownColumns(target.location, target.schema),
            clock=self._clock,
        )
        reach("open.after_sentinel")
        return opened

    def _sstable_writer(self) -> SsTableWriter:
        targets, config, clock = self._targets, self._config, self._clock
        shard_id = str(config.shard_id)
        return lambda generation, table: targets[0].write_sstable(shard_id, config, clock, generation, table)

    # ------------------------------------------------------------------------------------------------------ writing

    def put(
        self, data: Any, *, txn: Transaction | tuple[str, int] | None = None, missing: Missing | None = None
    ) -> WriteResult:
        """Insert or replace rows; in durable mode (and with `txn`) they are on storage when this returns.

        Columns that are left out are refused on a table with a primary key, since the put would erase what its rows have
        there; `missing="null"` makes them null. On an append-only table they are null anyway.
        """
        batches, fill = self._fitting.take(data, missing)
        with self._gate:
            if txn is None and self._config.durable_write:
                size = sum(map(_buffer_bytes, batches))
                if size <= _QUEUED_BYTES:
                    return self._queue(batches, size, fill)
            return self._write(self._fitting.fit(batches, fill), as_transaction(txn))

    def _queue(self, batches: list[pa.RecordBatch], size_bytes: int, fill: bool) -> WriteResult:
        """Write a small put, together with those of other threads."""
        fit = self._fit_and_fill if fill else self._fit_for_entry
        put = QueuedPut(batches, size_bytes, fit, self._clock.monotonic())
        try:
            done = self._core.write(put)
        except _TooLargeError as found:
            return self._write(found.rows, None)
        reach("put.before_ack")
        return WriteResult(range(done.start, done.end))

    def _fit_and_fill(self, batches: list[pa.RecordBatch]) -> WriteRows:
        return self._fit_for_entry(batches, fill=True)

    def _fit_for_entry(self, batches: list[pa.RecordBatch], *, fill: bool = False) -> WriteRows:
        rows, entries = self._fitting.fit(batches, fill), self._core.entries
        if not entries.fits(rows):
            raise _TooLargeError(rows)
        entries.encode_rows(rows)
        return rows

    def put_nowait(self, data: Any, *, missing: Missing | None = None) -> Ack:
        """Insert rows and return at once; they become durable in the background or when somebody waits for the `Ack`."""
        batches, fill = self._fitting.take(data, missing)
        with self._gate:
            return self._put_nowait(self._fitting.fit(batches, fill))

    def _put_nowait(self, rows: WriteRows) -> Ack:
        if self._is_bulk(rows):
            return Ack(self._core, self._write(rows, None).batch_positions.stop)
        started = self._clock.monotonic()
        self._core.entries.encode_rows(rows)
        _, end = self._core.insert(rows, None, drain=True)
        self._count_put(started)
        return Ack(self._core, end)

    def delete(self, keys: Any, *, txn: Transaction | tuple[str, int] | None = None) -> WriteResult:
        """Delete rows by primary key: a tombstone hides each key in every older tier, whether or not it exists."""
        with self._gate:
            return self._write(self._fitting.tombstones(keys), as_transaction(txn))

    @property
    def _target(self) -> ShardTarget:
        return self._targets[0]

    def evolve_schema(self) -> None:
        """Move to the columns that the base table has now: added, renamed and dropped ones.

        Writes wait meanwhile. What was written before is flushed under the old columns, and is read by field id.
        """
        watch = self._target.watch
        base = BaseTable.open(self._target.location) if watch is None else watch.look()
        if base is None:
            raise InvalidInputError("there is no base table whose columns this writer could take over")
        given = self._target.indexes.given if self._target.indexes is not None else ()
        kept = [spec for spec in given if spec.column in base.schema.names]
        target = target_of(
            self._target.location, base, None, routed=self._target.check_rows is None, indexes=kept, watch=watch
        )
        if target.schema != self._target.schema:
            self._move_to(target)

    def _move_to(self, target: ShardTarget) -> None:
        """Go on with the columns of `target`; everything before is flushed under the old ones."""
        if is_on_top():
            raise on_top_error("evolve_schema")
        if target.schema.primary_key != self._target.schema.primary_key:
            raise InvalidInputError("the primary key of the table changed; close this writer and open a new one")
        deadline = Deadline(self._clock)
        with self._gate.closed(deadline):
            move_core(self._core, target.schema, lambda: self._take(target), deadline)

    def _take(self, target: ShardTarget) -> None:
        self._targets[0] = target
        self._fitting = Fitting(target, self._config)
        self._core.indexes = target.indexes if target.indexes is not None else IndexSet(target.schema)

    def _write(self, rows: WriteRows, txn: Transaction | None) -> WriteResult:
        core = self._core
        if not rows.batches:
            with core.lock:
                core.refuse_writes()
                return WriteResult(range(core.buffered, core.buffered))
        core.refuse_on_top()  # before anything is inserted: the write would have to wait
        started = self._clock.monotonic()
        result = self._publish(rows, txn) if self._is_bulk(rows) else self._insert(rows, txn)
        self._count_put(started)
        return result

    def _insert(self, rows: WriteRows, txn: Transaction | None) -> WriteResult:
        self._core.entries.encode_rows(rows)
        pending, end = self._core.insert(rows, txn)
        if self._config.durable_write or txn is not None:
            self._core.make_durable(end)
            reach("put.before_ack")
        return WriteResult(range(end, end), skipped=True) if pending is None else WriteResult(range(pending.start, end))

    def _publish(self, rows: WriteRows, txn: Transaction | None) -> WriteResult:
        positions = publish_bulk(self._core, self._manifests, self._write_sstable, rows, txn)
        return WriteResult(range(0), skipped=True) if positions is None else WriteResult(positions)

    def _is_bulk(self, rows: WriteRows) -> bool:
        """Whether `rows` are too large for one WAL entry and must be published as a generation."""
        if self._core.entries.fits(rows):
            return False
        if not self._config.enable_memtable:
            limit = self._config.max_entry_bytes
            raise InvalidInputError(f"a put above max_entry_bytes={limit} does not fit WAL-only mode; split it")
        return True

    def _count_put(self, started: float) -> None:
        stats = self._core.stats
        seconds = self._clock.monotonic() - started
        with self._core.lock:
            stats.put_count += 1
            stats.put_time += seconds

    # -------------------------------------------------------------------------------------------- sealing and closing

    def force_seal_active(self) -> None:
        """Freeze the active memtable (no-op if it is empty); `FencedError` if another writer owns the shard."""
        if is_on_top():
            raise on_top_error("force_seal_active")
        self._need_memtable()
        with self._core.lock:
            self._core.refuse_writes()
        self.check_fenced()
        self._core.seal()

    def wait_for_flush_drain(self, timeout: float | None = None) -> None:
        """Return when every frozen memtable is an SSTable; raise why one is not, or `UnavailableError` on time-out."""
        if is_on_top():
            raise on_top_error("wait_for_flush_drain")
        self._need_memtable()
        timeout, core = check_timeout(timeout), self._core
        core.refuse()
        if not core.wait_until(lambda: not core.frozen, timeout):
            raise UnavailableError(
                f"{len(core.frozen)} memtables were not flushed within {timeout} seconds; wait again"
            )

    def close(self) -> None:
        """Flush the log and all memtables, end the background work, and raise the first failure. Idempotent.

        In a signal handler that interrupted another call of the same thread it returns at once: no more writes are
        accepted, and the closing is done as soon as that call ends, and before the program does.
        """
        if is_on_top():
            self._later(CLOSING, self._close_quietly)
        else:
            self._close()

    def _close(self) -> None:
        core, this_thread = self._core, threading.get_ident()
        deadline, hangs = Deadline(self._clock), False
        while True:
            with core.lock:
                if core.state == CLOSED or self._closer == this_thread:
                    return
                if self._closer == 0:
                    core.state, self._closer = CLOSING, this_thread
                    core.wake_all()
                    break
                place = core.changed.stand()
            place.sleep(deadline.left_seconds)
            deadline.refuse_passed(f"another thread was still closing the writer of shard {self.shard_id}")
        interrupted = True
        try:
            self._drain(deadline)
            interrupted = False
        except Exception:
            interrupted, hangs = False, not deadline.left_seconds
            raise
        finally:
            if interrupted and self._promised:
                self._closer = 0  # the ticker goes on
                core.wake_all()
            elif hangs:
                self._stop(_HANGING_SECONDS)
            else:
                self._stop()

    def _close_quietly(self) -> None:
        """Close for a caller that is gone."""
        try:
            self._close()
        except Exception as error:
            _LOG.warning("closing a writer failed [shard=%s]: %s", self.shard_id, error)

    def _later(self, state: str, errand: Callable[[], None]) -> None:
        """Refuse writes from now on, and let the ticker do the rest: this thread holds what the rest may wait for."""
        core = self._core
        if core.state != CLOSED:
            self._promised, core.state, core.errand = True, state, errand
        core.ticker.poke()

    def _drain(self, deadline: Deadline) -> None:
        core = self._core
        self._wait_for_bulk(deadline)
        with core.lock:
            if core.poison is not None or (core.is_stopped and self._unflushed()):
                core.refuse_commits()
        core.make_durable(core.buffered)
        core.seal()
        drain(core, deadline, "the writer is closed all the same; the log has the rows, and the next open replays them")

    def _wait_for_bulk(self, deadline: Deadline) -> None:
        """Return when no bulk write is under way."""
        if not self._core.wait_until(lambda: not self._core.exclusive, deadline.left_seconds):
            raise deadline.error(f"a bulk write of shard {self.shard_id} was still under way; it was not acknowledged")

    def _unflushed(self) -> bool:
        core = self._core
        return bool(core.pending or core.frozen or (core.active is not None and core.active.num_rows))

    def park(self) -> Parked | None:
        """Put this writer away, with everything durable; it is closed then.

        None if it does not write any more, or is too busy for that: then it stays open.
        """
        core, deadline = self._core, Deadline(self._clock, _PARK_SECONDS)
        try:
            with self._gate.closed(deadline):
                self._wait_for_bulk(deadline)
                core.make_durable(core.buffered)
                if self._is_long_to_replay():
                    core.seal()
                drain(core, deadline, "it stays open")
                with core.lock:
                    core.refuse_writes()
                    self.is_parked, core.state = True, CLOSED
        except MemWalError:
            return None
        self._stop()
        return Parked(core.log, core.transactions, core.stats, self._unflushed())

    def _is_long_to_replay(self) -> bool:
        active = self._core.active
        return active is not None and (
            active.num_batches > LONGEST_TAIL_ENTRIES or active.size_bytes > LONGEST_TAIL_BYTES
        )

    def abort(self) -> None:
        """Stop without flushing; what is in the log is replayed by the next open. Idempotent."""
        if is_on_top():
            self._later(CLOSED, self._stop)
        else:
            self._stop()

    def _stop(self, seconds: float = JOIN_SECONDS) -> None:
        """End the background work, and wait for what of it runs, for some time."""
        self._finalizer.detach()
        live.forget(self._target.location.key, self)
        core = self._core
        _abandon(core)
        for task in (core.grower, core.flusher, core.ticker):
            task.stop(seconds)

    def leave(self, deadline: float) -> None:
        """Keep all other threads out, since the program ends; what a signal handler closed is closed when this returns."""
        core = self._core
        while core.state == CLOSING and self._clock.monotonic() < deadline:
            place = core.changed.stand()
            if core.state == CLOSING:
                place.sleep()
        self._gate.shut_for_good(deadline, self._clock)

    def orphan(self) -> None:
        """Become closed in a forked child, where this writer's threads and locks do not exist."""
        self._finalizer.detach()
        core = self._core
        core.make_locks()
        core.stats.use_lock(core.lock)
        for task in (core.grower, core.flusher, core.ticker):
            task.orphan()
        self._gate = WriteGate(self._clock)
        core.state = CLOSED

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --------------------------------------------------------------------------------------------------- looking

    def capture(self) -> InMemoryMemTables | None:
        """Active and frozen memtables for a reader of the table; None if this writer has none to show."""
        if self._core.active is None:
            return None
        try:
            return self._core.capture()
        except MemWalError:
            return None

    def in_memory_memtable_refs(self) -> InMemoryMemTables:
        """Active and frozen memtables, captured together."""
        self._need_memtable()
        return self._core.capture()

    def active_memtable_ref(self) -> InMemoryMemTableRef:
        """The active memtable, captured."""
        return self.in_memory_memtable_refs().active

    def _need_memtable(self) -> None:
        if not self._config.enable_memtable:
            raise InvalidInputError("this writer is in WAL-only mode (enable_memtable=False): it has no memtable")

    def check_fenced(self) -> None:
        """Raise `FencedError` if the newest manifest carries a higher epoch, `TableReplacedError` if the table is another one."""
        self._core.look_at_table()
        try:
            self._manifests.check_fenced(self.epoch)
        except FencedError as error:
            self._core.fail(fenced=error)
            raise

    def manifest(self) -> ShardManifest:
        """The newest manifest of the shard."""
        latest = self._manifests.read_latest()
        if latest is None:
            raise UnavailableError(f"the manifest of shard {self.shard_id} is gone; run verify", ambiguous=False)
        return latest

    @property
    def epoch(self) -> int:
        """The epoch under which this writer owns the shard."""
        return self._core.log.epoch

    @property
    def shard_id(self) -> str:
        """The shard that this writer owns."""
        return self._core.log.shard_id

    @property
    def config(self) -> WriterConfig:
        """The settings in force."""
        return self._config

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return self._target.schema.columns

    @property
    def closed(self) -> bool:
        """Whether the writer was closed or aborted."""
        return self._core.state != OPEN

    @property
    def table_id(self) -> str | None:
        """The id of the table that this writer belongs to; None where there is no base table."""
        return None if self._target.watch is None else self._target.watch.table_id

    def transactions(self) -> dict[str, SeenTransaction]:
        """The newest version per application that is on storage."""
        with self._core.lock:
            return self._core.transactions.whole()

    def stats(self) -> WriteStats:
        """Totals since open or reset."""
        return self._core.stats.snapshot()

    def stats_handle(self) -> StatsHandle:
        """The live counters; usable after close."""
        return self._core.stats

    def wal_stats(self) -> WalStats:
        """The next position of the log."""
        return WalStats(self._core.log.next_position)

    def backpressure_stats(self) -> BackpressureStats:
        """Puts that waited for room."""
        with self._core.lock:
            return BackpressureStats(self._core.waits, self._core.wait_seconds * 1000)

    def memtable_stats(self) -> MemTableStats:
        """The memtables now."""
        self._need_memtable()
        core = self._core
        with core.lock:
            active, pending = core.active, core.pending
            if active is None:
                raise AssertionError("memtable mode without a memtable")
            return MemTableStats(
                row_count=active.num_rows,
                batch_count=active.num_batches,
                estimated_size=active.size_bytes + active.index_bytes,
                generation=active.generation,
                max_buffered_batch_position=core.buffered - 1 if core.buffered else None,
                max_flushed_batch_position=core.durable - 1 if core.durable else None,
                pending_wal_start_batch_position=pending[0].start if pending else None,
                pending_wal_end_batch_position=pending[-1].end if pending else None,
                pending_wal_batch_count=sum(len(item.rows.batches) for item in pending),
                pending_wal_row_count=sum(item.rows.num_rows for item in pending),
                pending_wal_estimated_bytes=core.pending_bytes,
                frozen_count=len(core.frozen),
                frozen_bytes=sum(m.size_bytes + m.index_bytes for m in core.frozen),
                index_bytes=active.index_bytes,
            )

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"ShardWriter(shard_id={self.shard_id!r}, epoch={self.epoch}, {state})"


def _abandon(core: ShardCore) -> None:
    """End the background work of a core without touching storage; may be called anywhere, and waits for nothing."""
    core.state = CLOSED
    core.wake_all()
    for task in (core.grower, core.flusher, core.ticker):
        task.cancel()
