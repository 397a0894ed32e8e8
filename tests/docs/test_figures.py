"""The pages with figures show what their scripts make: the costs that can be counted cheaply, and the kept benchmarks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cost_model, plots
from benchmarks.harness import Case, Result, Sample, Side
from benchmarks.kept import as_record, kept_runs, new_run

ROOT = Path(__file__).resolve().parents[2]
CASES = (("a rate", "/s"), ("a cost <&>", "ms"), ("alone", "ms"))


def rows(page: str, section: str) -> dict[str, list[str]]:
    """The rows of a table of the page, by their first cell."""
    text = page.partition(f"<!-- {section} -->")[2].partition("<!-- end of")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return {row[0]: row[1:] for row in cells[2:]}


@pytest.mark.xdist_group("s3")
def test_the_cost_page_has_what_is_counted_now(s3_table: tuple[str, dict[str, str]]) -> None:
    shown = rows(cost_model.PAGE.read_text(encoding="utf-8"), "1 shards")
    for name, cost in cost_model.count_cheap(*s3_table).items():
        requests = sum(int(cell.replace(",", "")) for cell in shown[name][:3])
        of_lance = int(shown[name][3])
        assert sum(cost.ours.values()) == requests - of_lance, f"{name}: python -m benchmarks.cost_model --write"


def test_the_cost_page_is_whole() -> None:
    page = cost_model.PAGE.read_text(encoding="utf-8")
    one, hundred, many = (rows(page, f"{n} shards") for n in (1, 100, 10000))
    assert list(one) == list(hundred) == list(many)
    assert one[cost_model.PUT_ONE][:3] == hundred[cost_model.PUT_ONE][:3] == ["1", "0", "0"]
    assert hundred[cost_model.PUT_ALL][0] == "100"
    assert list(rows(page, "idle hours")) == ["1", "100", "10,000"]


def test_the_benchmark_page_is_made_of_the_kept_runs() -> None:
    page = plots.PAGE.read_text(encoding="utf-8")
    made, pictures = plots.rendered(kept_runs(), page)
    assert made == page, "python -m benchmarks.plots"
    for name, svg in pictures.items():
        assert (ROOT / "docs" / "pictures" / name).read_text(encoding="utf-8") == svg


def run_of(rates: tuple[float, float]) -> dict[str, Any]:
    """A run with a case whose unit is a rate, one whose unit is a cost, and one without a peer."""

    def nothing(_: object) -> Sample:
        return Sample(0.0)

    rate, cost, alone = (Case(name, nothing, None, None, unit) for name, unit in CASES)
    results = [
        Result(rate, Side(rates), Side((10.0, 10.0)), ratio=sum(rates) / 20),
        Result(cost, Side((1.0, 1.0)), Side((4.0, 4.0)), ratio=0.25),
        Result(alone, Side((1.0, 1.0)), None),
    ]
    return new_run(quick=True) | {"results": [as_record(result) for result in results]}


def test_bars_say_how_many_times_better_whatever_the_unit() -> None:
    rate, cost = plots.bars_of(run_of((20.0, 40.0)))
    assert (rate.better, rate.least, rate.greatest) == (3.0, 2.0, 4.0)
    assert (cost.name, cost.better) == ("a cost <&>", 4.0)
    svg = plots.drawing([rate, cost])
    assert "a cost &lt;&amp;&gt;" in svg
    assert "<title" in svg


def test_history_begins_with_the_second_run() -> None:
    first, second = run_of((20.0, 20.0)), run_of((40.0, 40.0))
    assert plots.history([("0.1.0", first)]) is None
    page = "".join(f"<!-- {name} --><!-- end of {name} -->" for name in ("facts", "figures", "history"))
    made, pictures = plots.rendered([("0.1.0", first), ("0.2.0", second)], page)
    assert set(pictures) == {"benchmarks.svg", "benchmark-history.svg"}
    assert "| alone | ms | 1 | 1 |  |  |  |  |  |" in made
    assert re.search(r"Run `0.2.0`.*A short run", made)
