"""All that is measured, by group, each group in a process of its own.

Owns how work is found and run. A group is a module `bench_*`; its `cases()` give `Case`s, `Growth`s and `Requests`.
Invariants:

1. A group begins with a new process: what others left in memory, threads and caches is gone, and so are their tables.
2. What cannot be measured is told, and the run goes on; also when the process of a group dies.
3. What has not begun when the time of the run is over is left out, and told. So groups that no goal needs come last.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import benchmarks
from benchmarks.growth import Growth
from benchmarks.harness import Case, measure
from benchmarks.kept import as_record
from benchmarks.store_costs import Requests

_LAST = frozenset({"feed", "flush", "spark", "spark_reads"})

Work = Case | Growth | Requests
Told = tuple[str, dict[str, Any]]


def group_names() -> list[str]:
    """The groups, in the order of their names, but `_LAST`."""
    names = [info.name for info in pkgutil.iter_modules(benchmarks.__path__) if info.name.startswith("bench_")]
    return sorted((name.removeprefix("bench_") for name in names), key=lambda name: (name in _LAST, name))


def work_of(group: str, only: str = "", *, quick: bool = False) -> Iterator[Work]:
    """What a group measures, of which the name contains `only`; a short run leaves out what only a full one has time for."""
    for work in importlib.import_module(f"benchmarks.bench_{group}").cases():
        if only.lower() in work.name.lower() and not (quick and work.full_only):
            yield work


def measured(group: str, only: str, *, quick: bool, base: Path, until: float) -> Iterator[Told]:
    """The records of a group, each with the name of its list, as they come; nothing begins after the time `until`."""
    told, out = os.pipe()
    paths = os.pathsep.join([str(Path(__file__).resolve().parents[1]), *filter(None, sys.path)])
    quiet = {"LANCE_LOG": "error,lance::index=off"}  # Lance would tell of every table with a MemWAL
    arguments = [group, only, "quick" if quick else "full", str(base), str(until), str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.groups", *arguments],
        env={**quiet, **os.environ, "PYTHONPATH": paths},
        stdout=2,
        pass_fds=(out,),
    )
    os.close(out)
    with open(told, encoding="utf-8") as records:
        for line in records:
            kind, record = json.loads(line)
            yield kind, record
    if process.wait() != 0:
        yield "failed", {"name": group, "group": group, "error": f"its process ended with {process.returncode}"}


def _measure(group: str, only: str, length: str, base: str, until: str, out: str) -> None:
    """What the process of a group does."""
    with open(int(out), "w", encoding="utf-8") as records:
        for work in work_of(group, only, quick=length == "quick"):
            began = time.time()
            late = began > float(until)
            kind, record = ("left_out", {"name": work.name}) if late else _record(work, length == "quick", Path(base))
            print(json.dumps((kind, record | {"group": group})), file=records, flush=True)
            told = {"failed": "could not measure", "left_out": "no time for"}.get(kind, "measured")
            print(f"{told} {work.name} ({time.time() - began:.0f} s)", file=sys.stderr, flush=True)


def _record(work: Work, quick: bool, base: Path) -> Told:
    measure_it: Callable[[], Told]
    if isinstance(work, Case):
        measure_it = lambda: ("results", as_record(measure(work, quick=quick, base=base)))  # noqa: E731
    elif isinstance(work, Growth):
        measure_it = lambda: ("curves", work.measured(quick=quick, base=base))  # noqa: E731
    else:
        measure_it = lambda: ("requests", work.measured())  # noqa: E731
    try:
        return measure_it()
    except Exception as error:  # the others are worth having
        traceback.print_exc()
        return "failed", {"name": work.name, "error": f"{type(error).__name__}: {error}"[:200]}


if __name__ == "__main__":
    _measure(*sys.argv[1:])
