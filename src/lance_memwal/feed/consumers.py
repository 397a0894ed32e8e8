"""A reader of changes that has a name, and whose place is kept beside the table.

Owns `Consumer` and `drop_consumer`; the records are `lance_memwal.upkeep.consumer_records`. Invariants:

1. A reader claims the consumer by the next record, and each commit is one more. A record that was not won, or one of another
   reader above ours, ends the reader: it never creates a further one.
2. What is committed only moves forward. What was handed out and not committed is handed out again after a restart.
3. A record names everything that is needed to go on from it. Collection keeps that, until it says by a record that the
   consumer has expired.
4. While it reads, or waits, a consumer says now and then that it is there, without committing anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa

from lance_memwal.arguments import check_instance
from lance_memwal.clock import SYSTEM_CLOCK, BackOff, Clock
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
from lance_memwal.feed.starts import Start, Until
from lance_memwal.lance.base import NewestBase
from lance_memwal.log.shards import list_shards
from lance_memwal.log.wal import list_positions
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.store.location import Location
from lance_memwal.store.paths import check_record_name
from lance_memwal.upkeep.consumer_records import ConsumerRecord, consumer_record, records_of

__all__ = ["DEFAULT_MAX_AGE", "Consumer", "drop_consumer"]

DEFAULT_MAX_AGE = timedelta(days=7)
_MAX_TRIES = 16
_BACK_OFF = BackOff(0.005, 0.25)
_SIGNS_PER_AGE = 4  # how often a consumer says that it is there before it would be too old


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
        self.name = check_record_name(name)
        check_instance("max_age", max_age, timedelta, "a timedelta")
        if max_age <= timedelta():
            raise InvalidInputError("max_age must be longer than nothing")
        base = newest.with_index()
        self._location = base.location
        self._table_id = base.table_id
        self._clock = clock
        self._reader = clock.uuid4()
        self._max_age_ms = int(max_age.total_seconds() * 1000)
        self._records = records_of(base.location, name)
        known = self._find()
        begin: Start = start if known is None else Cursor.parse(known.cursor)
        state = None if known is None or known.snapshot is None else Snapshot.parse(known.snapshot)
        self._feed = ChangeFeed(
            newest, request, begin, until, state=state if request.before else None, on_look=self._look, clock=clock
        )
        self._record = self._claim()

    # ------------------------------------------------------------------------------------------------------- its place

    @property
    def cursor(self) -> Cursor:
        """Where the feed goes on after the batch that was just handed out; `commit` keeps it."""
        return self._feed.cursor

    @property
    def committed(self) -> Cursor:
        """Where another reader of this name would go on."""
        return Cursor.parse(self._record.cursor)

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
        self._move(str(self._feed.cursor), *self._feed.needed)

    def _move(self, cursor: str, snapshot: Snapshot | None, shards: dict[str, int]) -> None:
        following = replace(
            self._record,
            number=self._record.number + 1,
            written_ms=self._clock.now_ms(),
            cursor=cursor,
            shards=shards,
            snapshot=None if snapshot is None else str(snapshot),
        )
        if not self._records.create(following.number, following.value):
            raise self._lost()
        self._record = following

    # --------------------------------------------------------------------------------------------------------- reading

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._feed:
            self._give_sign()
            yield batch

    def stop(self) -> None:
        """Let the iteration end, now or at its next wait; any thread may call it."""
        self._feed.stop()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Consumer({self.name!r}, {self._location.describe()!r}, epoch={self._record.epoch})"

    # ---------------------------------------------------------------------------------------------------------- claims

    def _find(self) -> ConsumerRecord | None:
        """The record from which this consumer goes on; None if it is new."""
        record = consumer_record(self._location, self.name)
        if record is None or record.state == "dropped" or not record.is_of(self._table_id):
            return None
        if record.state == "expired":
            raise self._expired(record)
        return record

    def _claim(self) -> ConsumerRecord:
        """Be the reader of this consumer, from the place at which the feed stands."""
        for attempt in range(_MAX_TRIES):
            newest = consumer_record(self._location, self.name)
            if newest is not None and newest.is_of(self._table_id) and newest.state == "expired":
                raise self._expired(newest)
            known = newest if newest is not None and newest.state == "active" else None
            claimed = self._first(0 if newest is None else newest.number)
            if known is not None and known.is_of(self._table_id):
                self._refuse_moved(known)
                claimed = replace(
                    known,
                    number=known.number + 1,
                    epoch=known.epoch + 1,
                    reader=self._reader,
                    written_ms=self._clock.now_ms(),
                    max_age_ms=self._max_age_ms,
                )
            if self._records.create(claimed.number, claimed.value):
                return claimed
            _BACK_OFF.wait(self._clock, attempt)
        raise ConflictError(f"others claim the consumer {self.name!r} all the time; retry")

    def _first(self, number: int) -> ConsumerRecord:
        """The first record of a new consumer; `number` is that of whoever had the name before."""
        snapshot, shards = self._feed.needed
        return ConsumerRecord(
            name=self.name,
            number=number + 1,
            state="active",
            table_id=self._table_id,
            reader=self._reader,
            epoch=1,
            written_ms=self._clock.now_ms(),
            max_age_ms=self._max_age_ms,
            cursor=str(self._feed.cursor),
            shards=shards,
            snapshot=None if snapshot is None else str(snapshot),
        )

    def _refuse_moved(self, known: ConsumerRecord) -> None:
        """The feed stands where the record said; if somebody committed since, it would repeat what was applied."""
        if known.cursor != str(self._feed.cursor):
            raise ConflictError(
                f"somebody else reads for the consumer {self.name!r} at this moment; open it again, and it is yours"
            )

    # ---------------------------------------------------------------------------------------------------------- signs

    def _look(self) -> None:
        """See whether we still read for this consumer."""
        if self._records.numbers()[-1:] != [self._record.number]:
            raise self._lost()
        self._give_sign()

    def _give_sign(self) -> None:
        """Say that the consumer is there, if it has not said so for a while."""
        record = self._record
        if self._clock.now_ms() - record.written_ms > record.max_age_ms // _SIGNS_PER_AGE:
            snapshot = None if record.snapshot is None else Snapshot.parse(record.snapshot)
            self._move(record.cursor, snapshot, dict(record.shards))

    def _lost(self) -> Exception:
        """Why a record of ours does not count."""
        newest = consumer_record(self._location, self.name)
        if newest is None or newest.state == "dropped" or not newest.is_of(self._table_id):
            return ClosedError(f"the consumer {self.name!r} was dropped; open it again to begin anew")
        if newest.state == "expired":
            return self._expired(newest)
        return FencedError(self._record.epoch, newest.epoch, f"another reader took over the consumer {self.name!r}")

    def _expired(self, record: ConsumerRecord) -> CollectedError:
        missed = 0
        for shard_id in list_shards(self._location):
            missed += max(0, max(list_positions(self._location, shard_id), default=0) - record.position(shard_id))
        days = record.max_age_ms / 86_400_000
        return CollectedError(
            f"the consumer {self.name!r} has expired: it committed nothing for {days:.3g} days, and up to {missed} log entries "
            f"that it has not seen may be gone; drop_consumer({self.name!r}), and begin again from a snapshot"
        )


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
