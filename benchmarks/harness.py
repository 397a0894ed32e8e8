"""Measure several ways of doing one thing side by side, and say whether the goal is met.

Owns `Case`, `Sample`, `Bench` and `measure`. Rules, so that a figure can be believed:

1. All sides take turns within one run, and who goes first alternates: a slow minute of the machine hits all of them.
2. The first turn of each side is thrown away (imports, caches, page faults).
3. The figure of a side is the median of its rounds; the ratio is the median of the ratios of the rounds. The best round is
   kept beside it: on a busy machine it says more.
4. Every turn gets a new empty directory, on tmpfs where there is one, so that the disk is not what is measured.
5. Both sides share a process. pylance's runtime keeps six threads from its first use on, but idle they cost the other
   side nothing that can be measured. A side that stays busy after its turn is another matter: such a case is
   `isolated`, each turn in a process of its own, and its callables must be importable (module-level functions).
6. A case that takes long ends after its third round, so that a whole run has a length that can be told in advance.

Sides are named: ours, the peer (pylance's MemWAL at its best settings, or what the name of the case says), and
`others`: the peer at its defaults, plain Lance, LanceDB, and `LIMIT`, the least work that can have the same effect on
this machine.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

LIMIT = "limit"
DEFAULTS = "peer, defaults"
APPEND = "Lance append"
MERGE = "Lance merge_insert"
LANCEDB = "LanceDB"

_TMPFS = Path("/dev/shm")
_NEEDED_BYTES = 512 * 1024 * 1024
_COST_UNITS = frozenset({"ns", "us", "ms", "s", "B", "MiB", "objects", "requests"})
_LEAST_ROUNDS = 3
_SECONDS, _QUICK_SECONDS = 10.0, 2.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What one turn measured: the figure in the case's unit, and the seconds of the single calls where they matter."""

    value: float
    latencies: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Bench:
    """What a turn is given: an empty directory of its own, and whether the run should be short."""

    directory: str
    quick: bool = False

    def scale(self, full: int, quick: int) -> int:
        """`full`, or `quick` in a short run."""
        return quick if self.quick else full


Turn = Callable[[Bench], Sample]


def is_cost(unit: str) -> bool:
    """Whether less of it is better."""
    return unit.split("/")[0] in _COST_UNITS


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison. `goal` bounds ours / peer: from above where the unit is a cost, from below where it is a rate.

    `others` are further sides, by name, which take turns with the two. A short run has no case that is `full_only`.
    """

    name: str
    ours: Turn
    peer: Turn | None
    goal: float | None
    unit: str
    rounds: int = 7
    isolated: bool = False
    others: Mapping[str, Turn] = field(default_factory=dict)
    full_only: bool = False

    @property
    def sides(self) -> dict[str, Turn]:
        """Every side, by name."""
        return {"ours": self.ours} | ({"peer": self.peer} if self.peer else {}) | dict(self.others)

    @property
    def lower_is_better(self) -> bool:
        """Whether the unit counts a cost."""
        return is_cost(self.unit)


@dataclass(frozen=True, slots=True)
class Side:
    """All rounds of one side."""

    values: tuple[float, ...]
    latencies: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        """The figure of the side."""
        return statistics.median(self.values)

    def beside(self, other: Side) -> list[float]:
        """This side / the other one, round by round."""
        return [mine / theirs for mine, theirs in zip(self.values, other.values, strict=True) if theirs]


@dataclass(frozen=True, slots=True)
class Result:
    """A measured case; `seconds` is how long that took."""

    case: Case
    ours: Side
    peer: Side | None
    ratio: float | None = None
    others: Mapping[str, Side] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def ok(self) -> bool | None:
        """Whether the goal is met; None where there is nothing to compare."""
        if self.ratio is None or self.case.goal is None:
            return None
        return self.ratio <= self.case.goal if self.case.lower_is_better else self.ratio >= self.case.goal


def timed(calls: Iterable[Callable[[], object]]) -> list[float]:
    """The seconds that each call took."""
    seconds = []
    clock = time.perf_counter
    for call in calls:
        start = clock()
        call()
        seconds.append(clock() - start)
    return seconds


def percentile(latencies: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the latencies lie (nearest rank)."""
    ordered = sorted(latencies)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def base_directory() -> Path:
    """A tmpfs with room if the machine has one, else the directory for temporary files."""
    if _TMPFS.is_dir() and os.access(_TMPFS, os.W_OK) and shutil.disk_usage(_TMPFS).free >= _NEEDED_BYTES:
        return _TMPFS
    return Path(tempfile.gettempdir())


@cache
def workplace() -> str:
    """A directory for tables that several turns share; it goes with the process."""
    directory = tempfile.mkdtemp(prefix="memwal-bench-", dir=base_directory())
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


@contextmanager
def workspace(base: Path, quick: bool) -> Iterator[Bench]:
    """A new empty directory for one turn, which goes with it."""
    directory = tempfile.mkdtemp(prefix="memwal-bench-", dir=base)
    try:
        yield Bench(directory, quick)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _take_turn(turn: Turn, base: Path, quick: bool) -> Sample:
    gc.collect()
    with workspace(base, quick) as bench:
        return turn(bench)


def _take_turn_apart(turn: Turn, base: Path, quick: bool) -> Sample:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_take_turn, (turn, base, quick))


def measure(case: Case, *, quick: bool = False, base: Path | None = None) -> Result:
    """The case with its rounds interleaved; see the rules of the module."""
    began = time.perf_counter()
    samples = _rounds(case, base or base_directory(), quick)
    measured = {name: _side(taken) for name, taken in samples.items()}
    ours, peer = measured.pop("ours"), measured.pop("peer", None)
    ratios = ours.beside(peer) if peer else []
    ratio = statistics.median(ratios) if ratios else None
    return Result(case, ours, peer, ratio, measured, time.perf_counter() - began)


def _rounds(case: Case, base: Path, quick: bool) -> dict[str, list[Sample]]:
    """What every side measured, round by round, without the first one."""
    take = _take_turn_apart if case.isolated else _take_turn
    samples: dict[str, list[Sample]] = {name: [] for name in case.sides}
    rounds = max(_LEAST_ROUNDS, case.rounds // 2) if quick else case.rounds
    began = 0.0
    for number in range(-1, rounds):
        if number == 0:
            began = time.perf_counter()
        if number >= _LEAST_ROUNDS and time.perf_counter() - began > (_QUICK_SECONDS if quick else _SECONDS):
            break
        order = list(samples) if number % 2 else list(reversed(samples))
        for name in order:
            sample = take(case.sides[name], base, quick)
            if number >= 0:
                samples[name].append(sample)
    return samples


def _side(samples: Sequence[Sample]) -> Side:
    return Side(tuple(s.value for s in samples), tuple(second for s in samples for second in s.latencies))
