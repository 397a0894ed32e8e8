"""`python -m tests.bugs [words]`: plant every bug whose name has the words, and say which test catches it."""

import sys
import tempfile
import time
from pathlib import Path

from tests.bugs.catalogue import BUGS
from tests.bugs.planting import caught_by


def main(words: list[str]) -> int:
    chosen = [bug for bug in BUGS if all(word in bug.name for word in words)]
    missed = 0
    for bug in chosen:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="memwal-bug-", ignore_cleanup_errors=True) as place:
            test = caught_by(bug, Path(place))
        missed += test is None
        print(f"{bug.name}: {test or 'NOT CAUGHT'} ({time.monotonic() - started:.0f} s)", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} bugs are caught")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
