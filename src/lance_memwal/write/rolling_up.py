"""Roll-ups (RFC 0031) as work beside those who publish generations.

Owns `RollingUp`. Invariants:

1. It runs in a task of its own, which all shards of the process share a thread for: no flush and no close waits for a
   roll-up. A step makes one, and others have their turn before the next.
2. Once its owner ends, or is refused, no other generation is copied and nothing is put.
3. Nothing depends on a roll-up: a failure is logged, and the next publication that completes a block tries again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from lance_memwal.clock import Clock
from lance_memwal.errors import ClosedError
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.process.background import Task, is_ending
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.rolling import may_be_due, roll_up
from lance_memwal.store.location import Location

__all__ = ["RollingUp"]

_LOG = logging.getLogger(__name__)


class RollingUp:
    """Makes the roll-ups of shards, in the background, as their generations are published. Threads may share it."""

    __slots__ = ("_clock", "_columns", "_due", "_is_started", "_location", "_refuse", "task")

    def __init__(
        self, location: Location, columns: Callable[[], TableSchema], refuse: Callable[[], None], clock: Clock
    ) -> None:
        """`columns` gives those of the table and raises if it is another one now; `refuse` raises when this is to end."""
        self._location = location
        self._columns = columns
        self._refuse = refuse
        self._clock = clock
        self._due: set[str] = set()
        self._is_started = False
        self.task = Task("roll-up", clock)

    def published(self, shard_id: str, generation: int) -> None:
        """Take in that a generation was published: it may complete a block."""
        if may_be_due(generation):
            self.look(shard_id)

    def look(self, shard_id: str) -> None:
        """Make the roll-ups that the shard should have, soon."""
        if not self.task.cancelled:
            self._due.add(shard_id)
            if not self._is_started:  # most shards never need a thread for it
                self._is_started = True
                self.task.start(self._run)
            self.task.poke()

    def _run(self) -> float | None:
        try:
            shard_id = self._due.pop()
        except KeyError:
            return None
        if self._made_one(shard_id):
            self._due.add(shard_id)
        return 0.0 if self._due else None

    def _made_one(self, shard_id: str) -> bool:
        """Make one roll-up of the shard; False if it needs none now, or that failed."""
        try:
            self._refuse_ended()
            columns = self._columns()
            manifest = ShardManifestStore(self._location, shard_id, clock=self._clock).read_latest()
            if manifest is None:
                return False
            refuse, look = self._refuse_ended, self._columns
            return bool(roll_up(self._location, manifest, columns, at_most=1, refuse=refuse, look=look))
        except Exception as error:  # readers open more files then, and nothing else is lost
            level = logging.DEBUG if isinstance(error, ClosedError) else logging.WARNING
            _LOG.log(level, "generations were not rolled up [shard=%s]: %s", shard_id, error)
            return False

    def _refuse_ended(self) -> None:
        if self.task.cancelled or is_ending():
            raise ClosedError("whoever rolls generations up has ended")
        self._refuse()
