"""Measure two ways of doing one thing side by side, and say whether the goal is met.

Owns `Case`, `Sample`, `Bench` and the table. Rules, so that a figure can be believed:

1. Ours and the peer take turns within one run, and who goes first alternates: a slow minute of the machine hits both.
2. The first turn of each side is thrown away (imports, caches, page faults).
3. The figure of a side is the median of its rounds; the ratio is the median of the ratios of the rounds.
4. Every turn gets a new empty directory, on tmpfs where there is one, so that the disk is not what is measured.
5. Both sides share a process. pylance's runtime keeps six threads from its first use on, but idle they cost the other
   side nothing that can be measured. A side that stays busy after its turn is another matter: such a case is
   `isolated`, each turn in a process of its own, and its callables must be importable (module-level functions).
"""

from __future__ import annotations

import atexit
import gc
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = [
    "Bench",
    "Case",
    "Result",
    "Sample",
    "Side",
    "is_cost",
    "measure",
    "percentile",
    "run",
    "table",
    "timed",
    "to_json",
    "workplace",
]

_TMPFS = Path("/dev/shm")
_NEEDED_BYTES = 512 * 1024 * 1024
_COST_UNITS = frozenset({"ns", "us", "ms", "s", "B", "MiB"})


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
    """One comparison. `goal` bounds ours / peer: from above where the unit is a cost, from below where it is a rate."""

    name: str
    ours: Turn
    peer: Turn | None
    goal: float | None
    unit: str
    rounds: int = 7
    isolated: bool = False

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


@dataclass(frozen=True, slots=True)
class Result:
    """A measured case."""

    case: Case
    ours: Side
    peer: Side | None
    ratio: float | None = None

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
def _workspace(base: Path, quick: bool) -> Iterator[Bench]:
    directory = tempfile.mkdtemp(prefix="memwal-bench-", dir=base)
    try:
        yield Bench(directory, quick)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _take_turn(turn: Turn, base: Path, quick: bool) -> Sample:
    gc.collect()
    with _workspace(base, quick) as bench:
        return turn(bench)


def _take_turn_apart(turn: Turn, base: Path, quick: bool) -> Sample:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_take_turn, (turn, base, quick))


def measure(case: Case, *, quick: bool = False, base: Path | None = None) -> Result:
    """The case with its rounds interleaved; see the rules of the module."""
    base = base or base_directory()
    take = _take_turn_apart if case.isolated else _take_turn
    sides: dict[str, Turn] = {"ours": case.ours} | ({"peer": case.peer} if case.peer else {})
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    rounds = max(3, case.rounds // 2) if quick else case.rounds
    for number in range(-1, rounds):
        order = list(sides) if number % 2 else list(reversed(sides))
        for name in order:
            sample = take(sides[name], base, quick)
            if number >= 0:
                samples[name].append(sample)
    measured = {name: _side(taken) for name, taken in samples.items()}
    peer = measured.get("peer")
    pairs = zip(measured["ours"].values, peer.values, strict=True) if peer else ()
    ratios = [mine / theirs for mine, theirs in pairs if theirs]
    return Result(case, measured["ours"], peer, statistics.median(ratios) if ratios else None)


def _side(samples: Sequence[Sample]) -> Side:
    return Side(tuple(s.value for s in samples), tuple(second for s in samples for second in s.latencies))


def run(cases: Iterable[Case], *, only: str = "", quick: bool = False, base: Path | None = None) -> Iterator[Result]:
    """Measure every case whose name contains `only`, one after the other."""
    for case in cases:
        if only.lower() in case.name.lower():
            yield measure(case, quick=quick, base=base)


_HEADER = ("name", "ours", "peer", "unit", "ratio", "goal", "ok")


def table(results: Sequence[Result]) -> str:
    """The results as an aligned table, latency percentiles in a line of their own."""
    rows = [_HEADER, *map(_row, results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = [_line(_HEADER, widths), "-+-".join("-" * width for width in widths)]
    for row, result in zip(rows[1:], results, strict=True):
        lines.append(_line(row, widths))
        lines += [f"    {name}: {text}" for name, text in _latency_texts(result)]
    return "\n".join(lines)


def _row(result: Result) -> tuple[str, ...]:
    case, ratio = result.case, result.ratio
    bound = "" if case.goal is None else f"{'<=' if case.lower_is_better else '>='} {case.goal:.2f}x"
    verdict = {True: "yes", False: "NO", None: "-"}[result.ok]
    peer = _figure(result.peer.median) if result.peer else "-"
    shown = "-" if ratio is None else f"{ratio:.2f}x"
    return case.name, _figure(result.ours.median), peer, case.unit, shown, bound or "-", verdict


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = [
        text.rjust(width) if 1 <= column <= 2 or column == 4 else text.ljust(width)
        for column, (text, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return " | ".join(aligned).rstrip()


def _latency_texts(result: Result) -> Iterator[tuple[str, str]]:
    for name, side in (("ours", result.ours), ("peer", result.peer)):
        if side and side.latencies:
            p50, p99 = (percentile(side.latencies, percent) * 1e6 for percent in (50, 99))
            yield name, f"p50 {p50:,.0f} us, p99 {p99:,.0f} us"


def environment(base: Path) -> dict[str, Any]:
    """What a reader needs to judge the figures; nothing that names the machine."""
    versions = {name: _version(name) for name in ("lance-memwal", "pyarrow", "pylance", "obstore")}
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "tmpfs": base == _TMPFS,
        "versions": versions,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def to_json(results: Sequence[Result], *, base: Path, quick: bool) -> str:
    """The results with every round, for a machine to read."""
    return json.dumps(
        {"environment": environment(base), "quick": quick, "results": [_as_dict(result) for result in results]},
        indent=2,
    )


def _as_dict(result: Result) -> dict[str, Any]:
    return {
        "name": result.case.name,
        "unit": result.case.unit,
        "goal": result.case.goal,
        "ratio": result.ratio,
        "ok": result.ok,
        "ours": _side_dict(result.ours),
        "peer": _side_dict(result.peer) if result.peer else None,
    }


def _side_dict(side: Side) -> dict[str, Any]:
    latency = {f"p{percent}_us": percentile(side.latencies, percent) * 1e6 for percent in (50, 99) if side.latencies}
    return {"median": side.median, "rounds": list(side.values), **latency}
