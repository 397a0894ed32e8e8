"""Append to the shards of one table in shared epochs, next to other processes and in turn with exclusive writers.

Entry point: `TableAppender`, one per table and process (`shared_appender`). Threads share it, and share entries.

1. It joins a shared epoch. It claims one only if the shard has no epoch, or its exclusive owner has been idle for 60 seconds
   (append R2). It never fences a live writer. Rows for a shard that an exclusive writer of this process owns go through that
   writer (append R16). For any other owner it waits.
2. A write keeps its transaction in every attempt. The transaction map of the shard decides whether an earlier attempt counts.
3. Every wait has a deadline and raises an error that says what to do. After 5 seconds it logs a warning.
4. `append_all` appends to several shards at the same time. Rows of a shard are loaded when its turn comes, so memory holds those
   of a bounded number of shards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from lance_memwal.clock import RETRY, SYSTEM_CLOCK, Clock
from lance_memwal.errors import ClosedError, ConflictError, FencedError
from lance_memwal.log.epochs import IDLE_SECONDS, EpochKind, look_at_epoch
from lance_memwal.log.transactions import as_transaction
from lance_memwal.memtable import live
from lance_memwal.process.deadline import Deadline
from lance_memwal.process.forking import close_in_child
from lance_memwal.process.trial import tried_in_order
from lance_memwal.process.turns import Taking, Turn
from lance_memwal.process.waiting import on_top_error
from lance_memwal.rows.sharding import Sharding
from lance_memwal.types import ShardManifest, Transaction
from lance_memwal.write.append_queue import AppendQueue, AppendResult, Guard, QueuedAppend
from lance_memwal.write.changes import Terms
from lance_memwal.write.claim import ShardClaim
from lance_memwal.write.once import OnceAppender

_LOG = logging.getLogger(__name__)
AT_ONCE = 16
"""How many shards are appended to at the same time: most of that time is spent waiting for a store."""
_POLL_SECONDS = 0.5
_WARN_SECONDS = 5.0
_PLAIN = Terms()


@dataclass(frozen=True, slots=True)
class TakeoverPolicy:
    """How long to wait for the owner of a shard, and after how long without writes to take the shard over."""

    wait_seconds: float = 600.0
    idle_seconds: float = IDLE_SECONDS


@dataclass(frozen=True, slots=True)
class ShardAppend:
    """Rows for one shard, their transaction, their guard, and the sharding that chose the shard."""

    batches: Sequence[pa.RecordBatch]
    txn: Transaction | None = None
    guard: Guard | None = None
    routed_by: Sharding | None = None


class TableAppender:
    """Appends to shards of one table. Threads may share it, and any number of processes may have one each."""

    def __init__(
        self, appender: OnceAppender, *, policy: TakeoverPolicy | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.appender = appender
        self._policy = policy or TakeoverPolicy()
        self._clock = clock
        self._joined: dict[str, ShardClaim] = {}
        self._copies = appender.copies
        self.orphan()
        close_in_child(self)

    def orphan(self) -> None:
        """Create the locks and queues: at the start, and in a forked child, where their holders do not exist."""
        self._turns: dict[str, Turn] = {}
        self._queues: dict[str, AppendQueue] = {}

    # ------------------------------------------------------------------------------------------------------ appending

    def append(
        self,
        shard_id: str,
        batches: Sequence[pa.RecordBatch],
        *,
        txn: Transaction | tuple[str, int] | None = None,
        terms: Terms = _PLAIN,
        guard: Guard | None = None,
    ) -> AppendResult:
        """Append rows once, durably; see `OnceAppender.append`.

        Raises:
            ConflictError: An exclusive writer kept the shard for too long.
            UnavailableError: If `ambiguous`, the rows may be in the table; the same call with the same transaction decides.
        """
        self.appender.refresh()
        return self._append_given(shard_id, ShardAppend(batches, as_transaction(txn), guard), terms)

    def append_all(
        self,
        shards: Sequence[str],
        given_of: Callable[[str], ShardAppend],
        *,
        terms: Terms = _PLAIN,
        at_once: int = AT_ONCE,
    ) -> Iterator[AppendResult]:
        """`append` for every shard, in the order of `shards`, `at_once` of them at the same time.

        After a failure no other append is begun; a retry with the same transactions writes the missing rows.
        """
        self.appender.refresh()
        yield from tried_in_order(
            lambda shard_id: self._append_given(shard_id, given_of(shard_id), terms), shards, at_once, "memwal-append"
        )

    def _append_given(self, shard_id: str, given: ShardAppend, terms: Terms) -> AppendResult:
        self.appender.note_sequence(terms)
        write = self.appender.queued(given.batches, given.txn, terms, given.guard, given.routed_by)
        self.queue(shard_id, write)
        return self.finish(shard_id, write)

    def queue(self, shard_id: str, write: QueuedAppend) -> None:
        """Let the next append to the shard take `write` along."""
        self._queue_of(shard_id).add(write)

    def finish(
        self, shard_id: str, write: QueuedAppend, seconds: float | None = None, *, keeps: bool = False
    ) -> AppendResult:
        """The outcome of a queued write: another thread appends it, or this one does.

        A write that could not be appended leaves the queue, or stays in it (`keeps`).
        """
        deadline = Deadline(self._clock, self._policy.wait_seconds if seconds is None else seconds)
        queue = self._queue_of(shard_id)
        with write.trial:
            try:
                self.appender.refresh_if_due()
                queue.add(write)
                while not write.is_settled:
                    with self._turn(shard_id, deadline):
                        if not write.is_settled:
                            self._lead(shard_id, queue, write, deadline)
            except BaseException:
                if keeps:
                    queue.add(write)
                else:
                    queue.withdraw(write)
                raise
            return write.outcome()

    def write_queued(self, shard_id: str, seconds: float | None = None) -> None:
        """Append everything that is queued for the shard. What cannot be appended now stays queued, and raises its error."""
        for write in self._queue_of(shard_id):
            try:
                if not write.is_settled:
                    self.finish(shard_id, write, seconds, keeps=True)
            except Exception:
                if not write.is_settled:  # else the error is that of its caller
                    raise

    def withdraw(self, shard_id: str, write: QueuedAppend) -> None:
        """Remove a write from the queue; see `AppendQueue.withdraw`."""
        self._queue_of(shard_id).withdraw(write)

    def queued_bytes(self, shard_id: str) -> int:
        """The bytes of the rows that wait."""
        return self._queue_of(shard_id).size_bytes

    def drop(self, shard_id: str, writes: Iterable[QueuedAppend]) -> None:
        """Settle queued writes with `ClosedError`, once no thread appends to the shard."""
        queue = self._queue_of(shard_id)
        with self._turn(shard_id, Deadline(self._clock, self._policy.wait_seconds)):
            for write in writes:
                if not write.is_settled:
                    queue.fail(write, ClosedError("the table writer was aborted before the rows were written"))

    def _lead(self, shard_id: str, queue: AppendQueue, write: QueuedAppend, deadline: Deadline) -> None:
        attempt = 0
        while not write.is_settled:
            claim = self._claim_for(shard_id, write, deadline)
            if claim is None:
                return  # settled by the exclusive writer of this process
            try:
                self.appender.lead(claim, queue, write, refresh=bool(attempt))
            except FencedError as error:
                self._joined.pop(shard_id, None)
                if self._decided(shard_id, queue) and write.is_settled:
                    return
                if not deadline.left_seconds:
                    raise self._timeout_error(shard_id) from error
                queue.add(write)
                RETRY.wait(self._clock, attempt)
                attempt += 1

    def _decided(self, shard_id: str, queue: AppendQueue) -> bool:
        """Whether no attempt is undecided, in whatever epoch the shard is; False while another writer claims it."""
        with suppress(FencedError):
            self.appender.decide(shard_id, queue)
        return queue.attempt is None

    def _queue_of(self, shard_id: str) -> AppendQueue:
        return self._queues.setdefault(shard_id, AppendQueue())

    def _turn(self, shard_id: str, deadline: Deadline) -> AbstractContextManager[None] | Taking:
        """One thread of this process at a time appends to a shard, or flushes it."""
        turn = self._turns.setdefault(shard_id, Turn())  # atomic: one step of native code
        if turn.is_mine:
            raise on_top_error("a write")
        return turn.taken(deadline.left_seconds, partial(self._timeout_error, shard_id))

    # -------------------------------------------------------------------------------------------------------- joining

    @property
    def claims(self) -> dict[str, ShardClaim]:
        """The shared epochs that were joined so far; another process can `learn` them."""
        return dict(self._joined)

    def learn(self, claims: Mapping[str, ShardClaim]) -> None:
        """Use shared epochs that another process has joined."""
        for shard_id, claim in claims.items():
            known = self._joined.get(shard_id)
            if known is None or known.table_id != claim.table_id or known.epoch < claim.epoch:
                self._joined[shard_id] = claim

    def joined(self, shard_id: str) -> ShardClaim | None:
        """The shared epoch of the shard now, or None. It claims nothing and waits for no other writer."""
        manifest = self.appender.manifests(shard_id).read_latest()
        if manifest is None:
            return None
        epoch = look_at_epoch(self.appender.location, manifest, tag=self.appender.tag, clock=self._clock)
        return self._claim_of(manifest) if epoch.kind is EpochKind.JOINT else None

    def flush(self, shard_id: str, seconds: float | None = None) -> int | None:
        """Publish the tail of a shared shard while other processes append; returns how many generations, or None if the epoch
        is not shared."""
        deadline = Deadline(self._clock, self._policy.wait_seconds if seconds is None else seconds)
        with self._turn(shard_id, deadline):
            claim = self.joined(shard_id)
            try:
                return None if claim is None else self.appender.flush_tail(claim)
            except FencedError:
                return None

    def _claim_for(self, shard_id: str, write: QueuedAppend, deadline: Deadline) -> ShardClaim | None:
        """The shared epoch to append in; None once the exclusive writer of this process has settled `write`."""
        if self._copies != self.appender.copies:
            self._copies = self.appender.copies
            self._joined.clear()
        known = self._joined.get(shard_id)
        if known is not None:
            return known
        began, warned = self._clock.monotonic(), False
        while True:
            claim = self._join(shard_id, write)
            if claim is not None:
                self._joined[shard_id] = claim
            if claim is not None or write.is_settled:
                return claim
            if not deadline.left_seconds:
                raise self._timeout_error(shard_id)
            if not warned and self._clock.monotonic() - began >= _WARN_SECONDS:
                warned = True
                _LOG.warning("%s", self._waiting_text(shard_id))
            self._clock.sleep(min(_POLL_SECONDS, deadline.left_seconds))

    def _join(self, shard_id: str, write: QueuedAppend) -> ShardClaim | None:
        """The shared epoch of the shard, maybe a new one; None if an exclusive writer wrote `write`, or must be waited for."""
        manifest = self.appender.manifests(shard_id).read_latest()
        if manifest is None or manifest.writer_epoch == 0:
            return self._claim(shard_id)
        location = self.appender.location
        epoch = look_at_epoch(location, manifest, tag=self.appender.tag, clock=self._clock)
        if epoch.kind is EpochKind.JOINT:
            return self._claim_of(manifest)
        if self._forwarded(shard_id, manifest, write) or live.is_owned(location.key, shard_id, manifest.writer_epoch):
            return None
        if epoch.is_flushed or epoch.silent_seconds >= self._policy.idle_seconds:
            _LOG.info("taking over a shard [shard=%s, idle_seconds=%.0f]", shard_id, epoch.silent_seconds)
            return self._claim(shard_id)
        return None

    def _forwarded(self, shard_id: str, manifest: ShardManifest, write: QueuedAppend) -> bool:
        """Whether the exclusive writer of this process, if it owns the shard, settled the write (append R16)."""
        owner = live.writer_of(self.appender.location.key, shard_id, manifest.writer_epoch)
        if owner is None:
            return False
        queue = self._queue_of(shard_id)
        if not self._decided(shard_id, queue) or write.is_settled:
            return write.is_settled
        try:
            queue.answer(write, owner(partial(write.forward, shard_id)))
        except (FencedError, ClosedError):
            return False  # nothing was written, and the shard has another owner soon
        except Exception as error:
            queue.fail(write, error)
        return True

    def _claim_of(self, manifest: ShardManifest) -> ShardClaim:
        return ShardClaim(manifest.shard_id, manifest.writer_epoch, self.appender.table_id)

    def _claim(self, shard_id: str) -> ShardClaim | None:
        """A new shared epoch; None if another claim was faster."""
        try:
            return self.appender.claim(shard_id)
        except FencedError:
            return None

    def _waiting_text(self, shard_id: str) -> str:
        return (
            f"rows wait for the exclusive writer of shard {shard_id}: they are written when it closes, or has been idle for "
            f"{self._policy.idle_seconds:g} seconds; this call fails after {self._policy.wait_seconds:g} seconds"
        )

    def _timeout_error(self, shard_id: str) -> ConflictError:
        return ConflictError(
            f"shard {shard_id} was owned by an exclusive writer for {self._policy.wait_seconds:g} seconds: close that writer, "
            "open it with table.writer(shared=True), or retry"
        )
