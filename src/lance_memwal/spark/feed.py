"""The change feed of a table as a Spark stream, read in micro-batches and tasks; its offsets.

Entry point: `ChangeFeed`. Rows have the extra columns `_op` ('u' for a put row, 'd' for a deleted one), `_shard`, `_position`,
`_time` and `_txn`. A blob column holds what a scan returns for fresh rows: the size, not the bytes. Spark stores offsets as JSON
in the checkpoint of a query: `shards` holds the next position to read per shard, `table` the tag of the table. Invariants:

1. Rows of one shard are in the order of their positions. The same two offsets always give the same rows, also in the first
   micro-batch. `lance_memwal.feed.shard_changes` decides which rows an entry has, bulk writes included, and where a log ends.
2. A query that starts with a snapshot reads all live rows in one micro-batch, then the changes after them, each exactly once.
3. A shard that appears later is read from its first position.
4. Entries that GC deleted before they were read raise `CollectedError`. With `failOnDataLoss=false` the feed logs the loss and
   continues after them. With the option `consumer` GC keeps what the query has not read, also before its first micro-batch.
5. A query never continues in a re-created table: `TableReplacedError`.
6. The initial offset of a query has the cursor from which the query starts as `initial`. The end of the first micro-batch has
   that cursor as `began_at`. Spark stores only this end, so a restarted query reads the batch from `began_at`, and not from a
   new initial offset. An offset of a checkpoint is checked before it is used.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
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
from lance_memwal.feed.time_travel import state_now
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.read.outline import Hiding
from lance_memwal.read.rebuilt import base_of
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.spark.options import Options
from lance_memwal.spark.pin import Pin, outline_of
from lance_memwal.spark.source import Part, PartReader, TableReader
from lance_memwal.spark.types import spark_arrow_schema, struct_type, to_spark_batch
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.sequenced import is_count
from lance_memwal.types import is_shard_id

Offset = dict[str, Any]
_LAST = 1 << 63


def offset_of(cursor: Cursor) -> Offset:
    """The initial offset of a query that starts from a cursor; `InvalidInputError` if the cursor is inside of a batch."""
    if cursor.rows or any(place.rows for place in cursor.shards.values()):
        what = "its first snapshot" if cursor.rows else "a large write"
        raise InvalidInputError(
            f"the consumer of this query is inside of {what}, where a Spark query cannot continue; read and commit with "
            "table.consumers.open up to the end of it, give the query another consumer, or drop this one with consumers.drop"
        )
    shards = {shard_id: place.position + 1 for shard_id, place in cursor.shards.items()}
    return {"shards": shards, "table": cursor.table, "initial": str(cursor)}


def cursor_of_offset(tag: str | None, offset: Mapping[str, Any]) -> Cursor:
    """The cursor, for the table with this tag, from which the query reads after an offset."""
    if "initial" in offset:
        return Cursor.parse(offset["initial"])
    return Cursor(tag, {shard_id: Place(position - 1) for shard_id, position in offset["shards"].items()})


def checked_offset(offset: Any) -> Offset:
    """`offset`; `InvalidInputError` if this feed did not make it."""
    shards = offset.get("shards") if isinstance(offset, dict) else None
    is_ours = isinstance(shards, dict) and all(
        is_shard_id(shard_id) and is_count(position) and 0 < position <= _LAST for shard_id, position in shards.items()
    )
    if not is_ours or not isinstance(offset.get("table"), str | None):
        raise InvalidInputError(
            "the checkpoint of this query holds no offset of a change feed: it is the one of another source, or damaged. "
            "Start the query with a checkpoint of its own"
        )
    for name in {"initial", "began_at"}.intersection(offset):
        snapshot = Cursor.parse(offset[name]).snapshot
        if snapshot is not None:
            Snapshot.parse(snapshot)
    checked: Offset = offset
    return checked


# --------------------------------------------------------------------------------------------------------------- feed


_LOG = logging.getLogger(__name__)
_EXTRA = pa.schema(EXTRA).names
_SNAPSHOT_KEY_BYTES = 256 << 10
"""Keys that go into every part: a stream has nothing that goes to all tasks of one batch."""
_REMEDY = "start a new query with a new checkpoint; the option 'consumer' prevents this error"

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
        """The end of the next micro-batch: the snapshot, everything that is written, or as much as the limits allow."""
        tag = self._check_table(checked_offset(start).get("table")).tag
        self._claim(start)
        begin, initial = dict(start["shards"]), start.get("initial")
        if initial is None:
            ends = self._ends(begin, limit)
            return start if ends == begin else {"shards": ends, "table": tag}
        ends = self._ends(begin, limit) if Cursor.parse(initial).snapshot is None else begin
        return {"shards": ends, "table": tag, "began_at": initial}

    def _ends(self, begin: Positions, limit: ReadLimit) -> Positions:
        tips = self._stop_at if self._stop_at is not None else self._tips()
        ends = begin | {shard_id: max(tip, begin.get(shard_id, 0)) for shard_id, tip in tips.items()}
        if isinstance(limit, ReadAllAvailable) or self._limits() == (None, None, None):
            return ends
        return self._admit(begin, ends)

    def _checked(self, offset: Offset) -> Offset:
        """`offset`; `TableReplacedError` if the table was re-created since the offset was made."""
        self._check_table(checked_offset(offset).get("table"))
        return offset

    def _check_table(self, tag: str | None) -> BaseTable:
        base = self._base()
        if tag is not None and tag != base.tag:
            raise TableReplacedError(
                f"the table at {self._location().describe()} was re-created after this query read it; start a new query with "
                "a new checkpoint"
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
        """One task per shard with entries between the offsets; and those of the snapshot, if the query begins with one."""
        tag = self._checked(end).get("table")
        began_at = end.get("began_at") if "initial" in self._checked(start) else None
        begin = cursor_of_offset(tag, start) if began_at is None else Cursor.parse(began_at)
        spans = [_Span(s, begin.place(s).position + 1, stop, tag) for s, stop in sorted(end["shards"].items())]
        changes = [InputPartition(span) for span in spans if span.start < span.end]
        return changes if begin.snapshot is None else [*self._snapshot_parts(begin.snapshot), *changes]

    def _snapshot_parts(self, text: str) -> list[InputPartition]:
        try:
            pin = self._pin(text)
            outline = outline_of(self._options, pin, most_key_bytes=_SNAPSHOT_KEY_BYTES)
        except CollectedError as error:
            raise CollectedError(f"{error}; {_REMEDY}") from error
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
                f"{error}; {_REMEDY}. With failOnDataLoss=false the query continues after the lost entries"
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
