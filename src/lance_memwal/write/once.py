"""Appending to a shard exactly once, from any process that is told the epoch.

Owns `OnceAppender`. Its epochs are joint (RFC 0017): a claim is a small value that can be sent to other processes, or found
out by them, and each of them may append with it, without a writer and without talking to the others. Invariants:

1. An append goes by a whole tail, read before the manifest that the reading started from was confirmed, so that everything
   below the position that it creates is known: a version of an application can be in the log once only, however many
   attempts race. What was read of a log while the manifest moved is forgotten, not only left unused: a late put may have
   been among it, in a slot that collection emptied.
2. All rows of one transaction are one WAL entry, or one generation where they are too large; never several entries.
3. Every append is a transaction: the user's, or one of this appender's own. Whether it is in the shard is answered by the
   map, also after a look at the manifest says that the cursor has passed the entry.
4. A generation is sealed before it is flushed: a mark at the tip says where it ends. Whoever appends above the mark has
   read it and takes the next generation, so that no entry comes too late for its generation. A seal holds in its own
   epoch only.
5. Rows without an entry are announced by a bulk mark at the tip, after they are written and while nothing else is in the
   tail. The mark decides: whoever reads it first publishes what it announces, and only then goes on.
6. A higher epoch, in the manifest or in the log, is a `FencedError`; what it finds unpublished of a bulk mark is lost.
7. A base table that is older than it was, or another object of the same version, was copied back to its place, and the logs with
   it: what was remembered of them is forgotten, and claims of before are refused.
8. An append is of one version of the base table from its rows to its entry, whatever other threads learn meanwhile.

What was read of a log is remembered per process: entries never change, so that only new ones are read again. Nor is a log
read again before an append whose shard did not move since the last one: a process that knows its tail is one that slept since
its last look, and a sleeper is harmless. If something came since, the create fails, and what is met is read; if the slot was
emptied, the look at the manifest after the create says so. So an append in peace costs the create and that look.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from lance_memwal.clock import SYSTEM_CLOCK, BackOff, Clock
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
    ObjectNotFoundError,
    TableReplacedError,
)
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.identity import TableWatch
from lance_memwal.lance.live_details import note_sequence
from lance_memwal.log.blob_targets import blob_target
from lance_memwal.log.entry import EntryEncoder, RowEncoder, encode_mark
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions, read_run, read_tail, read_transactions
from lance_memwal.log.table_ids import for_writing
from lance_memwal.log.tail import LogRun, generation_of, settled
from lance_memwal.log.transactions import OWN_PREFIX, ShardTime, TransactionMap, as_transaction, maps_beside
from lance_memwal.log.wal import met_entry
from lance_memwal.process.forking import close_in_child
from lance_memwal.process.trial import Trial
from lance_memwal.rows.adapt import RowAdapter, with_flags
from lance_memwal.rows.fit import at_most
from lance_memwal.rows.schema import TableSchema
from lance_memwal.rows.sharding import Sharding
from lance_memwal.sstable.probe import check_table
from lance_memwal.sstable.target import ShardTarget
from lance_memwal.sstable.write import discard_sstable, not_published
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.types import (
    EntryFooter,
    EntryTransaction,
    ShardManifest,
    SsTable,
    Transaction,
    WalEntry,
)
from lance_memwal.write.admission import AppendedRows, StoredLookUp, rows_now
from lance_memwal.write.changes import Terms, appended, merged
from lance_memwal.write.claim import ShardClaim, claim_log, manifests_of
from lance_memwal.write.fitting import Fitting
from lance_memwal.write.flush import publish
from lance_memwal.write.table_target import refuse_merge, target_of, writer_config

__all__ = ["DEFAULT_MAX_ENTRY_BYTES", "AppendResult", "Guard", "OnceAppender", "ShardTail"]

_LOG = logging.getLogger(__name__)
DEFAULT_MAX_ENTRY_BYTES = 64 << 20
_MAX_TRIES = 64
_BACK_OFF = BackOff(0.005, 0.25)
_PLAIN = Terms()
Guard: TypeAlias = Callable[[int], None]
"""Raises if an append must not be made; it is told the last position below the entry, when all below it is known."""


def _unguarded(position: int) -> None:
    del position


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What an append did. `position` is 0 if the rows became a generation, or were there already (`skipped`).

    `rows` counts rows and tombstones that were written; `rejected` are the keys of those that a condition, or the merge of
    the table, kept out, None if there are none.
    """

    shard_id: str
    rows: int
    position: int = 0
    generation: int = 0
    skipped: bool = False
    rejected: pa.Table | None = None

    @property
    def rejected_rows(self) -> int:
        """How many rows were kept out."""
        return 0 if self.rejected is None else self.rejected.num_rows


@dataclass(slots=True)
class ShardTail:
    """What this process knows of a shard: its manifest, its unflushed entries, and its transactions.

    `run` is the generation that the next entry belongs to; `announced` is a bulk mark that nobody has published yet.
    """

    manifest: ShardManifest
    transactions: TransactionMap
    last_position: int = 0
    run: LogRun = field(default_factory=lambda: LogRun(1))
    entries: int = 0
    size_bytes: int = 0
    announced: tuple[int, SsTable] | None = None
    maps_read: set[str] = field(default_factory=set)

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

    def alike(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Batches of flagged rows, whatever each says of nulls."""
        return [pa.RecordBatch.from_arrays(batch.columns, schema=self.schema.memory) for batch in batches]


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
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`max_entry_bytes` is the size from which rows become a generation instead of a WAL entry.

        `look_up` finds rows on storage, which conditions need, and all appends to a table with a merge.
        """
        self._look_up = look_up
        self.location = resolve(uri, storage_options)
        base = BaseTable.need(self.location)
        self._clock = clock
        self._lock = threading.RLock()
        self._forked = False
        close_in_child(self)
        self._max_entry_bytes = DEFAULT_MAX_ENTRY_BYTES if max_entry_bytes is None else max_entry_bytes
        self._manifests: dict[str, ShardManifestStore] = {}
        self._tails: dict[str, ShardTail] = {}
        self._times: dict[str, ShardTime] = {}  # since the first look at each shard
        check_table(base)
        base = for_writing(base, clock)
        self._watch = TableWatch(base, clock)
        self._own = _OwnTransactions(clock)
        self.copies = 0  # how often the table was found copied back, with other logs: claims of before hold no longer
        self._version = self._version_of(base)

    def _version_of(self, base: BaseTable) -> _Version:
        """What appends go by from now on; refused if the columns of the base table cannot be written."""
        config = writer_config(base, None, {}, ())
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

    def manifests(self, shard_id: str) -> ShardManifestStore:
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
        """The rows of `batches` are in the shard once when this returns, on storage; rows may carry `_tombstone`.

        A transaction that is there already is skipped, whoever wrote it. Too many bytes for an entry become a generation.
        What `terms` and the merge of the table keep out is told; an append of which nothing is left writes nothing, not even
        its transaction. Without `refresh` the table is not looked at: the caller just did, for many shards at once. Nothing is
        written unless `guard` lets it. `routed_by` is the sharding that chose this shard for the rows: if it is the table's, they
        are not routed again to see that they belong here. `trial` is that of a call of which this is one attempt.
        """
        self._check_claim(claim, refresh=refresh)
        transaction = as_transaction(txn) or self.own_transaction()
        self.note_sequence(terms)
        version = self._version
        if self._look_up is None:
            refuse_merge(version.target, "an appender that was given no look-up")
        given = [batch for batch in batches if batch.num_rows]
        if not given:
            raise InvalidInputError("empty batch list: give at least one batch with rows")
        fitting = version.fitting(claim.shard_id, routed=routed_by == version.base.sharding)
        find_rows = self._rows(claim, version, fitting, given, terms)
        with trial or Trial() as trial:
            return self._append(claim, version, find_rows, transaction, guard or _unguarded, trial)

    def note_sequence(self, terms: Terms) -> None:
        """Return when the table knows by which sequence rows are decided, if these terms say so: deletes need it later."""
        order = self._version.base.order
        if terms.sequence is not None and (order is None or order.sequence != terms.sequence):
            note_sequence(self._watch.look, terms.sequence, self._clock)
            self.refresh()

    def own_transaction(self) -> Transaction:
        """A transaction for an append that has none of its user's; nobody else has it."""
        return self._own.next()

    def _rows(
        self, claim: ShardClaim, version: _Version, fitting: Fitting, given: list[pa.RecordBatch], terms: Terms
    ) -> Callable[[], AppendedRows]:
        """What finds the rows that are written now, to be asked again whenever the shard moved on."""
        if version.target.merge is None and not terms.need_a_look:
            fixed = AppendedRows([batch for batch, _ in fitting.fit_flagged_parts(given, terms.missing)])
            return lambda: fixed
        if self._look_up is None:
            raise InvalidInputError("conditions need a look at the rows, and this appender was given no look-up")
        change = merged(appended(given, terms)(fitting), version.target.merge)
        look = partial(rows_now, claim.shard_id, change, fitting, self._look_up)

        def look_now() -> AppendedRows:
            reach("once.before_look")
            return look()

        return look_now

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
                f"the table at {self.location.describe()} is another one than the one whose shard was claimed: claim it again"
            )

    def _append(
        self,
        claim: ShardClaim,
        version: _Version,
        find_rows: Callable[[], AppendedRows],
        txn: Transaction,
        guard: Guard,
        trial: Trial,
    ) -> AppendResult:
        schema, config = version.schema, version.config
        created: AppendResult | None = None
        for attempt in range(_MAX_TRIES):
            tail = (None if attempt else self._known(claim)) or self.catch_up(claim)
            if tail.transactions.is_repeat(txn):
                return created or AppendResult(claim.shard_id, 0, skipped=True)
            tail.transactions.admit(txn)
            guard(tail.last_position)
            now = find_rows()
            rows, size = now.num_rows, version.encoder.measure(now.batches)
            if not rows:
                return AppendResult(claim.shard_id, 0, rejected=now.rejected)
            if size > self._max_entry_bytes:
                return self._publish(claim, version, find_rows, txn, guard, trial)
            fitted = at_most(config.max_memtable_batches, now.batches, schema.memory)
            run = tail.run.after(fitted, size, config, schema.small_dictionaries)
            generation = run.generation
            footer = tail.transactions.footer(generation, (EntryTransaction(txn, 0, rows),), self._watch.tag)
            footer = footer._replace(joint=True)
            capacity = config.max_memtable_batches
            target = blob_target(schema, self._watch.tag, claim.shard_id, claim.epoch, capacity, generation)
            data = version.entry_encoder(claim, generation, target).encode(fitted, footer)
            position = tail.last_position + 1
            reach("once.before_put")
            if self._create(claim, position, data):
                trial.is_begun = True
                reach("once.after_put")
                created = AppendResult(claim.shard_id, rows, position, generation, rejected=now.rejected)
                newest = self.manifests(claim.shard_id).check_fenced(claim.epoch)  # an emptied slot looks free
                if position > newest.replay_after_wal_entry_position:
                    tail.transactions.take(footer, generation)  # first: a tail that ends here knows what the entry says
                    tail.end_at(position, run, len(data))
                    if newest != tail.manifest:
                        self._tails.pop(claim.shard_id, None)  # flushed up to here, or compacted: it is read again
                    return created
            _BACK_OFF.wait(self._clock, attempt)
        raise ConflictError(f"the log of shard {claim.shard_id} grows faster than we can append to it; retry")

    def _create(self, claim: ShardClaim, position: int, data: bytes) -> bool:
        """Create the entry; False if another one is there, which is then read with the tail. Fenced by a higher epoch."""
        path = paths.wal_entry_path(claim.shard_id, position)
        try:
            self.location.store.put_new(path, data, sync=self._version.config.fsync, make_directory=False)
        except DirectoryNotFoundError as error:
            self._watch.look()
            raise CorruptDataError("the log of the shard is gone; run verify", path=error.path) from None
        except ObjectExistsError:
            with suppress(ObjectNotFoundError):  # collected meanwhile: the tail is read again, from a newer cursor
                met_entry(self.location.store.get(path), claim.shard_id, position, claim.epoch, self._watch)
            return False
        return True

    # ------------------------------------------------------------------------------------------------------ the tail

    def catch_up(self, claim: ShardClaim) -> ShardTail:
        """The shard as it is now: manifest, then every entry up to the tip by the reader's rule; nothing is announced."""
        store = self.manifests(claim.shard_id)
        newest, known = partial(store.check_fenced, claim.epoch), self._known(claim)
        first = newest() if known is None else known.manifest
        tail = settled(store, first, partial(self._catch_up_to, claim), self._clock, newest)
        if tail is None:
            raise AssertionError("a shard that was claimed has a manifest")
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

    def _catch_up_to(self, claim: ShardClaim, manifest: ShardManifest) -> ShardTail:
        """What is known of the shard and every entry that came since; a generation that is announced is published."""
        # kept again once the manifest is confirmed, and not before
        known = tail = self._tails.pop(claim.shard_id, None)
        positions = list_positions(self.location, claim.shard_id)
        if tail is None or tail.manifest != manifest:
            tail = self._restart(manifest, known, positions)
        end = max([manifest.replay_after_wal_entry_position, *positions[-1:]]) + 1
        for entry in read_run(self.location, claim.shard_id, tail.last_position + 1, end, tag=self._watch.tag):
            self._take(claim, tail, entry)
        if tail.announced is not None:
            position, sstable = tail.announced
            reach("once.before_help")
            self._commit(claim, sstable, position, announced=True)
        return tail

    def _restart(self, manifest: ShardManifest, known: ShardTail | None, positions: list[int]) -> ShardTail:
        """A tail that begins at the cursor of `manifest`, with every transaction that is known so far."""
        self.manifests(manifest.shard_id).sight(manifest)
        maps_read = set() if known is None else known.maps_read
        unread = tuple(sstable for sstable in manifest.sstables if sstable.path not in maps_read)
        transactions = read_transactions(self.location, manifest, positions, self._clock, tag=self._watch.tag)
        transactions.keep_time(self._times.setdefault(manifest.shard_id, transactions.time))
        transactions.merge(maps_beside(transactions, self.location, replace(manifest, sstables=unread)))
        if known is not None:
            transactions.follow(known.transactions)
        return ShardTail(
            manifest=manifest,
            transactions=transactions,
            last_position=manifest.replay_after_wal_entry_position,
            run=LogRun(manifest.current_generation),
            maps_read={sstable.path for sstable in manifest.sstables},
        )

    def _take(self, claim: ShardClaim, tail: ShardTail, entry: WalEntry) -> None:
        if entry.writer_epoch > claim.epoch:
            raise FencedError(claim.epoch, entry.writer_epoch, f"shard {claim.shard_id}, WAL position {entry.position}")
        tail.last_position = entry.position
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
        for attempt in range(_MAX_TRIES):
            tail = self.catch_up(claim)
            if not tail.run.batches:
                return tail
            footer = tail.transactions.mark(seal=tail.run.generation, table=self._watch.tag, joint=True)
            reach("once.before_seal")
            self._create(claim, tail.last_position + 1, encode_mark(claim.epoch, footer))
            _BACK_OFF.wait(self._clock, attempt)
        raise ConflictError(f"the log of shard {claim.shard_id} grows faster than it can be sealed; retry")

    def _oldest_generation(self, claim: ShardClaim, schema: TableSchema, tail: ShardTail) -> tuple[int, int, pa.Table]:
        """The rows of the manifest's next generation and the last position that they cover."""
        manifest = tail.manifest
        adapter, memory = RowAdapter(schema), schema.memory
        current, covered = manifest.current_generation, manifest.replay_after_wal_entry_position
        batches: list[pa.RecordBatch] = []
        for entry in read_tail(self.location, manifest, tail.last_position + 1, tag=self._watch.tag):
            generation = generation_of(entry, current, current)
            if generation is not None and generation > current:
                break
            covered = entry.position
            if generation is not None:
                batches += (with_flags(*adapter.adapt(b, position=entry.position), memory) for b in entry.batches)
        if not batches:
            raise CorruptDataError(
                f"generation {current} is missing in the log of shard {claim.shard_id}, although later ones are there",
                path=paths.wal_dir(claim.shard_id),
            )
        return current, covered, pa.Table.from_batches(batches, schema=memory)

    def _publish(
        self,
        claim: ShardClaim,
        version: _Version,
        find_rows: Callable[[], AppendedRows],
        txn: Transaction,
        guard: Guard,
        trial: Trial,
    ) -> AppendResult:
        """Publish the rows as one generation, after everything that the log holds."""
        now = AppendedRows([])
        created: AppendResult | None = None
        sstable: SsTable | None = None
        for attempt in range(_MAX_TRIES):
            tail = self.catch_up(claim)
            if tail.transactions.is_repeat(txn):
                return created or AppendResult(claim.shard_id, 0, skipped=True)
            tail.transactions.admit(txn)
            guard(tail.last_position)
            if tail.entries:
                self.flush_tail(claim)
                continue
            generation = tail.manifest.current_generation
            if sstable is None or sstable.generation != generation:
                if sstable is not None and created is None:  # no mark names it: nobody else can know of it
                    discard_sstable(self.location, claim.shard_id, sstable.path)
                now = find_rows()
                if not now.num_rows:
                    return AppendResult(claim.shard_id, 0, rejected=now.rejected)
                table = pa.Table.from_batches(version.alike(now.batches))
                sstable = self._write_sstable(claim, version, generation, table)
                continue  # that took a while: look again
            footer = tail.transactions.mark(table=self._watch.tag, joint=True)._replace(
                txns=(EntryTransaction(txn, 0, now.num_rows),), bulk=sstable
            )
            position = tail.last_position + 1
            reach("once.before_mark")
            if self._create(claim, position, encode_mark(claim.epoch, footer)):
                trial.is_begun = True
                created = AppendResult(claim.shard_id, now.num_rows, generation=generation, rejected=now.rejected)
                reach("once.before_commit")
                if self._commit(claim, sstable, position, announced=True):
                    reach("once.after_commit")
                    return created
            _BACK_OFF.wait(self._clock, attempt)
        raise ConflictError(f"shard {claim.shard_id} changes faster than a generation can be published; retry")

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
    """Transactions for appends that have none of their user's: one id per process, which counts."""

    __slots__ = ("_app", "_clock", "_lock", "_process", "_version")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._process = 0

    def next(self) -> Transaction:
        """A transaction that nobody has used."""
        with self._lock:
            if self._process != os.getpid():  # a forked child must not count on with its parent's id
                self._process, self._app, self._version = os.getpid(), OWN_PREFIX + self._clock.uuid4(), 0
            self._version += 1
            return Transaction(self._app, self._version)
