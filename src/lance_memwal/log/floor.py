"""How far collection went in the log of a shard: its floor.

Owns `Floor`, numbered records below the shard: `{"position": p, "by": uuid}`. Invariants:

1. A floor never falls. Collection raises it before it removes the first entry at or below it, or the rows of the first
   bulk mark there.
2. A reader of the feed looks at the floor after it has read an entry, or the rows of a mark. What is at or below it does not
   count, even if an object is there: it may be one that came late into a slot that collection had emptied.
"""

from __future__ import annotations

from lance_memwal.clock import SYSTEM_CLOCK, BackOff, Clock
from lance_memwal.errors import ConflictError, CorruptDataError
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.store.records import Record, Records

__all__ = ["Floor"]

_MAX_TRIES = 64
_BACK_OFF = BackOff(0.005, 0.25)


class Floor:
    """The floor of one shard."""

    __slots__ = ("_clock", "_known", "_records")

    def __init__(self, location: Location, shard_id: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._records = Records(location.store, paths.floor_dir(shard_id))
        self._clock = clock
        self._known = Record(0, {"position": 0})

    def position(self) -> int:
        """The highest position at or below which something may be gone; 0 if nothing is. One listing, mostly."""
        numbers = self._records.numbers()
        if numbers and numbers[-1] != self._known.number:
            self._known = self._records.newest() or self._known
        return _position(self._known, self._records.directory)

    def raise_to(self, position: int) -> None:
        """Let the floor be at `position` or above it; durable when this returns."""
        for attempt in range(_MAX_TRIES):
            newest = self._records.newest()
            if newest is not None and _position(newest, self._records.directory) >= position:
                return
            number = 1 if newest is None else newest.number + 1
            if self._records.create(number, {"position": position, "by": self._clock.uuid4()}):
                return
            _BACK_OFF.wait(self._clock, attempt)
        raise ConflictError(f"others raise the floor below {self._records.directory} all the time; retry")


def _position(record: Record, directory: str) -> int:
    position = record.value.get("position")
    if not isinstance(position, int) or isinstance(position, bool) or position < 0:
        raise CorruptDataError("a floor record is malformed", path=paths.record_path(directory, max(1, record.number)))
    return position
