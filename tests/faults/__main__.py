"""`python -m tests.faults --store local`: the canonical life of a table, once per store call and kind of fault, and with pairs.

Prints a line now and then, and a command for every life that broke a promise: `--at 12=error_after,40=throttle` lives one
again; what follows a `/` belongs to the process after a crash. `--singles N` and `--pairs N` bound how many lives there are;
single faults are then drawn by the seed.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lance_memwal.testing import FaultKind
from tests.harness.memory_disk import memory_directory
from tests.harness.progress import Progress
from tests.kit.table_faults import Planned, Sweep, pairs, record, singles
from tests.kit.table_life import Place
from tests.services.s3 import options_of, s3_service


def main() -> int:
    """Run what the command line asks for; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", choices=("local", "s3"), default="local")
    parser.add_argument("--singles", type=int, default=1_000_000, help="at most so many lives with one fault")
    parser.add_argument("--pairs", type=int, default=2_000, help="so many lives with two faults")
    parser.add_argument("--seed", type=int, default=0, help="what is drawn")
    parser.add_argument("--at", help="one life with these faults")
    parser.add_argument("--late", type=int, default=3, help="calls that a late effect waits for")
    options = parser.parse_args()
    logging.getLogger("lance_memwal").setLevel(logging.CRITICAL + 1)
    with _place(options.store) as place:
        sweep = Sweep(place)
        if options.at is not None:
            sweep.live(Planned(_faults(options.at), options.seed, options.late))
        else:
            _all(sweep, options)
    for line in sweep.broken[:20] if options.at else ():
        print(line)
    return 1 if sweep.broken else 0


@contextmanager
def _place(store: str) -> Iterator[Place]:
    """An empty place for lives."""
    if store == "s3":
        with s3_service() as endpoint:
            yield Place(*options_of(endpoint))
        return
    with memory_directory() as directory:
        yield Place(str(directory))


def _faults(text: str) -> tuple[dict[int, FaultKind], ...]:
    """`12=error_after,40=throttle/3=delay`."""
    return tuple(
        {int(index): FaultKind(kind) for index, _, kind in (one.partition("=") for one in part.split(",") if one)}
        for part in text.split("/")
    )


def _all(sweep: Sweep, options: argparse.Namespace) -> None:
    calls = record(sweep)
    every = list(singles(calls))
    chosen = every
    if options.singles < len(every):
        chosen = random.Random(options.seed).sample(every, options.singles)
    print(f"{options.store}: {len(calls)} store calls, {len(every)} single faults, {len(chosen)} of them", flush=True)
    _many(sweep, iter(chosen), "single faults", options)
    _many(sweep, pairs(sweep, calls, options.pairs, options.seed), "pairs", options)


def _many(sweep: Sweep, plans: Iterator[Planned], what: str, options: argparse.Namespace) -> None:
    progress = Progress()
    done, shown = 0, len(sweep.broken)
    sweep.met.clear()
    for done, planned in enumerate(plans, 1):
        sweep.live(planned)
        found, shown = sweep.broken[shown:], len(sweep.broken)
        for line in found[:1]:
            print(f"BROKEN: {line[:1_500]}\n  {_command(planned, options)}", flush=True)
        if options.store == "local":
            shutil.rmtree(sweep.place.prefix, ignore_errors=True)
        progress.tell(lambda done=done: _told(sweep, f"{done} {what}", options, progress.seconds))
    progress.tell(lambda: _told(sweep, f"all {done} {what}", options, progress.seconds), at_once=True)


def _command(planned: Planned, options: argparse.Namespace) -> str:
    at = "/".join(",".join(f"{index}={kind.value}" for index, kind in faults.items()) for faults in planned.at)
    seed, late = planned.seed, planned.late_after_calls
    return f"python -m tests.faults --store {options.store} --seed {seed} --late {late} --at {at}"


def _told(sweep: Sweep, what: str, options: argparse.Namespace, seconds: float) -> str:
    return (
        f"{what} on {options.store} (seed {options.seed}): {len(sweep.broken)} violations, {sweep.lives} lives, "
        f"{seconds:.0f} s; met {dict(sorted(sweep.met.items()))}; told users {dict(sweep.refused)}"
    )


if __name__ == "__main__":
    sys.exit(main())
