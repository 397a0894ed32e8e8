"""The public writer of one shard.

Owns `ShardWriter`: the engine, and reads of what it holds. Invariants are those of `lance_memwal.write.engine`.
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
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.lance.identity import TableWatch
from lance_memwal.log.table_ids import for_writing
from lance_memwal.read.memory_scan import MemTableScanner
from lance_memwal.read.reader import Reader
from lance_memwal.read.scan import Scan
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.rows.filter import FilterLike
from lance_memwal.sstable.probe import check_table
from lance_memwal.store.location import Location, resolve
from lance_memwal.write.engine import ShardEngine
from lance_memwal.write.parking import Parked
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
            settings = with_shard(settings, base.sharding)
            check_table(base)
            base = for_writing(base, clock)
        return cls(target_of(location, base, schema, indexes=indexes, clock=clock), settings, clock)

    @classmethod
    def of_table(
        cls,
        base: BaseTable,
        settings: WriterConfig,
        *,
        routed: bool,
        watch: TableWatch | None = None,
        parked: Parked | None = None,
    ) -> ShardWriter:
        """Own a shard of `base`, or take a parked one up again; `routed`: the caller sends only rows that belong to it."""
        settings = with_shard(settings, base.sharding)
        check_table(base)
        target = target_of(base.location, for_writing(base), None, routed=routed, watch=watch)
        return cls(target, settings, SYSTEM_CLOCK, parked=parked)

    def scan(self) -> MemTableScanner:
        """A scan of the memtables alone, active and frozen; flushed rows are not in it (see `lsm_scan`)."""
        target = self._target
        return MemTableScanner(Snapshot.of_memory(target.location, target.schema, self.in_memory_memtable_refs()))

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
        return self._reader.scan(
            columns,
            filter,
            limit,
            offset,
            with_row_address=with_row_address,
            with_generation=with_generation,
            shards=[self.shard_id],
            in_memory=self.in_memory_memtable_refs(),
        )

    def get(self, key: Any, columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        """The live row of one key in this shard or the base table, or None."""
        self._need_memtable()
        self._core.refuse()
        return self._reader.get(key, columns, writer=self)

    def lookup(self, keys: Any, columns: Sequence[str] | None = None) -> pa.Table:
        """The live rows of many keys in this shard or the base table, in no order."""
        return self._reader.lookup(keys, columns, shards=[self.shard_id], in_memory=self.in_memory_memtable_refs())

    @cached_property
    def _reader(self) -> Reader:
        base = BaseTable.open(self._target.location)
        if base is None:
            raise InvalidInputError("there is no base table yet: scan() reads the memtables, create the table for more")
        return Reader(NewestBase(base), self._clock)
