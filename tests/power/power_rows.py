"""The rows whose table loses power: every column says which write made it, a blob among them.

Owns `PowerRows`. Invariant: a row that `rows_of` calls intact has the note and the size of blob that its key and number ask
for; `body` says what the bytes must be.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from lance.blob import blob_field

from tests.harness.crash_tables import TableKind
from tests.harness.oracle import Row

__all__ = ["BODY", "PowerRows", "body"]

BODY = "body"
_LARGE = 6_000  # more than an entry of these tables may have: such rows are loaded in bulk
_FIRST_LAYOUT = pa.field(BODY, pa.large_binary(), metadata={"lance-encoding:blob": "true"})


def body(key: int, number: int) -> bytes | None:
    """The blob of a row."""
    size = _LARGE if number % 17 == 0 else (key * 7 + number * 13) % 60
    return None if (key + number) % 9 == 0 else f"{key}/{number};".encode() * (size // 4 + 1)


class PowerRows:
    """Rows with one integer key and a blob, in the first or the second layout of Lance."""

    def __init__(self, seed: int) -> None:
        self._kind = TableKind("integer")
        self.schema = self._kind.schema.append(blob_field(BODY) if seed % 3 == 1 else _FIRST_LAYOUT)

    def batch_of(self, keys: Sequence[int], number: int) -> pa.RecordBatch:
        """The rows that write `number` puts at these keys."""
        blobs = pa.array([body(key, number) for key in keys], pa.large_binary())
        return self._kind.batch_of(keys, number).append_column(BODY, blobs)

    def keys_of(self, keys: Sequence[int]) -> pa.RecordBatch:
        """These keys as data to delete by."""
        return self._kind.keys_of(keys)

    def rows_of(self, table: pa.Table) -> list[Row]:
        """The rows of a read."""
        sizes = [None if shown is None else shown["size"] for shown in table.column(BODY).to_pylist()]
        found = zip(self._kind.rows_of(table), sizes, strict=True)
        return [Row(row.key, row.number, row.intact and size == _size(row)) for row, size in found]


def _size(row: Row) -> int | None:
    blob = body(row.key, row.number) if isinstance(row.number, int) else None
    return None if blob is None else len(blob)
