"""`python -m tests.soak --minutes 30 --seed 0`: a table under load, kills and faults; the exit status says whether it held."""

import argparse
import shutil
import tempfile
from pathlib import Path

from tests.soak.crowd import Plan, Soak, SoakFailure
from tests.soak.episodes import full_disk, overload
from tests.soak.figures import JUDGED_SECONDS, TITLES, drawing, grown, quarters


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").partition(":")[2])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--svg", type=Path, help="draw the figures to this file")
    parser.add_argument("--dir", type=Path, help="work below this directory")
    options = parser.parse_args(arguments)
    place = Path(tempfile.mkdtemp(prefix="memwal-soak-", dir=options.dir))
    failed = _held(place, Plan(seconds=60 * options.minutes, seed=options.seed), options.svg)
    for outcome in (overload(place / "overload", JUDGED_SECONDS), full_disk(place / "disk")):
        print(outcome, flush=True)
        failed += outcome.broken
    for text in failed:
        print(f"FAILED: {text}")
    if failed:
        print(f"the table is at {place}")
        return 1
    shutil.rmtree(place)
    return 0


def _held(place: Path, plan: Plan, svg: Path | None) -> list[str]:
    soak = Soak(place, plan, tell=lambda text: print(text, flush=True))
    try:
        soak.run()
    except SoakFailure as failure:
        return [str(failure), soak.summary()]
    for name, title in TITLES.items():
        early, late = quarters(soak.moments, name)
        print(f"{title:58} second quarter {early:8.1f}   last quarter {late:8.1f}")
    print(soak.summary())
    if plan.seconds < JUDGED_SECONDS:
        print(f"too short to say whether anything grows: that takes {JUDGED_SECONDS:.0f} seconds")
    if svg is not None:
        svg.write_text(drawing(soak.moments))
    return grown(soak.moments, plan.seconds)


if __name__ == "__main__":
    raise SystemExit(main())
