"""Planting a bug in a copy of the package, and seeing whether its tests turn red.

Owns `plant` and `caught_by`. The copy comes before the package of the environment (`PYTHONPATH`), in the processes that
tests start, too; the source of the repository is not touched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.bugs.catalogue import Bug

__all__ = ["PACKAGE", "caught_by", "plant", "with_bug"]

_ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = _ROOT / "src" / "lance_memwal"
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
    """The first test that turned red, None if all of the bug's tests pass."""
    path = os.pathsep.join([str(plant(bug, place)), str(_ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    for tests in bug.tests:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n0", tests]
        command += [f"--basetemp={place / 'tests'}", "--show-capture=no", "--tb=no"]
        done = subprocess.run(
            command, cwd=_ROOT, env=environment, timeout=_SECONDS, capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 1):
            raise AssertionError(f"the tests of {bug.name!r} did not run: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        if done.returncode:
            found = _RED.search(done.stdout)
            return found.group(1) if found else tests
    return None
