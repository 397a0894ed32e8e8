"""A reader of changes that has a name, and whose place is kept beside the table.

Owns `Consumer`, `ConsumerPlace` and `drop_consumer`; the records are `lance_memwal.upkeep.consumer_records`. Invariants:

1. A reader claims the consumer by the next record, and each commit is one more. A record that was not won, or one of another
   reader above ours, ends the reader: it never creates a further one.
2. What is committed only moves forward. What was handed out and not committed is handed out again after a restart.
3. A record names everything that is needed to go on from it, which was synced before. Collection keeps that, until it says
   by a record that the consumer has expired.
4. While it reads, or waits, a consumer says now and then that it is there, without committing anything.
5. Before the first batch the floors are looked at, after the first record: where collection announced more than that keeps,
   the consumer begins again. So collection never passes one for which something was handed out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow as pa

from lance_memwal.arguments import check_instance
from lance_memwal.clock import SYSTEM_CLOCK, BackOff, Clock, in_order
from lance_memwal.errors import (
    ClosedError,
    CollectedError,
    ConflictError,
    CorruptDataError,
    FencedError,
    InvalidInputError,
)
from lance_memwal.feed.changes import ChangeFeed, Request
from lance_memwal.feed.cursor import Cursor
from lance_memwal.feed.shard_changes import REMEDY
from lance_memwal.feed.starts import Start, Until
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.lance.commit import let_survive
from lance_memwal.log.floor import Floor
from lance_memwal.log.reading import list_positions
from lance_memwal.log.shards import list_shards
from lance_memwal.read.rebuilt import base_of, check_whole
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.read.tiers import PARALLEL_LOOKS
from lance_memwal.store.location import Location
from lance_memwal.store.paths import check_record_name
from lance_memwal.upkeep.consumer_records import ConsumerRecord, consumer_record, records_of

__all__ = ["DEFAULT_MAX_AGE", "Consumer", "ConsumerPlace", "Standing", "drop_consumer"]

DEFAULT_MAX_AGE = timedelta(days=7)
_MAX_TRIES = 16
_BACK_OFF = BackOff(0.005, 0.25)
_SIGNS_PER_AGE = 4  # how often a consumer says that it is there before it would be too old


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a reader stands, and what must stay for one that goes on from there: a snapshot, and all after `shards`."""

    cursor: Cursor
    snapshot: Snapshot | None
    shards: Mapping[str, int]


class ConsumerPlace:
    """The place of one consumer, as one of its readers claims and moves it."""

    def __init__(self, base: BaseTable, name: str, max_age: timedelta, clock: Clock = SYSTEM_CLOCK) -> None:
        self.name = check_record_name(name)
        check_instance("max_age", max_age, timedelta, "a timedelta")
        if max_age <= timedelta():
            raise InvalidInputError("max_age must be longer than nothing")
        self._location = base.location
        self._table_id = base.table_id
        self._clock = clock
        self._reader = clock.uuid4()
        self._max_age_ms = int(max_age.total_seconds() * 1000)
        self._records = records_of(base.location, name)
        self._claimed: ConsumerRecord | None = None

    @property
    def record(self) -> ConsumerRecord:
        """Our newest record."""
        if self._claimed is None:
            raise AssertionError("a place is claimed before it is used")
        return self._claimed

    @property
    def is_claimed(self) -> bool:
        """Whether a reader of this process has it, or had it."""
        return self._claimed is not None

    def find(self) -> ConsumerRecord | None:
        """The record from which this consumer goes on; None if it is new. `CollectedError` if it has expired."""
        return self._going_on(consumer_record(self._location, self.name))

    def _going_on(self, record: ConsumerRecord | None) -> ConsumerRecord | None:
        if record is None or record.state == "dropped" or not record.is_of(self._table_id):
            return None
        if record.begins and record.state == "active":
            return None  # whoever began it got nothing yet
        if record.state == "expired":
            raise self._expired(record)
        return record

    def claim(self, standing: Standing, known: ConsumerRecord | None) -> None:
        """Be the reader of this consumer from `standing` on; `known` is the record that it goes on from.

        `ConflictError` if another reader has moved since.
        """
        for attempt in range(_MAX_TRIES):
            newest = consumer_record(self._location, self.name)
            found = self._going_on(newest)
            moved = known is not None and found is not None and found.cursor != known.cursor
            if moved or (known is None) != (found is None):
                raise ConflictError(
                    f"somebody else reads for the consumer {self.name!r} at this moment; open it again, and it is yours"
                )
            claimed = self._record(standing, 1 if newest is None else newest.number + 1, found)
            if self._records.create(claimed.number, claimed.value):
                self._claimed = claimed
                return
            _BACK_OFF.wait(self._clock, attempt)
        raise ConflictError(f"others claim the consumer {self.name!r} all the time; retry")

    def _record(self, standing: Standing, number: int, before: ConsumerRecord | None) -> ConsumerRecord:
        return ConsumerRecord(
            name=self.name,
            number=number,
            state="active",
            table_id=self._table_id,
            reader=self._reader,
            epoch=1 if before is None else before.epoch + 1,
            written_ms=self._clock.now_ms(),
            max_age_ms=self._max_age_ms,
            cursor=str(standing.cursor),
            shards=standing.shards,
            snapshot=None if standing.snapshot is None else str(standing.snapshot),
            begins=before is None,
        )

    def begin(self) -> bool:
        """After the first record of a consumer: whether collection keeps all that follows. Then this is one to go on from."""
        if self._is_passed():
            return False
        self._write(replace(self.record, begins=False))
        return True

    def _is_passed(self) -> bool:
        """Whether collection may have passed our record unseen: it announced more than that keeps."""
        record, location = self.record, self._location
        if record.snapshot is not None:
            snapshot = Snapshot.parse(record.snapshot)
            try:
                check_whole(base_of(location, snapshot), snapshot, lambda *_: False)
            except CollectedError:
                return True
        shards = list_shards(location)
        announced = in_order(self._announced, shards, location.at_once(PARALLEL_LOOKS), "memwal-floors")
        return any(record.position(shard) < position for shard, position in zip(shards, announced, strict=True))

    def _announced(self, shard_id: str) -> int:
        return Floor(self._location, shard_id, self._clock).announced()

    def leave(self) -> None:
        """Be no consumer any more."""
        self._write(replace(self.record, state="dropped"))

    def move(self, standing: Standing, *, begins: bool = False) -> None:
        """Go on from `standing` after a restart; raises if we are not the reader any more.

        `begins`: nothing was handed out yet, so that another reader need not go on from there.
        """
        cursor, snapshot = str(standing.cursor), None if standing.snapshot is None else str(standing.snapshot)
        self._write(replace(self.record, cursor=cursor, shards=standing.shards, snapshot=snapshot, begins=begins))

    def look(self) -> None:
        """See whether we still read for this consumer, and say now and then that it is there."""
        if self._records.numbers()[-1:] != [self.record.number] and not self._finds_own():
            raise self._lost()
        self.give_sign()

    def give_sign(self) -> None:
        """Say that the consumer is there, if it has not said so for a while."""
        if self._clock.now_ms() - self.record.written_ms > self.record.max_age_ms // _SIGNS_PER_AGE:
            self._write(self.record)

    def _write(self, record: ConsumerRecord) -> None:
        for _ in range(2):
            following = replace(record, number=self.record.number + 1, written_ms=self._clock.now_ms())
            if self._records.create(following.number, following.value):
                self._claimed = following
                return
            if not self._finds_own():
                break
        raise self._lost()

    def _finds_own(self) -> bool:
        """Whether the newest record is one of ours, of which we never heard that it landed: then it is known now."""
        newest = consumer_record(self._location, self.name)
        if newest is None or newest.state != "active" or newest.reader != self._reader:
            return False
        self._claimed = newest
        return True

    def _lost(self) -> Exception:
        """Why a record of ours does not count."""
        newest = consumer_record(self._location, self.name)
        if newest is None or newest.state == "dropped" or not newest.is_of(self._table_id):
            return ClosedError(f"the consumer {self.name!r} was dropped; open it again to begin anew")
        if newest.state == "expired":
            return self._expired(newest)
        return FencedError(self.record.epoch, newest.epoch, consumer=self.name)

    def _expired(self, record: ConsumerRecord) -> CollectedError:
        missed = 0
        for shard_id in list_shards(self._location):
            missed += max(0, max(list_positions(self._location, shard_id), default=0) - record.position(shard_id))
        silence = timedelta(milliseconds=record.max_age_ms)
        return CollectedError(
            f"the consumer {self.name!r} has expired: it was silent for more than {silence}, and up to {missed} log entries "
            f"that it has not seen may be gone; drop_consumer({self.name!r}), and begin again from a snapshot"
        )


class Consumer:
    """One named reader of the changes of a table: iterate over it, apply what comes, `commit()`. One thread at a time."""

    def __init__(
        self,
        newest: NewestBase,
        name: str,
        request: Request,
        *,
        start: Start = "snapshot",
        until: Until = None,
        max_age: timedelta = DEFAULT_MAX_AGE,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Use `Table.consumer`."""
        base = newest.with_index()
        self.name = name
        self._newest, self._request, self._until, self._clock = newest, request, until, clock
        self._where = base.location.describe()
        self._place = ConsumerPlace(base, name, max_age, clock)
        known = self._place.find()
        self._synced_version = 0  # of the base; a snapshot that is named stands on none above it
        begin: Start = start if known is None else Cursor.parse(known.cursor)
        state = None if known is None or known.snapshot is None else Snapshot.parse(known.snapshot)
        self._feed = self._open(begin, state if request.before else None)
        self._place.claim(self._standing(), known)
        if known is None:
            self._begin(start)

    def _begin(self, start: Start) -> None:
        """Stand where collection keeps what comes: it may have begun before our record was there."""
        for _ in range(_MAX_TRIES):
            if self._place.begin():
                return
            before = self._standing()
            self._feed = self._open(start, None)
            if self._standing() == before:
                self._place.leave()
                raise CollectedError(
                    f"changes from the start of the consumer {self.name!r} on are being collected; {REMEDY}"
                )
            self._place.move(self._standing(), begins=True)
        raise ConflictError("the table is collected faster than a consumer can begin: raise grace_seconds")

    def _open(self, start: Start, state: Snapshot | None) -> ChangeFeed:
        return ChangeFeed(
            self._newest,
            self._request,
            start,
            self._until,
            state=state,
            on_look=self._place.look,
            clock=self._clock,
        )

    def _standing(self) -> Standing:
        snapshot, shards = self._feed.needed
        if snapshot is not None and snapshot.base_version > self._synced_version and self._newest.location.is_local:
            let_survive(self._newest())
            self._synced_version = snapshot.base_version
        return Standing(self._feed.cursor, snapshot, shards)

    @property
    def cursor(self) -> Cursor:
        """Where the feed goes on after the batch that was just handed out; `commit` keeps it."""
        return self._feed.cursor

    @property
    def committed(self) -> Cursor:
        """Where another reader of this name would go on."""
        return Cursor.parse(self._place.record.cursor)

    @property
    def schema(self) -> pa.Schema:
        """The columns of every batch."""
        return self._feed.schema

    def lag(self) -> int:
        """How many log entries there are that this consumer has not read."""
        return self._feed.lag()

    def commit(self) -> None:
        """Keep the place: everything that was handed out is never handed out again under this name.

        `FencedError` if another reader has taken the name over, `CollectedError` if the consumer has expired,
        `ClosedError` if it was dropped.
        """
        self._place.move(self._standing())

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._feed:
            yield batch  # nothing that can fail comes before it: the cursor is after it already
            self._place.give_sign()

    def stop(self) -> None:
        """Let the iteration end, now or at its next wait; any thread may call it."""
        self._feed.stop()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Consumer({self.name!r}, {self._where!r}, epoch={self._place.record.epoch})"


def drop_consumer(location: Location, name: str, table_id: str | None, clock: Clock = SYSTEM_CLOCK) -> None:
    """Let nobody read for this name any more; `InvalidInputError` if there is no such consumer."""
    records = records_of(location, check_record_name(name))
    for attempt in range(_MAX_TRIES):
        number = max(records.numbers(), default=0)
        newest = _readable(location, name)
        if number == 0 or (newest is not None and (newest.state == "dropped" or not newest.is_of(table_id))):
            raise InvalidInputError(f"there is no consumer {name!r}")
        dropped = ConsumerRecord(
            name=name,
            number=number + 1,
            state="dropped",
            table_id=table_id,
            reader=clock.uuid4(),
            epoch=0 if newest is None else newest.epoch,
            written_ms=clock.now_ms(),
            max_age_ms=0,
            cursor="",
        )
        if records.create(dropped.number, dropped.value):
            return
        _BACK_OFF.wait(clock, attempt)
    raise ConflictError(f"the consumer {name!r} changes all the time; retry")


def _readable(location: Location, name: str) -> ConsumerRecord | None:
    """The record that counts; None if it is damaged: it can be dropped all the same."""
    try:
        return consumer_record(location, name)
    except CorruptDataError:
        return None
