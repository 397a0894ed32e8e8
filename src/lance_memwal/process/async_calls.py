"""Calls of event loops, made beside them.

Owns `AsyncCalls`: a caller on an event loop queues a call and awaits what becomes of it (`call`), or awaits one that cannot be
begun without a wait (`made`). Invariants:

1. An event loop only queues and is told the outcome: it waits for no lock, no storage and no room.
2. All calls that are queued are begun, in order, before the first of them is waited for: writes of many tasks share
   entries.
3. What is wrong with one call is raised in its own caller. A caller that is cancelled changes nothing: its call is made. One
   that a closed event loop left in the queue is not: it would come after calls that were made since.
4. Nobody waits for ever, not even where native code gave up (no `Exception`). What is queued when the owner ends is begun
   then, and finds it closed; where that end is interrupted, it is told that it was not begun.
5. Calls that wait do so in threads of the owner, 16 at most: those of the event loop are the program's.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from lance_memwal.clock import SYSTEM_CLOCK, thread_pool
from lance_memwal.errors import UnavailableError, is_failure
from lance_memwal.process.background import Task

_LOG = logging.getLogger(__name__)
_CALLS_PER_TURN = 4  # then the event loop may have the interpreter
_TOLD_AT_ONCE = 16
_MOST_THREADS = 16
_T = TypeVar("_T")
_Outcome: TypeAlias = tuple[asyncio.Future[Any], Any, BaseException | None]


class Begun(Protocol):
    """A write that was begun."""

    def wait(self) -> Any:
        """Return its result once it is done; raise what prevented it."""


class _Call(NamedTuple):
    begin: Callable[[], Begun]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class AsyncCalls:
    """The queue of one writer; its thread is that of the background work, and is had with the first call."""

    def __init__(self) -> None:
        self._waiting: deque[_Call] = deque()
        self._pokes: set[asyncio.AbstractEventLoop] = set()
        self._task: Task | None = None
        self._ended = False
        self._lock = threading.RLock()
        self._threads: Executor | None = None

    async def made(self, function: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
        """What `function` returns, called in a thread of the owner."""
        with self._lock:
            if self._threads is None and not self._ended:
                self._threads = thread_pool(_MOST_THREADS, "memwal-async-call")
            if self._threads is None or self._ended:
                begun = None
            else:
                call = partial(copy_context().run, function, *arguments, **options)
                begun = asyncio.get_running_loop().run_in_executor(self._threads, call)
        return function(*arguments, **options) if begun is None else await begun  # an owner that is closed says so

    async def call(self, begin: Callable[[], Begun]) -> Any:
        """What comes of `begin` once it is done."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append(_Call(begin, loop, future))
        if loop not in self._pokes:
            self._pokes.add(loop)
            loop.call_soon(self._poke, loop)
        return await future

    def _poke(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin, after every task that is ready now had its turn: their calls go together."""
        self._pokes.discard(loop)
        with self._lock:  # of several loops one starts it, and none after its end
            if self._task is None and not self._ended:
                self._task = Task("async").start(self._run)
        if self._ended:
            self._run()  # nothing of it waits any more
        elif self._task is not None:
            self._task.poke()

    def _run(self) -> None:
        begun: deque[tuple[_Call, Begun]] = deque()
        told = _Outcomes()
        try:
            self._begin_all(begun, told)
            while begun:
                call, started = begun.popleft()
                try:
                    told.add(call, started.wait(), None)
                except BaseException as error:
                    told.add_failure(call, error)
        finally:
            for call, _ in begun:  # interrupted
                told.add(call, None, _interrupted())
            while self._ended and self._waiting:  # by an interrupt of `end`, too
                told.add(self._waiting.popleft(), None, _never_begun())
            told.deliver()

    def _begin_all(self, begun: deque[tuple[_Call, Begun]], told: _Outcomes) -> None:
        gone = set[asyncio.AbstractEventLoop]()
        for number in range(len(self._waiting)):
            try:
                call = self._waiting.popleft()
            except IndexError:  # another thread ends it, too
                break
            if call.loop in self._pokes and call.loop.is_closed():
                gone.add(call.loop)  # before it began this call, which would undo later ones by now
                continue
            try:
                begun.append((call, call.begin()))
            except BaseException as error:
                told.add_failure(call, error)
            if number % _CALLS_PER_TURN == 0:
                SYSTEM_CLOCK.sleep(0)
        self._pokes -= gone

    def end(self) -> None:
        """Make what is still queued, in the calling thread; the owner is closed."""
        with self._lock:
            self._ended = True
        try:
            if self._threads is not None:
                self._threads.shutdown(wait=False)  # what waits there finds the owner closed
            if self._task is not None:
                self._task.stop()
        finally:
            self._run()

    def orphan(self) -> None:
        """Be empty in a forked child: its event loops are the parent's."""
        self._waiting, self._pokes, self._task, self._ended = deque(), set(), None, True
        self._threads = None
        self._lock = threading.RLock()


class _Outcomes:
    """What became of calls, told to each event loop at once."""

    def __init__(self) -> None:
        self._by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}

    def add(self, call: _Call, result: Any, error: BaseException | None) -> None:
        self._by_loop.setdefault(call.loop, []).append((call.future, result, error))

    def add_failure(self, call: _Call, error: BaseException) -> None:
        """Note what went wrong with a call; an interrupt goes on, and its caller does not know the outcome."""
        if not is_failure(error):
            self.add(call, None, _interrupted())
            raise error
        self.add(call, None, error)

    def deliver(self) -> None:
        for loop, outcomes in self._by_loop.items():
            try:
                loop.call_soon_threadsafe(_tell, loop, outcomes, 0)
            except RuntimeError:  # the loop ended, and with it whoever waited
                _LOG.debug("an event loop ended before %d calls were done", len(outcomes))


def _interrupted() -> UnavailableError:
    return UnavailableError("whoever made this call was interrupted; it may have happened", ambiguous=True)


def _never_begun() -> UnavailableError:
    return UnavailableError("the writer was closed, by a call that was interrupted, before this one", ambiguous=False)


def _tell(loop: asyncio.AbstractEventLoop, outcomes: list[_Outcome], start: int) -> None:
    """Tell some, and the others when the loop has looked after everything else."""
    end = start + _TOLD_AT_ONCE
    if end < len(outcomes):
        loop.call_soon(_tell, loop, outcomes, end)
    for future, result, error in outcomes[start:end]:
        if future.done():  # cancelled
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
