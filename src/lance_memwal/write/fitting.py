"""Input of writes, fitted to the columns of one shard.

Owns `Fitting`: what a write gives becomes the rows of the shard here, or is refused by name. Invariants:

1. A fitting belongs to one set of columns for good: threads share it, a writer that moves on takes another one.
2. What can be decided once per set of columns is decided once, so that a put only asks what its own rows can answer.

Called by: the shard engine.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lance_memwal.config import WriterConfig
from lance_memwal.errors import InvalidInputError
from lance_memwal.rows.ingest import key_batch, to_batches
from lance_memwal.rows.schema import Fitted, Missing, Reconciler, TableSchema, fills_missing, tombstones
from lance_memwal.sstable.target import ShardTarget
from lance_memwal.write.pending import WriteRows

__all__ = ["Fitting"]


class Fitting:
    """Makes rows of input, for one shard with one set of columns."""

    __slots__ = (
        "_check_rows",
        "_equal",
        "_fills",
        "_limits_rows",
        "_max_batches",
        "_reconciler",
        "_schema",
        "_shard_id",
        "_target",
    )

    def __init__(self, target: ShardTarget, config: WriterConfig) -> None:
        self._target = target
        self._schema = self._equal = target.schema
        self._fills = fills_missing(None, target.schema)
        self._limits_rows = target.limits_rows
        self._reconciler = Reconciler(target.schema)
        self._check_rows = target.check_rows
        self._shard_id = str(config.shard_id)
        self._max_batches = config.max_memtable_batches

    def take(self, data: Any, missing: Missing | None) -> tuple[list[pa.RecordBatch], bool]:
        """`data` as batches with rows, and whether columns that they leave out become null."""
        if type(data) is Fitted:
            return data, True
        fill = self._fills if missing is None else fills_missing(missing, self._schema)
        if type(data) is pa.RecordBatch:
            batches = [data]
        else:
            batches = to_batches(data, self._schema.columns, whole=not fill)
        if not batches:
            raise InvalidInputError("empty batch list: give at least one batch with rows")
        for i, batch in enumerate(batches):
            if batch.num_rows == 0:
                raise InvalidInputError(f"Batch {i} is empty: give batches with rows")
        return batches, fill

    def fit(self, batches: list[pa.RecordBatch], fill: bool) -> WriteRows:
        """`batches` as those of the table, each checked; the errors name the column."""
        if type(batches) is Fitted and (batches.schema is self._equal or self._is_equal(batches.schema)):
            fitted: list[pa.RecordBatch] = batches
        else:
            fitted = [self._reconciler.fit(batch, fill=fill) for batch in batches]
        if self._limits_rows:
            self._target.check_storable(fitted)
        if len(fitted) > self._max_batches:
            even = [pa.RecordBatch.from_arrays(batch.columns, schema=self._schema.nullable) for batch in fitted]
            fitted = pa.Table.from_batches(even).combine_chunks().to_batches()
        if self._check_rows is not None:
            for batch in fitted:
                self._check_rows(self._shard_id, batch)
        return WriteRows.of(fitted)

    def _is_equal(self, schema: TableSchema) -> bool:
        """Whether these are the columns of the shard; remembered, since the same object comes with every put."""
        if schema != self._schema:
            return False
        self._equal = schema
        return True

    def tombstones(self, keys: Any) -> WriteRows:
        """The tombstones of `keys`, which may be none."""
        named = key_batch(keys, self._schema)
        if named.num_rows == 0:
            return WriteRows.of([])
        batch = tombstones(named, self._schema)
        if self._check_rows is not None:
            self._check_rows(self._shard_id, batch)
        return WriteRows.of([batch], tombstones=True)
