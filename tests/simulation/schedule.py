"""Threads that run one at a time, in an order that a seed decides, on a clock of their own.

Owns `Schedule`, `Process` and `ScheduledClock`. A thread gives way at every store call, sleep and wait for a lock, and
nowhere else; who goes on is drawn. Invariants:

1. Everything is a function of the seed: one thread runs at a time, time passes with calls and waits only, and all that is
   random comes from one generator.
2. A wait that nobody can end is found at once (`StandstillError`), and one outside the schedule after some real seconds.
3. A process that is dead does nothing any more: each of its threads ends at the place where it stands.
"""

from __future__ import annotations

import random
import sys
import threading
import traceback
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from lance_memwal.clock import LoneThread, SystemClock
from lance_memwal.testing import SimulatedCrash

_REAL_SECONDS = 60.0
_START_SECONDS = 1_000.0
_EPOCH_MS = 4_000_000_000_000  # after everything that a real store calls now
_MOST_STEPS = 60_000
_STAY = 0.65  # how likely it is that the same thread goes on
_MAY_PAUSE = 0.08  # at a lock that is free


class StandstillError(AssertionError):
    """The schedule cannot go on, or does not end."""


class _Fiber:
    __slots__ = ("due", "go", "is_client", "name", "process", "ready", "task", "timed_out", "work")

    def __init__(self, process: Process, work: Callable[[], None], name: str, *, is_client: bool) -> None:
        self.process = process
        self.work = work
        self.name = name
        self.is_client = is_client
        self.go = threading.Lock()
        self.go.acquire()
        self.ready = True
        self.due: float | None = None
        self.timed_out = False
        self.task: Any = None


class Process:
    """What lives and dies together; its threads share memory with each other, and nothing with other processes."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        self.schedule = schedule
        self.name = name
        self.dead = False
        self.slept_seconds = 0.0  # of all its threads, in naps that nobody asked for
        self.clock = ScheduledClock(self)

    def start(self, work: Callable[[], None], name: str = "main") -> None:
        """Run `work` as a thread; the run ends when all such threads have."""
        self.schedule.add(_Fiber(self, work, f"{self.name}.{name}", is_client=True))

    def beside(self, work: Callable[[], None], name: str) -> None:
        """Run `work` as a thread of the background."""
        if not self.dead:
            self.schedule.add(_Fiber(self, work, f"{self.name}.{name}", is_client=False))

    def crash(self) -> SimulatedCrash:
        """Die; the caller raises what is returned."""
        self.dead = True
        self.schedule.wake_dead(self)
        return SimulatedCrash(self.name)


class Schedule:
    """Runs the threads of all processes."""

    def __init__(self, seed: int, *, keep_trace: bool = True) -> None:
        self.draw = random.Random(seed)
        self.now = _START_SECONDS
        self.trace: list[str] = []
        self.failures: list[tuple[str, BaseException]] = []
        self.steps = 0
        self.nap_rate = 0.0
        self._keep_trace = keep_trace
        self._fibers: list[_Fiber] = []
        self._current: _Fiber | None = None
        self._clients = 0
        self._over = False
        self._main = threading.Lock()
        self._main.acquire()
        self._broken: StandstillError | None = None

    # ----------------------------------------------------------------------------------------------------- running

    def run(self) -> None:
        """Run until all clients have ended; what one of them raised is in `failures`. May be called again, with new ones."""
        if not self._fibers:
            return
        self._over = False
        self._next(None)
        if not self._main.acquire(timeout=_REAL_SECONDS):
            raise StandstillError(f"a thread waits outside the schedule:\n{self._stacks()}")
        if self._broken is not None:
            raise self._broken

    @property
    def current(self) -> _Fiber | None:
        """The thread that runs now; None outside a run."""
        return self._current

    def add(self, fiber: _Fiber) -> None:
        self._fibers.append(fiber)
        self._clients += fiber.is_client
        _carry(fiber, self._live)

    def _live(self, fiber: _Fiber) -> None:
        fiber.go.acquire()
        try:
            self._refuse_dead(fiber)
            fiber.work()
        except SimulatedCrash:
            pass
        except BaseException as error:
            self.failures.append((fiber.name, error))
        self._fibers.remove(fiber)
        self._clients -= fiber.is_client
        if not self._clients:
            self._over = True
        self._next(None)

    def _next(self, leaving: _Fiber | None) -> None:
        """Let somebody go on; whoever gives way (`leaving`) returns when its turn comes."""
        chosen = self._choose(leaving)
        self._current = chosen
        if chosen is leaving and chosen is not None:
            return
        if chosen is None:
            self._main.release()
        else:
            chosen.go.release()
        if leaving is not None:
            leaving.go.acquire()

    def _choose(self, leaving: _Fiber | None) -> _Fiber | None:
        fibers, now = self._fibers, self.now
        if not fibers:
            return None
        if self._over:  # the others only unwind
            return fibers[0]
        for fiber in fibers:
            if fiber.due is not None and fiber.due <= now:
                fiber.ready, fiber.due, fiber.timed_out = True, None, True
        if leaving is not None and leaving.ready and self.draw.random() < _STAY:
            return leaving
        ready = [fiber for fiber in fibers if fiber.ready]
        if ready:
            return ready[0] if len(ready) == 1 else ready[int(self.draw.random() * len(ready))]
        timed = [fiber for fiber in fibers if fiber.due is not None]
        if not timed:
            self._give_up("nobody can go on")
            return fibers[0]
        first = min(timed, key=lambda fiber: fiber.due or 0.0)
        self.now = max(now, first.due or 0.0)
        first.ready, first.due, first.timed_out = True, None, True
        return first

    def _give_up(self, why: str) -> None:
        self._broken = StandstillError(f"{why}: {[fiber.name for fiber in self._fibers]}\n{self._stacks()}")
        self._over = True

    def _stacks(self) -> str:
        ours = (frame for frame in sys._current_frames().values())
        texts = ("".join(traceback.format_stack(frame)[-9:]) for frame in ours)
        return "\n----\n".join(text for text in texts if "lance_memwal" in text)

    # ----------------------------------------------------------------------------------------------------- giving way

    def pause(self, kind: str = "", path: str = "", seconds: float = 0.0) -> None:
        """Let others go on, while `seconds` pass."""
        me = self._current
        if me is None:  # outside a run there is nobody else
            return
        self._refuse_dead(me)
        self.steps += 1
        if self.steps > _MOST_STEPS:
            self._give_up(f"no end after {_MOST_STEPS} steps")
            raise SimulatedCrash
        self.now += seconds
        if self._keep_trace and kind:
            self.trace.append(f"{self.now:.4f} {me.name} {kind} {path[-70:]}")
        if self.nap_rate and self.draw.random() < self.nap_rate:
            nap_seconds = self.draw.choice((0.05, 0.5, 5.0, 100.0, 10_000.0))
            me.process.slept_seconds += nap_seconds
            self.wait(nap_seconds)
            return
        self._next(me)
        self._refuse_dead(me)

    def wait(self, seconds: float | None) -> bool:
        """Wait until `wake`, at most so long; False if that time is over."""
        me = self._current
        if me is None:
            if seconds is None:
                raise StandstillError("nobody is there to end a wait")
            self.now += seconds
            return False
        self._refuse_dead(me)
        me.ready, me.timed_out = False, False
        me.due = None if seconds is None else self.now + seconds
        self._next(me)
        self._refuse_dead(me)
        return not me.timed_out

    def wake(self, fiber: _Fiber) -> None:
        fiber.ready, fiber.due = True, None

    def wake_dead(self, process: Process) -> None:
        """Let the threads of a dead process end."""
        for fiber in self._fibers:
            if fiber.process is process:
                fiber.ready, fiber.due = True, None

    def _refuse_dead(self, fiber: _Fiber) -> None:
        if self._over or fiber.process.dead:
            raise SimulatedCrash(fiber.name)


# ---------------------------------------------------------------------------------------------------------------- waiting


class _Lock:
    """A lock of the schedule; `reentrant` ones belong to a thread."""

    __slots__ = ("_count", "_is_known", "_owner", "_reentrant", "_schedule", "_waiting")

    def __init__(self, schedule: Schedule, *, reentrant: bool) -> None:
        self._schedule = schedule
        self._reentrant = reentrant
        self._owner: object = None
        self._count = 0
        self._is_known = False
        self._waiting: deque[_Fiber] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        schedule = self._schedule
        me = schedule.current
        if self._reentrant and self._count and self._owner is me:
            self._count += 1
            return True
        if self._is_known and me is not None and blocking and schedule.draw.random() < _MAY_PAUSE:
            schedule.pause()
        self._is_known = True  # a new one may be taken inside of a lock that is not of the schedule
        if self._count and not self._wait(me, blocking, timeout):
            return False
        self._count, self._owner = 1, me
        return True

    def _wait(self, me: _Fiber | None, blocking: bool, timeout: float) -> bool:
        if not blocking:
            return False
        schedule = self._schedule
        until = None if timeout < 0 else schedule.now + timeout
        while self._count:
            left = None if until is None else until - schedule.now
            if left is not None and left <= 0:
                return False
            if me is not None:
                self._waiting.append(me)
            try:
                schedule.wait(left)
            finally:
                if me is not None and me in self._waiting:
                    self._waiting.remove(me)
        return True

    def _is_owned(self) -> bool:
        return self._count > 0 and self._owner is self._schedule.current

    def release(self) -> None:
        if not self._count or (self._reentrant and self._owner is not self._schedule.current):
            raise RuntimeError("release unlocked lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            for fiber in self._waiting:
                self._schedule.wake(fiber)

    def locked(self) -> bool:
        return self._count > 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Lane:
    """Runs the background tasks of one process: each step is a thread of its own."""

    __slots__ = ("_due", "_process")

    def __init__(self, process: Process) -> None:
        self._process = process
        self._due: dict[Any, float] = {}

    def submit(self, task: Any) -> None:
        def step() -> None:
            me = self._process.schedule.current
            if me is not None:
                me.task = task
            task.work()

        self._process.beside(step, "task")

    def again(self, task: Any, delay_seconds: float) -> None:
        schedule, due = self._process.schedule, self._process.schedule.now + delay_seconds
        if self._due.get(task, due + 1) <= due or self._process.dead:
            return
        self._due[task] = due

        def later() -> None:
            schedule.wait(delay_seconds)
            if self._due.get(task) == due:
                del self._due[task]
            task.poke()

        self._process.beside(later, "timer")

    def runs_here(self, task: Any) -> bool:
        me = self._process.schedule.current
        return me is not None and me.task is task

    def forget(self, task: Any) -> None:
        task.release()

    def join_if_over(self, seconds: float) -> None:
        del seconds


class _InLine(Executor):
    """Does everything at once, in the thread that asks."""

    def submit(self, call: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(call(*given, **named))
        except Exception as error:
            done.set_exception(error)
        return done


class _Ended:
    def join(self, timeout: float | None = None) -> None:
        del timeout


class ScheduledClock(SystemClock):
    """The clock of one process: the time of the schedule, a little off, and its randomness."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._schedule = process.schedule
        self._skew_ms = int((self._schedule.draw.random() - 0.5) * 4_000)

    def monotonic(self) -> float:  # type: ignore[override]
        return self._schedule.now

    def now_ms(self) -> int:
        return _EPOCH_MS + int(self._schedule.now * 1_000) + self._skew_ms

    def sleep(self, seconds: float) -> None:  # type: ignore[override]
        if seconds > 0:
            self._schedule.wait(seconds)
        else:
            self._schedule.pause()

    def random(self) -> float:  # type: ignore[override]
        return self._schedule.draw.random()

    def uuid4(self) -> str:
        return str(uuid.UUID(int=self._schedule.draw.getrandbits(128), version=4))

    def token_hex(self, nbytes: int) -> str:  # type: ignore[override]
        return self._schedule.draw.getrandbits(8 * nbytes).to_bytes(nbytes, "big").hex()

    def randbits(self, bits: int) -> int:  # type: ignore[override]
        return self._schedule.draw.getrandbits(bits)

    def spawn(self, target: Callable[[], None], name: str) -> Any:
        """In line: whoever starts a thread here waits for it anyway."""
        del name
        target()
        return _Ended()

    def lock(self) -> Any:  # type: ignore[override]
        return _Lock(self._schedule, reentrant=False)

    def rlock(self) -> Any:  # type: ignore[override]
        return _Lock(self._schedule, reentrant=True)

    def lane(self, kind: str) -> Any:
        del kind
        return _Lane(self._process)

    def pool(self, workers: int, name: str) -> Executor:
        del workers, name
        return _InLine()


# ---------------------------------------------------------------------------------------------------------- real threads


class _Carrier:
    """A real thread that carries one thread of a schedule after the other: making one costs more than a life's step."""

    __slots__ = ("_job", "_wanted")

    def __init__(self) -> None:
        self._wanted = threading.Lock()
        self._wanted.acquire()
        self._job: tuple[_Fiber, Callable[[_Fiber], None]] | None = None
        LoneThread(target=self._work, name="simulated", daemon=True).start()

    def carry(self, fiber: _Fiber, live: Callable[[_Fiber], None]) -> None:
        self._job = (fiber, live)
        self._wanted.release()

    def _work(self) -> None:
        while True:
            self._wanted.acquire()
            assert self._job is not None
            fiber, live = self._job
            self._job = None
            live(fiber)
            del fiber, live
            _idle.append(self)


_idle: deque[_Carrier] = deque()


def _carry(fiber: _Fiber, live: Callable[[_Fiber], None]) -> None:
    try:
        carrier = _idle.pop()
    except IndexError:
        carrier = _Carrier()
    carrier.carry(fiber, live)
