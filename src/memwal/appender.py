"""The synchronous primitive: one append, one WAL entry, no buffer and no thread.

Owns `WalAppender`. Invariants:

1. `open` owns the shard: claim, sentinel, second look at the manifest; it fixes the next position.
2. `append` returns the position of an entry that is on storage, or raises; nothing is buffered in between.
3. An appender whose log failed refuses everything that follows, since the outcome of an entry may be unknown.

Called by: users who need a queue or a feed without a memtable.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from memwal.base_table import BaseTable
from memwal.clock import SYSTEM_CLOCK, Clock
from memwal.config import WriterConfig
from memwal.errors import FencedError, InvalidInputError, MemWalError
from memwal.format.wal_entry import TOMBSTONE, TOMBSTONE_FIELD, EntryEncoder
from memwal.ingest import to_batches
from memwal.log_run import LogRun
from memwal.manifest import ShardManifestStore
from memwal.schema import Reconciler, TableSchema
from memwal.store.location import Location, resolve
from memwal.transactions import as_transaction, is_repeat, with_transaction
from memwal.types import SeenTransaction, Transaction
from memwal.wal import OpenedLog, PersistPolicy, open_log

__all__ = ["WalAppender"]


class WalAppender:
    """The claimed end of one shard's log. Threads may share it: appends are serialised."""

    def __init__(
        self, opened: OpenedLog, manifests: ShardManifestStore, schema: TableSchema | None, config: WriterConfig
    ) -> None:
        """Use `open`."""
        self._opened = opened
        self._log = opened.log
        self._manifests = manifests
        self._config = config
        self._run = LogRun.of_tail(opened)
        self._seen: dict[str, SeenTransaction] = opened.seen
        self._schema: TableSchema | None = None
        self._reconciler: Reconciler | None = None
        self._encoder: EntryEncoder | None = None
        self._flags: dict[int, pa.BooleanArray] = {}
        self._lock = threading.Lock()
        self._failed: MemWalError | None = None
        if schema is not None:
            self._use(schema)

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
        location = uri if isinstance(uri, Location) else resolve(uri, storage_options)
        base = BaseTable.open(location)
        schema = None if base is None else TableSchema.from_lance(base.schema, base.dataset.lance_schema)
        config, spec_id = WriterConfig(shard_id=shard_id), 0
        if base is not None and base.details is not None:
            config = WriterConfig.from_defaults(base.details.writer_config_defaults)
            spec_id = base.details.sharding_specs[0].spec_id if base.details.sharding_specs else 0
        sync = fsync and location.is_local
        manifests = ShardManifestStore(location, shard_id, fsync=sync, clock=clock)
        opened = open_log(manifests, spec_id=spec_id, policy=PersistPolicy(fsync=sync), clock=clock)
        return cls(opened, manifests, schema, config)

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

    def append(self, batches: Any, *, txn: Transaction | tuple[str, int] | None = None) -> int:
        """The position of one entry with all of `batches`, now on storage; "Writer fenced" if a successor owns the shard.

        Rows may carry a `_tombstone` column. A transaction that is there already appends nothing and returns 0.
        """
        given = [batches] if type(batches) is pa.RecordBatch else to_batches(batches, self._columns())
        if not given:
            raise InvalidInputError("empty batch list: give at least one batch with rows")
        transaction = as_transaction(txn)
        with self._lock:
            if self._failed is not None:
                raise self._failed
            rows = [self._fit(i, batch) for i, batch in enumerate(given)]
            if transaction is not None and is_repeat(transaction, self._seen):
                return 0
            return self._append(rows, transaction)

    def _append(self, rows: list[pa.RecordBatch], txn: Transaction | None) -> int:
        size = sum(batch.get_total_buffer_size() for batch in rows)
        if size > self._config.max_entry_bytes:
            raise InvalidInputError(
                f"{size} bytes are too many for one WAL entry; use ShardWriter.put or several appends"
            )
        generation = self._run.add(sum(batch.num_rows for batch in rows), len(rows), size, self._config)
        if self._encoder is None or self._encoder.generation != generation:
            if self._schema is None:
                raise AssertionError("the first append sets the schema")
            self._encoder = EntryEncoder(self._schema.wal, self.epoch, generation)
        seen = self._seen if txn is None else with_transaction(self._seen, txn, SYSTEM_CLOCK.now_ms())
        try:
            position = self._log.append(self._encoder.encode(rows, txn=txn, seen=seen))
        except MemWalError as error:
            self._failed = error
            raise
        self._seen = seen
        return position

    def _fit(self, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows == 0:
            raise InvalidInputError(f"Batch {number} is empty: give batches with rows")
        at = batch.schema.get_field_index(TOMBSTONE)
        flags = None
        if at >= 0:
            flags = batch.column(at)
            if not pa.types.is_boolean(flags.type) or flags.null_count:
                raise InvalidInputError(f"column {TOMBSTONE!r} must be boolean without nulls")
            batch = batch.drop_columns([TOMBSTONE])
        if self._reconciler is None:
            self._use(TableSchema.from_arrow(batch.schema))
        if self._reconciler is None:
            raise AssertionError("unreachable")
        fitted = self._reconciler.fit(batch)
        return fitted.append_column(TOMBSTONE_FIELD, flags if flags is not None else self._live(batch.num_rows))

    def _live(self, rows: int) -> pa.BooleanArray:
        flags = self._flags.get(rows)
        if flags is None:
            flags = pa.array(np.zeros(rows, dtype=bool))
            if len(self._flags) < 64:
                self._flags[rows] = flags
        return flags

    def _use(self, schema: TableSchema) -> None:
        self._schema = schema
        self._reconciler = Reconciler(schema)

    def _columns(self) -> pa.Schema:
        return pa.schema([]) if self._schema is None else self._schema.columns

    def check_fenced(self) -> None:
        """Raise `FencedError` if the newest manifest carries a higher epoch."""
        try:
            self._manifests.check_fenced(self.epoch)
        except FencedError as error:
            self._failed = error
            raise

    def __repr__(self) -> str:
        return f"WalAppender(shard_id={self.shard_id!r}, epoch={self.epoch}, next_position={self.next_position})"
