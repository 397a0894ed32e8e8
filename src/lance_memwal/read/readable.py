"""The read verbs of a table, a view of it, a table writer and a shard writer.

Entry points: `Readable` has the verbs, `WholeTable` adds those that read all rows, and `ReadableAio` has the
coroutines. A class that offers them says in `_capture`
which tiers a read sees.

Invariants:

1. A verb has one signature and one body, so that it takes the same arguments and gives the same answer everywhere.
2. The mixins hold no state. Every read captures its tiers, and captures them again if GC removed a part of them.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from lance_memwal.arguments import check_flag
from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index import Metric
from lance_memwal.process.aio import Aio, waits
from lance_memwal.process.telemetry import spanned
from lance_memwal.read.blobs import BlobFile, check_blob_column, find_blob
from lance_memwal.read.lookup import UNDECIDED, LookupKeys, Undecided, find_row, lookup_rows
from lance_memwal.read.scan import Pickled, Read, Scan, scans
from lance_memwal.read.search import SearchRequest, search
from lance_memwal.read.tiers import Consistency, MemTables, Tiers, with_restarts
from lance_memwal.rows.filter import FilterLike
from lance_memwal.rows.projection import checked_paths
from lance_memwal.types import check_shard_ids


class Readable(ABC):
    """The read verbs over one abstract capture."""

    @abstractmethod
    def _capture(self, read: Read, keys: LookupKeys | None = None) -> Tiers:
        """Return the tiers that a read needs; with `keys` those of the shards that can hold them."""

    def _find_in_memory(
        self,
        keys: LookupKeys,  # noqa: ARG002
        columns: Sequence[str] | None,  # noqa: ARG002
    ) -> dict[str, Any] | Undecided | None:
        """Return the row of one key, None if memory shows that there is none, or `UNDECIDED`."""
        return UNDECIDED

    def _pickled(self) -> Pickled | None:
        """Return the function that pickles a scan; None if its rows are in memory of this process."""
        return None

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: FilterLike | None = None,  # noqa: A002
        limit: int | None = None,
        offset: int | None = None,
        *,
        order_by: Sequence[str] | None = None,
        with_row_address: bool = False,
        with_generation: bool = False,
        with_row_id: bool = False,
        consistency: Consistency = "fresh",
        shards: Collection[str | uuid.UUID] | None = None,
        in_memory: MemTables | None = None,
    ) -> Scan:
        """Read the live rows of all tiers; see `Scan` for the ways to read them.

        Args:
            columns: Names of columns, or of fields inside structs (`meta.a`).
            filter: SQL text, `mw.where(...)`, or a pyarrow expression.
            limit: The highest number of rows.
            offset: How many rows to leave out before the first one.
            order_by: Columns or fields, with a "-" in front for the largest first. Nulls come last. Rows that are equal
                in them come in the order of their keys.
            with_row_address: Add Lance's `_rowaddr`, which only rows of the base table have.
            with_generation: Add `_memtable_gen`, the generation of fresh rows.
            with_row_id: Add Lance's `_rowid`, which only rows of the base table have.
            consistency: "flushed" leaves out rows that are only in memory or in a log.
            shards: Read only these shards and the base table.
            in_memory: Captures of `ShardWriter.in_memory_memtable_refs()`, in any order. A shard with a capture is read
                from it instead of its writer's current memtables.
        """
        read = Read(
            columns=columns,
            filter=filter,
            limit=limit,
            offset=offset,
            order_by=order_by,
            with_row_address=with_row_address,
            with_generation=with_generation,
            with_row_id=with_row_id,
            consistency=consistency,
            shards=None if shards is None else check_shard_ids(shards),
            in_memory=in_memory,
        )
        return Scan(partial(self._capture, read), read, pickled=self._pickled())

    @spanned("memwal.get", "get")
    def get(self, key: Any, columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        """Return the live row of one key as a dict, or None if there is none.

        Args:
            key: A value (of any type that fits the column without loss), a tuple or list of values in key order, or a
                dict of the key columns. All verbs that take one key take the same forms.
            columns: As those of `scan`.
        """
        keys = LookupKeys(key, is_one=True)
        row = self._find_in_memory(keys, columns)
        if not isinstance(row, Undecided):
            return row

        def find(tiers: Tiers) -> dict[str, Any] | None:
            return find_row(tiers, keys.key(tiers.schema), checked_paths(columns, tiers.schema.columns))

        return with_restarts(partial(self._capture, Read(), keys), find)

    @spanned("memwal.lookup", "lookup")
    def lookup(self, keys: Any, columns: Sequence[str] | None = None, *, with_tombstones: bool = False) -> pa.Table:
        """Return the live rows of many keys, each once and in no order; keys without a row are left out.

        Args:
            keys: A list of values (tuples, if the key has several columns), or columns: a dict, or anything Arrow-like.
            columns: As those of `scan`.
            with_tombstones: A deleted key has a row too, until compaction removed it from the base table. Its last column,
                `_tombstone`, is true; only its key is known.
        """
        check_flag("with_tombstones", with_tombstones)
        named = LookupKeys(keys)

        def find(tiers: Tiers) -> pa.Table:
            wanted = tiers.schema.columns.names if columns is None else columns
            return lookup_rows(tiers, named.columns(tiers.schema), wanted, with_tombstones=with_tombstones)

        return with_restarts(partial(self._capture, Read(), named), find)

    def get_blob(self, key: Any, column: str) -> BlobFile | None:
        """Return the blob of the live row of one key as a file, open for reading.

        It has `read`, `seek`, `tell`, `size` and `close`. None if there is no such row, or its blob is null.
        Ranges are read from the tier that holds the blob.
        """
        named = LookupKeys(key, is_one=True)

        def find(tiers: Tiers) -> BlobFile | None:
            check_blob_column(tiers.schema.columns, column)
            return find_blob(tiers, named.columns(tiers.schema), column)

        return with_restarts(partial(self._capture, Read(), named), find)

    @spanned("memwal.search", "search")
    def search(
        self,
        vector: Any = None,
        *,
        text: Any = None,
        column: str | Sequence[str] | None = None,
        vector_column: str | None = None,
        text_column: str | Sequence[str] | None = None,
        k: int = 10,
        offset: int = 0,
        distance_range: tuple[float | None, float | None] | None = None,
        filter: FilterLike | None = None,  # noqa: A002
        columns: Sequence[str] | None = None,
        metric: Metric | None = None,
        nprobes: int = 20,
        refine_factor: int | None = None,
        ef: int | None = None,
        consistency: Consistency = "fresh",
    ) -> pa.Table:
        """Return the best `k` live rows for a vector, a text, or both (fused by rank), best first.

        Rows have a `_distance`, a `_score` or, for both, a `_relevance`.

        Args:
            vector: The query vector.
            text: A string, or a query of `lance_memwal.query`.
            column: The column to search, if it is of one kind, or a list. Of several text columns the best one counts.
            vector_column: The column of vectors.
            text_column: The column or columns of texts.
            k: How many rows.
            offset: How many of the best rows to leave out.
            distance_range: The lowest distance, and the first one that is too large; None: no limit.
            filter: Restricts the rows before they are ranked.
            columns: As those of `scan`.
            metric: By default that of the index, or "l2".
            nprobes: How many partitions of a vector index to search.
            refine_factor: How many times `k` rows of a compressed vector index to rank by their exact vectors.
            ef: How many candidates a search of a graph keeps.
            consistency: As that of `scan`.
        """
        request = SearchRequest(
            vector=vector,
            text=text,
            column=_search_columns(column, vector_column, text_column),
            k=k,
            offset=offset,
            distance_range=distance_range,
            filter=filter,
            columns=columns,
            metric=metric,
            nprobes=nprobes,
            refine_factor=refine_factor,
            ef=ef,
        )
        read = Read(consistency=consistency)
        return with_restarts(partial(self._capture, read), lambda tiers: search(tiers, request))

    def count_rows(self, filter: FilterLike | None = None, consistency: Consistency = "fresh") -> int:  # noqa: A002
        """Count the live rows, or those for which `filter` is true. It reads only the columns that it needs."""
        return self.scan(filter=filter, consistency=consistency).count_rows()


class WholeTable(Readable):
    """The verbs that read all rows of a table."""

    def __len__(self) -> int:
        return self.count_rows()

    def __bool__(self) -> bool:
        """A table is true, with rows or without: its truth must not count them."""
        return True

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Read all live rows batch by batch."""
        return iter(self.scan())

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """All live rows as a stream for any library that takes Arrow's: `polars.DataFrame(table)`, `pyarrow.table(table)`."""
        return self.scan().__arrow_c_stream__(requested_schema)

    def head(self, n: int = 5) -> pa.Table:
        """Return some live rows, at most `n`, in no order; `scan(order_by=...)` has one."""
        return self.scan(limit=n).to_table()

    def to_arrow(self) -> pa.Table:
        """Return all live rows, in memory; `scan().to_reader()` streams them."""
        return self.scan().to_table()

    def to_pandas(self) -> Any:
        """Return all live rows as a pandas frame, in memory."""
        return self.scan().to_pandas()


class ReadableAio(Aio):
    """The read verbs as coroutines; `scan` is awaited for a table, or iterated over with `async for`."""

    __slots__ = ()
    scan = scans(Readable.scan)
    get = waits(Readable.get)
    lookup = waits(Readable.lookup)
    search = waits(Readable.search)
    count_rows = waits(Readable.count_rows)
    get_blob = waits(Readable.get_blob)


def _search_columns(
    column: str | Sequence[str] | None, vector_column: str | None, text_column: str | Sequence[str] | None
) -> str | Sequence[str] | None:
    """The columns of a search, whichever arguments name them."""
    if vector_column is None and text_column is None:
        return column
    if column is not None:
        raise InvalidInputError("give column= for one kind of column, or vector_column= and text_column=, not both")
    texts = [] if text_column is None else [text_column] if isinstance(text_column, str) else list(text_column)
    return [*([] if vector_column is None else [vector_column]), *texts]
