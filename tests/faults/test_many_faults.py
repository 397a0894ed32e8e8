"""Two faults at once, and storms of them: still nothing is lost, doubled or invented."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from lance_memwal.testing import FaultKind, FaultPlan
from tests.harness.profile import scaled
from tests.kit.log_life import record, sweep
from tests.kit.single_faults import KINDS, no_damage

GENTLE = [kind for kind in KINDS if kind.keeps_contract]


def pairs(count: int, seed: int) -> Iterator[tuple[str, FaultPlan]]:
    """Two faults at two calls of the life; the second may hit another call than recorded, which the first led to."""
    draw = random.Random(seed)
    calls = record().calls
    anywhere = [
        kind for kind in KINDS if all(kind.applies_to(call) for call in ("put_new", "put", "get", "list_names"))
    ]
    for number in range(count):
        first = draw.choice(calls)
        kind = draw.choice([k for k in KINDS if k.applies_to(first.kind)])
        second = draw.randrange(first.index + 1, len(calls) + 4)
        other = draw.choice(anywhere)
        plan = FaultPlan(at={first.index: kind, second: other}, seed=number, late_after_calls=draw.randrange(8))
        yield f"pair {number} of seed {seed}: {plan.at}", plan


def storms(count: int, seed: int, kinds: Sequence[FaultKind]) -> Iterator[tuple[str, FaultPlan]]:
    draw = random.Random(seed)
    for number in range(count):
        rate = draw.choice((0.05, 0.1, 0.2, 0.4))
        late = draw.randrange(8)
        plan = FaultPlan(rate=rate, kinds=frozenset(kinds), seed=seed * 1_000_003 + number, late_after_calls=late)
        yield f"storm {number} of seed {seed}, rate {rate}", plan


@pytest.mark.scaled
@pytest.mark.parametrize("seed", [1, 2])
def test_no_two_faults_lose_double_or_invent_an_entry(seed: int) -> None:
    count = scaled(ci=100, prove=5_000)
    met, broken = sweep(pairs(count, seed), intact=no_damage)
    assert not broken, "\n".join(broken[:5])
    assert met == count


@pytest.mark.scaled
@pytest.mark.parametrize("seed", [1, 2])
def test_no_storm_of_faults_that_keep_the_contract_loses_doubles_or_invents_an_entry(seed: int) -> None:
    count = scaled(ci=100, prove=5_000)
    met, broken = sweep(storms(count, seed, GENTLE), intact=lambda script: False)
    assert not broken, "\n".join(broken[:5])
    assert met > count // 2


@pytest.mark.scaled
def test_no_storm_with_damage_loses_an_entry_without_saying_so() -> None:
    count = scaled(ci=100, prove=5_000)
    met, broken = sweep(storms(count, 3, KINDS), intact=lambda script: False)
    assert not broken, "\n".join(broken[:5])
    assert met > count // 2
