"""Writes of this process that wait to be appended to one shard in a shared epoch.

Entry points: `QueuedAppend` (one write), `AppendQueue` (the writes of one shard), `Attempt` (the entry that is being appended).

1. A write is settled once: it has a result or an error. Only the thread with the turn of the shard settles writes.
2. A write leaves the queue when it is settled, or when its caller gives up.
3. An attempt that may be in the log stays in the queue until the transaction map decides it (append R7). Its writes are not
   planned again before that.
4. If the outcome of a create is unknown, all writes of the attempt get an `UnavailableError` with `ambiguous=True`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from lance_memwal.errors import ConflictError, UnavailableError
from lance_memwal.process.trial import Trial
from lance_memwal.types import EntryTransaction, Transaction
from lance_memwal.write.admission import AppendedRows, RowSource
from lance_memwal.write.results import WriteResult

if TYPE_CHECKING:
    from lance_memwal.rows.sharding import Sharding
    from lance_memwal.write.fitting import Fitting
    from lance_memwal.write.request import Writable

Guard: TypeAlias = Callable[[int], None]
"""Raises if a write must not be made. Its argument is the last position below the entry."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What an append did. `position` is 0 if the rows became a generation, or were applied already (`skipped`).

    `rows` counts rows and tombstones that were written. `rejected` are the keys of rows that a condition, or the merge of the
    table, rejected; None if there are none. `matched` counts live rows, if the write counts them.
    """

    shard_id: str
    rows: int
    position: int = 0
    generation: int = 0
    skipped: bool = False
    rejected: pa.Table | None = None
    matched: int | None = None

    @property
    def rejected_rows(self) -> int:
        """How many rows were rejected."""
        return 0 if self.rejected is None else self.rejected.num_rows


class QueuedAppend:
    """One write to a shard: what makes its rows, its transaction, and its outcome.

    `note_entry`, if set, is called with the bytes, seconds and rows of an entry of which this is the first write.
    """

    __slots__ = (
        "_fitting",
        "_forward",
        "_routed_by",
        "_source",
        "error",
        "guard",
        "make_source",
        "note_entry",
        "result",
        "size_bytes",
        "trial",
        "txn",
    )

    def __init__(
        self,
        make_source: Callable[[Fitting], RowSource],
        txn: Transaction | None = None,
        guard: Guard | None = None,
        trial: Trial | None = None,
        routed_by: Sharding | None = None,
        forward: Callable[[str, Writable], WriteResult] | None = None,
    ) -> None:
        """`make_source` fits the write to the columns of a base version. `trial` is that of a call with several attempts.
        `routed_by` is the sharding that chose the shard for the rows. `forward` makes the same write with a `ShardWriter`."""
        self.make_source = make_source
        self.txn = txn
        self.guard = guard
        self.trial = trial or Trial()
        self.result: AppendResult | None = None
        self.error: BaseException | None = None
        self.size_bytes = 0  # of the rows, once they are prepared
        self.note_entry: Callable[[int, float, int], None] | None = None
        self._routed_by = routed_by
        self._forward = forward
        self._fitting: Fitting | None = None
        self._source: RowSource | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the outcome is known."""
        return self.result is not None or self.error is not None

    def is_routed_by(self, sharding: Sharding) -> bool:
        """Whether this sharding chose the shard, so that the rows need not be routed again."""
        return self._routed_by == sharding

    def source(self, fitting: Fitting) -> RowSource:
        """The rows of the write for these columns."""
        if self._source is None or self._fitting is not fitting:
            self._source, self._fitting = self.make_source(fitting), fitting
        return self._source

    def forward(self, shard_id: str, writer: Writable) -> AppendResult:
        """Make the write with an exclusive writer of this process."""
        if self.guard is not None or self._forward is None:
            raise ConflictError(
                f"an exclusive writer of this process owns shard {shard_id}, and cannot check which keys changed since a "
                "snapshot: close that writer, or use on_conflict='overwrite'"
            )
        done = self._forward(shard_id, writer)
        return AppendResult(shard_id, done.written, skipped=done.skipped, rejected=done.rejected, matched=done.matched)

    def outcome(self) -> AppendResult:
        """The result of a settled write; raises its error."""
        if self.error is not None:
            raise self.error
        if self.result is None:
            raise AssertionError("the write is not settled")
        return self.result


@dataclass(slots=True)
class Attempt:
    """Writes that share one entry, or one generation, and their results if it counts. `own` names it in the transaction map."""

    own: Transaction
    parts: list[tuple[QueuedAppend, AppendedRows]]
    size_bytes: int = 0
    begun_ms: int = 0  # shard time of the entry that was created
    results: list[AppendResult] = field(default_factory=list)  # set once an entry was created

    @property
    def num_rows(self) -> int:
        """Rows and tombstones of all writes."""
        return sum(rows.num_rows for _, rows in self.parts)

    def transactions(self) -> tuple[EntryTransaction, ...]:
        """The transactions of the entry (append R11): those of users, each with its rows, and the own one for all rows."""
        found, first = [], 0
        for write, rows in self.parts:
            if write.txn is not None and write.txn != self.own:
                found.append(EntryTransaction(write.txn, first, rows.num_rows))
            first += rows.num_rows
        return (*found, EntryTransaction(self.own, 0, first))

    def created(self, shard_id: str, position: int, generation: int, begun_ms: int) -> None:
        """Record that the entry was created: the writes may be in the log from now on."""
        self.begun_ms = self.begun_ms or begun_ms
        self.results = [
            AppendResult(
                shard_id,
                rows.num_rows,
                position,
                generation,
                rejected=rows.rejected,
                matched=rows.matched,
            )
            for _, rows in self.parts
        ]
        for write, _ in self.parts:
            write.trial.is_begun = True


class AppendQueue:
    """The writes of one shard that are not settled. Threads may share it; the thread with the turn plans and settles."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal handler may add a write
        self._waiting: dict[QueuedAppend, None] = {}
        self.size_bytes = 0
        self.attempt: Attempt | None = None

    def add(self, write: QueuedAppend) -> None:
        """Queue a write, if it is not settled and not in the queue."""
        with self._lock:
            if not write.is_settled and write not in self._waiting:
                self._waiting[write] = None
                self.size_bytes += write.size_bytes

    def __iter__(self) -> Iterator[QueuedAppend]:
        """The writes that wait, the oldest first."""
        with self._lock:
            return iter(list(self._waiting))

    def _remove(self, write: QueuedAppend) -> None:
        with self._lock:
            if write in self._waiting:
                del self._waiting[write]
                self.size_bytes -= write.size_bytes

    def withdraw(self, write: QueuedAppend) -> None:
        """Remove a write whose caller gives up. If it is in an attempt, it may be in the log."""
        self._remove(write)
        attempt = self.attempt
        if attempt is not None and any(write is part for part, _ in attempt.parts):
            write.trial.is_begun = True

    def answer(self, write: QueuedAppend, result: AppendResult) -> None:
        """Settle a write that needs no entry."""
        write.result = result
        self._remove(write)

    def fail(self, write: QueuedAppend, error: BaseException) -> None:
        """Settle a write with an error."""
        write.error = error
        self._remove(write)

    def settle(self, attempt: Attempt) -> None:
        """The entry counts: settle its writes."""
        for (write, _), result in zip(attempt.parts, attempt.results, strict=True):
            if not write.is_settled:
                write.result = result
            self._remove(write)
        self.attempt = None

    def give_up(self, own: QueuedAppend, error: BaseException) -> None:
        """Withdraw `own`, whose leader failed. If the outcome of its attempt is unknown, settle all writes of the attempt."""
        attempt = self.attempt
        if attempt is not None and not attempt.results:  # else the transaction map decides it
            unknown = not isinstance(error, Exception) or (isinstance(error, UnavailableError) and error.ambiguous)
            for write, _ in attempt.parts if unknown else ():
                if write is own:
                    self.fail(write, error)
                elif not write.is_settled:
                    reason = f"the outcome of this write is unknown, the request of its entry failed: {error!r}"
                    self.fail(write, UnavailableError(reason, ambiguous=True))
            self.attempt = None
        self.withdraw(own)
