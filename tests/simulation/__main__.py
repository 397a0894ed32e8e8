"""`python -m tests.simulation --lives 1000 --seed 1`: many lives; `--kind once --seed 123 --trace`: one of them again.

Prints a line now and then, and a command for every life that broke a promise. Lives are numbered from the seed on; which kind
a number is follows from nothing but the number.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import resource
import sys
import traceback
from collections import Counter
from functools import partial
from typing import Any

from lance_memwal.process.cache import set_cache_bytes
from tests.harness.progress import Progress
from tests.simulation.kinds import KINDS, kind_of
from tests.simulation.schedule import StandstillError

_COLLECT_EVERY = 50
_CACHE_BYTES = 8 << 20


def main() -> int:
    """Run what the command line asks for; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="the first life, or the only one")
    parser.add_argument("--lives", type=int, default=1, help="how many")
    parser.add_argument("--kind", choices=sorted(KINDS), help="lives of this kind alone")
    parser.add_argument("--trace", action="store_true", help="print every store call of a life")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of names is part of a life
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    logging.getLogger("lance_memwal").setLevel(logging.CRITICAL + 1)
    set_cache_bytes(_CACHE_BYTES)  # every life has its own tables
    if options.lives == 1:
        return _one(options.kind or kind_of(options.seed), options.seed, trace=options.trace)
    return _many(options.seed, options.lives, options.kind)


def _one(kind: str, seed: int, *, trace: bool) -> int:
    life: Any = KINDS[kind](seed, keep_trace=trace)
    broken = life.run()
    for line in life.world.schedule.trace:
        print(line)
    for name, error in life.world.schedule.failures:
        print(f"{name}:", "".join(traceback.format_exception(error)))
    print(f"{kind} life {seed}: {life.world.schedule.steps} steps, {life.world.crashes} crashes, broken: {broken}")
    return 1 if broken else 0


def _many(first: int, lives: int, only: str | None) -> int:
    counts: Counter[str] = Counter()
    progress = Progress()
    failed = 0
    gc.disable()  # what the collector finalises, and when, is not part of a life
    for done, seed in enumerate(range(first, first + lives), 1):
        kind = only or kind_of(seed)
        life: Any = KINDS[kind](seed)
        try:
            broken = life.run()
        except StandstillError as error:  # its threads are stuck, and so may be others'
            print(f"{error}\nSTANDSTILL\n  python -m tests.simulation --kind {kind} --seed {seed} --trace", flush=True)
            os._exit(1)
        counts[kind] += 1
        counts["steps"] += life.world.schedule.steps
        counts["crashes"] += life.world.crashes
        if broken:
            failed += 1
            print(f"BROKEN: {broken[0]}\n  python -m tests.simulation --kind {kind} --seed {seed} --trace", flush=True)
        del life
        if done % _COLLECT_EVERY == 0:
            gc.collect()
        line = partial(_told, first, done, failed, counts, progress.seconds)
        progress.tell(line, at_once=done == lives)
    return 1 if failed else 0


def _told(first: int, done: int, failed: int, counts: Counter[str], seconds: float) -> str:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return (
        f"{done} lives (seeds {first} to {first + done - 1}), {failed} broken, {dict(sorted(counts.items()))}, "
        f"{60 * done / max(seconds, 0.001):.0f} per minute, at most {memory} MiB"
    )


if __name__ == "__main__":
    sys.exit(main())
