"""A soak whose process ends by itself, or fails where nothing fails, is broken, however well the rows are."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.soak import children
from tests.soak.children import SoakLife, follow
from tests.soak.crowd import Plan, Soak, SoakFailure

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
