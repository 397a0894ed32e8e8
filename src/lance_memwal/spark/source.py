"""The table source: merged, fresh rows of one pinned snapshot, in tasks.

Owns `TableReader` and `PartReader`. Partitions are groups of base fragments, and groups of shards that have rows above the base
table; a task costs Spark as much as reading some hundred thousand rows, so that few fresh rows are read beside base rows.
Invariants:

1. A base task hides every row whose key any fresh tier of the snapshot has, whether or not the newer row matches the
   filter; a shard task decides by key first and filters afterwards.
2. Every batch has exactly the Arrow schema that Spark expects.
3. A task of a count gives one row, the number of its rows; with a limit it gives no more rows than that.
4. The driver looks at the snapshot once. What every task needs goes to all of them at once (Spark broadcasts the reader); a
   partition names what is read for it and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lance_memwal.read.merge import Merge, Projection
from lance_memwal.read.outline import FreshShard, Hiding, Outline
from lance_memwal.read.snapshot import SnapshotShard
from lance_memwal.read.tiers import missing_is_collected
from lance_memwal.rows.filter import as_filter
from lance_memwal.spark.options import Options
from lance_memwal.spark.pin import Pin, base_of_pin, outline_of, shards_of_pin
from lance_memwal.spark.types import spark_arrow_schema, struct_type, to_spark_batch

T = TypeVar("T")
_PART_BYTES = 64 << 20  # of logs and SSTables above the base table, which a task may hold
_PART_REQUESTS = 500  # for shards: on an object store they take some seconds
_SHARD_REQUESTS = 3  # its manifest, its floor, something of its SSTables; and each entry of its tail
_SLACK = 1.25  # a part may be so much larger if that saves a task


@dataclass(frozen=True, slots=True)
class Part:
    """What one task reads: some base fragments, and the fresh tiers of some shards."""

    fragments: tuple[int, ...] = ()
    shards: tuple[SnapshotShard, ...] = ()


@dataclass(frozen=True, slots=True)
class PartReader:
    """Reads parts of one pinned snapshot, in any process."""

    options: Options
    pin: Pin
    schema: StructType
    hiding: Hiding

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """The rows of one part, as Spark wants them."""
        wanted = spark_arrow_schema(self.schema)
        with missing_is_collected("load again"):
            if self.options.count:
                yield pa.RecordBatch.from_arrays([pa.array([self.count(part)], pa.int64())], schema=wanted)
                return
            for batch in _first(self._batches(part, tuple(self.schema.names)), self.options.limit):
                yield to_spark_batch(batch, wanted)

    def count(self, part: Part) -> int:
        """The number of rows of one part."""
        schema = self.pin.schema
        columns = tuple(schema.primary_key) or tuple(schema.columns.names[:1])
        return sum(int(batch.num_rows) for batch in self._batches(part, columns))

    def _batches(self, part: Part, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        projection = Projection(columns)
        row_filter = as_filter(self.options.filter, self.pin.schema.columns)
        if part.fragments:
            tiers, hiding = base_of_pin(self.options, self.pin, self.hiding)
            yield from Merge(tiers, projection, row_filter, hiding=hiding).base_batches(part.fragments)
        if part.shards:
            tiers = shards_of_pin(self.options, self.pin, part.shards)
            yield from Merge(tiers, projection, row_filter).fresh_batches()


class TableReader(DataSourceReader):
    """Reads one pinned snapshot. `parts` is what tasks do, `outline` what the driver knows; tasks have none."""

    def __init__(self, options: Options, pin: Pin, schema: StructType, outline: Outline | None = None) -> None:
        """`outline` is that of the pin, if the caller has it."""
        if not options.count:
            struct_type(pin.schema.columns, schema.names)  # names the column that the table has not
        as_filter(options.filter, pin.schema.columns)  # a wrong one is refused before a task meets it, or no row
        self.outline = outline_of(options, pin) if outline is None else outline
        self.parts = PartReader(options, pin, schema, self.outline.hiding)

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self.parts}  # tasks are told what is theirs

    def partitions(self) -> list[InputPartition]:
        """Parts of about `rowsPerPartition` rows."""
        return [InputPartition(part) for part in _parts_of(self.outline, self.parts.options.rows_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        return self.parts.read(partition.value or Part())  # Spark makes a partition for a table without any


def _parts_of(outline: Outline, limit: int) -> list[Part]:
    """The parts of a snapshot, of about `limit` rows each."""
    fragments = _grouped(outline.fragments, limit)
    shards = _grouped(((fresh.shard, _weight(fresh, limit)) for fresh in outline.fresh), limit)
    parts = [Part(fragments=group) for group, _ in fragments]
    if fragments and shards and fragments[-1][1] + shards[0][1] <= limit * _SLACK:
        parts[-1] = replace(parts[-1], shards=shards.pop(0)[0])
    return parts + [Part(shards=group) for group, _ in shards]


def _weight(fresh: FreshShard, limit: int) -> int:
    """A shard in rows of a part: by its rows, its bytes (a task holds its tails) or its requests, whatever is most."""
    requests = fresh.shard.tip - fresh.shard.cursor + _SHARD_REQUESTS
    return max(fresh.rows, fresh.size_bytes * limit // _PART_BYTES, requests * limit // _PART_REQUESTS)


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
