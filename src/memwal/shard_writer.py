"""The public writer of one shard.

Owns `ShardWriter`: the engine, and reads of what it holds. Invariants are those of `memwal.writer.engine`.

Called by: users, the table facade.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from memwal.base_table import BaseTable
from memwal.clock import SYSTEM_CLOCK, Clock
from memwal.config import WriterConfig
from memwal.memscan import MemTableScanner
from memwal.shard_target import target_of, writer_config
from memwal.store.location import Location, resolve
from memwal.writer.engine import ShardEngine

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

        `schema` may be left out where a base table exists. Settings come from the table's stored defaults, or from
        `config`, and then from `overrides`.
        """
        location = uri if isinstance(uri, Location) else resolve(uri, storage_options)
        base = BaseTable.open(location)
        settings = writer_config(base, config, overrides, indexes)
        return cls(target_of(location, base, schema), settings, clock)

    def scan(self) -> MemTableScanner:
        """A scan of the memtables alone, active and frozen; flushed rows are not in it (see `lsm_scan`)."""
        return MemTableScanner(self.in_memory_memtable_refs(), self._target.schema)
