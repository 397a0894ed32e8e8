"""What named consumers of a table's changes have left on storage, and what collection must keep for them.

Owns `ConsumerRecord` (the numbered records of `memwal_consumers/{name}`, `lance_memwal.store.sequenced`) and `ConsumerFloors`.
Invariants:

1. The newest record of a name counts. An active one holds back everything above its positions; a shard that it does not
   name counts as position 0.
2. Positions of an active consumer never fall, so that what was read once stays a safe floor.
3. A consumer is passed only after a record says that it has expired; whoever reads for it finds that record and stops.
4. A record of another table (one that was here before) says nothing.
5. The first record of a consumer begins it: it holds back what any other does, but nothing was handed out for it yet, since
   collection may have passed it unseen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal

from lance_memwal.errors import CorruptDataError, UnsupportedFormatError
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.store.sequenced import Record, Records, is_count, is_time, record_names

ConsumerState = Literal["active", "expired", "dropped"]
_STATES = ("active", "expired", "dropped")
_FORMAT = 1
_WHAT = "a record of a consumer, which can be dropped,"
_LONGEST_AGE_MS = timedelta.max // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """One record of a consumer.

    `shards` are the positions up to which it needs nothing any more, `cursor` is where it goes on (the text of a `Cursor`),
    `snapshot` what it still reads rows of, or compares with; that counts as a checkpoint, and so do those in `also`, which
    only this reader uses. `reader` is the process that reads for it, under this `epoch`. `begins`: nothing was handed out
    for it yet.
    """

    name: str
    number: int
    state: ConsumerState
    table_id: str | None
    reader: str
    epoch: int
    written_ms: int
    max_age_ms: int
    cursor: str
    shards: Mapping[str, int] = field(default_factory=dict)
    snapshot: str | None = None
    begins: bool = False
    also: tuple[str, ...] = ()

    @property
    def value(self) -> dict[str, Any]:
        """What is stored; the name and the number are those of the object."""
        told = {
            "format": _FORMAT,
            "state": self.state,
            "table": self.table_id,
            "reader": self.reader,
            "epoch": self.epoch,
            "ms": self.written_ms,
            "max_age_ms": self.max_age_ms,
            "cursor": self.cursor,
            "shards": dict(self.shards),
            "snapshot": self.snapshot,
        }
        told |= {"begins": True} if self.begins else {}
        return told | ({"also": list(self.also)} if self.also else {})

    @property
    def path(self) -> str:
        """Where it lies."""
        return paths.record_path(paths.record_dir(paths.CONSUMERS_DIR, self.name), self.number)

    def is_of(self, table_id: str | None) -> bool:
        """Whether it was written for this table."""
        return self.table_id == table_id

    def position(self, shard_id: str) -> int:
        """Up to here the consumer needs nothing of the shard's log."""
        return self.shards.get(shard_id, 0)

    def is_too_old(self, now_ms: int) -> bool:
        """Whether it was silent for longer than it may hold something back."""
        return now_ms - self.written_ms > self.max_age_ms


def records_of(location: Location, name: str) -> Records:
    """The records of one consumer."""
    return Records(location.store, paths.record_dir(paths.CONSUMERS_DIR, name))


def consumer_record(location: Location, name: str) -> ConsumerRecord | None:
    """The record of this name that counts, whatever it says; None if there is none."""
    records = records_of(location, name)
    newest = records.newest()
    return None if newest is None else _parse(name, newest, records.directory)


def consumer_names(location: Location) -> list[str]:
    """The names that have records, whatever they say."""
    return record_names(location.store, paths.CONSUMERS_DIR)


def read_consumers(location: Location, table_id: str | None) -> list[ConsumerRecord]:
    """The newest record of every consumer of the table, by name; those that were dropped are left out."""
    found = []
    for name in consumer_names(location):
        record = consumer_record(location, name)
        if record is not None and record.state != "dropped" and record.is_of(table_id):
            found.append(record)
    return found


@dataclass(frozen=True, slots=True)
class ConsumerFloors:
    """What the consumers of a table hold back."""

    consumers: tuple[ConsumerRecord, ...] = ()

    @classmethod
    def of(cls, consumers: Iterable[ConsumerRecord]) -> ConsumerFloors:
        """The floors of those that are active."""
        return cls(tuple(record for record in consumers if record.state == "active"))

    def without(self, name: str) -> ConsumerFloors:
        """The floors without those of one consumer."""
        return ConsumerFloors(tuple(record for record in self.consumers if record.name != name))

    def beside(self, name: str) -> ConsumerFloors:
        """What others are known to have held back for as long as their newest records say: without this consumer, those that
        have not begun yet, and snapshots that a reader has not looked at yet."""
        others = (record for record in self.without(name).consumers if not record.begins)
        return ConsumerFloors(tuple(replace(record, also=()) for record in others))

    @property
    def snapshots(self) -> tuple[str, ...]:
        """Snapshots that count as checkpoints."""
        named = ((record.snapshot, *record.also) for record in self.consumers)
        return tuple(snapshot for snapshots in named for snapshot in snapshots if snapshot is not None)

    def keeps_after(self, shard_id: str, position: int) -> bool:
        """Whether somebody needs all that follows this position."""
        return any(record.position(shard_id) <= position for record in self.consumers)

    def needs(self, shard_id: str, position: int) -> bool:
        """Whether somebody still needs the entry at this position, or the rows that it announces."""
        return any(record.position(shard_id) < position for record in self.consumers)

    def too_old(self, now_ms: int, shard_id: str, position: int) -> list[ConsumerRecord]:
        """Those who hold back this position, and were silent for too long."""
        return [r for r in self.consumers if r.position(shard_id) < position and r.is_too_old(now_ms)]


def expire(location: Location, record: ConsumerRecord, now_ms: int, by: str) -> bool:
    """Say that a consumer has expired; False if it has moved meanwhile."""
    expired = replace(record, number=record.number + 1, state="expired", reader=by, written_ms=now_ms)
    return records_of(location, record.name).create(expired)


def _parse(name: str, record: Record, directory: str) -> ConsumerRecord:
    value, path = record.value, paths.record_path(directory, record.number)
    if value.get("format") != _FORMAT:
        raise UnsupportedFormatError("a record of a consumer was written by a newer version", path=path)
    numbers = [value.get(key) for key in ("epoch", "max_age_ms")]
    texts = [value.get(key) for key in ("reader", "cursor")]
    maybe = [value.get(key) for key in ("table", "snapshot")]
    shards, also = value.get("shards"), value.get("also", [])
    if (
        not value.keys() >= {"table", "snapshot"}
        or value.get("state") not in _STATES
        or not all(map(is_count, numbers))
        or not is_time(value.get("ms"))
        or not all(isinstance(text, str) for text in texts)
        or not all(text is None or isinstance(text, str) for text in maybe)
        or not isinstance(shards, dict)
        or not isinstance(value.get("begins", False), bool)
        or not all(map(is_count, shards.values()))
        or not isinstance(also, list)
        or not all(isinstance(text, str) for text in also)
    ):
        raise CorruptDataError(f"{_WHAT} is malformed", path=path)
    for text in (*([] if value["snapshot"] is None else [value["snapshot"]]), *also):
        Snapshot.stored(text, what=_WHAT, path=path)
    return ConsumerRecord(
        name=name,
        number=record.number,
        state=value["state"],
        table_id=value["table"],
        reader=value["reader"],
        epoch=value["epoch"],
        written_ms=value["ms"],
        max_age_ms=min(value["max_age_ms"], _LONGEST_AGE_MS),  # that of `timedelta.max` is rounded up
        cursor=value["cursor"],
        shards=shards,
        snapshot=value["snapshot"],
        begins=value.get("begins", False),
        also=tuple(also),
    )
