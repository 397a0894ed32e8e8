"""All that is measured, by group, each group in a process of its own.

Owns how work is found and run. A group is a module `bench_*`; its `cases()` give `Case`s, `Growth`s and `Requests`.
Invariants:

1. A group begins with a new process: what others left in memory, threads and caches is gone, and so are their tables.
2. What cannot be measured is told, and the run goes on; also when the process of a group dies.
3. What has not begun when the time of the run is over is left out, and told. So groups that no goal needs come last.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pkgutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import benchmarks
from benchmarks.growth import Growth
from benchmarks.harness import Case, measure
from benchmarks.kept import as_record
from benchmarks.store_costs import Requests

__all__ = ["group_names", "measured", "work_of"]

_LAST = frozenset({"feed", "flush", "spark", "spark_reads", "wal"})

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
    os.environ.setdefault("LANCE_LOG", "error,lance::index=off")  # Lance would tell of every table with a MemWAL
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(there, group, only, quick, base, until))
    process.start()
    there.close()
    ended = False
    while True:
        try:
            told = here.recv()
        except EOFError:
            break
        if told is None:
            ended = True
        else:
            yield told
    process.join()
    if not ended:
        yield "failed", {"name": group, "group": group, "error": f"its process ended with {process.exitcode}"}


def _measure(pipe: Connection, group: str, only: str, quick: bool, base: Path, until: float) -> None:
    for work in work_of(group, only, quick=quick):
        began = time.time()
        late = began > until
        kind, record = ("left_out", {"name": work.name}) if late else _record(work, quick, base)
        pipe.send((kind, record | {"group": group}))
        told = {"failed": "could not measure", "left_out": "no time for"}.get(kind, "measured")
        print(f"{told} {work.name} ({time.time() - began:.0f} s)", file=sys.stderr, flush=True)
    pipe.send(None)
    pipe.close()


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
