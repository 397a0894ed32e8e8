"""What one shard writes to.

Owns `ShardTarget`: place, columns and file version, and the writing of a generation with them.

Called by: the shard engine, appends without a writer, the table facade.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from memwal.clock import Clock
from memwal.config import WriterConfig
from memwal.flush import SsTableSchema, write_sstable
from memwal.maintained import IndexSet
from memwal.schema import TableSchema
from memwal.store.location import Location
from memwal.types import SsTable

__all__ = ["ShardTarget"]


@dataclass(frozen=True, slots=True)
class ShardTarget:
    """What a shard writes to: place, columns, file version of the base table, and which rows belong to the shard."""

    location: Location
    schema: TableSchema
    storage_version: str
    spec_id: int = 0
    check_rows: Callable[[str, pa.RecordBatch], None] | None = None
    indexes: IndexSet | None = None

    def write_sstable(
        self,
        shard_id: str,
        config: WriterConfig,
        clock: Clock,
        generation: int,
        rows: pa.Table | Iterator[pa.RecordBatch],
    ) -> SsTable:
        """Write one generation, complete and unpublished; an iterator of batches is streamed."""
        ids = None if self.schema.field_ids is None else [i for f in self.schema.field_ids for i in f.in_order()]
        return write_sstable(
            self.location,
            shard_id,
            generation,
            rows,
            base=SsTableSchema.from_arrow(self.schema.columns, ids, self.schema.primary_key),
            storage_version=self.storage_version,
            fsync=config.fsync and self.location.is_local,
            clock=clock,
            after_data=partial(self.indexes.mirror, generation) if self.indexes is not None else None,
        )
