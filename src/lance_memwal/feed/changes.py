"""One feed over all shards of a table: every change, in order per key, from a place that the reader remembers.

Owns `ChangeFeed`. Invariants:

1. Rows of one shard come in the order of their positions, and a key is in one shard: the order per key is total. Nothing is
   said of the order between shards.
2. `cursor` counts every batch that was handed out, and nothing else. A feed that starts there goes on with the next change.
   The rows of a snapshot come in the same order whoever reads it, so that this holds inside of it, too.
3. A shard that appears later is read from its first position on.
4. A feed writes nothing and fences nobody. What collection removed before it was read is a `CollectedError`.
5. Memory: one chunk per shard that is read ahead, a bounded number of them.
6. A feed that waits asks for the next position of each shard (one request that lists nothing), and now and then whether
   that is really the end: at most one listing per second and shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lance_memwal.arguments import check_flag
from lance_memwal.clock import POLL, SYSTEM_CLOCK, Clock, in_order
from lance_memwal.errors import CollectedError, TableReplacedError
from lance_memwal.feed.before import BeforeImages
from lance_memwal.feed.changed_rows import ChangedRows, Shape
from lance_memwal.feed.cursor import Cursor, Place
from lance_memwal.feed.past_rows import rows_in_order
from lance_memwal.feed.shard_changes import REMEDY, Chunk, ShardChanges
from lance_memwal.feed.starts import Shards, Start, Until, cursor_of, parsed, span
from lance_memwal.feed.time_travel import State, state_at, state_now, state_of, tiers_of
from lance_memwal.lance.base import NewestBase
from lance_memwal.process.deadline import Deadline
from lance_memwal.process.telemetry import active
from lance_memwal.process.waiting import Waiters
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.read.tiers import missing_is_collected
from lance_memwal.rows.filter import FilterLike

_SHARDS_AT_ONCE = 4  # each holds a chunk
_ASK_AT_ONCE = 16
_LOCAL_POLLS = 50  # as many times as often as those over a network
_SHARDS_EVERY = 2.5
_LOOK_EVERY = 8.0


@dataclass(frozen=True, slots=True)
class Request:
    """What of the changes is asked for; see `Table.changes`."""

    columns: Sequence[str] | None = None
    filter: FilterLike | None = None
    before: bool = False

    def check(self) -> None:
        """Raise `InvalidInputError` if a value has the wrong type."""
        check_flag("before", self.before)

    @property
    def insert(self) -> str:
        """What a row of a snapshot is called."""
        return "insert" if self.before else "u"


class ChangeFeed:
    """The changes of a table as batches of rows; iterate over it. It can be left and gone on with.

    A batch holds the asked columns and `_op`, `_shard`, `_position`, `_time`, `_txn`.
    """

    def __init__(
        self,
        newest: NewestBase,
        request: Request,
        start: Start,
        until: Until,
        *,
        state: Snapshot | None = None,
        on_look: Callable[[], None] | None = None,
        keep: Callable[[Snapshot], bool] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`state` is a snapshot at or before `start`, where one is known. `on_look` is called every few seconds. `keep` lets
        collection keep a snapshot that is about to be used beside those of `needed`; False if it came too late for that.
        """
        base = newest.with_index()
        request.check()
        self._newest = newest
        self._base = base
        self._clock = clock
        self._request = request
        self._shape = Shape(base.columns, request.columns, request.filter)
        self._shards = Shards(base, self._shape, clock)
        self._state = None if state is None else state_of(state, base)
        begin = self._start_of(start)
        self._places = dict(begin.shards)
        self._snapshot = None if begin.snapshot is None else Snapshot.parse(begin.snapshot)
        self._snapshot_rows = begin.rows
        self._until = None if until is None else cursor_of("until", until, self._shards)
        self._images = self._before_images() if request.before else None
        self._images_fit = self._images is None  # whether they know of all up to the places, and of nothing after
        self._on_look = on_look
        self._keep = keep
        self._stopped = False
        self._waiters = Waiters(clock)
        self._seen: list[ShardChanges] = []
        self._shards_at = self._looked_at = float("-inf")

    def _start_of(self, start: Start) -> Cursor:
        """The cursor at which the feed begins; where it begins now, the table as it is now is known."""
        newest, base, tag = self._newest, self._base, self._base.tag
        if start == "snapshot" or (start == "latest" and self._request.before):
            self._state = state_now(newest, base, self._clock)
            text = str(self._state.snapshot) if start == "snapshot" else None
            return Cursor(tag, self._state.places, text)
        if start in ("earliest", "latest"):
            return cursor_of("start", start, self._shards)
        meant = parsed("start", start, base)
        if isinstance(meant, Snapshot):
            self._state = self._state or state_of(meant.check_table(tag), base)
            return Cursor(tag, self._state.places)
        return cursor_of("start", meant, self._shards)

    def _before_images(self) -> BeforeImages:
        if self._state is None:
            self._state = state_at(self._newest, self._places)
        return BeforeImages(self._base.location, self._shape, self._state, self._places, self._renewed, self._clock)

    def _renewed(self) -> State | None:
        """The table as it is now; None if collection was faster than we, so that the one in use has to do for longer."""
        try:
            state = state_now(self._newest, self._base, self._clock)
        except CollectedError:
            return None
        return state if self._keep is None or self._keep(state.snapshot) else None

    @property
    def schema(self) -> pa.Schema:
        """The columns of every batch."""
        return self._shape.schema

    @property
    def cursor(self) -> Cursor:
        """Where a feed goes on after the batch that was just handed out."""
        snapshot = None if self._snapshot is None else str(self._snapshot)
        return Cursor(self._base.tag, self._places, snapshot, self._snapshot_rows if snapshot else 0)

    @property
    def needed(self) -> tuple[tuple[Snapshot, ...], dict[str, int]]:
        """What must stay: snapshots, and what is after these positions.

        A reader that goes on from `cursor` needs the first of the snapshots, if there is one; this reader needs all of them.
        """
        positions = {shard_id: place.position for shard_id, place in self._places.items()}
        if self._images is None:
            return () if self._snapshot is None else (self._snapshot,), positions
        state = self._images.state
        after = {s: min(position, state.place(s).position) for s, position in positions.items()}
        return self._images.snapshots, after

    def lag(self) -> int:
        """How many log entries there are after the cursor."""
        return sum(max(0, s.latest().position - self._place(s).position) for s in self._shards.find())

    def stop(self) -> None:
        """Let the iteration end, now or at its next wait; any thread may call it."""
        self._stopped = True
        self._waiters.wake_all()

    def __enter__(self) -> ChangeFeed:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"ChangeFeed({self._base.location.describe()!r}, cursor={str(self.cursor)[:60]!r})"

    # -------------------------------------------------------------------------------------------------------- reading

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._rows_of_snapshot()
        if not self._images_fit:
            self._catch_up()
        waits = 0
        while not self._stopped:
            handed_out = False
            for shard, chunk in self._round():
                handed_out = True
                yield from self._hand_out(shard, chunk)
                if self._stopped:
                    return
            if not handed_out and self._is_done():
                return
            waits = 0 if handed_out else waits + 1
            if waits:
                self._wait(waits)

    def _hand_out(self, shard: ShardChanges, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Move on by a chunk, and hand its rows out: what can fail comes first, and nothing between the two."""
        images = self._images
        batch = None if chunk.changes is None else self._dressed(chunk.changes)
        if batch is not None and batch.num_rows:
            self._tell(batch.num_rows, chunk.changes)
        if images is not None:
            self._images_fit = False
            images.reached(shard.shard_id, chunk.place, chunk.changes)
        self._places[shard.shard_id], self._images_fit = chunk.place, True
        if batch is not None and batch.num_rows:
            yield batch

    def _tell(self, rows: int, changes: ChangedRows | None) -> None:
        """Tell OpenTelemetry how old the oldest change is that is handed out."""
        told = active()
        if told is None or changes is None or not changes.num_rows:
            return
        told.note("lance_mem_wal_feed_rows_total", rows)
        if (written_ms := changes.times[0].value) is not None:
            told.note("lance_mem_wal_feed_lag_seconds", max(0, self._clock.now_ms() - written_ms) / 1000)

    def _dressed(self, changes: ChangedRows) -> pa.RecordBatch:
        return self._shape.plain(changes) if self._images is None else self._images.dressed(changes)

    def _round(self) -> Iterator[tuple[ShardChanges, Chunk]]:
        """The next chunk of every shard that has one."""
        location, current = self._base.location, self._current()
        if self._images is not None:
            self._images.renew_if_due()
        asked = in_order(self._goes_on, current, location.at_once(_ASK_AT_ONCE), "memwal-changes")
        shards = [shard for shard, goes_on in zip(current, asked, strict=True) if goes_on]
        at_once = location.at_once(_SHARDS_AT_ONCE)
        for shard, chunk in zip(shards, in_order(self._take, shards, at_once, "memwal-changes"), strict=True):
            if chunk is not None:
                yield shard, chunk

    def _place(self, shard: ShardChanges) -> Place:
        return self._places.get(shard.shard_id, Place())

    def _take(self, shard: ShardChanges) -> Chunk | None:
        end = self._end_of(shard)
        cut = None if self._images is None else self._images.end_of(shard.shard_id)
        ends = [place for place in (end, cut) if place is not None]
        return shard.take(self._place(shard), min(ends) if ends else None)

    def _end_of(self, shard: ShardChanges) -> Place | None:
        return None if self._until is None else self._until.place(shard.shard_id)

    def _goes_on(self, shard: ShardChanges) -> bool:
        end = self._end_of(shard)
        return (end is None or self._place(shard) < end) and shard.has_more(self._place(shard))

    def _is_done(self) -> bool:
        return self._until is not None and all(
            self._places.get(shard_id, Place()) >= end for shard_id, end in self._until.shards.items()
        )

    # ---------------------------------------------------------------------------------------------- before the changes

    def _rows_of_snapshot(self) -> Iterator[pa.RecordBatch]:
        """The rows of the snapshot that were not handed out yet."""
        if self._snapshot is None:
            return
        tiers = tiers_of(self._base.location, self._snapshot)
        stored = self._shape.stored.shown
        skip = self._snapshot_rows
        with missing_is_collected(REMEDY):
            for batch in rows_in_order(tiers, stored):
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                rows, skip = batch.slice(skip), 0
                changes = ChangedRows.of_snapshot(rows)
                handed_out = self._shape.dressed(changes, pa.repeat(self._request.insert, rows.num_rows))
                self._snapshot_rows += rows.num_rows
                if handed_out.num_rows:
                    yield handed_out
                if self._stopped:
                    return
        self._snapshot = None

    def _catch_up(self) -> None:
        """Know what changed between the state that is known and the place where the feed goes on."""
        if self._images is not None:
            self._state = self._images.state
            images = self._images = self._before_images()
            for shard_id, place in self._places.items():
                for changes in span(self._shards.of(shard_id), images.state.place(shard_id), place):
                    images.absorb(changes)
        self._images_fit = True

    # -------------------------------------------------------------------------------------------------------- waiting

    def _current(self) -> list[ShardChanges]:
        """The shards of the table; now and then it is looked for new ones."""
        now = self._clock.monotonic()
        if now - self._shards_at >= _SHARDS_EVERY:
            self._shards_at = now
            self._seen = self._shards.find()
        if now - self._looked_at >= _LOOK_EVERY:
            self._looked_at = now
            self._look()
        return self._seen

    def _look(self) -> None:
        """See whether every log ends where it seems to, and whether the table is still the same one."""
        base = self._newest()
        if base.table_id != self._base.table_id:
            raise TableReplacedError("the table was made anew while its changes were read: open it, and start again")
        if self._on_look is not None:
            self._on_look()
        for shard in self._seen:
            end = self._end_of(shard)
            if end is None or self._place(shard) < end:
                shard.look(self._place(shard))

    def _wait(self, waits: int) -> None:
        seconds = POLL.seconds(waits // 8, 0.0)
        pause = Deadline(self._clock, seconds / _LOCAL_POLLS if self._base.location.is_local else seconds)
        while not self._stopped and pause.left_seconds:
            place = self._waiters.stand()
            if not self._stopped:
                place.sleep(pause.left_seconds)
            self._waiters.leave(place)
