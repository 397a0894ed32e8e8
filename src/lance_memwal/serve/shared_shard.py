"""One shard that many processes write: owned by this one, or reached through its owner.

Owns `SharedShard`. Invariants:

1. A write is acknowledged by whoever owns the newest epoch, and by nobody else. Every write carries a mark (the user's
   transaction, or one of our own), here and there alike: when an owner is lost, its successor is asked under the same mark,
   and skips what the log has already. If none is found, the error says that the outcome is unknown.
2. A shard is claimed if it has no owner, if its owner does not answer for its epoch, or if a writer elsewhere that does not
   share it left it alone, or only sinks append to it (`upkeep.tails`). A living owner is never fenced, nor is any living
   writer of this process.
3. This process claims at most once a second, and only with rows to write. On one host one process at a time looks for the
   owner, so that one claims and the others find it.
4. Every wait has an end.
5. A shard that was closed, aborted or parked is owned and served by nobody through this object, whatever others were about
   to do with it: a claim that is under way then is given up.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from lance_memwal.clock import RETRY, SYSTEM_CLOCK
from lance_memwal.crash_points import reach
from lance_memwal.errors import (
    ClosedError,
    ConflictError,
    FencedError,
    InvalidInputError,
    MemWalError,
    UnavailableError,
    WriterPoisonedError,
)
from lance_memwal.log.epochs import IDLE_SECONDS
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.memtable import live
from lance_memwal.process.deadline import Deadline
from lance_memwal.process.forking import close_in_child
from lance_memwal.process.turns import TURN_SECONDS, Turn
from lance_memwal.process.waiting import is_on_top, on_top_error
from lance_memwal.rows.filter import FilterLike
from lance_memwal.rows.ingest import to_batches
from lance_memwal.rows.lookup_key import one_key
from lance_memwal.rows.schema import TableSchema
from lance_memwal.rows.where import Where
from lance_memwal.serve import desk, office
from lance_memwal.serve.caller import OwnerStartsError, RemoteShard
from lance_memwal.serve.channel import OwnerLostError
from lance_memwal.serve.endpoint import HOST_VARIABLE, is_for_other_hosts
from lance_memwal.serve.marks import Mark, Marks
from lance_memwal.serve.record import Owner, OwnerRecords
from lance_memwal.serve.runtime import TOKEN_VARIABLE, host_lock, is_token_given
from lance_memwal.serve.wire import Request, perform
from lance_memwal.shard_writer import ShardWriter
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest, Transaction
from lance_memwal.upkeep.tails import may_be_claimed
from lance_memwal.write.life import Parked
from lance_memwal.write.request import NowaitWritable, Write
from lance_memwal.write.results import ShardWrite, WriteResult, result_of
from lance_memwal.write.stats import WriteStats
from lance_memwal.write.writes import Ack

_LOST = (OwnerLostError, FencedError, ClosedError, WriterPoisonedError)
_UNKNOWN = (OwnerLostError, WriterPoisonedError)  # of these, whether the write is in the log
_LOCK_SECONDS = 30.0
_BESIDE_SECONDS = 90.0
_HERE_SECONDS = 2.0  # for a writer of this process: upkeep opens one for as long as it flushes a log
_LOOK_SECONDS = 0.1
_CLAIM_SECONDS = 1.0
_DRAIN_SECONDS = 2.0
_ATTEND_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class SharedTable:
    """What all shared shards of a table writer have in common: the table, and how a shard of it is owned.

    `is_plain`: its rows are merged by no rule, so that a whole row that is put is written.
    """

    location: Location
    table_id: str
    tag: str | None
    is_plain: bool
    schema: Callable[[], TableSchema]
    open_shard: Callable[[str, Parked | None], ShardWriter]


class _OwnedShard:
    """A shard that this process owns, and serves."""

    def __init__(self, writer: ShardWriter) -> None:
        self.writer = writer

    @property
    def shard_time_ms(self) -> int:
        return self.writer.shard_time_ms

    def perform(self, request: Request, txn: Transaction | None, deadline: Deadline) -> Any:  # noqa: ARG002
        return perform(self.writer, request, txn)


@dataclass(frozen=True, slots=True)
class _Done:
    """A write that was waited for."""

    result: WriteResult
    durable: bool = True

    def wait(self, timeout: float | None = None) -> WriteResult:  # noqa: ARG002
        return self.result


class SharedShard(NowaitWritable):
    """The verbs of one shard, wherever it is owned. Threads may share it."""

    def __init__(self, table: SharedTable, shard_id: str, parked: Parked | None = None) -> None:
        """Nothing is claimed before the first write."""
        self.shard_id = shard_id
        self._table = table
        self._parked = parked
        self._records = OwnerRecords(table.location, shard_id)
        self._manifests = ShardManifestStore(table.location, shard_id)
        self._marks = Marks()
        self._turn = Turn()
        self._way: _OwnedShard | RemoteShard | None = None
        self._closed = False
        self._claimed_at = -_CLAIM_SECONDS
        close_in_child(self)

    @property
    def owned(self) -> ShardWriter | None:
        """The writer of this process, if it owns the shard."""
        way = self._way
        return way.writer if isinstance(way, _OwnedShard) and way.writer.is_writing else None

    @property
    def epoch(self) -> int:
        """The epoch under which this process owns the shard; 0 if it does not."""
        owned = self.owned
        return 0 if owned is None else owned.epoch

    @property
    def is_parked(self) -> bool:
        """Whether the writer of this process was put away, or is about to be."""
        way = self._way
        return isinstance(way, _OwnedShard) and way.writer.is_parked

    # ------------------------------------------------------------------------------------------------------ writing

    def _apply(self, write: Write) -> WriteResult:
        if write.kind == "compare_and_set":
            schema = self._table.schema()
            named = one_key(write.key, schema)
            rows = [_one_row(named, row, schema) for row in (write.expected, write.rows)]
            is_set: bool = self._perform(Request("compare_and_set", ([named], *rows)), write.txn)
            return result_of({self.shard_id: ShardWrite(range(0), int(is_set))})
        result: WriteResult = self._perform(self._request(write), write.txn)
        whole = write.txn is None and self._table.is_plain and (write.is_plain or write.kind == "insert")
        (done,) = result.shards.values()
        if whole and done.skipped:  # a repeat of our own: the attempt before wrote it
            done = ShardWrite(range(0), sum(len(batch) for batch in write.rows))
        return result_of({self.shard_id: done})

    def _request(self, write: Write) -> Request:
        where = self._text(write.where)
        if write.found is not None:
            keys = write.found.to_batches()
            if write.kind == "delete":
                return Request("delete_matching", (keys,), {"where": where})
            settings = write.settings(self._table.schema())
            given = None if settings.given is None else [settings.given]
            return Request("update_matching", (keys, given), {"where": where, "set": dict(settings.sql)})
        rows = list(write.rows)
        if write.kind == "put":
            options = {"missing": write.missing, "if_absent": write.if_absent, "where": where}
            is_plain = write.is_plain and write.txn is None and self._table.is_plain
            return Request("put", (rows,), options, is_plain=is_plain)
        if write.kind == "delete":
            beside = None if write.sequence is None else [pa.record_batch({"sequence": pa.array([write.sequence])})]
            return Request("delete", (rows, beside), {"count": write.count})
        return Request(write.kind, (rows,), {"insert": write.insert} if write.kind == "update" else {})

    def _text(self, where: FilterLike | None) -> str | None:
        """A filter as SQL, since it may be sent to another process."""
        if isinstance(where, Where):
            return where.sql(self._table.schema().columns)
        if where is None or isinstance(where, str):
            return where
        raise InvalidInputError(
            "a shared writer may send a filter to another process; write it as SQL text or mw.where(...)"
        )

    def _perform(self, request: Request, txn: Transaction | None, *, marked: bool = True) -> Any:
        """What the owner of the shard does with a write, once, however many owners are asked.

        After an owner was lost in the midst of it nobody is told that nothing happened.
        """
        deadline, attempt, was_lost = Deadline(SYSTEM_CLOCK), 0, False
        given, mark = txn, None
        while True:
            way = None
            try:
                way = self._way or self._find(deadline)
                if marked and given is None:
                    mark = self._marks.take(way.shard_time_ms)
                    given = mark.txn
                done = way.perform(request, given, deadline)
            except _LOST as error:
                was_lost = was_lost or isinstance(error, _UNKNOWN)
                self._lose(way, was_lost=was_lost)
                self._refuse_closed(was_lost=was_lost)
                if not deadline.left_seconds:
                    raise UnavailableError(f"no owner of shard {self.shard_id} could do a write: {error}") from error
                RETRY.wait(SYSTEM_CLOCK, attempt)
                attempt += 1
                continue
            except UnavailableError as error:
                error.ambiguous = error.ambiguous or was_lost
                raise
            except ConflictError as error:
                if was_lost and way is None:  # else the owner knows the mark
                    raise UnavailableError(f"an owner did not answer, and: {error}", ambiguous=True) from error
                raise
            except InvalidInputError:
                if not was_lost:
                    self._give_back(mark)
                raise
            self._give_back(mark)
            return done

    def _give_back(self, mark: Mark | None) -> None:
        if mark is not None:
            self._marks.give_back(mark)

    def _refuse_closed(self, *, was_lost: bool = False) -> None:
        if self._closed or self.is_parked:
            if was_lost:
                raise UnavailableError(
                    f"the writer of shard {self.shard_id} is closed, and an owner that it asked before did not answer",
                    ambiguous=True,
                )
            raise ClosedError(f"the writer of shard {self.shard_id} is closed; open a new one")

    def _begin(self, write: Write, *, drain: bool = True) -> Ack:  # noqa: ARG002
        """Apply it: a write that may be repeated elsewhere is waited for, so that its outcome is known."""
        return Ack([_Done(self._apply(write))])

    # ------------------------------------------------------------------------------------------------------ the owner

    def attend(self) -> bool:
        """Own the shard if nobody does; returns whether this process owns it now. It waits for nobody."""
        way = self._way
        try:
            if isinstance(way, RemoteShard):
                way.look()
            elif way is None or not way.writer.is_writing:
                self._lose(way)
                self._find(Deadline(SYSTEM_CLOCK, _ATTEND_SECONDS), beside_seconds=0.0)
        except ConflictError:
            return False
        except _LOST:
            self._lose(way)
        return self.owned is not None

    def _find(self, deadline: Deadline, beside_seconds: float | None = None) -> _OwnedShard | RemoteShard:
        """The way to the owner, which may become this process; `beside_seconds`: how long a writer that does not share is
        waited for."""
        if self._turn.is_mine:
            raise on_top_error("a write")
        late = partial(deadline.error, f"the owner of shard {self.shard_id} was not found; retry")
        with self._turn.taken(deadline.left_seconds, late):
            self._refuse_closed()
            way = self._way
            if way is None:
                with host_lock(f"{self._table.table_id}-{self.shard_id}", min(_LOCK_SECONDS, deadline.left_seconds)):
                    way = self._way = self._look(_BESIDE_SECONDS if beside_seconds is None else beside_seconds)
                self._refuse_closed()
            return way

    def _look(self, beside_seconds: float) -> _OwnedShard | RemoteShard:
        beside = Deadline(SYSTEM_CLOCK, beside_seconds)
        beside_here = Deadline(SYSTEM_CLOCK, min(beside_seconds, _HERE_SECONDS))
        while True:
            self._refuse_closed()
            manifest = self._manifests.read_latest()
            epoch = 0 if manifest is None else manifest.writer_epoch
            if epoch == 0 or manifest is None or self._parked is not None:
                return self._own(epoch)
            owner = self._records.find(epoch)
            is_here = owner is None and self._is_written_here(epoch)
            try:
                if owner is not None and is_near(owner):
                    return RemoteShard(owner, self._table.table_id, self.shard_id, epoch)
                if not is_here and self._may_be_claimed(manifest):
                    return self._own(epoch)
            except OwnerLostError:
                return self._own(epoch)
            except OwnerStartsError:
                pass
            if not (beside_here if is_here else beside).left_seconds:
                raise self._conflict(is_here=is_here)
            SYSTEM_CLOCK.sleep(_LOOK_SECONDS)

    def _is_written_here(self, epoch: int) -> bool:
        """Whether a writer of this process has the shard under this epoch."""
        return live.is_owned(self._table.location.key, self.shard_id, epoch)

    def _may_be_claimed(self, manifest: ShardManifest) -> bool:
        return may_be_claimed(self._table.location, manifest, idle_seconds=IDLE_SECONDS, tag=self._table.tag)

    def _conflict(self, *, is_here: bool) -> ConflictError:
        if is_here:
            return ConflictError(
                f"a writer of this process that does not share has shard {self.shard_id} open: write through it, close it, "
                "or open it with table.writer(shared=True)"
            )
        return ConflictError(
            f"shard {self.shard_id} is written by a writer that does not share it, or by an owner on another host "
            f"that listens to its own host only; close it, write through it, or set {HOST_VARIABLE} there"
        )

    def _crowded(self, *, was_lost: bool) -> MemWalError:
        text = f"another call of this process looks for the owner of shard {self.shard_id}; retry"
        return UnavailableError(text, ambiguous=True) if was_lost else ConflictError(text)

    def _own(self, epoch: int) -> _OwnedShard:
        """Claim the shard, and answer for it. The record comes first: no served epoch is without one."""
        table, parked = self._table, self._parked
        wait = self._claimed_at + _CLAIM_SECONDS - SYSTEM_CLOCK.monotonic()
        if wait > 0:
            SYSTEM_CLOCK.sleep(wait)
        self._claimed_at, self._parked = SYSTEM_CLOCK.monotonic(), None
        start = desk.Start(table.table_id, self.shard_id)
        try:
            owner = office.begin(start)
            if parked is None and not self._records.announce(epoch + 1, owner):
                self._records.replace(epoch + 1, owner)
            reach("serve.announced")
            writer = table.open_shard(self.shard_id, parked)
            try:
                reach("serve.claimed")
                self._records.replace(writer.epoch, owner)
                office.serve(table.table_id, writer)
                self._records.remove_below(writer.epoch)
                way = self._way = _OwnedShard(writer)  # here: an interrupt would leave a writer that nobody ends
                self._refuse_closed()
                return way  # noqa: TRY300 (the same)
            except BaseException:
                self._way = None
                office.forget(table.table_id, writer)
                # Others may have written through it: only what was drained can be taken up again under its epoch.
                self._parked = writer.park() if self._closed else None  # for whoever closes this
                if self._parked is None:
                    writer.abort()
                raise
        finally:
            start.is_over = True
            office.end_if_idle()

    def _lose(self, way: _OwnedShard | RemoteShard | None, *, was_lost: bool = False) -> None:
        """Go on without an owner that was lost; `was_lost`: what it did with a write is unknown."""
        with self._turn.taken(TURN_SECONDS, partial(self._crowded, was_lost=was_lost)):
            if way is None or self._way is not way or self._closed or self.is_parked:
                return
            self._way = None
        if isinstance(way, _OwnedShard):
            office.forget(self._table.table_id, way.writer)
            way.writer.abort()

    # ------------------------------------------------------------------------------------------------------ upkeep

    def evolve_schema(self) -> None:
        """Move to the columns that the base table has now, wherever the shard is owned."""
        if self._way is not None:
            self._perform(Request("evolve_schema"), None, marked=False)

    def force_seal_active(self) -> None:
        """Freeze what was written, wherever the shard is owned."""
        if self._way is not None or self._parked is not None:
            self._perform(Request("seal"), None, marked=False)

    def seal(self) -> None:
        """Freeze what was written, if this process owns the shard."""
        owned = self.owned
        if owned is not None:
            owned.seal()

    def wait_for_flush_drain(self, timeout: float | None = None) -> None:
        """Return when everything that is frozen is in SSTables; `UnavailableError` on time-out."""
        deadline = Deadline(SYSTEM_CLOCK) if timeout is None else Deadline(SYSTEM_CLOCK, timeout)
        while self._way is not None:
            slice_ = Deadline(SYSTEM_CLOCK, min(_DRAIN_SECONDS, deadline.left_seconds))
            try:
                self._perform(Request("drain", options={"seconds": slice_.seconds}), None, marked=False)
            except UnavailableError:
                if slice_.left_seconds or not deadline.left_seconds:  # not for lack of time, or of all of it
                    raise
                continue
            return

    def stats(self) -> WriteStats:
        """The totals of the writer, if this process owns the shard; what is forwarded counts with its owner."""
        owned = self.owned
        return WriteStats() if owned is None else owned.stats()

    # ------------------------------------------------------------------------------------------------------ ending

    def park(self) -> Parked | None:
        """Put an owned shard away; it stays this process's own until another one wants it. Others cost nothing."""
        way = self._way
        if not isinstance(way, _OwnedShard):
            return None
        parked = way.writer.park()
        if parked is not None:
            office.forget(self._table.table_id, way.writer)
        return parked

    def close(self) -> None:
        """Flush and close what this process owns; whoever needs the shard next owns it. Idempotent."""
        writer = self._leave()
        if writer is not None:
            try:
                writer.close()
                if not is_on_top():  # else it is closed as soon as the call below ends
                    self._records.remove(writer.epoch)  # all is flushed: nobody need ask whether somebody still writes
            except FencedError:
                return  # somebody needs the shard already, and has taken over what was not flushed
            finally:
                office.forget(self._table.table_id, writer)

    def abort(self) -> None:
        """Stop without flushing. Idempotent."""
        writer = self._leave()
        if writer is not None:
            office.forget(self._table.table_id, writer)
            writer.abort()

    def _leave(self) -> ShardWriter | None:
        """The writer that must be ended, if there is one; a parked one is taken up for it, unless somebody else did.

        Whoever claims the shard now is waited for, and gives it up; on top of another call, it does that by itself.
        """
        self._closed = True
        if not is_on_top():
            deadline = Deadline(SYSTEM_CLOCK)
            late = partial(deadline.error, f"shard {self.shard_id} was still being claimed; it is given up then")
            with self._turn.taken(deadline.seconds, late):
                pass
        way, self._way = self._way, None
        if isinstance(way, _OwnedShard):
            return None if way.writer.is_parked else way.writer
        parked, self._parked = self._parked, None
        if way is not None or parked is None:
            return None
        try:
            return self._table.open_shard(self.shard_id, parked)
        except FencedError:
            return None

    def orphan(self) -> None:
        """Become closed in a forked child."""
        self._turn, self._closed = Turn(), True


def is_near(owner: Owner) -> bool:
    """Whether the owner can be reached from here."""
    if not is_for_other_hosts(owner.address):
        return owner.host == socket.gethostname()
    if not is_token_given():
        raise UnavailableError(
            f"the owner of the shard listens at {owner.address} for other hosts: set {TOKEN_VARIABLE} to its token",
            ambiguous=False,
            retryable=False,
        )
    return True


def _one_row(named: pa.RecordBatch, row: Any, schema: TableSchema) -> list[pa.RecordBatch] | None:
    """One whole row, as rows; it may leave its key out."""
    if row is None:
        return None
    if isinstance(row, dict):
        row = [{**named.to_pylist()[0], **row}]
    return to_batches(row, schema.columns, whole=True)
