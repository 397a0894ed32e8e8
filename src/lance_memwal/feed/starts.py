"""Where a feed begins and where it ends.

Owns what `start` and `until` of a feed mean, and `span`, the changes between two places of a shard. Invariants:

1. A time means the place before the first entry that was written at or after it, per shard: exact by the clocks of those who
   wrote there.
2. A place whose changes were collected is an error when it is read, never moved on.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal, TypeAlias

from lance_memwal.arguments import described
from lance_memwal.clock import Clock
from lance_memwal.errors import InvalidInputError
from lance_memwal.feed.changed_rows import ChangedRows, Shape
from lance_memwal.feed.checkpoints import checkpoint_of, milliseconds, parse_moment
from lance_memwal.feed.cursor import CURSOR_PREFIX, Cursor, Place
from lance_memwal.feed.shard_changes import ShardChanges
from lance_memwal.lance.base import BaseTable
from lance_memwal.log.shards import list_shards
from lance_memwal.read.snapshot import Snapshot

Start: TypeAlias = Literal["earliest", "latest", "snapshot"] | Cursor | Snapshot | datetime | str
Until: TypeAlias = Literal["now"] | Cursor | Snapshot | datetime | str | None


class Shards:
    """The shards of a table, as readers of changes; found anew when asked."""

    def __init__(self, base: BaseTable, shape: Shape, clock: Clock) -> None:
        self.base = base
        self._shape = shape
        self._clock = clock
        self._known: dict[str, ShardChanges] = {}

    def find(self) -> list[ShardChanges]:
        """Every shard on storage, in order of id."""
        return [self.of(shard_id) for shard_id in list_shards(self.base.location)]

    def of(self, shard_id: str) -> ShardChanges:
        """One shard, the same reader every time."""
        found = self._known.get(shard_id)
        if found is None:
            found = ShardChanges(self.base, shard_id, self._shape.stored, self._clock)
            self._known[shard_id] = found
        return found


def cursor_of(name: str, given: Start, shards: Shards) -> Cursor:
    """The cursor that `start` or `until` (`name` says which) stands for; the word "snapshot" is none."""
    tag = shards.base.tag
    if given == ("now" if name == "until" else "latest"):
        return Cursor(tag, {shard.shard_id: shard.latest() for shard in shards.find()})
    if given == "earliest" and name == "start":
        return Cursor(tag, {shard.shard_id: shard.earliest() for shard in shards.find()})
    meant = parsed(name, given, shards.base)
    if isinstance(meant, Cursor):
        return meant.check_table(tag)
    if isinstance(meant, Snapshot):
        places = {s.shard_id: shards.of(s.shard_id).before_mark(s.tip, s.cursor) for s in meant.shards}
        return Cursor(meant.table, places).check_table(tag)
    time_ms = milliseconds(meant)
    return Cursor(tag, {shard.shard_id: shard.at(time_ms) for shard in shards.find()})


def parsed(name: str, given: Start, base: BaseTable) -> Cursor | Snapshot | datetime:
    """What is given, or what its text says; it is no word."""
    if isinstance(given, Cursor | Snapshot | datetime):
        return given
    if isinstance(given, str) and given.startswith(CURSOR_PREFIX):
        return Cursor.parse(given)
    meant = parse_moment(given) if isinstance(given, str) and given else None
    if isinstance(meant, Snapshot | datetime):
        return meant
    words = "'earliest', 'latest', 'snapshot'" if name == "start" else "None, 'now'"
    refusal = InvalidInputError(
        f"{name} must be {words}, a cursor, a snapshot, the name of a checkpoint or a time, not {described(given)}"
    )
    if not isinstance(meant, str):
        raise refusal
    try:
        return checkpoint_of(base, meant).snapshot
    except InvalidInputError as error:  # there is none
        raise refusal from error


def span(shard: ShardChanges, place: Place, until: Place) -> Iterator[ChangedRows]:
    """The changes between two places; all of them are there."""
    if place < until:
        shard.look(place)
    while place < until:
        chunk = shard.take(place, until)
        if chunk is None:
            shard.look(place)  # says what happened to it, if something did
            raise InvalidInputError(f"the log of shard {shard.shard_id} ends before position {until.position}")
        place = chunk.place
        if chunk.changes is not None:
            yield chunk.changes
