"""A process of a proof that ends in a way which nobody planned is a broken promise, however well its rows are."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.harness import deaths
from tests.harness.crash import run_crashes, run_takeovers
from tests.harness.crash_report import CrashFailure, CrashReport
from tests.harness.deaths import NEVER, Actor, Death, watch
from tests.harness.processes import start
from tests.harness.profile import profile
from tests.harness.table_plan import TableLife
from tests.harness.table_record import TableRecord

AT_A_POINT = Death("wal.before_put")


def aborts(pipe: Connection) -> None:
    pipe.send(("opened", 0.1))
    os.abort()


def aborts_when_done(pipe: Connection) -> None:
    pipe.send(("done",))
    os.abort()


def leaves(pipe: Connection) -> None:
    pipe.send(("opened", 0.1))
    os._exit(3)


def returns(pipe: Connection) -> None:
    pipe.send(("opened", 0.1))


def is_done(pipe: Connection) -> None:
    pipe.send(("done",))


def dies(pipe: Connection) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def talks_until_it_is_killed(pipe: Connection) -> None:
    while True:
        pipe.send(("opened", 0.1))
        time.sleep(0.1)


def says_nothing(pipe: Connection) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pause()


def aborts_in_a_table(life: TableLife, pipe: Connection) -> None:
    aborts(pipe)


def watched(*actors: Actor) -> CrashReport:
    report = CrashReport()

    def fail(what: str) -> None:
        raise CrashFailure(what)

    watch(actors, lambda _: None, fail, report)
    return report


STRANGE = [
    (aborts, NEVER, "status -6"),
    (aborts, AT_A_POINT, "status -6"),
    (aborts_when_done, NEVER, "status -6"),
    (leaves, NEVER, "status 3"),
    (returns, NEVER, "status 0"),
    (dies, NEVER, "status -9"),
]


@pytest.mark.parametrize(("work", "death", "told"), STRANGE)
def test_an_end_that_nobody_planned_is_told(work: Callable[..., None], death: Death, told: str) -> None:
    with pytest.raises(CrashFailure, match=told):
        watched(Actor(start(work), death, lingers=False))


def test_a_planned_kill_and_a_life_to_its_end_are_well() -> None:
    report = watched(Actor(start(dies), AT_A_POINT), Actor(start(is_done), lingers=False))
    assert (report.lives, report.kills) == (2, 1)
    report = watched(Actor(start(says_nothing), Death("while writing", "start", 0.05)))
    assert (report.lives, report.kills) == (1, 1)


@pytest.mark.timeout(20)
def test_a_silent_process_is_told_although_another_one_talks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deaths, "DEADLINE_SECONDS", 0.5)
    with pytest.raises(CrashFailure, match="nothing was heard of a process"):
        watched(Actor(start(talks_until_it_is_killed), lingers=False), Actor(start(says_nothing), lingers=False))


@pytest.mark.skipif(profile() != "ci", reason="the proofs have other limits")
def test_a_silent_process_shows_its_stack_before_its_test_runs_out_of_time(pytestconfig: pytest.Config) -> None:
    assert float(pytestconfig.getini("timeout")) > deaths.DEADLINE_SECONDS + 30


@pytest.mark.parametrize("run", [run_crashes, run_takeovers])
def test_a_table_whose_processes_abort_is_told_with_the_command(run: Callable[..., object], tmp_path: Path) -> None:
    with pytest.raises(CrashFailure, match=r"I12(.|\n)*status -6(.|\n)*make crash"):
        run(str(tmp_path), 1, 1, target=aborts_in_a_table)


def test_a_message_that_nobody_knows_is_told() -> None:
    record = TableRecord(CrashReport(), "make crash")
    for tag in ("dies", "done", "fenced", "stops"):
        record.hear((tag,))
    with pytest.raises(CrashFailure, match="'retruned'"):
        record.hear(("retruned", 1, 2, True))
