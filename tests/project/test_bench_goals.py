"""The bench harness, and the goals that its figures must reach."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from benchmarks import rivals
from benchmarks.__main__ import main
from benchmarks.bench_wal import read_entries, read_raw
from benchmarks.goals import GOALS, Goal, Verdict, at_least, at_most, judged, markdown_of, within
from benchmarks.groups import group_names, measured, work_of
from benchmarks.growth import Growth, Measured, factor_of
from benchmarks.growth_plot import growth_drawing
from benchmarks.harness import LIMIT, Bench, Case, Result, Sample, Side, measure, percentile
from benchmarks.kept import as_record, keep, new_run, table
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
def test_three_times_as_fast_for_rates_and_costs(
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


def test_wal_only_puts_and_read_entry_have_goals() -> None:
    judged_cases = {verdict.goal.case: verdict.bound for verdict in judged(new_run(quick=True))}
    wal_only = [str(bound) for case, bound in judged_cases.items() if case.endswith("WAL-only")]
    assert wal_only == ["≥ 0.95 × ours, memtable mode"] * 3  # noqa: RUF001
    assert str(judged_cases["read_entry, 20 rows"]) == "≤ 2 × limit"  # noqa: RUF001


@pytest.mark.parametrize("side", [read_entries, read_raw])
def test_read_entry_sides_read_every_row_of_the_log(tmp_path: Path, side: Callable[[int, Bench], Any]) -> None:
    sample = side(20, Bench(str(tmp_path), quick=True))
    assert len(sample.latencies) == 200  # one per entry; the case checks the number of rows
    assert sample.value == pytest.approx(200 / sum(sample.latencies))


def test_wal_only_side_flushes_nothing(tmp_path: Path) -> None:
    with rivals.ours(rivals.Place(str(tmp_path / "t")), enable_memtable=False, max_memtable_rows=10) as put:
        for batch in rivals.batches("narrow", 20, 3):
            put(batch)
    assert list(tmp_path.glob("t/_mem_wal/*/*_gen_*")) == []
    assert len(list(tmp_path.glob("t/_mem_wal/*/wal/*"))) == 3


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


# The benchmark harness takes turns, takes medians, and judges goals in the right direction.


def constant(value: float) -> Sample:
    return Sample(value)


def report_process(bench: Bench) -> Sample:
    return Sample(float(os.getpid()))


def test_sides_take_turns_and_the_first_turn_of_each_is_thrown_away(tmp_path: Path) -> None:
    turns: list[str] = []

    def side(name: str, values: list[float]) -> Sample:
        turns.append(name)
        return Sample(values[turns.count(name) - 1])

    case = Case(
        "turns",
        ours=lambda _: side("ours", [1000.0, 1.0, 2.0, 9.0]),
        peer=lambda _: side("peer", [1000.0, 2.0, 4.0, 3.0]),
        goal=1.0,
        unit="us",
        rounds=3,
    )
    result = measure(case, base=tmp_path)
    assert sorted(turns[0:2]) == sorted(turns[2:4]) == sorted(turns[4:6]) == ["ours", "peer"]
    assert turns[2:4] != turns[4:6]
    assert result.ours == Side((1.0, 2.0, 9.0))
    assert result.peer == Side((2.0, 4.0, 3.0))
    assert result.ours.median == 2.0
    assert result.ratio == 0.5
    assert result.ok is True


def test_every_turn_gets_an_empty_directory_that_goes_away(tmp_path: Path) -> None:
    seen: list[str] = []

    def turn(bench: Bench) -> Sample:
        assert os.listdir(bench.directory) == []
        Path(bench.directory, "left-behind").write_text("x")
        seen.append(bench.directory)
        return Sample(1.0)

    measure(Case("directory", turn, turn, None, "us", rounds=3), base=tmp_path)
    assert len(set(seen)) == 8
    assert os.listdir(tmp_path) == []


def test_an_isolated_case_runs_each_turn_in_a_process_of_its_own(tmp_path: Path) -> None:
    case = Case("apart", report_process, None, None, "us", rounds=2, isolated=True)
    result = measure(case, base=tmp_path)
    assert len({*result.ours.values, float(os.getpid())}) == 3


@pytest.mark.parametrize(
    ("unit", "goal", "ratio", "ok"),
    [("us", 1.5, 1.4, True), ("us", 1.5, 1.6, False), ("rows/s", 2.0, 2.1, True), ("rows/s", 2.0, 1.9, False)],
)
def test_a_goal_bounds_costs_from_above_and_rates_from_below(unit: str, goal: float, ratio: float, ok: bool) -> None:
    case = Case("goal", lambda _: constant(1), lambda _: constant(1), goal, unit)
    assert Result(case, Side((ratio,)), Side((1.0,)), ratio).ok is ok


def test_a_case_without_a_peer_has_no_verdict(tmp_path: Path) -> None:
    result = measure(Case("alone", lambda _: constant(3.0), None, 1.0, "us"), base=tmp_path)
    assert result.ok is None
    cells = [cell.strip() for cell in table([as_record(result)]).splitlines()[-1].split("|")]
    assert cells == ["alone", "3", "-", "us", "-", "<= 1.00x", "-"]


def test_the_table_and_the_file_show_the_percentiles() -> None:
    latencies = tuple(number * 1e-6 for number in range(1, 101))
    result = Result(Case("slow", lambda _: constant(1), None, None, "us"), Side((1.0,), latencies), None)
    assert "p50 51 us, p99 100 us" in table([as_record(result)])
    stored = json.loads(json.dumps(as_record(result)))["ours"]
    assert stored["p99_us"] == pytest.approx(100)


def test_percentile_is_a_value_of_the_sample() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([3.0, 1.0, 2.0], 99) == 3.0


def test_an_unknown_case_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "no such case"]) == 2
    assert "--list shows them" in capsys.readouterr().err


def test_further_sides_take_turns_too_and_stand_beside_ours(tmp_path: Path) -> None:
    case = Case(
        "several",
        lambda _: constant(3.0),
        lambda _: constant(6.0),
        None,
        "us",
        3,
        others={LIMIT: lambda _: constant(2.0)},
    )
    result = measure(case, base=tmp_path)
    assert result.others == {LIMIT: Side((2.0, 2.0, 2.0))}
    assert "limit: 2 us, ours is 1.50x (1.50 to 1.50)" in table([as_record(result)])


def test_a_case_that_takes_long_ends_after_its_third_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.harness._SECONDS", 0.0)
    result = measure(Case("long", lambda _: constant(1.0), None, None, "us", rounds=9), base=tmp_path)
    assert len(result.ours.values) == 3


def test_every_goal_is_for_a_case_that_there_is() -> None:
    names = {work.name for group in group_names() for work in work_of(group)}
    for goal in GOALS:
        known = goal.case in names if not goal.case.endswith("*") else any(n.startswith(goal.case[:-1]) for n in names)
        assert known, f"{goal.work}: no case is called {goal.case!r}"


def test_no_two_pieces_of_work_have_one_name() -> None:
    names = [work.name for group in group_names() for work in work_of(group)]
    assert len(names) == len(set(names))


def test_a_part_of_a_run_takes_the_place_of_its_cases_in_the_kept_one(tmp_path: Path) -> None:
    file, whole, part = tmp_path / "run.json", new_run(quick=True), new_run(quick=True)
    whole["results"] = [{"name": "a", "at": 1}, {"name": "b", "at": 1}]
    keep(whole, file, whole=True)
    part["results"] = [{"name": "b", "at": 2}]
    keep(part, file, whole=False)
    assert json.loads(file.read_text())["results"] == [{"name": "a", "at": 1}, {"name": "b", "at": 2}]
    with pytest.raises(SystemExit, match="holds a short run, this is a full one"):
        keep(new_run(quick=False), file, whole=False)


def test_a_group_is_measured_in_another_process_and_nothing_begins_after_its_time(tmp_path: Path) -> None:
    told = list(measured("wal", "raw stream", quick=True, base=tmp_path, until=0))
    assert told == [("left_out", {"name": "wal append, 20 rows, beside raw stream", "group": "wal"})]
