"""A store that fails on purpose, the same way every time.

Owns `FaultyStore`, and the `FaultScript` that counts calls and decides which of them go wrong. Invariants:

1. Everything is a function of the plan and the order of calls: the same scenario on one thread meets the same faults,
   and a call's fault does not depend on what earlier faults drew.
2. Every call is recorded, so that a sweep can run a scenario once without faults and then once per call and kind.
3. A fault that cannot apply to the call it is planned for is an error of the test, not a silent success.
4. After a simulated crash the script is dead: no later call has an effect, whichever thread makes it.

A script goes around a store with `resolve(uri, wrap=script.wrap)`, or directly.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.errors import InvalidInputError, ObjectExistsError, ObjectNotFoundError, UnavailableError
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.wrap import WrappedStore

_T = TypeVar("_T")
_PUTS = frozenset({"put_new", "put"})
_READS = frozenset({"get", "get_range", "get_tail"})
_LISTS = frozenset({"list", "list_names"})
_CALLS = _PUTS | _READS | _LISTS | {"head", "delete", "sync_tree", "make_directory"}


class SimulatedCrash(BaseException):
    """The process ended here. Not an `Exception`, so that no handler of the engine survives it."""


class FaultKind(Enum):
    """What goes wrong."""

    ERROR_BEFORE = "error_before"  # the request is lost
    ERROR_AFTER = "error_after"  # the answer is lost, the effect is there
    CONFLICT_WITHOUT_EFFECT = "conflict_without_effect"  # "exists already", but nothing does
    CONFLICT_AFTER_EFFECT = "conflict_after_effect"  # "exists already": our own, a retry below us hid the first answer
    LATE_EFFECT = "late_effect"  # an error now, the effect some calls later
    DUPLICATE = "duplicate"  # the effect happens twice
    DELAY = "delay"  # all is well, but slow
    THROTTLE = "throttle"  # refused for now, certainly without effect
    SHORT_READ = "short_read"  # the end of the bytes is missing
    BIT_FLIP = "bit_flip"  # one bit of the bytes is wrong
    TORN_OBJECT = "torn_object"  # an error, and an object that holds only the first half
    LOST_DELETE = "lost_delete"  # success, but the object stays
    LIST_MISSES = "list_misses"  # one name is missing from the list
    LIST_SHUFFLES = "list_shuffles"  # the list comes in another order
    CRASH_BEFORE = "crash_before"  # the process ends before the request
    CRASH_AFTER = "crash_after"  # the process ends after the effect

    @property
    def keeps_contract(self) -> bool:
        """Whether a store that honours S1 to S6 of the port may do this: then the engine must carry on or fail cleanly.

        The other kinds are damage, which the engine must notice.
        """
        return self not in _DAMAGE

    def applies_to(self, call: str) -> bool:
        """Whether a call of this name (`put_new`, `get`, ...) can meet this fault."""
        return call in _APPLIES.get(self, _CALLS)


_DAMAGE = frozenset(
    {
        FaultKind.SHORT_READ,
        FaultKind.BIT_FLIP,
        FaultKind.TORN_OBJECT,
        FaultKind.LOST_DELETE,
        FaultKind.LIST_MISSES,
    }
)
_APPLIES = {
    FaultKind.CONFLICT_WITHOUT_EFFECT: frozenset({"put_new"}),
    FaultKind.CONFLICT_AFTER_EFFECT: frozenset({"put_new"}),
    FaultKind.LATE_EFFECT: _PUTS | {"delete"},
    FaultKind.DUPLICATE: _PUTS | {"delete"},
    FaultKind.SHORT_READ: _READS,
    FaultKind.BIT_FLIP: _READS,
    FaultKind.TORN_OBJECT: _PUTS,
    FaultKind.LOST_DELETE: frozenset({"delete"}),
    FaultKind.LIST_MISSES: _LISTS,
    FaultKind.LIST_SHUFFLES: _LISTS,
}
_NO_CRASH = frozenset(FaultKind) - {FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER}


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Which calls go wrong: those in `at` (by index, from 0), and each other one with probability `rate`.

    `kinds` limits what a random fault may be; `late_after_calls` is how many calls a late effect waits.
    """

    at: Mapping[int, FaultKind] = field(default_factory=dict)
    rate: float = 0.0
    kinds: frozenset[FaultKind] = _NO_CRASH
    seed: int = 0
    late_after_calls: int = 3
    delay_seconds: float = 0.01

    def fault(self, index: int, call: str) -> FaultKind | None:
        """The fault of call number `index`, a function of the plan and nothing else."""
        planned = self.at.get(index)
        if planned is not None:
            if not planned.applies_to(call):
                raise InvalidInputError(f"fault {planned.value} cannot happen to call {index}, a {call}")
            return planned
        draw = self.draw(index)
        if draw.random() >= self.rate:
            return None
        possible = sorted((kind for kind in self.kinds if kind.applies_to(call)), key=lambda kind: kind.value)
        return draw.choice(possible) if possible else None

    def draw(self, index: int) -> random.Random:
        """The random numbers of call number `index`."""
        return random.Random(f"{self.seed}/{index}")  # noqa: S311 - reproducible faults, no secret


@dataclass(frozen=True, slots=True)
class StoreCall:
    """One recorded call, and the fault that it met."""

    index: int
    kind: str
    path: str
    fault: FaultKind | None = None


class FaultScript:
    """The faults of one scenario: counts and records the calls of all stores that it wraps."""

    def __init__(self, plan: FaultPlan | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.plan = plan or FaultPlan()
        self.clock = clock
        self._lock = threading.Lock()
        self._calls: list[StoreCall] = []
        self._late: list[tuple[int, Callable[[], object]]] = []
        self._crashed = False

    def wrap(self, store: ObjectStore) -> FaultyStore:
        """`store` under this script; fits `resolve(..., wrap=script.wrap)`."""
        return FaultyStore(store, self)

    @property
    def calls(self) -> tuple[StoreCall, ...]:
        """Every call so far, in order."""
        with self._lock:
            return tuple(self._calls)

    @property
    def injected(self) -> tuple[StoreCall, ...]:
        """The calls so far that met a fault."""
        return tuple(call for call in self.calls if call.fault is not None)

    def begin(self, kind: str, path: str) -> StoreCall:
        """Record a call, let late effects happen whose time has come, and say what goes wrong."""
        with self._lock:
            if self._crashed:
                raise SimulatedCrash(f"{kind} {path} after the crash")
            index = len(self._calls)
            call = StoreCall(index, kind, path, self.plan.fault(index, kind))
            self._calls.append(call)
            due = [effect for when, effect in self._late if when <= index]
            self._late = [(when, effect) for when, effect in self._late if when > index]
        for effect in due:
            _unheard(effect)
        return call

    def postpone(self, call: StoreCall, effect: Callable[[], object]) -> None:
        """Let `effect` happen `late_after_calls` calls after `call`."""
        with self._lock:
            self._late.append((call.index + self.plan.late_after_calls, effect))

    def settle(self) -> None:
        """Let all late effects happen now, as they do when the network calms down."""
        with self._lock:
            due, self._late = self._late, []
        for _, effect in due:
            _unheard(effect)

    def crash(self, call: StoreCall) -> SimulatedCrash:
        """End the process of this scenario; the caller raises what is returned."""
        with self._lock:
            self._crashed = True
        return SimulatedCrash(f"at call {call.index}: {call.kind} {call.path}")


class FaultyStore(WrappedStore):
    """`inner` as seen through a bad network, by `script` (or a plan, for a script of its own)."""

    def __init__(
        self, inner: ObjectStore, script: FaultScript | FaultPlan | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(inner)
        self.script = script if isinstance(script, FaultScript) else FaultScript(script, clock)

    def around(self, kind: str, call: Callable[..., _T], path: str, *rest: Any, **options: Any) -> _T:
        """Carry the call out, unless the script says otherwise."""
        step = self.script.begin(kind, path)
        if kind in _PUTS:
            return self._write(step, rest[0], lambda part: call(path, part, **options))
        if step.fault is FaultKind.LOST_DELETE:
            return None  # type: ignore[return-value]  # what a delete returns
        if kind == "delete":
            return self._write(step, b"", lambda _: call(path))
        result = self._do(step, lambda: call(path, *rest, **options))
        if isinstance(result, bytes):
            return _misread(step, self.script.plan, result)  # type: ignore[return-value]  # bytes as before
        if isinstance(result, list):
            _mishear(step, self.script.plan, result)
        return result

    def _do(self, call: StoreCall, effect: Callable[[], _T]) -> _T:
        """Carry out `effect` with the faults that any call can meet."""
        match call.fault:
            case FaultKind.ERROR_BEFORE:
                raise _lost(call)
            case FaultKind.THROTTLE:
                raise UnavailableError(f"throttled by the script: {call.kind} {call.path}", ambiguous=False)
            case FaultKind.CRASH_BEFORE:
                raise self.script.crash(call)
            case FaultKind.ERROR_AFTER:
                _unheard(effect)
                raise _lost(call)
            case FaultKind.CRASH_AFTER:
                _unheard(effect)
                raise self.script.crash(call)
            case FaultKind.DELAY:
                self.script.clock.sleep(self.script.plan.delay_seconds)
        return effect()

    def _write(self, call: StoreCall, data: bytes, effect: Callable[[bytes], _T]) -> _T:
        match call.fault:
            case FaultKind.CONFLICT_WITHOUT_EFFECT:
                raise ObjectExistsError(call.path)
            case FaultKind.CONFLICT_AFTER_EFFECT:
                effect(data)
                raise ObjectExistsError(call.path)
            case FaultKind.LATE_EFFECT:
                self.script.postpone(call, lambda: effect(data))
                raise _lost(call)
            case FaultKind.TORN_OBJECT:
                _unheard(lambda: effect(data[: len(data) // 2]))
                raise _lost(call)
            case FaultKind.DUPLICATE:
                result = effect(data)
                _unheard(lambda: effect(data))
                return result
        return self._do(call, lambda: effect(data))


def _misread(call: StoreCall, plan: FaultPlan, data: bytes) -> bytes:
    """`data` with the faults that only a read can meet."""
    if call.fault is FaultKind.SHORT_READ:
        return data[: len(data) // 2]
    if call.fault is FaultKind.BIT_FLIP and data:
        bit = plan.draw(call.index).randrange(8 * len(data))
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << (bit % 8)
        return bytes(flipped)
    return data


def _mishear(call: StoreCall, plan: FaultPlan, found: list[Any]) -> None:
    """Do to `found` what only a list can meet."""
    draw = plan.draw(call.index)
    if call.fault is FaultKind.LIST_MISSES and found:
        found.pop(draw.randrange(len(found)))
    if call.fault is FaultKind.LIST_SHUFFLES:
        draw.shuffle(found)


def _lost(call: StoreCall) -> UnavailableError:
    return UnavailableError(f"lost by the script: call {call.index}, {call.kind} {call.path}")


def _unheard(effect: Callable[[], object]) -> None:
    """Carry out `effect` whose answer nobody hears: that it was refused is one of the possible answers."""
    try:
        effect()
    except (ObjectExistsError, ObjectNotFoundError):
        return
