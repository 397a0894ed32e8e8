"""Kill or stop the processes of tables again and again, and check that every table is what it promised to be.

`make crash KILLS=10000 SEED=1`, which is `python -m tests.harness.crash --kills 10000 --seed 1`. Owns the harness: tables are
numbered from the seed on, and what a table is and lives through follows from nothing but its number (timing differs). Kinds of
lives:

shard      one shard writer has a shard to itself, and the files are audited after every kill (`shard_crash`)
table      whole tables: every feature, one or more processes at once (`table_crash`)
takeover   processes are stopped in the middle of anything, others take over, and they go on (`takeovers`)

It checks I1 to I12 of `docs/reliability.md`. A broken one is printed with the command that repeats it.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from tests.harness.deaths import CrashFailure, CrashReport
from tests.harness.processes import Progress, memory_directory
from tests.harness.shard_crash import ShardLives, live
from tests.harness.table_crash import LIVES_PER_TABLE, TableLives, Takeovers
from tests.harness.table_life import live_table

_SHARD_TABLES: Final = 4  # every so many tables is one whose files are audited


def run_crashes(
    directory: str,
    kills: int,
    seed: int = 0,
    *,
    only: str | None = None,
    lives: int = LIVES_PER_TABLE,
    target: Callable[..., None] | None = None,
    report: CrashReport | None = None,
    told: Callable[[CrashReport, int], None] | None = None,
) -> CrashReport:
    """Kill processes of tables below `directory` until `kills` of them died; raise `CrashFailure` if a promise broke.

    A table has `lives` at most. `target` runs in every child; a test of the harness gives one that breaks the engine first. A
    `report` that is given is gone on with.
    """

    def subject(report: CrashReport, number: int) -> Any:
        kind = only or ("shard" if number % _SHARD_TABLES == 0 else "table")
        if kind == "shard":
            return ShardLives(directory, number, report, target or live)
        return TableLives(directory, number, report, lives, target or live_table)

    report = report or CrashReport()
    until = report.kills + kills
    _run(subject, report, seed, lambda: until - report.kills, told)
    return report


def run_takeovers(
    directory: str,
    takeovers: int,
    seed: int = 0,
    *,
    target: Callable[..., None] = live_table,
    report: CrashReport | None = None,
    told: Callable[[CrashReport, int], None] | None = None,
) -> CrashReport:
    """Stop processes of tables below `directory`, let others take over, and let them go on, until `takeovers` were made.

    `target` and `report`: see `run_crashes`.
    """
    report = report or CrashReport()
    until = report.takeovers + takeovers
    _run(
        lambda report, number: Takeovers(directory, number, report, target),
        report,
        seed,
        lambda: until - report.takeovers,
        told,
    )
    return report


def _run(
    subject: Callable[[CrashReport, int], Any],
    report: CrashReport,
    seed: int,
    left: Callable[[], int],
    told: Callable[[CrashReport, int], None] | None,
) -> None:
    started = time.monotonic()
    before = report.seconds
    while left() > 0:
        subject(report, seed).run(left())
        report.tables += 1
        report.seconds = before + time.monotonic() - started
        if told is not None:
            told(report, seed)
        seed += 1


def main() -> int:
    """Run what the command line asks for; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.crash", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="how many processes are killed, or take over")
    parser.add_argument("--seed", type=int, default=0, help="the first table")
    parser.add_argument("--only", choices=("shard", "table"), help="lives of this kind alone")
    parser.add_argument("--takeovers", action="store_true", help="stop processes instead, and let others take over")
    parser.add_argument("--go-on", action="store_true", help="after a broken promise, with the next table")
    options = parser.parse_args()
    return _main(options.kills, options.seed, options.only, takeovers=options.takeovers, goes_on=options.go_on)


def _main(count: int, seed: int, only: str | None, *, takeovers: bool, goes_on: bool) -> int:
    progress, newest, failures = Progress(), seed, 0

    def told(report: CrashReport, number: int) -> None:
        nonlocal newest
        newest = number + 1
        done = f"{report.kills} kills, {report.takeovers} takeovers, {report.seconds:.0f} s"
        progress.tell(lambda: f"... {done}, seed {number}")

    report = CrashReport()
    while (left := count - (report.takeovers if takeovers else report.kills)) > 0:
        with memory_directory() as place:
            try:
                if takeovers:
                    run_takeovers(str(place), left, newest, report=report, told=told)
                else:
                    run_crashes(str(place), left, newest, only=only, report=report, told=told)
            except CrashFailure as failure:
                failures += 1
                print(f"BROKEN (table {newest}): {failure}", flush=True)
                if not goes_on:
                    return 1
                newest += 1
    print(f"seeds {seed} to {newest - 1}, {failures} broken\n{report}\n{report.missed()}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
