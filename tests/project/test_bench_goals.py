"""Goals are judged from the record of a run, growth is drawn from it, and the far object store is far."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from benchmarks.goals import Goal, Verdict, at_least, at_most, judged, markdown_of, within
from benchmarks.growth import Growth, Measured, factor_of
from benchmarks.growth_plot import growth_drawing
from benchmarks.harness import LIMIT, Bench
from benchmarks.kept import new_run
from benchmarks.object_store import running_service


def side(*rounds: float) -> dict[str, Any]:
    return {"median": sorted(rounds)[len(rounds) // 2], "rounds": list(rounds)}


def result(
    name: str, unit: str, ours: dict[str, Any], peer: dict[str, Any] | None = None, **others: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "unit": unit,
        "goal": None,
        "ratio": None,
        "ok": None,
        "ours": ours,
        "peer": peer,
        "others": others,
    }


def verdict_on(monkeypatch: pytest.MonkeyPatch, goal: Goal, *results: dict[str, Any]) -> Verdict:
    monkeypatch.setattr("benchmarks.goals.GOALS", (goal,))
    return judged(new_run(quick=True) | {"results": list(results)})[0]


@pytest.mark.parametrize(("unit", "ours", "peer"), [("puts/s", 30.0, 10.0), ("ms", 10.0, 30.0)])
def test_three_times_as_fast_is_the_same_for_rates_and_costs(
    monkeypatch: pytest.MonkeyPatch, unit: str, ours: float, peer: float
) -> None:
    measured = result("case", unit, side(ours, ours), side(peer, peer), **{LIMIT: side(peer, peer)})
    assert verdict_on(monkeypatch, Goal("w", "case", (at_least("peer", 2.9),)), measured).median == pytest.approx(3)
    assert verdict_on(monkeypatch, Goal("w", "case", (at_least("peer", 2.9),)), measured).met is True
    assert verdict_on(monkeypatch, Goal("w", "case", (at_least("peer", 3.1),)), measured).met is False
    assert verdict_on(monkeypatch, Goal("w", "case", (at_most(LIMIT, 0.4),)), measured).median == pytest.approx(1 / 3)


def test_a_figure_is_judged_as_a_cost_in_the_unit_of_its_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    rate = result("case", "puts/s", side(100_000.0, 125_000.0, 200_000.0))
    verdict = verdict_on(monkeypatch, Goal("w", "case", (within(9, "us"),)), rate)
    assert (verdict.median, verdict.best, verdict.met) == (8.0, 5.0, True)
    slow = result("case", "ms", side(0.07))
    assert verdict_on(monkeypatch, Goal("w", "case", (within(60, "us"),)), slow).met is False


def test_one_of_two_bounds_is_enough_and_the_worst_case_stands_for_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    one = result("case", "us", side(18.0), None, **{LIMIT: side(10.0)})
    assert verdict_on(monkeypatch, Goal("w", "case", (within(9, "us"), at_most(LIMIT, 2))), one).met is True
    kinds = [result(f"keys: {n}", "ms", side(float(n)), side(1.0)) for n in (2, 4, 3)]
    verdict = verdict_on(monkeypatch, Goal("w", "keys: *", (at_most("peer", 3),)), *kinds)
    assert (verdict.detail, verdict.met) == ("keys: 4", False)


def test_what_was_not_measured_is_neither_met_nor_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = verdict_on(monkeypatch, Goal("w", "case", (at_least("peer", 2),)))
    assert verdict.met is None
    assert "| w |  |  | ≥ 2 × peer |  |  |  | not measured |" in markdown_of([verdict])  # noqa: RUF001


def test_growth_measures_every_size_and_says_how_flat_it_is(tmp_path: Path) -> None:
    def grow(_: Bench, sizes: Any) -> Any:
        for size in sizes:
            yield size, [Measured("get <1>", "us", [float(size), 2.0 * size, 3.0 * size])]

    growth = Growth("growth", "rows", (1, 2, 4), (1, 2), grow).measured(quick=True, base=tmp_path)
    assert growth["lines"][0]["points"] == [[1, 2.0, 1.0, 3.0], [2, 4.0, 2.0, 6.0]]
    assert factor_of(growth["lines"][0]) == 2.0
    assert judged(new_run(quick=True) | {"curves": [growth]})[-1].met is True
    assert "get &lt;1&gt;" in growth_drawing(growth)


def test_the_object_store_counts_requests_and_answers_late() -> None:
    with running_service(80) as service:
        before, began = service.seen(), time.perf_counter()
        with urlopen(Request(f"{service.endpoint}/bucket/key", data=b"x", method="PUT"), timeout=30):
            pass
        assert time.perf_counter() - began >= 0.08
        assert service.seen() - before == {"put": 1}
