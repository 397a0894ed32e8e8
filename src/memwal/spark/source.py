"""The table source: merged, fresh rows of one pinned snapshot, in tasks.

Owns `TableReader`. Partitions are groups of base fragments and one per shard that has rows above the base table.
Invariants:

1. A base task hides every row whose key any fresh tier of the snapshot has, whether or not the newer row matches the
   filter; a shard task decides by key first and filters afterwards.
2. Every batch has exactly the Arrow schema that Spark expects.

Called by: the data source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from memwal.base_table import lance_errors
from memwal.row_filter import RowFilter
from memwal.scan.keys import key_array
from memwal.scan.merge import Merge, Projection
from memwal.scan.snapshot import Snapshot
from memwal.spark.options import Options
from memwal.spark.pin import Pin, rebuild, reported_as_collected
from memwal.spark.types import spark_arrow_schema, struct_type, to_spark_batch

__all__ = ["TableReader"]


@dataclass(frozen=True, slots=True)
class _Part:
    """What one task reads: some base fragments, or the fresh tiers of one shard."""

    fragments: tuple[int, ...] = ()
    shard_id: str | None = None


class _FreshRows(Merge):
    """The tiers above the base table alone."""

    def _base_batches(self) -> Iterator[pa.RecordBatch]:
        return iter(())


class _BaseRows(Merge):
    """Rows of some base fragments that no fresh tier replaced."""

    fragments: Sequence[int] = ()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of the chosen fragments."""
        snapshot, keys = self.snapshot, self.fresh_keys
        names = list(snapshot.schema.primary_key) if keys is not None else []
        columns = list(dict.fromkeys([*self.projection.columns, *names]))
        dataset = snapshot.base.dataset
        with lance_errors("scanning the base table"):
            scanner = dataset.scanner(
                columns=columns,
                filter=None if self.row_filter is None else self.row_filter.source,
                fragments=[f for f in dataset.get_fragments() if f.fragment_id in self.fragments],
                batch_size=self._batch_rows(),
                scan_in_order=False,
            )
            for batch in scanner.to_batches():
                if batch.num_rows and keys is not None:
                    batch = batch.filter(pa.array(~keys.contains(key_array([batch.column(name) for name in names]))))
                if batch.num_rows:
                    yield self._dress(batch, 0)


class TableReader(DataSourceReader):
    """Reads one pinned snapshot."""

    def __init__(self, options: Options, pin: Pin, schema: StructType) -> None:
        self._options = options
        self._pin = pin
        self._schema = schema
        struct_type(pin.schema.columns, schema.names)  # names the column that the table has not
        if options.filter is not None:
            # says what is wrong with it, before a task does, and also where there are no rows
            RowFilter(options.filter, pin.schema.columns).check(pin.schema.columns)

    def partitions(self) -> list[InputPartition]:
        """Groups of base fragments of about `rowsPerPartition` rows, and the shards that have something newer."""
        snapshot = rebuild(self._options, self._pin)
        parts = [_Part(fragments=group) for group in self._fragment_groups(snapshot)]
        parts += [_Part(shard_id=view.shard_id) for view in snapshot.shards if view.memory or view.sstables]
        return [InputPartition(part) for part in parts]

    def _fragment_groups(self, snapshot: Snapshot) -> list[tuple[int, ...]]:
        groups: list[tuple[int, ...]] = []
        group: list[int] = []
        rows = 0
        for fragment in snapshot.base.dataset.get_fragments():
            group.append(fragment.fragment_id)
            rows += fragment.metadata.physical_rows or 0
            if rows >= self._options.rows_per_partition:
                groups.append(tuple(group))
                group, rows = [], 0
        return [*groups, tuple(group)] if group else groups

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        part: _Part | None = partition.value
        if part is None:  # Spark's own partition for a table without any
            return
        wanted = spark_arrow_schema(self._schema)
        with reported_as_collected():
            for batch in self._merge(part).batches():
                yield to_spark_batch(batch, wanted)

    def _merge(self, part: _Part) -> Merge:
        snapshot = rebuild(self._options, self._pin)
        projection = Projection(tuple(self._schema.names))
        row_filter = None
        if self._options.filter is not None:
            row_filter = RowFilter(self._options.filter, snapshot.schema.columns)
        if part.shard_id is not None:
            views = tuple(view for view in snapshot.shards if view.shard_id == part.shard_id)
            return _FreshRows(replace(snapshot, shards=views), projection, row_filter)
        base = _BaseRows(snapshot, projection, row_filter)
        base.fragments = part.fragments
        return base
