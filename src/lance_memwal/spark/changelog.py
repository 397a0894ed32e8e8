"""What changed between two moments, as rows of a batch: SQL's CHANGES, and `format("memwal_changes")` with `changesFrom`.

Owns `ChangelogReader`, its columns and its ends. Invariants:

1. Both ends are cursors before the first task runs: a plan that is read twice gives the same rows.
2. A row of a key that was there comes twice, as it was (`update_preimage`) and as it is (`update_postimage`); one of a new key
   is an `insert`, one that is gone a `delete` with all its columns. Without a key every row is an `insert`.
3. `_commit_version` is the position in the log of `_shard`: it orders the changes of a key, and nothing else.
4. One task per shard that changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.feed.changed_rows import Shape
from lance_memwal.feed.cursor import Cursor
from lance_memwal.feed.starts import Shards, cursor_of
from lance_memwal.spark.options import Options
from lance_memwal.spark.types import spark_arrow_schema, struct_type, to_spark_batch
from lance_memwal.table import Table, newest_base, open_table

_ADDED = st.StructType(
    [
        st.StructField("_change_type", st.StringType(), nullable=False),
        st.StructField("_commit_version", st.LongType(), nullable=False),
        st.StructField("_commit_timestamp", st.TimestampType()),
        st.StructField("_shard", st.StringType()),
    ]
)
CHANGELOG_COLUMNS: list[str] = _ADDED.names
_FROM_FEED = {"_change_type": "_op", "_commit_version": "_position", "_commit_timestamp": "_time", "_shard": "_shard"}
_TYPES = {
    "insert": "insert",
    "u": "insert",  # of a table without a key
    "update_before": "update_preimage",
    "update_after": "update_postimage",
    "delete": "delete",
}


def changelog_schema(table: pa.Schema, columns: Sequence[str] | None = None) -> st.StructType:
    """The table's columns, and what Spark wants to know of a change."""
    return st.StructType([*struct_type(table, columns), *_ADDED])


def changelog_ends(table: Table, start: str, until: str | None) -> tuple[Cursor, Cursor]:
    """The cursors between which the changes lie; without an end, up to now."""
    base = newest_base(table)
    shards = Shards(base, Shape(base.columns, table.primary_key or None, None), SYSTEM_CLOCK)
    end = cursor_of("until", "now" if until is None else until, shards)
    return cursor_of("start", start, shards), end


class ChangelogReader(DataSourceReader):
    """Reads the changes between the options `changesFrom` and `changesTo`."""

    def __init__(self, options: Options, schema: st.StructType) -> None:
        self._options = options
        self._schema = schema
        start, end = changelog_ends(self._table(), str(options.changes_from), options.changes_to)
        self._start, self._end = str(start), str(end)

    def _table(self) -> Table:
        return open_table(self._options.path, storage_options=self._options.storage_options)

    def partitions(self) -> list[InputPartition]:
        """The shards that changed."""
        start, end = Cursor.parse(self._start), Cursor.parse(self._end)
        return [InputPartition(shard_id) for shard_id, place in end.shards.items() if start.place(shard_id) < place]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one shard, in order."""
        if partition.value is None:  # Spark makes a partition where there is none
            return
        end = Cursor.parse(self._end)
        end = Cursor(end.table, {partition.value: end.place(partition.value)})
        table, wanted = self._table(), spark_arrow_schema(self._schema)
        columns = [name for name in self._schema.names if name not in _FROM_FEED]
        feed = table.changes(start=self._start, until=end, columns=columns, before=bool(table.primary_key))
        for batch in feed:
            yield to_spark_batch(_renamed(batch, self._schema.names), wanted)


def _renamed(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """A batch of the feed, in the columns and words of a changelog."""
    words = pa.array(_TYPES.values()).take(pc.index_in(batch.column("_op"), pa.array(_TYPES)))
    arrays = [words if name == "_change_type" else batch.column(_FROM_FEED.get(name, name)) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=list(names))
