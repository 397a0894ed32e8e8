"""The blobs of one memtable, beside its rows.

Owns `MemBlobs`. Rows in a memtable are joined, indexed and gathered for readers; large values would be copied each time.
Invariants:

1. The bytes of a blob are in memory once: in the buffers of the batch that brought them. What the rows hold in their
   place is what readers see (`lance_memwal.rows.blobs`).
2. Blobs that can be read again, from an entry of the log, are not held at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pyarrow as pa

from lance_memwal.rows.blobs import shown_batch
from lance_memwal.rows.schema import TableSchema

Again: TypeAlias = Callable[[], pa.RecordBatch]
"""Reads the rows of one batch again, with the blobs in them."""


class MemBlobs:
    """Per batch of a memtable, the columns that hold blobs."""

    __slots__ = ("_names", "_parts", "_shown")

    def __init__(self, schema: TableSchema) -> None:
        self._names = schema.blobs
        self._shown = schema.shown.nullable
        self._parts: list[dict[str, pa.Array] | Again] = []

    def take_in(self, number: int, batch: pa.RecordBatch, again: Again | None) -> pa.RecordBatch:
        """Keep the blobs of the batch with this number; returns its rows as readers see them. Forgets later batches."""
        blobs = {name: batch.column(name) for name in self._names}
        self._parts[number:] = [blobs if again is None else again]
        return shown_batch(batch, self._shown)

    def truncate(self, num_batches: int) -> None:
        """Forget the blobs of later batches."""
        del self._parts[num_batches:]

    def of(self, number: int, name: str) -> pa.Array:
        """One column of blobs of one batch."""
        part = self._parts[number]
        return part[name] if isinstance(part, dict) else part().column(name)

    def rows(self, spans: Sequence[tuple[int, int, int]], name: str) -> pa.Array:
        """One column of the rows `(batch, start, length)`, in order; copied only where they come from several batches."""
        found = [self.of(number, name).slice(start, length) for number, start, length in spans]
        return found[0] if len(found) == 1 else pa.concat_arrays(found)
