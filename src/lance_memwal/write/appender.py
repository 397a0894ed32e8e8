"""The synchronous primitive: one append, one WAL entry, no buffer and no thread.

Owns `WalAppender`. Invariants:

1. `open` owns the shard: claim, sentinel, second look at the manifest; it fixes the next position.
2. `append` returns the position of an entry that is on storage, or raises; nothing is buffered in between.
3. An appender whose log failed refuses everything that follows, since the outcome of an entry may be unknown.
4. What the appender remembers (columns, transactions, the run of its generation) changes only with an entry on storage.
5. An entry is one that every reader takes: rows of this shard, at most `max_memtable_batches` batches.
6. An entry whose bytes may be on storage, left by an append that was interrupted, is sent again as it is before anything
   else is written. The same append, made again, is that entry.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.config import WriterConfig
from lance_memwal.crash_points import reach
from lance_memwal.errors import ClosedError, FencedError, InvalidInputError, MemWalError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.identity import TableWatch
from lance_memwal.log.entry import EntryEncoder, RowEncoder
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.table_ids import for_writing
from lance_memwal.log.tail import LogRun
from lance_memwal.log.transactions import as_transaction
from lance_memwal.log.understood import KnownColumns
from lance_memwal.log.wal import OpenedLog, PersistPolicy, open_log
from lance_memwal.process.forking import close_in_child
from lance_memwal.process.waiting import refuse_on_top
from lance_memwal.rows.fit import Fitter, Missing, at_most, fills_missing
from lance_memwal.rows.ingest import to_batches, with_rows
from lance_memwal.rows.schema import TableSchema
from lance_memwal.rows.sharding import Manual, Sharding
from lance_memwal.sstable.probe import check_columns, check_table
from lance_memwal.sstable.target import check_storable
from lance_memwal.store.location import Location, resolve
from lance_memwal.types import TOMBSTONE, EntryFooter, EntryTransaction, Transaction

__all__ = ["WalAppender"]


class WalAppender:
    """The claimed end of one shard's log. Threads may share it: appends are serialised."""

    def __init__(
        self,
        opened: OpenedLog,
        manifests: ShardManifestStore,
        config: WriterConfig,
        *,
        schema: TableSchema | None = None,
        storage_version: str | None = None,
        sharding: Sharding,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Use `open`."""
        self._log = opened.log
        self._manifests = manifests
        self._config = config
        self._storage_version = storage_version
        self._sharding = sharding
        self._clock = clock
        self._run = LogRun.of_tail(opened)
        self._transactions = opened.transactions
        self._in_flight: _Entry | None = None
        self._rows = None if schema is None else _Rows(schema)
        self._encoder: EntryEncoder | None = None
        self._lock = threading.RLock()
        self._failed: MemWalError | None = None
        close_in_child(self)

    @classmethod
    def open(
        cls,
        uri: str | Location,
        shard_id: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        fsync: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> WalAppender:
        """Own the shard: claim an epoch and fence its predecessor. Without a base table the first append sets the columns."""
        location = resolve(uri, storage_options)
        base = BaseTable.open(location)
        schema, config, spec_id, watch = None, WriterConfig(), 0, None
        sharding: Sharding = Manual()
        if base is not None:
            check_table(base)
            schema = base.columns
        if base is not None and base.details is not None:
            watch = TableWatch(for_writing(base, clock), clock)
            sharding = base.sharding
            config = WriterConfig.from_defaults(base.details.writer_config_defaults)
            spec_id = base.details.sharding_specs[0].spec_id if base.details.sharding_specs else 0
        sync = fsync and location.is_local
        manifests = ShardManifestStore(location, shard_id, fsync=sync, clock=clock)
        policy = PersistPolicy.of(config, fsync=sync)
        known = KnownColumns(location, schema)
        opened = open_log(manifests, spec_id=spec_id, policy=policy, watch=watch, known=known, clock=clock)
        version = None if base is None else base.data_storage_version
        return cls(opened, manifests, config, schema=schema, storage_version=version, sharding=sharding, clock=clock)

    @property
    def epoch(self) -> int:
        """The epoch under which this appender owns the shard."""
        return self._log.epoch

    @property
    def shard_id(self) -> str:
        """The shard."""
        return self._log.shard_id

    @property
    def next_position(self) -> int:
        """The position that the next entry gets."""
        return self._log.next_position

    def append(
        self, batches: Any, *, txn: Transaction | tuple[str, int] | None = None, missing: Missing | None = None
    ) -> int:
        """The position of one entry with all of `batches`, now on storage; "Writer fenced" if a successor owns the shard.

        Rows may carry a `_tombstone` column. A transaction that is there already appends nothing and returns 0. `missing`
        says what becomes of columns that are left out: see `ShardWriter.put`.
        """
        fill = None if self._rows is None else fills_missing(missing, self._rows.schema)
        whole = fill is False and not _has_tombstones(batches)
        given = with_rows(to_batches(batches, self._columns(), whole=whole))
        transaction = as_transaction(txn)
        refuse_on_top(self._lock, "append")
        with self._lock:
            if self._failed is not None:
                raise self._failed
            left = self._in_flight
            if left is not None:
                position = self._send(left)
            rows = self._rows or _Rows.like(given[0])
            fitted = self._fit(rows, given, fill)
            if left is not None and left.holds(fitted, transaction):
                return position
            if transaction is not None:
                if self._transactions.is_repeat(transaction):
                    return 0
                self._transactions.admit(transaction)
            return self._send(self._encode(rows, fitted, transaction))

    def _fit(self, rows: _Rows, given: list[pa.RecordBatch], fill: bool | None) -> list[pa.RecordBatch]:
        fitted = [rows.fitter.fit_flagged(batch, fill=fill) for batch in given]
        check_storable(fitted, rows.schema, self._storage_version)
        fitted = at_most(self._config.max_memtable_batches, fitted, rows.schema.memory)
        for batch in fitted:
            self._sharding.check_rows(rows.schema.columns, self.shard_id, batch)
        return fitted

    def _encode(self, rows: _Rows, fitted: list[pa.RecordBatch], txn: Transaction | None) -> _Entry:
        limit = self._config.max_entry_bytes
        size = rows.encoder.measure(fitted)
        if size > limit:
            raise InvalidInputError(
                f"{size} bytes are too many for one WAL entry, at most {limit}; use ShardWriter.put or several appends"
            )
        count = sum(batch.num_rows for batch in fitted)
        run = self._run.after(fitted, size, self._config, rows.schema.small_dictionaries)
        generation = run.generation
        encoder = self._encoder
        if encoder is None or encoder.generation != generation:
            encoder = EntryEncoder(rows.schema.wal, self.epoch, generation)
        txns = () if txn is None else (EntryTransaction(txn, 0, count),)
        footer = self._transactions.footer(generation, txns, self._log.table)
        return _Entry(self._log.next_position, encoder.encode(fitted, footer), fitted, footer, run, encoder, rows)

    def _send(self, entry: _Entry) -> int:
        """Make `entry` durable and remember what it changed; sending it again changes nothing."""
        reach("wal.before_put")
        self._in_flight = entry
        try:
            self._log.append_once(entry.position, entry.data)
        except MemWalError as error:
            self._failed = error
            raise
        reach("wal.after_put")
        self._transactions.take(entry.footer, entry.encoder.generation)
        self._run, self._encoder, self._rows = entry.run, entry.encoder, entry.rows
        self._in_flight = None
        return self._log.next_position - 1

    def orphan(self) -> None:
        """Become closed in a forked child: two processes must not share an epoch."""
        self._lock = threading.RLock()
        self._failed = ClosedError("this process was forked: the appender belongs to its parent; open a new one")

    def _columns(self) -> pa.Schema:
        return pa.schema([]) if self._rows is None else self._rows.schema.columns

    def check_fenced(self) -> None:
        """Raise `FencedError` if the newest manifest carries a higher epoch."""
        try:
            self._manifests.check_fenced(self.epoch)
        except FencedError as error:
            self._failed = error
            raise

    def __repr__(self) -> str:
        return f"WalAppender(shard_id={self.shard_id!r}, epoch={self.epoch}, next_position={self.next_position})"


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry on its way to storage, and what the appender remembers once it is there."""

    position: int
    data: bytes
    batches: list[pa.RecordBatch]
    footer: EntryFooter
    run: LogRun
    encoder: EntryEncoder
    rows: _Rows

    def holds(self, batches: list[pa.RecordBatch], txn: Transaction | None) -> bool:
        """Whether this entry is what an append of `batches` would write."""
        same = len(batches) == len(self.batches) and all(map(pa.RecordBatch.equals, batches, self.batches))
        return same and [item.txn for item in self.footer.txns] == ([] if txn is None else [txn])


def _has_tombstones(rows: Any) -> bool:
    """Whether dicts among `rows` say which of them are tombstones: those have no more than the key."""
    return isinstance(rows, (list, tuple)) and any(isinstance(row, Mapping) and TOMBSTONE in row for row in rows)


class _Rows:
    """The columns of the table, input made to fit them, and its encoding."""

    __slots__ = ("encoder", "fitter", "schema")

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.encoder = RowEncoder(schema.wal)
        self.fitter = Fitter(schema)

    @classmethod
    def like(cls, batch: pa.RecordBatch) -> _Rows:
        """The columns of `batch`, where there is no base table to say what they are."""
        at = batch.schema.get_field_index(TOMBSTONE)
        columns = batch.schema if at < 0 else batch.schema.remove(at)
        check_columns(columns)
        return cls(TableSchema.from_arrow(columns))
