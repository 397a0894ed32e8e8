"""A hostile thing in the bucket: every use of the table answers or refuses, in a process with little memory, and touches nothing
outside of the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.hostile_child import CASES, use_hostile_table
from tests.harness.processes import Child, start

REFUSED = {
    "path_that_leads_out",
    "absolute_path",
    "linked_log",
    "linked_manifest",
    "linked_shard",
    "compression_bomb",
    "deep_columns",
    "rows_that_cost_nothing",
}
SHOWN_BY_VERIFY = {"linked_data_of_an_sstable", "linked_data_of_the_base"}  # which Lance opens itself
IN_VAIN = {"answered", "out of memory", "UnsupportedFormatError"}  # what nobody calls damaged
READS = ("scan", "get", "count")
SECONDS = 100
GROWN_MIB = 200  # what an honest table of this size takes, and twice as much again


def told_by(child: Child) -> list[tuple[str, ...]]:
    """All that a process says until it ends, and how it ended."""
    told = []
    while True:
        try:
            message = child.receive(SECONDS)
        except EOFError:
            return [*told, ("status", str(child.wait(SECONDS)))]
        assert message is not None, told
        told.append(message)


@pytest.mark.parametrize("case", CASES)
def test_every_use_of_a_hostile_table_answers_or_refuses(case: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("not yours")
    told = told_by(start(use_hostile_table, case, tmp_path / "t"))
    assert told[-2:] == [("done",), ("status", "0")], told
    answers = dict(told[:-2])
    grown_mib = int(answers.pop("grown"))
    assert len(answers) == 10
    assert not any("NOT OURS" in answer for answer in answers.values()), told
    assert case not in REFUSED or "answered" not in [answers[use] for use in (*READS, "verify")], told
    assert case not in SHOWN_BY_VERIFY or answers["verify"] != "answered", told
    if case == "more_rows_than_memory":
        assert {answers[use] for use in READS} <= IN_VAIN, told
    else:
        assert "out of memory" not in answers.values(), told
        assert grown_mib < GROWN_MIB, told
    assert outside.read_text() == "not yours"
