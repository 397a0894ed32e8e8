"""The shards of a writer that shares them with other processes.

Entry points: `shared_appender` (the one appender of a table in this process), `SharedShards`, `SharedShard`.

1. A shared writer owns nothing. Its rows are in the log when a write returns, and other processes append at the same time.
2. All shared writers of a process with the same settings use one `TableAppender`, so their threads share entries.
3. `put_nowait` queues rows. They are visible to no reader until they are in the log, and are lost if the process dies before.
4. `close` publishes what it must (append R21), and leaves nothing that another process would wait for.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from lance_memwal.arguments import check_timeout
from lance_memwal.clock import SYSTEM_CLOCK, in_order
from lance_memwal.config import ShardSettings, WriterConfig
from lance_memwal.crash_points import reach
from lance_memwal.errors import ClosedError, ConflictError, InvalidInputError, UnavailableError
from lance_memwal.lance.base import BaseTable
from lance_memwal.memtable import live
from lance_memwal.process.background import Task
from lance_memwal.process.deadline import Deadline
from lance_memwal.process.forking import run_in_child
from lance_memwal.process.trial import tried_in_order
from lance_memwal.process.waiting import is_on_top
from lance_memwal.write.admission import StoredLookUp
from lance_memwal.write.append_queue import AppendResult, QueuedAppend
from lance_memwal.write.once import OnceAppender
from lance_memwal.write.request import NowaitWritable, Write
from lance_memwal.write.results import ShardWrite, WriteResult, result_of
from lance_memwal.write.stats import StatsHandle, WriteStats
from lance_memwal.write.table_appender import TableAppender
from lance_memwal.write.writes import Ack

T = TypeVar("T")
WAIT_SECONDS: Final = 90.0
"""How long a write waits for an exclusive writer of the shard."""
_MAX_APPENDERS: Final = 64
_MAX_LINGER_SECONDS: Final = 0.1
_MAX_TAIL_ENTRIES: Final = 8
_MAX_TAIL_BYTES: Final = 256 << 10
_ALONE_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 1.0
_LOG = logging.getLogger(__name__)

_appenders: dict[tuple[str, str | None, WriterConfig], TableAppender] = {}
_lock = threading.RLock()  # reentrant: a signal handler may write


def shared_appender(base: BaseTable, config: WriterConfig, look_up: StoredLookUp) -> TableAppender:
    """The appender of this process for the table, made if there is none. The last 64 are kept."""
    run_in_child(_forget_in_child)
    key = (base.location.key, base.table_id, config)
    with _lock:
        found = _appenders.pop(key, None)
        if found is None or found.appender.is_replaced:
            found = TableAppender(OnceAppender(base.location, look_up=look_up, config=config))
        _appenders[key] = found
        while len(_appenders) > _MAX_APPENDERS:
            _appenders.pop(next(iter(_appenders)))
    return found


def own_tip(table_key: str, shard_id: str) -> int:
    """The position of the newest entry of a log that this process knows, if a shared writer of this process wrote it; else 0."""
    found = [appender for (key, *_), appender in list(_appenders.items()) if key == table_key]
    return max((appender.appender.own_tip(shard_id) for appender in found), default=0)


def _forget_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    _appenders.clear()


@dataclass(frozen=True, slots=True)
class _Queued:
    """A queued write of `put_nowait`."""

    shard: SharedShard
    write: QueuedAppend
    num_batches: int

    @property
    def durable(self) -> bool:
        """Whether the rows are in the log."""
        return self.write.result is not None

    def wait(self, timeout: float | None = None) -> WriteResult:
        """Return once the rows are in the log: this thread appends them, if no other one does."""
        try:
            return self.shard.finish(self.write, self.num_batches, timeout, keeps=True)
        except ConflictError as error:
            if timeout is None or self.write.is_settled:
                raise
            text = f"the write was not durable within {timeout} seconds; wait again"
            raise UnavailableError(text, ambiguous=True) from error


class SharedShard(NowaitWritable):
    """Writes to one shard. Threads may share it."""

    def __init__(self, shards: SharedShards, shard_id: str) -> None:
        self.shard_id = shard_id
        self._shards = shards
        self._lock = threading.RLock()  # reentrant: a signal handler may write
        self._stats = StatsHandle(self._lock)
        self._batches = 0
        self._pending = deque[QueuedAppend]()  # of `put_nowait`

    def _apply(self, write: Write) -> WriteResult:
        started = SYSTEM_CLOCK.monotonic()
        done = self.finish(self._queue(write), _batches_of(write))
        with self._lock:
            self._stats.count_put(SYSTEM_CLOCK.monotonic() - started)
        reach("put.before_ack")
        return done

    def _begin(self, write: Write, *, drain: bool = True) -> Ack:
        queued = self._queue(write)
        with self._lock:
            while self._pending and self._pending[0].is_settled:
                self._pending.popleft()
            self._pending.append(queued)
        appender = self._shards.appender
        if appender.queued_bytes(self.shard_id) >= appender.appender.max_queued_bytes:
            with queued.trial:
                try:
                    appender.write_queued(self.shard_id, WAIT_SECONDS)
                except BaseException:  # the caller gets no `Ack`, so the rows must not be written later
                    appender.withdraw(self.shard_id, queued)
                    raise
        elif drain:
            self._shards.write_soon()
        return Ack([_Queued(self, queued, _batches_of(write))])

    def drop_pending(self) -> None:
        """Drop what `put_nowait` queued and no thread has appended."""
        self._shards.appender.drop(self.shard_id, self._pending)

    def _queue(self, write: Write) -> QueuedAppend:
        appender = self._shards.appender
        queued = appender.appender.queued_write(write)
        queued.note_entry = self._note_entry
        appender.appender.prepare(self.shard_id, queued)
        appender.queue(self.shard_id, queued)
        return queued

    def _note_entry(self, size_bytes: int, seconds: float, rows: int) -> None:
        with self._lock:
            self._stats.count_entry(size_bytes, seconds, seconds, rows=rows)

    def finish(
        self, write: QueuedAppend, num_batches: int, timeout: float | None = None, *, keeps: bool = False
    ) -> WriteResult:
        """The result of a queued write; see `TableAppender.finish`."""
        seconds = WAIT_SECONDS if timeout is None else check_timeout(timeout)
        result = self._shards.appender.finish(self.shard_id, write, seconds, keeps=keeps)
        self._shards.note_append(self.shard_id)
        return self._result(result, num_batches)

    def _result(self, done: AppendResult, num_batches: int) -> WriteResult:
        with self._lock:
            start = self._batches
            if done.rows and not done.skipped:
                self._batches += num_batches
            positions = range(start, self._batches)
        one = ShardWrite(positions, done.rows, done.matched, done.rejected, done.skipped)
        return result_of({self.shard_id: one}, counts=done.matched is not None)

    def stats(self) -> WriteStats:
        """The puts and the entries of this writer."""
        return self._stats.snapshot()


class SharedShards:
    """The shards that a shared writer has written."""

    def __init__(
        self,
        appender: TableAppender,
        default_shard: Callable[[], str],
        note_append: Callable[[str], None],
        stop_flushes: Callable[[], None],
        *,
        linger_seconds: float,
        at_once: int,
    ) -> None:
        """`note_append` is called after each append, with the shard; `stop_flushes` ends what it began."""
        self.appender = appender
        self.note_append = note_append
        self.closed = False
        self._stop_flushes = stop_flushes
        self._default_shard = default_shard
        self._default: str | None = None
        self._linger_seconds = min(linger_seconds, _MAX_LINGER_SECONDS)
        self._at_once = at_once
        self._shards: dict[str, SharedShard] = {}
        self._ticker = Task("ticker")
        self._is_ticking = False

    def refuse_closed(self) -> None:
        """Raise once this was closed."""
        if self.closed:
            raise ClosedError("the table writer is closed; open a new one")

    def default(self) -> str:
        """The one shard of a table that does not route its rows."""
        if self._default is None:
            self._default = self._default_shard()
        return self._default

    def names(self) -> list[str]:
        """Every shard that was written to."""
        return list(self._shards)

    def stats(self) -> dict[str, WriteStats]:
        """Totals per shard."""
        return {shard_id: shard.stats() for shard_id, shard in list(self._shards.items())}

    # ------------------------------------------------------------------------------------------------------ writing

    def write(self, shard_id: str, call: Callable[..., T], *arguments: Any) -> T:
        """The result of `call` with the shard and the arguments. A write that began before a close is finished."""
        return call(self._shards.setdefault(shard_id, SharedShard(self, shard_id)), *arguments)

    def write_each(self, routed: Mapping[str, Any], call: Callable[[Any, Any], T]) -> dict[str, T]:
        """The result of `call` with each shard and its part, by shard."""

        def to_shard(shard_id: str) -> T:
            return self.write(shard_id, call, routed[shard_id])

        return dict(zip(routed, tried_in_order(to_shard, list(routed), self._at_once, "memwal-put"), strict=True))

    def write_soon(self) -> None:
        """Append queued rows in the background."""
        if not self._is_ticking:
            self._is_ticking = True
            self._ticker.start(self._write_queued)
        self._ticker.poke()

    def _write_queued(self) -> float | None:
        if self._linger_seconds and not self.closed:
            SYSTEM_CLOCK.sleep(self._linger_seconds)
        failed = False
        for shard_id in self.names():
            try:
                self.appender.write_queued(shard_id, WAIT_SECONDS)
            except Exception as error:  # an `Ack`, or `close`, raises it
                failed = True
                _LOG.warning("queued rows were not written, retrying in 1 s [shard=%s]: %s", shard_id, error)
            else:
                self.note_append(shard_id)
        return _RETRY_SECONDS if failed else None

    # ------------------------------------------------------------------------------------------------------ ending

    def evolve(self) -> None:
        """Use the columns that the table has now."""
        self.refuse_closed()
        self.appender.appender.refresh()

    def flush(self, timeout: float | None) -> None:
        """Publish everything that was written; `UnavailableError` after `timeout` seconds in all."""
        deadline = Deadline(SYSTEM_CLOCK) if timeout is None else Deadline(SYSTEM_CLOCK, timeout)
        for _ in in_order(partial(self._flush, deadline=deadline), self.names(), self._at_once, "memwal-flush"):
            pass

    def _flush(self, shard_id: str, deadline: Deadline) -> None:
        self.appender.write_queued(shard_id)
        deadline.refuse_passed(f"shard {shard_id} was not flushed; flush again")
        if self.appender.flush(shard_id, deadline.left_seconds) is None:
            self._flush_owner(shard_id, deadline)

    def _flush_owner(self, shard_id: str, deadline: Deadline) -> None:
        """Let the exclusive writer of this process publish the shard; one of another process publishes its own rows."""
        manifest = self.appender.appender.manifests(shard_id).read_latest()
        epoch = 0 if manifest is None else manifest.writer_epoch
        owner = live.writer_of(self.appender.appender.location.key, shard_id, epoch)
        if owner is not None:
            owner(partial(_publish, deadline=deadline))

    def close(self) -> list[Exception]:
        """Write what is queued, publish long tails, and return the failures."""
        return self._end(self._close)

    def _close(self, shard_id: str) -> None:
        self.appender.write_queued(shard_id)
        if self.appender.appender.should_flush(shard_id, _MAX_TAIL_ENTRIES, _MAX_TAIL_BYTES, _ALONE_SECONDS):
            self.appender.flush(shard_id, WAIT_SECONDS)

    def abort(self) -> list[Exception]:
        """Stop. Queued rows that are not in the log are dropped."""
        return self._end(lambda shard_id: self._shards[shard_id].drop_pending())

    def _end(self, end: Callable[[str], None]) -> list[Exception]:
        if self.closed:
            return []
        self.closed = True
        self._stop_flushes()
        if is_on_top():  # in a signal handler: what was acknowledged is in the log
            self._ticker.cancel()
            return []
        self._ticker.stop()

        def failure(shard_id: str) -> Exception | None:
            try:
                end(shard_id)
            except Exception as error:
                return error
            return None

        found = in_order(failure, self.names(), self._at_once, "memwal-close")
        return [error for error in found if error is not None]

    def stop_background(self) -> None:
        """Stop the background work; may be called anywhere."""
        self._ticker.cancel()
        self._stop_flushes()

    def orphan(self) -> None:
        """Become closed in a forked child."""
        self.closed = True
        self._ticker.orphan()


def _publish(writer: Any, deadline: Deadline) -> None:
    writer.force_seal_active()
    writer.wait_for_flush_drain(deadline.left_seconds)


def _batches_of(write: Write) -> int:
    return len(write.rows) if isinstance(write.rows, list) else 1


def refuse_buffered(config: WriterConfig | None, overrides: ShardSettings) -> None:
    """Raise if the caller asks for writes that return before they are durable: a shared writer has no memory of its own."""
    if overrides.get("durable_write", True if config is None else config.durable_write) is False:
        raise InvalidInputError("durable_write=False is for exclusive writers; use put_nowait with shared=True")
