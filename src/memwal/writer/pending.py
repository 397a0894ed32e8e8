"""Writes on their way into the log: rows, the queue's items, and the bytes of an entry.

Owns `WriteRows`, `Pending`, `Entry` and `EntryBuilder`: values and encoding, no locks and no I/O. Invariants:

1. The totals behind a write (batches, bytes, run) are part of it, so that the newest write says where the queue ends.
2. The bytes of an entry are made once.

Called by: the core and the engine of the writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from memwal.format.wal_entry import TOMBSTONE_FIELD, EntryEncoder
from memwal.log_run import LogRun
from memwal.memtable import unpinned
from memwal.schema import TableSchema
from memwal.types import SeenTransaction, Transaction

if TYPE_CHECKING:
    from memwal.writer.put_queue import QueuedPut

__all__ = ["Entry", "EntryBuilder", "Pending", "WriteRows"]

_FLAG_CACHE_ROWS = 65_536
_FLAG_CACHE_SIZE = 64


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Rows of one write, fitted to the table: batches, and per batch its tombstone flags (None: all live) and bytes."""

    batches: list[pa.RecordBatch]
    flags: list[pa.BooleanArray | None]
    sizes: list[int]
    num_rows: int
    size_bytes: int

    @classmethod
    def of(cls, batches: Sequence[pa.RecordBatch], *, tombstones: bool = False) -> WriteRows:
        """The rows of `batches`, copied where they would keep a much larger parent alive; all dead with `tombstones`."""
        owned, sizes, num_rows = [], [], 0
        for batch in batches:
            own, size = unpinned(batch)
            owned.append(own)
            sizes.append(size)
            num_rows += own.num_rows
        flags = [pa.array(np.ones(batch.num_rows, dtype=bool)) if tombstones else None for batch in owned]
        return cls(owned, flags, sizes, num_rows, sum(sizes))

    @property
    def nbytes(self) -> int:
        """Bytes of the rows themselves, without what their buffers hold beside them."""
        return sum(batch.nbytes for batch in self.batches)


class Pending:
    """One inserted write that is not yet on storage; `end`, `end_bytes` and `run` are the totals behind it."""

    __slots__ = ("end", "end_bytes", "generation", "put", "rows", "run", "start", "txn", "written_ms")

    def __init__(
        self, rows: WriteRows, after: tuple[int, int, LogRun], generation: int, txn: Transaction | None, written_ms: int
    ) -> None:
        """`after`: the totals behind its predecessor, except that the run is the one behind this write."""
        self.rows = rows
        self.start, start_bytes, self.run = after
        self.end = self.start + len(rows.batches)
        self.end_bytes = start_bytes + rows.size_bytes
        self.generation = generation
        self.txn = txn
        self.written_ms = written_ms
        self.put: QueuedPut | None = None

    @property
    def totals(self) -> tuple[int, int, LogRun]:
        """Batches, bytes and run behind this write."""
        return self.end, self.end_bytes, self.run


class Entry:
    """An entry of the log: its writes, its position, and its bytes once they are made."""

    __slots__ = ("data", "group", "position", "seen")

    def __init__(self, group: list[Pending], seen: dict[str, SeenTransaction], position: int) -> None:
        self.group = group
        self.seen = seen
        self.position = position
        self.data = b""


class EntryBuilder:
    """Makes the bytes of entries of one epoch. Not thread-safe: the leader of a commit uses it."""

    __slots__ = ("_encoder", "_epoch", "_live_flags", "_schema", "_slices")

    def __init__(self, schema: TableSchema, epoch: int) -> None:
        self._schema = schema.wal
        self._epoch = epoch
        self._encoder: EntryEncoder | None = None
        self._live_flags = pa.array(np.zeros(_FLAG_CACHE_ROWS, dtype=bool))
        self._slices: dict[int, pa.BooleanArray] = {}

    def encode(self, entry: Entry) -> bytes:
        """The bytes of `entry`, whose writes are of one generation."""
        group = entry.group
        generation = group[0].generation
        if self._encoder is None or self._encoder.generation != generation:
            self._encoder = EntryEncoder(self._schema, self._epoch, generation)
        batches = [
            batch.append_column(TOMBSTONE_FIELD, flags if flags is not None else self._all_live(batch.num_rows))
            for item in group
            for batch, flags in zip(item.rows.batches, item.rows.flags, strict=True)
        ]
        return self._encoder.encode(batches, txn=group[0].txn, seen=entry.seen)

    def _all_live(self, rows: int) -> pa.BooleanArray:
        flags = self._slices.get(rows)
        if flags is None:
            if rows > _FLAG_CACHE_ROWS:
                return pa.array(np.zeros(rows, dtype=bool))
            flags = self._live_flags.slice(0, rows)
            if len(self._slices) < _FLAG_CACHE_SIZE:
                self._slices[rows] = flags
        return flags
