"""Whether a shard writer may write, why it may not any longer, and how its callers wait.

Entry point: `Health`, the only place that refuses. Invariants:

1. A poisoned writer accepts, shows and commits nothing. A fenced writer, or one whose table was replaced, accepts and commits
   nothing but still answers reads.
2. A failure is permanent, is logged once, and wakes every caller that waits.
3. One thread closes. A close in a signal handler, on top of a commit of the same thread, is done by the ticker.
4. A waiting caller holds no lock. Every wait ends with poison, with a fence, with an abort, or after a failed flush. A flush
   that has failed five times raises its error to its waiters after the next attempt. A caller that blocks other callers
   also has a deadline. A put that waits for room has none, and logs a warning.

`lock` guards all state of one writer. It is held neither during I/O nor by a caller that waits. It is reentrant, since a
writer may be garbage-collected anywhere, and knows its thread, so that a signal handler can be refused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from lance_memwal.clock import Clock
from lance_memwal.errors import (
    ClosedError,
    FencedError,
    MemWalError,
    TableReplacedError,
    UnavailableError,
    WriterPoisonedError,
)
from lance_memwal.lance.identity import TableWatch
from lance_memwal.process.background import Task, is_ending
from lance_memwal.process.deadline import Deadline
from lance_memwal.process.telemetry import active
from lance_memwal.process.waiting import LOOK_AGAIN_SECONDS, Place, Waiters

_LOG = logging.getLogger(__name__)
_FLUSH_FAILURES_TO_REPORT = 5
_OPEN, _CLOSING, _CLOSED = "open", "closing", "closed"
Given = TypeVarTuple("Given")
T = TypeVar("T")


class Health:
    """The life of one shard writer: open, closing, closed; poisoned, fenced, replaced."""

    def __init__(
        self, shard_id: str, epoch: int, watch: TableWatch | None, clock: Clock, ticker: Task, flusher: Task
    ) -> None:
        self.shard_id = shard_id
        self.epoch = epoch
        self._watch = watch
        self._clock = clock
        self._ticker = ticker
        self._flusher = flusher
        self._wakers: list[Callable[[], None]] = [ticker.poke, flusher.poke]
        self.make_locks()
        self._state = _OPEN
        self._closer = 0
        self._close_request: Callable[[], None] | None = None  # of a signal handler
        self._inside: set[int] = set()  # threads that are in a write
        self._ends_in = 0  # the thread that ends the program
        self.is_parked = False
        self.poison: WriterPoisonedError | None = None
        self.fenced: FencedError | None = None
        self.replaced: TableReplacedError | None = None
        self.has_failed = False  # whether one of the three is there: nothing is written any more
        self._flush_error: MemWalError | None = None
        self._failed_attempt = 0  # the number of the attempt that failed with this error
        self.flush_attempts = 0
        self.flush_failures = 0  # since the last success

    def make_locks(self) -> None:
        """Make all locks anew: at the start, and in a forked child, where their holders do not exist."""
        self.lock = threading.RLock()
        self.changed = Waiters(self._clock)

    @property
    def table_id(self) -> str | None:
        """The id of the table that the writer belongs to; None where there is no base table."""
        return None if self._watch is None else self._watch.table_id

    # ------------------------------------------------------------------------------------------------------ refusing

    def refuse(self) -> None:
        """Raise if this writer must not accept or show rows any more."""
        if self.poison is not None:
            self._raise_poison(self.poison)
        if self._state != _OPEN:
            raise ClosedError(f"the writer of shard {self.shard_id} is closed; open a new one")

    def refuse_writes(self) -> None:
        """Raise if this writer must not accept rows any more."""
        if self.has_failed or self._state != _OPEN:
            self.refuse()
            self._refuse_stopped()

    def refuse_commits(self) -> None:
        """Raise if this writer must not write to storage any more."""
        if self.has_failed:
            if self.poison is not None:
                self._raise_poison(self.poison)
            self._refuse_stopped()
        if self._state == _CLOSED:
            raise ClosedError(f"the writer of shard {self.shard_id} is closed; the write was not acknowledged")

    def _raise_poison(self, poison: WriterPoisonedError) -> None:
        raise WriterPoisonedError(str(poison)) from (poison.__cause__ or poison)

    def _refuse_stopped(self) -> None:
        if self.replaced is not None:
            raise TableReplacedError(str(self.replaced))
        if self.fenced is not None:
            raise FencedError(self.fenced.our_epoch, self.fenced.current_epoch, f"shard {self.shard_id}")

    def refuse_drain(self, *, owes: bool) -> None:
        """Raise if what a writer that closes owes (`owes`) can never get to storage."""
        if self.poison is not None or (owes and self.has_failed):
            self.refuse_commits()

    def refuse_failing_flush(self, since: int = 0) -> None:
        """Raise the error of a flush that failed repeatedly; the flusher continues to retry.

        Only attempts after number `since` count: a caller passes `flush_attempts` as it was when the wait began.
        """
        is_reported = self.flush_failures >= _FLUSH_FAILURES_TO_REPORT and self._failed_attempt > since
        if self._flush_error is not None and is_reported:
            raise self._flush_error.with_traceback(None)  # several callers raise it: its traceback must not grow

    def look_at_table(self) -> None:
        """Return only if the table is still the one that this writer opened."""
        if self._watch is not None:
            try:
                self._watch.look()
            except TableReplacedError as error:
                self.fail(error)
                raise

    # ------------------------------------------------------------------------------------------------------- failing

    def poisoned(self, what: str, cause: BaseException) -> WriterPoisonedError:
        """Poison this writer because of `cause`; the caller raises what is returned."""
        poison = WriterPoisonedError(f"{what}; reopen the shard: {cause}")
        poison.__cause__ = cause
        self.fail(poison)
        return poison

    def fail(self, why: WriterPoisonedError | FencedError | TableReplacedError) -> None:
        """Remember for good why this writer writes nothing any more, and tell everybody who waits; logged once."""
        with self.lock:
            known = self.has_failed
            poison, fenced, replaced = self.poison, self.fenced, self.replaced
            if isinstance(why, WriterPoisonedError):
                poison = poison or why
            elif isinstance(why, FencedError):
                fenced = fenced or why
            else:
                replaced = replaced or why
            self.poison, self.fenced, self.replaced, self.has_failed = poison, fenced, replaced, True  # one step
            self.wake_all()
        if not known:
            if (told := active()) is not None:
                told.note(
                    "lance_mem_wal_writers_stopped_total",
                    kind="fenced" if fenced else "poisoned" if poison else "replaced",
                )
            _LOG.warning("writer stops [shard=%s, epoch=%d]: %s", self.shard_id, self.epoch, why)

    def flush_failed(self, error: BaseException) -> bool:
        """Remember why a flush failed, and wake those who wait; False if trying again makes no sense."""
        if isinstance(error, FencedError):
            self.fail(error)
        with self.lock:
            if not self.is_alive or is_ending():
                return False
            cause = error
            if not isinstance(error, MemWalError):
                error = UnavailableError(f"flushing shard {self.shard_id} failed: {cause}", ambiguous=False)
                error.__cause__ = cause
            self._flush_error, self._failed_attempt = error, self.flush_attempts
            self.flush_failures += 1
            self.changed.wake_all()
        _LOG.warning("flush failed [shard=%s, failures=%d]: %s", self.shard_id, self.flush_failures, error)
        return True

    def flushed(self) -> None:
        """Forget failures: a flush succeeded (`lock` is held)."""
        self._flush_error, self.flush_failures = None, 0
        self.changed.wake_all()

    # ------------------------------------------------------------------------------------------------------- closing

    @property
    def is_open(self) -> bool:
        """Whether nobody closes or has closed this writer."""
        return self._state == _OPEN

    @property
    def is_alive(self) -> bool:
        """Whether background work makes sense."""
        return self._state != _CLOSED and not self.has_failed

    def begin_closing(self, deadline: Deadline) -> bool:
        """Refuse writes from now on; True if the calling thread must do the rest, False if it is done."""
        me = threading.get_ident()
        while True:
            with self.lock:
                if self._state == _CLOSED or self._closer == me:
                    return False
                if self._closer == 0:
                    self._state, self._closer = _CLOSING, me
                    self.wake_all()
                    return True
                place = self.changed.stand()
            place.sleep(deadline.left_seconds)
            deadline.refuse_passed(f"another thread was still closing the writer of shard {self.shard_id}")

    def request_close(self, close: Callable[[], None], *, at_once: bool) -> None:
        """Refuse writes from now on (`at_once`: commits too) and let the ticker call `close`: the calling thread holds what
        it may wait for."""
        if self._state != _CLOSED:
            self._state, self._close_request = _CLOSED if at_once else _CLOSING, close
        self._ticker.poke()

    def take_close_request(self) -> Callable[[], None] | None:
        """The close that a signal handler requested, once."""
        close, self._close_request = self._close_request, None
        return close

    def close(self) -> None:
        """Be closed. May be called anywhere; waits for nothing."""
        self._state = _CLOSED
        self.wake_all()

    def orphan(self) -> None:
        """Be closed in a forked child, with locks that nobody holds."""
        self.make_locks()
        self._inside, self._ends_in = set(), 0
        self._state = _CLOSED

    def park(self) -> None:
        """Be closed by whoever puts this writer away (`lock` is held); raises if it does not write any more."""
        self.refuse_writes()
        self.is_parked, self._state = True, _CLOSED

    def inside(self, write: Callable[[*Given], T], *given: *Given) -> T:
        """The result of `write`, which the end of the program waits for: a daemon thread that returned from native code
        later would abort the process."""
        me = threading.get_ident()
        while self._ends_in not in (0, me):
            self._clock.sleep(LOOK_AGAIN_SECONDS)  # until the process is gone
        try:
            self._inside.add(me)
            return write(*given)
        finally:
            self._inside.discard(me)

    @property
    def is_used(self) -> bool:
        """Whether another thread is in a write."""
        return bool(self._inside - {threading.get_ident()})

    def end_program(self, deadline: float) -> None:
        """Let no other thread begin a write, and wait until `deadline` for a requested close and for those that began."""
        self._ends_in = threading.get_ident()
        while (self._state == _CLOSING or self.is_used) and self._clock.monotonic() < deadline:
            self._clock.sleep(0.001)

    # ------------------------------------------------------------------------------------------------------- waiting

    def also_wake(self, wake: Callable[[], None]) -> None:
        """Call `wake`, too, when everybody who waits must look again."""
        self._wakers.append(wake)

    def wake_all(self) -> None:
        """Let everybody who waits for this writer look again."""
        self.changed.wake_all()
        for wake in self._wakers:
            wake()

    def wait_until(self, done: Callable[[], bool], timeout_seconds: float | None, *, of_flush: bool = True) -> bool:
        """Wait until `done()`, called under `lock`, is true; False on time-out.

        Poison, fences and aborts raise. With `of_flush`, a flush that keeps failing raises after its next attempt.
        """
        deadline = None if timeout_seconds is None else self._clock.monotonic() + timeout_seconds
        attempts = self.flush_attempts
        while True:
            with self.lock:
                if done():
                    return True
                self.refuse_commits()
                if of_flush:
                    self.refuse_failing_flush(attempts)
                left = LOOK_AGAIN_SECONDS if deadline is None else deadline - self._clock.monotonic()
                if left <= 0:
                    return False
                place = self.changed.stand()
            self.sleep(place, left)

    def sleep(self, place: Place, seconds: float) -> None:
        """Wait for a change; where the program ends and nobody else flushes, flush."""
        if not self._flusher.run_here():
            place.sleep(seconds)
        self.changed.leave(place)
