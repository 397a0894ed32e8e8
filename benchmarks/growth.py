"""What a piece of work costs as the table grows: curves, and whether they are flat.

Owns `Growth`, its record and its text. A growth has one axis (rows, generations, shards). At each size its function
measures several things, each a few times; a point of a curve is the median of these, with what a tenth of them is below
and above. Sizes come in rising order, so that one table can grow from size to size.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Bench, percentile, workspace


@dataclass(frozen=True, slots=True)
class Measured:
    """One thing at one size, measured several times."""

    what: str
    unit: str
    values: Sequence[float]


Grow = Callable[[Bench, Sequence[int]], Iterator[tuple[int, Sequence[Measured]]]]


@dataclass(frozen=True, slots=True)
class Growth:
    """Curves along one axis; `grow` yields what was measured at each size."""

    name: str
    axis: str
    sizes: tuple[int, ...]
    quick_sizes: tuple[int, ...]
    grow: Grow
    full_only: bool = False

    def measured(self, *, quick: bool, base: Path) -> dict[str, Any]:
        """The record of all curves."""
        began, lines = time.perf_counter(), dict[tuple[str, str], list[list[float]]]()
        with workspace(base, quick) as bench:
            for size, found in self.grow(bench, self.quick_sizes if quick else self.sizes):
                for one in found:
                    spread = [percentile(one.values, percent) for percent in (10, 90)]
                    point = [size, statistics.median(one.values), *spread]
                    lines.setdefault((one.what, one.unit), []).append(point)
        curves = [{"what": what, "unit": unit, "points": points} for (what, unit), points in lines.items()]
        return {"name": self.name, "axis": self.axis, "seconds": round(time.perf_counter() - began, 1), "lines": curves}


def repeated(what: str, call: Callable[[], object], times: int, *, unit: str = "us", per: float = 1) -> Measured:
    """What a call costs, after one that does not count; `per` is how many rows or shards share the cost."""
    call()
    return Measured(what, unit, [once(call, unit=unit, per=per) for _ in range(times)])


def once(call: Callable[[], object], *, unit: str = "us", per: float = 1) -> float:
    """What one call costs."""
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * {"ns": 1e9, "us": 1e6, "ms": 1e3}[unit] / per


def factor_of(line: Mapping[str, Any]) -> float:
    """How many times the least point of a curve its last one costs: 1 is flat."""
    medians = [point[1] for point in line["points"]]
    return float(medians[-1] / min(medians))


def text_of_curves(curves: Sequence[Mapping[str, Any]]) -> str:
    """The curves, a line each."""
    lines = []
    for growth in curves:
        lines.append(f"{growth['name']} ({growth['seconds']:.0f} s)")
        for line in growth["lines"]:
            points = ", ".join(f"{point[0]:,}: {point[1]:.3g}" for point in line["points"])
            lines.append(f"    {line['what']} [{line['unit']}]: {points}; x{factor_of(line):.2g}")
    return "\n".join(lines)
