"""The synchronous primitive: one append, one WAL entry, no buffer and no thread.

Owns `WalAppender`: a shard in WAL-only mode whose tasks never start, so that its callers alone commit. Invariants:

1. `open` owns the shard: claim, sentinel, second look at the manifest; it reads the tail, and fixes the next position.
2. `append` returns the position of an entry that is on storage, or raises; nothing is buffered in between.
3. An appender whose log failed refuses everything that follows, since the outcome of an entry may be unknown.
4. Without a base table the first append that gets into the log says what the columns are.
5. An append that is interrupted while it commits poisons the appender: open it again. Give appends that may be retried
   a transaction.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.config import WriterConfig, WriterSettings
from lance_memwal.errors import ClosedError, FencedError, InvalidInputError, MemWalError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.identity import TableWatch
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.shards import for_writing
from lance_memwal.log.tail import LogRun
from lance_memwal.log.transactions import as_transaction
from lance_memwal.log.wal import OpenedLog
from lance_memwal.process.forking import close_in_child
from lance_memwal.process.waiting import refuse_on_top
from lance_memwal.rows.fit import Missing, fills_missing
from lance_memwal.rows.ingest import to_batches, with_rows
from lance_memwal.sstable.target import ShardTarget
from lance_memwal.store.location import Location, resolve
from lance_memwal.types import TOMBSTONE, Transaction
from lance_memwal.write.claim import claim_log, manifests_of
from lance_memwal.write.queue import WriteRows
from lance_memwal.write.shard import Shard
from lance_memwal.write.table_target import refuse_merge, target_of, writer_config


class WalAppender:
    """The claimed end of one shard's log. Threads may share it: appends are serialised."""

    def __init__(
        self,
        opened: OpenedLog,
        manifests: ShardManifestStore,
        config: WriterConfig,
        target: ShardTarget | None,
        clock: Clock,
    ) -> None:
        """Use `open`."""
        self._opened = opened
        self._manifests = manifests
        self._config = config
        self._clock = clock
        self.run = LogRun.of_tail(opened)  # of the log as it was opened
        self._shard = None if target is None else self._shard_with(target)
        self._refusal: MemWalError | None = None
        self._lock = threading.RLock()
        close_in_child(self._orphan)

    @classmethod
    def open(
        cls,
        uri: str | Location,
        shard_id: str | uuid.UUID,
        *,
        storage_options: Mapping[str, str] | None = None,
        fsync: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> WalAppender:
        """Own the shard: claim an epoch and fence its predecessor. Without a base table the first append sets the columns."""
        location = resolve(uri, storage_options)
        base = BaseTable.open(location)
        target = None if base is None else _target(base, clock, fsync=fsync)
        settings: WriterSettings = {"fsync": fsync, "enable_memtable": False, "shard_id": shard_id}
        config = writer_config(base, None, settings, ())
        manifests = manifests_of(location, shard_id, config, clock)
        if target is None:
            opened = claim_log(manifests, config, None, None, 0, clock)
        else:
            opened = claim_log(manifests, config, target.schema, target.watch, target.spec_id, clock)
        return cls(opened, manifests, config, target, clock)

    @property
    def epoch(self) -> int:
        """The epoch under which this appender owns the shard."""
        return self._opened.log.epoch

    @property
    def shard_id(self) -> str:
        """The shard."""
        return self._opened.log.shard_id

    @property
    def next_position(self) -> int:
        """The position that the next entry gets."""
        return self._opened.log.next_position

    def append(
        self, batches: Any, *, txn: Transaction | tuple[str, int] | None = None, missing: Missing | None = None
    ) -> int:
        """The position of one entry with all of `batches`, now on storage; "Writer fenced" if a successor owns the shard.

        Rows may carry a `_tombstone` column. A transaction that is there already appends nothing and returns 0. `missing`
        says what becomes of columns that are left out: see `ShardWriter.put`.
        """
        given = with_rows(self._batches(batches, missing))
        transaction = as_transaction(txn)
        refuse_on_top(self._lock, "append")
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            shard = self._shard or self._shard_of(given[0].schema)
            shard.health.refuse_writes()
            refuse_merge(shard.columns.target, "WalAppender")
            pending, end = shard.commits.insert(self._rows(shard, given, missing), transaction)
            self._shard = shard
            if pending is None:
                return 0
            shard.commits.make_durable(end)
            return self.next_position - 1

    def _batches(self, rows: Any, missing: Missing | None) -> list[pa.RecordBatch]:
        if self._shard is None:
            return to_batches(rows, pa.schema([]), whole=False)
        schema = self._shard.columns.target.schema
        whole = not fills_missing(missing, schema) and not _has_tombstones(rows)
        return to_batches(rows, schema.columns, whole=whole)

    def _shard_of(self, columns: pa.Schema) -> Shard:
        """The shard with the columns of its first rows, where there is no base table to say what they are."""
        at = columns.get_field_index(TOMBSTONE)
        target = target_of(self._manifests.location, None, columns if at < 0 else columns.remove(at), fsync=False)
        return self._shard_with(target)

    def _shard_with(self, target: ShardTarget) -> Shard:
        return Shard(target, self._config, self._clock, self._opened, self._manifests, run=self.run)

    def _rows(self, shard: Shard, given: list[pa.RecordBatch], missing: Missing | None) -> WriteRows:
        rows = shard.columns.fitting.fit_flagged(given, missing)
        if not shard.commits.entries.encode_rows(rows):
            limit = self._config.max_entry_bytes
            raise InvalidInputError(
                f"these rows are too many for one WAL entry, at most {limit} bytes; use ShardWriter.put or several appends"
            )
        return rows

    def _orphan(self) -> None:
        """Become closed in a forked child: two processes must not share an epoch."""
        self._lock = threading.RLock()
        self._refusal = ClosedError("this process was forked: the appender belongs to its parent; open a new one")

    def check_fenced(self) -> None:
        """Raise `FencedError` if the newest manifest carries a higher epoch."""
        try:
            self._manifests.check_fenced(self.epoch)
        except FencedError as error:
            self._refusal = error
            raise

    def __repr__(self) -> str:
        return f"WalAppender(shard_id={self.shard_id!r}, epoch={self.epoch}, next_position={self.next_position})"


def _target(base: BaseTable, clock: Clock, *, fsync: bool) -> ShardTarget:
    """What a shard of this table writes to; the table may have no MemWAL index yet."""
    base.check_columns()  # before the table gets an id
    if base.details is None:
        return ShardTarget(base.location, base.columns, base.data_storage_version)
    watch = TableWatch(for_writing(base, clock), clock)
    return target_of(base.location, base, None, fsync=fsync, watch=watch)


def _has_tombstones(rows: Any) -> bool:
    """Whether dicts among `rows` say which of them are tombstones: those have no more than the key."""
    return isinstance(rows, (list, tuple)) and any(isinstance(row, Mapping) and TOMBSTONE in row for row in rows)
