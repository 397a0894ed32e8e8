"""What is measured once a second, what of it must not grow, and how it looks over time.

Owns `Moment`, `measure`, `grown`, `percentile` and `drawing`. Flat means: the median of the last quarter is at most that of the
second one times a factor and some, which `TOLERANCES` states for each figure, and at most its ceiling, if it has one. Only a run
of `JUDGED_SECONDS` or more is judged: in a few seconds a quarter has a sample or two, and a busy machine decides.
"""

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import lance_memwal as mw
from benchmarks.svg import END, opening

TITLES = {
    "rss_mib": "memory of a process, MiB (the largest)",
    "threads": "threads of a process (most)",
    "descriptors": "open files of a process (most)",
    "objects": "objects below the table, less one per claim",
    "versions": "versions of the base table",
    "uncompacted": "SSTables that are not compacted",
    "waiting_for_indexes": "compacted SSTables that wait for an index",
    "get_ms": "one get, milliseconds of the processor (median)",
    "vector_ms": "one vector search, milliseconds of the processor (median)",
    "text_ms": "one text search, milliseconds of the processor (median)",
    "put_ms": "one put, milliseconds (median)",
}
TOLERANCES = {  # times, plus
    "rss_mib": (1.25, 48.0),
    "threads": (1.25, 8.0),
    "descriptors": (1.25, 24.0),
    "objects": (1.5, 60.0),
    "versions": (1.5, 40.0),
    "uncompacted": (1.5, 16.0),
    "waiting_for_indexes": (1.5, 16.0),
    "get_ms": (1.5, 2.0),
    "vector_ms": (1.5, 3.0),
    "text_ms": (1.5, 3.0),
    "put_ms": (1.5, 3.0),
}
CEILINGS = {"objects": 8_000.0, "waiting_for_indexes": 8.0}
JUDGED_SECONDS = 120.0
_TIMES = frozenset({"get_ms", "vector_ms", "text_ms", "put_ms"})
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Moment:
    """How table and processes were at one second; processes are those that nobody kills."""

    seconds: float
    rss_mib: float
    threads: float
    descriptors: float
    objects: float
    versions: float
    uncompacted: float
    waiting_for_indexes: float
    milliseconds: Mapping[str, Sequence[float]] = field(repr=False)

    def value(self, name: str) -> float | None:
        """One figure; None if nothing was timed in this second."""
        if name in _TIMES:
            timed = self.milliseconds.get(name.removesuffix("_ms"), ())
            return statistics.median(timed) if timed else None
        return float(getattr(self, name))


def measure(table: mw.Table, seconds: float, pids: Sequence[int], timed: Mapping[str, Sequence[float]]) -> Moment:
    """Look at the table, and at the processes `pids`."""
    place = Path(table.uri)
    marks, shards = table.details().compacted, table.shards()
    listed = [(shard.shard_id, number) for shard in shards for number in shard.generations]
    kept = sum(number <= marks.get(shard_id, 0) for shard_id, number in listed)
    sentinels = sum(shard.epoch for shard in shards)  # a claim leaves one, which nobody may delete
    return Moment(
        seconds=seconds,
        rss_mib=max(status_of(pid, "VmRSS") for pid in pids) / _KIB,
        threads=max(status_of(pid, "Threads") for pid in pids),
        descriptors=max(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        objects=sum(len(files) for _, _, files in os.walk(place)) - sentinels,
        versions=sum(1 for _ in (place / "_versions").glob("*.manifest")),
        uncompacted=len(listed) - kept,
        waiting_for_indexes=kept,
        milliseconds=timed,
    )


def status_of(pid: int | str, name: str) -> int:
    """One number of a process, as the kernel has it: `VmRSS` (KiB), `Threads`."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(f"{name}:"))


def quarters(moments: Sequence[Moment], name: str) -> tuple[float, float]:
    """The medians of one figure in the second and in the last quarter."""
    quarter = max(1, len(moments) // 4)
    return _median(moments[quarter : 2 * quarter], name), _median(moments[-quarter:], name)


def _median(moments: Sequence[Moment], name: str) -> float:
    known = [value for moment in moments if (value := moment.value(name)) is not None]
    return statistics.median(known) if known else 0.0


def grown(moments: Sequence[Moment], seconds: float) -> list[str]:
    """The figures of a run of `seconds` that grew beyond their tolerance or ceiling, in words; none of a short run."""
    if seconds < JUDGED_SECONDS:
        return []
    found = []
    for name, title in TITLES.items():
        (early, late), (times, plus) = quarters(moments, name), TOLERANCES[name]
        most = min(times * early + plus, CEILINGS.get(name, math.inf))
        if late > most:
            found.append(
                f"{title}: {early:.1f} in the second quarter, {late:.1f} in the last, at most {most:.1f} are allowed"
            )
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of them lie; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


# ------------------------------------------------------------------------------------------------------------ drawing

_WIDTH, _HEIGHT, _POINTS = 300, 90, 120


def drawing(moments: Sequence[Moment]) -> str:
    """A small picture of all figures over time, as SVG."""
    panels = [_panel(moments, name, title, at) for at, (name, title) in enumerate(TITLES.items())]
    size = 2 * (_WIDTH + 40), -(-len(panels) // 2) * (_HEIGHT + 50)
    text = "Over time: " + "; ".join(TITLES.values())
    return "\n".join([*opening("soak", size, "A table under load, kills and faults", text), *panels, f"{END}\n"])


def _panel(moments: Sequence[Moment], name: str, title: str, at: int) -> str:
    left, top = 30 + (at % 2) * (_WIDTH + 40), 30 + (at // 2) * (_HEIGHT + 50)
    step, end = max(1, len(moments) // _POINTS), moments[-1].seconds
    groups = [moments[start : start + step] for start in range(0, len(moments), step)]
    values = [(group[-1].seconds, _median(group, name)) for group in groups]
    most = max(1.0, *(value for _, value in values))
    points = " ".join(f"{left + _WIDTH * x / end:.0f},{top + _HEIGHT * (1 - y / most):.0f}" for x, y in values)
    return (
        f'<text class="mw-small" x="{left}" y="{top - 8}">{title} (top: {most:,.0f})</text>'
        f'<path class="mw-axis" d="M{left} {top}v{_HEIGHT}h{_WIDTH}"/>'
        f'<polyline class="mw-line" points="{points}"/>'
        f'<text class="mw-small" x="{left + _WIDTH}" y="{top + _HEIGHT + 14}" text-anchor="end">{end / 60:.1f} minutes</text>'
    )
