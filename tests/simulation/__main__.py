"""`python -m tests.simulation --lives 1000 --seed 1`: many lives; `--kind once --seed 123 --trace`: one of them again.

Prints a line now and then, and a command for every life that broke a promise. Lives are numbered from the seed on; which kind
a number is follows from nothing but the number. `--lance` lives with Lance itself.
"""

import argparse
import gc
import logging
import os
import resource
import sys
import traceback
from collections import Counter
from functools import partial

from lance_memwal.process.cache import set_cache_bytes
from tests.harness.processes import Progress
from tests.simulation.kinds import KINDS, LANCE_KINDS, command, kind_of, life_of
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
    parser.add_argument("--lance", action="store_true", help="with Lance itself, in a directory")
    options = parser.parse_args()
    if options.lance and options.kind not in (None, *LANCE_KINDS):
        parser.error(f"a {options.kind} life has nothing to do with Lance")
    if os.environ.get("PYTHONHASHSEED") != "0":  # no life depends on it today; one that will is the same each time
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    logging.getLogger("lance_memwal").setLevel(logging.CRITICAL + 1)
    set_cache_bytes(_CACHE_BYTES)  # every life has its own tables
    if options.lives == 1 or options.trace:
        seeds = range(options.seed, options.seed + options.lives)
        kinds = (options.kind or kind_of(seed, lance=options.lance) for seed in seeds)
        return max(
            _one(kind, seed, lance=options.lance, trace=options.trace) for kind, seed in zip(kinds, seeds, strict=True)
        )
    return _many(options.seed, options.lives, options.kind, lance=options.lance)


def _one(kind: str, seed: int, *, lance: bool, trace: bool) -> int:
    with life_of(kind, seed, lance=lance, keep_trace=trace) as life:
        broken = life.run()
    for line in life.world.schedule.trace:
        print(line)
    for name, error in life.world.schedule.failures:
        print(f"{name}:", "".join(traceback.format_exception(error)))
    print(f"{kind} life {seed}: {life.world.schedule.steps} steps, {life.world.crashes} crashes, broken: {broken}")
    return 1 if broken else 0


def _many(first: int, lives: int, only: str | None, *, lance: bool) -> int:
    counts: Counter[str] = Counter()
    progress = Progress()
    failed = 0
    gc.disable()  # what the collector finalises, and when, is not part of a life
    for done, seed in enumerate(range(first, first + lives), 1):
        kind = only or kind_of(seed, lance=lance)
        with life_of(kind, seed, lance=lance) as life:
            try:
                broken = life.run()
            except StandstillError as error:  # its threads are stuck, and so may be others'
                print(f"{error}\nSTANDSTILL\n  {command(kind, seed, lance=lance)}", flush=True)
                os._exit(1)
        counts[kind] += 1
        counts["steps"] += life.world.schedule.steps
        counts["crashes"] += life.world.crashes
        if broken:
            failed += 1
            print(f"BROKEN: {broken[0]}\n  {command(kind, seed, lance=lance)}", flush=True)
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
