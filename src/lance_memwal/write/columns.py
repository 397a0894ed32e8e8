"""Moving a live writer to new columns.

Owns `WriteGate`, `drain` and `move_core`. Invariants:

1. No write is between fitting its rows to the columns and inserting them while the columns change: writes pass through
   the gate, and a change waits until nobody is inside and lets nobody in.
2. Everything written before is durable and flushed under the old columns, so that one memtable, one entry and one
   SSTable have one set of columns.
3. A change that fails leaves the writer with the old columns, and with all its rows.
4. Nobody waits for ever: a change that cannot begin, or whose flush does not end, is given up at its deadline; writes
   that wait for a change give up at theirs, before anything was inserted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.process.deadline import Deadline
from lance_memwal.process.waiting import Waiters, is_on_top, on_top_error
from lance_memwal.rows.schema import TableSchema
from lance_memwal.write.group_commit import ShardCore

__all__ = ["WriteGate", "drain", "move_core"]


class WriteGate:
    """Many writes at once, or one change of columns; entered with `with`.

    Who is inside is kept by thread, so that a thread that is interrupted in the doorway is not counted for ever.
    """

    __slots__ = ("_changed", "_clock", "_closed_by", "_inside")

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._changed = Waiters()
        self._inside: set[int] = set()
        self._closed_by: int | None = None

    def __enter__(self) -> None:
        me = threading.get_ident()
        if me in self._inside and is_on_top():  # else it was interrupted in the doorway, before
            raise on_top_error("a write")
        self._inside.add(me)  # before the look at the door: whoever closes it either sees us or is seen
        if self._closed_by is not None:
            self._wait_at_the_door(me)

    def _wait_at_the_door(self, me: int) -> None:
        deadline = Deadline(self._clock)
        while self._is_closed_to(me):
            self._inside.discard(me)
            self._changed.wake_all()
            while self._is_closed_to(me):
                place = self._changed.stand()
                if self._is_closed_to(me):
                    place.sleep(deadline.left_seconds)
                self._changed.leave(place)
                deadline.refuse_passed("the writer was still being moved or parked; the write was not begun, retry")
            self._inside.add(me)

    def _is_closed_to(self, me: int) -> bool:
        return self._closed_by is not None and self._closed_by != me

    def __exit__(self, *exc: object) -> None:
        self._inside.discard(threading.get_ident())
        if self._closed_by is not None:
            self._changed.wake_all()

    @contextmanager
    def closed(self, deadline: Deadline | None = None) -> Iterator[None]:
        """Keep all writes out for the duration; begins when the last one has left, `UnavailableError` at the deadline."""
        me = threading.get_ident()
        deadline = Deadline(self._clock) if deadline is None else deadline
        try:
            while not self._shut(me):
                place = self._changed.stand()
                place.sleep(deadline.left_seconds)
                self._changed.leave(place)
                deadline.refuse_passed("the writer was still being moved or parked by another thread; retry")
            self._wait_until_left(me, deadline)
            if self._inside - {me}:
                raise deadline.error("a write that began before has not ended; retry")
            yield
        finally:
            if self._closed_by == me:
                self._closed_by = None
                self._changed.wake_all()

    def shut_for_good(self, deadline: float, clock: Clock) -> None:
        """Let no other thread in any more, and wait for those who are inside: the program ends."""
        me = threading.get_ident()
        self._closed_by = me
        self._wait_until_left(me, Deadline(clock, deadline - clock.monotonic()))

    def _shut(self, me: int) -> bool:
        if self._closed_by is None:
            self._closed_by = me
        return self._closed_by == me

    def _wait_until_left(self, me: int, deadline: Deadline) -> None:
        """Wait for those who are inside; at the deadline some may still be."""
        while self._inside - {me} and deadline.left_seconds:
            place = self._changed.stand()
            if self._inside - {me}:
                place.sleep(deadline.left_seconds)
            self._changed.leave(place)


def drain(core: ShardCore, deadline: Deadline, way_out: str) -> None:
    """Return when every frozen memtable is an SSTable; `UnavailableError` at the deadline, with the way out."""
    if not core.wait_until(lambda: not core.frozen, deadline.left_seconds):
        raise deadline.error(f"{len(core.frozen)} memtables of shard {core.log.shard_id} were not flushed; {way_out}")


def move_core(core: ShardCore, schema: TableSchema, swap: Callable[[], None], deadline: Deadline) -> None:
    """Flush everything, then let the core go on with `schema`; `swap` changes the rest in the same step.

    The gate is closed: nobody inserts meanwhile.
    """
    with core.lock:
        core.refuse_writes()
    core.make_durable(core.buffered)
    if core.active is not None:
        core.seal()
    drain(core, deadline, "the writer goes on with its old columns, retry")
    with core.lock:
        core.refuse_writes()
        core.use_columns(schema)
        swap()
        active = core.active
        if active is not None:
            core.active = core.new_memtable(active.generation, active.first_batch, active.covered_position)
