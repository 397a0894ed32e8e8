"""The memtable: rows of one generation in memory, newest row per key, captured without copying.

Owns `MemTable` (the append log), `InMemoryMemTableRef` (what a reader captured of it) and `ByteMeter` (the bytes of the
indexes of one writer). Invariants:

1. Batches are appended whole, in order, and never change; a capture is a number of batches, so it costs nothing and
   stays right whatever is appended later. One append is one step: an interrupted one happened or did not.
2. Recency is decided inside a capture: a row is the newest of its key if no later row *of the capture* has that key.
3. The key index and the combined rows are made when a reader first needs them and grow with the rows; a put pays
   nothing for them. Combined rows replace the batches that they were made of.
4. Rows get into the indexes by `index_rows`, in order and never ahead of what the writer knows to exist, so that a
   write that was interrupted and forgotten leaves nothing there. Batches are combined only after that.
5. Readers see blob columns in shown form: the blobs themselves lie beside the rows (`lance_memwal.memtable.blobs`), and
   `stored` brings both together again, part by part.
6. Bytes are resident bytes: buffers, an estimate of the objects around them, and indexes. `unpinned` copies a small
   slice out of a large parent that it would keep alive; a large slice counts its parent.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.memtable.blobs import Again, MemBlobs
from lance_memwal.memtable.index.hnsw import HnswMemIndex
from lance_memwal.memtable.index.port import MemIndex
from lance_memwal.memtable.key_index import KeyIndex
from lance_memwal.process.waiting import is_held_here, refuse_on_top
from lance_memwal.rows.adapt import live_flags, tombstone_flags
from lance_memwal.rows.blobs import blob_buffer, blob_column_of, by_bytes, sizes_of
from lance_memwal.rows.dictionaries import SmallDictionaries
from lance_memwal.rows.keys import one_array, row_numbers
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import TOMBSTONE

_LOG = logging.getLogger(__name__)
_PINNING_BYTES = 64 * 1024
_ALIGNMENT = 16
_BATCH_OVERHEAD_BYTES = 256
_COLUMN_OVERHEAD_BYTES = 384
_LOOSE_BATCHES = 32  # so many are looked at one by one before they are combined
_CHUNK_BYTES = 1 << 30  # Arrow's 32-bit offsets end at 2 GiB
_SMALL_CHUNK_BYTES = 8 << 20  # so much is joined in some milliseconds: more often, so that a look meets few chunks
_SMALL_RATIO = 16
_FREED_AT_ONCE = 256
_SHORT_ROWS = 2048  # so many are copied in less time than some of them are taken

_end_row = itemgetter(2)

# A batch (None once it is in a chunk) and its flags, and the rows and bytes up to its end.
_Appended: TypeAlias = tuple[pa.RecordBatch | None, pa.BooleanArray | None, int, int]


def unpinned(batch: pa.RecordBatch, size_bytes: int | None = None) -> tuple[pa.RecordBatch, int]:
    """`batch`, copied if it is a small part of large buffers that it would keep alive, and the bytes of its buffers (given, if
    they are known)."""
    size: int = batch.get_total_buffer_size() if size_bytes is None else size_bytes
    if size <= _PINNING_BYTES or batch.nbytes * 4 >= size:
        return batch, size
    batch = _copied(batch)
    return batch, batch.get_total_buffer_size()


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` in buffers of its own; as it is, if it has a type that Arrow cannot gather."""
    try:
        return batch.take(pa.array(np.arange(batch.num_rows)))
    except pa.ArrowNotImplementedError:
        return batch


def aligned(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch`, with columns copied that native readers refuse.

    Arrow IPC aligns to 8 bytes, so the rows of a WAL entry may be at odds with the 16 bytes that decimals need; and
    slices of structs in structs are not imported.
    """
    before = batch.columns
    columns = [aligned_array(column) for column in before]
    if all(new is old for new, old in zip(columns, before, strict=True)):
        return batch
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def aligned_array(array: pa.Array) -> pa.Array:
    """`array`, or a copy that native readers take."""
    is_whole = not array.offset or not pa.types.is_nested(array.type)
    if is_whole and all(buffer is None or buffer.address % _ALIGNMENT == 0 for buffer in array.buffers()):
        return array
    return pa.concat_arrays([array, array.slice(0, 0)])  # of two arrays, the result is always a new one


class ByteMeter:
    """A number of bytes that several threads add to."""

    __slots__ = ("_lock", "total")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.total = 0

    def add(self, size_bytes: int) -> None:
        """Count `size_bytes` more (or less, if negative)."""
        with self._lock:
            self.total += size_bytes


class MemTable:
    """An append log of record batches. Appends are serialised by the writer; readers go through captures."""

    __slots__ = (
        "_blobs",
        "_chunks",
        "_columns",
        "_has_tombstones",
        "_index",
        "_index_lock",
        "_indexed_batches",
        "_last_located",
        "_lock",
        "_log",
        "_meter",
        "_metered",
        "_on_search",
        "_overhead",
        "_uncounted_rows",
        "_values",
        "covered_position",
        "first_batch",
        "generation",
        "indexes",
        "mark",
        "schema",
    )

    def __init__(
        self,
        schema: TableSchema,
        generation: int,
        first_batch: int,
        covered_position: int,
        meter: ByteMeter | None = None,
        indexes: Sequence[MemIndex] = (),
        on_search: Callable[[], None] | None = None,
    ) -> None:
        """`first_batch` is the writer-wide number of its first batch; `covered_position` the newest WAL position that it covers.

        `meter` is told how the indexes grow, until `detach`; `on_search` is called when a search would gain by a graph.
        `mark` is unlike that of every other memtable: whoever remembers something of this one need not keep it alive.
        """
        self.mark = object()
        self.schema = schema
        self.generation = generation
        self.first_batch = first_batch
        self.covered_position = covered_position
        self.indexes = tuple(indexes)
        self._blobs = MemBlobs(schema) if schema.blobs else None
        self._log: list[_Appended] = []
        self._columns = {name: at for at, name in enumerate(schema.shown.memory.names)}
        self._overhead = _BATCH_OVERHEAD_BYTES + _COLUMN_OVERHEAD_BYTES * len(schema.columns)
        self._lock = threading.RLock()
        self._chunks: list[tuple[int, pa.RecordBatch]] = []
        self._last_located: tuple[pa.RecordBatch, dict[str, pa.Array]] | None = None
        self._has_tombstones = False
        self._index: KeyIndex | None = None
        self._meter = meter if meter is not None else ByteMeter()
        self._index_lock = threading.RLock()  # taken last: inside it, nothing waits
        self._indexed_batches = 0
        self._uncounted_rows = 0
        self._metered = 0
        self._on_search = on_search
        self._values = SmallDictionaries(schema.small_dictionaries) if schema.small_dictionaries else None

    @property
    def totals(self) -> tuple[int, int, int]:
        """Batches, rows and resident bytes of the rows that were appended so far."""
        if not self._log:
            return 0, 0, 0
        _, _, rows, size = self._log[-1]
        return len(self._log), rows, size

    @property
    def num_batches(self) -> int:
        """Batches appended so far."""
        return len(self._log)

    @property
    def num_rows(self) -> int:
        """Rows appended so far."""
        return self._log[-1][2] if self._log else 0

    @property
    def size_bytes(self) -> int:
        """Resident bytes of the rows."""
        return self._log[-1][3] if self._log else 0

    @property
    def index_bytes(self) -> int:
        """Resident bytes of the key index and of the other indexes, as they were last measured."""
        return self._metered + (0 if self._index is None else self._index.size_bytes)

    @property
    def end_batch(self) -> int:
        """The writer-wide number after its last batch."""
        return self.first_batch + len(self._log)

    def append(
        self,
        batch: pa.RecordBatch,
        tombstone: pa.BooleanArray | None,
        size_bytes: int | None = None,
        again: Again | None = None,
    ) -> None:
        """Add a batch with the table's columns; None means that every row lives. `size_bytes`: of its buffers, if known.

        `again` reads the batch again: then the memtable holds neither its blobs nor the entry that they lie in.
        """
        rows, size = (self._log[-1][2], self._log[-1][3]) if self._log else (0, 0)
        if self._values is not None:
            self._values.add(batch)
        held = batch if self._blobs is None else self._blobs.take_in(len(self._log), batch, again)
        if again is not None:
            batch = held = _copied(held)
        size += self._overhead + (batch.get_total_buffer_size() if size_bytes is None else size_bytes)
        if tombstone is not None:
            self._has_tombstones = True
            tombstone = tombstone if again is None else tombstone.take(pa.array(np.arange(len(tombstone))))
        self._log.append((held, tombstone, rows + held.num_rows, size))

    def can_hold(self, batches: Sequence[pa.RecordBatch]) -> bool:
        """Whether the dictionaries of `batches` go together with those that are here."""
        return self._values is None or self._values.too_small_for(batches) is None

    def truncate(self, num_batches: int) -> None:
        """Forget what was appended after the first `num_batches` batches; no capture may hold it."""
        del self._log[num_batches:]
        if self._blobs is not None:
            self._blobs.truncate(num_batches)

    def detach(self) -> None:
        """Stop counting in the writer's meter: the memtable is not the writer's any more."""
        with self._lock, self._index_lock:
            self._meter.add(-self.index_bytes)
            self._meter, self._metered, self._on_search = ByteMeter(), 0, None

    def capture(self, num_batches: int | None = None) -> InMemoryMemTableRef:
        """The first `num_batches` batches (all by default) as an immutable value."""
        count = len(self._log) if num_batches is None else num_batches
        return InMemoryMemTableRef(self, count, self._rows_of(count))

    def _rows_of(self, num_batches: int) -> int:
        return self._log[num_batches - 1][2] if num_batches else 0

    # ------------------------------------------------------------------------------------------------------ indexes

    @property
    def unindexed_rows(self) -> int:
        """Rows that the indexes have not taken in yet."""
        return self.num_rows - self._rows_of(self._indexed_batches)

    def index_rows(self, num_batches: int | None = None) -> None:
        """Take the first `num_batches` batches (all by default) into the indexes; what they hold already stays.

        On top of a call of the same thread that is at the indexes nothing is done: the next search takes the rows in.
        """
        if self.indexes and not is_held_here(self._index_lock):
            with self._index_lock:
                self._index_upto(len(self._log) if num_batches is None else num_batches)
                self._measure()

    def filled_indexes(self, num_batches: int) -> tuple[MemIndex, ...]:
        """The indexes, holding at least the first `num_batches` batches."""
        refuse_on_top(self._index_lock, "a search")
        with self._index_lock:
            self._index_upto(num_batches)
            return self.indexes

    def _index_upto(self, num_batches: int) -> None:
        while (number := self._indexed_batches) < num_batches:
            batch, start = self._log[number][0], self._log[number - 1][2] if number else 0
            if batch is not None:
                self._insert_into_indexes(batch, start)
            self._indexed_batches = number + 1

    def _insert_into_indexes(self, batch: pa.RecordBatch, start: int) -> None:
        """Give one batch to every index; without them reads are exact, so that a failing one costs no write."""
        try:
            for index in self.indexes:
                index.insert(batch, start)
            self._uncounted_rows += batch.num_rows if self.indexes else 0
        except Exception as error:
            _LOG.warning("indexes of a memtable are dropped [generation=%d]: %s", self.generation, error)
            self.indexes = ()

    def adopt(self, indexes: Sequence[MemIndex]) -> None:
        """Have these indexes from now on; new ones are given every row that the others hold."""
        with self._lock, self._index_lock:
            known = self.indexes
            for index in indexes:
                if not any(index is other for other in known):
                    self._feed(index)
            self.indexes = tuple(indexes)
            self._measure()

    def _feed(self, index: MemIndex) -> None:
        start = 0
        for _, chunk in self._chunks:
            index.insert(chunk, start)
            start += chunk.num_rows
        for batch, _, rows, _ in self._log[self._chunks[-1][0] if self._chunks else 0 : self._indexed_batches]:
            if batch is not None:
                index.insert(batch, start)
            start = rows

    def _measure(self) -> None:
        size = sum(index.size_bytes for index in self.indexes)
        if size != self._metered:
            self._meter.add(size - self._metered)
            self._metered = size

    def measure(self) -> None:
        """Tell the meter how large the indexes are now."""
        with self._index_lock:
            self._measure()

    def take_indexed(self) -> int:
        """Rows that were indexed since this was last asked."""
        with self._index_lock:
            rows, self._uncounted_rows = self._uncounted_rows, 0
        return rows

    def searched(self) -> None:
        """Measure what a search built, and say so where the next one would gain by a graph."""
        if not self.indexes:
            return
        with self._index_lock:
            self._measure()
            on_search = self._on_search
        if on_search is not None and any(isinstance(i, HnswMemIndex) and i.wants_graph for i in self.indexes):
            on_search()

    # ----------------------------------------------------------------------------------------- what readers share

    def combined(self, num_batches: int) -> pa.Table:
        """The rows of the first `num_batches` batches with `_tombstone`, in few chunks."""
        refuse_on_top(self._lock, "a read")
        with self._lock:
            return self._table(num_batches)

    def _table(self, num_batches: int) -> pa.Table:
        """As `combined`; the lock is held."""
        self._combine(num_batches)
        table = pa.Table.from_batches([chunk for _, chunk in self._chunks], schema=self.schema.shown.memory)
        rows = self._rows_of(num_batches)
        return table if table.num_rows == rows else table.slice(0, rows)

    def stored(self, num_batches: int) -> Iterator[pa.RecordBatch]:
        """The rows of the first `num_batches` batches as they are written, with `_tombstone`: in few batches, or, where
        there are blobs, in parts of a few megabytes of them."""
        table = self.combined(num_batches)
        if self._blobs is None:
            yield from table.to_batches()
            return
        sizes = sizes_of([table.column(name) for name in self.schema.blobs], table.num_rows)
        for start, end in by_bytes(sizes):
            part = table.slice(start, end - start)
            spans = list(self._spans(start, end))
            columns = [
                self._blobs.rows(spans, name) if name in self.schema.blobs else one_array(part.column(name))
                for name in part.schema.names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema.memory)

    def _spans(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The rows from `start` to `end` by batch: its number, the first row there, and how many."""
        while start < end:
            number, begin = self._place_of(start)
            stop = min(end, self._log[number][2])
            yield number, start - begin, stop - start
            start = stop

    def _place_of(self, row: int) -> tuple[int, int]:
        """The number of the batch that brought a row, and the first row of that batch."""
        number = bisect_right(self._log, row, key=lambda item: item[2])
        return number, self._log[number - 1][2] if number else 0

    def take_blobs(self, rows: npt.NDArray[np.int64], name: str) -> pa.Array:
        """The blobs of some rows, in stored form; `name` is that of `bytes_of`."""
        column = blob_column_of(name)
        if self._blobs is None or column is None:
            raise InvalidInputError(f"column {name!r} holds no blobs")
        places = ((row, *self._place_of(row)) for row in rows.tolist())
        return self._blobs.rows([(number, row - begin, 1) for row, number, begin in places], column)

    def blob(self, row: int, column: str) -> pa.Buffer | None:
        """The bytes of one blob, without a copy if they are in memory; None if it is null."""
        if self._blobs is None:
            raise InvalidInputError(f"column {column!r} holds no blobs")
        number, begin = self._place_of(row)
        return blob_buffer(self._blobs.of(number, column), row - begin)

    def locate(self, num_batches: int, row: int) -> tuple[dict[str, pa.Array], int]:
        """The combined columns that hold a row of the first `num_batches` batches, and its place there."""
        refuse_on_top(self._lock, "a read")
        with self._lock:
            self._combine(num_batches)
            for _, chunk in self._chunks:
                if row < chunk.num_rows:
                    return self._columns_of(chunk), row
                row -= chunk.num_rows
        raise IndexError(row)

    def take(self, num_batches: int, rows: npt.NDArray[np.int64], names: Sequence[str]) -> list[pa.Array]:
        """These columns of some rows of the first `num_batches` batches, in the order of `rows` (one at least)."""
        refuse_on_top(self._lock, "a read")
        with self._lock:
            done = self._chunks[-1][0] if self._chunks else 0
            if num_batches - done > _LOOSE_BATCHES:
                self._combine(num_batches)
                done = num_batches
            at = [self._columns[name] for name in names if name != TOMBSTONE or self._has_tombstones]
            first = self._chunks[0][1] if self._chunks else None
            if not at:
                taken = []
            elif first is not None and max(rows.tolist()) < first.num_rows:
                taken = self._take_from(first, rows, at)
            else:
                taken = self._take_from_many(self._log[done:num_batches], rows, at)
        if len(taken) < len(names):
            taken.insert(names.index(TOMBSTONE), live_flags(len(rows)))
        return taken

    def _take_from(self, chunk: pa.RecordBatch, rows: npt.NDArray[np.int64], columns: list[int]) -> list[pa.Array]:
        """These columns of some rows of a chunk."""
        taken: list[pa.Array] = chunk.select(columns).take(row_numbers(rows)).columns
        return taken

    def _take_from_many(
        self, loose: Sequence[_Appended], rows: npt.NDArray[np.int64], columns: list[int]
    ) -> list[pa.Array]:
        """From chunks and `loose` batches: Arrow itself would join all of them. Those that are short are joined here, too,
        with the rows that were taken from long ones: rows 5 and 9000 of chunks with 8000 and 2000 rows are the rows 0 and 1001
        of [row 5, the second chunk]."""
        chunks = [chunk for _, chunk in self._chunks]
        ends = [*accumulate(chunk.num_rows for chunk in chunks), *map(_end_row, loose)]
        which = np.array(ends).searchsorted(rows, side="right")
        parts: list[list[pa.Array]] = []
        places, joined = np.empty(len(rows), dtype=np.int64), 0
        for number in sorted(set(which.tolist())):
            own = which == number
            inside = rows[own] - (ends[number - 1] if number else 0)
            if number >= len(chunks):
                parts.append(self._loose_columns(loose[number - len(chunks)], columns))
            elif chunks[number].num_rows <= _SHORT_ROWS:
                parts.append([chunks[number].column(i) for i in columns])
            else:
                parts.append(self._take_from(chunks[number], inside, columns))
                inside = np.arange(len(inside))
            places[own] = inside + joined
            joined += len(parts[-1][0])
        at = row_numbers(places)
        return [pa.concat_arrays(arrays).take(at) for arrays in zip(*parts, strict=True)]

    def _loose_columns(self, appended: _Appended, columns: list[int]) -> list[pa.Array]:
        """These columns of a batch that is in no chunk yet."""
        batch, flags = appended[:2]
        if batch is None:
            raise AssertionError("a batch that is in no chunk is here")
        live = live_flags(batch.num_rows) if flags is None else flags
        return [live if i == batch.num_columns else batch.column(i) for i in columns]

    def rows_before(self, batch: int) -> int:
        """How many of its rows are of batches before the one with this writer-wide number."""
        return self._rows_of(max(0, min(batch - self.first_batch, len(self._log))))

    def _columns_of(self, chunk: pa.RecordBatch) -> dict[str, pa.Array]:
        """The columns of a chunk by name; those of the last one are kept, since making them takes longer than a look."""
        last = self._last_located
        if last is None or last[0] is not chunk:
            last = self._last_located = (chunk, dict(zip(chunk.schema.names, chunk.columns, strict=True)))
        return last[1]

    def _combine(self, num_batches: int) -> None:
        done = self._chunks[-1][0] if self._chunks else 0
        refuse_on_top(self._index_lock, "a read")
        with self._index_lock:
            self._index_upto(num_batches)
        while done < num_batches:
            end = self._chunk_end(done, num_batches)
            self._chunks.append((end, self._combine_new(done, end)))
            self._forget_batches(done, end)
            self._merge_chunks()
            done = end

    def _forget_batches(self, start: int, end: int) -> None:
        """Let go of batches that are in a chunk: captures read it, and they would only hold the same rows a second time.

        Some at a time: to free thousands takes milliseconds, in which no other thread could have the interpreter.
        """
        for first in range(start, end, _FREED_AT_ONCE):
            last = min(end, first + _FREED_AT_ONCE)
            self._log[first:last] = [(None, None, rows, size) for _, _, rows, size in self._log[first:last]]

    def _chunk_end(self, start: int, end: int) -> int:
        """Where the chunk that begins with batch `start` ends: at `end`, or before it grows too large."""
        limit = (self._log[start - 1][3] if start else 0) + _CHUNK_BYTES
        if self._log[end - 1][3] <= limit:
            return end
        return next((i for i in range(start + 1, end) if self._log[i][3] > limit), end)

    def _merge_chunks(self) -> None:
        """Keep the chunks few: the last one joins its neighbour once it is half as long, or earlier if both are small."""
        while len(self._chunks) > 1:
            (_, older), (end, newer) = self._chunks[-2:]
            joined_bytes = older.nbytes + newer.nbytes
            ratio = _SMALL_RATIO if joined_bytes <= _SMALL_CHUNK_BYTES else 2
            if newer.num_rows * ratio <= older.num_rows or joined_bytes > _CHUNK_BYTES:
                return
            self._chunks[-2:] = [(end, _concat([older, newer], self.schema.shown.memory))]
            self._last_located = None  # it may hold on to what was joined

    def _combine_new(self, start: int, end: int) -> pa.RecordBatch:
        columns, memory = self.schema.shown.nullable, self.schema.shown.memory
        appended = [(batch, flags) for batch, flags, _, _ in self._log[start:end] if batch is not None]
        rows = _concat(
            [
                b if b.schema.equals(columns) else pa.RecordBatch.from_arrays(b.columns, schema=columns)
                for b, _ in appended
            ],
            columns,
        )
        if all(flags is None for _, flags in appended):
            tombstone = live_flags(rows.num_rows)
        else:
            tombstone = pa.concat_arrays([live_flags(len(b)) if flags is None else flags for b, flags in appended])
        return pa.RecordBatch.from_arrays([*rows.columns, tombstone], schema=memory)

    def index(self, num_batches: int) -> KeyIndex:
        """The key index, brought up to at least the first `num_batches` batches."""
        rows = self._rows_of(num_batches)
        index = self._index
        if index is not None and index.num_rows >= rows:
            return index
        refuse_on_top(self._lock, "a read")
        with self._lock:
            index = self._index if self._index is not None else KeyIndex()
            if index.num_rows < rows:
                before = index.size_bytes
                index.extend(self._keys_after(index.num_rows, num_batches))
                self._meter.add(index.size_bytes - before)
            self._index = index
        return index

    def _keys_after(self, start: int, num_batches: int) -> list[pa.Array]:
        """The key columns of the first `num_batches` batches, without the first `start` rows."""
        key = self.schema.primary_key
        last = self._log[num_batches - 1][0]
        if last is not None and self._rows_of(num_batches - 1) == start:  # where every write is looked up
            return [last.column(self._columns[name]) for name in key]
        done = self._chunks[-1][0] if self._chunks else 0
        if self._rows_of(done) > start or num_batches - done > _LOOSE_BATCHES:
            fresh = self._table(num_batches).slice(start)
            return [one_array(fresh.column(name)) for name in key]
        first = bisect_right(self._log, start, key=_end_row)
        batches = [batch for batch, _, _, _ in self._log[first:num_batches] if batch is not None]
        if len(batches) == 1:
            return [batches[0].column(name) for name in key]
        return [pa.concat_arrays([batch.column(name) for batch in batches]) for name in key]


@dataclass(frozen=True, slots=True, eq=False)
class InMemoryMemTableRef:
    """The first batches of a memtable, as a reader captured them. A capture never changes."""

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
        return self.memtable.schema.shown.columns

    @property
    def indexes(self) -> tuple[MemIndex, ...]:
        """The memtable's indexes; every captured row is in them."""
        return self.memtable.filled_indexes(self.num_batches)

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The captured rows with `_tombstone` last, in few batches."""
        return self.table().to_batches() if self.num_batches else []

    def table(self) -> pa.Table:
        """All captured rows, older versions and tombstones included, `_tombstone` last."""
        return self.memtable.combined(self.num_batches)

    def stored(self) -> Iterator[pa.RecordBatch]:
        """The captured rows as they are written, blobs included, streaming."""
        return self.memtable.stored(self.num_batches)

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
        tombstones = tombstone_flags(table)
        mask &= ~tombstones
        columns = table.drop_columns([TOMBSTONE])
        return columns if mask.all() else columns.filter(pa.array(mask))

    def locate(self, row: int) -> tuple[dict[str, pa.Array], int]:
        """The columns that hold a captured row, `_tombstone` last, and its place there."""
        return self.memtable.locate(self.num_batches, row)

    def find(self, keys: Sequence[Any]) -> npt.NDArray[np.int64]:
        """Per key (as `key_values` makes them): the newest captured row, or -1."""
        if not self.num_batches:
            return np.full(len(keys), -1, dtype=np.int64)
        return self.memtable.index(self.num_batches).find(keys, self.num_rows)

    def take(self, rows: npt.NDArray[np.int64], names: Sequence[str]) -> list[pa.Array]:
        """These columns of captured rows, in the order of `rows` (one at least); bytes of blobs by `bytes_of`."""
        if not self.memtable.schema.blobs:
            return self.memtable.take(self.num_batches, rows, names)
        plain = [name for name in names if blob_column_of(name) is None]
        found = dict(zip(plain, self.memtable.take(self.num_batches, rows, plain), strict=True))
        return [found[name] if name in found else self.memtable.take_blobs(rows, name) for name in names]

    def find_one(self, key: Any) -> int:
        """`find` for one key."""
        if not self.num_batches:
            return -1
        return self.memtable.index(self.num_batches).find_one(key, self.num_rows)

    def __repr__(self) -> str:
        return f"InMemoryMemTableRef(generation={self.generation}, num_rows={self.num_rows})"


@dataclass(frozen=True, slots=True)
class InMemoryMemTables:
    """Active and frozen memtables of one writer of one table, captured together."""

    active: InMemoryMemTableRef
    frozen: tuple[InMemoryMemTableRef, ...]
    shard_id: str
    epoch: int
    table_id: str | None = None

    def is_of(self, table_id: str | None) -> bool:
        """Return whether the rows may belong to the table with this id. An unknown id excludes nothing."""
        return self.table_id is None or table_id is None or self.table_id == table_id

    @property
    def ascending(self) -> tuple[InMemoryMemTableRef, ...]:
        """The memtables by generation, each generation once, regardless of the order of `frozen`."""
        if not self.frozen:
            return (self.active,)
        by_size = sorted((*self.frozen, self.active), key=_generation_and_size)
        return tuple({ref.generation: ref for ref in by_size}.values())

    @classmethod
    def merged(cls, captures: Sequence[InMemoryMemTables]) -> InMemoryMemTables:
        """Merge captures of one shard, given in any order. Captures of earlier epochs do not count."""
        newest = max(captures, key=lambda capture: (capture.epoch, *_generation_and_size(capture.active)))
        if len(captures) == 1:
            return newest
        refs = [ref for c in captures if c.epoch == newest.epoch for ref in (*c.frozen, c.active)]
        return replace(newest, frozen=tuple(refs))


def _generation_and_size(ref: InMemoryMemTableRef) -> tuple[int, int]:
    return ref.generation, ref.num_batches


def _concat(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return aligned(batches[0])
    table = pa.Table.from_batches(
        batches, schema=schema
    ).combine_chunks()  # not column by column: that is done in Python
    return pa.RecordBatch.from_arrays([one_array(column) for column in table.columns], schema=schema)
