"""Named moments: a checkpoint keeps all that its snapshot needs until it is dropped, or its lifetime has passed.

Owns `Checkpoint` and the verbs, and `Moment`: a snapshot, a time, a version of the base table, or the name of a checkpoint.
The records are those of `lance_memwal.upkeep.checkpoint_records`. Invariants:

1. A checkpoint that was created is whole: the base version of its snapshot was synced, and its record written, first; and
   the floors, looked at after that, had not passed the snapshot. Otherwise the checkpoint is dropped, and created again with
   a new snapshot.
2. A name has one meaning: it is not a snapshot, a version, a time or a word of the feed. Lance accepts it as a tag.
3. No text names two snapshots: it is what `str(snapshot)` gave, a time of ISO 8601 with a zone, a number, or a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from lance_memwal.arguments import described, digits_of
from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import CollectedError, ConflictError, CorruptDataError, InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.commit import let_survive
from lance_memwal.log.shards import for_writing
from lance_memwal.read.rebuilt import base_of, check_whole
from lance_memwal.read.snapshot import Snapshot, is_snapshot_text
from lance_memwal.store.paths import check_record_name
from lance_memwal.store.sequenced import FEW_TRIES, attempts
from lance_memwal.upkeep.checkpoint_records import (
    CheckpointRecord,
    checkpoint_record,
    newest_number,
    read_checkpoints,
    write_checkpoint,
)

Moment: TypeAlias = Snapshot | datetime | int | str
FEED_WORDS = ("earliest", "latest", "now", "snapshot")
"""Where a feed may begin or end, in words: no checkpoint may be created with such a name, in any case."""
_NUMBER = re.compile(r"[0-9]+")
_DATE = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}")


def is_plain_name(name: str) -> bool:
    """Whether a text can mean nothing but the name of a checkpoint."""
    return not (is_snapshot_text(name) or _NUMBER.fullmatch(name) or _DATE.match(name))


def parse_moment(moment: Moment) -> Snapshot | datetime | int | str:
    """The moment that a caller gave; a text that is no name becomes what it means."""
    if isinstance(moment, Snapshot | datetime) or (isinstance(moment, int) and not isinstance(moment, bool)):
        return moment
    if not isinstance(moment, str) or not moment:
        raise InvalidInputError(
            "a moment is a snapshot, the name of a checkpoint, a datetime or a version of the base table, "
            f"not {described(moment)}"
        )
    if is_plain_name(moment):
        return moment
    if is_snapshot_text(moment):
        return Snapshot.parse(moment)
    if _NUMBER.fullmatch(moment):
        version = digits_of(moment)
        if version is None:
            raise InvalidInputError(f"no version of the base table has such a number: {described(moment)}")
        return version
    try:
        return datetime.fromisoformat(moment)
    except ValueError:
        raise InvalidInputError(f"not a time as in 2026-01-31T12:00:00+00:00: {described(moment)}") from None


def milliseconds(time: datetime) -> int:
    """A time in milliseconds since 1970; it must have a zone."""
    if time.tzinfo is None:
        raise InvalidInputError(f"{time.isoformat()} has no time zone: give one, as in datetime.now(timezone.utc)")
    return int(time.timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A named moment of a table; `expires` is None for one that stays until it is dropped."""

    name: str
    snapshot: Snapshot
    created: datetime
    expires: datetime | None = None

    @classmethod
    def of(cls, record: CheckpointRecord) -> Checkpoint:
        """What an active record says."""
        expires = None if record.expires_ms is None else _time(record.expires_ms)
        return cls(record.name, record.snapshot, _time(record.created_ms), expires)


def create_checkpoint(
    newest: Callable[[], BaseTable],
    take: Callable[[], Snapshot],
    name: str,
    lifetime: timedelta | None,
    clock: Clock = SYSTEM_CLOCK,
) -> Checkpoint:
    """A checkpoint of the table as it is now; `take` gives a snapshot of that."""
    _check_name(name)
    if lifetime is not None and (not isinstance(lifetime, timedelta) or lifetime <= timedelta(0)):
        raise InvalidInputError("lifetime must be a timedelta above 0, or None for one that stays until it is dropped")
    base = for_writing(newest(), clock)  # records are known by the table's id
    known = checkpoint_record(base.location, name)
    if known is not None and known.is_active(base.table_id):
        raise InvalidInputError(f"there is a checkpoint {name!r} already: drop it first, or choose another name")
    number = 0 if known is None else known.number
    for _ in attempts(f"the snapshot of checkpoint {name!r}", clock, FEW_TRIES):
        now_ms, snapshot, number = clock.now_ms(), take(), number + 1
        expires_ms = None if lifetime is None else now_ms + int(lifetime.total_seconds() * 1000)
        by = clock.uuid4()
        record = CheckpointRecord(name, number, "active", base.table_id, snapshot, now_ms, expires_ms, by)
        tagged = newest()
        let_survive(tagged)  # and with it the version that the snapshot stands on
        if not write_checkpoint(tagged, record):
            raise ConflictError(f"somebody else creates or drops the checkpoint {name!r} right now; retry")
        try:
            check_whole(base_of(base.location, snapshot), snapshot, lambda *_: False)  # it may be pinned too late
        except CollectedError:  # GC did not see the record: take a new snapshot
            number += 1
            write_checkpoint(newest(), replace(record, number=number, state="dropped", by=clock.uuid4()))
        else:
            return Checkpoint.of(record)
    raise AssertionError("the last attempt returns or raises")


def list_checkpoints(base: BaseTable) -> list[Checkpoint]:
    """The checkpoints of the table, by name."""
    return [Checkpoint.of(record) for record in read_checkpoints(base.location, base.table_id)]


def checkpoint_of(base: BaseTable, name: str) -> Checkpoint:
    """The checkpoint of this name; `CollectedError` if it has expired, `InvalidInputError` if there is none."""
    return _active(base, name, checkpoint_record(base.location, check_record_name(name)))


def _active(base: BaseTable, name: str, record: CheckpointRecord | None) -> Checkpoint:
    if record is not None and record.is_active(base.table_id):
        return Checkpoint.of(record)
    if record is not None and record.state == "expired" and record.table_id == base.table_id:
        raise CollectedError(f"the lifetime of the checkpoint {name!r} has passed, and what it kept may be gone")
    known = ", ".join(record.name for record in read_checkpoints(base.location, base.table_id)) or "none"
    raise InvalidInputError(f"there is no checkpoint {name!r}; known: {known}")


def drop_checkpoint(base: BaseTable, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
    """Let collection have what only this checkpoint keeps, also if its record is damaged; `base` is the newest version."""
    number, by = newest_number(base.location, check_record_name(name)), clock.uuid4()
    try:
        record = checkpoint_record(base.location, name)
    except CorruptDataError:  # nobody can say what it kept
        snapshot = Snapshot(base.tag, base.version)
    else:
        snapshot = _active(base, name, record).snapshot
    ended = CheckpointRecord(name, number + 1, "dropped", base.table_id, snapshot, clock.now_ms(), None, by)
    if not write_checkpoint(base, ended):
        raise ConflictError(f"somebody else creates or drops the checkpoint {name!r} right now; retry")


def _check_name(name: str) -> None:
    check_record_name(name)
    if ".." in name or name.endswith((".", ".lock")):
        raise InvalidInputError(
            f"Lance takes no tag of that name: no '..', and no '.' or '.lock' at the end of {name!r}"
        )
    if name.lower() in FEED_WORDS:
        raise InvalidInputError(f"{name!r} is a word of the change feed ({', '.join(FEED_WORDS)}): choose another name")
    if not is_plain_name(name):
        raise InvalidInputError(f"{name!r} would be read as a version or a time: choose a name with another beginning")


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
