"""A table that is written, read, followed, maintained, fenced and killed loses nothing and does not grow."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness.profile import profile, scaled
from tests.soak.crowd import Plan, Soak
from tests.soak.episodes import full_disk, overload
from tests.soak.figures import TIMES, TITLES, Moment, drawing, growth, quarters
from tests.soak.ledger import Ledger, Write

CALM = Moment(1.0, 100.0, 20, 30, 500, 10, 3, 0, {"get": [1.0, 2.0, 9.0]})
SMALL = Plan(
    seconds=7,
    rows=1_000,
    shards=2,
    writers=3,
    writes_per_second=12,
    maintain_every=1.0,
    keep_seconds=30.0,  # no read takes longer, however busy the machine: what it reads is not collected
    kill_every=1.0,
    intrude_every=3.0,
)


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=240, prove=1_800))
def test_nothing_is_lost_and_nothing_grows(tmp_path: Path) -> None:
    soak = Soak(tmp_path, scaled(ci=SMALL, prove=Plan(seconds=600)))
    soak.run()
    assert sum(soak.counts.kills.values()) >= 3
    assert soak.counts.scans >= 1
    assert soak.counts.changes > 0
    assert soak.ledger.acknowledged >= 30
    soon = [name for name in TITLES if name not in TIMES | {"objects"}]  # of these some seconds say nothing
    assert growth(soak.moments, list(TITLES) if profile() == "prove" else soon) == []
    assert quarters(soak.moments, "waiting_for_indexes")[1] <= 8
    assert quarters(soak.moments, "objects")[1] <= scaled(ci=4_000, prove=8_000)
    ET.fromstring(drawing(soak.moments))


def test_puts_that_come_faster_than_flushes_wait_for_them(tmp_path: Path) -> None:
    assert overload(tmp_path / "t", scaled(ci=1.5, prove=30.0)).broken == []


@pytest.mark.parametrize("mount", [True, False], ids=["a small disk if one can be mounted", "a store that is full"])
def test_a_full_disk_refuses_loses_nothing_and_recovers(tmp_path: Path, mount: bool) -> None:
    assert full_disk(tmp_path / "disk", mount=mount).broken == []


# ------------------------------------------------------------------------------------------------------- who judges it


def _write(number: int, kind: str, issued: float, acked: float | None = None) -> Write:
    return Write(number, kind, (1,), issued, acked)  # type: ignore[arg-type]


def test_the_ledger_sees_a_lost_row_and_an_invented_one() -> None:
    ledger = Ledger([1, 2])
    ledger.issued(_write(7, "put", 1.0))
    assert ledger.wrong({1: 0, 2: 0}, [1, 2], 1.5, 1.6) == []  # not acknowledged yet: before or after
    assert ledger.wrong({1: 7, 2: 0}, [1, 2], 1.5, 1.6) == []
    ledger.returned(7, 2.0)
    assert len(ledger.wrong({1: 0, 2: 0}, [1, 2], 2.1, 2.2)) == 1  # lost
    assert len(ledger.wrong({1: 8, 2: 0}, [1, 2], 2.1, 2.2)) == 1  # invented
    assert len(ledger.wrong({1: 7}, [1, 2], 2.1, 2.2)) == 1  # the other one is gone
    assert ledger.wrong({1: 7, 2: 0}, [1, 2], 0.1, 0.9) != []  # before it was issued
    ledger.forget(1_000.0)
    assert ledger.wrong({1: 7, 2: 0}, [1, 2], 1_000.0, 1_000.0) == []


def test_the_ledger_sees_what_was_deleted_come_back() -> None:
    ledger = Ledger([1])
    ledger.issued(_write(3, "delete", 1.0))
    ledger.returned(3, 1.5)
    ledger.issued(_write(4, "update", 2.0))
    ledger.returned(4, 2.5)
    assert ledger.wrong({}, [1], 3.0, 3.1) == []  # an update makes no row
    assert ledger.wrong({1: 4}, [1], 3.0, 3.1) != []
    assert ledger.wrong({1: 0}, [1], 3.0, 3.1) != []


def test_a_write_of_the_dead_may_come_late_but_not_for_ever() -> None:
    ledger = Ledger([1])
    ledger.issued(_write(5, "put", 1.0))
    ledger.lost_by(range(5, 6), 1.5)
    ledger.issued(_write(6, "put", 2.0))
    ledger.returned(6, 2.5)
    assert ledger.wrong({1: 5}, [1], 3.0, 3.1) == []
    ledger.forget(500.0)
    assert ledger.wrong({1: 5}, [1], 500.0, 500.1) != []
    assert ledger.wrong({1: 6}, [1], 500.0, 500.1) == []


def test_growth_is_noticed() -> None:
    grown = [replace(CALM, rss_mib=100.0 + 3 * second) for second in range(100)]
    assert [text.split(",")[0] for text in growth(grown, list(TITLES))] == ["memory of a process"]
    assert growth([CALM] * 100, list(TITLES)) == []
