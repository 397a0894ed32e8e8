"""The picture of a growth: one panel per line, all on one logarithmic axis of sizes.

Owns that drawing. Each panel has a scale of its own that begins at nothing and reaches at least twice the cheapest point,
so that a flat line looks flat, and one that doubles looks steep. A thin line at each point is the spread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

from benchmarks.growth import factor_of
from benchmarks.kept import figure
from benchmarks.svg import END, opening

_LEFT, _RIGHT, _TOP, _ROW, _WIDTH = 320, 110, 34, 84, 900
_NAMES = _LEFT - 40  # where they end
_HEIGHT = 50  # of a panel, without the room for its figures


def growth_drawing(growth: Mapping[str, Any]) -> str:
    """All lines of a growth, as SVG."""
    lines, axis = growth["lines"], growth["axis"]
    sizes = [point[0] for point in lines[0]["points"]]
    total = _TOP + _ROW * len(lines) + 10
    told = "; ".join(f"{line['what']}: {factor_of(line):.2g} times the cheapest size" for line in lines)
    out = opening(f"growth-{axis}", (_WIDTH, total), f"What it costs as the {axis} grow in number", told)
    for size in sizes:
        x = _x(size, sizes)
        out.append(f'<path class="mw-grid" d="M{x} {_TOP - 8}V{total - 8}"/>')
        out.append(f'<text class="mw-small" x="{x}" y="{_TOP - 14}" text-anchor="middle">{size:,}</text>')
    out.append(f'<text class="mw-small" x="{_NAMES}" y="{_TOP - 14}" text-anchor="end">{escape(axis)}</text>')
    for number, line in enumerate(lines):
        out += _panel(line, sizes, _TOP + _ROW * number)
    return "\n".join([*out, END]) + "\n"


def _x(size: float, sizes: list[int]) -> float:
    reach = math.log(sizes[-1] / sizes[0]) or 1.0
    return round(_LEFT + math.log(size / sizes[0]) / reach * (_WIDTH - _LEFT - _RIGHT), 1)


def _panel(line: Mapping[str, Any], sizes: list[int], top: int) -> list[str]:
    """A line with its points; points are size, median, and the ends of the spread."""
    points = line["points"]
    most = float(max(2 * min(point[1] for point in points), *(point[1] for point in points)))
    bottom = top + 20 + _HEIGHT

    def y(value: float) -> float:
        return float(round(bottom - _HEIGHT * min(value / most, 1.1), 1))

    out = [
        f'<text class="mw-text" x="{_NAMES}" y="{top + 42}" text-anchor="end">{escape(line["what"])}</text>',
        f'<text class="mw-small" x="{_NAMES}" y="{top + 59}" text-anchor="end">{escape(line["unit"])}</text>',
        f'<path class="mw-axis" d="M{_LEFT} {bottom}H{_WIDTH - _RIGHT}"/>',
        f'<polyline class="mw-line" points="{" ".join(f"{_x(p[0], sizes)},{y(p[1])}" for p in points)}"/>',
        f'<text class="mw-small" x="{_WIDTH - 70}" y="{top + 42}">{factor_of(line):.2g} &#215;</text>',
    ]
    for size, median, least, greatest in points:
        x = _x(size, sizes)
        out.append(f'<path class="mw-spread" d="M{x} {y(least)}V{y(greatest)}"/>')
        out.append(f'<circle class="mw-ours" cx="{x}" cy="{y(median)}" r="3"/>')
        above = min(y(median), y(greatest)) - 6
        out.append(f'<text class="mw-small" x="{x}" y="{above}" text-anchor="middle">{figure(median)}</text>')
    return out
