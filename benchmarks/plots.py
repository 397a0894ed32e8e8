"""`python -m benchmarks.plots`: the pictures and the table of `docs/benchmarks.md`, from the runs that are kept as JSON.

Owns the form of both. A run is what `python -m benchmarks --json benchmarks/results/VERSION.json` wrote. Rules:

1. The page shows the newest run, and says whether it was a short one; other runs are history: a line per case that several have.
2. A bar is the median of the ratios of the rounds, its line reaches from the least to the greatest. Right of 1 is better for us,
   whatever the unit.
3. Whatever cases a run has are drawn; nothing here knows their names. A `note` of the run is shown. On the site, colours are
   those of the page (`docs/site.css`).
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.cost_model import page_with
from benchmarks.harness import is_cost
from benchmarks.svg import END, opening

__all__ = ["Bar", "bars_of", "drawing", "history", "kept_runs", "main", "rendered", "table"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "pictures"


@dataclass(frozen=True, slots=True)
class Bar:
    """One case: how many times better ours is than the peer, and the spread over the rounds."""

    name: str
    better: float
    least: float
    greatest: float


def kept_runs(folder: Path = RESULTS) -> list[tuple[str, dict[str, Any]]]:
    """The kept runs by name, the newest version last."""
    files = sorted(folder.glob("*.json"), key=lambda file: [int(n) for n in re.findall(r"\d+", file.stem)])
    return [(file.stem, json.loads(file.read_text(encoding="utf-8"))) for file in files]


def bars_of(run: dict[str, Any]) -> list[Bar]:
    """A bar for each case that has a peer."""
    found = []
    for result in run["results"]:
        if result["peer"] is None or not result["ratio"]:
            continue
        costs = is_cost(result["unit"])
        pairs = zip(result["ours"]["rounds"], result["peer"]["rounds"], strict=False)
        ratios = [peer / ours if costs else ours / peer for ours, peer in pairs if ours and peer]
        better = 1 / result["ratio"] if costs else result["ratio"]
        found.append(Bar(result["name"], better, min(ratios, default=better), max(ratios, default=better)))
    return found


def _ticks(least: float, greatest: float) -> list[float]:
    """1, 2, 5, 10, 20 and so on, and their inverses, as far as they are needed."""
    numbers = [m * 10.0**e for e in range(-3, 5) for m in (1, 2, 5)]
    return [n for n in numbers if least / 1.01 <= n <= greatest * 1.01]


def drawing(bars: Sequence[Bar]) -> str:
    """The bars on a logarithmic axis, each with its figure, as SVG."""
    left, right, row, top = 330, 70, 24, 40
    width, height = 860, top + row * len(bars) + 16
    least = min([0.5, *(bar.least for bar in bars)])
    greatest = max([2.0, *(bar.greatest for bar in bars)])

    def x(value: float) -> float:
        part = math.log(value / least) / math.log(greatest / least)
        return round(left + part * (width - left - right), 1)

    text = "; ".join(f"{bar.name}: {bar.better:.2g} times" for bar in bars)
    out = opening("benchmarks", (width, height), "How many times better than the peer, by case", text)
    for tick in _ticks(least, greatest):
        kind = "mw-one" if tick == 1 else "mw-grid"
        out.append(f'<path class="{kind}" d="M{x(tick)} {top - 10}V{height - 8}"/>')
        out.append(f'<text class="mw-small" x="{x(tick)}" y="{top - 16}" text-anchor="middle">{tick:g} &#215;</text>')
    for number, bar in enumerate(bars):
        y = top + row * number
        begin, end = sorted((x(1), x(bar.better)))
        kind = "mw-ours" if bar.better >= 1 else "mw-theirs"
        out.append(f'<text class="mw-text" x="{left - 12}" y="{y + 13}" text-anchor="end">{escape(bar.name)}</text>')
        out.append(
            f'<rect class="{kind}" x="{begin}" y="{y + 2}" width="{max(end - begin, 1):.1f}" height="14" rx="2"/>'
        )
        out.append(f'<path class="mw-spread" d="M{x(bar.least)} {y + 9}H{x(bar.greatest)}"/>')
        label = x(max(bar.better, bar.greatest, 1)) + 6
        out.append(f'<text class="mw-small" x="{label}" y="{y + 13}">{bar.better:.2g} &#215;</text>')
    return "\n".join([*out, END]) + "\n"


def history(runs: Sequence[tuple[str, dict[str, Any]]]) -> str | None:
    """A small line per case over the versions; None until there are two runs."""
    if len(runs) < 2:
        return None
    lines: dict[str, dict[int, float]] = {}
    for number, (_, run) in enumerate(runs):
        for bar in bars_of(run):
            lines.setdefault(bar.name, {})[number] = bar.better
    shown = {name: points for name, points in lines.items() if len(points) > 1}
    left, row, top, width = 330, 34, 30, 860
    height = top + row * len(shown) + 8
    out = opening(
        "history", (width, height), "How many times better than the peer, by version", ", ".join(n for n, _ in runs)
    )
    step = (width - left - 90) / (len(runs) - 1)
    for number, (version, _) in enumerate(runs):
        out.append(
            f'<text class="mw-small" x="{left + number * step:.1f}" y="16" text-anchor="middle">{escape(version)}</text>'
        )
    for number, (name, points) in enumerate(shown.items()):
        y, most = top + row * number, max(points.values())
        path = " ".join(f"{left + at * step:.1f},{y + 24 - 20 * value / most:.1f}" for at, value in points.items())
        out.append(f'<text class="mw-text" x="{left - 20}" y="{y + 18}" text-anchor="end">{escape(name)}</text>')
        out.append(f'<polyline class="mw-line" points="{path}"/>')
        out.append(
            f'<text class="mw-small" x="{width - 76}" y="{y + 18}">{list(points.values())[-1]:.2g} &#215;</text>'
        )
    return "\n".join([*out, END]) + "\n"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def table(run: dict[str, Any]) -> str:
    """Every case of a run with its figures."""
    spread = {bar.name: bar for bar in bars_of(run)}
    lines = ["| case | unit | ours | peer | times better | rounds |", "|---|---|---:|---:|---:|---:|"]
    for result in run["results"]:
        peer, bar = result["peer"], spread.get(result["name"])
        theirs = "" if peer is None else _figure(peer["median"])
        better = "" if bar is None else f"{bar.better:.2g} ({bar.least:.2g} to {bar.greatest:.2g})"
        ours = result["ours"]
        lines.append(
            f"| {result['name']} | {result['unit']} | {_figure(ours['median'])} | {theirs} | {better} | {len(ours['rounds'])} |"
        )
    return "\n".join(lines)


def _facts(name: str, run: dict[str, Any]) -> str:
    where = run["environment"]
    versions = ", ".join(f"{library} {version}" for library, version in where["versions"].items() if version)
    place = "tmpfs" if where["tmpfs"] else "a disk"
    short = (
        " A short run (`--quick`): few rounds and small sizes, a look and not figures to quote." if run["quick"] else ""
    )
    note = f" {run['note']}" if "note" in run else ""
    return f"Run `{name}`: {where['cores']} cores, {where['system']}, {place}, Python {where['python']}, {versions}.{short}{note}"


def rendered(runs: Sequence[tuple[str, dict[str, Any]]], page: str) -> tuple[str, dict[str, str]]:
    """The page with its tables, and the pictures by file name."""
    name, run = runs[-1]
    pictures = {"benchmarks.svg": drawing(bars_of(run))}
    past = history(runs)
    if past is not None:
        pictures["benchmark-history.svg"] = past
    line = "![How many times better, by version](pictures/benchmark-history.svg)" if past else "One run is kept so far."
    return page_with(page, {"facts": _facts(name, run), "figures": table(run), "history": line}), pictures


def main(arguments: list[str] | None = None) -> int:
    """Write the page and its pictures."""
    argparse.ArgumentParser(prog="python -m benchmarks.plots", description=(__doc__ or "").splitlines()[0]).parse_args(
        arguments
    )
    runs = kept_runs()
    if not runs:
        print(
            f"no run is kept in {RESULTS.relative_to(ROOT)}: python -m benchmarks --json {RESULTS.relative_to(ROOT)}/VERSION.json"
        )
        return 1
    text, pictures = rendered(runs, PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
    for name, svg in pictures.items():
        (PICTURES / name).write_text(svg, encoding="utf-8")
    print(f"{PAGE.name}, {', '.join(pictures)}: {len(runs)} run{'' if len(runs) == 1 else 's'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
