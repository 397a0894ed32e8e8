"""`python -m tests.faults`: two lives of a table on two stores, once per store call and kind of fault, and with pairs.

`--store` and `--life` choose. Prints a line now and then, and a command for every life that broke a promise:
`--at 12=error_after,40=throttle` lives one again; what follows a `/` belongs to the process after a crash. `--singles N` and
`--pairs N` bound how many lives there are; single faults are then drawn by the seed. `--slice 3/10` takes the single faults at
every tenth store call, and other pairs than the other slices: ten runs with 1/10 to 10/10 are all of them, each once.
"""

import argparse
import logging
import random
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from lance_memwal.testing import FaultKind
from tests.faults.workers import Unit, Workers
from tests.harness.processes import Progress, memory_directory
from tests.kit.table_faults import Planned, RichLife, Sweep, firsts, in_slice, record, singles
from tests.kit.table_life import CanonicalLife, Place
from tests.services.s3 import options_of, s3_service

_LIVES: Final = {"canonical": CanonicalLife, "rich": RichLife}


def main() -> int:
    """Run what the command line asks for; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", choices=("local", "s3"), help="this one alone")
    parser.add_argument("--life", choices=tuple(_LIVES), help="this one alone")
    parser.add_argument(
        "--singles", type=int, default=1_000_000, help="at most so many with one fault, per store and life"
    )
    parser.add_argument("--pairs", type=int, default=2_000, help="so many with two faults, per store and life")
    parser.add_argument("--slice", type=_slice, default=(1, 1), metavar="K/N", help="this one of N parts")
    parser.add_argument("--jobs", type=int, default=0, help="processes that live; 0: this one")
    parser.add_argument("--seed", type=int, default=0, help="what is drawn")
    parser.add_argument("--at", help="one life with these faults")
    parser.add_argument("--late", type=int, default=3, help="calls that a late effect waits for")
    options = parser.parse_args()
    logging.getLogger("lance_memwal").setLevel(logging.CRITICAL + 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # places are removed
    if options.at is not None and (options.store is None or options.life is None):
        parser.error("--at needs --store and --life")
    broken = 0
    for store in (options.store,) if options.store else ("local", "s3"):
        with ExitStack() as stack:
            places = [stack.enter_context(_place(store)) for _ in range(max(1, options.jobs))]
            workers = stack.enter_context(Workers(places, options.jobs))
            for life in (options.life,) if options.life else _LIVES:
                broken += _run(_Subject(store, life, Sweep(places[0], _LIVES[life]), workers), options)
    return 1 if broken else 0


@dataclass(frozen=True, slots=True)
class _Subject:
    store: str
    life: str
    sweep: Sweep
    workers: Workers

    def __str__(self) -> str:
        return f"the {self.life} life on {self.store}"


def _run(subject: _Subject, options: argparse.Namespace) -> int:
    """What the command line asks for of one subject; how many promises were broken."""
    sweep = subject.sweep
    if options.at is None:
        _all(subject, options)
    else:
        sweep.live(Planned(_faults(options.at), options.seed, options.late))
        for line in sweep.broken[:20]:
            print(line)
    return len(sweep.broken)


@contextmanager
def _place(store: str) -> Iterator[Place]:
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


def _slice(text: str) -> tuple[int, int]:
    """`3/10`: the third of ten parts."""
    part, parts = (int(number) for number in text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


def _all(subject: _Subject, options: argparse.Namespace) -> None:
    part, parts = options.slice
    calls = record(subject.sweep)
    every = list(singles(calls))
    chosen = [planned for planned in every if in_slice(planned, part, parts)]
    if options.singles < len(chosen):
        chosen = random.Random(options.seed).sample(chosen, options.singles)
    print(f"{subject}: {len(calls)} store calls, {len(every)} single faults, {len(chosen)} of them", flush=True)
    _many(subject, chosen, f"of {len(every)} single faults", options)
    some = [
        first for number, first in enumerate(firsts(calls, options.pairs, options.seed)) if number % parts == part - 1
    ]
    _many(subject, some, f"of {-(-options.pairs // 5)} first faults of {options.pairs} pairs", options)


def _many(subject: _Subject, units: Iterable[Unit], what: str, options: argparse.Namespace) -> None:
    sweep, progress, done = Sweep(subject.sweep.place, subject.sweep.life), Progress(), 0

    def told() -> str:
        return (
            f"{done} {what} of {subject} (seed {options.seed}, slice {options.slice[0]}/{options.slice[1]}): "
            f"{len(sweep.failed)} lives broke a promise, {sweep.unmet} faults unmet, {sweep.lives} lives, "
            f"{progress.seconds:.0f} s; met {dict(sorted(sweep.met.items()))}; told users {dict(sweep.refused)}"
        )

    for lived in subject.workers.live(sweep.life, units):
        done += 1
        sweep.add(lived)
        for planned, line in lived.failed:
            print(f"BROKEN: {line[:1_500]}\n  {_command(planned, subject)}", flush=True)
        progress.tell(told)
    progress.tell(told, at_once=True)
    subject.sweep.broken += sweep.broken


def _command(planned: Planned, subject: _Subject) -> str:
    at = "/".join(",".join(f"{index}={kind.value}" for index, kind in faults.items()) for faults in planned.at)
    where = f"--store {subject.store} --life {subject.life}"
    return f"python -m tests.faults {where} --seed {planned.seed} --late {planned.late_after_calls} --at {at}"


if __name__ == "__main__":
    sys.exit(main())
