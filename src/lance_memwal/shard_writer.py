"""The public writer of one shard.

Owns `ShardWriter`: the engine, and reads of what it holds. Invariants are those of `lance_memwal.write.engine`.

Called by: users, the table facade.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from lance_memwal.arguments import check_instance
from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.config import WriterConfig
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.table_ids import for_writing
from lance_memwal.memtable.scan import MemTableScanner
from lance_memwal.read.base_keys import BaseLookup
from lance_memwal.read.lookup import lookup_rows
from lance_memwal.read.memory_get import Undecided, get_from_memory
from lance_memwal.read.scan import Scan
from lance_memwal.read.snapshot import Snapshot, SnapshotSource, with_restarts
from lance_memwal.rows.filter import FilterLike
from lance_memwal.rows.ingest import key_batch
from lance_memwal.rows.schema import checked_columns
from lance_memwal.rows.sharding import sharding_of
from lance_memwal.sstable.probe import check_table
from lance_memwal.store.location import Location, resolve
from lance_memwal.types import ShardManifest
from lance_memwal.write.engine import ShardEngine
from lance_memwal.write.table_target import target_of, with_shard, writer_config

__all__ = ["ShardWriter"]


class ShardWriter(ShardEngine):
    """Writes one shard: durable puts and deletes, visible at once, flushed to SSTables in the background."""

    @classmethod
    def open(
        cls,
        uri: str | Location,
        schema: pa.Schema | None = None,
        config: WriterConfig | None = None,
        *,
        indexes: Sequence[Any] = (),
        storage_options: Mapping[str, str] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **overrides: Any,
    ) -> ShardWriter:
        """Own a shard: validate, claim, fence the predecessor, replay. A refused open has fenced nobody.

        `schema` may be left out where a base table exists. `indexes` (`BTreeIndex`, `FtsIndex`, `HnswIndex`) are had
        beside those that the table maintains. Settings come from the table's stored defaults, or from
        `config`, and then from `overrides`.
        """
        if schema is not None:
            check_instance("schema", schema, pa.Schema, "a pyarrow schema")
        check_instance("indexes", indexes, (list, tuple), "a list of indexes")
        location = uri if isinstance(uri, Location) else resolve(uri, storage_options)
        base = BaseTable.open(location)
        settings = writer_config(base, config, overrides, indexes)
        if base is not None:
            settings = with_shard(settings, sharding_of(base))
            check_table(base)
            base = for_writing(base, clock)
        return cls(target_of(location, base, schema, indexes=indexes, clock=clock), settings, clock)

    def evolve_schema(self) -> None:
        """Move to the columns that the base table has now: added, renamed and dropped ones.

        Writes wait meanwhile. What was written before is flushed under the old columns, and is read by field id.
        """
        watch = self._target.watch
        base = BaseTable.open(self._target.location) if watch is None else watch.look()
        if base is None:
            raise InvalidInputError("there is no base table whose columns this writer could take over")
        given = self._target.indexes.given if self._target.indexes is not None else ()
        kept = [spec for spec in given if spec.column in base.schema.names]
        target = target_of(
            self._target.location, base, None, routed=self._target.check_rows is None, indexes=kept, watch=watch
        )
        if target.schema != self._target.schema:
            self._move_to(target)

    def scan(self) -> MemTableScanner:
        """A scan of the memtables alone, active and frozen; flushed rows are not in it (see `lsm_scan`)."""
        return MemTableScanner(self.in_memory_memtable_refs(), self._target.schema)

    def lsm_scan(
        self,
        columns: Sequence[str] | None = None,
        filter: FilterLike | None = None,  # noqa: A002
        limit: int | None = None,
        offset: int | None = None,
        *,
        with_row_address: bool = False,
        with_generation: bool = False,
    ) -> Scan:
        """All live rows of this shard and the base table: base, SSTables, frozen and active memtables."""
        return Scan(
            self._capture_all,
            columns=columns,
            filter=filter,
            limit=limit,
            offset=offset,
            with_row_address=with_row_address,
            with_generation=with_generation,
        )

    def get(self, key: Any, columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        """The live row of one key in this shard or the base table, or None."""
        self._need_memtable()
        base = self._newest_base()
        if base.details is not None:
            schema = base.table_schema
            if columns is not None:
                columns = checked_columns(columns, schema.columns)
            row = get_from_memory([self], base.table_id, schema, key, columns, self._newest_manifest)
            if not isinstance(row, Undecided):
                return row
        found = self.lookup([key], columns)
        return found.to_pylist()[0] if found.num_rows else None

    def lookup(self, keys: Any, columns: Sequence[str] | None = None) -> pa.Table:
        """The live rows of many keys in this shard or the base table, in no order."""
        named = key_batch(keys, self._target.schema)

        def read(snapshot: Snapshot) -> pa.Table:
            wanted = snapshot.schema.columns.names if columns is None else columns
            return lookup_rows(snapshot, self._base_lookup, named, wanted)

        return with_restarts(self._capture_all, read)

    def _capture_all(self) -> Snapshot:
        return self._snapshots.capture(shards=[self.shard_id], in_memory=self.in_memory_memtable_refs())

    @cached_property
    def _snapshots(self) -> SnapshotSource:
        return SnapshotSource(self._target.location, self._newest_base, self._clock)

    @cached_property
    def _base(self) -> BaseTable:
        base = BaseTable.open(self._target.location)
        if base is None:
            raise InvalidInputError("there is no base table yet: scan() reads the memtables, create the table for more")
        return base

    def _newest_base(self) -> BaseTable:
        self._base = base = self._base.refresh()
        return base

    def _newest_manifest(self, shard_id: str) -> ShardManifest | None:
        return self._snapshots.manifests(shard_id).read_latest()

    @cached_property
    def _base_lookup(self) -> BaseLookup:
        return BaseLookup(self._target.schema.primary_key)
