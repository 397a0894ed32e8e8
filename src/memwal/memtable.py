"""The memtable: rows of one generation in memory, newest row per key, captured without copying.

Owns `MemTable` (the append log) and `InMemoryMemTableRef` (what a reader captured of it). Invariants:

1. Batches are appended whole, in order, and never change; a capture is a number of batches, so it costs nothing and
   stays right whatever is appended later.
2. Recency is decided inside a capture: a row is the newest of its key if no later row *of the capture* has that key.
3. The key index and the combined rows are made when a reader first needs them and grow with the rows; a put pays
   nothing for them.
4. Bytes are resident bytes: a slice counts its parent, unless it is copied out of a parent that it would pin.

Called by: the writer (append, freeze), the read path (captures), flush.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memwal.format.wal_entry import TOMBSTONE
from memwal.schema import TableSchema

__all__ = ["InMemoryMemTableRef", "InMemoryMemTables", "MemTable", "key_values"]

_PINNING_BYTES = 64 * 1024
_INDEX_BYTES_PER_ROW = 160
_LAST = np.iinfo(np.int64).max


def key_values(arrays: Sequence[pa.Array]) -> list[Any]:
    """Hashable keys, one per row: scalars of a single key column, tuples of several."""
    columns = [_values(array) for array in arrays]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def _values(array: pa.Array) -> list[Any]:
    if pa.types.is_integer(array.type):
        return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]
    return array.to_pylist()  # type: ignore[no-any-return]


class MemTable:
    """An append log of record batches. Appends are serialised by the writer; readers go through captures."""

    __slots__ = (
        "_batches",
        "_chunks",
        "_index",
        "_lock",
        "_row_ends",
        "_tombstones",
        "covered_position",
        "first_batch",
        "generation",
        "num_rows",
        "schema",
        "size_bytes",
    )

    def __init__(self, schema: TableSchema, generation: int, first_batch: int, covered_position: int) -> None:
        """`first_batch` is the writer-wide number of its first batch; `covered_position` the WAL position behind it."""
        self.schema = schema
        self.generation = generation
        self.first_batch = first_batch
        self.covered_position = covered_position
        self.num_rows = 0
        self.size_bytes = 0
        self._batches: list[pa.RecordBatch] = []
        self._tombstones: list[pa.BooleanArray | None] = []
        self._row_ends: list[int] = []
        self._lock = threading.Lock()
        self._chunks: list[tuple[int, pa.RecordBatch]] = []
        self._index: _KeyIndex | None = None

    @property
    def num_batches(self) -> int:
        """Batches appended so far."""
        return len(self._batches)

    @property
    def end_batch(self) -> int:
        """The writer-wide number behind its last batch."""
        return self.first_batch + len(self._batches)

    @property
    def index_bytes(self) -> int:
        """Resident bytes of the key index."""
        return 0 if self._index is None else self._index.size_bytes

    def append(self, batch: pa.RecordBatch, tombstone: pa.BooleanArray | None) -> int:
        """Add a batch with the table's columns; None means that every row lives. Returns the bytes that it holds."""
        size: int = batch.get_total_buffer_size()
        if size > _PINNING_BYTES and batch.nbytes * 4 < size:
            batch = batch.take(pa.array(np.arange(batch.num_rows)))
            size = batch.get_total_buffer_size()
        self._tombstones.append(tombstone)
        self.num_rows += batch.num_rows
        self.size_bytes += size
        self._row_ends.append(self.num_rows)
        self._batches.append(batch)
        return size

    def capture(self, num_batches: int | None = None) -> InMemoryMemTableRef:
        """The first `num_batches` batches (all by default) as an immutable value."""
        count = len(self._batches) if num_batches is None else num_batches
        return InMemoryMemTableRef(self, count, self._row_ends[count - 1] if count else 0)

    # ----------------------------------------------------------------------------------------- what readers share

    def combined(self, num_batches: int) -> pa.Table:
        """The rows of the first `num_batches` batches with `_tombstone`, in few chunks."""
        with self._lock:
            self._combine(num_batches)
            rows = self._row_ends[num_batches - 1] if num_batches else 0
            table = pa.Table.from_batches([chunk for _, chunk in self._chunks], schema=self.schema.memory)
        return table if table.num_rows == rows else table.slice(0, rows)

    def _combine(self, num_batches: int) -> None:
        done = self._chunks[-1][0] if self._chunks else 0
        if num_batches <= done:
            return
        self._chunks.append((num_batches, self._combine_new(done, num_batches)))
        while len(self._chunks) > 1 and self._chunks[-1][1].num_rows * 2 > self._chunks[-2][1].num_rows:
            end, newer = self._chunks.pop()
            _, older = self._chunks.pop()
            self._chunks.append((end, _concat([older, newer], self.schema.memory)))

    def _combine_new(self, start: int, end: int) -> pa.RecordBatch:
        memory = self.schema.memory
        columns = memory.remove(len(memory) - 1)
        fitted = [
            b if b.schema.equals(columns) else pa.RecordBatch.from_arrays(b.columns, schema=columns)
            for b in self._batches[start:end]
        ]
        rows = _concat(fitted, columns)
        flags = self._tombstones[start:end]
        if not any(flag is not None for flag in flags):
            tombstone = pa.array(np.zeros(rows.num_rows, dtype=bool))
        else:
            sizes = [b.num_rows for b in fitted]
            tombstone = pa.concat_arrays(
                [pa.array(np.zeros(n, dtype=bool)) if f is None else f for f, n in zip(flags, sizes, strict=True)]
            )
        return pa.RecordBatch.from_arrays([*rows.columns, tombstone], schema=memory)

    def index(self, num_batches: int) -> _KeyIndex:
        """The key index, brought up to at least the first `num_batches` batches."""
        rows = self._row_ends[num_batches - 1] if num_batches else 0
        if self._index is None or self._index.num_rows < rows:
            table = self.combined(num_batches)
            with self._lock:
                if self._index is None:
                    self._index = _KeyIndex()
                if self._index.num_rows < rows:
                    fresh = table.slice(self._index.num_rows)
                    keys = [_one_array(fresh.column(name)) for name in self.schema.primary_key]
                    self._index.extend(key_values(keys))
        return self._index


class _KeyIndex:
    """Key to newest row, with links between the rows of one key, so that any capture can be answered."""

    __slots__ = ("_newer", "_newest", "_older", "num_rows")

    def __init__(self) -> None:
        self.num_rows = 0
        self._newest: dict[Any, int] = {}
        self._newer = np.empty(0, dtype=np.int64)
        self._older = np.empty(0, dtype=np.int64)

    @property
    def size_bytes(self) -> int:
        return len(self._newest) * _INDEX_BYTES_PER_ROW + self._newer.nbytes + self._older.nbytes

    def extend(self, keys: list[Any]) -> None:
        """Add rows `num_rows ..` with these keys."""
        start, end = self.num_rows, self.num_rows + len(keys)
        self._reserve(end)
        before = list(map(self._newest.get, keys, repeat(-1)))
        if len(set(keys)) < len(keys):
            before = _with_repeats(keys, before, start)
        links = np.array(before, dtype=np.int64)
        self._older[start:end] = links
        rows = np.flatnonzero(links >= 0)
        self._newer[links[rows]] = rows + start
        self._newest.update(zip(keys, range(start, end), strict=True))  # last: a reader may follow it at once
        self.num_rows = end

    def _reserve(self, rows: int) -> None:
        if rows > len(self._newer):
            room = max(rows, 2 * len(self._newer), 1024)
            self._newer = np.concatenate([self._newer, np.full(room - len(self._newer), _LAST)])
            self._older = np.concatenate([self._older, np.full(room - len(self._older), -1)])

    def newest_mask(self, num_rows: int) -> npt.NDArray[np.bool_]:
        """Per row of a capture of `num_rows` rows: whether it is the newest of its key there."""
        return np.asarray(self._newer[:num_rows] >= num_rows)

    def find(self, keys: Sequence[Any], num_rows: int) -> npt.NDArray[np.int64]:
        """Per key: its newest row in a capture of `num_rows` rows, or -1."""
        found = np.fromiter((self._newest.get(key, -1) for key in keys), dtype=np.int64, count=len(keys))
        while (late := found >= num_rows).any():
            found[late] = self._older[found[late]]
        return found


def _with_repeats(keys: list[Any], before: list[int], start: int) -> list[int]:
    """Links for keys that occur more than once among the new rows."""
    latest: dict[Any, int] = {}
    linked: list[int] = []
    for row, (key, older) in enumerate(zip(keys, before, strict=True), start):
        linked.append(latest.get(key, older))
        latest[key] = row
    return linked


@dataclass(frozen=True, slots=True, eq=False)
class InMemoryMemTableRef:
    """What a reader captured of a memtable: its first batches, for ever the same."""

    memtable: MemTable
    num_batches: int
    num_rows: int

    @property
    def generation(self) -> int:
        """The generation that these rows belong to."""
        return self.memtable.generation

    @property
    def schema(self) -> pa.Schema:
        """The table's columns as users see them."""
        return self.memtable.schema.columns

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The captured rows with `_tombstone` last, in few batches."""
        return self.table().to_batches() if self.num_batches else []

    def table(self) -> pa.Table:
        """All captured rows, older versions and tombstones included, `_tombstone` last."""
        return self.memtable.combined(self.num_batches)

    def newest_mask(self) -> npt.NDArray[np.bool_]:
        """Per captured row: whether no later captured row has its key. Every row of an append-only table counts."""
        if not self.memtable.schema.primary_key or not self.num_batches:
            return np.ones(self.num_rows, dtype=bool)
        return self.memtable.index(self.num_batches).newest_mask(self.num_rows)

    def newest(self) -> pa.Table:
        """The newest row of every key, tombstones included."""
        table, mask = self.table(), self.newest_mask()
        return table if mask.all() else table.filter(pa.array(mask))

    def live(self) -> pa.Table:
        """The rows that a reader of this memtable alone would see: newest per key, no tombstones, table columns."""
        table, mask = self.table(), self.newest_mask()
        tombstones = _one_array(table.column(TOMBSTONE)).to_numpy(zero_copy_only=False)
        mask &= ~tombstones
        columns = table.drop_columns([TOMBSTONE])
        return columns if mask.all() else columns.filter(pa.array(mask))

    def find(self, keys: Sequence[Any]) -> npt.NDArray[np.int64]:
        """Per key (as `key_values` makes them): the newest captured row, or -1."""
        if not self.num_batches:
            return np.full(len(keys), -1, dtype=np.int64)
        return self.memtable.index(self.num_batches).find(keys, self.num_rows)

    def __repr__(self) -> str:
        return f"InMemoryMemTableRef(generation={self.generation}, num_rows={self.num_rows})"


@dataclass(frozen=True, slots=True)
class InMemoryMemTables:
    """Active and frozen memtables of one writer, captured together; frozen oldest first."""

    active: InMemoryMemTableRef
    frozen: tuple[InMemoryMemTableRef, ...]
    shard_id: str = ""
    epoch: int = 0

    @property
    def ascending(self) -> tuple[InMemoryMemTableRef, ...]:
        """All of them by generation, ascending."""
        return (*self.frozen, self.active)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return combined.chunk(0) if combined.num_chunks else pa.array([], type=combined.type)
    return combined


def _concat(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches, schema=schema)
    return pa.RecordBatch.from_arrays([_one_array(column) for column in table.columns], schema=schema)
