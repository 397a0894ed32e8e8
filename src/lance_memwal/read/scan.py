"""A scan of a table: all live rows of all tiers, projected, filtered, ordered, limited.

Owns `Read`, what a caller wants to read, and the public `Scan`. Invariants:

1. One scan reads one snapshot, captured when it is made, however often and in whatever form it is read.
2. Limit and offset count live, matching rows, after these were put in order.
3. What vanished before the first batch (an SSTable that was collected, a base version that Lance cleaned up) restarts the
   read on a fresh snapshot, a bounded number of times; later it is `CollectedError`, unless nothing was handed out yet
   (`to_table`, `count_rows`). An SSTable that fresh snapshots need too is corruption.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from itertools import chain
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import pyarrow as pa

from lance_memwal.arguments import check_choice, check_flag, check_number
from lance_memwal.errors import InvalidInputError, need
from lance_memwal.process.aio import Aio, in_thread
from lance_memwal.process.telemetry import spanned
from lance_memwal.read.count import live_rows_of
from lance_memwal.read.merge import BaseRead, Merge, Projection
from lance_memwal.read.order import Order
from lance_memwal.read.plan import ScanPlan, plan_of
from lance_memwal.read.tiers import Consistency, MemTables, Tiers, missing_is_collected, with_restarts
from lance_memwal.rows.filter import FilterLike, RowFilter, as_filter
from lance_memwal.rows.projection import checked_paths

T = TypeVar("T")
P = ParamSpec("P")
Pickled: TypeAlias = Callable[["Read"], tuple[Any, ...]]
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Read:
    """What a caller wants to read; see `Readable.scan` for the meaning of each field. It can be pickled without `in_memory`."""

    columns: Sequence[str] | None = None
    filter: FilterLike | RowFilter | None = None
    limit: int | None = None
    offset: int | None = None
    order_by: Sequence[str] | None = None
    with_row_address: bool = False
    with_generation: bool = False
    with_row_id: bool = False
    consistency: Consistency = "fresh"
    shards: Collection[str] | None = None
    in_memory: MemTables | None = None

    def __post_init__(self) -> None:
        check_choice("consistency", self.consistency, ("fresh", "flushed"))


class Scan:
    """A read of one snapshot; iterate over it, or turn it into a table."""

    def __init__(
        self,
        capture: Callable[[], Tiers],
        read: Read | None = None,
        *,
        pickled: Pickled | None = None,
        on_base_read: BaseRead | None = None,
    ) -> None:
        """`capture` gives a snapshot: once now, and again only if collection removed what it needs.

        `pickled` returns what `__reduce__` returns; None: the scan cannot be pickled. `on_base_read` is told how much of the
        base table was read, after a read that went to its end.
        """
        self._read = read = read or Read()
        self._pickled = pickled
        self._on_base_read = on_base_read
        check_flag("with_row_address", read.with_row_address)
        check_flag("with_generation", read.with_generation)
        check_flag("with_row_id", read.with_row_id)
        self._capture = capture
        self._snapshot = capture()
        table = self._snapshot.schema.columns
        self._projection = Projection(
            checked_paths(read.columns, table), read.with_row_address, read.with_generation, read.with_row_id
        )
        self._projection.schema(table)  # or says what is wrong with it, now
        self._order = None if read.order_by is None else Order.of(read.order_by, self._snapshot.schema)
        self._filter = as_filter(read.filter, table)
        self._limit = _count("limit", read.limit)
        self._offset = _count("offset", read.offset) or 0

    @property
    def schema(self) -> pa.Schema:
        """The schema of the answer."""
        return self._projection.schema(self._snapshot.schema.columns)

    @property
    def snapshot(self) -> Tiers:
        """What this scan reads."""
        return self._snapshot

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled scan is its query and the moment at which it is pickled: every copy reads the rows that are durable then,
        whenever and wherever it is read. They stay for the grace period of `gc`; later that is a `CollectedError`."""
        if self._pickled is None or self._read.in_memory is not None:
            raise InvalidInputError(
                "this scan reads memory of this process, and cannot be pickled: send the table, and scan where it arrives"
            )
        return self._pickled(self._read)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The rows as a stream for any library that takes Arrow's: `polars.DataFrame(scan)`, `pyarrow.table(scan)`."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        """The schema of the answer for such a library."""
        return self.schema.__arrow_c_schema__()

    @spanned("memwal.scan.start", "scan")
    def _start(self, snapshot: Tiers, projection: Projection) -> Iterator[pa.RecordBatch]:
        """The stream of a snapshot after its first batch: nothing that it needs was missing up to here."""
        self._snapshot = snapshot
        if self._order is not None and projection is self._projection:
            return self._ordered(snapshot, self._order)
        merge = Merge(snapshot, projection, self._filter, on_base_read=self._on_base_read)
        merge.prepare()
        batches = merge.batches()
        first = next(batches, None)
        return batches if first is None else chain([first], batches)

    def _ordered(self, snapshot: Tiers, order: Order) -> Iterator[pa.RecordBatch]:
        """The rows in order, as many as the limit needs; the columns that decide are read along."""
        columns = tuple(dict.fromkeys([*self._projection.columns, *order.paths]))
        merge = Merge(snapshot, replace(self._projection, columns=columns), self._filter)
        merge.prepare()
        count = None if self._limit is None else self._offset + self._limit
        rows = order.first(_unordered(merge, order, count), merge.schema, count).select(self.schema.names)
        return iter(rows.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS))

    def _cut(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The stream from the offset on, up to the limit."""
        skip, left = self._offset, self._limit
        for batch in batches:
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            part = batch.slice(skip, left) if skip or left is not None else batch
            skip = 0
            yield part
            if left is not None:
                left -= part.num_rows
                if left <= 0:
                    return

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows batch by batch, as they are read: memory does not grow with the answer."""
        if self._limit == 0:
            return
        with missing_is_collected("scan again"):
            start = partial(self._start, projection=self._projection)
            yield from self._cut(with_restarts(self._capture, start, self._snapshot))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.to_batches()

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a reader that streams: for `lance.write_dataset`, DuckDB and whoever takes one."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """All rows of the answer, in memory."""
        return self._consume(partial(pa.Table.from_batches, schema=self.schema), self._projection)

    @spanned("memwal.scan")
    def _consume(self, consume: Callable[[Iterator[pa.RecordBatch]], T], projection: Projection) -> T:
        """What `consume` makes of all rows: nothing was handed out before its end, so it may start over."""
        if self._limit == 0:
            return consume(iter(()))

        def read(snapshot: Tiers) -> T:
            return consume(self._cut(self._start(snapshot, projection)))

        return with_restarts(self._capture, read, self._snapshot)

    def to_pandas(self) -> Any:
        """The rows as a pandas frame (pandas must be installed)."""
        need("pandas", "pandas", "a pandas frame")
        return self.to_table().to_pandas()

    def to_polars(self) -> Any:
        """The rows as a polars frame (polars must be installed)."""
        return need("polars", "polars", "a Polars frame").from_arrow(self.to_table())

    def count_rows(self) -> int:
        """The number of rows, reading no more than it must."""
        if self._filter is None and not self._offset and self._limit is None:
            return with_restarts(self._capture, live_rows_of, self._snapshot)
        schema = self._snapshot.schema
        return self._consume(_total, Projection(schema.primary_key or tuple(schema.columns.names[:1])))

    def plan(self) -> ScanPlan:
        """What this scan reads and what it leaves out; `explain` says it in words."""
        order = None if self._order is None else str(self._order)
        return plan_of(
            self._snapshot, self._projection.columns, self._filter, order, limit=self._limit, offset=self._offset
        )

    def explain(self) -> str:
        """What this scan reads and what it leaves out, for people."""
        return str(self.plan())

    def __repr__(self) -> str:
        shards = len(self._snapshot.shards)
        return f"Scan(columns={list(self._projection.columns)}, filter={self._filter}, shards={shards})"


class AsyncScan:
    """A scan for an event loop: await it for a table, or iterate over its batches with `async for`."""

    def __init__(self, begin: Callable[[], Scan]) -> None:
        """`begin` starts the scan; it is called in a thread."""
        self._begin = begin

    def __await__(self) -> Generator[Any, None, pa.Table]:
        return in_thread(lambda: self._begin().to_table()).__await__()

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        batches = await in_thread(lambda: self._begin().to_batches())
        while (batch := await in_thread(partial(next, batches, None))) is not None:
            yield batch


def scans(verb: Callable[Concatenate[Any, P], Scan]) -> Callable[Concatenate[Any, P], AsyncScan]:
    """Make an `AsyncScan` of a verb that scans."""

    @wraps(verb)
    def call(self: Aio, /, *args: P.args, **options: P.kwargs) -> AsyncScan:
        return AsyncScan(self._bound(verb, *args, **options))

    return call


def _unordered(merge: Merge, order: Order, count: int | None) -> Iterator[pa.RecordBatch]:
    """Rows among which the first `count` are; of the base table only those, where Lance can tell them."""
    if merge.snapshot.base_table is None or count is None:
        return merge.batches()
    first = merge.first_of_base(order.by, count)
    return chain(merge.fresh_batches(), merge.base_batches() if first is None else first)


def _total(batches: Iterator[pa.RecordBatch]) -> int:
    return sum(int(batch.num_rows) for batch in batches)


def _count(name: str, value: int | None) -> int | None:
    return None if value is None else check_number(name, value)
