"""Metering counts every attempt, tells answers from failures, and changes nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from lance_memwal.errors import ObjectExistsError, ObjectNotFoundError, UnavailableError
from lance_memwal.store.local import LocalStore
from lance_memwal.store.location import resolve
from lance_memwal.store.metering import MeteredStore, Recorder
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript
from lance_memwal.testing.clocks import SkippingClock


def test_each_kind_of_call_is_counted_with_its_bytes(tmp_path: Path) -> None:
    metrics = Recorder()
    store = MeteredStore(LocalStore(tmp_path), metrics)
    store.put_new("t/a", b"12345")
    store.put("t/hint", b"123")
    store.get("t/a")
    store.get_range("t/a", 1, 2)
    store.get_tail("t/a", 4)
    store.head("t/a")
    store.list("t")
    store.list_names("t")
    store.sync_tree("t")
    store.delete("t/a")
    seen = {kind: (stats.count, stats.errors, stats.size_bytes) for kind, stats in metrics.snapshot().items()}
    assert seen == {
        "put_new": (1, 0, 5),
        "put": (1, 0, 3),
        "get": (1, 0, 5),
        "get_range": (1, 0, 2),
        "get_tail": (1, 0, 4),
        "head": (1, 0, 0),
        "list": (1, 0, 0),
        "list_names": (1, 0, 0),
        "sync_tree": (1, 0, 0),
        "delete": (1, 0, 0),
    }


def test_a_conflict_and_an_absence_are_answers_and_not_failures(tmp_path: Path) -> None:
    metrics = Recorder()
    store = MeteredStore(LocalStore(tmp_path), metrics)
    store.put_new("a", b"12")
    with pytest.raises(ObjectExistsError):
        store.put_new("a", b"345")
    for read in (store.get, store.head, lambda path: store.get_range(path, 0, 1), lambda path: store.get_tail(path, 1)):
        with pytest.raises(ObjectNotFoundError):
            read("absent")
    totals = metrics.snapshot()
    assert {kind: stats.errors for kind, stats in totals.items()} == dict.fromkeys(totals, 0)
    assert (totals["put_new"].count, totals["put_new"].size_bytes) == (2, 2)


def test_a_failure_counts_as_one_and_adds_no_bytes(tmp_path: Path) -> None:
    metrics = Recorder()
    faults = FaultScript(FaultPlan(at=dict.fromkeys(range(4), FaultKind.ERROR_BEFORE)))
    store = MeteredStore(faults.wrap(LocalStore(tmp_path)), metrics)
    calls = (lambda: store.put_new("a", b"1"), lambda: store.put("a", b"1"), lambda: store.get("a"))
    for call in (*calls, lambda: store.list("a")):
        with pytest.raises(UnavailableError):
            call()
    totals = metrics.snapshot()
    assert sorted(totals) == ["get", "list", "put", "put_new"]
    assert {(stats.count, stats.errors, stats.size_bytes) for stats in totals.values()} == {(1, 1, 0)}


def test_time_spent_is_recorded_with_the_slowest_call(tmp_path: Path) -> None:
    clock = SkippingClock()
    metrics = Recorder()
    faults = FaultScript(FaultPlan(at={1: FaultKind.DELAY}, delay_seconds=5), clock)
    store = MeteredStore(faults.wrap(LocalStore(tmp_path)), metrics, clock)
    store.list("")
    store.list("")
    stats = metrics.snapshot()["list"]
    assert 5 <= stats.max_seconds < 6
    assert stats.max_seconds <= stats.seconds < 6


def test_every_attempt_of_a_retried_call_is_counted(tmp_path: Path) -> None:
    metrics = Recorder()
    faults = FaultScript(FaultPlan(at={0: FaultKind.ERROR_BEFORE}))
    location = resolve(tmp_path, wrap=faults.wrap, metrics=metrics, clock=SkippingClock())
    location.store.put_new("a", b"12")
    assert (metrics.snapshot()["put_new"].count, metrics.snapshot()["put_new"].errors) == (2, 1)


def test_a_crash_passes_through_and_is_counted(tmp_path: Path) -> None:
    metrics = Recorder()
    faults = FaultScript(FaultPlan(at={0: FaultKind.CRASH_AFTER}))
    store = MeteredStore(faults.wrap(LocalStore(tmp_path)), metrics)
    with contextlib.suppress(BaseException):
        store.put_new("a", b"12")
    assert metrics.snapshot()["put_new"].errors == 1
    assert LocalStore(tmp_path).get("a") == b"12"
