"""`python -m benchmarks`: measure everything, print it, and say which goals are met.

Exit status 0, also when a goal is missed, unless `--check` is given: a busy machine is no failed build. What could
not be measured at all is exit status 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.goals import judged, text_of
from benchmarks.groups import group_names, measured, work_of
from benchmarks.growth import text_of_curves
from benchmarks.harness import base_directory
from benchmarks.kept import RESULTS, Run, keep, new_run, table, version
from benchmarks.store_costs import text_of_requests

_MINUTES = {False: 23.0, True: 5.5}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name contains TEXT")
    parser.add_argument(
        "--group", action="append", metavar="NAME", help="only these groups; may be given several times"
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds, smaller sizes: a look, not a figure to quote"
    )
    parser.add_argument("--json", metavar="FILE", help="write every round to FILE as well")
    parser.add_argument(
        "--keep", action="store_true", help="keep the run as the one of this version, for the documentation"
    )
    parser.add_argument("--note", metavar="TEXT", help="what readers of the kept run should know")
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="N",
        help=f"begin nothing after N minutes (default: {_MINUTES[False]:g}, quick: {_MINUTES[True]:g})",
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="work below DIR instead of tmpfs")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    return parser


def _run(groups: list[str], options: argparse.Namespace) -> Run:
    """Everything that was asked for; kept after every piece of it, so that a run that ends early is not lost."""
    base = options.dir or base_directory()
    run, began = new_run(quick=options.quick, base=base), time.perf_counter()
    if options.note:
        run["note"] = options.note
    until = time.time() + 60 * (_MINUTES[options.quick] if options.minutes is None else options.minutes)
    for group in groups:
        for kind, record in measured(group, options.only, quick=options.quick, base=base, until=until):
            run[kind].append(record)
            run["seconds"] = round(time.perf_counter() - began)
            if options.json:
                keep(run, Path(options.json), whole=True)
    return run


def _print(run: Run) -> None:
    parts = [
        table(run["results"]) if run["results"] else "",
        text_of_curves(run["curves"]),
        text_of_requests(run["requests"]),
        text_of(judged(run)),
    ]
    print("\n\n".join(part for part in parts if part))
    for failed in run["failed"]:
        print(f"could not measure {failed['name']}: {failed['error']}")
    if run["left_out"]:
        print(
            f"no time for {len(run['left_out'])} more (--minutes): {', '.join(one['name'] for one in run['left_out'])}"
        )
    print(f"{run['seconds']:.0f} s")


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for and print it."""
    options = _parser().parse_args(arguments)
    chosen = options.group or group_names()
    found = {group: [work.name for work in work_of(group, options.only, quick=options.quick)] for group in chosen}
    groups = [group for group, names in found.items() if names]
    if options.list:
        print("\n".join(name for names in found.values() for name in names))
        return 0
    if not groups:
        print(f"no case has {options.only!r} in its name; --list shows them", file=sys.stderr)
        return 2
    run = _run(groups, options)
    _print(run)
    if options.keep:
        keep(run, RESULTS / f"{version()}.json", whole=not options.only and not options.group)
    missed = [result["name"] for result in run["results"] if result["ok"] is False]
    missed += [verdict.goal.work for verdict in judged(run) if verdict.met is False]
    if missed and options.check:
        print(f"goals missed: {', '.join(missed)}")
    return 1 if run["failed"] or (missed and options.check) else 0


if __name__ == "__main__":
    sys.exit(main())
