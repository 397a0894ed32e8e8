"""Work beside the callers: one small set of threads for all writers of the process.

Owns `Task`, and the threads. A task is a function that runs when somebody pokes it, and again after the seconds that it
returned. Invariants:

1. The number of threads has a limit per kind of work, however many tasks there are. They are made for the first task
   and end with the last one.
2. A task runs in one thread at a time; a poke while it runs makes it run again.
3. `poke` and `cancel` take no lock and start no thread: a finaliser or a signal handler may call them anywhere.
4. In a forked child there are no threads and no task runs.
5. When the program ends nothing new is begun, no task enters Lance again, and what runs is waited for, up to
   `EXIT_SECONDS`: a thread that comes back from native code into an interpreter that is being taken down would abort
   the whole process. After that a task runs in whichever thread needs its work (`run_here`).
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Literal, TypeAlias

from lance_memwal.clock import SYSTEM_CLOCK, Clock, Lane
from lance_memwal.errors import ClosedError
from lance_memwal.process.forking import run_in_child
from lance_memwal.process.turns import TakenError, Turn
from lance_memwal.process.waiting import LOOK_AGAIN_SECONDS

_LOG = logging.getLogger(__name__)

Kind: TypeAlias = Literal["ticker", "flush", "index", "compact", "async"]
_LIMITS: dict[Kind, int] = {"ticker": 4, "flush": 8, "index": 1, "compact": 2, "async": 4}
EXIT_SECONDS = 20.0
JOIN_SECONDS = 60.0


class Task:
    """One piece of recurring work; it does nothing before `start`."""

    __slots__ = ("_again", "_clock", "_due", "_kind", "_lane", "_queued", "_run", "_turn", "cancelled")

    def __init__(self, kind: Kind, clock: Clock = SYSTEM_CLOCK) -> None:
        """`clock` says who runs it, and starts the thread if there is none yet."""
        self._clock = clock
        self._run: Callable[[], float | None] = _nothing
        self._kind: Kind = kind
        self._lane: Lane | None = None
        self._turn = Turn(clock)
        self._queued = False
        self._again = False
        self._due: float | None = None
        self.cancelled = False

    def start(self, run: Callable[[], float | None]) -> Task:
        """Do `run` when poked, from now on; it returns after how many seconds it wants to run again, None: when poked."""
        self._run = run
        try:
            self._lane = self._clock.lane(self._kind) or _lane_for(self, self._clock)
        except BaseException:  # interrupted, or no thread to be had: a task that nobody has must not keep the threads
            _forget(self)
            raise
        return self

    def poke(self) -> None:
        """Run soon."""
        lane = self._lane
        if lane is not None and not self._queued:
            try:
                self._queued = True
                lane.submit(self)
            except BaseException:  # interrupted: nobody else would poke it again; twice in the queue does no harm
                self._queued = False
                raise

    def cancel(self) -> None:
        """Begin nothing new; does not wait."""
        self.cancelled = True
        self.poke()  # a worker forgets it

    def stop(self, seconds: float = JOIN_SECONDS) -> None:
        """Cancel, and return when it does not run; with the last task the threads have ended, too."""
        self.cancel()
        lane = self._lane
        if lane is None:
            return
        if not lane.runs_here(self):
            with suppress(TakenError), self._turn.taken(seconds):
                pass
        lane.forget(self)
        lane.join_if_over(seconds)

    def run_here(self) -> bool:
        """Run in the calling thread, if the program ends and no other thread will; False if another one will."""
        if not _ending or self.cancelled or self._lane is None or self._turn.is_mine:
            return False
        try:
            with self._turn.taken(LOOK_AGAIN_SECONDS):
                self._run()
        except TakenError:  # a worker is still at it
            return False
        return True

    def orphan(self) -> None:
        """Be nothing in a forked child, whatever a thread of the parent did with it."""
        self._lane, self._turn, self.cancelled = None, Turn(self._clock), True

    def work(self) -> None:
        """Run once in a worker, unless another worker is at it, which then does it again."""
        self._queued, lane = False, self._lane
        if lane is None:
            return
        if self.cancelled:
            lane.forget(self)
            return
        try:
            delay = self._work_in_turn()
        except TakenError:
            self._again = True
            try:
                delay = self._work_in_turn()
            except TakenError:
                return
        if self.cancelled:
            lane.forget(self)
        elif self._again or delay == 0:
            self.poke()  # after the others
        elif delay is not None:
            lane.again(self, delay)

    def _work_in_turn(self) -> float | None:
        with self._turn.taken(0.0):
            self._again = False
            try:
                return self._run()
            except BaseException as error:  # the thread belongs to all tasks
                if not _ending:
                    _LOG.warning("background work failed [kind=%s]: %s", self._kind, error)
                return None

    def release(self) -> None:
        """Keep nothing alive; a timer may still hold this task."""
        self._run = _nothing


def _nothing() -> None:
    return None


class _Lane:
    """The threads and the queue of one kind of work."""

    def __init__(self, pool: _Pool, kind: Kind) -> None:
        self.pool = pool
        self.kind = kind
        self.queue: SimpleQueue[Task | None] = SimpleQueue()
        self.threads: set[Any] = set()
        self.size = 0  # how many tasks it has
        self._running: dict[int, Task] = {}
        self._lock = threading.Lock()  # among the workers of this lane
        self._timers: list[tuple[float, int, Task]] = []
        self._numbers = count()

    def submit(self, task: Task) -> None:
        """Let a worker run it soon."""
        self.queue.put(task)

    def forget(self, task: Task) -> None:
        """Drop a task that is over; with the last one of all lanes the threads end."""
        self.pool.forget(task)

    def join_if_over(self, seconds: float) -> None:
        """Return when the threads have ended, if they are to; after `seconds` at the latest."""
        self.pool.join_if_over(seconds)

    def grow(self, clock: Clock) -> None:
        """Start one more thread."""
        self.threads.add(clock.spawn(self._work, f"memwal-{self.kind}-{len(self.threads)}"))

    def runs_here(self, task: Task) -> bool:
        """Whether the calling thread is the worker that runs `task`."""
        return self._running.get(threading.get_ident()) is task

    def again(self, task: Task, delay_seconds: float) -> None:
        """Poke `task` later."""
        due = SYSTEM_CLOCK.monotonic() + delay_seconds
        with self._lock:
            if task._due is not None and task._due <= due:
                return  # it looks anew then
            task._due = due
            earliest = not self._timers or due < self._timers[0][0]
            heappush(self._timers, (due, next(self._numbers), task))
        if earliest:
            self.queue.put(None)  # somebody may sleep for too long

    def _work(self) -> None:
        me = threading.get_ident()
        self.threads.add(threading.current_thread())  # whoever started it may have been interrupted
        _workers.add(me)
        while not self.pool.over:
            task = self._next()
            if task is None or self.pool.over:
                continue
            if not task.cancelled and len(self.threads) < _LIMITS[self.kind] and self._is_short():
                self._grow_if_short()
            self._running[me] = task
            task.work()
            self._running.pop(me, None)
            del task  # a worker that sleeps keeps nothing alive
        _workers.discard(me)
        self.queue.put(None)  # for one that was not known yet when the others were told

    def _is_short(self) -> bool:
        """Whether somebody waits for a worker, or would have to as long as the calling one works: that may be long."""
        is_last = len(self._running) + 1 >= len(self.threads)
        return not self.queue.empty() or (is_last and self.size > len(self.threads))

    def _grow_if_short(self) -> None:
        with self._lock:
            if len(self.threads) < _LIMITS[self.kind]:
                try:
                    self.grow(SYSTEM_CLOCK)
                except RuntimeError as error:  # the system has no more threads: fewer do it, too
                    _LOG.warning("no more threads for background work [kind=%s]: %s", self.kind, error)

    def _next(self) -> Task | None:
        """The next task that was poked; None if there is none yet."""
        try:
            return self.queue.get(timeout=self._poke_due())
        except Empty:
            return None

    def _poke_due(self) -> float | None:
        """Poke what is due; returns the seconds until something else is."""
        with self._lock:
            now = SYSTEM_CLOCK.monotonic()
            while self._timers and self._timers[0][0] <= now:
                due, _, task = heappop(self._timers)
                if task._due == due:
                    task._due = None
                task.poke()
            return self._timers[0][0] - now if self._timers else None

    def end(self) -> None:
        """Let every thread of this lane end after what it does now."""
        for _ in self.threads:
            self.queue.put(None)


class _Pool:
    """The lanes, from the first task to the last one."""

    def __init__(self) -> None:
        self.over = False
        self.lanes: dict[Kind, _Lane] = {}
        self.tasks: set[Task] = set()

    def forget(self, task: Task) -> None:
        """Drop a task; with the last one the threads end."""
        with _lock:
            if task in self.tasks:
                self.tasks.discard(task)
                self.lanes[task._kind].size -= 1
            task.release()
            if not self.tasks:
                self.close()

    def close(self) -> None:
        """Let all threads end."""
        self.over = True
        for lane in tuple(self.lanes.values()):
            lane.end()

    def has_threads(self) -> bool:
        """Whether one of its threads is alive."""
        return any(thread.is_alive() for lane in tuple(self.lanes.values()) for thread in tuple(lane.threads))

    def join_if_over(self, seconds: float) -> None:
        """Return when the threads have ended, if they are to; after `seconds` at the latest."""
        if not self.over:
            return
        deadline = SYSTEM_CLOCK.monotonic() + seconds
        for lane in tuple(self.lanes.values()):
            for thread in tuple(lane.threads):
                if thread is not threading.current_thread():
                    thread.join(max(0.0, deadline - SYSTEM_CLOCK.monotonic()))


_lock = threading.RLock()  # reentrant: a signal handler may end a writer while another one is being opened
_pool: _Pool | None = None
_older: list[_Pool] = []  # that are over, with threads which still end
_ending = False
_registered = False
_workers: set[int] = set()
_exit_hooks: dict[Callable[[float], None], bool] = {}


def is_ending() -> bool:
    """Whether the program ends: no thread begins anything new."""
    return _ending


def refuse_at_exit() -> None:
    """Raise in a background thread if the program ends: it must not begin another native call."""
    if _ending and threading.get_ident() in _workers:
        raise ClosedError("the program ends; background work stops")


def at_exit(hook: Callable[[float], None], *, after_threads: bool = False) -> None:
    """Call `hook` with a deadline (`monotonic`), once however often it is given, when the program ends: before the threads
    do, or after them."""
    _exit_hooks[hook] = after_threads
    _register()


def _register() -> None:
    global _registered
    run_in_child(_forget_in_child)
    with _lock:
        if not _registered:
            _registered = True
            atexit.register(_end)


def _lane_for(task: Task, clock: Clock) -> _Lane:
    """The lane of `task`, which from now on counts; the first task of all makes the threads."""
    global _pool
    _register()
    while True:
        with _lock:
            if _pool is None or _pool.over:
                _older[:] = [pool for pool in (*_older, _pool) if pool is not None and pool.has_threads()]
                _pool = _Pool()
            pool = _pool
            lane = pool.lanes.setdefault(task._kind, _Lane(pool, task._kind))
            if task not in pool.tasks:
                lane.size += 1
                pool.tasks.add(task)
            if not lane.threads and not _ending:
                lane.grow(clock)
            if not pool.over:
                return lane


def _forget(task: Task) -> None:
    with _lock:
        if _pool is not None:
            _pool.forget(task)


def _end() -> None:
    """The program ends: do what was promised, then wait for what runs."""
    global _ending
    deadline = SYSTEM_CLOCK.monotonic() + EXIT_SECONDS
    for hook in [hook for hook, after_threads in _exit_hooks.items() if not after_threads]:
        hook(deadline)
    _ending = True
    for pool in (*_older, _pool):
        if pool is not None:
            pool.close()
            pool.join_if_over(deadline - SYSTEM_CLOCK.monotonic())
    for hook in [hook for hook, after_threads in _exit_hooks.items() if after_threads]:
        hook(deadline)


def _forget_in_child() -> None:
    global _lock, _pool, _ending
    _workers.clear()
    _older.clear()
    tasks = _pool.tasks if _pool is not None else set()
    _lock, _pool, _ending = threading.RLock(), None, False
    for task in tuple(tasks):
        task.orphan()
