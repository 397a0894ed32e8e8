"""Processes that share one store, die at store calls, and see it through networks that fail.

Owns `World` and `Machine`. Invariants:

1. What a process reaches goes through its own location: its own retries, faults, caches and turns. They share the objects.
2. A crash comes right before or right after a store call takes effect. What was on its way then may land much later.
3. `afterwards` judges without faults and without others, when all is over.
4. A refusal needs a reason that is there in this life (`expect`): faults for storage that is away or a log that could not be
   written, a process that slept for a deadline that passed, a second claimer for a fence. Nothing explains damage.
"""

from __future__ import annotations

import builtins
import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

import lance_memwal as mw
from lance_memwal.errors import (
    CorruptDataError,
    FencedError,
    InvalidInputError,
    ObjectExistsError,
    ObjectNotFoundError,
    UnavailableError,
    UnsupportedFormatError,
    WriterPoisonedError,
)
from lance_memwal.process.deadline import PATIENCE_SECONDS
from lance_memwal.store.local import LocalStore
from lance_memwal.store.location import Location
from lance_memwal.store.metering import Recorder
from lance_memwal.store.port import ObjectMeta, ObjectStore, PutResult
from lance_memwal.store.retry import RetryingStore
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript, SimulatedCrash
from tests.simulation.lance import MemoryLance
from tests.simulation.schedule import Process, Schedule, ScheduledClock

_GENTLE = frozenset(kind for kind in FaultKind if kind.keeps_contract) - {FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER}
_LATENCY_SECONDS = 0.02
_DIES_AT_WHAT_MATTERS = 0.2
_OF_FAULTS = (UnavailableError, WriterPoisonedError)
_DAMAGE = (CorruptDataError, UnsupportedFormatError)
_numbers = itertools.count()


class World:
    """One life: its schedule, its objects, and its processes."""

    def __init__(
        self,
        seed: int,
        template: MemoryObjects | None = None,
        *,
        keep_trace: bool = False,
        directory: Path | None = None,
    ) -> None:
        """`template` are the objects at the beginning; in `directory`, where one is given, with Lance itself."""
        self.schedule = Schedule(seed, keep_trace=keep_trace)
        self.draw = self.schedule.draw
        self.schedule.nap_rate = self.draw.choice((0.0, 0.002, 0.01))
        self._fault_rate = self.draw.choice((0.0, 0.0, 0.02, 0.08))
        outside = Process(self.schedule, "outside")
        now_ms = outside.clock.now_ms
        self._directory = directory
        self.objects: ObjectStore = MemoryObjects(now_ms) if template is None else template.copy(now_ms)
        if directory is not None and template is not None:
            self.objects = LocalStore(str(directory), flush=None)
            for path, data in template.items():
                self.objects.put(path, data)
        self.crashes = 0
        self.broken: list[str] = []
        self._number = next(_numbers)
        self._names = itertools.count()
        self.outside = outside
        self._scripts: list[FaultScript] = []
        self._claims: Counter[str] = Counter()

    def client(self, name: str, work: Callable[[Machine], None]) -> None:
        """Let somebody work in a process of its own; one that dies is started again, once, after a while."""
        chance = self.draw.random()
        crash_at = int(self.draw.random() * 60) + 1 if chance < 0.3 else None
        first = self.machine(name, crash_after_calls=crash_at)
        first.after_death = lambda: self._start_again(name, work)
        first.start(lambda: work(first))

    def _start_again(self, name: str, work: Callable[[Machine], None]) -> None:
        self.schedule.wait(self.draw.choice((0.01, 0.5, 20.0)))
        again = self.machine(name)
        again.start(lambda: work(again))

    def live(self) -> None:
        self.schedule.run()

    def expect(self, error: BaseException, *kinds: type[BaseException]) -> None:
        """Accept an error of these kinds, and what the network or long sleep may be the reason of; damage never."""
        explained = (*kinds, *_OF_FAULTS) if self.has_faults else kinds
        here = self.schedule.current
        if here is not None and here.process.slept_seconds > PATIENCE_SECONDS:
            explained = (*explained, UnavailableError)
        if not isinstance(error, explained) or any(isinstance(cause, _DAMAGE) for cause in _causes(error)):
            raise error

    @property
    def has_faults(self) -> bool:
        """Whether the network of this life fails."""
        return self._fault_rate > 0

    def claim(self, what: str) -> None:
        """Note that somebody is about to claim `what`."""
        self._claims[what] += 1

    def fences(self, what: str) -> tuple[type[BaseException], ...]:
        """What an owner of `what` may be told: that it is fenced, if there was more than one claim."""
        return (FencedError,) if self._claims[what] > 1 else ()

    def verdict(self) -> list[str]:
        """What is broken, after all."""
        failed = [f"{name} failed: {error!r}" for name, error in self.schedule.failures]
        return failed + self.broken

    def machine(self, name: str, *, crash_after_calls: int | None = None) -> Machine:
        """A new process; it dies at this call, if one is given."""
        process = Process(self.schedule, f"{name}{next(self._names)}")
        plan = FaultPlan(rate=self._fault_rate, kinds=_GENTLE, seed=self.draw.getrandbits(32), late_after_calls=4)
        script = FaultScript(plan, process.clock) if self.has_faults else None
        if script is not None:
            self._scripts.append(script)
        return Machine(self, process, script, crash_after_calls)

    def location(self, process: Process, once: ObjectStore, raw: ObjectStore) -> Location:
        """The table as one process reaches it."""
        key = f"simulated-{self._number}-{process.name}"
        root = self._directory or Path("/", key)
        return Location(
            uri=str(root),
            store=RetryingStore(once, None, process.clock),
            store_once=once,
            storage_options=None,
            metrics=Recorder(""),
            is_local=True,
            root_path=str(root),
            key=key,
            lance=MemoryLance(raw, lambda: process.clock.token_hex(16)) if self._directory is None else None,
        )

    def afterwards(self, judge: Callable[[Location, ScheduledClock], None]) -> None:
        """Judge what is left, from a process without faults; everything that was on its way has landed."""
        for script in self._scripts:
            script.settle()
        self.schedule.nap_rate = 0.0
        location = self.location(self.outside, self.objects, self.objects)
        self.outside.start(lambda: judge(location, self.outside.clock), "judge")
        self.schedule.run()

    def land_later(self, script: FaultScript) -> None:
        """What a dead process had sent arrives some time."""
        wait = self.draw.choice((0.0, 0.1, 1.0, 100.0))

        def land() -> None:
            self.schedule.wait(wait)
            script.settle()

        self.outside.start(land, "network")

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            self.broken.append(what)


class Machine:
    """A process of a world, with its location and its clock."""

    def __init__(
        self, world: World, process: Process, script: FaultScript | None, crash_after_calls: int | None
    ) -> None:
        self.world = world
        self.process = process
        self.clock = process.clock
        self._script = script
        self._crash_at = crash_after_calls
        self._calls = 0
        self.after_death: Callable[[], None] | None = None
        raw = _Gate(world.objects, self)
        once = _Gate(world.objects if script is None else script.wrap(world.objects), self)
        self.location = world.location(process, once, raw)

    def start(self, work: Callable[[], None], name: str = "main") -> None:
        """Run `work` as a thread of this process."""
        self.process.start(work, name)

    def may_die_within(self, calls: int) -> None:
        """Die at one of the next calls, now and then, if somebody starts again: whoever is about to do what matters asks."""
        draw = self.world.draw
        if draw.random() < _DIES_AT_WHAT_MATTERS and self.after_death is not None:
            self._crash_at = self._calls + 1 + int(draw.random() * calls)

    def enter(self, kind: str, path: str) -> bool:
        """Give way before a store call; True if the process dies right after it."""
        draw = self.world.draw
        self.process.schedule.pause(kind, path, draw.random() * _LATENCY_SECONDS)
        self._calls += 1
        if self._crash_at is None or self._calls != self._crash_at:
            return False
        if draw.random() < 0.5:
            raise self.die()
        return True

    def die(self) -> SimulatedCrash:
        """End here; the caller raises what is returned."""
        self.world.crashes += 1
        if self._script is not None:
            self.world.land_later(self._script)
        if self.after_death is not None:
            self.world.outside.start(self.after_death, "starter")
        return self.process.crash()


class _Gate(WrappedStore):
    def __init__(self, inner: ObjectStore, machine: Machine) -> None:
        super().__init__(inner)
        self._machine = machine

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        dies = self._machine.enter(kind, path)
        result = call(path, *rest, **options)
        if dies:
            raise self._machine.die()
        return result


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


@cache
def empty_table(*, keyed: bool) -> MemoryObjects:
    """The objects of a table without rows, as Lance made it: columns `id` and `value`."""
    directory = Path(tempfile.mkdtemp(prefix="memwal-simulation-"))
    try:
        schema = pa.schema([pa.field("id", pa.int64(), nullable=not keyed), pa.field("value", pa.int64())])
        defaults = {"fsync": False}
        key = "id" if keyed else None
        mw.create_table(
            str(directory / "t"), schema, primary_key=key, sharding=mw.Unsharded(), writer_defaults=defaults
        )
        objects = MemoryObjects(lambda: 1_700_000_000_000)
        root = directory / "t"
        for path in sorted(item for item in root.rglob("*") if item.is_file()):
            objects.put(str(path.relative_to(root)), path.read_bytes())
        return objects
    finally:
        shutil.rmtree(directory)


# A store in the memory of the process, for lives that are over in milliseconds.
#
# Owns `MemoryObjects`, an adapter of `lance_memwal.store.port` like any other: it passes the same suite.


class MemoryObjects:
    """Objects by name. One step each: nothing is ever seen half done. There are no directories."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._objects: dict[str, tuple[bytes, ObjectMeta]] = {}
        self._puts = 0

    def put_new(self, path: str, data: bytes, *, sync: bool = False, make_directory: bool = True) -> PutResult:
        del sync, make_directory
        _check_path(path)
        self._puts += 1
        made = (bytes(data), ObjectMeta(path, len(data), self._now_ms(), str(self._puts)))
        if self._objects.setdefault(path, made) is not made:
            raise ObjectExistsError(path)
        return PutResult.CREATED

    def make_directory(self, path: str) -> None:
        """There are none."""

    def put(self, path: str, data: bytes, *, sync: bool = False) -> None:
        del sync
        _check_path(path)
        self._puts += 1
        self._objects[path] = (bytes(data), ObjectMeta(path, len(data), self._now_ms(), str(self._puts)))

    def _need(self, path: str) -> tuple[bytes, ObjectMeta]:
        found = self._objects.get(path)
        if found is None:
            _check_path(path)
            raise ObjectNotFoundError(path)
        return found

    def get(self, path: str) -> bytes:
        return self._need(path)[0]

    def get_range(self, path: str, start: int, length: int) -> bytes:
        if start < 0 or length < 0:
            raise InvalidInputError("a range cannot be negative")
        return self._need(path)[0][start : start + length]

    def get_tail(self, path: str, length: int) -> bytes:
        if length < 0:
            raise InvalidInputError("a length cannot be negative")
        data = self._need(path)[0]
        return data[max(0, len(data) - length) :]

    def head(self, path: str) -> ObjectMeta:
        return self._need(path)[1]

    def list(self, prefix: str) -> builtins.list[ObjectMeta]:
        start = _start(prefix)
        return [meta for path, (_, meta) in tuple(self._objects.items()) if path.startswith(start)]

    def list_names(self, prefix: str) -> builtins.list[str]:
        start = _start(prefix)
        below = (path[len(start) :] for path in tuple(self._objects) if path.startswith(start))
        return builtins.list(dict.fromkeys(path.partition("/")[0] for path in below))

    def delete(self, path: str) -> None:
        if path:
            _check_path(path)
        self._objects.pop(path, None)

    def sync_tree(self, prefix: str) -> None:
        """Memory needs no sync."""

    def items(self) -> builtins.list[tuple[str, bytes]]:
        return [(path, data) for path, (data, _) in self._objects.items()]

    def copy(self, now_ms: Callable[[], int]) -> MemoryObjects:
        other = MemoryObjects(now_ms)
        other._objects, other._puts = dict(self._objects), self._puts
        return other


def _start(prefix: str) -> str:
    directory = prefix.rstrip("/")
    if prefix:
        _check_path(directory)
    return f"{directory}/" if prefix else ""


def _check_path(path: str) -> None:
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidInputError(f"not a path below a table: {path!r}")
