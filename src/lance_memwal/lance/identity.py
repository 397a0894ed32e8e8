"""Which table lies at a place: its id, and who notices that it is another one.

Owns `TableWatch`. Invariants:

1. A table has an id from the commit of its MemWAL entry on: a UUID among the stored writer settings of that entry, which
   every commit of marks and indexes keeps. A table that another implementation initialised gets it in the table's
   configuration when it is first opened for writing. (The configuration alone is no identity: it survives an overwrite.)
2. It is another table, or an older state of it, if its MemWAL entry is gone, its id differs, or one of its marks is lower
   than it was: marks only grow, unless the base table was restored or initialised again.
3. A watch belongs to one open of the table. What it finds is final: it never goes back to a table that it gave up, nor to an
   older version, whichever look (a signal handler's is on top of another one) ends last.
4. Callers that look at the same time share a look that began after all of them asked for one.

Why and how: `rfcs/0004-identity-of-a-table.md`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import InvalidInputError, MemWalError, TableReplacedError, UnavailableError
from lance_memwal.lance.base import BaseTable
from lance_memwal.store.location import Location

_LOG = logging.getLogger(__name__)
_LOCAL_SECONDS = 1.0
_REMOTE_SECONDS = 60.0


class TableWatch:
    """One open of a table, and whether the table is still that one. Threads may share it."""

    def __init__(self, base: BaseTable, clock: Clock = SYSTEM_CLOCK) -> None:
        self.location: Location = base.location
        self.table_id = base.table_id
        self.tag = base.tag
        self._base = base
        self._marks = _marks(base)
        self._clock = clock
        self._interval_seconds = _LOCAL_SECONDS if base.location.is_local else _REMOTE_SECONDS
        self._lock = clock.rlock()  # a signal handler may write on top of a write
        self._replaced: str | None = None
        self._begun = self._done = 0  # the numbers of the newest look, and of the newest one that gave an answer
        self._look_at = clock.monotonic() + self._interval_seconds

    @property
    def is_replaced(self) -> bool:
        """Whether a look found another table."""
        return self._replaced is not None

    def mark_of(self, shard_id: str) -> int:
        """The last generation of a shard that the base table had when somebody looked last; 0: none."""
        with self._lock:
            return self._marks.get(shard_id, 0)

    @property
    def is_due(self) -> bool:
        """Whether `look_if_due` would look."""
        return self._clock.monotonic() >= self._look_at or self._replaced is not None

    def look_if_due(self) -> None:
        """`look`, at most once a second on local paths and once a minute elsewhere; a base that cannot be read proves nothing."""
        now = self._clock.monotonic()
        if now < self._look_at and self._replaced is None:
            return
        self._look_at = now + self._interval_seconds  # before the look: the other threads need not look too
        try:
            self.look()
        except TableReplacedError:
            raise
        except MemWalError as error:
            _LOG.warning("the base table could not be looked at [table=%s]: %s", self.location.describe(), error)

    def look(self) -> BaseTable:
        """The newest version of the base table; `TableReplacedError` if it is another table, or an older state of it."""
        asked = self._begun
        with self._lock:
            if self._replaced is None and self._done <= asked:
                self._look_now()
            if self._replaced is None:
                return self._base
            raise TableReplacedError(f"the table at {self.location.describe()} {self._replaced}: open it again")

    def _look_now(self) -> None:
        self._look_at = self._clock.monotonic() + self._interval_seconds
        self._begun = number = self._begun + 1
        known, marks = self._base, self._marks
        base, wrong = self._newest(known, marks)
        if wrong is not None:
            self._replaced = wrong
        elif base is not None and self._base is known:  # else a look on top of this one read a later version
            self._base, self._marks = base, _marks(base)
        self._done = max(self._done, number)

    def _newest(self, known: BaseTable, known_marks: Mapping[str, int]) -> tuple[BaseTable | None, str | None]:
        """The newest version, and what is wrong with it; `known` is the one before, and its marks."""
        try:
            base: BaseTable | None = known.refresh()
        except (InvalidInputError, UnavailableError):
            base = BaseTable.open(self.location)  # whether it is gone or out of reach: the store decides
        if base is None:
            return None, "was removed"
        if base is known:
            return base, None
        if base.details is None:
            return base, "has no MemWAL index any more: its base was overwritten, or restored to a state before it"
        if base.table_id != self.table_id:
            return base, "is another one, which was made at the same place"
        marks = _marks(base)
        fallen = sorted(shard for shard, mark in known_marks.items() if marks.get(shard, 0) < mark)
        if fallen:
            return base, "is an older state of itself: its base was restored to before a compaction (see Table.verify)"
        return base, None


def _marks(base: BaseTable) -> Mapping[str, int]:
    """All recorded progress, the number of commits included."""
    return {} if base.details is None else base.details.compacted
