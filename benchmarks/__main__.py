"""`python -m benchmarks`: run every `bench_*` module and print one table.

Exit status 0, also when a goal is missed, unless `--check` is given: a busy machine is no failed build.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

import benchmarks
from benchmarks.harness import Case, Result, base_directory, run, table, to_json


def all_cases() -> Iterator[Case]:
    """The cases of every `bench_*` module, in the order of the modules' names."""
    for module in sorted(info.name for info in pkgutil.iter_modules(benchmarks.__path__)):
        if module.startswith("bench_"):
            yield from importlib.import_module(f"benchmarks.{module}").cases()


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name contains TEXT")
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds, smaller sizes: a look, not a figure to quote"
    )
    parser.add_argument("--json", metavar="FILE", help="write every round to FILE as well")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="work below DIR instead of tmpfs")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    options = parser.parse_args(arguments)
    if options.list:
        for case in all_cases():
            print(case.name)
        return 0
    base = options.dir or base_directory()
    results: list[Result] = []
    for result in run(all_cases(), only=options.only, quick=options.quick, base=base):
        print(f"measured {result.case.name}", file=sys.stderr, flush=True)
        results.append(result)
    if not results:
        print(f"no case has {options.only!r} in its name; --list shows them", file=sys.stderr)
        return 2
    print(table(results))
    if options.json:
        Path(options.json).write_text(to_json(results, base=base, quick=options.quick) + "\n", encoding="utf-8")
    missed = [result.case.name for result in results if result.ok is False]
    if missed:
        print(f"goals missed: {', '.join(missed)}")
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
