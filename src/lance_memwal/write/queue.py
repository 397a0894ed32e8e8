"""Writes on their way into the log: rows, pending writes, the queue of small puts, and the bytes of an entry.

Owns `WriteRows`, `Pending`, `Entry` and `EntryBuilder`, which are values and encoding, and `QueuedPut` and `PutQueue`.
A thread that waits for storage anyway lets the leader fit and insert its rows too: then one thread at a time runs, instead
of all of them wanting the interpreter between the leader's system calls. Invariants:

1. The totals after a write (batches, bytes, run) are part of it, so that the newest write says where the queue ends.
2. The bytes of an entry are made once. Rows that could fail to be encoded, or are many, are encoded by their
   own threads before they are pending: what cannot be encoded fails its own write. Few rows of plain types wait for their
   entry, of which they become one batch: to encode batches one by one takes longer than to join them. What an entry takes
   at most is known before. They wait in memory of their own: what was validated is what is encoded, whatever a caller
   does with its buffers.
3. A put is taken out of the queue by one leader, which inserts it or records its error. An error is raised in the caller
   of that put alone; the others continue.
4. A caller sleeps until its put is done or until it should lead. Callers that were served together wake each other, one
   after the other. A lost wake-up costs a second.
5. The leader never waits for room: a put that finds none stays queued, and its caller waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.log.entry import EntryEncoder, RowEncoder
from lance_memwal.log.tail import LogRun
from lance_memwal.memtable.memtable import unpinned
from lance_memwal.process.waiting import Place
from lance_memwal.rows.fit import LiveFlags, at_most
from lance_memwal.rows.schema import TableSchema
from lance_memwal.types import TOMBSTONE_FIELD, EntryFooter, EntryTransaction

_FRAMING_BYTES = 1024  # at least what a column of a few rows costs beside its values
_SMALL_BYTES = 64 * 1024  # rows that are joined with those of other puts
_JOINED_BYTES = 8 << 20  # of one batch that was joined


@dataclass(slots=True)
class WriteRows:
    """Rows of one write, fitted to `schema`: batches, and per batch its tombstone flags (None: all live) and bytes.

    `messages` are the rows as they stand in an entry, once they are encoded; None where that is done with the entry.
    `wire_bytes` is about what they add to it, `most_bytes` no less than that. Rows with blobs are `unencoded`, and encoded
    with their entry: their bytes would be in memory twice until then.
    """

    schema: TableSchema
    batches: list[pa.RecordBatch]
    flags: list[pa.BooleanArray | None]
    sizes: list[int]
    num_rows: int
    size_bytes: int
    messages: list[pa.Buffer] | None = None
    unencoded: Sequence[pa.RecordBatch] = ()
    wire_bytes: int = 0
    most_bytes: int = 0

    @classmethod
    def of_one(cls, schema: TableSchema, batch: pa.RecordBatch, size_bytes: int | None = None) -> WriteRows:
        """The rows of one batch, as `of` makes them; `size_bytes`: of its buffers, if known."""
        own, size = unpinned(batch, size_bytes)
        return cls(schema, [own], [None], [size], own.num_rows, size)

    @classmethod
    def of(cls, schema: TableSchema, batches: Sequence[pa.RecordBatch], *, tombstones: bool = False) -> WriteRows:
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
        return cls(schema, owned, flags, sizes, num_rows, sum(sizes))

    @classmethod
    def flagged(cls, schema: TableSchema, batches: Sequence[pa.RecordBatch]) -> WriteRows:
        """The rows of `batches`, whose last column says which of them are tombstones."""
        rows = cls.of(schema, [batch.remove_column(batch.num_columns - 1) for batch in batches])
        rows.flags = [batch.column(batch.num_columns - 1) for batch in batches]
        return rows


class Pending:
    """One inserted write that is not yet on storage; `end`, `end_bytes` and `run` are the totals after it."""

    __slots__ = ("end", "end_bytes", "put", "rows", "run", "start", "txns")

    def __init__(
        self, rows: WriteRows, start: int, start_bytes: int, run: LogRun, txns: tuple[EntryTransaction, ...]
    ) -> None:
        """`run`: the one that the write belongs to, and ends with it. `txns`: its transactions, by its own rows."""
        self.rows = rows
        self.start = start
        self.end = start + len(rows.batches)
        self.end_bytes = start_bytes + rows.wire_bytes
        self.run = run
        self.txns = txns
        self.put: QueuedPut | None = None

    @property
    def generation(self) -> int:
        """The generation that its rows belong to."""
        return self.run.generation


class QueuedPut:
    """One put on its way: its batches, and then the pending write that they became, or the error that they met.

    Its caller waits at `place`.
    """

    __slots__ = (
        "batches",
        "error",
        "fill",
        "fit",
        "pending",
        "place",
        "rows",
        "size_bytes",
        "started",
        "txns",
        "waited",
    )

    def __init__(
        self,
        batches: list[pa.RecordBatch],
        size_bytes: int,
        fit: Callable[[list[pa.RecordBatch], bool, int], WriteRows],
        fill: bool,
        started: float,
        txns: tuple[EntryTransaction, ...] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`fit` makes rows of the batches, of `fill`, and of their size; it is called by the leader, without locks."""
        self.place = Place(clock)
        self.batches = batches
        self.size_bytes = size_bytes
        self.fit = fit
        self.fill = fill
        self.started = started
        self.txns = txns
        self.rows: WriteRows | None = None
        self.pending: Pending | None = None
        self.error: Exception | None = None
        self.waited = False  # for room, and counted for it

    @property
    def is_taken(self) -> bool:
        """Whether a leader inserted this put, or refused it."""
        return self.pending is not None or self.error is not None


class PutQueue:
    """The puts that no leader has taken yet."""

    __slots__ = ("_expected", "_served", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[QueuedPut] = deque()
        self._expected = 0  # puts that joined an entry lately
        self._served: Place | None = None

    def append(self, put: QueuedPut) -> None:
        """Queue a put; its caller then leads, or sleeps."""
        self._waiting.append(put)

    def withdraw(self, put: QueuedPut) -> None:
        """Forget a put whose caller was interrupted, if nobody took it yet: it must not show up later."""
        try:  # noqa: SIM105 (on the way of every put)
            self._waiting.remove(put)
        except ValueError:
            pass

    def is_oldest(self, put: QueuedPut) -> bool:
        """Whether nobody has waited longer."""
        try:
            return self._waiting[0] is put
        except IndexError:
            return False

    @property
    def size_bytes(self) -> int:
        """Bytes of the puts in the queue."""
        return sum(put.size_bytes for put in tuple(self._waiting))

    def gather(self, clock: Clock) -> None:
        """Wait briefly so that concurrent puts share one entry: until as many wait as lately.

        The leader never sleeps. It only gives up the interpreter, and stops when that adds no put. Without the wait, the
        entries of eight threads have two puts instead of seven.
        """
        count = len(self._waiting)
        while count < self._expected:
            clock.sleep(0)
            before, count = count, len(self._waiting)
            if count == before:
                break
        self._expected = max(count, self._expected - 1)

    def take(self, insert: Callable[[QueuedPut], bool], leader: QueuedPut | None) -> bool:
        """Insert all puts, oldest first; False if one found no room. The caller has the turn to commit."""
        waiting = self._waiting
        while waiting:
            put = self._oldest()
            if put is None:
                break
            try:
                if not insert(put):
                    return False
            except Exception as error:
                put.error = error
                if put is not leader:
                    put.place.wake()
            self.withdraw(put)  # by name: its caller may have done so
        return True

    def serve(self, put: QueuedPut) -> None:
        """Note that a put is on storage; the caller has the turn."""
        put.place.follower, self._served = self._served, put.place

    def wake_served(self) -> None:
        """Wake the callers of all puts that were served, one by one: all at once they would fight for the interpreter."""
        if self._served is not None:
            self._served.wake()
            self._served = None

    def wake_next(self) -> None:
        """Let the oldest put that nobody took lead."""
        if self._waiting:
            put = self._oldest()
            if put is not None:
                put.place.wake()

    def _oldest(self) -> QueuedPut | None:
        try:
            return self._waiting[0] if self._waiting else None
        except IndexError:  # withdrawn meanwhile
            return None

    def wake_all(self) -> None:
        """Wake the caller of every put in the queue."""
        for put in tuple(self._waiting):
            put.place.wake()


class Entry:
    """An entry of the log: its writes, its footer, and its bytes once they are encoded."""

    __slots__ = ("data", "footer", "group")

    def __init__(self, group: list[Pending], footer: EntryFooter) -> None:
        self.group = group
        self.footer = footer
        self.data = b""


class EntryBuilder:
    """Makes the bytes of entries of one epoch. Any thread may encode rows, the leader of a commit encodes entries."""

    __slots__ = (
        "_all_live",
        "_arrays",
        "_encoder",
        "_epoch",
        "_has_blobs",
        "_limit_bytes",
        "_max_batches",
        "_memory",
        "_rows",
        "_schema",
        "_target",
        "_waits",
    )

    def __init__(
        self,
        schema: TableSchema,
        epoch: int,
        limit_bytes: int,
        target: Callable[[int], Mapping[bytes, str]],
        *,
        max_batches: int,
    ) -> None:
        """Encode entries with at most `limit_bytes` of rows. `target` returns the file names that an entry of a generation
        carries. If one write has more than `max_batches` batches, its entry holds them joined: pylance's memtables take no
        more."""
        self._schema = schema.wal
        self._memory = schema.memory
        self._epoch = epoch
        self._limit_bytes = limit_bytes
        self._max_batches = max_batches
        self._target = target
        self._rows = RowEncoder(schema.wal)
        self._has_blobs = bool(schema.blobs)
        self._waits = self._rows.never_fails and not self._has_blobs  # small rows, for their entry
        self._arrays = sum(_count_arrays(field.type) for field in schema.wal)
        self._encoder: EntryEncoder | None = None
        self._all_live = LiveFlags()

    def encode_rows(self, rows: WriteRows) -> bool:
        """See to it that whichever entry takes `rows` can be encoded; False if no entry can hold them.

        What cannot be encoded is an error of their write alone. Columns may share buffers, and each is written for
        itself: where that could matter, what would be written is measured.
        """
        size = rows.size_bytes
        most = (size + _FRAMING_BYTES * len(rows.batches)) * self._arrays
        if size <= _SMALL_BYTES and most <= self._limit_bytes and self._waits:
            rows.batches = list(map(_owned, rows.batches))
            rows.wire_bytes, rows.most_bytes = size + _FRAMING_BYTES, most
            return True
        if self._has_blobs:
            rows.unencoded = list(map(self._flagged, rows.batches, rows.flags))
            rows.wire_bytes = rows.most_bytes = self._rows.measure(rows.unencoded)
            return rows.wire_bytes <= self._limit_bytes
        flagged = self._all_flagged(rows.batches, rows.flags)
        if most > self._limit_bytes and self._rows.measure(flagged) > self._limit_bytes:
            return False
        rows.messages = messages = self._rows.messages(flagged)
        rows.wire_bytes = rows.most_bytes = sum(message.size for message in messages)
        return True

    def _flagged(self, batch: pa.RecordBatch, flags: pa.BooleanArray | None) -> pa.RecordBatch:
        """`batch` with the flags of its tombstones; None: it has none."""
        return batch.append_column(TOMBSTONE_FIELD, self._all_live[batch.num_rows] if flags is None else flags)

    def _all_flagged(self, batches: list[pa.RecordBatch], flags: list[pa.BooleanArray | None]) -> list[pa.RecordBatch]:
        """The batches of one write with their tombstone flags, joined if they are more than an entry may hold."""
        return at_most(self._max_batches, list(map(self._flagged, batches, flags)), self._memory)

    def encode(self, entry: Entry) -> bytes:
        """The bytes of `entry`, whose writes are of one generation, and were given to `encode_rows`."""
        group = entry.group
        generation = group[0].run.generation
        encoder = self._encoder
        if encoder is None or encoder.generation != generation:
            target = self._target(generation)
            self._encoder = encoder = EntryEncoder(self._schema, self._epoch, generation, target)
        if self._has_blobs:
            writes = (at_most(self._max_batches, list(item.rows.unencoded), self._memory) for item in group)
            return encoder.encode(list(chain.from_iterable(writes)), entry.footer)
        return encoder.assemble(self._messages(group), entry.footer)

    def _messages(self, group: list[Pending]) -> Sequence[pa.Buffer]:
        """The messages of an entry."""
        if len(group) > 1:
            return list(self._shared(group))
        rows = group[0].rows
        return self._each(rows.batches, rows.flags) if rows.messages is None else rows.messages

    def _each(self, batches: list[pa.RecordBatch], flags: list[pa.BooleanArray | None]) -> list[pa.Buffer]:
        return self._rows.messages(self._all_flagged(batches, flags))

    def _shared(self, group: list[Pending]) -> Iterator[pa.Buffer]:
        """The messages of an entry of several writes: rows that are encoded as they are, those between them joined."""
        batches: list[pa.RecordBatch] = []
        flags: list[pa.BooleanArray | None] = []
        size = 0
        for item in group:
            rows = item.rows
            if batches and (rows.messages is not None or size + rows.size_bytes > _JOINED_BYTES):
                yield from self._joined(batches, flags)
                batches, flags, size = [], [], 0
            if rows.messages is not None:
                yield from rows.messages
            else:
                batches += rows.batches
                flags += rows.flags
                size += rows.size_bytes
        if batches:
            yield from self._joined(batches, flags)

    def _joined(self, batches: list[pa.RecordBatch], flags: list[pa.BooleanArray | None]) -> list[pa.Buffer]:
        """The message of some rows as one batch; of each batch, where they say different things of nulls."""
        try:
            rows = pa.concat_batches(batches)
        except pa.ArrowException:
            return self._each(batches, flags)
        dead = None
        if any(own is not None for own in flags):
            live = self._all_live
            dead = pa.concat_arrays(
                [live[b.num_rows] if own is None else own for b, own in zip(batches, flags, strict=True)]
            )
        return self._rows.messages([self._flagged(rows, dead)])


def _owned(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch`, whose types are plain, in buffers that nobody else has."""
    return pa.concat_batches([batch, batch.slice(0, 0)])  # of two batches, the result is always a new one


def _count_arrays(data_type: pa.DataType) -> int:
    """The arrays of a column, its children included."""
    storage = data_type.storage_type if isinstance(data_type, pa.BaseExtensionType) else data_type
    return 1 + sum(_count_arrays(storage.field(i).type) for i in range(storage.num_fields))
