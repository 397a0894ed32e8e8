"""Planting a bug in a copy of the package, and seeing whether its tests turn red.

Owns `plant` and `caught_by`. A test that is red without the bug, too, catches nothing. The copy comes before the package of the
environment (`PYTHONPATH`), in the processes that tests start, too; the source of the repository is not touched.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from tests.bugs.catalogue import Bug

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "src" / "lance_memwal"
_SECONDS = 900
_RED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


def with_bug(bug: Bug) -> str:
    """The source of the file with the bug; an error if its place is not there, or there twice."""
    source = (PACKAGE / bug.file).read_text()
    count = source.count(bug.was)
    assert count == 1, f"{bug.name!r}: its text occurs {count} times in {bug.file}, not once"
    return source.replace(bug.was, bug.now)


def plant(bug: Bug, place: Path) -> Path:
    """A copy of the package with the bug, below `place`; the directory to import it from."""
    copy = place / "src"
    shutil.copytree(PACKAGE, copy / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / PACKAGE.name / bug.file).write_text(with_bug(bug))
    return copy


def caught_by(bug: Bug, place: Path) -> str | None:
    """The first test that turned red, None if all of the bug's tests pass; an error if that test is red without the bug."""
    package = plant(bug, place)
    for tests in bug.tests:
        red = _first_red(tests, package, place)
        if red is not None:
            assert _is_green_without_bugs(red), f"{red} is red without {bug.name!r}, too: it says nothing"
            return red
    return None


@cache
def _is_green_without_bugs(test: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="memwal-no-bug-", ignore_cleanup_errors=True) as place:
        return _first_red(test, PACKAGE.parent, Path(place)) is None


def _first_red(tests: str, package: Path, place: Path) -> str | None:
    """The first of `tests` that is red with the package in this directory; None if all of them pass."""
    path = os.pathsep.join([str(package), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n0", tests]
    command += [f"--basetemp={place / 'tests'}", "--show-capture=no", "--tb=no"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, timeout=_SECONDS, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise AssertionError(f"{tests} did not run: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    found = _RED.search(done.stdout)
    return None if done.returncode == 0 else found.group(1) if found else tests
