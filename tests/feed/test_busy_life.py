"""At random moments of a busy life the answer asked later equals the answer recorded then; collection may end a moment that
nobody keeps, with an error, and never changes its answer."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import lance_memwal as mw
from tests.harness.profile import scaled
from tests.kit.busy_life import KINDS, BusyLife, Moment, answers, make_table

NOW = timedelta(0)


def live(table: mw.Table, kind: str, seed: int, moments: int, between: int) -> list[Moment]:
    life, found, steps = BusyLife(table, kind, seed), [], []
    try:
        for number in range(moments):
            steps = [life.step() for _ in range(between)]
            found.append(life.moment(number, ", ".join(steps)))
        for _ in range(between):
            life.step()
    finally:
        life.close()
    return found


def check(table: mw.Table, moment: Moment, kind: str, by: object) -> None:
    now = answers(table.at(by), kind)  # type: ignore[arg-type]
    for name, said in moment.said.items():
        assert now[name] == said, f"{name} at {moment.name or moment.snapshot}, after {moment.step}"


@pytest.mark.scaled
@pytest.mark.parametrize("kind", KINDS)
def test_the_answer_asked_later_equals_the_answer_recorded_then(tmp_path: Path, kind: str) -> None:
    table = make_table(str(tmp_path / "t"), kind)
    moments = live(table, kind, seed=len(kind), moments=scaled(ci=3, prove=50), between=scaled(ci=6, prove=10))
    for moment in moments:
        check(table, moment, kind, moment.snapshot)
    collected = attack(table, moments, kind)
    assert collected, "an attack after which every moment is there is none"
    assert table.verify().ok


def attack(table: mw.Table, moments: list[Moment], kind: str) -> int:
    """Collect and clean up with every grace; returns how many moments ended."""
    ended = 0
    for grace_seconds in scaled(ci=(3600, 0), prove=(3600, 1, 0)):
        table.compact(flush=True)
        table.maintain(versions=NOW if grace_seconds == 0 else timedelta(days=1), grace_seconds=grace_seconds)
        ended = 0
        for moment in moments:
            if moment.name is not None:
                check(table, moment, kind, moment.name)
                assert table.at(moment.snapshot).count_rows() == len(moment.said["rows"])
                continue
            try:
                check(table, moment, kind, moment.snapshot)
            except mw.CollectedError:
                ended += 1
        assert not ended or grace_seconds < 3600
    return ended
