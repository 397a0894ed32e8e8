"""A hostile thing in the bucket: every use of the table answers or refuses, in a process with little memory, and touches nothing
outside of the table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hostile_child import CASES

CHILD = Path(__file__).with_name("hostile_child.py")
REFUSED = {"path_that_leads_out", "absolute_path", "linked_log", "deep_columns", "rows_that_cost_nothing"}


@pytest.mark.parametrize("case", CASES)
def test_every_use_of_a_hostile_table_answers_or_refuses(case: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("not yours")
    command = [sys.executable, "-X", "faulthandler", str(CHILD), case, str(tmp_path / "t")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3_000:]
    assert "NOT OURS" not in done.stdout, done.stdout
    assert done.stdout.endswith("done\n")
    assert case not in REFUSED or "scan: answered" not in done.stdout, done.stdout
    assert case == "compression_bomb" or "out of memory" not in done.stdout, done.stdout
    assert outside.read_text() == "not yours"
