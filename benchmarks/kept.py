"""Runs as values: what was measured, as dictionaries that JSON can hold, printed and kept, one file per version.

Owns the form of a run. `results` are the cases, `curves` what grows, `requests` what object stores are asked for, `failed` what
could not be measured, `left_out` what there was no time for. Everything that is shown, at the end of a run and in the
documentation, is made of this and nothing else.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.harness import Result, Side, base_directory, is_cost, percentile

RESULTS = Path(__file__).resolve().parent / "results"
LISTS = ("results", "curves", "requests", "failed", "left_out")
_PERCENTS = (50, 99)

Run = dict[str, Any]


def version() -> str:
    """The version whose file a run is kept in."""
    return metadata.version("lance-memwal")


def environment(base: Path) -> dict[str, Any]:
    """What a reader needs to judge the figures; nothing that names the machine."""
    versions = {name: _version(name) for name in ("lance-memwal", "pyarrow", "pylance", "lancedb", "obstore")}
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "tmpfs": base == Path("/dev/shm"),
        "load": round(os.getloadavg()[0], 1),
        "versions": versions,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def new_run(*, quick: bool, base: Path | None = None) -> Run:
    """A run that has measured nothing yet."""
    return {
        "environment": environment(base or base_directory()),
        "quick": quick,
        "seconds": 0.0,
        **{name: [] for name in LISTS},
    }


def as_record(result: Result) -> dict[str, Any]:
    """A measured case, with every round."""
    return {
        "name": result.case.name,
        "unit": result.case.unit,
        "goal": result.case.goal,
        "ratio": result.ratio,
        "ok": result.ok,
        "seconds": round(result.seconds, 1),
        "ours": _side(result.ours),
        "peer": _side(result.peer) if result.peer else None,
        "others": {name: _side(side) for name, side in result.others.items()},
    }


def _side(side: Side) -> dict[str, Any]:
    latency = {f"p{p}_us": round(percentile(side.latencies, p) * 1e6, 1) for p in _PERCENTS if side.latencies}
    return {"median": side.median, "rounds": list(side.values), **latency}


# ------------------------------------------------------------------------------------------------------------ reading


def sides_of(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The sides beside ours, by name."""
    peer = {} if result["peer"] is None else {"peer": result["peer"]}
    return {**peer, **result.get("others", {})}


def ratios_of(ours: Mapping[str, Any], other: Mapping[str, Any]) -> list[float]:
    """Ours / other, round by round."""
    return [mine / theirs for mine, theirs in zip(ours["rounds"], other["rounds"], strict=False) if theirs]


def best_of(side: Mapping[str, Any], unit: str) -> float:
    """The best round of a side."""
    return float((min if is_cost(unit) else max)(side["rounds"]))


def kept_runs(folder: Path = RESULTS) -> list[tuple[str, Run]]:
    """The kept runs by name, the newest version last."""
    files = sorted(folder.glob("*.json"), key=lambda file: [int(n) for n in re.findall(r"\d+", file.stem)])
    return [(file.stem, json.loads(file.read_text(encoding="utf-8"))) for file in files]


# ------------------------------------------------------------------------------------------------------------ keeping


def keep(run: Run, file: Path, *, whole: bool) -> None:
    """Write the run. One that is not whole takes the place of its cases in the file, and leaves the others there."""
    if not whole and file.exists():
        run = _merged(json.loads(file.read_text(encoding="utf-8")), run)
    file.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")


def _merged(kept: Run, run: Run) -> Run:
    if kept["quick"] != run["quick"]:
        length = {True: "a short", False: "a full"}
        raise SystemExit(
            f"the file holds {length[kept['quick']]} run, this is {length[run['quick']]} one: name another file"
        )
    measured = {record["name"] for name in LISTS for record in run[name]}
    lists = {
        name: [record for record in kept.get(name, []) if record["name"] not in measured] + run[name] for name in LISTS
    }
    return kept | lists | {"environment": run["environment"]}


# ----------------------------------------------------------------------------------------------------------- printing

_HEADER = ("name", "ours", "peer", "unit", "ratio", "goal", "ok")


def figure(value: float) -> str:
    """A measured value as people read it."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """The cases as an aligned table, further sides and latency percentiles in lines of their own."""
    rows = [_HEADER, *map(_row, results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    lines = [_line(_HEADER, widths), "-+-".join("-" * width for width in widths)]
    for row, result in zip(rows[1:], results, strict=True):
        lines.append(_line(row, widths))
        lines += [f"    {text}" for text in (*_other_texts(result), *_latency_texts(result))]
    return "\n".join(lines)


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    goal, ratio, unit = result["goal"], result["ratio"], result["unit"]
    bound = "-" if goal is None else f"{'<=' if is_cost(unit) else '>='} {goal:.2f}x"
    verdict = {True: "yes", False: "NO", None: "-"}[result["ok"]]
    peer = figure(result["peer"]["median"]) if result["peer"] else "-"
    shown = "-" if ratio is None else f"{ratio:.2f}x"
    return result["name"], figure(result["ours"]["median"]), peer, unit, shown, bound, verdict


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = [
        text.rjust(width) if 1 <= column <= 2 or column == 4 else text.ljust(width)
        for column, (text, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return " | ".join(aligned).rstrip()


def _other_texts(result: Mapping[str, Any]) -> Iterator[str]:
    for name, side in result.get("others", {}).items():
        ratios = ratios_of(result["ours"], side)
        spread = f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-"
        yield f"{name}: {figure(side['median'])} {result['unit']}, ours is {spread}"


def _latency_texts(result: Mapping[str, Any]) -> Iterator[str]:
    for name, side in (("ours", result["ours"]), ("peer", result["peer"])):
        if side and "p50_us" in side:
            yield f"{name}: p50 {side['p50_us']:,.0f} us, p99 {side['p99_us']:,.0f} us"
