"""Faults at the store calls of a life of a table: one at a time, and pairs.

Owns the plans. Invariants:

1. A plan is made of calls that were recorded: the life without faults for the first fault, the life with the first fault for
   the second one. So most planned faults are met; where a call came at another place, the life counts for what it met.
2. Kinds that the contract of a store forbids are told apart: after one that leaves damage behind, storage may be refused, with
   the place of the damage.
3. What nothing could notice is left out: a listing that misses names (S5), and a wrong bit in an object whose format, which is
   Lance's, has no checksum. Entries, roll-ups and remembered deletes have one.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lance_memwal.testing import FaultKind, FaultPlan, FaultScript, StoreCall
from tests.kit.table_life import CanonicalLife, Place

__all__ = ["First", "Planned", "Sweep", "can_meet", "firsts", "in_slice", "pairs", "record", "singles"]

KINDS = tuple(kind for kind in FaultKind if kind is not FaultKind.LIST_MISSES)
CRASHES = frozenset({FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER})
_CHECKED = re.compile(r"/(wal|memwal_rollups|memwal_deletes)/")
_EFFECTS = frozenset({"put_new", "put", "delete"})
_LATE_AFTER_CALLS = (0, 3, 40)
_SECONDS_PER_FIRST = 5
_NEAR = 14
_MISREAD = frozenset({FaultKind.SHORT_READ, FaultKind.BIT_FLIP})
_TRIES = 3


@dataclass(frozen=True, slots=True)
class _Aimed(FaultPlan):
    """A plan whose faults go by where the call at their place cannot meet them: time may have moved the calls."""

    def fault(self, index: int, call: str) -> FaultKind | None:
        planned = self.at.get(index)
        return planned if planned is not None and planned.applies_to(call) else None


@dataclass(frozen=True, slots=True)
class Planned:
    """The faults of one life: by call, for each of its processes."""

    at: tuple[Mapping[int, FaultKind], ...]
    seed: int = 0
    late_after_calls: int = 3

    def __str__(self) -> str:
        told = [{index: kind.value for index, kind in at.items()} for at in self.at]
        return f"{told} seed={self.seed} late={self.late_after_calls}"

    def scripts(self) -> list[FaultScript]:
        """The scripts of the processes."""
        return [FaultScript(_Aimed(at=at, seed=self.seed, late_after_calls=self.late_after_calls)) for at in self.at]


@dataclass
class Sweep:
    """Lives at one place, and what came of them."""

    place: Place
    life: type[CanonicalLife] = CanonicalLife
    lives: int = 0
    unmet: int = 0
    met: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    failed: list[tuple[Planned, str]] = field(default_factory=list)

    def live(self, planned: Planned) -> list[FaultScript]:
        """One life; its scripts, with what they recorded."""
        scripts = planned.scripts()
        life = self.life(self.place, f"{self.life.__name__}{self.lives:06d}", scripts)
        self.lives += 1
        found = life.run()
        injected = [call for script in scripts for call in script.injected]
        self.met[f"{len(injected)} faults"] += 1
        self.met.update(call.fault.value for call in injected if call.fault is not None)
        if not found and life.oracle.refused and _goes_unseen(injected):
            found = [f"a user saw it: {life.oracle.refused[0]}"]
        told = [line for line in life.oracle.refused if ": CorruptDataError: " in line]
        if len(told) > 1 and len(injected) == 1 and injected[0].fault in _MISREAD:
            found.append(f"one bad read was told {len(told)} times, last: {told[-1]}")
        self.refused.update(line.partition(": ")[2].partition(":")[0] for line in life.oracle.refused)
        where = ", ".join(f"{call.kind} {call.path}" for call in injected)
        self.broken += [f"{planned} ({where}): {line}" for line in found]
        if found:
            self.failed.append((planned, self.broken[-len(found)]))
        return scripts

    def meet(self, planned: Planned) -> None:
        """Live until what is planned was met, a few times: time may move calls."""
        wanted = sum(map(len, planned.at))
        for _ in range(_TRIES):
            if sum(len(script.injected) for script in self.live(planned)) == wanted:
                return
        self.unmet += 1

    def add(self, other: Sweep) -> None:
        """What came of other lives counts here, too."""
        self.lives += other.lives
        self.unmet += other.unmet
        self.met.update(other.met)
        self.refused.update(other.refused)
        self.broken += other.broken
        self.failed += other.failed


def _goes_unseen(injected: Sequence[StoreCall]) -> bool:
    """Whether users must not notice: one fault that stores may have, and retries are for."""
    return len(injected) == 1 and all(c.fault not in CRASHES and c.fault.keeps_contract for c in injected if c.fault)


def can_meet(call: StoreCall) -> list[FaultKind]:
    """The kinds of fault that a sweep puts at this call."""
    kinds = [kind for kind in KINDS if kind.applies_to(call.kind)]
    return kinds if _CHECKED.search(call.path) else [kind for kind in kinds if kind is not FaultKind.BIT_FLIP]


def record(sweep: Sweep) -> tuple[StoreCall, ...]:
    """The calls of the life without faults."""
    (script,) = sweep.live(Planned(({},)))
    return script.calls


def singles(calls: Sequence[StoreCall]) -> Iterator[Planned]:
    """One fault of every kind at every call that can meet it."""
    for call in calls:
        for kind in can_meet(call):
            for late in _LATE_AFTER_CALLS if kind is FaultKind.LATE_EFFECT else (0,):
                yield Planned(({call.index: kind},), late_after_calls=late)


def in_slice(planned: Planned, part: int, parts: int) -> bool:
    """Whether a single fault is in part `part` (from 1) of `parts`: by its call, so that runs agree although calls may move."""
    return min(planned.at[0]) % parts == part - 1


@dataclass(frozen=True, slots=True)
class First:
    """The first of two faults, and how many lives with a second one follow from it."""

    planned: Planned
    seconds: int
    seed: str

    def followed(self, sweep: Sweep) -> Iterator[Planned]:
        """Pairs with this one: the second at a call of the life that has met it."""
        draw, alone = random.Random(self.seed), self.planned
        ((index, kind),) = alone.at[0].items()
        scripts = sweep.live(replace(alone, at=(*alone.at, {})))
        after = scripts[1].calls if kind in CRASHES else scripts[0].calls[index + 1 :]
        for _ in range(min(self.seconds, len(after))):
            near = draw.random() < 0.5
            second = draw.choice(after[:_NEAR] if near else [c for c in after if c.kind in _EFFECTS] or after)
            other = {second.index: draw.choice(can_meet(second))}
            yield replace(alone, at=(*alone.at, other) if kind in CRASHES else ({index: kind, **other}, {}))


def firsts(calls: Sequence[StoreCall], count: int, seed: int) -> Iterator[First]:
    """First faults for `count` pairs: at calls that change storage."""
    critical = [call for call in calls if call.kind in _EFFECTS]
    for number, made in enumerate(range(0, count, _SECONDS_PER_FIRST)):
        draw = random.Random(f"{seed}/{number}")
        call = draw.choice(critical)
        at = {call.index: draw.choice(can_meet(call))}
        planned = Planned((at,), seed=seed, late_after_calls=draw.choice(_LATE_AFTER_CALLS))
        yield First(planned, min(_SECONDS_PER_FIRST, count - made), f"{seed}/{number}/second")


def pairs(sweep: Sweep, calls: Sequence[StoreCall], count: int, seed: int) -> Iterator[Planned]:
    """Two faults: the first at a call that changes storage, the second at one of those that follow."""
    for first in firsts(calls, count, seed):
        yield from first.followed(sweep)
