"""The entry points of `format("memwal")` and `format("memwal_changes")`: what serves a call of Spark.

Owns `MemWalSource`, which has a second name for the JVM face to call it by, and `ChangesSource`. Invariants:

1. One `load` is one snapshot: it is pinned when Spark makes the source, and travels with it to every plan and task.
2. Filters are never pushed down by Spark itself (it caches one read plan per relation, so that one DataFrame used with two
   filters would return wrong rows); the options `filter` and `columns` do it instead, and so does the JVM face, which makes
   a source of its own for every scan (option `__pushed`).
3. A source that only writes pins nothing.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from lance_memwal.errors import InvalidInputError
from lance_memwal.read.outline import Outline
from lance_memwal.spark.changelog import ChangelogReader, changelog_schema
from lance_memwal.spark.evolving import with_columns_of
from lance_memwal.spark.face.pushed import planned, with_pushed
from lance_memwal.spark.feed import ChangeFeed, feed_schema
from lance_memwal.spark.joining import known_table
from lance_memwal.spark.options import CHANGE_FEED, Options
from lance_memwal.spark.pin import Pin, outline_of, pin_table
from lance_memwal.spark.read_options import columns_of, resolved_options
from lance_memwal.spark.replacing import all_gone, overwriting
from lance_memwal.spark.rows import WritePlan
from lance_memwal.spark.sink import BatchSink, StreamSink
from lance_memwal.spark.source import TableReader
from lance_memwal.spark.types import struct_type
from lance_memwal.table import Table, newest_base, open_table


class MemWalSource(DataSource):
    """A memwal table as a source and a sink of Spark."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = Options.parse(dict(options))
        self._is_sink = "checkpointlocation" in {name.lower() for name in options}  # that of a stream: nothing is read
        self._pin: Pin | None = None
        self._outline: Outline | None = None

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "memwal"

    def __getstate__(self) -> dict[str, Any]:
        """Spark sends a source away only to read with it (or as the sink of a stream): this is when the pin is set."""
        if self._pin is None and not self._options.change_feed and not self._is_sink:
            self._pinned()
        return dict(self.__dict__)

    def _pinned(self) -> Pin:
        if self._pin is None:
            self._options = with_pushed(resolved_options(self._options))
            self._pin = pin_table(self._options)
        return self._pin

    def _planned(self) -> TableReader:
        """The reader of a scan of the JVM face: what it looked at goes with this source to whoever plans the tasks."""
        pin = self._pinned()
        counts = self._options.count and not pin.schema.primary_key
        self._outline = outline_of(self._options, pin, counts=counts)
        return self._reader(struct_type(pin.schema.columns, self._options.columns))

    def _reader(self, schema: StructType) -> TableReader:
        return TableReader(self._options, self._pinned(), schema, self._outline)

    def schema(self) -> StructType:
        """The table's columns, or those of the option `columns`; the change feed has more."""
        if self._options.change_feed:
            return _feed_schema(self._options)
        if self._options.pushed is not None:
            return planned(self._planned())
        return struct_type(self._pinned().schema.columns, self._options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of the pinned snapshot."""
        if self._options.change_feed:
            raise InvalidInputError("the change feed is a stream: use spark.readStream")
        return self._reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The change feed."""
        if not self._options.change_feed:
            raise InvalidInputError(
                "a stream of this table is its change feed: use readStream.format('memwal_changes'), or call "
                "lance_memwal.spark.register(spark) first"
            )
        return ChangeFeed(self._options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink:
        """The batch sink."""
        return BatchSink(self._plan(schema, overwrite), all_gone if overwrite else None)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        """The streaming sink."""
        return StreamSink(self._plan(schema, overwrite), all_gone if overwrite else None)

    def _plan(self, schema: StructType, overwrite: bool) -> WritePlan:
        table = _table_of(self._options) if overwrite else known_table(self._options)
        options = overwriting(table, self._options) if overwrite else self._options
        if options.merge_schema:
            table = with_columns_of(table, schema, options)
        return WritePlan.make(table, schema, options)


class PythonSource(MemWalSource):
    """The same source by the name that is never the JVM face's."""

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "memwal_py"


class ChangesSource(DataSource):
    """The change feed of a memwal table, as a stream; with the option `changesFrom`, what changed between two moments."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = Options.parse({**options, CHANGE_FEED: "true"})

    @classmethod
    def name(cls) -> str:
        """The format."""
        return "memwal_changes"

    def schema(self) -> StructType:
        """The table's columns, or those of the option `columns`, and what there is to know of a change."""
        if self._options.changes_from is None:
            return _feed_schema(self._options)
        return changelog_schema(newest_base(_table_of(self._options)).columns.shown.columns, self._options.columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The change feed."""
        if self._options.changes_from is not None:
            raise InvalidInputError("changes between two moments are a batch: use spark.read, or leave out changesFrom")
        return ChangeFeed(self._options, schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The changes between two moments; without `changesFrom`, `InvalidInputError`."""
        if self._options.changes_from is None:
            raise InvalidInputError(
                "the change feed is a stream: use spark.readStream, or say with the option changesFrom where a batch begins"
            )
        return ChangelogReader(self._options, schema)


def _feed_schema(options: Options) -> StructType:
    return feed_schema(columns_of(options), resolved_options(options).columns)


def _table_of(options: Options) -> Table:
    return open_table(options.path, storage_options=options.storage_options)
