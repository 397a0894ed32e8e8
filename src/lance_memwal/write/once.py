"""Append to a shard exactly once, next to any number of other processes.

Owns `OnceAppender`. It appends in shared epochs (RFC 0017): a claim is a small value that other processes can use, too, and none
of them talks to another. Rule numbers, as in `append R5`, are those of `tests/model_check/shared_world.py`. Invariants:

1. An append follows every entry below its position: the appender keeps the tail of the log in memory. A manifest check confirms
   the tail after it was read (R3). If the manifest moved, the appender drops the tail and everything that came from it: a
   position that GC emptied may have held a late put.
2. An entry counts once a manifest check after its create finds the manifest unmoved, or its cursor below the entry (R5).
   Otherwise the append starts again, and the transaction map decides.
3. If the create finds another entry, the appender absorbs that entry and tries the next position (R6). A create may follow one
   entry that no check has confirmed (R8). An answer without a create needs a check first.
4. All rows of one transaction are in one WAL entry. If they are too large for one, they are in one generation.
5. Every entry has a transaction of this process, and that of the user if there is one (R11). The transaction map decides
   whether an append is in the shard. The own transaction also names the writer, for turns (R9).
6. A generation is sealed before it is flushed: a marker entry says where it ends. An appender that reads the seal uses the next
   generation. A seal holds in its own epoch only.
7. A bulk marker at the tip announces rows without an entry. It is created after the rows are written, while the tail is empty.
   The first process that reads the marker publishes the rows before it continues.
8. A higher epoch, in the manifest or in the log, raises `FencedError`. Unpublished rows of a bulk marker are then lost.
9. If the base table is older than before, or another object of the same version, the table and its logs were restored from a
   copy. The appender then drops all tails and refuses older claims.
10. One append uses one version of the base table, from its rows to its entry.
An undisturbed append makes two requests: the create, and the manifest check.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.config import WriterConfig
from lance_memwal.crash_points import reach
from lance_memwal.errors import (
    ClosedError,
    ConflictError,
    CorruptDataError,
    DirectoryNotFoundError,
    FencedError,
    InvalidInputError,
    ObjectExistsError,
    TableReplacedError,
    UnavailableError,
)
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.identity import TableWatch
from lance_memwal.lance.live_details import note_sequence
from lance_memwal.log.blob_targets import blob_target
from lance_memwal.log.entry import EntryEncoder, RowEncoder, encode_mark
from lance_memwal.log.manifest import SightedManifests
from lance_memwal.log.reading import list_positions, read_next, read_run, read_tail, read_transactions
from lance_memwal.log.shards import for_writing
from lance_memwal.log.tail import LogRun, generation_of, settled
from lance_memwal.log.transactions import (
    OWN_EXPIRY_MS,
    OWN_PREFIX,
    ShardTime,
    TransactionMap,
    as_transaction,
    is_own,
)
from lance_memwal.process.directory_lock import DirectoryLock
from lance_memwal.process.forking import close_in_child
from lance_memwal.process.trial import Trial
from lance_memwal.rows.adapt import RowAdapter, with_flags
from lance_memwal.rows.fit import at_most
from lance_memwal.rows.schema import TableSchema
from lance_memwal.rows.sharding import Sharding
from lance_memwal.sstable.target import ShardTarget
from lance_memwal.sstable.write import discard_sstable, not_published
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.sequenced import MAX_TRIES, attempts
from lance_memwal.types import (
    EntryFooter,
    ShardManifest,
    SsTable,
    Transaction,
    WalEntry,
)
from lance_memwal.write.admission import AppendedRows, RowSource, StoredLookUp, rows_now
from lance_memwal.write.append_queue import AppendQueue, AppendResult, Attempt, Guard, QueuedAppend
from lance_memwal.write.append_turns import AppendTurns
from lance_memwal.write.changes import Change, Terms, appended, merged
from lance_memwal.write.claim import ShardClaim, claim_log, manifests_of
from lance_memwal.write.fitting import Fitting
from lance_memwal.write.flush import publish
from lance_memwal.write.request import Writable, Write, apply_to
from lance_memwal.write.results import WriteResult
from lance_memwal.write.table_target import refuse_merge, target_of, writer_config

_LOG = logging.getLogger(__name__)
DEFAULT_MAX_ENTRY_BYTES = 64 << 20
_READ_AFTER_COLLISION = 3
_JOINED_BYTES = 8 << 20  # writes of one entry up to this size become one batch
_READ_AFTER_PAUSE = 8
_HOST_LOCK_SECONDS = 2.0
_PLAIN = Terms()


@dataclass(slots=True)
class ShardTail:
    """A shard in the memory of this process: its manifest, the size of its tail, and its transactions.

    `run` is the generation that the next entry belongs to. `announced` is an unpublished bulk write. `unconfirmed` counts the
    entries that were absorbed after the last manifest check (append R8).
    """

    manifest: ShardManifest
    transactions: TransactionMap
    last_position: int = 0
    run: LogRun = field(default_factory=lambda: LogRun(1))
    entries: int = 0
    size_bytes: int = 0
    announced: tuple[int, SsTable] | None = None
    unconfirmed: int = 0

    def end_at(self, position: int, run: LogRun, size_bytes: int) -> None:
        """Note one more entry, the last one now, in one step."""
        entries, total = self.entries + 1, self.size_bytes + size_bytes
        self.last_position, self.run, self.entries, self.size_bytes = position, run, entries, total


@dataclass(frozen=True, slots=True)
class _Version:
    """What appends go by that depends on the version of the base table: one value, so that nothing of two is ever mixed."""

    base: BaseTable
    target: ShardTarget
    config: WriterConfig
    encoder: RowEncoder
    _fittings: dict[tuple[str, bool], Fitting] = field(default_factory=dict)
    _encoders: dict[str, tuple[Mapping[bytes, str], EntryEncoder]] = field(default_factory=dict)

    @property
    def schema(self) -> TableSchema:
        """The columns."""
        return self.target.schema

    def fitting(self, shard_id: str, *, routed: bool) -> Fitting:
        """What makes rows fit the columns, for one shard; `routed` ones are known to belong there."""
        found = self._fittings.get((shard_id, routed))
        if found is None:
            target = replace(self.target, check_rows=None) if routed else self.target
            found = self._fittings[shard_id, routed] = Fitting(target, self.config.replace(shard_id=shard_id))
        return found

    def entry_encoder(self, claim: ShardClaim, generation: int, target: Mapping[bytes, str]) -> EntryEncoder:
        """The encoder of what the shard writes now, kept: entries of one generation follow each other."""
        known, found = self._encoders.get(claim.shard_id, (target, None))
        if found is None or known != target or (found.epoch, found.generation) != (claim.epoch, generation):
            found = EntryEncoder(self.schema.wal, claim.epoch, generation, target)
            self._encoders[claim.shard_id] = (target, found)
        return found

    @property
    def sharding(self) -> Sharding:
        """How rows are spread over shards."""
        return self.base.sharding

    def alike(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Batches of flagged rows with one schema: they may differ in nullability."""
        return [pa.RecordBatch.from_arrays(batch.columns, schema=self.schema.memory) for batch in batches]

    def joined(self, parts: list[AppendedRows]) -> list[pa.RecordBatch]:
        """The batches of an entry: small ones of several writes are joined."""
        batches = [batch for rows in parts for batch in rows.batches]
        if len(parts) < 2 or sum(batch.nbytes for batch in batches) > _JOINED_BYTES:
            return batches
        return [pa.concat_batches(self.alike(batches))]


def _forgotten(age_ms: int) -> UnavailableError:
    """The outcome of an own transaction of this age: the shard may have forgotten it (append R7)."""
    return UnavailableError(
        f"the outcome of this append is unknown: its entry was created {age_ms // 60_000} minutes ago, and the shard "
        "may have forgotten it; check whether its rows are in the table before you write them again",
        ambiguous=True,
        retryable=False,
    )


class OnceAppender:
    """Appends to claimed shards of one table. Any number of processes may have one each; threads may share one as long
    as each shard has one thread."""

    def __init__(
        self,
        uri: str | Location,
        *,
        storage_options: Mapping[str, str] | None = None,
        max_entry_bytes: int | None = None,
        look_up: StoredLookUp | None = None,
        config: WriterConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`config` replaces the settings of the table. `max_entry_bytes` is the size from which rows become a generation
        instead of a WAL entry; default: that of the settings, at most 64 MiB.

        `look_up` finds rows on storage, which conditions need, and all appends to a table with a merge.
        """
        self._look_up = look_up
        self.location = resolve(uri, storage_options)
        base = BaseTable.need(self.location)
        self._clock = clock
        self._lock = threading.RLock()
        self._forked = False
        close_in_child(self)
        self._max_entry_bytes = max_entry_bytes
        self._config = config
        self._manifests: dict[str, SightedManifests] = {}
        self._tails: dict[str, ShardTail] = {}
        self._times: dict[str, ShardTime] = {}  # since the first look at each shard
        self._turns: dict[str, AppendTurns] = {}
        self._host_locks: dict[str, DirectoryLock] = {}
        self._locked: set[str] = set()
        base.check_columns()
        base = for_writing(base, clock)
        self._watch = TableWatch(base, clock)
        self._own = _OwnTransactions(clock)
        self.copies = 0  # how often the table was found copied back, with other logs: claims of before hold no longer
        self._version = self._version_of(base)

    def _version_of(self, base: BaseTable) -> _Version:
        """What appends go by from now on; refused if the columns of the base table cannot be written."""
        config = writer_config(base, self._config, {}, ())
        largest = self._max_entry_bytes or min(config.max_entry_bytes, DEFAULT_MAX_ENTRY_BYTES)
        config = config.replace(max_entry_bytes=largest)
        target = target_of(self.location, base, None, fsync=config.fsync, watch=self._watch)
        return _Version(base, target, config, RowEncoder(target.schema.wal))

    def refresh(self) -> None:
        """Look at the newest version of the base table; `TableReplacedError` if it is another table."""
        if self._forked:
            raise ClosedError("this process was forked: the appender belongs to its parent; make a new one")
        with self._lock:
            newest, known = self._watch.look(), self._version.base
            if newest is not known:
                self._version = self._version_of(newest)
                if newest.version < known.version or (newest.version == known.version and newest.stamp != known.stamp):
                    self._tails.clear()
                    self.copies += 1

    def refresh_if_due(self) -> None:
        """`refresh`, at most once a second on local paths and once a minute elsewhere."""
        if self._watch.is_due:
            self.refresh()

    def orphan(self) -> None:
        """Become closed in a forked child."""
        self._lock, self._forked = threading.RLock(), True

    @property
    def is_replaced(self) -> bool:
        """Whether the table turned out to be another one: a new appender is needed."""
        return self._watch.is_replaced

    @property
    def schema(self) -> TableSchema:
        """The columns of the table."""
        return self._version.schema

    @property
    def table_id(self) -> str | None:
        """The id of the table."""
        return self._watch.table_id

    @property
    def tag(self) -> str | None:
        """The tag that entries of the table carry."""
        return self._watch.tag

    def manifests(self, shard_id: str) -> SightedManifests:
        """The manifest of a shard."""
        found = self._manifests.get(shard_id)
        if found is None:
            found = manifests_of(self.location, shard_id, self._version.config, self._clock)
            self._manifests[shard_id] = found
        return found

    # ------------------------------------------------------------------------------------------------------ claiming

    def claim(self, shard_id: str) -> ShardClaim:
        """Begin a joint epoch, its predecessor fenced. Where there is one already, it is joined instead (`Sink`)."""
        self.refresh()
        store, version = self.manifests(shard_id), self._version
        spec_id = version.target.spec_id
        opened = claim_log(store, version.config, version.schema, self._watch, spec_id, self._clock, joint=True)
        self._times.setdefault(shard_id, opened.transactions.time)
        return ShardClaim(shard_id, opened.log.epoch, self._watch.table_id)

    # ------------------------------------------------------------------------------------------------------ appending

    def append(
        self,
        claim: ShardClaim,
        batches: Sequence[pa.RecordBatch],
        *,
        txn: Transaction | tuple[str, int] | None = None,
        terms: Terms = _PLAIN,
        refresh: bool = True,
        guard: Guard | None = None,
        routed_by: Sharding | None = None,
        trial: Trial | None = None,
    ) -> AppendResult:
        """Append rows once, durably; `_tombstone`, if the rows have it, says which are tombstones. See `lead`.

        A transaction that was applied already is skipped. Rows that are too large for an entry become a generation. An append
        of which `terms` and the merge of the table leave nothing writes nothing, not even its transaction.
        """
        self._check_claim(claim, refresh=refresh)
        self.note_sequence(terms)
        queue, write = AppendQueue(), self.queued(batches, as_transaction(txn), terms, guard, routed_by, trial)
        queue.add(write)
        with write.trial:
            self.lead(claim, queue, write, refresh=False)
            return write.outcome()

    def queued(
        self,
        batches: Sequence[pa.RecordBatch],
        txn: Transaction | None,
        terms: Terms = _PLAIN,
        guard: Guard | None = None,
        routed_by: Sharding | None = None,
        trial: Trial | None = None,
    ) -> QueuedAppend:
        """The append of rows as a value to queue. `routed_by` is the sharding that chose the shard for the rows: if it is the
        table's, they are not routed again to check that they belong there. `trial` is that of a call of which this is one
        attempt."""
        given = [batch for batch in batches if batch.num_rows]
        if not given:
            raise InvalidInputError("empty batch list: give at least one batch with rows")
        if self._look_up is None:
            refuse_merge(self._version.target, "an appender without a look-up")

        def source(fitting: Fitting) -> RowSource:
            if fitting.merge is None and not terms.need_a_look:
                fixed = AppendedRows([batch for batch, _ in fitting.fit_flagged_parts(given, terms.missing)])
                return RowSource(lambda: fixed, is_fixed=True)
            return self.resolved(fitting, appended(given, terms)(fitting))

        def forward(shard_id: str, writer: Writable) -> WriteResult:
            fitting = self._version.fitting(shard_id, routed=True)
            live = None if terms.need_a_look else fitting.all_live(given)
            if live is None:
                return apply_to(writer, Write("append", given, terms=terms, txn=txn))
            return apply_to(writer, Write("put", live, terms.missing, txn=txn))

        return QueuedAppend(source, txn, guard, trial, routed_by, forward)

    def queued_write(self, write: Write) -> QueuedAppend:
        """A write of a caller as a value to queue."""

        def source(fitting: Fitting) -> RowSource:
            if write.needs_lookup(fitting.merge):
                return self.resolved(fitting, write.change()(fitting))
            if write.kind == "delete":
                rows = fitting.tombstones(write.rows)
            else:
                batches, fill = fitting.take(write.rows, write.missing)
                rows = fitting.fit(batches, fill)
            memory = fitting.schema.memory
            fixed = AppendedRows([with_flags(*part, memory) for part in zip(rows.batches, rows.flags, strict=True)])
            return RowSource(lambda: fixed, is_fixed=True)

        def forward(_: str, writer: Writable) -> WriteResult:
            return apply_to(writer, write)

        return QueuedAppend(source, write.txn, routed_by=self._version.sharding, forward=forward)

    def prepare(self, shard_id: str, write: QueuedAppend) -> None:
        """Fit a write to the columns of the table now, so that its caller gets its errors before it is queued."""
        version = self._version
        try:
            source = write.source(version.fitting(shard_id, routed=write.is_routed_by(version.sharding)))
        except InvalidInputError:
            self.refresh()
            if self._version is version:
                raise
            version = self._version  # which may have the columns of these rows
            source = write.source(version.fitting(shard_id, routed=write.is_routed_by(version.sharding)))
        if source.is_fixed:
            write.size_bytes = sum(batch.nbytes for batch in source.find().batches)

    @property
    def max_queued_bytes(self) -> int:
        """The bytes of queued rows from which a caller writes them itself (append R15)."""
        return self._version.config.max_unflushed_memtable_bytes

    def own_tip(self, shard_id: str) -> int:
        """The position of the newest entry that this process knows, if it wrote that entry; else 0."""
        tail = self._tails.get(shard_id)
        return tail.last_position if tail is not None and self._turns_of(shard_id).is_last else 0

    def should_flush(self, shard_id: str, max_entries: int, max_bytes: int, alone_seconds: float) -> bool:
        """Whether a writer that ends publishes the tail (append R21): it is long, or no other writer is likely to do it."""
        tail = self._tails.get(shard_id)
        if tail is None or tail.entries > max_entries or tail.size_bytes > max_bytes:
            return True
        turns = self._turns_of(shard_id)
        return bool(tail.entries) and turns.is_last and turns.alone_seconds >= alone_seconds

    def resolved(self, fitting: Fitting, change: Change) -> RowSource:
        """The rows of a conditional write, resolved against the rows that are live when it is planned (append R12)."""
        if self._look_up is None:
            raise InvalidInputError("a conditional write reads existing rows, and this appender has no look-up")
        look = partial(rows_now, fitting.shard_id, merged(change, fitting.merge), fitting, self._look_up)

        def find() -> AppendedRows:
            reach("once.before_look")
            return look()

        return RowSource(find, is_fixed=False)

    def lead(self, claim: ShardClaim, queue: AppendQueue, own: QueuedAppend, *, refresh: bool = True) -> None:
        """Append the writes of the queue, several per entry, until `own` is settled. The caller has the turn of the shard.

        Without `refresh` the table is not checked: the caller did that for many shards at once. An error of the shard is
        raised; an error of one write is its outcome.
        """
        try:
            self._check_claim(claim, refresh=refresh)
            with self._host_turn(claim):
                self._lead(claim, queue, own)
        except BaseException as error:
            if not isinstance(error, Exception):
                self._tails.pop(claim.shard_id, None)
            queue.give_up(own, error)
            raise

    def decide(self, shard_id: str, queue: AppendQueue) -> None:
        """Settle the writes of an undecided attempt by the transaction map, in whatever epoch the shard is (append R7)."""
        manifest = self.manifests(shard_id).read_latest()
        if queue.attempt is None or manifest is None:
            return
        claim = ShardClaim(shard_id, manifest.writer_epoch, self._watch.table_id)
        self._decide(queue, self.catch_up(claim, helps=False))
        self._tails.pop(shard_id, None)

    def note_sequence(self, terms: Terms) -> None:
        """Return when the table knows by which sequence rows are decided, if these terms say so: deletes need it later."""
        order = self._version.base.order
        if terms.sequence is not None and (order is None or order.sequence != terms.sequence):
            note_sequence(self._watch.look, terms.sequence, self._clock)
            self.refresh()

    def own_transaction(self) -> Transaction:
        """A transaction of this process that no other append has."""
        return self._own.next()

    def _check_claim(self, claim: ShardClaim, *, refresh: bool = True) -> None:
        """Return only if the table is still the one that was claimed; without `refresh`, as it was seen last."""
        copies = self.copies
        if refresh:
            self.refresh()
        if copies != self.copies:
            raise FencedError(
                claim.epoch, claim.epoch, f"shard {claim.shard_id}: the table was copied back, claim it again"
            )
        if claim.table_id is not None and claim.table_id != self._watch.table_id:
            raise TableReplacedError(
                f"the table at {self.location.describe()} was re-created after its shard was claimed: claim it again"
            )

    def _lead(self, claim: ShardClaim, queue: AppendQueue, own: QueuedAppend) -> None:
        for number in range(MAX_TRIES):  # without a growing wait: turns decide who waits
            tail = self._take_turn(claim, is_first=not number)
            if tail is None or not self._has_decided(claim, queue, tail):
                continue
            if own.is_settled:
                return
            if tail.size_bytes >= self._version.config.max_unflushed_memtable_bytes:
                self.flush_tail(claim)  # backpressure (append R15)
                continue
            version = self._version
            attempt = self._plan(claim, version, tail, queue)
            if attempt is None:
                if own.is_settled:
                    return
                if tail.unconfirmed:  # append R8: without a create, a manifest check decides first
                    self._confirm(claim, tail)
                continue
            if attempt.size_bytes > version.config.max_entry_bytes:
                self._publish(claim, version, queue, attempt)
            else:
                self._put(claim, version, tail, queue, attempt)
            if own.is_settled:
                return
        raise ConflictError(f"the log of shard {claim.shard_id} grows faster than this process can append to it; retry")

    def _has_decided(self, claim: ShardClaim, queue: AppendQueue, tail: ShardTail) -> bool:
        """Whether no attempt is undecided; a confirmed tail decides it."""
        if queue.attempt is None:
            return True
        if tail.unconfirmed and not self._confirm(claim, tail):
            return False
        self._decide(queue, tail)
        return True

    def _decide(self, queue: AppendQueue, tail: ShardTail) -> None:
        """Settle the writes of the attempt if the shard has its transaction; else they are planned again (append R7)."""
        attempt = queue.attempt
        if attempt is None:
            return
        if tail.transactions.is_repeat(attempt.own):
            queue.settle(attempt)
            return
        queue.attempt = None
        age_ms = tail.transactions.time.newest_ms - attempt.begun_ms
        if attempt.begun_ms and age_ms > OWN_EXPIRY_MS // 2:
            for write, _ in attempt.parts:
                if write.txn is None or is_own(write.txn.app):  # those of users are remembered for longer
                    queue.fail(write, _forgotten(age_ms))

    def _plan(self, claim: ShardClaim, version: _Version, tail: ShardTail, queue: AppendQueue) -> Attempt | None:
        """The writes of the next entry (append R10); None if none is left, or a manifest check must come first.

        A conditional write has an entry of its own: the look-up of its rows does not see rows of the same entry.
        """
        attempt = Attempt(self.own_transaction(), [])
        limits, applications = version.config, set[str]()
        for write in queue:
            try:
                answer, source = self._answer(claim, tail, write), None
                if answer is None:
                    source = write.source(version.fitting(claim.shard_id, routed=write.is_routed_by(version.sharding)))
                    if attempt.parts and not source.is_fixed:
                        break
                    now = source.find()
                    if not now.num_rows:
                        answer = AppendResult(claim.shard_id, 0, rejected=now.rejected, matched=now.matched)
            except Exception as error:
                if attempt.parts or tail.unconfirmed:
                    break
                queue.fail(write, error)
                continue
            if answer is not None or source is None:
                if attempt.parts or tail.unconfirmed:
                    break
                queue.answer(write, answer or AppendResult(claim.shard_id, 0))
                continue
            size = version.encoder.measure(now.batches)
            app = None if write.txn is None else write.txn.app
            is_named = app is not None and is_own(app)
            if attempt.parts and (
                attempt.size_bytes + size > limits.max_entry_bytes
                or attempt.num_rows + now.num_rows > limits.max_memtable_rows
                or app in applications
                or is_named
            ):
                break
            if is_named and write.txn is not None:
                attempt.own = write.txn
            attempt.parts.append((write, now))
            attempt.size_bytes += size
            if app is not None:
                applications.add(app)
            if is_named or not source.is_fixed:
                break
        return attempt if attempt.parts else None

    def _answer(self, claim: ShardClaim, tail: ShardTail, write: QueuedAppend) -> AppendResult | None:
        """The result, if the shard has the transaction already; raises if the write must not be made."""
        if write.txn is not None:
            if tail.transactions.is_repeat(write.txn):
                return AppendResult(claim.shard_id, 0, skipped=True)
            tail.transactions.admit(write.txn)
        if write.guard is not None:
            write.guard(tail.last_position)
        return None

    def _put(self, claim: ShardClaim, version: _Version, tail: ShardTail, queue: AppendQueue, attempt: Attempt) -> None:
        """Create one entry after the tail and check the manifest (append R5); settles the writes if the entry counts."""
        schema, config = version.schema, version.config
        rows = version.joined([rows for _, rows in attempt.parts])
        fitted = at_most(config.max_memtable_batches, rows, schema.memory)
        tail.transactions.admit(attempt.own)
        run = tail.run.after(fitted, attempt.size_bytes, config, schema.small_dictionaries)
        generation, position = run.generation, tail.last_position + 1
        footer = tail.transactions.footer(generation, attempt.transactions(), self._watch.tag, schema.base)
        footer = footer._replace(joint=True)
        capacity = config.max_memtable_batches
        target = blob_target(schema, self._watch.tag, claim.shard_id, claim.epoch, capacity, generation)
        data = version.entry_encoder(claim, generation, target).encode(fitted, footer)
        reach("once.before_put")
        began = self._clock.monotonic()
        queue.attempt = attempt
        if not self._create(claim, tail, data):
            # A retry below may have met the entry of this attempt; after GC passed the position, only the map knows.
            if claim.shard_id in self._tails and not tail.transactions.is_repeat(attempt.own):
                queue.attempt = None
            else:
                attempt.created(claim.shard_id, position, generation, footer.written_ms or 0)
            return
        note_entry = attempt.parts[0][0].note_entry
        if note_entry is not None:
            note_entry(len(data), self._clock.monotonic() - began, attempt.num_rows)
        attempt.created(claim.shard_id, position, generation, footer.written_ms or 0)
        reach("once.after_put")
        self._turns_of(claim.shard_id).note_entry(footer)
        if self._confirm(claim, tail):
            tail.transactions.take(footer, generation)  # first: a tail that ends here knows what the entry says
            tail.end_at(position, run, len(data))
            queue.settle(attempt)
            return
        newest = self.manifests(claim.shard_id).check_fenced(claim.epoch)
        if position > newest.replay_after_wal_entry_position and generation >= newest.current_generation:
            queue.settle(attempt)

    def _confirm(self, claim: ShardClaim, tail: ShardTail) -> bool:
        """The manifest check: whether the manifest of the tail is still the newest. If not, the tail is dropped."""
        is_newest = self.manifests(claim.shard_id).is_newest(tail.manifest.version)
        if is_newest:
            tail.unconfirmed = 0
        else:
            self._tails.pop(claim.shard_id, None)
        return is_newest

    def _create(self, claim: ShardClaim, tail: ShardTail, data: bytes) -> bool:
        """Create the entry after the tail; False if there is another one, which the tail then absorbs (append R6)."""
        path = paths.wal_entry_path(claim.shard_id, tail.last_position + 1)
        began, is_created = self._clock.monotonic(), True
        try:
            self.location.store.put_new(path, data, sync=self._version.config.fsync, make_directory=False)
        except DirectoryNotFoundError as error:
            self._watch.look()
            raise CorruptDataError("the log of the shard is gone; run verify", path=error.path) from None
        except ObjectExistsError:
            is_created = False
        self._turns_of(claim.shard_id).note_create(self._clock.monotonic() - began)
        if not is_created and not self._follow(claim, tail, _READ_AFTER_COLLISION):
            self._tails.pop(claim.shard_id, None)  # GC passed the position
        return is_created

    def _follow(self, claim: ShardClaim, tail: ShardTail, at_once: int) -> int:
        """Absorb all new entries, `at_once` of them at a time; returns how many."""
        found = 0
        while True:
            absorbed = self._absorb(claim, tail, at_once)
            found += absorbed
            if absorbed < at_once:
                return found

    def _absorb(self, claim: ShardClaim, tail: ShardTail, most: int) -> int:
        """Add at most `most` entries of other writers to the tail, unconfirmed (append R6); returns how many."""
        self._tails.pop(claim.shard_id, None)  # kept again once all of it is in the tail
        start, shard_id, tag = tail.last_position + 1, claim.shard_id, self._watch.tag
        for entry in read_next(self.location, shard_id, start, most, tag=tag, at_once=most):
            if not entry.writer_epoch:  # of another table: is ours gone?
                self._watch.look()
            self._take(claim, tail, entry)
            tail.unconfirmed += 1
        self._tails[shard_id] = tail
        return tail.last_position + 1 - start

    # --------------------------------------------------------------------------------------------------------- turns

    def _turns_of(self, shard_id: str) -> AppendTurns:
        found = self._turns.get(shard_id)
        if found is None:
            found = self._turns[shard_id] = AppendTurns(self._own.app, self._clock)
        return found

    @contextmanager
    def _host_turn(self, claim: ShardClaim) -> Iterator[None]:
        """On a local path, have the kernel lock of the log if other processes append to it, too."""
        root, shard_id = self.location.root_path, claim.shard_id
        if root is None or not self.location.is_local or not self._turns_of(shard_id).has_others:
            yield
            return
        lock = self._host_locks.setdefault(
            shard_id, DirectoryLock(f"{root.rstrip('/')}/{paths.wal_dir(shard_id)}", self._clock)
        )
        is_taken = lock.acquire(_HOST_LOCK_SECONDS)
        try:
            if is_taken:
                self._locked.add(shard_id)
                tail = self._known(claim)
                if tail is not None:
                    self._follow(claim, tail, _READ_AFTER_PAUSE)
            yield
        finally:
            self._locked.discard(shard_id)
            lock.release()

    def _take_turn(self, claim: ShardClaim, *, is_first: bool) -> ShardTail | None:
        """Wait until it is our turn to append (append R9), and follow the log; None if the tail was dropped."""
        tail, turns = self._known(claim), self._turns_of(claim.shard_id)
        if tail is None:
            tail = self.catch_up(claim)
        elif is_first and turns.follows_pause:
            self._follow(claim, tail, _READ_AFTER_PAUSE)
        while claim.shard_id not in self._locked and (seconds := turns.seconds_left(tail.last_position + 1)):
            began = self._clock.monotonic()
            self._absorb(claim, tail, 1)
            read_seconds = self._clock.monotonic() - began
            turns.note_read(read_seconds)
            if tail.unconfirmed and turns.rank(tail.last_position + 1) == 1 and not self._confirm(claim, tail):
                return None
            if read_seconds < turns.poll_seconds:
                self._clock.sleep(min(turns.poll_seconds - read_seconds, seconds))
        if tail.announced is not None or (tail.unconfirmed > 1 and not self._confirm(claim, tail)):
            return None
        return tail

    # ------------------------------------------------------------------------------------------------------ the tail

    def catch_up(self, claim: ShardClaim, *, helps: bool = True) -> ShardTail:
        """The shard as it is now: manifest, then every entry up to the tip by the reader's rule. If it `helps`, an announced
        generation is published."""
        store = self.manifests(claim.shard_id)
        newest, known = partial(store.check_fenced, claim.epoch), self._known(claim)
        first = newest() if known is None else known.manifest
        tail = settled(store, first, partial(self._catch_up_to, claim, helps=helps), self._clock, newest)
        if tail is None:
            raise AssertionError("a shard that was claimed has a manifest")
        tail.unconfirmed = 0
        self._tails[claim.shard_id] = tail
        return tail

    def known_tail(self, shard_id: str) -> ShardTail | None:
        """What this process knew of a shard after its last append, if nobody published meanwhile; no request."""
        return self._tails.get(shard_id)

    def _known(self, claim: ShardClaim) -> ShardTail | None:
        """The tail as it was after the last append to the claimed epoch; what came since is met by the create."""
        tail = self._tails.get(claim.shard_id)
        if tail is None or tail.announced is not None or tail.manifest.writer_epoch != claim.epoch:
            return None
        return tail

    def _catch_up_to(self, claim: ShardClaim, manifest: ShardManifest, *, helps: bool) -> ShardTail:
        """The known tail and every entry above it; a generation that is announced is published."""
        known = self._tails.pop(claim.shard_id, None)  # kept again once a manifest check has confirmed it
        positions = list_positions(self.location, claim.shard_id)
        if known is not None and known.manifest == manifest:
            tail = known
        else:
            tail = self._restart(manifest, None if known is None or known.unconfirmed else known, positions)
        end = max([manifest.replay_after_wal_entry_position, *positions[-1:]]) + 1
        for entry in read_run(self.location, claim.shard_id, tail.last_position + 1, end, tag=self._watch.tag):
            self._take(claim, tail, entry)
        if tail.announced is not None and helps:
            position, sstable = tail.announced
            reach("once.before_help")
            self._commit(claim, sstable, position, announced=True)
        return tail

    def _restart(self, manifest: ShardManifest, known: ShardTail | None, positions: list[int]) -> ShardTail:
        """A tail that begins at the cursor of `manifest`, with every transaction that is known so far."""
        store = self.manifests(manifest.shard_id)
        if store.is_crowded:
            store.sight(manifest)
        transactions = read_transactions(self.location, manifest, positions, self._clock, tag=self._watch.tag)
        transactions.keep_time(self._times.setdefault(manifest.shard_id, transactions.time))
        if known is not None:
            transactions.follow(known.transactions)
        return ShardTail(
            manifest=manifest,
            transactions=transactions,
            last_position=manifest.replay_after_wal_entry_position,
            run=LogRun(manifest.current_generation),
        )

    def _take(self, claim: ShardClaim, tail: ShardTail, entry: WalEntry) -> None:
        if entry.writer_epoch > claim.epoch:
            raise FencedError(claim.epoch, entry.writer_epoch, f"shard {claim.shard_id}, WAL position {entry.position}")
        tail.last_position = entry.position
        self._turns_of(claim.shard_id).note_entry(entry.footer)
        if entry.footer is not None:
            self._take_footer(claim, tail, entry, entry.footer)
        generation = generation_of(entry, tail.manifest.current_generation, tail.run.generation)
        if generation is None:
            return
        tail.run.follow(generation, entry)
        tail.entries += 1
        tail.size_bytes += entry.size_bytes

    def _take_footer(self, claim: ShardClaim, tail: ShardTail, entry: WalEntry, footer: EntryFooter) -> None:
        tail.transactions.take(footer, entry.generation, decided=False)
        if entry.writer_epoch != claim.epoch:
            return  # what an older epoch began holds no longer
        if footer.seal is not None and footer.seal >= tail.run.generation:
            tail.run = LogRun(footer.seal + 1)
        if footer.bulk is not None and footer.bulk.generation == tail.manifest.current_generation:
            tail.announced = (entry.position, footer.bulk)

    # ------------------------------------------------------------------------------------------------------ generations

    def flush_tail(self, claim: ShardClaim) -> int:
        """Publish every entry that is in the tail now as generations; returns how many."""
        published = 0
        self._check_claim(claim)
        tail = self._sealed(claim)
        last = tail.run.generation - 1
        while tail.manifest.current_generation <= last:
            version = self._version
            try:
                generation, covered, rows = self._oldest_generation(claim, version.schema, tail)
            except CorruptDataError:  # or somebody else flushed it, and it was collected
                before, tail = tail.manifest, self.catch_up(claim)
                if tail.manifest == before:
                    raise
                continue
            sstable = self._write_sstable(claim, version, generation, rows)
            with not_published(self.location, claim.shard_id, sstable.path):
                reach("once.before_commit")
                self._check_claim(claim)
            published += self._commit(claim, sstable, covered)
            tail = self.catch_up(claim)
        return published

    def _sealed(self, claim: ShardClaim) -> ShardTail:
        """The tail, once everything in it is below a seal."""
        tail = self.catch_up(claim)
        for _ in range(MAX_TRIES):
            if tail.run.batches and tail.unconfirmed <= 1:
                footer = tail.transactions.mark(seal=tail.run.generation, table=self._watch.tag, joint=True)
                reach("once.before_seal")
                if not self._create(claim, tail, encode_mark(claim.epoch, footer)):
                    tail = self._known(claim) or self.catch_up(claim)
                    continue
            elif not tail.run.batches and not tail.unconfirmed:
                return tail
            tail = self.catch_up(claim)  # append R17: a manifest check follows the seal
        raise ConflictError(f"the log of shard {claim.shard_id} grows faster than it can be sealed; retry")

    def _oldest_generation(self, claim: ShardClaim, schema: TableSchema, tail: ShardTail) -> tuple[int, int, pa.Table]:
        """The rows of the manifest's next generation and the last position that they cover."""
        manifest = tail.manifest
        adapter, memory = RowAdapter(schema, keeps_all=True), schema.memory
        current, covered = manifest.current_generation, manifest.replay_after_wal_entry_position
        batches: list[pa.RecordBatch] = []
        for entry in read_tail(self.location, manifest, tail.last_position + 1, tag=self._watch.tag):
            generation = generation_of(entry, current, current)
            if generation is not None and generation > current:
                break
            covered = entry.position
            if generation is not None:
                adapted = (adapter.adapt(b, entry.base, position=entry.position) for b in entry.batches)
                batches += (with_flags(*item, memory) for item in adapted)
        if not batches:
            raise CorruptDataError(
                f"generation {current} is missing in the log of shard {claim.shard_id}, although later ones are there",
                path=paths.wal_dir(claim.shard_id),
            )
        return current, covered, pa.Table.from_batches(batches, schema=memory)

    def _publish(self, claim: ShardClaim, version: _Version, queue: AppendQueue, attempt: Attempt) -> None:
        """Publish the rows of one write as a generation, after everything that the log holds (append R19)."""
        ((write, now),) = attempt.parts
        source = write.source(version.fitting(claim.shard_id, routed=write.is_routed_by(version.sharding)))
        sstable: SsTable | None = None
        is_announced = False
        for _ in attempts(f"the log of shard {claim.shard_id}", self._clock):
            tail = self.catch_up(claim)
            self._decide(queue, tail)
            if write.is_settled:
                return
            answer = self._answer(claim, tail, write)
            if answer is not None:
                queue.answer(write, answer)
                return
            if tail.entries:
                self.flush_tail(claim)
                continue
            generation = tail.manifest.current_generation
            if sstable is None or sstable.generation != generation:
                if sstable is not None and not is_announced:  # no marker names it, so no other process knows it
                    discard_sstable(self.location, claim.shard_id, sstable.path)
                now = source.find()
                if not now.num_rows:
                    queue.answer(write, AppendResult(claim.shard_id, 0, rejected=now.rejected, matched=now.matched))
                    return
                table = pa.Table.from_batches(version.alike(now.batches))
                sstable = self._write_sstable(claim, version, generation, table)
                continue  # that took a while: check again
            attempt.parts = [(write, now)]
            footer = tail.transactions.mark(table=self._watch.tag, joint=True)._replace(
                txns=attempt.transactions(), bulk=sstable
            )
            position = tail.last_position + 1
            reach("once.before_mark")
            queue.attempt = attempt
            is_created = self._create(claim, tail, encode_mark(claim.epoch, footer))
            attempt.created(claim.shard_id, 0, generation, footer.written_ms or 0)
            if not is_created:
                continue  # the map decides whether the marker is there
            is_announced = True
            reach("once.before_commit")
            if self._commit(claim, sstable, position, announced=True):
                reach("once.after_commit")
                queue.settle(attempt)
                return
        raise AssertionError("the last attempt returns or raises")

    def _write_sstable(self, claim: ShardClaim, version: _Version, generation: int, rows: pa.Table) -> SsTable:
        self._check_claim(claim)
        return version.target.write_sstable(claim.shard_id, version.config, self._clock, generation, rows)

    def _commit(self, claim: ShardClaim, sstable: SsTable, covered: int, *, announced: bool = False) -> bool:
        """List `sstable` as the next generation; False if another attempt was faster."""
        self._check_claim(claim)
        store = self.manifests(claim.shard_id)
        won = publish(store, claim.epoch, sstable, covered, shared=True, announced=announced)
        if won:
            _LOG.info(
                "published generation [shard=%s, generation=%d, rows=%s]",
                claim.shard_id,
                sstable.generation,
                sstable.physical_rows,
            )
        return won

    def __repr__(self) -> str:
        return f"OnceAppender({self.location.describe()!r})"


class _OwnTransactions:
    """Transactions of this process: one id, which counts (append R11)."""

    __slots__ = ("_clock", "_lock", "_process", "_version", "app")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._process, self.app, self._version = os.getpid(), OWN_PREFIX + self._clock.uuid4(), 0

    def next(self) -> Transaction:
        """A transaction that no other append has."""
        with self._lock:
            if self._process != os.getpid():  # a forked child must not count on with its parent's id
                self._begin()
            self._version += 1
            return Transaction(self.app, self._version)
