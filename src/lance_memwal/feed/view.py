"""A table as it was: what `Table.at` gives.

Owns `TableView`. Invariant: it reads one snapshot, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lance_memwal.feed.snapshots import tiers_of
from lance_memwal.read.blobs import BlobFile
from lance_memwal.read.past import PastReader
from lance_memwal.read.scan import Scan
from lance_memwal.read.search import SearchRequest
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.rows.filter import FilterLike
from lance_memwal.store.location import Location

__all__ = ["TableView", "scan_at"]


def scan_at(location: Location, snapshot: Snapshot, query: dict[str, Any]) -> Scan:
    """A scan that was pickled, where it arrives."""
    return TableView(location, snapshot).scan(**query)


class TableView:
    """One moment of a table: every read gives what it gave then. Threads may share it."""

    def __init__(self, location: Location, snapshot: Snapshot) -> None:
        """Use `Table.at`."""
        self.location = location
        self.snapshot = snapshot
        self._reader = PastReader(tiers_of(location, snapshot))

    def __repr__(self) -> str:
        return f"TableView({self.location.describe()!r}, {str(self.snapshot)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled view is the place of the table and the snapshot, and is read again where it arrives."""
        return TableView, (self.location, self.snapshot)

    @property
    def schema(self) -> pa.Schema:
        """The columns that the table had."""
        return self._reader.tiers.base.schema

    @property
    def primary_key(self) -> list[str]:
        """The key columns in key order; empty for an append-only table."""
        return list(self._reader.tiers.schema.primary_key)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        filter: FilterLike | None = None,  # noqa: A002
        limit: int | None = None,
        offset: int | None = None,
        **options: Any,
    ) -> Scan:
        """All rows that were live; options as those of `Table.scan` (`order_by`, `with_row_id`, ...)."""
        return self._reader.scan(columns, filter=filter, limit=limit, offset=offset, travel=self._travel, **options)

    def _travel(self, query: dict[str, Any]) -> tuple[Any, ...]:
        return scan_at, (self.location, self.snapshot, query)

    def get(self, key: Any, columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        """The row of one key, or None."""
        return self._reader.get(key, columns)

    def get_blob(self, key: Any, column: str) -> BlobFile | None:
        """The blob of one key, as a file that is open for reading; see `Table.get_blob`."""
        return self._reader.get_blob(key, column)

    def lookup(self, keys: Any, columns: Sequence[str] | None = None, *, with_tombstones: bool = False) -> pa.Table:
        """The rows of many keys, each once and in no order; keys without a row are left out."""
        return self._reader.lookup(keys, columns, with_tombstones=with_tombstones)

    def search(self, vector: Any = None, **options: Any) -> pa.Table:
        """The best rows for a vector, a text, or both, best first; options as those of `Table.search`."""
        return self._reader.search(SearchRequest(vector=vector, **options))

    def count_rows(self, filter: FilterLike | None = None) -> int:  # noqa: A002
        """The number of rows that were live."""
        return self.scan(filter=filter).count_rows()

    def __len__(self) -> int:
        return self.count_rows()

    def head(self, n: int = 5) -> pa.Table:
        """Some rows, at most `n`."""
        return self.scan(limit=n).to_table()

    def to_arrow(self) -> pa.Table:
        """All rows as a table."""
        return self.scan().to_table()

    def to_pandas(self) -> Any:
        """All rows as a pandas frame."""
        return self.scan().to_pandas()
