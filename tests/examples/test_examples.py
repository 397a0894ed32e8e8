"""Every example runs as a user would run it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.spark import LIGHT_JVM

FOLDER = Path(__file__).resolve().parents[2] / "examples"
EXAMPLES = sorted(
    path for path in FOLDER.glob("*.py") if path.stem != "demo"
)  # tests/project/test_documentation.py runs it


@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_an_example_runs_and_prints_what_it_did(path: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": LIGHT_JVM}
    command = [sys.executable, str(path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5
