"""Rows that an index has taken in but not built yet.

Owns the hand-over from the one writer to whoever builds. Invariants:

1. `insert` only appends and then moves `indexed_rows`; it takes no lock that a builder holds.
2. A builder takes a prefix, and drops it only after the result is published, so that a failed build loses nothing.
"""

from __future__ import annotations

import pyarrow as pa

from lance_memwal.errors import InvalidInputError

_BATCH_BYTES = 160  # an array object and its list slot; the buffers belong to the memtable


class PendingColumn:
    """One column's pending arrays, with the position of the first row of each."""

    made_from: object = None  # the spec that built it, if one did

    def __init__(self, name: str, column: str) -> None:
        self._name = name
        self._column = column
        self._pending: list[tuple[int, pa.Array]] = []
        self._indexed_rows = 0

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"{kind}(name={self._name!r}, column={self._column!r}, indexed_rows={self._indexed_rows})"

    @property
    def name(self) -> str:
        """The index's name."""
        return self._name

    @property
    def column(self) -> str:
        """The indexed column."""
        return self._column

    @property
    def indexed_rows(self) -> int:
        """Rows taken in."""
        return self._indexed_rows

    def insert(self, batch: pa.RecordBatch, start: int) -> None:
        """Take in the rows of `batch`, whose first row has position `start`; known rows are ignored."""
        end = start + batch.num_rows
        if end <= self._indexed_rows:
            return
        if start != self._indexed_rows:
            raise InvalidInputError(f"the index expects row {self._indexed_rows} next, not rows {start} to {end}")
        if not self._pending or self._pending[-1][0] != start:  # else an interrupted call put it there
            self._pending.append((start, batch.column(self._column)))
        self._indexed_rows = end

    def _pending_bytes(self) -> int:
        return _BATCH_BYTES * len(self._pending)
