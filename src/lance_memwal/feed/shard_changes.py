"""The changes of one shard: its log, and what bulk writes announced there, as rows.

Owns `ShardChanges`. Invariants:

1. Positions are read in order, each once. Where the log ends is decided by the rule of every reader
   (`lance_memwal.log.reading`): nothing is skipped because it is missing.
2. A bulk mark stands for the rows of its directory. Until it is decided whether it counts
   (`lance_memwal.log.bulk_marks`), the feed ends before it.
3. After the entries the floor is looked at: what is at or below it is a `CollectedError`, even if an object is there.
4. Memory: entries of about eight megabytes, or one part of an SSTable.
5. A generation without entries and without a mark (a release before RFC 0018 wrote such) is an error, never a gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lance_memwal.clock import POLL, SYSTEM_CLOCK, Clock
from lance_memwal.errors import CollectedError, CorruptDataError, ObjectNotFoundError
from lance_memwal.feed.changed_rows import ChangedRows, changed_rows, one_transaction, times_of
from lance_memwal.feed.cursor import Place
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.bulk_marks import is_published
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import is_missing, list_positions, read_run, written_ms
from lance_memwal.log.shards import Floor
from lance_memwal.log.tailer import WalTailer, entry_at
from lance_memwal.rows.adapt import RowAdapter
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.read import open_sstable
from lance_memwal.store import paths
from lance_memwal.types import TOMBSTONE, SsTable, WalEntry

REMEDY = "read the table once more (start='snapshot') and go on from there"
_CHUNK_BYTES = 8 << 20
_CHUNK_ROWS = 1 << 16
_CHUNK_ENTRIES = 4096
_MARK_BYTES = 1 << 16  # a mark is smaller, unless thousands of applications write to the shard


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some changes, none if only marks were passed, and the place after them."""

    changes: ChangedRows | None
    place: Place


@dataclass(slots=True)
class _OpenBulk:
    """A bulk write that is being read: its mark, its parts, and how many rows were taken."""

    mark: WalEntry
    parts: Iterator[tuple[pa.RecordBatch, object]]
    rows: int = 0


class ShardChanges:
    """Reads the changes of one shard; one thread at a time."""

    def __init__(self, base: BaseTable, shard_id: str, stored: TableSchema, clock: Clock = SYSTEM_CLOCK) -> None:
        """`stored` are the columns to read, as they are stored."""
        self.shard_id = shard_id
        self._location = base.location
        self._tag = base.tag
        self._stored = stored
        self._adapter = RowAdapter(stored)
        self._tailer = WalTailer(base.location, shard_id, clock=clock)
        self._manifests = ShardManifestStore(base.location, shard_id, clock=clock)
        self._floor = Floor(base.location, shard_id, clock)
        self._listed = 0  # up to here a listing showed every position from where we stood
        self._generation: int | None = None  # of the newest rows that were read
        self._bulk: _OpenBulk | None = None
        self._clock = clock
        self._undecided = 0  # how often the next mark was looked at in vain
        self._look_after = 0.0

    # -------------------------------------------------------------------------------------------------------- places

    def earliest(self) -> Place:
        """The first place from which everything can be read, and will be for a while."""
        first = self._tailer.first_position()
        return Place(max(first - 1, self._floor.announced()))

    def lowest(self) -> Place:
        """The first place from which everything can be read now. Collection may pass it soon, unless somebody keeps it."""
        first = self._tailer.first_position()
        return Place(max(first - 1, self._floor.position()))

    def latest(self) -> Place:
        """The place after everything that is decided now."""
        tip = self._tailer.next_position() - 1
        entry = entry_at(self._tailer, tip) if tip else None
        if entry is not None and entry.bulk is not None and self._counts(entry) is None:
            return Place(tip - 1)
        return Place(tip)

    def before_mark(self, tip: int, cursor: int) -> Place:
        """The place after `tip`, where `cursor` is what a snapshot went by: a bulk write that is announced at the tip is not
        part of that. `CollectedError` if nobody knows any more what was there."""
        if tip <= cursor:
            return Place(tip)
        entry = entry_at(self._tailer, tip)
        if entry is None:
            raise self._collected(tip)
        return Place(tip if entry.bulk is None else tip - 1)

    def at(self, time_ms: int) -> Place:
        """The place before the first change at or after a time; `CollectedError` if nobody knows any more."""
        low, high = self.earliest().position, self.latest().position
        first = low
        while low < high:  # the time of everything at or below `low` is before it
            middle = (low + high + 1) // 2
            if self._time_at(middle) < time_ms:
                low = middle
            else:
                high = middle - 1
        if low == first and first > 0:
            raise CollectedError(
                f"the log of shard {self.shard_id} begins after that time: what changed before position {first + 1} was "
                f"collected; {REMEDY}"
            )
        return Place(low)

    def _read(self, position: int) -> WalEntry | None:
        """The entry at `position`, or None if the log ends before it."""
        try:
            return self._tailer.read_entry(position)
        except CollectedError as error:
            raise self._collected(position) from error

    def _collected(self, position: int) -> CollectedError:
        return CollectedError(f"the change at position {position} of shard {self.shard_id} was collected; {REMEDY}")

    def _time_at(self, position: int) -> int:
        entry = self._read(position)
        if entry is None:
            raise CorruptDataError("WAL entry is missing inside the log", position=position)
        return self._time_of(entry)

    def _time_of(self, entry: WalEntry) -> int:
        time_ms = written_ms(self._location, self.shard_id, entry.position, entry.footer)
        if time_ms is None:
            raise self._collected(entry.position)
        return time_ms

    def cost(self, position: int, *, count_rows: bool) -> tuple[int, int]:
        """Rows (0 unless they are counted) and bytes of one entry, or of the bulk write that it announces."""
        path = paths.wal_entry_path(self.shard_id, position)
        if not count_rows:
            try:
                size_bytes = self._location.store.head(path).size_bytes
            except ObjectNotFoundError:
                return 0, 0
            if size_bytes > _MARK_BYTES:
                return 0, size_bytes
        entry = self._read(position)
        if entry is None:
            return 0, 0
        bulk = entry.bulk
        if bulk is not None:
            return bulk.physical_rows or 0, bulk.in_memory_bytes or 0
        return entry.num_rows, entry.size_bytes

    # -------------------------------------------------------------------------------------------------------- looking

    def has_more(self, place: Place) -> bool:
        """Whether there is an entry after `place`: one cheap request. False does not say that the log ends there."""
        if self._undecided and self._clock.monotonic() < self._look_after:
            return False
        if place.position < self._listed or self._bulk is not None:
            return True
        try:
            self._location.store.head(paths.wal_entry_path(self.shard_id, place.position + 1))
        except ObjectNotFoundError:
            return False
        return True

    def look(self, place: Place) -> bool:
        """Whether the log goes on after `place`, for certain.

        `CollectedError` if collection passed it, `CorruptDataError` if an entry is missing, `TableReplacedError` if the
        table was made anew.
        """
        start = place.position + 1
        if self._read(start) is None:
            return False
        positions = np.array(list_positions(self._location, self.shard_id), dtype=np.int64)
        ahead = positions[np.searchsorted(positions, start) :]
        run = ahead[ahead == np.arange(start, start + len(ahead))]
        self._listed = int(run[-1]) if len(run) else self._listed
        return True

    # -------------------------------------------------------------------------------------------------------- reading

    def take(self, place: Place, until: Place | None = None) -> Chunk | None:
        """The next changes after `place`, not beyond `until`; None if there are none now."""
        if until is not None and place >= until:
            return None
        last = None if until is None else until.position
        entries: list[WalEntry] = []
        size_bytes = rows = 0
        mark: WalEntry | None = None
        if last is None or place.position < last:
            for entry in self._entries(place.position + 1, last):
                if entry.bulk is not None:
                    mark = entry
                    break
                entries.append(entry)
                size_bytes, rows = size_bytes + entry.size_bytes, rows + entry.num_rows
                if size_bytes >= _CHUNK_BYTES or rows >= _CHUNK_ROWS or len(entries) >= _CHUNK_ENTRIES:
                    break
        else:  # a part of a bulk write is left
            mark = self._read(place.position + 1)
        if entries:
            return self._chunk(place, entries)
        return None if mark is None else self._bulk_chunk(place, mark, until)

    def _entries(self, start: int, last: int | None) -> Iterator[WalEntry]:
        """The entries from `start` on that are there: first what a listing showed, then one after the other."""
        position = start
        end = self._listed + 1 if last is None else min(self._listed, last) + 1
        if position < end:
            try:
                for entry in read_run(self._location, self.shard_id, position, end, tag=self._tag):
                    yield self._own(entry)
                    position = entry.position + 1
            except CorruptDataError as error:
                if error.position is None or self._read(error.position) is None:
                    raise
                return  # it is there by now
        while last is None or position <= last:
            found = entry_at(self._tailer, position)
            if found is None:
                return
            yield found
            position += 1

    def _own(self, entry: WalEntry) -> WalEntry:
        """The entry; one of another table is asked for again, by who looks whether the table is still ours."""
        if entry.writer_epoch == 0:
            entry_at(self._tailer, entry.position)
        return entry

    def _chunk(self, place: Place, entries: list[WalEntry]) -> Chunk:
        with_rows = [(entry, self._time_of(entry)) for entry in entries if entry.batches]
        for entry, _ in with_rows:
            self._follow(entry.generation)
        self._refuse_collected(place)
        changes = changed_rows(self.shard_id, with_rows, self._adapter, self._stored)
        return Chunk(changes, Place(entries[-1].position))

    def _follow(self, generation: int | None) -> None:
        """Go on with rows of this generation; one that is left out was written where no reader of changes finds it."""
        if generation is None:
            return
        known = self._generation
        if known is not None and generation > known + 1:
            raise CollectedError(
                f"generation {known + 1} of shard {self.shard_id} was written by a release that did not announce it in the "
                f"log: its rows are no part of any feed; {REMEDY}"
            )
        self._generation = generation if known is None else max(known, generation)

    def _refuse_collected(self, place: Place) -> None:
        floor = self._floor.position()
        if place.position < floor:
            raise CollectedError(
                f"changes of shard {self.shard_id} from position {place.position + 1} to {floor} were collected; {REMEDY}"
            )

    # ---------------------------------------------------------------------------------------------------- bulk writes

    def _counts(self, mark: WalEntry) -> bool | None:
        """Whether what `mark` announces is part of the table; None if that is not decided yet."""
        manifest = self._manifests.read_latest()
        if manifest is None:
            return None
        end = manifest.replay_after_wal_entry_position + 1
        above = read_run(self._location, self.shard_id, mark.position + 1, end, tag=self._tag)
        try:
            return is_published(mark, manifest, above)
        except CorruptDataError as error:
            if not is_missing(self._location, error):
                raise
            raise CollectedError(
                f"whether the large write at position {mark.position} of shard {self.shard_id} counts cannot be told any "
                f"more: entries above it were collected; {REMEDY}"
            ) from error

    def _bulk_chunk(self, place: Place, mark: WalEntry, until: Place | None) -> Chunk | None:
        bulk = mark.bulk
        counts = bulk is not None and (self._is_open(mark, place) or self._counts(mark))
        if counts is None:
            self._look_after = self._clock.monotonic() + POLL.seconds(self._undecided, 0.0)
            self._undecided += 1
            return None
        self._undecided = 0
        if bulk is None or not counts:
            self._refuse_collected(place)
            return Chunk(None, Place(mark.position))
        most = until.rows - place.rows if until is not None and until.position < mark.position else None
        return self._part(place, mark, bulk, most)

    def _is_open(self, mark: WalEntry, place: Place) -> bool:
        """Whether a part of this bulk write was read just now."""
        opened = self._bulk
        return opened is not None and (opened.mark.position, opened.rows) == (mark.position, place.rows)

    def _part(self, place: Place, mark: WalEntry, bulk: SsTable, most: int | None) -> Chunk:
        """The next part of a bulk write, at most so many rows of it."""
        going_on = self._is_open(mark, place)
        opened, self._bulk = self._bulk, None
        if opened is None or not going_on:
            opened = self._opened(mark, bulk, place.rows)
        try:
            found = next(opened.parts, None)
        except ObjectNotFoundError as error:
            raise self._rows_gone(mark) from error
        self._refuse_collected(place)
        if found is None:
            self._follow(bulk.generation)
            return Chunk(None, Place(mark.position))
        batch = found[0] if most is None else found[0].slice(0, most)
        if batch.num_rows == found[0].num_rows:
            opened.rows += batch.num_rows
            self._bulk = opened
        return Chunk(self._changes(mark, batch), Place(place.position, place.rows + batch.num_rows))

    def _opened(self, mark: WalEntry, bulk: SsTable, skip: int) -> _OpenBulk:
        shown = self._stored.shown
        reader = open_sstable(self._location, self.shard_id, bulk)
        parts = _after(reader.batches(shown, shown.columns.names, None, _CHUNK_ROWS), skip)
        return _OpenBulk(mark, parts, skip)

    def _changes(self, mark: WalEntry, batch: pa.RecordBatch) -> ChangedRows:
        shown, count = self._stored.shown.nullable, batch.num_rows
        arrays = [batch.column(name) for name in shown.names]
        return ChangedRows(
            self.shard_id,
            pa.RecordBatch.from_arrays(arrays, schema=shown),
            np.asarray(batch.column(TOMBSTONE).to_numpy(zero_copy_only=False)),
            np.full(count, mark.position, dtype=np.int64),
            times_of([self._time_of(mark)], np.array([count])),
            one_transaction(() if mark.footer is None else mark.footer.txns, count),
        )

    def _rows_gone(self, mark: WalEntry) -> CollectedError:
        return CollectedError(
            f"the rows of the large write at position {mark.position} of shard {self.shard_id} were collected; {REMEDY}"
        )


def _after(parts: Iterator[tuple[pa.RecordBatch, object]], skip: int) -> Iterator[tuple[pa.RecordBatch, object]]:
    """The parts without their first `skip` rows."""
    for batch, offsets in parts:
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        yield (batch.slice(skip) if skip else batch), offsets
        skip = 0
