"""What one shard writes to.

Owns `ShardTarget`: place, columns and file version, and the writing of a generation with them.

Called by: the shard engine, appends without a writer, the table facade.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from memwal.clock import Clock
from memwal.config import WriterConfig
from memwal.errors import InvalidInputError
from memwal.flush import SsTableSchema, has_null_struct, write_sstable
from memwal.format.dictionaries import check_dictionaries
from memwal.identity import TableWatch
from memwal.maintained import IndexSet
from memwal.schema import TableSchema
from memwal.store.location import Location
from memwal.types import SsTable

__all__ = ["ShardTarget"]

_WITHOUT_NULL_STRUCTS = "2.0"


@dataclass(frozen=True, slots=True)
class ShardTarget:
    """What a shard writes to: place, columns, file version of the base table, and which rows belong to the shard.

    `watch` is the table itself; None where there is no base table yet.
    """

    location: Location
    schema: TableSchema
    storage_version: str
    spec_id: int = 0
    check_rows: Callable[[str, pa.RecordBatch], None] | None = None
    indexes: IndexSet | None = None
    watch: TableWatch | None = None

    def check_storable(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Return only if the base table can hold these rows; `InvalidInputError` names the column."""
        check_dictionaries(batches, self.schema.small_dictionaries)
        if self.storage_version != _WITHOUT_NULL_STRUCTS:
            return
        for batch in batches:
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if has_null_struct(column):
                    raise InvalidInputError(
                        f"column {name!r} holds a null struct, which files of the table's version 2.0 cannot store"
                    )

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
