"""The table source: merged, fresh rows of one pinned snapshot, in tasks.

Owns `TableReader`. Partitions are groups of base fragments, and groups of shards that have rows above the base table; a
task costs Spark as much as reading some hundred thousand rows, so that few fresh rows are read beside base rows.
Invariants:

1. A base task hides every row whose key any fresh tier of the snapshot has, whether or not the newer row matches the
   filter; a shard task decides by key first and filters afterwards.
2. Every batch has exactly the Arrow schema that Spark expects.
3. A task of a count gives one row, the number of its rows; with a limit it gives no more rows than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lance_memwal.read.merge import Merge, Projection
from lance_memwal.read.tiers import ShardView, missing_is_collected
from lance_memwal.rows.filter import as_filter
from lance_memwal.spark.options import Options
from lance_memwal.spark.pin import Pin, rebuild
from lance_memwal.spark.types import spark_arrow_schema, struct_type, to_spark_batch

__all__ = ["TableReader", "fresh_rows"]

T = TypeVar("T")
_SLACK = 1.25  # a part may be so much larger if that saves a task


@dataclass(frozen=True, slots=True)
class _Part:
    """What one task reads: some base fragments, and the fresh tiers of some shards."""

    fragments: tuple[int, ...] = ()
    shards: tuple[str, ...] = ()


class TableReader(DataSourceReader):
    """Reads one pinned snapshot."""

    def __init__(self, options: Options, pin: Pin, schema: StructType) -> None:
        self._options = options
        self._pin = pin
        self._schema = schema
        if not options.count:
            struct_type(pin.schema.columns, schema.names)  # names the column that the table has not
        as_filter(options.filter, pin.schema.columns)  # a wrong one is refused before a task meets it, or no row

    def partitions(self) -> list[InputPartition]:
        """Parts of about `rowsPerPartition` rows."""
        snapshot, limit = rebuild(self._options, self._pin), self._options.rows_per_partition
        fragments = _grouped(
            ((f.fragment_id, f.metadata.physical_rows or 0) for f in snapshot.base.dataset.get_fragments()), limit
        )
        shards = _grouped(((view.shard_id, fresh_rows(view)) for view in snapshot.shards if _is_fresh(view)), limit)
        parts = [_Part(fragments=group) for group, _ in fragments]
        if fragments and shards and fragments[-1][1] + shards[0][1] <= limit * _SLACK:
            parts[-1] = replace(parts[-1], shards=shards.pop(0)[0])
        parts += [_Part(shards=group) for group, _ in shards]
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        part: _Part = partition.value or _Part()  # Spark makes a partition for a table without any
        wanted = spark_arrow_schema(self._schema)
        with missing_is_collected("load again"):
            if self._options.count:
                yield pa.RecordBatch.from_arrays([pa.array([self._count(part)], pa.int64())], schema=wanted)
                return
            for batch in _first(self._batches(part, tuple(self._schema.names)), self._options.limit):
                yield to_spark_batch(batch, wanted)

    def _count(self, part: _Part) -> int:
        schema = self._pin.schema
        columns = tuple(schema.primary_key) or tuple(schema.columns.names[:1])
        return sum(int(batch.num_rows) for batch in self._batches(part, columns))

    def _batches(self, part: _Part, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        if not (part.fragments or part.shards):
            return
        snapshot = rebuild(self._options, self._pin)
        projection = Projection(columns)
        row_filter = as_filter(self._options.filter, snapshot.schema.columns)
        if part.fragments:
            yield from Merge(snapshot, projection, row_filter).base_batches(part.fragments)
        if part.shards:
            views = tuple(view for view in snapshot.shards if view.shard_id in part.shards)
            yield from Merge(replace(snapshot, shards=views), projection, row_filter).fresh_batches()


def _is_fresh(view: ShardView) -> bool:
    return bool(view.memory or view.sstables)


def fresh_rows(view: ShardView) -> int:
    """The rows of a shard above the base table, superseded ones and tombstones included."""
    listed = sum(sstable.physical_rows or 0 for sstable in view.sstables)
    return listed + sum(ref.num_rows for ref in view.memory)


def _first(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The first `limit` rows, or all."""
    left = limit
    for batch in batches:
        yield batch if left is None else batch.slice(0, left)
        if left is not None:
            left -= batch.num_rows
            if left <= 0:
                return


def _grouped(items: Iterable[tuple[T, int]], limit: int) -> list[tuple[tuple[T, ...], int]]:
    """The items in groups that reach `limit` rows, in order, and the rows of each group."""
    groups: list[tuple[tuple[T, ...], int]] = []
    group: list[T] = []
    total = 0
    for item, rows in items:
        group.append(item)
        total += rows
        if total >= limit:
            groups.append((tuple(group), total))
            group, total = [], 0
    return [*groups, (tuple(group), total)] if group else groups
