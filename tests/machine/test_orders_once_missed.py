"""Orders of steps that were once judged wrongly, or not at all; each does exactly these."""

from __future__ import annotations

import pytest

from tests.kit.tables import Outside
from tests.machine.doing import do
from tests.machine.life import MachineLife
from tests.machine.setup import CONFIGURATIONS, KINDS, Kind
from tests.machine.steps import Step

PUT: Step = ("put", {"numbers": [1, 2], "parts": 1})
LOOK_BACK: Step = ("look_back", {"which": 0})


def live(kind: Kind, elsewhere: Outside, *steps: Step) -> MachineLife:
    """A life of these steps, to its end."""
    life = MachineLife(kind, CONFIGURATIONS[0], [0, 1], elsewhere)
    try:
        for step in steps:
            do(life, step)
    finally:
        life.close()
    return life


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_a_moment_has_the_column_that_was_dropped_since(kind: Kind, elsewhere: Outside) -> None:
    steps: list[Step] = [("add_column", {}), PUT, ("checkpoint", {}), ("drop_column", {}), LOOK_BACK]
    life = live(kind, elsewhere, *steps)
    (moment,) = life.model.moments
    assert "e0" in moment.columns
    assert "e0" not in life.model.columns
    assert {row["e0"] for row in moment.rows.values()} > {None}


def test_the_next_column_has_nothing_of_the_one_that_was_dropped(elsewhere: Outside) -> None:
    steps: list[Step] = [("add_column", {}), PUT, ("close", {}), ("drop_column", {}), ("add_column", {}), PUT]
    for kind in KINDS[:1] + KINDS[-1:]:
        assert live(kind, elsewhere, *steps).model.columns[-1] == "e1"


def test_a_reader_of_pylance_is_not_asked_what_it_cannot_know(elsewhere: Outside) -> None:
    past: Step = ("lance_writes", {"numbers": [1, 2]})
    live(KINDS[0], elsewhere, PUT, ("flush", {}), past, ("peer_reads", {}))


def test_a_live_writer_has_older_generations_without_the_new_column(elsewhere: Outside) -> None:
    evolve: Step = ("evolve", {"numbers": [3], "adds": True})
    live(KINDS[0], elsewhere, PUT, ("flush", {}), evolve, ("merge_by_hand", {}))
