"""One fault, of every kind, at every store call of a log's life: nothing is lost, doubled or invented."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from faults.log_life import new_life, record, sweep, verdict
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript
from tests.harness.profile import scaled

# Faults whose outcome depends on a draw (which bit, which name), and when a late effect comes.
DRAWN = {FaultKind.BIT_FLIP, FaultKind.LIST_MISSES}
LATE_AFTER_CALLS = (0, 1, 2, 5, 9, 1_000)
CRASHES = {FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER}
KINDS = [kind for kind in FaultKind if kind is not FaultKind.LOST_DELETE]


def no_damage(script: FaultScript) -> bool:
    """Whether storage must be whole: only a torn object leaves damage there."""
    return not any(call.fault is FaultKind.TORN_OBJECT and call.kind == "put_new" for call in script.injected)


def single_faults(
    kind: FaultKind, *, draws: int | None = None, lateness: Sequence[int] = LATE_AFTER_CALLS
) -> Iterator[tuple[str, FaultPlan]]:
    """The fault at every call that it applies to; where the outcome is drawn, with so many draws."""
    drawn = scaled(ci=8, prove=200) if draws is None else draws
    for call in record().calls:
        if not kind.applies_to(call.kind):
            continue
        for seed in range(drawn if kind in DRAWN else 1):
            for late in lateness if kind is FaultKind.LATE_EFFECT else (0,):
                name = f"{kind.value} at call {call.index} ({call.kind} ...{call.path[-60:]}), seed {seed}, late {late}"
                yield name, FaultPlan(at={call.index: kind}, seed=seed, late_after_calls=late)


def test_the_life_without_faults_acknowledges_everything_and_fences_the_stale_owner() -> None:
    life = new_life(FaultPlan())
    life.run()
    assert verdict(life, intact=True) == []
    assert life.oracle.acknowledged == {1: (1, 1), 2: (2, 1), 3: (3, 1), 4: (5, 2), 5: (6, 2)}
    assert life.oracle.refused == ["fenced: FencedError"]
    kinds = {call.kind for call in life.script.calls}
    assert kinds == {"put_new", "put", "get", "get_tail", "list_names", "make_directory"}, (
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
