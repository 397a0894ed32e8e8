"""The pure Python source passes every test that does not need the JVM face."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OWN_DRIVERS = ("cluster", "connect", "killed_drivers", "killed_writers", "set_up", "without_the_face")


@pytest.mark.prove
@pytest.mark.timeout(7200)  # it is a suite
def test_every_test_that_needs_no_face_passes_without_it() -> None:
    """`make test` has a small sibling: a session without the face, in `test_face.py`."""
    ignored = [f"--ignore={HERE / f'test_{name}.py'}" for name in OWN_DRIVERS]
    environment = {**os.environ, "LANCE_MEMWAL_TEST_FACE": "off", "LANCE_MEMWAL_PROFILE": "ci"}
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", str(HERE), *ignored]
    done = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "skipped" not in done.stdout
