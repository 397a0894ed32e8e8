"""Processes are killed or stopped at random, again and again: nothing acknowledged is lost, nothing strange appears."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.harness.crash import run_crashes, run_takeovers
from tests.harness.kill_points import FLUSH_POINTS, OPEN_POINTS, POINTS, PUT_POINTS
from tests.harness.profile import scaled

RUNS = 4
# Whoever lives for a while comes here, wherever others are killed.
EVERYDAY = {*OPEN_POINTS, *PUT_POINTS, *FLUSH_POINTS, "compact.chosen"}
# Compactions of these tables never take two commits; `tests/compact/test_compact_crash.py` kills some that do.
NEVER = {"compact.between_commits"}


@pytest.mark.scaled
@pytest.mark.parametrize("run", range(RUNS))
def test_a_killed_writer_loses_nothing_that_it_acknowledged(
    run: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kills = scaled(ci=15, prove=640)
    report = run_crashes(str(tmp_path), kills, seed=run * 100_000, only="shard")
    with capfd.disabled():
        print(f"\n{report}", file=sys.stderr)
    assert report.kills >= kills
    assert report.opens >= kills // 2
    assert report.writes > 5 * kills
    assert len(report.killed_at) >= 4


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=120, prove=0))
@pytest.mark.parametrize("quarter", range(4))
def test_killed_processes_of_whole_tables_break_no_promise(
    quarter: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every shape of table, two of them in each: partial updates, merges, blobs, searches, feeds, upkeep, columns."""
    kills = scaled(ci=16, prove=600)
    seed = quarter * scaled(ci=2, prove=100_000)
    report = run_crashes(str(tmp_path), kills, seed, only="table", lives=scaled(ci=11, prove=16))
    with capfd.disabled():
        print(f"\n{report}", file=sys.stderr)
    assert report.kills >= kills
    assert report.tables >= 2
    assert scaled(ci=EVERYDAY, prove=set(POINTS) - NEVER) <= report.reached, report.missed()


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=120, prove=0))
@pytest.mark.parametrize(("seed", "shares"), [(5, False), (15, True)], ids=["alone", "shared"])
def test_stopped_processes_that_go_on_after_a_takeover_break_no_promise(
    seed: int, shares: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    takeovers = scaled(ci=3, prove=500)
    report = run_takeovers(str(tmp_path), takeovers, seed + scaled(ci=0, prove=seed * 10_000))
    with capfd.disabled():
        print(f"\n{report}", file=sys.stderr)
    assert report.takeovers >= takeovers
    assert shares <= any(kind.startswith("shared") for kind in report.kinds)
