"""A reader of changes that has a name, and whose place is kept beside the table.

Owns `Consumer`, `ConsumerPlace` and `drop_consumer`; the records are `lance_memwal.upkeep.consumer_records`. Invariants:

1. A reader claims the consumer by the next record, and each commit is one more. A record that was not won, or one of another
   reader above ours, ends the reader: it never creates a further one.
2. What is committed only moves forward. What was handed out and not committed is handed out again after a restart.
3. A record names everything that is needed to go on from it, which was synced before. Collection keeps that, until it says
   by a record that the consumer has expired.
4. While it reads, or waits, a consumer says now and then that it is there, without committing anything.
5. Before the first batch the floors are looked at, after the first record: where collection announced more than that keeps,
   and nobody else keeps it, the consumer begins again. So collection never passes one for which something was handed out.
6. A snapshot is read only after a record named it and the floors were looked at after that. A reader that takes a new one to
   compare with names it beside the one that it would go on from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow as pa

from lance_memwal.arguments import check_instance
from lance_memwal.clock import SYSTEM_CLOCK, Clock, in_order
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
from lance_memwal.log.reading import list_positions
from lance_memwal.log.shards import Floor, list_shards
from lance_memwal.read.rebuilt import base_of, check_whole
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.read.tiers import PARALLEL_LOOKS
from lance_memwal.store.location import Location
from lance_memwal.store.paths import check_record_name
from lance_memwal.store.sequenced import attempts, update
from lance_memwal.upkeep.consumer_records import (
    ConsumerFloors,
    ConsumerRecord,
    consumer_record,
    read_consumers,
    records_of,
)
from lance_memwal.upkeep.pins import is_pinned

DEFAULT_MAX_AGE = timedelta(days=7)
_SIGNS_PER_AGE = 4  # how often a consumer says that it is there before it would be too old


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a reader stands, and what must stay for one that goes on from there: a snapshot, and all after `shards`.

    What must stay for this reader only is in `also`.
    """

    cursor: Cursor
    snapshot: Snapshot | None
    shards: Mapping[str, int]
    also: tuple[Snapshot, ...] = ()

    def named(self, record: ConsumerRecord) -> ConsumerRecord:
        """A record that says so."""
        snapshot = None if self.snapshot is None else str(self.snapshot)
        also = tuple(map(str, self.also))
        return replace(record, cursor=str(self.cursor), snapshot=snapshot, shards=dict(self.shards), also=also)


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
        self._found: ConsumerRecord | None = None  # what we went on from

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
        return self._going_on(self._newest())

    def _going_on(self, record: ConsumerRecord | None) -> ConsumerRecord | None:
        if record is None or record.state == "dropped" or not record.is_of(self._table_id):
            return None
        if record.begins:
            return None  # whoever began it got nothing yet, and so nothing of it can have expired
        if record.state == "expired":
            raise self._expired(record)
        return record

    def claim(self, standing: Standing, known: ConsumerRecord | None) -> None:
        """Be the reader of this consumer from `standing` on; `known` is the record that it goes on from.

        `ConflictError` if another reader has moved since.
        """

        def claimed(newest: ConsumerRecord | None) -> ConsumerRecord:
            self._found = found = self._going_on(newest)
            moved = known is not None and found is not None and _stand_of(found) != _stand_of(known)
            if moved or (known is None) != (found is None):
                raise ConflictError(f"consumer {self.name!r} is in use by another reader; open it again to take over")
            return self._record(standing, 1 if newest is None else newest.number + 1, found)

        self._claimed = update(self._records.directory, self._newest, claimed, self._records.create, clock=self._clock)

    def _newest(self) -> ConsumerRecord | None:
        return consumer_record(self._location, self.name)

    def _record(self, standing: Standing, number: int, before: ConsumerRecord | None) -> ConsumerRecord:
        record = ConsumerRecord(
            name=self.name,
            number=number,
            state="active",
            table_id=self._table_id,
            reader=self._reader,
            epoch=1 if before is None else before.epoch + 1,
            written_ms=self._clock.now_ms(),
            max_age_ms=self._max_age_ms,
            cursor="",
        )
        record = standing.named(record)
        return replace(record, begins=before is None or _needs_more(record, before))

    def begin(self, anew: Callable[[], Standing]) -> None:
        """Where our record `begins`: stand where collection keeps all that follows, which may have passed us unseen.

        `anew` gives the place of now, to begin again from. If that is the same, `CollectedError`, and all is as we found it.
        """
        for _ in attempts(f"the start of consumer {self.name!r}", self._clock):
            record = self.record
            if not self._is_passed(record):
                self._write(replace(record, begins=False))
                return
            standing = anew()
            if _stand_of(standing.named(record)) == _stand_of(record):
                self._leave()
                raise CollectedError(
                    f"changes from the start of the consumer {self.name!r} on are being collected; {REMEDY}"
                )
            self._write(standing.named(record))

    def _is_passed(self, record: ConsumerRecord) -> bool:
        """Whether collection may have passed our record unseen: it announced more than that keeps, and others keep."""
        if record.snapshot is not None and not self._is_whole(Snapshot.parse(record.snapshot)):
            return True
        shards, at_once = list_shards(self._location), self._location.at_once(PARALLEL_LOOKS)
        announced = in_order(lambda shard: self._floor(shard).announced(), shards, at_once, "memwal-floors")
        kept = {shard: record.position(shard) for shard in shards}
        passed = [shard for shard, highest in zip(shards, announced, strict=True) if kept[shard] < highest]
        others = self._others() if passed else ConsumerFloors()
        return any(not others.keeps_after(s, kept[s]) or kept[s] < self._floor(s).position() for s in passed)

    def _floor(self, shard_id: str) -> Floor:
        return Floor(self._location, shard_id, self._clock)

    def _is_whole(self, snapshot: Snapshot) -> bool:
        """Whether collection keeps all that a snapshot needs which our newest record names."""
        try:
            check_whole(base_of(self._location, snapshot), snapshot, self._is_kept)
        except CollectedError:
            return False
        return True

    def _is_kept(self, base: BaseTable, snapshot: Snapshot) -> bool:
        return is_pinned(base, snapshot, self._others())

    def _others(self) -> ConsumerFloors:
        """What others hold back, and did before we came."""
        return ConsumerFloors.of(read_consumers(self._location, self._table_id)).beside(self.name)

    def _leave(self) -> None:
        """Let the place be as it was when we came: be no consumer, if there was none."""
        found, ours = self._found, self.record
        if found is None:
            self._write(replace(ours, state="dropped"))
        else:
            self._write(replace(found, number=ours.number, reader=ours.reader, epoch=ours.epoch, also=()))

    def move(self, standing: Standing) -> None:
        """Go on from `standing` after a restart; raises if we are not the reader any more."""
        self._write(replace(standing.named(self.record), begins=False))

    def keep(self, snapshot: Snapshot, in_use: Sequence[Snapshot] = ()) -> bool:
        """Let collection keep one more snapshot, beside those that are in use, until we move; False if it came before us."""
        also = dict.fromkeys(str(item) for item in (*in_use, snapshot) if str(item) != self.record.snapshot)
        self._write(replace(self.record, also=tuple(also)))
        return self._is_whole(snapshot)

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
        def following(newest: ConsumerRecord) -> ConsumerRecord:
            return replace(record, number=newest.number + 1, written_ms=self._clock.now_ms())

        def check_own(_: ConsumerRecord) -> None:
            if not self._finds_own():
                raise self._lost()

        create, clock = self._records.create, self._clock
        self._claimed = update(self._records.directory, lambda: self.record, following, create, check_own, clock)

    def _finds_own(self) -> bool:
        """Whether the newest record is one of ours, of which we never heard that it landed: then it is known now."""
        newest = self._newest()
        if newest is None or newest.state != "active" or newest.reader != self._reader:
            return False
        self._claimed = newest
        return True

    def _lost(self) -> Exception:
        """Why a record of ours does not count."""
        newest = self._newest()
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
            f"that it has not seen may be gone; consumers.drop({self.name!r}), and begin again from a snapshot"
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
        """Use `table.consumers.open`."""
        base = newest.with_index()
        self.name = name
        self._newest, self._request, self._until, self._clock = newest, request, until, clock
        self._where = base.location.describe()
        self._place = ConsumerPlace(base, name, max_age, clock)
        known = self._place.find()
        self._synced_version = 0  # of the base; a snapshot that is named stands on none above it
        if known is None:
            self._begin(start)
        else:
            self._go_on(known)

    def _begin(self, start: Start) -> None:
        def stand() -> Standing:
            self._feed = self._open(start, None)
            return self._standing()

        self._place.claim(stand(), None)
        self._place.begin(stand)

    def _go_on(self, known: ConsumerRecord) -> None:
        snapshot = None if known.snapshot is None else Snapshot.parse(known.snapshot)
        cursor = Cursor.stored(known.cursor, path=known.path)
        self._feed = self._open(cursor, snapshot if self._request.before else None)
        standing = self._standing()
        found = standing.snapshot if snapshot is None else None  # what rows were before is asked for the first time
        self._place.claim(replace(standing, snapshot=None) if found else standing, known)
        if found is None:
            return
        if not self._place.keep(found):
            raise CollectedError(
                f"what rows were before the changes that the consumer {self.name!r} reads next is being collected: go on "
                f"without before=True, or consumers.drop({self.name!r}) and begin again from a snapshot"
            )
        self._place.move(standing)

    def _open(self, start: Start, state: Snapshot | None) -> ChangeFeed:
        return ChangeFeed(
            self._newest,
            self._request,
            start,
            self._until,
            state=state,
            on_look=self._place.look,
            keep=self._keep,
            clock=self._clock,
        )

    def _standing(self) -> Standing:
        snapshots, shards = self._feed.needed
        self._let_survive(snapshots)
        return Standing(self._feed.cursor, snapshots[0] if snapshots else None, shards, snapshots[1:])

    def _keep(self, snapshot: Snapshot) -> bool:
        in_use, _ = self._feed.needed
        self._let_survive([snapshot])
        return self._place.keep(snapshot, in_use)

    def _let_survive(self, snapshots: Sequence[Snapshot]) -> None:
        newest = max((snapshot.base_version for snapshot in snapshots), default=0)
        if newest > self._synced_version and self._newest.location.is_local:
            let_survive(self._newest())
            self._synced_version = newest

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


def _stand_of(record: ConsumerRecord) -> tuple[object, ...]:
    """Where the next reader would stand, and what it would need."""
    return record.cursor, record.snapshot, dict(record.shards)


def _needs_more(record: ConsumerRecord, before: ConsumerRecord) -> bool:
    """Whether a record holds back what the one before it did not."""
    falls = any(record.position(shard_id) < position for shard_id, position in before.shards.items())
    return falls or record.snapshot not in (None, before.snapshot)


def drop_consumer(location: Location, name: str, table_id: str | None, clock: Clock = SYSTEM_CLOCK) -> None:
    """Let nobody read for this name any more; `InvalidInputError` if there is no such consumer."""
    records = records_of(location, check_record_name(name))

    def newest() -> tuple[int, ConsumerRecord | None]:
        return max(records.numbers(), default=0), _readable(location, name)

    def dropped(found: tuple[int, ConsumerRecord | None]) -> ConsumerRecord:
        number, record = found
        if number == 0 or (record is not None and (record.state == "dropped" or not record.is_of(table_id))):
            raise InvalidInputError(f"there is no consumer {name!r}")
        return ConsumerRecord(
            name=name,
            number=number + 1,
            state="dropped",
            table_id=table_id,
            reader=clock.uuid4(),
            epoch=0 if record is None else record.epoch,
            written_ms=clock.now_ms(),
            max_age_ms=0,
            cursor="",
        )

    update(records.directory, newest, dropped, records.create, clock=clock)


def _readable(location: Location, name: str) -> ConsumerRecord | None:
    """The record that counts; None if it is damaged: it can be dropped all the same."""
    try:
        return consumer_record(location, name)
    except CorruptDataError:
        return None
