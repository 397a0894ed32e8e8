"""The change feed: the entries of all logs of a table as a stream of rows.

Owns `ChangeFeed`. A row comes with `_op` ('u' for an upsert or append, 'd' for a delete), `_shard` and `_position`. An
offset names, per shard, the next position to read. Invariants:

1. Rows of one shard come in the order of their positions; a range between two offsets is always the same rows.
2. The end of a log is decided by the rule of every reader: nothing above it in a listing, and a cursor that stands still.
3. A shard that appears later is read from its first position on.
4. Positions that collection removed before they were read are a `CollectedError`; with `failOnDataLoss=false` the feed
   goes on where the log begins, and says so in the log.

A blob column shows what a scan shows of fresh rows: the size, not the bytes.

Rows that were published as a generation without a WAL entry (bulk writes above `maxEntryBytes`) are not in the feed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from lance_memwal.errors import CollectedError, InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.shards import list_shards
from lance_memwal.log.wal import WalTailer
from lance_memwal.rows.adapt import RowAdapter
from lance_memwal.rows.blobs import shown_batch
from lance_memwal.spark.options import Options
from lance_memwal.spark.types import spark_arrow_schema, struct_type, to_spark_batch
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve

__all__ = ["ChangeFeed", "feed_schema"]

_LOG = logging.getLogger(__name__)
_EXTRA = (("_op", st.StringType()), ("_shard", st.StringType()), ("_position", st.LongType()))

Positions = dict[str, int]
Offset = dict[str, dict[str, int]]


def feed_schema(table: pa.Schema, columns: Sequence[str] | None = None) -> st.StructType:
    """The columns of the feed: the table's (nullable, since a delete has only its key), and where each row comes from."""
    plain = struct_type(table, columns)
    fields = [st.StructField(field.name, field.dataType, True) for field in plain]
    return st.StructType([*fields, *(st.StructField(name, kind, False) for name, kind in _EXTRA)])


@dataclass(frozen=True, slots=True)
class _Span:
    """The positions `[start, end)` of one shard."""

    shard_id: str
    start: int
    end: int


class ChangeFeed(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the logs of a table as they grow; writes nothing and fences nobody."""

    def __init__(self, options: Options, schema: st.StructType) -> None:
        self._options = options
        self._schema = schema
        self._stop_at: Positions | None = None
        if options.filter is not None:
            raise InvalidInputError("the change feed takes no option 'filter': use .where on the stream")

    def _location(self) -> Location:
        return resolve(self._options.path, self._options.storage_options)

    # ------------------------------------------------------------------------------------------------------ offsets

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a new query begins: at the earliest entry that is there, or after the newest."""
        location = self._location()
        latest = self._options.starting_position == "latest"
        tailers = {shard_id: WalTailer(location, shard_id) for shard_id in list_shards(location)}
        return {"shards": {s: t.next_position() if latest else t.first_position() for s, t in tailers.items()}}

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """How far the logs go now; Spark shows it beside the offset of the query, so that the lag can be seen."""
        return {"shards": self._tips()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to what is there now, in as many micro-batches as the limits ask for."""
        self._stop_at = self._tips()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limits of the options; Spark hands them back to `latestOffset`."""
        given = self._limits()
        return ReadAllAvailable() if given == (None, None, None) else ReadMaxFiles(given[0] or (1 << 62))

    def _limits(self) -> tuple[int | None, int | None, int | None]:
        options = self._options
        return options.max_entries_per_trigger, options.max_rows_per_trigger, options.max_bytes_per_trigger

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """How far the next micro-batch goes: all that is there, or as much as the limits allow."""
        begin = dict(start["shards"])
        tips = self._stop_at if self._stop_at is not None else self._tips()
        ends = {shard_id: max(tip, begin.get(shard_id, 0)) for shard_id, tip in tips.items()}
        ends = {**begin, **ends}
        if not isinstance(limit, ReadAllAvailable) and any(value is not None for value in self._limits()):
            ends = self._admit(begin, ends)
        return {"shards": ends}

    def _tips(self) -> Positions:
        location = self._location()
        return {shard_id: WalTailer(location, shard_id).next_position() for shard_id in list_shards(location)}

    def _admit(self, begin: Positions, ends: Positions) -> Positions:
        """Entries in turn from every shard until a limit is reached; at least one, or the feed would stand still."""
        entries, rows, size = (float("inf") if value is None else value for value in self._limits())
        count_rows = self._options.max_rows_per_trigger is not None
        location = self._location()
        reached = {shard_id: begin.get(shard_id, 1) for shard_id in ends}
        admitted = False
        while waiting := [s for s in sorted(ends) if reached[s] < ends[s]]:
            for shard_id in waiting:
                used_rows, used_bytes = self._cost(location, shard_id, reached[shard_id], count_rows=count_rows)
                if admitted and (entries < 1 or rows < used_rows or size < used_bytes):
                    return {s: p for s, p in reached.items() if s in begin or p > 1}
                entries, rows, size = entries - 1, rows - used_rows, size - used_bytes
                reached[shard_id] += 1
                admitted = True
        return reached

    def _cost(self, location: Location, shard_id: str, position: int, *, count_rows: bool) -> tuple[int, int]:
        """Rows (only where they are limited) and bytes of one entry."""
        if count_rows:
            try:
                entry = WalTailer(location, shard_id).read_entry(position)
            except CollectedError:
                return 0, 0
            return (0, 0) if entry is None else (entry.num_rows, entry.size_bytes)
        try:
            return 0, location.store.head(paths.wal_entry_path(shard_id, position)).size_bytes
        except LookupError:
            return 0, 0

    # ------------------------------------------------------------------------------------------------------ reading

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """One task per shard that has something between the offsets."""
        begin = start["shards"]
        spans = [_Span(s, begin.get(s, 1), stop) for s, stop in sorted(end["shards"].items())]
        return [InputPartition(span) for span in spans if span.start < span.end]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one shard between two positions, in order."""
        span: _Span = partition.value
        location = self._location()
        columns = BaseTable.need(location).columns
        adapter, shown = RowAdapter(columns), columns.shown.nullable
        wanted = spark_arrow_schema(self._schema)
        tailer = WalTailer(location, span.shard_id)
        position = span.start
        while position < span.end:
            try:
                entry = tailer.read_entry(position)
            except CollectedError as error:
                position = self._skip_collected(tailer, position, error)
                continue
            if entry is None:
                raise InvalidInputError(f"the log of shard {span.shard_id} ends before position {position}")
            for batch in entry.batches:
                rows, flags = adapter.adapt(batch, position=position)
                rows = shown_batch(rows, shown) if columns.blobs else rows
                yield _dressed(rows, flags, span.shard_id, position, wanted)
            position += 1

    def _skip_collected(self, tailer: WalTailer, position: int, error: CollectedError) -> int:
        if self._options.fail_on_data_loss:
            raise CollectedError(
                f"entries from position {position} of shard {tailer.shard_id} were collected before this query read "
                "them; start a new query (a new checkpoint), or set failOnDataLoss=false to go on without them"
            ) from error
        first = max(tailer.first_position(), position + 1)
        _LOG.warning("feed lost entries [shard=%s, from=%d, to=%d]", tailer.shard_id, position, first)
        return first

    def commit(self, end: Offset) -> None:
        """Nothing to do: the logs are collected by their own rules."""

    def stop(self) -> None:
        """Nothing to free."""


def _dressed(
    rows: pa.RecordBatch, flags: pa.Array | None, shard_id: str, position: int, wanted: pa.Schema
) -> pa.RecordBatch:
    count = rows.num_rows
    ops = pa.repeat("u", count) if flags is None else pc.if_else(flags, "d", "u")
    extra = {"_op": ops, "_shard": pa.repeat(shard_id, count), "_position": pa.repeat(position, count)}
    for name, column in extra.items():
        rows = rows.append_column(name, column)
    return to_spark_batch(rows, wanted)
