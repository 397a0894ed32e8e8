"""Hearing processes out, and ending them when their time has come.

Owns `Death` (where a process dies) and `watch` (any number of processes at once, of which some die). Invariant: a process that
says nothing for too long is a broken promise (I12), never a hang of the harness.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Final

from tests.harness.crash_report import CrashReport
from tests.harness.processes import Child

__all__ = ["DEADLINE_SECONDS", "KILLED", "NEVER", "Actor", "Death", "watch"]

KILLED: Final = -9
DEADLINE_SECONDS: Final = 240.0  # on a machine that does many other things, too


@dataclass(frozen=True, slots=True)
class Death:
    """Where a process dies: by itself at a point, or `seconds` after it said `begins_at` ("start": after it was started)."""

    place: str
    begins_at: str = ""
    seconds: float = 0.0


NEVER: Final = Death("after the last write")


@dataclass(slots=True)
class Actor:
    """One process that is watched; a lingering one is killed when it is done."""

    child: Child
    death: Death = NEVER
    lingers: bool = True
    doom: float | None = None
    place: str = ""
    killed: bool = False
    ended: bool = False

    def __post_init__(self) -> None:
        self.place = self.death.place
        if self.death.begins_at == "start":
            self.doom = time.monotonic() + self.death.seconds

    def hear(self, message: tuple[Any, ...]) -> None:
        """Take note of what concerns its end."""
        if message[0] == "dies":
            self.place = message[1]
        elif message[0] == self.death.begins_at and self.doom is None and not self.killed:
            self.doom = time.monotonic() + self.death.seconds
        elif message[0] == "done" and self.lingers:
            self.kill()
            self.place = "after the last write"

    def kill(self) -> None:
        """End it; one that ended is left alone."""
        if not self.ended:
            self.child.kill()
        self.doom, self.killed = None, True


def watch(
    actors: Sequence[Actor],
    hear: Callable[[tuple[Any, ...]], None],
    too_silent: Callable[[str], None],
    report: CrashReport,
) -> None:
    """Hear all of them until they ended, and kill each when its time has come; none of them outlives an error."""
    try:
        _watch(actors, hear, too_silent, report)
    except BaseException:
        for actor in actors:
            actor.kill()
        raise


def _watch(
    actors: Sequence[Actor],
    hear: Callable[[tuple[Any, ...]], None],
    too_silent: Callable[[str], None],
    report: CrashReport,
) -> None:
    living = {actor.child.connection: actor for actor in actors}
    heard = time.monotonic()
    while living:
        now = time.monotonic()
        dooms = [actor.doom for actor in living.values() if actor.doom is not None]
        ready = wait(list(living), max(0.0, min([heard + DEADLINE_SECONDS, *dooms]) - now))
        for connection in ready:
            actor = living[connection]  # type: ignore[index]
            heard = time.monotonic()
            try:
                message = actor.child.receive(0)
            except EOFError:
                del living[connection]  # type: ignore[arg-type]
                _bury(actor, report)
                continue
            if message is not None:
                actor.hear(message)
                hear(message)
        for actor in living.values():
            if actor.doom is not None and time.monotonic() >= actor.doom:
                actor.kill()
        if time.monotonic() - heard > DEADLINE_SECONDS:
            for actor in living.values():
                os.kill(actor.child.pid, signal.SIGUSR1)  # it shows where its threads are
            time.sleep(1)
            too_silent(f"nothing was heard for {DEADLINE_SECONDS} seconds")


def _bury(actor: Actor, report: CrashReport) -> None:
    actor.ended = True
    if actor.child.wait(DEADLINE_SECONDS) == KILLED:
        report.kills += 1
        report.killed_at[actor.place] += 1
    report.lives += 1
