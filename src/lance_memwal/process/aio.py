"""Coroutines for calls that wait.

Owns `Aio`, the base of every `.aio`, what makes a coroutine of a verb (`waits`, `shares`), and `in_thread`. Invariants:

1. An event loop never waits for a lock, for storage or for buffer space. Calls wait in threads of this module, 16 in a
   process: the threads of `asyncio.to_thread` belong to the program.
2. Plain durable writes share entries: one thread begins every queued write of a writer before it waits for the first of them.
3. An error of a call is raised in its own task. If a task is cancelled after its call was queued, the call is still made.
4. A call that an event loop had not queued when it was closed is not made.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import copy_context
from functools import partial, wraps
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from lance_memwal.clock import SYSTEM_CLOCK, thread_pool
from lance_memwal.process.forking import run_in_child

_THREADS = 16
_CALLS_PER_TURN = 4
_TOLD_PER_TURN = 16
_P = ParamSpec("_P")
_T = TypeVar("_T")
_pool: list[Executor] = []
_NONE: Mapping[str, Any] = MappingProxyType({})
_pool_lock = threading.Lock()


class Begun(Protocol):
    """A write that may not be durable yet."""

    def wait(self) -> Any:
        """Return its result once it is durable; raise what prevented it."""


_Call: TypeAlias = tuple[Callable[[], Begun], asyncio.AbstractEventLoop, asyncio.Future[Any]]
_Settled: TypeAlias = tuple[Begun | None, BaseException | None]
_Outcome: TypeAlias = tuple[asyncio.Future[Any], Any, BaseException | None]


class Together:
    """The plain writes of tasks to one writer."""

    def __init__(self) -> None:
        self._queue: deque[_Call] = deque()
        self._lock = threading.Lock()
        self._is_run = False

    async def write(self, begin: Callable[[], Begun]) -> Any:
        """Return the result of the write that `begin` begins, once it is durable."""
        await asyncio.sleep(0)  # every task that is ready now queues its write first
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            self._queue.append((begin, loop, done))
            starts, self._is_run = not self._is_run, True
        if starts:
            try:
                _threads().submit(self._run)
            except RuntimeError:  # the interpreter ends and starts no threads
                self._run()
        return await done

    def _run(self) -> None:
        while True:
            with self._lock:
                calls = list(self._queue)
                self._queue.clear()
                self._is_run = bool(calls)
            if not calls:
                return
            begun = list[_Settled]()
            for number, (begin, _, _) in enumerate(calls):
                begun.append(_settled(begin))
                if number % _CALLS_PER_TURN == 0:
                    SYSTEM_CLOCK.sleep(0)  # the event loop may have the interpreter
            outcomes: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
            for (write, error), (_, loop, done) in zip(begun, calls, strict=True):
                result, failed = (None, error) if write is None else _settled(write.wait)
                outcomes.setdefault(loop, []).append((done, result, failed))
            for loop, told in outcomes.items():
                with suppress(RuntimeError):  # the event loop was closed, and no task of it waits
                    loop.call_soon_threadsafe(_tell, loop, told)


def _settled(call: Callable[[], _T]) -> tuple[_T | None, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:  # native code panics with errors that are no `Exception`
        return None, error


def _tell(loop: asyncio.AbstractEventLoop, outcomes: list[_Outcome]) -> None:
    """Settle the futures of some tasks now, and of the others after these tasks ran: the loop keeps its beat."""
    for done, result, error in outcomes[:_TOLD_PER_TURN]:
        if done.done():  # its task was cancelled
            continue
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)
    if outcomes[_TOLD_PER_TURN:]:
        loop.call_soon(_tell, loop, outcomes[_TOLD_PER_TURN:])


class Aio:
    """The verbs of one object as coroutines."""

    __slots__ = ("_begins", "_owner", "_together")

    def __init__(
        self, owner: Any, together: Together | None = None, begins: Mapping[str, Callable[[Any], Begun]] = _NONE
    ) -> None:
        """`begins`: by verb, what begins a write that shares entries, if the verb is called with rows or keys alone."""
        self._owner = owner
        self._together = together
        self._begins = begins

    def _bound(
        self, verb: Callable[Concatenate[Any, _P], _T], *args: _P.args, **options: _P.kwargs
    ) -> Callable[[], _T]:
        """Return a call of a verb of the owner, for a thread."""
        return partial(verb, self._owner, *args, **options)

    def __repr__(self) -> str:
        return f"<the coroutines of {self._owner!r}>"


def waits(verb: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]:
    """Make a coroutine of a verb of the owner."""

    @wraps(verb)
    async def call(self: Aio, /, *args: _P.args, **options: _P.kwargs) -> _T:
        return await in_thread(self._bound(verb, *args, **options))

    return call


def shares(verb: Callable[Concatenate[Any, _P], _T]) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]:
    """Make a coroutine of a write verb, whose plain calls share entries."""
    name = verb.__name__

    @wraps(verb)
    async def call(self: Aio, /, *args: _P.args, **options: _P.kwargs) -> _T:
        if self._together is None or name not in self._begins or options or len(args) != 1:
            return await in_thread(self._bound(verb, *args, **options))
        done: _T = await self._together.write(partial(self._begins[name], *args))
        return done

    return call


async def in_thread(call: Callable[[], _T]) -> _T:
    """Return the result of a call that a thread of this module makes."""
    context = copy_context()
    return await asyncio.get_running_loop().run_in_executor(_threads(), partial(context.run, call))


def _threads() -> Executor:
    with _pool_lock:
        if not _pool:
            _pool.append(thread_pool(_THREADS, "memwal-async"))
            run_in_child(_forget)
        return _pool[0]


def _forget() -> None:
    """Have no threads in a forked child."""
    global _pool_lock
    _pool_lock = threading.Lock()
    _pool.clear()
