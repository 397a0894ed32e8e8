"""`make demo` tells its story to the end, with nothing on stderr."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lance_memwal.cli.demo import why_without_spark


def test_the_demo_ends_with_a_summary_and_a_clean_stderr(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "lance_memwal.cli.demo", "--no-spark"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100, check=False)
    assert done.stderr == ""
    assert done.returncode == 0, done.stdout
    assert "Writer fenced" in done.stdout
    assert "\nSummary\n" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_without_spark_its_chapter_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_without_spark([]) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'lance-memwal[spark]'" in str(why_without_spark([]))
