"""Reading memtables alone: active and frozen of one writer, captured together.

Owns `MemTableScanner`: `Scan` and `search` over a snapshot that has nothing but memory. Invariant: a scanner reads the
capture with which it was made, however often it is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from lance_memwal.arguments import check_choice, check_names, check_number, check_text
from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.index import SEARCH_METRICS, Metric, as_query
from lance_memwal.memtable.index.analyzer import is_text
from lance_memwal.memtable.index.vectors import is_searchable
from lance_memwal.read.scan import Read, Scan
from lance_memwal.read.search import SearchRequest, search
from lance_memwal.read.tiers import Tiers
from lance_memwal.rows.filter import FilterLike, RowFilter
from lance_memwal.rows.projection import checked_paths


class MemTableScanner:
    """A scan of one writer's memtables, as they were when the scan was made. The builder methods return the scanner."""

    def __init__(self, snapshot: Tiers) -> None:
        """`snapshot` is one of memory alone."""
        self._snapshot = snapshot
        self._table = snapshot.schema.columns
        self._columns: tuple[str, ...] | None = None
        self._filter: RowFilter | None = None
        self._limit: int | None = None
        self._order: tuple[str, ...] | None = None
        self._search: SearchRequest | None = None

    def project(self, columns: Sequence[str]) -> MemTableScanner:
        """Return only `columns`, in this order (and the score of a search)."""
        self._columns = checked_paths(columns, self._table)
        return self

    def filter(self, expr: FilterLike) -> MemTableScanner:
        """Return only rows for which `expr` (SQL or a pyarrow expression) is true; several filters must all be true."""
        self._filter = RowFilter(expr, self._table, also=self._filter)
        return self

    def order_by(self, columns: Sequence[str]) -> MemTableScanner:
        """Return the rows in this order ("-" in front of a name: the largest first); see `Table.scan`."""
        self._order = check_names("order_by", columns)
        return self

    def limit(self, n: int) -> MemTableScanner:
        """Return at most `n` rows."""
        self._limit = check_number("limit", n)
        return self

    def nearest(
        self, column: str, query: Any, k: int, *, metric: Metric | None = None, ef: int | None = None
    ) -> MemTableScanner:
        """Return the `k` live, matching rows nearest to `query`, nearest first, with `_distance`.

        `metric` is by default that of the memtable's index on the column, or l2. Another one is searched exactly.
        """
        self._check_column(column, is_searchable, "vector")
        check_number("k", k, least=1)
        if metric is not None:
            check_choice("metric", metric, SEARCH_METRICS)
        self._search = SearchRequest(vector=query, column=column, k=k, metric=metric, ef=ef)
        return self

    def full_text_search(self, column: str, query: Any, k: int | None = None) -> MemTableScanner:
        """Return the live rows that match a text query (the best `k`), best first, with their BM25 `_score`.

        The query is a string or a query of `lance_memwal.query`.

        The analyzer is that of the memtable's index on the column, or Lance's default one.
        """
        self._check_column(column, is_text, "text")
        rows = sum(ref.num_rows for view in self._snapshot.shards for ref in view.memory)
        self._search = SearchRequest(text=as_query(query, [column]), column=column, k=max(1, rows) if k is None else k)
        return self

    def _check_column(self, column: str, fits: Callable[[pa.DataType], bool], kind: str) -> None:
        if check_text("column", column) not in self._table.names or not fits(self._table.field(column).type):
            raise InvalidInputError(f"{column!r} is not a {kind} column of the table")
        if self._search is not None:
            raise InvalidInputError("a scan ranks by one search: either nearest or full_text_search, once")

    def _scan(self) -> Scan:
        read = Read(columns=self._columns, filter=self._filter, limit=self._limit, order_by=self._order)
        return Scan(lambda: self._snapshot, read)

    def to_table(self) -> pa.Table:
        """The rows as a table."""
        if self._search is None:
            return self._scan().to_table()
        if self._order is not None:
            raise InvalidInputError("a search has an order of its own, the best first: leave order_by out")
        found = search(self._snapshot, replace(self._search, columns=self._columns, filter=self._filter))
        return found.slice(0, self._limit)

    def count_rows(self) -> int:
        """The number of rows."""
        return self._scan().count_rows() if self._search is None else int(self.to_table().num_rows)

    def explain(self) -> str:
        """What this scan reads, and which indexes narrow it down, for people."""
        return self._scan().explain()

    def __repr__(self) -> str:
        return f"MemTableScanner(columns={self._columns}, filter={self._filter}, limit={self._limit})"
