"""Appending beside other sinks, and in turn with writers: the rules of RFC 0017 for whoever has no memory.

Owns `Sink`. Invariants:

1. A sink joins a joint epoch, and claims a joint one where nobody owns the shard. It never fences an owner that lives: it
   forwards to one that is served, and waits for any other until that closes, or was silent for a while. One of its own
   process lives however silent it is: after such a while it is a `ConflictError`.
2. An append keeps its transaction through every attempt, whoever it is made with: whether an attempt before counts is
   told by the map of the shard.
3. Every wait has an end, with an error that says what to do; one of more than some seconds is told in a warning.
4. Many shards are appended to at once, by a bounded number of threads; the table is looked at once for all of them. Rows of a
   shard are asked for when its turn comes, so that memory holds those of that many shards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from lance_memwal.clock import RETRY, SYSTEM_CLOCK, Clock
from lance_memwal.errors import ConflictError, FencedError
from lance_memwal.log.epochs import IDLE_SECONDS, EpochKind, look_at_epoch
from lance_memwal.log.transactions import as_transaction
from lance_memwal.process.deadline import Deadline
from lance_memwal.process.forking import close_in_child
from lance_memwal.process.trial import Trial, tried_in_order
from lance_memwal.process.turns import Taking, Turn
from lance_memwal.rows.sharding import Sharding
from lance_memwal.types import ShardManifest, Transaction
from lance_memwal.write.changes import Terms
from lance_memwal.write.claim import ShardClaim
from lance_memwal.write.once import AppendResult, Guard, OnceAppender
from lance_memwal.write.presence import lives_here, why_kept

_LOG = logging.getLogger(__name__)
AT_ONCE = 16
"""How many shards a sink appends to at the same time: most of that time it waits for a store."""
_LOOK_SECONDS = 0.5
_TELL_SECONDS = 5.0
_PLAIN = Terms()


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a sink waits for the owner of a shard, and after how long a silence it takes the shard over."""

    wait_seconds: float = 600.0
    silent_seconds: float = IDLE_SECONDS


@dataclass(frozen=True, slots=True)
class Given:
    """What is appended to one shard: rows, their transaction, what may refuse them, and the sharding that chose the shard."""

    batches: Sequence[pa.RecordBatch]
    txn: Transaction | None = None
    guard: Guard | None = None
    routed_by: Sharding | None = None


class OwnerGoneError(Exception):
    """A served owner that does not answer for its epoch any more: the shard may be claimed, the outcome is unknown."""


class ServedOwner(Protocol):
    """The owner of a shard, in another process, that takes rows for it."""

    def append(
        self, batches: Sequence[pa.RecordBatch], txn: Transaction, terms: Terms, deadline: Deadline
    ) -> AppendResult:
        """Let the owner write the rows, once; `OwnerGoneError` if it cannot be reached."""


FindOwner = Callable[[str, int], ServedOwner | None]
"""The served owner of (shard, epoch); None if there is none, `OwnerGoneError` if it does not answer."""


class Sink:
    """Appends to shards of one table. Threads may share it, and any number of processes may have one each."""

    def __init__(
        self,
        appender: OnceAppender,
        *,
        patience: Patience | None = None,
        find_owner: FindOwner | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`find_owner` finds owners that take rows of others; without it they are waited for."""
        self.appender = appender
        self._patience = patience or Patience()
        self._find_owner = find_owner
        self._clock = clock
        self._joined: dict[str, ShardClaim] = {}
        self._copies = appender.copies
        self.orphan()
        close_in_child(self)

    def orphan(self) -> None:
        """Have turns of our own, at the start and in a forked child."""
        self._turns: dict[str, Turn] = {}

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
        """The rows are in the shard once when this returns, on storage; see `OnceAppender.append`.

        `ConflictError` if a writer that does not share the shard kept it for too long; `UnavailableError` where an attempt was
        fenced before, since the rows may be there: a repeat of the transaction tells. An append with a guard is not handed to
        the owner of a shard, who could not ask it.
        """
        return self._append_once(shard_id, Given(batches, as_transaction(txn), guard), terms, looked=False)

    def append_all(
        self,
        shards: Sequence[str],
        given_of: Callable[[str], Given],
        *,
        terms: Terms = _PLAIN,
        at_once: int = AT_ONCE,
    ) -> Iterator[AppendResult]:
        """`append` of what is given for every shard, in the order of `shards`, `at_once` of them at the same time.

        After a failure nothing more is begun; a repeat of the same transactions writes what is missing.
        """
        self.appender.refresh()

        def append(shard_id: str) -> AppendResult:
            return self._append_once(shard_id, given_of(shard_id), terms, looked=True)

        yield from tried_in_order(append, shards, at_once, "memwal-append")

    def _append_once(self, shard_id: str, given: Given, terms: Terms, *, looked: bool) -> AppendResult:
        deadline = Deadline(self._clock, self._patience.wait_seconds)
        with self._turn(shard_id, deadline), Trial() as trial:
            kept = replace(given, txn=given.txn or self.appender.own_transaction())  # in the order of the entries
            result = self._append(shard_id, kept, terms, deadline, trial, looked=looked)
        if given.txn is None and result.skipped:  # nobody else has this transaction: an attempt of ours wrote it
            return replace(result, skipped=False, rows=sum(batch.num_rows for batch in given.batches))
        return result

    def _append(
        self, shard_id: str, given: Given, terms: Terms, deadline: Deadline, trial: Trial, *, looked: bool
    ) -> AppendResult:
        """`looked`: the table was just looked at, which is good for an append that need not wait."""
        attempt = 0
        while True:
            refresh = not (looked and attempt == 0 and shard_id in self._joined)
            way = self._way(shard_id, deadline)
            try:
                if isinstance(way, ShardClaim):
                    return self._append_beside_others(way, given, terms, trial, refresh=refresh)
                return self._forward(way, shard_id, given, terms, deadline)
            except (FencedError, OwnerGoneError) as error:
                trial.is_begun = trial.is_begun or isinstance(error, OwnerGoneError)
                self._joined.pop(shard_id, None)
                if not deadline.left_seconds:
                    raise self._kept_out(shard_id) from error
            RETRY.wait(self._clock, attempt)
            attempt += 1

    def _append_beside_others(
        self, claim: ShardClaim, given: Given, terms: Terms, trial: Trial, *, refresh: bool
    ) -> AppendResult:
        return self.appender.append(
            claim,
            given.batches,
            txn=given.txn,
            terms=terms,
            refresh=refresh,
            guard=given.guard,
            routed_by=given.routed_by,
            trial=trial,
        )

    def _forward(
        self, owner: ServedOwner, shard_id: str, given: Given, terms: Terms, deadline: Deadline
    ) -> AppendResult:
        if given.guard is not None or given.txn is None:
            raise ConflictError(
                f"shard {shard_id} is written through its owner, who cannot tell which keys changed since a "
                "snapshot: close the owner, or let the write overwrite them"
            )
        self.appender.note_sequence(terms)
        return owner.append(given.batches, given.txn, terms, deadline)

    def _turn(self, shard_id: str, deadline: Deadline) -> AbstractContextManager[None] | Taking:
        """One append or flush of a shard at a time, in this process."""
        turn = self._turns.setdefault(shard_id, Turn())  # one step of native code
        return turn.taken(deadline.left_seconds, partial(self._kept_out, shard_id))

    # -------------------------------------------------------------------------------------------------------- joining

    @property
    def claims(self) -> dict[str, ShardClaim]:
        """The joint epochs that were joined so far; they may travel to other processes, which `learn` them."""
        return dict(self._joined)

    def learn(self, claims: Mapping[str, ShardClaim]) -> None:
        """Know of joint epochs that another process has joined."""
        for shard_id, claim in claims.items():
            known = self._joined.get(shard_id)
            if known is None or known.table_id != claim.table_id or known.epoch < claim.epoch:
                self._joined[shard_id] = claim

    def joined(self, shard_id: str) -> ShardClaim | None:
        """The joint epoch that the shard is in now, if it is in one. Nothing is claimed, and nobody is waited for."""
        manifest = self.appender.manifests(shard_id).read_latest()
        return None if manifest is None else self._joint(manifest)

    def flush(self, shard_id: str) -> int | None:
        """Publish what is in the log of a joint shard, while others append; how many generations. None: it is not joint."""
        with self._turn(shard_id, Deadline(self._clock, self._patience.wait_seconds)):
            claim = self.joined(shard_id)
            try:
                return None if claim is None else self.appender.flush_tail(claim)
            except FencedError:
                return None

    def _way(self, shard_id: str, deadline: Deadline) -> ShardClaim | ServedOwner:
        """How the shard is written now: as one of many, or through its owner."""
        if self._copies != self.appender.copies:
            self._copies = self.appender.copies
            self._joined.clear()
        known = self._joined.get(shard_id)
        if known is not None:
            return known
        began, told = self._clock.monotonic(), False
        while True:
            way = self._look(shard_id)
            if isinstance(way, ShardClaim):
                self._joined[shard_id] = way
            if way is not None:
                return way
            if not deadline.left_seconds:
                raise self._kept_out(shard_id)
            if not told and self._clock.monotonic() - began >= _TELL_SECONDS:
                told = True
                _LOG.warning("%s", self._waits_for(shard_id))
            self._clock.sleep(min(_LOOK_SECONDS, deadline.left_seconds))

    def _look(self, shard_id: str) -> ShardClaim | ServedOwner | None:
        """The way to write the shard; None: somebody else's turn is not over."""
        manifest = self.appender.manifests(shard_id).read_latest()
        if manifest is None or manifest.writer_epoch == 0:
            return self._claim(shard_id)
        look = look_at_epoch(self.appender.location, manifest, tag=self.appender.tag, clock=self._clock)
        if look.kind is EpochKind.JOINT:
            return self._claim_of(manifest)
        try:
            owner = None if self._find_owner is None else self._find_owner(shard_id, manifest.writer_epoch)
        except OwnerGoneError:
            return self._claim(shard_id)
        if owner is not None:
            return owner
        silent, idle = look.silent_seconds, self._patience.silent_seconds
        if silent >= idle and lives_here(self.appender.location, manifest):
            raise self._kept_here(shard_id)
        if (
            look.is_flushed
            or why_kept(self.appender.location, manifest, silent_seconds=silent, idle_seconds=idle) is None
        ):
            _LOG.info("taking over a shard [shard=%s, silent_seconds=%.0f]", shard_id, look.silent_seconds)
            return self._claim(shard_id)
        return None

    def _joint(self, manifest: ShardManifest) -> ShardClaim | None:
        look = look_at_epoch(self.appender.location, manifest, tag=self.appender.tag, clock=self._clock)
        return self._claim_of(manifest) if look.kind is EpochKind.JOINT else None

    def _claim_of(self, manifest: ShardManifest) -> ShardClaim:
        return ShardClaim(manifest.shard_id, manifest.writer_epoch, self.appender.table_id)

    def _claim(self, shard_id: str) -> ShardClaim | None:
        """A joint epoch of our own; None if another one was faster."""
        try:
            return self.appender.claim(shard_id)
        except FencedError:
            return None

    def _kept_here(self, shard_id: str) -> ConflictError:
        return ConflictError(
            f"a writer of this process has shard {shard_id} open and was silent for {self._patience.silent_seconds:g} seconds: "
            "close it, or share it (table.writer(shared=True)), so that others have their turn"
        )

    def _waits_for(self, shard_id: str) -> str:
        silent, most = self._patience.silent_seconds, self._patience.wait_seconds
        return (
            f"rows wait for the writer of shard {shard_id}: they go on when it is closed, or was silent for {silent:g} seconds "
            f"as one that was killed is, and fail after {most:g}; a writer that shares (table.writer(shared=True)) takes them"
        )

    def _kept_out(self, shard_id: str) -> ConflictError:
        return ConflictError(
            f"shard {shard_id} was kept for {self._patience.wait_seconds:g} seconds by a writer that does not share it: close "
            "that writer, share it (table.writer(shared=True)), or wait longer"
        )
