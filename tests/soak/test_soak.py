"""A table that is written, read, followed, maintained, fenced and killed loses nothing and does not grow."""

import os
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.harness.profile import scaled
from tests.kit.log_life import LATE_SECONDS, Ledger, Write
from tests.soak import children
from tests.soak.children import SoakLife, follow
from tests.soak.crowd import Plan, Soak, SoakFailure
from tests.soak.episodes import Storm, full_disk, overload
from tests.soak.figures import JUDGED_SECONDS, Moment, drawing, grown

CALM = Moment(1.0, 100.0, 20, 30, 500, 10, 3, 0, {"get": [1.0, 2.0, 9.0]})
SMALL = Plan(
    seconds=4,
    rows=1_000,
    shards=2,
    writers=3,
    writes_per_second=21,
    reads_per_second=7.0,
    maintain_every=0.6,
    keep_seconds=30.0,  # no read takes longer, however busy the machine: what it reads is not collected
    kill_every=0.6,
    intrude_every=1.7,
)


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=240, prove=1_800))
def test_nothing_is_lost_and_nothing_grows(tmp_path: Path) -> None:
    soak = Soak(tmp_path, scaled(ci=SMALL, prove=Plan(seconds=600)))
    soak.run()
    counts = soak.counts
    ran = (sum(counts.kills.values()), counts.reads, counts.scans, counts.changes, soak.ledger.acknowledged)
    assert min(ran) > 0, soak.summary()
    assert grown(soak.moments, soak.plan.seconds) == []
    ET.fromstring(drawing(soak.moments))


def test_puts_that_come_faster_than_flushes_wait_for_them(tmp_path: Path) -> None:
    assert overload(tmp_path / "t", scaled(ci=1.5, prove=JUDGED_SECONDS)).broken == []


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


def test_a_write_of_the_dead_may_come_after_the_next_one_but_not_after_a_later_one() -> None:
    ledger, end = Ledger([1]), 1.5 + LATE_SECONDS
    ledger.issued(_write(5, "put", 1.0))
    ledger.lost_by(range(5, 6), 1.5)
    ledger.issued(_write(6, "put", end - 0.2))
    ledger.returned(6, end - 0.1)
    assert ledger.wrong({1: 5}, [1], end + 1, end + 1.1) == []  # it came right after the other one
    ledger.forget(500.0)
    assert ledger.wrong({1: 5}, [1], 500.0, 500.1) == []  # and nothing has replaced it since
    ledger.issued(_write(7, "put", 501.0))
    ledger.returned(7, 501.5)
    assert ledger.wrong({1: 5}, [1], 502.0, 502.1) != []
    assert ledger.wrong({1: 7}, [1], 502.0, 502.1) == []


def test_a_write_of_the_dead_that_comes_back_in_a_short_run_is_noticed() -> None:
    ledger, end = Ledger([1]), 1.5 + LATE_SECONDS
    ledger.issued(_write(5, "put", 1.0))
    ledger.lost(5, 1.5)
    ledger.issued(_write(6, "put", end + 0.1))
    ledger.returned(6, end + 0.2)
    assert ledger.wrong({1: 6}, [1], end + 0.3, end + 0.4) == []
    assert ledger.wrong({1: 5}, [1], end + 0.3, end + 0.4) != []
    assert end < SMALL.seconds


def _growing(**per_second: float) -> list[Moment]:
    """100 moments, in which figures grow by so much a second."""
    return [
        replace(CALM, **{name: getattr(CALM, name) + more * second for name, more in per_second.items()})
        for second in range(100)
    ]


@pytest.mark.parametrize(
    ("per_second", "told"),
    [
        ({}, []),
        ({"rss_mib": 3.0}, ["memory of a process"]),
        ({"descriptors": 2.0}, ["open files of a process (most)"]),
        ({"waiting_for_indexes": 0.12}, ["compacted SSTables that wait for an index"]),  # slowly, past its ceiling
        ({"objects": 10.0, "uncompacted": 1.0}, ["objects below the table", "SSTables that are not compacted"]),
    ],
)
def test_growth_is_noticed_in_a_run_that_is_long_enough(per_second: dict[str, float], told: list[str]) -> None:
    moments = _growing(**per_second)
    assert [text.split(":")[0].split(",")[0] for text in grown(moments, JUDGED_SECONDS)] == told
    assert grown(moments, JUDGED_SECONDS - 1) == []


def test_slower_gets_are_noticed() -> None:
    slower = [replace(CALM, milliseconds={"get": [1.0 + second]}) for second in range(100)]
    assert [text.split(",")[0] for text in grown(slower, 600.0)] == ["one get"]


STORM = Storm(JUDGED_SECONDS, rows=1_000, waited=9, most_bytes=8 << 20, grown_mib=30.0, before_ms=1.0, after_ms=2.0)


@pytest.mark.parametrize(
    ("change", "told", "in_any_run"),
    [
        ({}, [], True),
        ({"waited": 0}, ["no put waited, so it was no overload"], True),
        ({"most_bytes": 16 << 20}, ["memtables grew past their limit"], True),
        ({"lost": 1}, ["1 acknowledged rows are lost, 0 are invented"], True),
        ({"invented": 2}, ["0 acknowledged rows are lost, 2 are invented"], True),
        ({"grown_mib": 200.0}, ["memory grew"], False),
        ({"after_ms": 40.0}, ["puts stayed slow afterwards"], False),
    ],
)
def test_overload_that_breaks_a_promise_is_noticed(change: dict[str, float], told: list[str], in_any_run: bool) -> None:
    storm = replace(STORM, **change)
    assert storm.broken() == told
    assert replace(storm, seconds=1.5).broken() == (told if in_any_run else [])


# A soak whose process ends by itself, or fails where nothing fails, is broken, however well the rows are.

PLAN = Plan(seconds=1.5, rows=50, shards=1, writers=2, kill_every=0.5)


def idles(life: SoakLife, pipe: Connection) -> None:
    pipe.send(("maintained", 0.0))
    while not life.stopped:
        time.sleep(0.01)
    pipe.send(("ended",))


def aborts(life: SoakLife, pipe: Connection) -> None:
    pipe.send(("maintained", 0.0))
    os.abort()


def leaves(life: SoakLife, pipe: Connection) -> None:
    pipe.send(("maintained", 0.0))
    os._exit(3)


def stops_too_early(life: SoakLife, pipe: Connection) -> None:
    pipe.send(("maintained", 0.0))
    pipe.send(("ended",))


def finds_damage_where_nothing_fails(life: SoakLife, pipe: Connection) -> None:
    if not life.fault_rate:
        pipe.send(("refused", "CorruptDataError: no such bytes"))
    idles(life, pipe)


def finds_damage_that_no_fault_makes(life: SoakLife, pipe: Connection) -> None:
    pipe.send(("refused", "CorruptDataError: no such bytes"))
    idles(life, pipe)


def is_refused_for_a_reason(life: SoakLife, pipe: Connection) -> None:
    pipe.send(("refused", "TableReplacedError: by a fault" if life.fault_rate else "FencedError: by an intruder"))
    idles(life, pipe)


def soak(place: Path, monkeypatch: pytest.MonkeyPatch, **roles: Callable[..., None]) -> Soak:
    """A soak whose processes idle, but for these roles."""
    for name in ("write", "read", "keep", "follow", "intrude"):
        monkeypatch.setattr(children, name, roles.get(name, idles))
    return Soak(place, PLAN)


@pytest.mark.parametrize(
    ("role", "work", "told"),
    [
        ("keep", aborts, "keeper ended by itself with exit status -6"),
        ("read", leaves, "reader ended by itself with exit status 3"),
        ("follow", stops_too_early, "follower ended by itself with exit status 0"),
        ("write", finds_damage_where_nothing_fails, "writer 0 failed although its store is well.*CorruptDataError"),
        ("read", finds_damage_that_no_fault_makes, "reader failed as no store explains.*CorruptDataError"),
        ("keep", finds_damage_that_no_fault_makes, "keeper failed as no store explains.*CorruptDataError"),
        ("follow", finds_damage_that_no_fault_makes, "follower failed as no store explains.*CorruptDataError"),
    ],
)
def test_what_nobody_planned_ends_the_soak(
    role: str, work: Callable[..., None], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SoakFailure, match=told):
        soak(tmp_path, monkeypatch, **{role: work}).run()


def test_kills_and_errors_with_a_reason_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calm = soak(tmp_path, monkeypatch, write=is_refused_for_a_reason, follow=follow)
    calm.run()
    assert sum(calm.counts.kills.values()) > 0
    assert set(calm.counts.errors) == {"FencedError", "TableReplacedError"}
