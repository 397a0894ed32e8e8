"""Input of writes, fitted to the columns of one shard.

Owns `Fitting`: what `rows.fit` makes of the input of a write becomes the rows of one write to the shard. Invariants:

1. A fitting belongs to one set of columns for good: threads share it, a writer that moves on takes another one.
2. What can be decided once per set of columns is decided once, so that a put only asks what its own rows can answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from lance_memwal.config import WriterConfig
from lance_memwal.rows.fit import Fitter, Missing, fills_missing, keeps_missing, tombstones
from lance_memwal.rows.ingest import key_batch
from lance_memwal.rows.merging import LastWrite, Merge
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.target import ShardTarget
from lance_memwal.write.queue import WriteRows
from lance_memwal.write.sequences import span_of


class Fitting:
    """Makes rows of input, for one shard with one set of columns."""

    __slots__ = ("_fitter", "_limits_rows", "_schema", "_target", "shard_id", "take")

    def __init__(self, target: ShardTarget, config: WriterConfig) -> None:
        self._target = target
        self._schema = target.schema
        self._limits_rows = target.limits_rows
        self._fitter = Fitter(target.schema)
        self.take = self._fitter.take
        self.shard_id = str(config.shard_id)

    @property
    def schema(self) -> TableSchema:
        """The columns."""
        return self._schema

    def fit(self, batches: list[pa.RecordBatch], fill: bool, size_bytes: int | None = None) -> WriteRows:
        """`batches` as those of the table, each checked; the errors name the column. `size_bytes`: of their buffers, if
        known."""
        if len(batches) == 1 and type(batches) is list and not self._limits_rows:
            batch = self._fitter.fit(batches[0], fill)
            return WriteRows.of_one(self._schema, batch, size_bytes if batch is batches[0] else None)
        fitted = self._fitter.fit_all(batches, fill)
        if self._limits_rows:
            self._target.check(self.shard_id, fitted)
        return WriteRows.of(self._schema, fitted)

    def all_live(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch] | None:
        """The rows alone, if `_tombstone` says of none that it is a tombstone; None if it does."""
        apart = [self._fitter.unflagged(batch) for batch in batches]
        return (
            None if any(flags is not None and flags.true_count for _, flags in apart) else [rows for rows, _ in apart]
        )

    def fit_flagged(self, batches: list[pa.RecordBatch], missing: Missing | None) -> WriteRows:
        """As `fit`, of rows of which `_tombstone`, if they have it, says which are tombstones."""
        fill = fills_missing(missing, self._schema)
        fitted = [self._fitter.fit_flagged(batch, fill=fill) for batch in batches]
        self._target.check(self.shard_id, fitted)
        return WriteRows.flagged(self._schema, fitted)

    def fit_flagged_parts(
        self, batches: list[pa.RecordBatch], missing: Missing | None
    ) -> list[tuple[pa.RecordBatch, tuple[str, ...]]]:
        """As `fit_flagged`, each batch with the columns that it leaves out and that are to be kept."""
        if keeps_missing(missing):
            return self._checked([self._fitter.fit_flagged_part(batch) for batch in batches])
        fill = fills_missing(missing, self._schema)
        fitted = [self._fitter.fit_flagged(batch, fill=fill) for batch in batches]
        return self._checked([(batch, ()) for batch in fitted])

    def _checked(
        self, parts: list[tuple[pa.RecordBatch, tuple[str, ...]]]
    ) -> list[tuple[pa.RecordBatch, tuple[str, ...]]]:
        """`parts`; those that leave nothing out may be written here. The others are checked when they are whole."""
        if self._limits_rows:
            self._target.check(self.shard_id, [batch for batch, absent in parts if not absent])
        return parts

    def whole_tombstones(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Tombstones that leave columns out, with nulls there."""
        rows = self._fitter.fit(batch, True, pa.array(np.ones(batch.num_rows, dtype=bool)))
        self._target.check(self.shard_id, [rows])
        return rows

    def fit_parts(
        self, batches: list[pa.RecordBatch], fill: bool | None
    ) -> list[tuple[pa.RecordBatch, tuple[str, ...]]]:
        """As `fit`, each batch with the columns that it leaves out, which are to be kept; with `fill` none is: they are null,
        or refused (False)."""
        if fill is None:
            return self._checked([self._fitter.fit_part(batch) for batch in batches])
        return self._checked([(batch, ()) for batch in self._fitter.fit_all(batches, fill)])

    def check_whole(self, batch: pa.RecordBatch) -> None:
        """Return only if rows that were made whole may be written here: no null where none may be, and of this shard."""
        self._fitter.refuse_nulls(batch)
        if isinstance(self._target.merge, LastWrite):
            span_of([batch], self._target.merge.sequence)
        if self._limits_rows:
            self._target.check(self.shard_id, [batch])

    def tombstone_rows(self, named: pa.RecordBatch, sequence: str | None = None) -> pa.RecordBatch:
        """The rows of the tombstones of the keys `named`, which may have the column `sequence` beside them."""
        batch = tombstones(named, self._schema)
        if sequence is not None:
            at = batch.schema.get_field_index(sequence)
            batch = batch.set_column(at, batch.schema.field(at), named.column(sequence))
        if self._target.check_rows is not None:
            self._target.check_rows(self.shard_id, batch)
        return batch

    @property
    def merge(self) -> Merge | None:
        """What a later write of a key does; None: the last write wins."""
        return self._target.merge

    def tombstones(self, keys: Any) -> WriteRows:
        """The tombstones of `keys`, which may be none."""
        named = key_batch(keys, self._schema)
        rows = [self.tombstone_rows(named)] if named.num_rows else []
        return WriteRows.of(self._schema, rows, tombstones=True)
