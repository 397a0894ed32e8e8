"""`python -m benchmarks.plots`: the pictures and the tables of `docs/benchmarks.md`, from the runs that are kept as JSON.

Owns the form of both. A run is what `python -m benchmarks --keep` wrote. Rules:

1. The page shows the newest run, and says whether it was a short one; other runs are history: a line per case that several have.
2. A bar is the median of the ratios of the rounds, its line reaches from the least to the greatest. Right of 1 is better for us,
   whatever the unit. Bars are drawn for the cases that a goal compares with the peer, and for all where a run has none of these.
3. Whatever cases a run has are in the tables. A `note` of the run is shown. On the site, colours are those of the page
   (`docs/site.css`).
4. No figure of the page is typed by hand.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.cost_model import KINDS, page_with
from benchmarks.goals import GOALS, PEER, judged, markdown_of
from benchmarks.growth_plot import growth_drawing
from benchmarks.harness import LIMIT, is_cost
from benchmarks.kept import RESULTS, best_of, figure, kept_runs, ratios_of
from benchmarks.svg import END, opening

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
PICTURES = ROOT / "docs" / "pictures"


@dataclass(frozen=True, slots=True)
class Bar:
    """One case: how many times better ours is than the peer, and the spread over the rounds."""

    name: str
    better: float
    least: float
    greatest: float


def bars_of(run: dict[str, Any]) -> list[Bar]:
    """A bar for each case that has a peer."""
    found = []
    for result in run["results"]:
        if result["peer"] is None or not result["ratio"]:
            continue
        costs = is_cost(result["unit"])
        ratios = [1 / ratio if costs else ratio for ratio in ratios_of(result["ours"], result["peer"]) if ratio]
        better = 1 / result["ratio"] if costs else result["ratio"]
        found.append(Bar(result["name"], better, min(ratios, default=better), max(ratios, default=better)))
    return found


def _shown(bars: Sequence[Bar]) -> Sequence[Bar]:
    """Those that a goal names."""
    named = {goal.case for goal in GOALS if any(bound.side == PEER for bound in goal.bounds)}
    return [bar for bar in bars if bar.name in named] or bars


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


_COLUMNS = ("case", "unit", "ours", "best", "peer", "times better", "limit", "cost of the limit", "others")


def table(run: dict[str, Any]) -> str:
    """Every case of a run with its figures, by group."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in run["results"]:
        groups.setdefault(result.get("group", ""), []).append(result)
    spread = {bar.name: bar for bar in bars_of(run)}
    return "\n\n".join("\n".join(_group(name, results, spread)) for name, results in groups.items())


def _group(name: str, results: Sequence[dict[str, Any]], spread: dict[str, Bar]) -> Iterator[str]:
    if name:
        yield f"### {name.replace('_', ' ').capitalize()}\n"
    yield f"| {' | '.join(_COLUMNS)} |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---|"
    for result in results:
        yield f"| {' | '.join(_cells(result, spread.get(result['name'])))} |"


def _cells(result: dict[str, Any], bar: Bar | None) -> list[str]:
    ours, unit, peer = result["ours"], result["unit"], result["peer"]
    others = dict(result.get("others", {}))
    limit = others.pop(LIMIT, None)
    better = "" if bar is None else f"{bar.better:.2g} ({bar.least:.2g} to {bar.greatest:.2g})"
    rest = ", ".join(f"{name} {figure(side['median'])}" for name, side in others.items())
    cells = [result["name"], unit, figure(ours["median"]), figure(best_of(ours, unit))]
    cells += ["" if peer is None else figure(peer["median"]), better]
    return [*cells, "" if limit is None else figure(limit["median"]), _cost_of(ours, limit, unit), rest]


def _cost_of(ours: dict[str, Any], limit: dict[str, Any] | None, unit: str) -> str:
    """How many times the limit ours costs."""
    if limit is None:
        return ""
    ratios = sorted(ratio if is_cost(unit) else 1 / ratio for ratio in ratios_of(ours, limit) if ratio)
    return f"{ratios[len(ratios) // 2]:.2g} ({ratios[0]:.2g} to {ratios[-1]:.2g})" if ratios else ""


def requests_table(records: Sequence[dict[str, Any]]) -> str:
    """Seconds of every operation by the wait of the store, its requests and its price."""
    if not records:
        return "Not measured in this run."
    waits = [f"{record['latency_ms']} ms" for record in records]
    lines = [
        f"| operation | PUT | LIST | GET, HEAD | 1,000 of them | {' | '.join(f'seconds at {wait}' for wait in waits)} |",
        f"|---|---:|---:|---:|---:|{'---:|' * len(waits)}",
    ]
    by_name = [{one["name"]: one for one in record["operations"]} for record in records]
    for name, one in by_name[0].items():
        counts = [f"{one[kind]:,}" for kind in KINDS]
        seconds = [f"{operations[name]['seconds']:.3f}" for operations in by_name]
        lines.append(f"| {name} | {' | '.join(counts)} | ${one['dollars_per_1000']:.2g} | {' | '.join(seconds)} |")
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


def _missing(run: dict[str, Any]) -> str:
    """What a reader would look for and not find."""
    parts = [f"Could not be measured: {one['name']} ({one['error']})." for one in run.get("failed", ())]
    left = [one["name"] for one in run.get("left_out", ())]
    parts += [f"There was no time for: {', '.join(left)}."] if left else []
    return "".join(f"\n\n{part}" for part in parts)


def rendered(runs: Sequence[tuple[str, dict[str, Any]]], page: str) -> tuple[str, dict[str, str]]:
    """The page with its tables, and the pictures by file name."""
    name, run = runs[-1]
    pictures = {"benchmarks.svg": drawing(_shown(bars_of(run)))}
    past = history(runs)
    if past is not None:
        pictures["benchmark-history.svg"] = past
    line = "![How many times better, by version](pictures/benchmark-history.svg)" if past else "One run is kept so far."
    grown = []
    for growth in run.get("curves", ()):
        file = f"growth-{growth['axis']}.svg"
        pictures[file] = growth_drawing(growth)
        grown.append(f"![What it costs as the {growth['axis']} grow in number](pictures/{file})")
    tables = {
        "facts": _facts(name, run) + _missing(run),
        "goals": markdown_of(judged(run)),
        "figures": table(run),
        "growth": "\n\n".join(grown) or "Not measured in this run.",
        "requests": requests_table(run.get("requests", ())),
        "history": line,
    }
    return page_with(page, tables), pictures


def main(arguments: list[str] | None = None) -> int:
    """Write the page and its pictures."""
    argparse.ArgumentParser(prog="python -m benchmarks.plots", description=(__doc__ or "").splitlines()[0]).parse_args(
        arguments
    )
    runs = kept_runs()
    if not runs:
        print(f"no run is kept in {RESULTS.relative_to(ROOT)}: python -m benchmarks --keep")
        return 1
    text, pictures = rendered(runs, PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
    for name, svg in pictures.items():
        (PICTURES / name).write_text(svg, encoding="utf-8")
    print(f"{PAGE.name}, {', '.join(pictures)}: {len(runs)} run{'' if len(runs) == 1 else 's'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
