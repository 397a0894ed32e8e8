"""Reads of one moment of a table, which no write changes any more.

Owns `PastReader`. Invariants:

1. Every answer is of the same tiers, however often and in whatever form it is asked for.
2. What collection removed meanwhile is a `CollectedError`: there is no newer state to go on with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from lance_memwal.arguments import check_flag
from lance_memwal.errors import CollectedError
from lance_memwal.read.base_rows import BaseLookup
from lance_memwal.read.blobs import BlobFile, check_blob_column, find_blob
from lance_memwal.read.lookup import lookup_rows
from lance_memwal.read.scan import Scan
from lance_memwal.read.search import SearchRequest, search
from lance_memwal.read.tiers import Tiers, with_restarts
from lance_memwal.rows.ingest import key_batch
from lance_memwal.rows.projection import checked_paths

__all__ = ["PastReader"]

T = TypeVar("T")


class PastReader:
    """Scans, lookups and searches of one moment. Threads may share it."""

    def __init__(self, tiers: Tiers) -> None:
        self.tiers = tiers
        self._lookup = BaseLookup()

    def scan(self, columns: Sequence[str] | None = None, **options: Any) -> Scan:
        """All rows that were live; `options` are those of `Scan`."""
        return Scan(self._once(), columns=columns, **options)

    def get(self, key: Any, columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        """The row of one key, or None."""
        found = self.lookup([key], columns)
        return found.to_pylist()[0] if found.num_rows else None

    def lookup(self, keys: Any, columns: Sequence[str] | None = None, *, with_tombstones: bool = False) -> pa.Table:
        """The rows of many keys, each once and in no order; keys without a row are left out."""
        check_flag("with_tombstones", with_tombstones)
        named = self._keys(keys)
        wanted = checked_paths(columns, self.tiers.schema.columns)
        return self._read(lambda t: lookup_rows(t, self._lookup, named, wanted, with_tombstones=with_tombstones))

    def get_blob(self, key: Any, column: str) -> BlobFile | None:
        """The blob of one key as a file; None if there was no row, or its blob was null."""
        check_blob_column(self.tiers.schema.columns, column)
        named = self._keys([key])
        return self._read(lambda tiers: find_blob(tiers, self._lookup, named, column))

    def search(self, request: SearchRequest) -> pa.Table:
        """The best rows for a vector, a text, or both, best first."""
        return self._read(lambda tiers: search(tiers, request))

    def _keys(self, keys: Any) -> pa.RecordBatch:
        return key_batch(keys, self.tiers.base.columns)

    def _read(self, read: Callable[[Tiers], T]) -> T:
        return with_restarts(self._once(), read)

    def _once(self) -> Callable[[], Tiers]:
        """Gives the tiers, but not a second time: who asks again has met something that is gone."""
        left = [self.tiers]

        def capture() -> Tiers:
            if not left:
                raise CollectedError("collection removed what this moment needs; take a new snapshot")
            return left.pop()

        return capture
