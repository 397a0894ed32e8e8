"""Writes on their way into the log: rows, the queue's items, and the bytes of an entry.

Owns `WriteRows`, `Pending`, `Entry` and `EntryBuilder`: values and encoding, no locks and no I/O. Invariants:

1. The totals after a write (batches, bytes, run) are part of it, so that the newest write says where the queue ends.
2. The bytes of an entry are made once.
3. Rows are encoded before they are pending: what cannot be encoded fails its own write, and the size of an entry is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.log.entry import EntryEncoder, RowEncoder
from lance_memwal.log.tail import LogRun
from lance_memwal.memtable.memtable import unpinned
from lance_memwal.rows.fit import LiveFlags
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import TOMBSTONE_FIELD, EntryFooter, Transaction

if TYPE_CHECKING:
    from lance_memwal.write.put_queue import QueuedPut

__all__ = ["Entry", "EntryBuilder", "Pending", "WriteRows"]

_FRAMING_BYTES = 1024  # at least what a column of a few rows costs beside its values
_size = attrgetter("size")


@dataclass(slots=True)
class WriteRows:
    """Rows of one write, fitted to the table: batches, and per batch its tombstone flags (None: all live) and bytes.

    `messages` are the rows as they stand in an entry, once they are encoded, and `wire_bytes` what these add to it.
    """

    batches: list[pa.RecordBatch]
    flags: list[pa.BooleanArray | None]
    sizes: list[int]
    num_rows: int
    size_bytes: int
    messages: list[pa.Buffer] | None = None
    wire_bytes: int = 0

    @classmethod
    def of(cls, batches: Sequence[pa.RecordBatch], *, tombstones: bool = False) -> WriteRows:
        """The rows of `batches`, copied where they would keep a much larger parent alive; all dead with `tombstones`."""
        owned, sizes, num_rows = [], [], 0
        for batch in batches:
            own, size = unpinned(batch)
            owned.append(own)
            sizes.append(size)
            num_rows += own.num_rows
        flags: list[pa.BooleanArray | None] = [None] * len(owned)
        if tombstones:
            flags = [pa.array(np.ones(batch.num_rows, dtype=bool)) for batch in owned]
        return cls(owned, flags, sizes, num_rows, sum(sizes))


class Pending:
    """One inserted write that is not yet on storage; `end`, `end_bytes` and `run` are the totals after it."""

    __slots__ = ("end", "end_bytes", "put", "rows", "run", "start", "txn")

    def __init__(self, rows: WriteRows, start: int, start_bytes: int, run: LogRun, txn: Transaction | None) -> None:
        """`run`: the one that the write belongs to, and ends with it."""
        self.rows = rows
        self.start = start
        self.end = start + len(rows.batches)
        self.end_bytes = start_bytes + rows.wire_bytes
        self.run = run
        self.txn = txn
        self.put: QueuedPut | None = None

    @property
    def generation(self) -> int:
        """The generation that its rows belong to."""
        return self.run.generation


class Entry:
    """An entry of the log: its writes, its footer, its position, and its bytes once they are made."""

    __slots__ = ("data", "footer", "group", "position")

    def __init__(self, group: list[Pending], footer: EntryFooter, position: int) -> None:
        self.group = group
        self.footer = footer
        self.position = position
        self.data = b""


class EntryBuilder:
    """Makes the bytes of entries of one epoch. Any thread may encode rows, the leader of a commit encodes entries."""

    __slots__ = ("_all_live", "_arrays", "_encoder", "_epoch", "_limit_bytes", "_rows", "_schema")

    def __init__(self, schema: TableSchema, epoch: int, limit_bytes: int) -> None:
        """`limit_bytes`: of the rows of one entry."""
        self._schema = schema.wal
        self._epoch = epoch
        self._limit_bytes = limit_bytes
        self._rows = RowEncoder(schema.wal)
        self._arrays = sum(_count_arrays(field.type) for field in schema.wal)
        self._encoder: EntryEncoder | None = None
        self._all_live = LiveFlags()

    def fits(self, rows: WriteRows) -> bool:
        """Whether an entry can hold `rows`. Columns may share buffers, and each is written for itself: where that could
        matter, what would be written is measured."""
        bound = (rows.size_bytes + _FRAMING_BYTES) * self._arrays
        return bound <= self._limit_bytes or self._rows.measure(self._flagged(rows)) <= self._limit_bytes

    def encode_rows(self, rows: WriteRows) -> None:
        """Encode `rows` for whichever entry takes them; what cannot be encoded is an error of their write alone."""
        try:
            rows.messages = self._rows.messages(self._flagged(rows))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise InvalidInputError(f"the rows cannot be encoded: {error}") from error
        rows.wire_bytes = sum(map(_size, rows.messages))

    def encode(self, entry: Entry) -> bytes:
        """The bytes of `entry`, whose writes are of one generation and encoded."""
        group = entry.group
        generation = group[0].run.generation
        if self._encoder is None or self._encoder.generation != generation:
            self._encoder = EntryEncoder(self._schema, self._epoch, generation)
        messages = [message for item in group for message in item.rows.messages or ()]
        return self._encoder.assemble(messages, entry.footer)

    def _flagged(self, rows: WriteRows) -> list[pa.RecordBatch]:
        return [
            batch.append_column(TOMBSTONE_FIELD, self._all_live[batch.num_rows] if flags is None else flags)
            for batch, flags in zip(rows.batches, rows.flags, strict=True)
        ]


def _count_arrays(data_type: pa.DataType) -> int:
    """The arrays of a column, its children included."""
    storage = data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type
    return 1 + sum(_count_arrays(storage.field(i).type) for i in range(storage.num_fields))
