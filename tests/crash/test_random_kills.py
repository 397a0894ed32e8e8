"""Writers are killed at random, recovered, and killed again: nothing acknowledged is lost, nothing strange appears."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.harness.crash import run_crashes
from tests.harness.profile import scaled

RUNS = 4


@pytest.mark.scaled
@pytest.mark.parametrize("run", range(RUNS))
def test_a_killed_writer_loses_nothing_that_it_acknowledged(
    run: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kills = scaled(ci=26, prove=640)
    report = run_crashes(str(tmp_path), kills, seed=run * 100_000)
    with capfd.disabled():
        print(f"\n{report}", file=sys.stderr)
    assert report.kills >= kills
    assert report.opens >= kills // 2
    assert report.writes > 5 * kills
    assert len(report.killed_at) >= 6
