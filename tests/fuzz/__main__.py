"""`python tests/fuzz --inputs 1000000 --seed 1`: so many mutated inputs for every decoder, or for those that are named.

Prints totals per decoder, and what failed with its seed and number; goes on after a failure, up to a few per decoder.
"""

import argparse
import sys
import time

from decoders import TARGETS
from fuzzer import SEED, FuzzError, fuzz_decoder
from inputs import renew

_AT_ONCE = 50_000
_MOST_FAILURES = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="decoders; all, if none is named")
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--renew", action="store_true", help="write the corpus as the builders make it today")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(TARGETS))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(TARGETS)}")
    if options.renew:
        for name in options.names or TARGETS:
            print(f"{name}: {renew(name, TARGETS[name].build())} new files", flush=True)
        return 0
    failures = [_one(name, options.inputs, options.seed, options.first) for name in options.names or TARGETS]
    print(f"{len(failures)} decoders, {sum(failures)} failures", flush=True)
    return 1 if any(failures) else 0


def _one(name: str, inputs: int, seed: int, first: int) -> int:
    target, at, end, failed = TARGETS[name], first, first + inputs, 0
    taken = refused = 0
    started = time.monotonic()
    while at < end and failed < _MOST_FAILURES:
        runs = min(_AT_ONCE, end - at)
        try:
            counts = fuzz_decoder(target.place, target.corpus(), runs, is_asked=target.is_asked, seed=seed, first=at)
        except FuzzError as failure:
            failed += 1
            print(f"FAILED: {failure}", flush=True)
            at = failure.number + 1
        else:
            taken, refused, at = taken + counts["taken"], refused + counts["refused"], at + runs
    seconds = time.monotonic() - started
    print(
        f"{name}: {at - first} inputs of seed {seed}, {taken} taken, {refused} refused, {failed} failures, {seconds:.0f} s",
        flush=True,
    )
    return failed


if __name__ == "__main__":
    sys.exit(main())
