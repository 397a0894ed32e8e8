"""One fault, of every kind, at every store call of a log's life: nothing is lost, doubled or invented."""

from __future__ import annotations

import pytest

from lance_memwal.testing import FaultKind, FaultPlan
from tests.kit.log_life import new_life, sweep, verdict
from tests.kit.single_faults import KINDS, no_damage, single_faults

CRASHES = {FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER}


def test_the_life_without_faults_acknowledges_everything_and_fences_the_stale_owner() -> None:
    life = new_life(FaultPlan())
    life.run()
    assert verdict(life, intact=True) == []
    assert life.oracle.acknowledged == {1: (1, 1), 2: (2, 1), 3: (3, 1), 4: (5, 2), 5: (6, 2)}
    assert life.oracle.refused == ["fenced: FencedError"]
    kinds = {call.kind for call in life.script.calls}
    assert kinds == {"put_new", "put", "get", "list_names", "make_directory"}, (
        "nothing is deleted, so no delete can be lost"
    )


@pytest.mark.scaled
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.value))
def test_no_single_fault_loses_doubles_or_invents_an_entry(kind: FaultKind) -> None:
    plans = list(single_faults(kind))
    assert plans
    met, broken = sweep(iter(plans), intact=no_damage)
    assert not broken, "\n".join(broken[:5])
    assert met == len(plans), "every planned fault was met"


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.keeps_contract and kind not in CRASHES], ids=lambda kind: str(kind.value)
)
def test_a_single_fault_that_keeps_the_contract_of_a_store_is_not_seen_by_users(kind: FaultKind) -> None:
    for name, plan in single_faults(kind, draws=1, lateness=(2,)):
        life = new_life(plan)
        life.run()
        assert life.oracle.refused == ["fenced: FencedError"], name
        assert len(life.oracle.acknowledged) == 5, name
