"""Hearing processes out, and ending them when their time has come.

Owns `Death` (where a process dies), `Ends` (how that is drawn), `watch` (any number of processes at once, of which some die)
and `bury`. Invariants:

1. A process that says nothing for `DEADLINE_SECONDS`, whatever others say, is a broken promise (I12), never a hang of the
   harness.
2. A process ends by a kill that was planned, or with status 0 after it said that it is done. Any other end (an abort, a fault
   of memory, a kill that nobody planned) is a broken promise (I12).
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any, Final

from tests.harness.kill_points import POINTS
from tests.harness.processes import Child
from tests.harness.profile import scaled

KILLED: Final = -9
_PATIENT_SECONDS: Final = 240.0  # on a machine that does many other things, too
_TESTED_SECONDS: Final = 80.0  # before pytest ends the test, so that the stack of a silent process is seen
DEADLINE_SECONDS: Final = scaled(
    ci=_TESTED_SECONDS if "PYTEST_VERSION" in os.environ else _PATIENT_SECONDS, prove=_PATIENT_SECONDS
)


@dataclass(frozen=True, slots=True)
class Death:
    """Where a process dies: by itself at a point, or `seconds` after it said `begins_at` ("start": after it was started)."""

    place: str
    begins_at: str = ""
    seconds: float = 0.0

    @property
    def by_itself(self) -> bool:
        return not self.begins_at and self != NEVER


NEVER: Final = Death("after the last write")


@dataclass(frozen=True, slots=True)
class Ends:
    """How lives of one kind end: at a point, or of those that close a share meanwhile; else some seconds after the start, or
    after they said `begins_at`."""

    closing_share: float
    recovery_seconds: float
    begins_at: str
    writing_seconds: float

    def draw(self, draw: random.Random, kill_at: tuple[str, int] | None, ending: str) -> Death:
        """Where a life dies that kills itself there, or ends like this."""
        if kill_at is not None:
            return Death(kill_at[0])
        if ending == "close" and draw.random() < self.closing_share:
            return Death("during close", "closing", draw.random() * 0.05)
        if draw.random() < 0.25:
            return Death("during recovery", "start", 0.005 + draw.random() * self.recovery_seconds)
        return Death("while writing", self.begins_at, draw.random() ** 2 * self.writing_seconds)


@dataclass(slots=True)
class Actor:
    """One process that is watched; a lingering one is killed when it is done."""

    child: Child
    death: Death = NEVER
    lingers: bool = True
    doom: float | None = None
    place: str = ""
    killed: bool = False
    done: bool = False
    ended: bool = False

    def __post_init__(self) -> None:
        self.place = self.death.place
        if self.death.begins_at == "start":
            self.doom = time.monotonic() + self.death.seconds

    def note(self, message: tuple[Any, ...]) -> None:
        """Take note of what concerns its end."""
        if message[0] in ("dies", "stops"):
            self.place = message[1]
        self.done = self.done or message[0] == "done"

    def hear(self, message: tuple[Any, ...]) -> None:
        """Take note, and do what now is due."""
        self.note(message)
        if message[0] == self.death.begins_at and self.doom is None and not self.killed:
            self.doom = time.monotonic() + self.death.seconds
        elif message[0] == "done" and self.lingers:
            self.kill()
            self.place = "after the last write"

    def ended_well(self, status: int) -> bool:
        """Whether this exit status is that of a kill that was planned, or of a life that was lived to its end."""
        return (self.killed or self.death.by_itself) if status == KILLED else (self.done and status == 0)

    def kill(self) -> None:
        """End it; one that ended is left alone."""
        if not self.ended:
            self.child.kill()
        self.doom, self.killed = None, True


def watch(
    actors: Sequence[Actor],
    hear: Callable[[tuple[Any, ...]], None],
    fail: Callable[[str], None],
    report: CrashReport,
) -> None:
    """Hear all of them until they ended, and kill each when its time has come; none of them outlives an error.

    `fail` is told what nobody planned, and raises.
    """
    try:
        _watch(actors, hear, fail, report)
    except BaseException:
        for actor in actors:
            actor.kill()
        raise


def _watch(
    actors: Sequence[Actor],
    hear: Callable[[tuple[Any, ...]], None],
    fail: Callable[[str], None],
    report: CrashReport,
) -> None:
    living = {actor.child.connection: actor for actor in actors}
    heard = dict.fromkeys(living, time.monotonic())
    while living:
        dooms = [actor.doom for actor in living.values() if actor.doom is not None]
        until = min([min(heard[connection] for connection in living) + DEADLINE_SECONDS, *dooms])
        ready = wait(list(living), max(0.0, until - time.monotonic()))
        for connection in [connection for connection in living if connection in ready]:
            actor = living[connection]
            heard[connection] = time.monotonic()
            try:
                message = actor.child.receive(0)
            except EOFError:
                del living[connection]
                bury(actor, fail, report)
                continue
            if message is not None:
                actor.hear(message)
                hear(message)
        for connection, actor in living.items():
            if actor.doom is not None and time.monotonic() >= actor.doom:
                actor.kill()
            if time.monotonic() - heard[connection] > DEADLINE_SECONDS:
                _too_silent(actor, fail)


def _too_silent(actor: Actor, fail: Callable[[str], None]) -> None:
    os.kill(actor.child.pid, signal.SIGUSR1)  # it shows where its threads are
    time.sleep(0.2)
    fail(f"nothing was heard of a process for {DEADLINE_SECONDS} seconds")


def bury(actor: Actor, fail: Callable[[str], None], report: CrashReport) -> None:
    """Count a process that has said its last word; `fail` unless it ended as it should."""
    actor.ended = True
    try:
        status = actor.child.wait(DEADLINE_SECONDS)
    except TimeoutError as error:
        fail(str(error))
        return
    report.lives += 1
    if not actor.ended_well(status):
        fail(f"a process ended by itself with exit status {status}, planned was a death {actor.death.place!r}")
    if status == KILLED:
        report.kills += 1
        report.killed_at[actor.place] += 1


# What a run of kills or takeovers did and saw, and the verdict that a promise is broken.


class CrashFailure(AssertionError):  # noqa: N818 - it is the verdict of a test
    """An invariant is broken."""


@dataclass(slots=True)
class CrashReport:
    """What a run did and saw."""

    kills: int = 0
    takeovers: int = 0
    lives: int = 0
    tables: int = 0
    writes: int = 0
    opens: int = 0
    killed_at: Counter[str] = field(default_factory=Counter)
    reached: set[str] = field(default_factory=set)
    kinds: Counter[str] = field(default_factory=Counter)
    recovery_seconds: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def recovery(self, percent: float) -> float:
        """Seconds within which `percent` of the opens returned."""
        ordered = sorted(self.recovery_seconds) or [0.0]
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    def missed(self) -> str:
        """The named points that no process came to, and those that processes passed and never died or stopped at."""
        unseen = [point for point in POINTS if point not in self.reached]
        passed = [point for point in POINTS if point in self.reached and point not in self.killed_at]
        return f"points never reached: {', '.join(unseen) or 'none'}\npoints only passed: {', '.join(passed) or 'none'}"

    def __str__(self) -> str:
        places = ", ".join(f"{name} {count}" for name, count in sorted(self.killed_at.items()))
        kinds = ", ".join(f"{name} {count}" for name, count in sorted(self.kinds.items()))
        return (
            f"{self.kills} kills and {self.takeovers} takeovers in {self.seconds:.1f} s over {self.tables} tables: "
            f"{self.writes} acknowledged writes, 0 lost, 0 phantoms, {self.opens} opens, 0 failed\n"
            f"recovery p50 {self.recovery(50) * 1e3:.1f} ms, p99 {self.recovery(99) * 1e3:.1f} ms, "
            f"max {self.recovery(100) * 1e3:.1f} ms\nlives: {kinds}\nat: {places}"
        )
