"""Appending to a shard exactly once, from any process that is told the epoch.

Owns `OnceAppender`. Whoever runs a job claims each shard once (`claim`); the claim is a small value that can be sent to
other processes, and each of them may append with it, without a writer and without talking to the others. Invariants:

1. An append first reads the newest manifest and the whole tail, so that everything below the position that it creates is
   known: a version of an application can be in the log once only, however many attempts race.
2. All rows of one transaction are one WAL entry, or one generation where they are too large; never several entries.
3. The generation of an entry comes from the manifest and the tail that were just read, never from the claim.
4. An entry that turns out to lie behind the cursor, or below the manifest's generation, was too late and does not count:
   the append begins again.
5. A higher epoch, in the manifest or in the log, is a `FencedError`.
6. A generation is published as the manifest's next one, under our epoch, with the transaction map inside its directory;
   what was in the log before is flushed first.

What was read of a log is remembered per process: entries never change, so that only new ones are read again.

Called by: the Spark sinks; usable from plain Python.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from memwal.adapt import RowAdapter, with_flags
from memwal.base_table import BaseTable
from memwal.clock import SYSTEM_CLOCK, Clock
from memwal.errors import (
    ConflictError,
    CorruptDataError,
    DirectoryNotFoundError,
    FencedError,
    InvalidInputError,
    ObjectExistsError,
    TableReplacedError,
)
from memwal.format.wal_entry import TOMBSTONE, TOMBSTONE_FIELD, EntryEncoder, decode_entry
from memwal.hooks import reach
from memwal.identity import TableWatch, for_writing
from memwal.log_run import LogRun
from memwal.manifest import ShardManifestStore, with_generation
from memwal.schema import Reconciler, TableSchema
from memwal.shard_target import target_of, writer_config
from memwal.sharding import check_rows_in_shard, sharding_of
from memwal.store import paths
from memwal.store.location import Location, resolve
from memwal.transactions import (
    as_transaction,
    encode_map,
    is_repeat,
    load_generation_maps,
    merge_seen,
    with_transaction,
)
from memwal.types import SeenTransaction, ShardManifest, SsTable, Transaction, WalEntry
from memwal.wal import PersistPolicy, list_positions, newest_seen, open_log, read_run

__all__ = ["DEFAULT_MAX_ENTRY_BYTES", "AppendResult", "OnceAppender", "RowFitter", "ShardClaim", "ShardTail"]

_LOG = logging.getLogger(__name__)
DEFAULT_MAX_ENTRY_BYTES = 64 << 20
_MAX_TRIES = 64
_BACKOFF_SECONDS = 0.005
_MAX_BACKOFF_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class ShardClaim:
    """The right to append to one shard until somebody claims a higher epoch; may be pickled."""

    shard_id: str
    epoch: int
    table_id: str | None = None


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What an append did. `position` is 0 if the rows became a generation, or were there already (`skipped`)."""

    shard_id: str
    rows: int
    position: int = 0
    generation: int = 0
    skipped: bool = False


@dataclass(slots=True)
class ShardTail:
    """What this process knows of a shard: its manifest, its unflushed entries, and its transactions."""

    manifest: ShardManifest | None = None
    last_position: int = 0
    run: LogRun = field(default_factory=lambda: LogRun(1))
    entries: int = 0
    size_bytes: int = 0
    seen: dict[str, SeenTransaction] = field(default_factory=dict)
    maps_read: set[str] = field(default_factory=set)


class OnceAppender:
    """Appends to claimed shards of one table. Any number of processes may have one each; threads may share one as long
    as each shard has one thread."""

    def __init__(
        self,
        uri: str | Location,
        *,
        storage_options: Mapping[str, str] | None = None,
        max_entry_bytes: int | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`max_entry_bytes` is the size from which rows become a generation instead of a WAL entry."""
        self.location = uri if isinstance(uri, Location) else resolve(uri, storage_options)
        base = BaseTable.open(self.location)
        if base is None:
            raise InvalidInputError(f"there is no table at {self.location.describe()}; create it first")
        self._clock = clock
        self._lock = threading.Lock()
        self._max_entry_bytes = DEFAULT_MAX_ENTRY_BYTES if max_entry_bytes is None else max_entry_bytes
        self._manifests: dict[str, ShardManifestStore] = {}
        self._tails: dict[str, ShardTail] = {}
        base = for_writing(base, clock)
        self._watch = TableWatch(base, clock)
        self._adopt(base)

    def _adopt(self, base: BaseTable) -> None:
        """Everything that depends on the version of the base table."""
        self._base = base
        self._target = target_of(self.location, base, None, watch=self._watch)
        self._config = writer_config(base, None, {}, ())
        self._sharding = sharding_of(base)
        self._rows = RowFitter(self._target.schema)

    def refresh(self) -> None:
        """Look at the newest version of the base table; `TableReplacedError` if it is another table."""
        with self._lock:
            newest = self._watch.look()
            if newest is not self._base:
                self._adopt(newest)

    @property
    def is_replaced(self) -> bool:
        """Whether the table turned out to be another one: a new appender is needed."""
        return self._watch.is_replaced

    @property
    def schema(self) -> TableSchema:
        """The columns of the table."""
        return self._target.schema

    @property
    def _sync(self) -> bool:
        return self._config.fsync and self.location.is_local

    def _store(self, shard_id: str) -> ShardManifestStore:
        found = self._manifests.get(shard_id)
        if found is None:
            found = ShardManifestStore(self.location, shard_id, fsync=self._sync, clock=self._clock)
            self._manifests[shard_id] = found
        return found

    # ------------------------------------------------------------------------------------------------------ claiming

    def claim(self, shard_id: str) -> ShardClaim:
        """Own the shard: a new epoch, its predecessor fenced. Once per job, and again after a version that failed."""
        policy = PersistPolicy(
            max_retries=self._config.max_wal_persist_retries,
            base_delay_seconds=self._config.wal_persist_retry_base_delay_ms / 1000,
            fsync=self._sync,
        )
        self.refresh()
        opened = open_log(
            self._store(shard_id),
            spec_id=self._target.spec_id,
            policy=policy,
            watch=self._watch,
            clock=self._clock,
        )
        return ShardClaim(shard_id, opened.log.epoch, self._watch.table_id)

    # ------------------------------------------------------------------------------------------------------ appending

    def append(
        self,
        claim: ShardClaim,
        batches: Sequence[pa.RecordBatch],
        *,
        txn: Transaction | tuple[str, int] | None = None,
        now_ms: int | None = None,
    ) -> AppendResult:
        """All rows of `batches` are in the shard once when this returns, on storage; rows may carry `_tombstone`.

        A transaction that is there already is skipped, whoever wrote it. Too many bytes for an entry become a generation.
        """
        self._check_claim(claim)
        transaction = as_transaction(txn)
        fitted = [self._rows.fit(batch) for batch in batches if batch.num_rows]
        if not fitted:
            raise InvalidInputError("empty batch list: give at least one batch with rows")
        for batch in fitted:
            check_rows_in_shard(batch, self._sharding, self.schema.columns, claim.shard_id)
        size = sum(batch.nbytes for batch in fitted)
        if size > self._max_entry_bytes:
            return self._publish(claim, fitted, transaction)
        if len(fitted) > self._config.max_memtable_batches:
            fitted = pa.Table.from_batches(fitted).combine_chunks().to_batches()
        written_ms = self._clock.now_ms() if now_ms is None else now_ms
        return self._append(claim, fitted, size, transaction, written_ms)

    def _check_claim(self, claim: ShardClaim) -> None:
        """Return only if the table is still the one that was claimed."""
        self.refresh()
        if claim.table_id is not None and claim.table_id != self._watch.table_id:
            raise TableReplacedError(
                f"the table at {self.location.describe()} is another one than the one whose shard was claimed: claim it again"
            )

    def _append(
        self, claim: ShardClaim, fitted: list[pa.RecordBatch], size: int, txn: Transaction | None, now_ms: int
    ) -> AppendResult:
        rows = sum(batch.num_rows for batch in fitted)
        for attempt in range(_MAX_TRIES):
            tail = self.catch_up(claim)
            if txn is not None and is_repeat(txn, tail.seen):
                return AppendResult(claim.shard_id, rows, skipped=True)
            run = replace(tail.run)
            generation = run.add(rows, len(fitted), size, self._config)
            seen = tail.seen if txn is None else with_transaction(tail.seen, txn, now_ms)
            data = EntryEncoder(self.schema.wal, claim.epoch, generation).encode(fitted, txn=txn, seen=seen)
            position = tail.last_position + 1
            reach("once.before_put")
            if self._create(claim, position, data):
                reach("once.after_put")
                if self._counts(claim, position, generation):
                    tail.last_position, tail.run, tail.seen = position, run, dict(seen)
                    tail.entries += 1
                    tail.size_bytes += len(data)
                    return AppendResult(claim.shard_id, rows, position, generation)
            self._back_off(attempt)
        raise ConflictError(f"the log of shard {claim.shard_id} grows faster than we can append to it; retry")

    def _create(self, claim: ShardClaim, position: int, data: bytes) -> bool:
        """Create the entry; False if another one is there, which is then read with the tail. Fenced by a higher epoch."""
        path = paths.wal_entry_path(claim.shard_id, position)
        try:
            self.location.store.put_new(path, data, sync=self._sync, make_directory=False)
        except DirectoryNotFoundError as error:
            self._watch.look()
            raise CorruptDataError("the log of the shard is gone; run verify", path=error.path) from None
        except ObjectExistsError:
            met = decode_entry(self.location.store.get(path), position, path=path)
            if met.writer_epoch > claim.epoch:
                raise self._fenced(claim, met.writer_epoch, position) from None
            return False
        return True

    def _counts(self, claim: ShardClaim, position: int, generation: int) -> bool:
        """Whether readers will find the entry that we just created: a slot that collection emptied looks free."""
        manifest = self._store(claim.shard_id).check_fenced(claim.epoch)
        cursor = manifest.replay_after_wal_entry_position
        return position > cursor and generation >= manifest.current_generation

    def _fenced(self, claim: ShardClaim, current: int, position: int) -> FencedError:
        return FencedError(claim.epoch, current, f"shard {claim.shard_id}, WAL position {position}")

    def _back_off(self, attempt: int) -> None:
        ceiling = min(_MAX_BACKOFF_SECONDS, _BACKOFF_SECONDS * 2**attempt)
        self._clock.sleep(self._clock.random() * ceiling)

    # ------------------------------------------------------------------------------------------------------ the tail

    def catch_up(self, claim: ShardClaim) -> ShardTail:
        """The shard as it is now: manifest, then every entry up to the tip by the reader's rule."""
        store = self._store(claim.shard_id)
        known = self._tails.setdefault(claim.shard_id, ShardTail())
        doubted: set[int] = set()
        for attempt in range(_MAX_TRIES):
            manifest = store.check_fenced(claim.epoch)
            positions = list_positions(self.location, claim.shard_id)
            tail = known if known.manifest == manifest else self._restart(manifest, known, positions)
            end = max([manifest.replay_after_wal_entry_position, *positions[-1:]]) + 1
            try:
                for entry in read_run(self.location, claim.shard_id, tail.last_position + 1, end):
                    self._take(claim, tail, entry)
            except CorruptDataError:  # collection may have passed here since the manifest was read
                if manifest.version in doubted:
                    raise
                doubted.add(manifest.version)
                known = ShardTail()
            else:
                self._tails[claim.shard_id] = known = tail
                if store.list_versions()[-1:] == [manifest.version]:
                    return tail
            self._back_off(attempt)
        raise ConflictError(f"shard {claim.shard_id} changes faster than it can be read; retry")

    def _restart(self, manifest: ShardManifest, known: ShardTail, positions: list[int]) -> ShardTail:
        """A tail that begins at the cursor of `manifest`, with every transaction that is known so far."""
        unread = tuple(sstable for sstable in manifest.sstables if sstable.path not in known.maps_read)
        beside = load_generation_maps(self.location, replace(manifest, sstables=unread))
        cursor = manifest.replay_after_wal_entry_position
        log = newest_seen(self.location, manifest.shard_id, positions)
        return ShardTail(
            manifest=manifest,
            last_position=cursor,
            run=LogRun(manifest.current_generation),
            seen=merge_seen([known.seen, log, beside]),
            maps_read={sstable.path for sstable in manifest.sstables},
        )

    def _take(self, claim: ShardClaim, tail: ShardTail, entry: WalEntry) -> None:
        if entry.writer_epoch > claim.epoch:
            raise self._fenced(claim, entry.writer_epoch, entry.position)
        tail.last_position = entry.position
        tail.seen = merge_seen([tail.seen, entry.seen])
        current = 0 if tail.manifest is None else tail.manifest.current_generation
        if not entry.batches or (entry.generation is not None and entry.generation < current):
            return
        if entry.generation is not None and entry.generation > tail.run.generation:
            tail.run = LogRun(entry.generation)
        tail.run.rows += entry.num_rows
        tail.run.batches += len(entry.batches)
        tail.run.size_bytes += entry.size_bytes
        tail.entries += 1
        tail.size_bytes += entry.size_bytes

    # ------------------------------------------------------------------------------------------------------ generations

    def flush_tail(self, claim: ShardClaim) -> int:
        """Publish every entry of the tail as generations; returns how many. Nobody may append meanwhile."""
        published = 0
        tail = self.catch_up(claim)
        while tail.entries:
            generation, covered, rows = self._oldest_generation(claim, tail)
            sstable = self._write_sstable(claim, generation, rows)
            self._commit(claim, sstable, covered)
            published += 1
            tail = self.catch_up(claim)
        return published

    def _oldest_generation(self, claim: ShardClaim, tail: ShardTail) -> tuple[int, int, pa.Table]:
        """The rows of the manifest's next generation and the last position that they cover."""
        manifest = tail.manifest
        if manifest is None:
            raise AssertionError("the tail was read")
        adapter, memory = RowAdapter(self.schema), self.schema.memory
        current, covered = manifest.current_generation, manifest.replay_after_wal_entry_position
        batches: list[pa.RecordBatch] = []
        for entry in read_run(self.location, claim.shard_id, covered + 1, tail.last_position + 1):
            generation = current if entry.generation is None else entry.generation
            if entry.batches and generation > current:
                break
            covered = entry.position
            if entry.batches and generation == current:
                batches += (with_flags(*adapter.adapt(b, position=entry.position), memory) for b in entry.batches)
        if not batches:
            raise CorruptDataError(
                f"generation {current} is missing in the log of shard {claim.shard_id}, although later ones are there",
                path=paths.wal_dir(claim.shard_id),
            )
        return current, covered, pa.Table.from_batches(batches, schema=memory)

    def _publish(self, claim: ShardClaim, fitted: list[pa.RecordBatch], txn: Transaction | None) -> AppendResult:
        """Publish the rows as one generation, after everything that the log holds."""
        memory = self.schema.memory
        table = pa.Table.from_batches([pa.RecordBatch.from_arrays(b.columns, schema=memory) for b in fitted])
        for attempt in range(_MAX_TRIES):
            tail = self.catch_up(claim)
            if txn is not None and is_repeat(txn, tail.seen):
                return AppendResult(claim.shard_id, table.num_rows, skipped=True)
            if tail.entries:
                self.flush_tail(claim)
                continue
            manifest = tail.manifest
            if manifest is None:
                raise AssertionError("the tail was read")
            generation = manifest.current_generation
            sstable = self._write_sstable(claim, generation, table)
            if txn is not None:
                seen = with_transaction(tail.seen, txn, self._clock.now_ms())
                path = paths.txn_map_path(claim.shard_id, sstable.path)
                self.location.store.put(path, encode_map(seen), sync=self._sync)
            reach("once.before_commit")
            if self._commit(claim, sstable, tail.last_position):
                reach("once.after_commit")
                return AppendResult(claim.shard_id, table.num_rows, generation=generation)
            self._back_off(attempt)
        raise ConflictError(f"shard {claim.shard_id} changes faster than a generation can be published; retry")

    def _write_sstable(self, claim: ShardClaim, generation: int, rows: pa.Table) -> SsTable:
        self._check_claim(claim)
        return self._target.write_sstable(claim.shard_id, self._config, self._clock, generation, rows)

    def _commit(self, claim: ShardClaim, sstable: SsTable, covered: int) -> bool:
        """List `sstable` as the next generation; False if another attempt was faster."""

        def listed(newest: ShardManifest) -> bool:
            return any(item.path == sstable.path for item in newest.sstables)

        def update(latest: ShardManifest) -> ShardManifest:
            if listed(latest) or latest.current_generation != sstable.generation:
                return latest
            return with_generation(latest, sstable, covered)

        self._check_claim(claim)
        won = listed(self._store(claim.shard_id).commit_update(claim.epoch, update, landed=listed))
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


class RowFitter:
    """Rows made to fit the table's columns, `_tombstone` last; only a tombstone may leave a NOT NULL column out."""

    __slots__ = ("_relaxed", "_strict", "schema")

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self._strict = Reconciler(schema)
        nullable = pa.schema([f.with_nullable(f.name not in schema.primary_key) for f in schema.columns])
        self._relaxed = Reconciler(TableSchema(nullable, schema.primary_key, schema.field_ids))

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """`batch` with the table's columns and its tombstone flags, or `InvalidInputError` naming the column."""
        at = batch.schema.get_field_index(TOMBSTONE)
        flags = pa.repeat(False, batch.num_rows) if at < 0 else batch.column(at)
        if not pa.types.is_boolean(flags.type) or flags.null_count:
            raise InvalidInputError(f"column {TOMBSTONE!r} must be boolean without nulls")
        rows = batch if at < 0 else batch.drop_columns([TOMBSTONE])
        if flags.true_count == 0:
            return self._strict.fit(rows).append_column(TOMBSTONE_FIELD, flags)
        if not self.schema.primary_key:
            raise InvalidInputError("the table has no primary key, so its rows cannot be deleted")
        fitted = self._relaxed.fit(rows)
        if flags.true_count < len(flags):
            self._strict.fit(fitted.filter(pc.invert(flags)))
        return fitted.append_column(TOMBSTONE_FIELD, flags)
