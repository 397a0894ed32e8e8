"""`python -m tests.faults`: two lives of a table on two stores, once per store call and kind of fault, and with pairs.

`--store` and `--life` choose. Prints a line now and then, and a command for every life that broke a promise:
`--at 12=error_after,40=throttle` lives one again; what follows a `/` belongs to the process after a crash. `--singles N` and
`--pairs N` bound how many lives there are; single faults are then drawn by the seed.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from lance_memwal.testing import FaultKind
from tests.harness.memory_disk import memory_directory
from tests.harness.progress import Progress
from tests.kit.rich_life import RichLife
from tests.kit.table_faults import Planned, Sweep, pairs, record, singles
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
    parser.add_argument("--seed", type=int, default=0, help="what is drawn")
    parser.add_argument("--at", help="one life with these faults")
    parser.add_argument("--late", type=int, default=3, help="calls that a late effect waits for")
    options = parser.parse_args()
    logging.getLogger("lance_memwal").setLevel(logging.CRITICAL + 1)
    if options.at is not None and (options.store is None or options.life is None):
        parser.error("--at needs --store and --life")
    broken = 0
    for store in (options.store,) if options.store else ("local", "s3"):
        with _place(store) as place:
            for life in (options.life,) if options.life else _LIVES:
                broken += _run(_Subject(store, life, Sweep(place, _LIVES[life])), options)
    return 1 if broken else 0


@dataclass(frozen=True, slots=True)
class _Subject:
    """One kind of life on one store."""

    store: str
    life: str
    sweep: Sweep

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


def _all(subject: _Subject, options: argparse.Namespace) -> None:
    calls = record(subject.sweep)
    every = list(singles(calls))
    chosen = every
    if options.singles < len(every):
        chosen = random.Random(options.seed).sample(every, options.singles)
    print(f"{subject}: {len(calls)} store calls, {len(every)} single faults, {len(chosen)} of them", flush=True)
    _many(subject, iter(chosen), "single faults", options.seed)
    _many(subject, pairs(subject.sweep, calls, options.pairs, options.seed), "pairs", options.seed)


def _many(subject: _Subject, plans: Iterator[Planned], what: str, seed: int) -> None:
    sweep, progress = subject.sweep, Progress()
    done, shown, lives = 0, len(sweep.broken), sweep.lives
    sweep.met.clear()
    sweep.refused.clear()

    def told(count: str) -> str:
        return (
            f"{count} {what} of {subject} (seed {seed}): {len(sweep.broken)} violations, {sweep.lives - lives} lives, "
            f"{progress.seconds:.0f} s; met {dict(sorted(sweep.met.items()))}; told users {dict(sweep.refused)}"
        )

    for done, planned in enumerate(plans, 1):
        sweep.live(planned)
        found, shown = sweep.broken[shown:], len(sweep.broken)
        for line in found[:1]:
            print(f"BROKEN: {line[:1_500]}\n  {_command(planned, subject)}", flush=True)
        if subject.store == "local":
            shutil.rmtree(sweep.place.prefix, ignore_errors=True)
        progress.tell(lambda done=done: told(str(done)))
    progress.tell(lambda: told(f"all {done}"), at_once=True)


def _command(planned: Planned, subject: _Subject) -> str:
    at = "/".join(",".join(f"{index}={kind.value}" for index, kind in faults.items()) for faults in planned.at)
    where = f"--store {subject.store} --life {subject.life}"
    return f"python -m tests.faults {where} --seed {planned.seed} --late {planned.late_after_calls} --at {at}"


if __name__ == "__main__":
    sys.exit(main())
