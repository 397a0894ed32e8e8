"""How far collection went in a shard: its floor.

Owns `Floor`, numbered records below the shard: `{"position": p, "manifest": v, "announced": a, "by": uuid}`. Invariants:

1. A floor never falls. Collection raises it before it removes the first entry at or below the position, the rows of the
   first bulk mark there, or the first thing that a snapshot with a lower manifest version may need.
2. A reader of the feed looks at the floor after it has read an entry, or the rows of a mark. What is at or below it does not
   count, even if an object is there: it may be one that came late into a slot that collection had emptied.
3. So does a reader of a snapshot: one with a manifest version below the floor's counts only if it was pinned all the time.
4. A position is announced before the pins are read that decide whether the floor is raised to it. So nobody is passed who
   pinned first, and who pins later and then looks sees what was announced.
"""

from __future__ import annotations

from collections.abc import Mapping

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import CorruptDataError
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.store.sequenced import Record, Records, is_count, update

_NUMBERS = ("position", "manifest", "announced")
_NOTHING = Record(0, {"position": 0})


class Floor:
    """The floor of one shard."""

    __slots__ = ("_clock", "_known", "_records")

    def __init__(self, location: Location, shard_id: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._records = Records(location.store, paths.floor_dir(shard_id))
        self._clock = clock
        self._known = _NOTHING

    def position(self) -> int:
        """The highest position at or below which something may be gone; 0 if nothing is. One listing, mostly."""
        return self._number(self._newest(), "position")

    def manifest(self) -> int:
        """The lowest manifest version of which nothing is gone that a snapshot needs. One listing, mostly."""
        return self._number(self._newest(), "manifest")

    def announced(self) -> int:
        """The highest position that the floor has, or may have soon. One listing, mostly."""
        newest = self._newest()
        return max(self._number(newest, "announced"), self._number(newest, "position"))

    def announce(self, position: int, manifest: int) -> None:
        """Say how far the floor may be raised; for snapshots it is raised at once. Durable when this returns."""
        self._raise({"announced": position, "manifest": manifest})

    def raise_to(self, position: int) -> None:
        """Let the floor be at this position or above it; durable when this returns."""
        self._raise({"position": position})

    def _raise(self, wanted: Mapping[str, int]) -> None:
        def raised(newest: Record) -> Record:
            known = {key: self._number(newest, key) for key in _NUMBERS}
            numbers = {key: max(known[key], wanted.get(key, 0)) for key in _NUMBERS}
            return newest if numbers == known else Record(newest.number + 1, {**numbers, "by": self._clock.uuid4()})

        records = self._records
        update(records.directory, lambda: records.newest() or _NOTHING, raised, records.create, clock=self._clock)

    def _newest(self) -> Record:
        numbers = self._records.numbers()
        if numbers and numbers[-1] != self._known.number:
            self._known = self._records.newest() or self._known
        return self._known

    def _number(self, record: Record, key: str) -> int:
        number = record.value.get(key, 0)
        if not is_count(number):
            path = paths.record_path(self._records.directory, max(1, record.number))
            raise CorruptDataError("a floor record is malformed; restore it from a backup", path=path)
        return int(number)
