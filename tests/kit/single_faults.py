"""One fault at every store call of a log's life."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lance_memwal.testing import FaultKind, FaultPlan, FaultScript
from tests.harness.profile import scaled
from tests.kit.log_life import record

# Faults whose outcome depends on a draw (which bit, which name), and when a late effect comes.
DRAWN = {FaultKind.BIT_FLIP, FaultKind.LIST_MISSES}
LATE_AFTER_CALLS = (0, 1, 2, 5, 9, 1_000)
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
