"""The goals: what must be shown in one run, and whether a run shows it.

Owns the list of goals and the verdict on each. A goal names a case, and bounds it in one of three ways:
`at_most(side, n)`, ours may cost n times what the other side costs; `at_least(side, n)`, ours must be n times as
fast; `within(n, unit)`, the figure itself. Rules:

1. The verdict is that of the median. The ratio of the best rounds stands beside it, since on a busy machine it says more.
2. Where a goal has two bounds, one that is met is enough. A goal for a kind of cases is as good as the worst of them.
3. What was not measured is neither met nor missed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.growth import factor_of
from benchmarks.harness import LANCEDB, LIMIT, is_cost
from benchmarks.kept import Run, best_of, figure, ratios_of, sides_of

PEER = "peer"
ONE_THREAD = "ours, 1 thread"
MEMTABLE = "ours, memtable mode"
_TIMES = "\N{MULTIPLICATION SIGN}"
FLAT = 2.0  # what "flat" is: the largest size costs at most so many times the cheapest one
_JUDGED_UP_TO = {"generations": 64}  # larger sizes are information: the default policy compacts at 16
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


@dataclass(frozen=True, slots=True)
class Bound:
    """One way to meet a goal. `side` is whom ours is compared with, None for the figure itself."""

    side: str | None
    limit: float
    faster: bool = False
    unit: str = "x"

    def __str__(self) -> str:
        if self.side is None:
            return f"≤ {self.limit:g} {self.unit}"
        return f"{'≥' if self.faster else '≤'} {self.limit:g} {_TIMES} {self.side}"

    def is_met(self, value: float) -> bool:
        """Whether a value is good enough."""
        return value >= self.limit if self.faster else value <= self.limit


def at_most(side: str, times: float) -> Bound:
    """Ours may cost so many times what the side costs."""
    return Bound(side, times)


def at_least(side: str, times: float) -> Bound:
    """Ours must be so many times as fast as the side."""
    return Bound(side, times, faster=True)


def within(limit: float, unit: str) -> Bound:
    """The figure itself, as a cost."""
    return Bound(None, limit, unit=unit)


@dataclass(frozen=True, slots=True)
class Goal:
    """One line of the table: `case` is the name of a case, or with a `*` at its end how several names begin."""

    work: str
    case: str
    bounds: tuple[Bound, ...]


def _goals() -> Iterator[Goal]:
    def of(work: str, case: str, *bounds: Bound) -> Iterator[Goal]:
        for bound in bounds:
            yield Goal(work, case, (bound,))

    yield from of(
        "durable put, 20 rows, 1 thread", "put: 20 narrow rows, 1 thread", at_most(LIMIT, 1.3), at_least(PEER, 3.5)
    )
    yield from of(
        "durable put, 20 rows, 8 threads",
        "put: 20 narrow rows, 8 threads",
        at_least(ONE_THREAD, 1.6),
        at_least(PEER, 6),
    )
    yield Goal("buffered put, 20 rows", "put: 20 narrow rows, buffered", (within(9, "us"), at_most(LIMIT, 2)))
    yield from of("buffered put, 20 rows", "put: 20 narrow rows, buffered", at_least(PEER, 5))
    for rows in ("1,000", "100,000"):
        yield from of(f"put, {rows} rows", f"put: {rows} narrow rows, 1 thread", at_most(LIMIT, 1.5), at_least(PEER, 3))
    yield from of("durable put, 1 row, disk with fsync", "put: 1 narrow row, disk with fsync", at_most(LIMIT, 1.5))
    for rows, threads in (("20", "1 thread"), ("20", "8 threads"), ("1,000", "1 thread")):
        name = f"put: {rows} narrow rows, {threads}, WAL-only"
        yield from of(f"WAL-only put, {rows} rows, {threads}", name, at_least(MEMTABLE, 0.95))
    for rows in ("20", "1,000"):
        yield from of(f"WalTailer.read_entry, {rows} rows", f"read_entry, {rows} rows", at_most(LIMIT, 2))
    for index, times in (("BTree", 2), ("text", 3), ("vector", 2)):
        yield from of(f"puts with a {index} index", f"puts and close, {index} maintained", at_least(PEER, times))
    yield from of("flush of 50,000 rows", "close with 50,000 rows in memory", at_least(PEER, 2))
    yield from of("replay of 1,500 entries", "open with 1,500 entries to replay", at_least(PEER, 3))
    for name, case, most, times in (
        ("fresh scan, 1M + 50k rows", "scan, memtable", 1.5, 10),
        ("the same, 3 SSTables", "scan, 3 SSTables", 1.7, 30),
        ("the same, filtered", "scan, filtered, 3 SSTables", 1.5, 3),
    ):
        yield from of(name, case, at_most(LIMIT, most), at_least(PEER, times))
    for case, most, times in (
        ("get, from memtable", 60, 4),
        ("get, from memtable, ShardWriter", 60, 4),
        ("get, from memtable, TableWriter", 60, 4),
        ("get, from SSTable", 250, 10),
        ("get, from base", 600, 4),
        ("get, miss", 150, 15),
    ):
        yield from of(case, case, within(most, "us"), at_least(PEER, times))
    yield from of("lookup of 100 keys, beside one call each", "lookup of 100 keys", at_least(PEER, 50))
    yield from of("cold get, 64 generations", "cold get, 64 generations", within(50, "ms"), at_least(PEER, 5))
    yield from of("cold get, 16 generations", "cold get, 16 generations, objects opened", within(30, "objects"))
    yield from of("vector search, all indexed", "vector search, all indexed", at_most(LANCEDB, 1.5))
    yield from of("text search", "text search, all indexed", at_most(LANCEDB, 2))
    yield from of("ingest of 1M keyed rows of Parquet", "ingest, 1M keyed rows of Parquet", at_most(LANCEDB, 1.2))
    yield from of(
        f"compaction, 200 {_TIMES} 2,000 rows, beside one merge_insert",
        "compact 200 small generations, by key",
        at_least(PEER, 0.8),
    )
    yield from of(
        f"compaction, 200 {_TIMES} 10,000 rows, beside one merge_insert",
        "compact 200 generations, by key",
        at_least(PEER, 1.2),
    )
    for kind in ("string", "binary", "composite"):
        yield from of(f"{kind} keys, beside int64", f"keys, {kind}: *", at_most(PEER, 3))


GOALS = tuple(_goals())


# ------------------------------------------------------------------------------------------------------------ verdicts


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run says of a goal: the value at the median, of the best rounds, the spread; `ours` and `other` are the figures."""

    goal: Goal
    bound: Bound
    median: float | None = None
    best: float = 0.0
    least: float = 0.0
    greatest: float = 0.0
    ours: str = ""
    other: str = ""
    detail: str = ""

    @property
    def met(self) -> bool | None:
        """None: not measured."""
        return None if self.median is None else self.bound.is_met(self.median)


def judged(run: Run) -> list[Verdict]:
    """A verdict on every goal, and on how flat the curves of the run are."""
    results = {result["name"]: result for result in run["results"]}
    return [_verdict(goal, results) for goal in GOALS] + list(_flat(run.get("curves", ())))


def _verdict(goal: Goal, results: Mapping[str, Any]) -> Verdict:
    if not goal.case.endswith("*"):
        found = results.get(goal.case)
        return Verdict(goal, goal.bounds[0]) if found is None else _of_bounds(goal, found)
    several = [result for name, result in results.items() if name.startswith(goal.case[:-1])]
    verdicts = [_of_bounds(goal, result, detail=result["name"]) for result in several]
    return max(verdicts, key=lambda verdict: verdict.median or 0, default=Verdict(goal, goal.bounds[0]))


def _of_bounds(goal: Goal, result: Mapping[str, Any], detail: str = "") -> Verdict:
    verdicts = [_of_bound(goal, bound, result, detail) for bound in goal.bounds]
    return next((verdict for verdict in verdicts if verdict.met), verdicts[0])


def _of_bound(goal: Goal, bound: Bound, result: Mapping[str, Any], detail: str) -> Verdict:
    unit, ours = result["unit"], result["ours"]
    shown = f"{figure(ours['median'])} {unit}"
    if bound.side is None:
        values = [_as_cost(value, unit, bound.unit) for value in ours["rounds"]]
        return _of_values(goal, bound, values, min(values), ours=shown, detail=detail)
    other = sides_of(result).get(bound.side)
    if other is None:
        return Verdict(goal, bound)
    turn = is_cost(unit) == bound.faster  # the ratio is ours / other: of costs, or of rates
    values = [1 / ratio if turn else ratio for ratio in ratios_of(ours, other)]
    best = best_of(ours, unit) / best_of(other, unit)
    theirs = f"{figure(other['median'])} {unit}"
    return _of_values(goal, bound, values, 1 / best if turn else best, ours=shown, other=theirs, detail=detail)


def _of_values(goal: Goal, bound: Bound, values: Sequence[float], best: float, **texts: str) -> Verdict:
    return Verdict(goal, bound, statistics.median(values), best, min(values), max(values), **texts)


def _as_cost(value: float, unit: str, wanted: str) -> float:
    """A figure as a cost in another unit: 1,000 puts/s are 1,000 us."""
    if unit == wanted:
        return value
    return _PER_SECOND[wanted] * (value / _PER_SECOND[unit] if unit in _PER_SECOND else 1 / value)


def _flat(curves: Sequence[Mapping[str, Any]]) -> Iterator[Verdict]:
    for growth in curves:
        for line in growth["lines"]:
            most = _JUDGED_UP_TO.get(growth["axis"], math.inf)
            points = [point for point in line["points"] if point[0] <= most]
            first, last = points[0], points[-1]
            bound = Bound("the cheapest size", FLAT)
            goal = Goal(f"{line['what']}, {first[0]:,} to {last[0]:,} {growth['axis']}", growth["name"], (bound,))
            times = factor_of({"points": points})
            cheapest = min(point[1] for point in points)
            ours, other = (f"{figure(value)} {line['unit']}" for value in (last[1], cheapest))
            spread = last[2] / cheapest, last[3] / cheapest
            yield Verdict(goal, bound, times, spread[0], *spread, ours=ours, other=other)


# ------------------------------------------------------------------------------------------------------------- the table

_HEADER = ("work", "ours", "beside", "goal", "median", "best turns", "spread", "verdict")


def _cells(verdict: Verdict) -> tuple[str, ...]:
    met = {True: "met", False: "MISSED", None: "not measured"}[verdict.met]
    goal = " or ".join(str(bound) for bound in verdict.goal.bounds)
    if verdict.median is None:
        return verdict.goal.work, "", "", goal, "", "", "", met
    sign = f" {_TIMES}" if verdict.bound.side else f" {verdict.bound.unit}"
    median, best, least, greatest = (
        figure(value) for value in (verdict.median, verdict.best, verdict.least, verdict.greatest)
    )
    work = f"{verdict.goal.work} (worst: {verdict.detail.rpartition(': ')[2]})" if verdict.detail else verdict.goal.work
    return work, verdict.ours, verdict.other, goal, f"{median}{sign}", f"{best}{sign}", f"{least} to {greatest}", met


def text_of(verdicts: Sequence[Verdict]) -> str:
    """The table for a terminal, of what was measured, and how many goals are met."""
    measured = [verdict for verdict in verdicts if verdict.met is not None]
    rows = [_HEADER, *map(_cells, measured)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:], count_of(verdicts)])


def count_of(verdicts: Sequence[Verdict]) -> str:
    """How many goals are met."""
    counts = [sum(verdict.met is wanted for verdict in verdicts) for wanted in (True, False, None)]
    return f"{counts[0]} goals met, {counts[1]} missed, {counts[2]} not measured."


def markdown_of(verdicts: Sequence[Verdict]) -> str:
    """The table for a page."""
    rows = [_HEADER, ("---", "---:", "---:", "---", "---:", "---:", "---:", "---"), *map(_cells, verdicts)]
    shown = [row if row[-1] != "MISSED" else (*row[:-1], "**missed**") for row in rows]
    return "\n".join([*(f"| {' | '.join(row)} |" for row in shown), "", count_of(verdicts)])
