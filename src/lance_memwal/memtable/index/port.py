"""What a memtable asks of an in-memory index.

Owns the `MemIndex` protocol. The guarantees, which every implementation keeps:

1. One thread at a time calls `insert`; batches come in row order, without gaps. A batch whose rows are all
   indexed already is ignored, so that a replayed put is harmless.
2. `insert` is cheap (it remembers the column, about a microsecond) and never waits for a reader or a build.
   The structure behind it is built by whoever needs it: a query, or `catch_up` in the background.
3. Any number of threads query at the same time, beside the writer. A query is given a watermark `n` and
   answers from the rows below `n` exactly, whether or not they were built in before.
4. Memory grows with the rows, never with a capacity.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import pyarrow as pa


@runtime_checkable
class MemIndex(Protocol):
    """One index of one memtable."""

    @property
    def name(self) -> str:
        """The index's name, which its mirror in an SSTable has too."""
        ...

    @property
    def made_from(self) -> object:
        """The spec that built it, if one did."""
        ...

    @property
    def column(self) -> str:
        """The indexed column."""
        ...

    @property
    def indexed_rows(self) -> int:
        """Rows taken in: every position below it is found by a query."""
        ...

    @property
    def size_bytes(self) -> int:
        """Resident bytes of the index itself; the memtable's batches are not counted again."""
        ...

    def insert(self, batch: pa.RecordBatch, start: int) -> None:
        """Take in the rows of `batch`, whose first row has position `start`."""
        ...

    def catch_up(self, max_rows: int | None = None) -> int:
        """Build pending rows in (all, or about `max_rows`), and return how many are still pending."""
        ...
