"""The change feed of a table as a stream of Spark: `lance_memwal.feed`, cut into micro-batches and tasks.

Owns `ChangeFeed`. A row comes with `_op` ('u' for a row that was put, 'd' for one that was deleted), `_shard`, `_position`,
`_time` and `_txn`. An offset names the table (its tag) and, per shard, the next position to read; the first one of a query that
begins with a snapshot also names that. Invariants:

1. Rows of one shard come in the order of their positions; a range between two offsets is always the same rows. What they
   are, bulk writes included, is `lance_memwal.feed.shard_changes`'s to say, and where the log ends, too.
2. A query begins with all live rows, in one micro-batch, and goes on with what changed after them; no row is missing between
   the two, and none comes twice.
3. A shard that appears later is read from its first position on.
4. Positions that collection removed before they were read are a `CollectedError`; with `failOnDataLoss=false` the feed
   goes on where the log begins, and says so in the log. With the option `consumer` collection waits for the query, from
   before its first micro-batch on: one that collection may have passed already begins again, or is told so at once.
5. A query never goes on in another table that was made at the place of its own: `TableReplacedError`.

A blob column shows what a scan shows of fresh rows: the size, not the bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import CollectedError, InvalidInputError, TableReplacedError
from lance_memwal.feed.changed_rows import EXTRA, ChangedRows, Shape
from lance_memwal.feed.consumers import DEFAULT_MAX_AGE, ConsumerPlace, Standing
from lance_memwal.feed.cursor import Cursor, Place
from lance_memwal.feed.shard_changes import ShardChanges
from lance_memwal.feed.starts import Shards, cursor_of
from lance_memwal.feed.states import state_now
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.read.outline import Hiding
from lance_memwal.read.rebuilt import base_of
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.spark.offsets import Offset, checked_offset, cursor_of_offset, offset_of
from lance_memwal.spark.options import Options
from lance_memwal.spark.pin import Pin, outline_of
from lance_memwal.spark.source import Part, PartReader, TableReader
from lance_memwal.spark.types import spark_arrow_schema, struct_type, to_spark_batch
from lance_memwal.store.location import Location, resolve

__all__ = ["ChangeFeed", "feed_schema"]

_LOG = logging.getLogger(__name__)
_EXTRA = pa.schema(EXTRA).names
_SNAPSHOT_KEY_BYTES = 256 << 10
"""Keys that go into every part: a stream has nothing that goes to all tasks of one batch."""

Positions = dict[str, int]


def feed_schema(table: pa.Schema, columns: Sequence[str] | None = None) -> st.StructType:
    """The columns of the feed: the table's (nullable, since a delete has only its key), and where each row comes from."""
    plain = struct_type(table, columns)
    fields = [st.StructField(field.name, field.dataType, True) for field in plain]
    return st.StructType([*fields, *struct_type(pa.schema(EXTRA))])


@dataclass(frozen=True, slots=True)
class _Span:
    """The positions `[start, end)` of one shard of the table with this tag."""

    shard_id: str
    start: int
    end: int
    table: str | None = None


@dataclass(frozen=True, slots=True)
class _SnapshotPart:
    """A part of the snapshot with which a query begins."""

    snapshot: str
    part: Part
    hiding: Hiding


class ChangeFeed(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes of a table as they come; writes nothing but its place as a consumer, and fences no writer."""

    def __init__(self, options: Options, schema: st.StructType) -> None:
        self._options = options
        self._schema = schema
        self._stop_at: Positions | None = None
        self._place: ConsumerPlace | None = None
        if options.filter is not None:
            raise InvalidInputError("the change feed takes no option 'filter': use .where on the stream")

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_place": None}  # tasks read, and move nothing

    def _location(self) -> Location:
        return resolve(self._options.path, self._options.storage_options)

    def _base(self) -> BaseTable:
        return BaseTable.need(self._location())

    def _columns(self) -> list[str]:
        return [name for name in self._schema.names if name not in _EXTRA]

    def _shards(self) -> Shards:
        base = self._base()
        return Shards(base, Shape(base.columns, self._columns(), None), SYSTEM_CLOCK)

    # ------------------------------------------------------------------------------------------------------ offsets

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a new query begins: with a snapshot, at the earliest entry that is there, or after the newest."""
        consumer = self._consumer()
        known = None if consumer is None else consumer.find()
        if known is not None:
            return self._checked(offset_of(Cursor.parse(known.cursor)))
        if consumer is None:
            return offset_of(self._start())
        consumer.claim(_standing(self._start()), None)
        consumer.begin(lambda: _standing(self._start()))
        return offset_of(Cursor.parse(consumer.record.cursor))

    def _start(self) -> Cursor:
        """Where a new query would begin now."""
        if self._options.starting_position != "snapshot":
            return cursor_of("start", self._options.starting_position, self._shards())
        base = self._base()
        state = state_now(NewestBase(base), base, SYSTEM_CLOCK)
        return Cursor(base.tag, state.places, str(state.snapshot))

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """How far the logs go now; Spark shows it beside the offset of the query, so that the lag can be seen."""
        return {"shards": self._tips(), "table": self._base().tag}

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
        """How far the next micro-batch goes: the snapshot, all that is there, or as much as the limits allow."""
        table = {"table": self._check_table(checked_offset(start).get("table")).tag}
        self._claim(start)
        begin = dict(start["shards"])
        if "snapshot" in start:
            return {"shards": begin, **table}
        tips = self._stop_at if self._stop_at is not None else self._tips()
        ends = {shard_id: max(tip, begin.get(shard_id, 0)) for shard_id, tip in tips.items()}
        ends = {**begin, **ends}
        if not isinstance(limit, ReadAllAvailable) and any(value is not None for value in self._limits()):
            ends = self._admit(begin, ends)
        return {"shards": ends, **table}

    def _checked(self, offset: Offset) -> Offset:
        """An offset of this table; `TableReplacedError` if it is of another one that was here."""
        self._check_table(checked_offset(offset).get("table"))
        return offset

    def _check_table(self, tag: str | None) -> BaseTable:
        base = self._base()
        if tag is not None and tag != base.tag:
            raise TableReplacedError(
                f"the table at {self._location().describe()} is another one than the one that this query read: it was made "
                "anew. Start a new query, with a new checkpoint"
            )
        return base

    def _tips(self) -> Positions:
        return {shard.shard_id: shard.latest().position + 1 for shard in self._shards().find()}

    def _admit(self, begin: Positions, ends: Positions) -> Positions:
        """Entries in turn from every shard until a limit is reached; at least one, or the feed would stand still."""
        entries, rows, size = (float("inf") if value is None else value for value in self._limits())
        count_rows = self._options.max_rows_per_trigger is not None
        shards = self._shards()
        reached = {shard_id: begin.get(shard_id, 1) for shard_id in ends}
        admitted = False
        while waiting := [s for s in sorted(ends) if reached[s] < ends[s]]:
            for shard_id in waiting:
                used_rows, used_bytes = _cost(shards.of(shard_id), reached[shard_id], count_rows=count_rows)
                if admitted and (entries < 1 or rows < used_rows or size < used_bytes):
                    return {s: p for s, p in reached.items() if s in begin or p > 1}
                entries, rows, size = entries - 1, rows - used_rows, size - used_bytes
                reached[shard_id] += 1
                admitted = True
        return reached

    # ------------------------------------------------------------------------------------------------------ reading

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """One task per shard that has something between the offsets; those of the snapshot, if the query begins there."""
        begin, table = self._checked(start)["shards"], checked_offset(end).get("table")
        spans = [_Span(s, begin.get(s, 1), stop, table) for s, stop in sorted(end["shards"].items())]
        found = [InputPartition(span) for span in spans if span.start < span.end]
        if "snapshot" in start and "snapshot" not in end:
            text = start["snapshot"]
            found = [*self._snapshot_parts(text), *found]
        return found

    def _snapshot_parts(self, text: str) -> list[InputPartition]:
        pin = self._pin(text)
        outline = outline_of(self._options, pin, most_key_bytes=_SNAPSHOT_KEY_BYTES)
        parts = TableReader(self._options, pin, self._plain_schema(), outline).partitions()
        return [InputPartition(_SnapshotPart(text, part.value, outline.hiding)) for part in parts]

    def _pin(self, text: str) -> Pin:
        snapshot = Snapshot.parse(text)
        return Pin(snapshot, base_of(self._location(), snapshot).columns.shown)

    def _plain_schema(self) -> st.StructType:
        return st.StructType([field for field in self._schema if field.name not in _EXTRA])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, in order."""
        wanted = spark_arrow_schema(self._schema)
        if isinstance(partition.value, _SnapshotPart):
            yield from self._rows_of(partition.value, wanted)
            return
        base = self._check_table(partition.value.table)
        shape = Shape(base.columns, self._columns(), None)
        shard = ShardChanges(base, partition.value.shard_id, shape.stored)
        for changes in self._changes(shard, partition.value):
            yield to_spark_batch(shape.plain(changes), wanted)

    def _rows_of(self, part: _SnapshotPart, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        reader = PartReader(self._options, self._pin(part.snapshot), self._plain_schema(), part.hiding)
        for batch in reader.read(part.part):
            count = batch.num_rows
            known = {"_op": pa.repeat("u", count), "_position": pa.array(np.zeros(count, dtype=np.int64))}
            extra = [known.get(name, pa.nulls(count, wanted.field(name).type)) for name in _EXTRA]
            yield pa.RecordBatch.from_arrays([*batch.columns, *extra], schema=wanted)

    def _changes(self, shard: ShardChanges, span: _Span) -> Iterator[ChangedRows]:
        """The changes of a span; those that collection took are an error, or left out as the options say."""
        place, until = Place(span.start - 1), Place(span.end - 1)
        while place < until:
            try:
                chunk = shard.take(place, until)
                if chunk is None and not shard.look(place):
                    raise InvalidInputError(f"the log of shard {span.shard_id} ends before position {until.position}")
            except CollectedError as error:
                place = self._after_collected(shard, place, error)
                continue
            if chunk is not None:
                place = chunk.place
                if chunk.changes is not None:
                    yield chunk.changes

    def _after_collected(self, shard: ShardChanges, place: Place, error: CollectedError) -> Place:
        if self._options.fail_on_data_loss:
            raise CollectedError(
                f"{error}. This query cannot read them any more: start a new one (a new checkpoint), or set "
                "failOnDataLoss=false to go on without them; the option 'consumer' prevents it"
            ) from error
        following = max(shard.lowest(), Place(place.position + 1))
        _LOG.warning("feed lost entries [shard=%s, from=%d, to=%d]", shard.shard_id, place.position, following.position)
        return following

    # ---------------------------------------------------------------------------------------------------- its consumer

    def _consumer(self) -> ConsumerPlace | None:
        """The place that the option `consumer` names; one per query."""
        if self._place is None and self._options.consumer is not None:
            self._place = ConsumerPlace(self._base(), self._options.consumer, DEFAULT_MAX_AGE)
        return self._place

    def _claim(self, start: Offset) -> None:
        """Let collection wait for this query, which goes on from `start`: its checkpoint knows it best."""
        consumer = self._consumer()
        if consumer is not None and not consumer.is_claimed:
            standing = _standing(cursor_of_offset(self._base().tag, start))
            consumer.claim(standing, consumer.find())
            if consumer.record.begins:
                self._begin_at(standing, consumer)
        elif consumer is not None:
            consumer.look()

    def _begin_at(self, standing: Standing, consumer: ConsumerPlace) -> None:
        """Be a consumer from an offset on that Spark remembers: what may be gone of it is lost, if that is allowed."""

        def without_what_is_lost() -> Standing:
            if self._options.fail_on_data_loss:
                return standing
            left = {shard.shard_id: shard.earliest().position for shard in self._shards().find()}
            return replace(standing, shards={s: max(p, standing.shards.get(s, 0)) for s, p in left.items()})

        try:
            consumer.begin(without_what_is_lost)
        except CollectedError as error:
            raise CollectedError(
                f"{error}. Start a new query (a new checkpoint), or set failOnDataLoss=false to go on without what is gone"
            ) from error

    def commit(self, end: Offset) -> None:
        """Everything up to `end` was handed on: collection need not keep it for this query."""
        consumer = self._consumer()
        if consumer is not None and consumer.is_claimed:
            standing, record = _standing(cursor_of_offset(self._base().tag, end)), consumer.record
            kept = {s: max(position, record.position(s)) for s, position in standing.shards.items()}  # it never falls
            consumer.move(replace(standing, shards=kept))

    def stop(self) -> None:
        """Nothing to free."""


def _standing(cursor: Cursor) -> Standing:
    snapshot = None if cursor.snapshot is None else Snapshot.parse(cursor.snapshot)
    return Standing(cursor, snapshot, cursor.positions)


def _cost(shard: ShardChanges, position: int, *, count_rows: bool) -> tuple[int, int]:
    """Rows (only where they are limited) and bytes of one entry."""
    try:
        return shard.cost(position, count_rows=count_rows)
    except CollectedError:
        return 0, 0
