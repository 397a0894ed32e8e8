"""The shard writers of a table writer: opened when rows need them, parked when there are many.

Owns `OpenShards`. Invariants:

1. At most `limit` shard writers are open when no write runs; the ones that were not used for longest are parked first.
2. A parked shard has everything durable, and keeps its epoch: no claim and no sentinel when it is used again.
3. A write that meets a writer which is being parked was not begun there; it goes to the shard again.
4. A parked shard whose log holds rows is flushed at the age limit of memtables, like one that is open. In this process it is
   known as owned until the writer has closed, so that nobody here claims it (`live.Keeper`).
5. A shard that somebody else claimed is lost, or claimed back at most once a second, by a write that has rows for it. All
   threads that write to it go on then, whichever of them met the fence. A parked one is found lost once: nothing is done for
   it by itself after that, and whoever asks for it is told.
6. What is done alone (opening one shard, making room) has an end: a writer that is too busy to be parked stays open, and
   the limit is kept by the next that opens one. Writes to shards that are open wait for none of it, and shards are opened,
   flushed and closed side by side.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

from lance_memwal.clock import SYSTEM_CLOCK, Lock, in_order
from lance_memwal.errors import ClosedError, FencedError, MemWalError
from lance_memwal.process.background import Task
from lance_memwal.process.deadline import Deadline
from lance_memwal.process.trial import tried_in_order
from lance_memwal.process.waiting import is_on_top, refuse_on_top
from lance_memwal.write.life import Parked
from lance_memwal.write.shard import Shard
from lance_memwal.write.stats import WriteStats

DEFAULT_OPEN_SHARDS = 256
_CLOSED_AT_ONCE = 4
_ROOM_SECONDS = 10.0
_AGED_SECONDS = 60.0
_RETAKE_SECONDS = 60.0
_LOG = logging.getLogger(__name__)


class ShardOwner(Protocol):
    """What is needed of the writer of one shard."""

    @property
    def shard_id(self) -> str:
        """The shard."""

    @property
    def epoch(self) -> int:
        """The epoch under which it owns the shard; 0 if it does not."""

    def evolve_schema(self) -> None:
        """Move to the columns that the base table has now."""

    def force_seal_active(self) -> None:
        """Freeze what was written."""

    def wait_for_flush_drain(self, timeout: float | None = None) -> None:
        """Return when everything that is frozen is in SSTables."""

    def stats(self) -> WriteStats:
        """Its totals."""

    def close(self) -> None:
        """Flush and stop."""

    def abort(self) -> None:
        """Stop."""


A = TypeVar("A")
T = TypeVar("T")
W = TypeVar("W", bound=ShardOwner)


class OpenShards(Generic[W]):
    """The shards that one table writer writes. Threads may share it."""

    def __init__(
        self,
        open_shard: Callable[[str | None, Parked | None], W],
        limit: int,
        max_age_seconds: float | None = None,
        *,
        core: Callable[[W], Shard],
        park: Callable[[W], Parked | None],
        lost_to_shared: Callable[[str, int], bool] | None = None,
        at_once: int = 1,
    ) -> None:
        """`open_shard` claims a shard (None: the default one), or takes a parked one up again. `core` returns the parts of a
        writer, `park` puts it away with everything durable, or returns None if it stays open.

        After `max_age_seconds` a parked shard is flushed if it owes that; None: never. `lost_to_shared` says whether shared
        writers took a shard over at a log position: a shard that they took while it was idle is claimed again (append R16).
        `at_once`: how many shards are worth waiting for at the same time.
        """
        self._lost_to_shared = lost_to_shared
        self._retaken: dict[str, float] = {}
        self._lost: weakref.WeakSet[W] = weakref.WeakSet()  # writers that somebody else fenced: they hold many rows
        self._open_shard = open_shard
        self._core = core
        self._park_writer = park
        self._limit = limit
        self._at_once = min(at_once, limit)  # more would park each other
        self._max_age_seconds = max_age_seconds
        self._aging = Task("compact")
        self._lock = threading.RLock()
        self._opening: dict[str, Lock] = {}  # a lock per shard: one thread opens it
        self._open: dict[str, W] = {}
        self._parked: dict[str, Parked] = {}
        self._used: dict[str, int] = {}
        self._ticks = count()
        self._default: str | None = None
        self.closed = False
        self._ended = False  # what was parked is not ours any more

    # ------------------------------------------------------------------------------------------------------ looking

    @property
    def open(self) -> dict[str, W]:
        """The writers that are open now, by shard."""
        return dict(self._open)

    @property
    def parked(self) -> dict[str, Parked]:
        """What is put away now, by shard."""
        return dict(self._parked)

    def names(self) -> list[str]:
        """Every shard that was written to."""
        return [*list(self._open), *list(self._parked)]

    def stats(self) -> dict[str, WriteStats]:
        """Totals per shard."""
        parked = {shard_id: kept.stats.snapshot() for shard_id, kept in list(self._parked.items())}
        return parked | {shard_id: writer.stats() for shard_id, writer in self.open.items()}

    def refuse_closed(self) -> None:
        """Raise once this was closed."""
        if self.closed:
            raise ClosedError("the table writer is closed; open a new one")

    # ------------------------------------------------------------------------------------------------------ writing

    def default(self) -> str:
        """The one shard of a table that does not route its rows."""
        if self._default is None:
            refuse_on_top(self._lock, "a write")
            with self._lock:
                if self._default is None:
                    writer = self._opened(None, None)
                    self._open[writer.shard_id] = writer
                    self._default = writer.shard_id
        return self._default

    def write(self, shard_id: str, call: Callable[..., T], *given: Any, retakes: bool = True) -> T:
        """What `call` does with the writer of the shard, and with what is given; `retakes`: it has rows for the shard."""
        while True:
            writer = self._open.get(shard_id)
            if writer is None:
                parked = self._parked.get(shard_id)
                try:
                    writer = self._take_up(shard_id)
                except FencedError:
                    if parked is None or not (retakes and self._may_retake(shard_id, parked.log.next_position)):
                        self._lose(shard_id, parked)
                        raise
                    self._forget_lost(shard_id, parked)
                    continue
            self._used[shard_id] = next(self._ticks)
            try:
                return call(writer, *given)
            except ClosedError:
                if self.closed or not (self._is_parked(writer) or writer in self._lost):
                    raise
                if self._is_parked(writer):
                    self._drop(shard_id, writer)
                else:  # another thread met the fence first
                    self._forget_lost(shard_id, writer)
            except FencedError:  # the rows of this call were not written: a marker that announced them no longer counts
                if not (retakes and self._may_retake(shard_id, self._core(writer).log.next_position)):
                    raise
                self._forget_lost(shard_id, writer)

    def write_each(self, routed: Mapping[str, Any], call: Callable[[W, Any], T]) -> dict[str, T]:
        """What `call` does with the writer of each shard and what is given for it; several at once where that helps.

        Once another shard was tried, nobody is told that nothing happened.
        """

        def to_shard(shard_id: str) -> T:
            return self.write(shard_id, call, routed[shard_id])

        return dict(zip(routed, tried_in_order(to_shard, list(routed), self._at_once, "memwal-put"), strict=True))

    def _take_up(self, shard_id: str) -> W:
        with self._turn_to_open(shard_id):
            writer = self._open.get(shard_id)
            if writer is None:
                self._make_room(shard_id, self._limit - 1)
                writer = self._opened(shard_id, self._parked.get(shard_id))
                with self._lock:
                    self._used[shard_id] = next(self._ticks)
                    self._open[shard_id] = writer
                    self._parked.pop(shard_id, None)
                self._make_room(shard_id, self._limit)  # others may have been opened meanwhile
            return writer

    def _turn_to_open(self, shard_id: str) -> Lock:
        """The lock of whoever opens this shard."""
        refuse_on_top(self._lock, "a write")
        with self._lock:
            turn = self._opening.setdefault(shard_id, threading.RLock())
        refuse_on_top(turn, "a write")
        return turn

    def _is_parked(self, writer: W) -> bool:
        return self._core(writer).health.is_parked

    def _may_retake(self, shard_id: str, position: int) -> bool:
        """Whether to claim a shard again that was lost at this position of its log, at most once a minute."""
        last = self._retaken.get(shard_id)
        if self.closed or (last is not None and SYSTEM_CLOCK.monotonic() - last < _RETAKE_SECONDS):
            return False
        return self._lost_to_shared is not None and self._lost_to_shared(shard_id, position)

    def _forget_lost(self, shard_id: str, lost: W | Parked) -> None:
        """Let the next write claim the shard again."""
        if not isinstance(lost, Parked):
            self._lost.add(lost)  # before other threads find it closed
            lost.abort()
        with self._lock:
            held: dict[str, Any] = self._parked if isinstance(lost, Parked) else self._open
            if held.get(shard_id) is lost:
                del held[shard_id]
                self._retaken[shard_id] = SYSTEM_CLOCK.monotonic()
                _LOG.warning("shared writers took over an idle shard, it is claimed again [shard=%s]", shard_id)

    def _lose(self, shard_id: str, parked: Parked | None) -> None:
        """Remember that somebody else has a parked shard; it stays, so that no write takes it for one that is new here."""
        with self._lock:
            if parked is not None and self._parked.get(shard_id) is parked:
                self._parked[shard_id] = replace(parked, is_lost=True)

    def _drop(self, shard_id: str, writer: W) -> None:
        """Forget a parked writer, as whoever parks it is about to, unless an interrupt kept it from that."""
        refuse_on_top(self._lock, "a write")
        with self._lock:
            if self._open.get(shard_id) is writer:
                del self._open[shard_id]

    def _opened(self, shard_id: str | None, parked: Parked | None) -> W:
        self.refuse_closed()
        writer = self._open_shard(shard_id, parked)
        if self.closed:  # by a signal handler, meanwhile
            writer.abort()
            self.refuse_closed()
        return writer

    def _make_room(self, spared: str, most: int) -> None:
        """Park what was not used for longest, until `most` are open; `spared` stays.

        A writer that cannot be parked stays: it was fenced, and says so to its own writes, or it is busy.
        """
        if len(self._open) <= most:
            return
        with self._lock:
            deadline = Deadline(SYSTEM_CLOCK, _ROOM_SECONDS)
            for shard_id in sorted(self._open, key=lambda name: self._used.get(name, -1)):
                if len(self._open) <= most or not deadline.left_seconds:
                    return
                if shard_id != spared:
                    self._park(shard_id)

    def _park(self, shard_id: str) -> None:
        parked = self._park_writer(self._open[shard_id])
        if parked is not None:
            self._parked[shard_id] = parked  # before it leaves the others: every shard has a name at any time
            del self._open[shard_id]
            self._used.pop(shard_id, None)
            self._watch_age(parked)

    # ------------------------------------------------------------------------------------------------- what is parked

    def keeps(self, shard_id: str, epoch: int) -> bool:
        """Whether the shard is parked here, or about to be, under this epoch or a later one."""
        if self._ended:
            return False
        writer, parked = self._open.get(shard_id), self._parked.get(shard_id)
        if parked is not None and parked.log.epoch >= epoch:
            return True
        return writer is not None and self._is_parked(writer) and writer.epoch >= epoch

    def publish_kept(self, timeout_seconds: float, shards: Collection[str] | None) -> dict[str, str]:
        """Flush what is parked and owes that, of these shards; says of which it failed, and why. A close does that itself."""
        failed: dict[str, str] = {}
        for shard_id in () if self.closed else self._owing_own():
            if shards is None or shard_id in shards:
                try:
                    self.write(shard_id, _flushed, timeout_seconds, retakes=False)
                except MemWalError as error:
                    if self.closed:
                        return failed
                    failed[shard_id] = str(error)
        return failed

    def _owing(self) -> dict[str, Parked]:
        return {shard_id: parked for shard_id, parked in list(self._parked.items()) if parked.owes_flush}

    def _owing_own(self) -> dict[str, Parked]:
        """What owes a flush, and is not known to be lost: the rows of the others are their owners'."""
        return {shard_id: parked for shard_id, parked in self._owing().items() if not parked.is_lost}

    def _watch_age(self, parked: Parked) -> None:
        if self._max_age_seconds is not None and parked.owes_flush:
            self._aging.start(self._flush_old).poke()

    def _flush_old(self) -> float | None:
        """Flush parked shards that are old; returns the seconds until another one is."""
        age = self._max_age_seconds
        if age is None or self.closed:
            return None
        now = SYSTEM_CLOCK.monotonic()
        owing = {shard_id: parked.since + age for shard_id, parked in self._owing_own().items()}
        for shard_id in [shard_id for shard_id, due in owing.items() if due <= now]:
            try:
                self.write(shard_id, _flushed, _AGED_SECONDS, retakes=False)
            except Exception as error:  # a writer that closes, or a store that fails: the log has the rows
                if not self.closed:
                    _LOG.warning("a parked shard was not flushed [shard=%s]: %s", shard_id, error)
        later = [due for due in owing.values() if due > now]
        return min(later, default=now + age) - now if owing else None

    def stop_background(self) -> None:
        """Flush no parked shard by itself any more; may be called anywhere."""
        self._aging.cancel()

    # ------------------------------------------------------------------------------------------------------ ending

    def evolve(self) -> None:
        """Let every open writer move to the columns of the table; a parked one does when it is used again."""
        self.refuse_closed()
        self._wait_for_openers()  # they may have looked at the table before its columns changed
        with self._lock:
            self.refuse_closed()
            writers = list(self._open.values())
        for writer in writers:  # without the lock: others may open shards meanwhile, with the columns of now
            try:
                writer.evolve_schema()
            except ClosedError:
                if not self._is_parked(writer) and writer not in self._lost:
                    raise

    def flush(self, timeout: float | None) -> None:
        """Turn everything that was written into SSTables; `UnavailableError` after `timeout` seconds in all.

        Other threads may park a shard, or take it up again, at any moment: whoever waits on another writer than the one
        that was sealed seals that one, too.
        """
        refuse_on_top(self._lock, "flush")
        deadline = None if timeout is None else SYSTEM_CLOCK.monotonic() + timeout
        sealed: dict[str, W] = {}

        def seal(writer: W) -> None:
            writer.force_seal_active()
            sealed[writer.shard_id] = writer

        def drain(writer: W) -> None:
            if sealed.get(writer.shard_id) is not writer:
                seal(writer)
            left = None if deadline is None else max(0.0, deadline - SYSTEM_CLOCK.monotonic())
            writer.wait_for_flush_drain(left)

        with self._lock:  # a shard that is being parked is among the ones or the others
            names = list(self._open)
            owing = list(self._owing())
        for step, shards in ((seal, names), (drain, [*names, *owing])):  # all are sealed first: flushed side by side
            for _ in in_order(partial(self.write, call=step, retakes=False), shards, self._at_once, "memwal-flush"):
                pass

    def close(self) -> list[Exception]:
        """Flush and close every shard; returns what failed. In a signal handler on top of another call, parked
        shards stay as they are: their rows are durable."""
        return self._end(lambda writer: writer.close(), flushes=True)

    def abort(self) -> list[Exception]:
        """Stop without flushing."""
        return self._end(lambda writer: writer.abort(), flushes=False)

    def _end(self, end: Callable[[W], None], *, flushes: bool) -> list[Exception]:
        is_first, self.closed = not self.closed, True
        self._ended = self._ended or not flushes
        self.stop_background()
        try:
            failures = self._end_open(end, flushes=flushes)
            return [*failures, *self._close_parked()] if is_first and flushes and not is_on_top() else failures
        finally:
            self._ended = self._ended or is_first

    def _end_open(self, end: Callable[[W], None], *, flushes: bool) -> list[Exception]:
        if is_on_top():
            return _failures(end, list(self._open.values()), 1)
        self._wait_for_openers()
        writers = list(self._open.values())
        if flushes:
            for writer in writers:  # all of them first: they are flushed side by side
                self._core(writer).seal()
        return _failures(end, writers, self._at_once)

    def _wait_for_openers(self) -> None:
        """Return when nobody opens a shard any more who began before: whoever begins now looks at everything anew."""
        with self._lock:
            turns = list(self._opening.values())
        for turn in turns:
            with turn:
                pass

    def _close_parked(self) -> list[Exception]:
        def close(item: tuple[str, Parked]) -> None:
            shard_id, parked = item
            self._open_shard(shard_id, parked).close()
            self._parked[shard_id] = replace(parked, owes_flush=False)

        return _failures(close, list(self._owing().items()), max(_CLOSED_AT_ONCE, self._at_once))

    def orphan(self) -> None:
        """Become closed in a forked child."""
        self._lock, self._opening, self.closed, self._ended = threading.RLock(), {}, True, True
        self._aging.orphan()


def _flushed(writer: ShardOwner, seconds: float) -> None:
    """Turn what was written into SSTables."""
    writer.force_seal_active()
    writer.wait_for_flush_drain(seconds)


def _failures(call: Callable[[A], None], items: list[A], at_once: int) -> list[Exception]:
    """What failed of the calls, all of which were made."""

    def failure(item: A) -> Exception | None:
        try:
            call(item)
        except Exception as error:
            return error
        return None

    try:
        found = list(in_order(failure, items, at_once, "memwal-close"))
    except RuntimeError:  # the program ends, and no thread can be had
        found = [failure(item) for item in items]
    return [error for error in found if error is not None]
