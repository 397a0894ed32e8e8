"""Search the worlds of a model: all of them, nearest first (`explore`), or along random schedules (`stroll`).

A model gives its first world, the worlds that may follow a world, and the promise that a world breaks. One step is one store
operation of one process, so a process that crashes is one that takes no further step. Results depend on the model, the bounds
and the seed only: a model lists its steps in a fixed order.
"""

import random
from collections import deque
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

_World = TypeVar("_World", bound=Hashable)
NETWORK = -1
"""The number under which puts that are on their way take effect; processes count from 0."""


class Model(Protocol[_World]):
    """The model that a search visits."""

    @property
    def actors(self) -> int: ...

    def first(self) -> _World: ...

    def successors(self, world: _World, asleep: Collection[int] = ()) -> Iterator[tuple[str, _World]]:
        """Each world that may follow, with its step; processes in `asleep` take no step."""
        ...

    def broken(self, world: _World) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Broken:
    """A promise that does not hold, and the steps that lead there."""

    what: str
    trace: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Walk:
    """The number of visited worlds, and the broken promise; a walk that is not whole proves nothing about other worlds."""

    worlds: int
    broken: Broken | None = None
    is_whole: bool = True


def explore(model: Model[_World], *, most: int = 1_000_000) -> Walk:
    """Visit every world, the near ones first, up to `most`; stop at the first broken promise."""
    first = model.first()
    came_from: dict[_World, tuple[_World, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        world = waiting.popleft()
        what = model.broken(world)
        if what is not None:
            return Walk(len(came_from), Broken(what, _trace(came_from, world)))
        for step, after in model.successors(world):
            known = len(came_from)
            came_from.setdefault(after, (world, step))  # one hash: worlds are large
            if len(came_from) > known:
                waiting.append(after)
        if len(came_from) > most:
            return Walk(len(came_from), is_whole=False)
    return Walk(len(came_from))


def _trace(came_from: dict[_World, tuple[_World, str] | None], world: _World) -> list[str]:
    steps = []
    while (link := came_from[world]) is not None:
        world, step = link
        steps.append(step)
    return steps[::-1]


def stroll(model: Model[_World], *, seed: int, walks: int, steps: int = 150) -> Walk:
    """Take `walks` random schedules of at most `steps` steps; stop at the first broken promise.

    In each walk two processes and the network are slow: they sleep through most steps and then act on old knowledge.
    """
    draw, visited = random.Random(seed), 0
    for _ in range(walks):
        world, trace = model.first(), list[str]()
        slow = [draw.randrange(model.actors), draw.randrange(model.actors)]
        sleepiness = draw.random()
        for _ in range(steps):
            asleep = {number for number in slow if draw.random() < sleepiness}
            asleep |= {NETWORK} if draw.random() < 0.7 else set()
            choices = list(model.successors(world, asleep)) or list(model.successors(world))
            if not choices:
                break
            step, world = choices[draw.randrange(len(choices))]
            trace.append(step)
            visited += 1
            what = model.broken(world)
            if what is not None:
                return Walk(visited, Broken(what, trace), is_whole=False)
    return Walk(visited, is_whole=False)
