"""What one shard writes to.

Owns `ShardTarget`: place, columns and file version, and the writing of a generation with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lance_memwal.clock import Clock
from lance_memwal.config import WriterConfig
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.identity import TableWatch
from lance_memwal.rows.dictionaries import check_dictionaries
from lance_memwal.rows.merging import Merge
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.mirrors import IndexSet
from lance_memwal.sstable.write import has_null_struct, write_sstable
from lance_memwal.store.location import Location
from lance_memwal.types import TOMBSTONE, SsTable

_WITHOUT_NULL_STRUCTS = "2.0"


@dataclass(frozen=True, slots=True)
class ShardTarget:
    """What a shard writes to: place, columns, file version of the base table, and which rows belong to the shard.

    `watch` is the table itself; None where there is no base table yet. `merge` is what a later write of a key does.
    """

    location: Location
    schema: TableSchema
    storage_version: str
    spec_id: int = 0
    check_rows: Callable[[str, pa.RecordBatch], None] | None = None
    indexes: IndexSet | None = None
    watch: TableWatch | None = None
    merge: Merge | None = None

    @property
    def limits_rows(self) -> bool:
        """Whether there are rows with the right columns that the shard cannot hold."""
        return self.check_rows is not None or self._limits_values

    @property
    def _limits_values(self) -> bool:
        return bool(self.schema.small_dictionaries) or self.storage_version == _WITHOUT_NULL_STRUCTS

    def check(self, shard_id: str, batches: Sequence[pa.RecordBatch]) -> None:
        """Return only if `shard_id` can hold these rows; the error names the column."""
        if self._limits_values:
            _check_storable(batches, self.schema, self.storage_version)
        if self.check_rows is not None:
            for batch in batches:
                self.check_rows(shard_id, batch)

    def write_sstable(
        self,
        shard_id: str,
        config: WriterConfig,
        clock: Clock,
        generation: int,
        rows: pa.Table | Iterator[pa.RecordBatch],
    ) -> SsTable:
        """Write one generation, complete and unpublished; an iterator of batches is streamed."""
        indexes = self.indexes if self.indexes is not None and self.indexes.specs else None
        return write_sstable(
            self.location,
            shard_id,
            generation,
            rows,
            schema=self.schema,
            storage_version=self.storage_version,
            fsync=config.fsync,
            clock=clock,
            after_data=None if indexes is None else partial(indexes.mirror, generation),
        )


def _check_storable(batches: Sequence[pa.RecordBatch], schema: TableSchema, storage_version: str) -> None:
    """Return only if a base table can hold these rows, of which tombstones may be flagged; `InvalidInputError` names the
    column. `storage_version`: of its files."""
    check_dictionaries(batches, schema.small_dictionaries)
    if storage_version != _WITHOUT_NULL_STRUCTS:
        return
    for batch in batches:
        at = batch.schema.get_field_index(TOMBSTONE)
        live = batch if at < 0 else batch.filter(pc.invert(batch.column(at)))
        for name, column in zip(live.schema.names, live.columns, strict=True):
            if has_null_struct(column):
                raise InvalidInputError(
                    f"column {name!r} holds a null struct, which files of the table's version 2.0 cannot store"
                )
