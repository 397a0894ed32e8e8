"""The machine notices a table that says too early that something was collected, and configurations that answer differently."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

import lance_memwal as mw
from tests.kit.tables import Outside
from tests.machine.answers import Answers
from tests.machine.doing import do
from tests.machine.life import MachineLife
from tests.machine.setup import CONFIGURATIONS, KINDS
from tests.machine.steps import Step

PUT: Step = ("put", {"numbers": [1, 2], "parts": 1})
SNAPSHOT: Step = ("snapshot", {})
ASKED: list[Step] = [
    ("look_back", {"which": 0}),
    ("changes_since", {"which": 0}),
    ("changes_in_parts", {"which": 0, "where": None}),
    ("diff", {"which": 0, "before": False}),
]
METHODS = {"look_back": "at", "changes_since": "changes", "changes_in_parts": "changes", "diff": "diff"}


@contextmanager
def living(elsewhere: Outside, *steps: Step) -> Iterator[MachineLife]:
    """A life after these steps."""
    life = MachineLife(KINDS[0], CONFIGURATIONS[0], [0, 1], elsewhere)
    try:
        for step in steps:
            do(life, step)
        yield life
    finally:
        life.close()


def is_gone(*_: Any, **__: Any) -> NoReturn:
    raise mw.CollectedError("so it says")


@pytest.mark.parametrize("step", ASKED, ids=[name for name, _ in ASKED])
@pytest.mark.parametrize(
    ("since", "may_be_gone"),
    [
        ([PUT, ("flush", {}), ("compact", {"most": None})], False),  # nobody collected
        ([("collect", {})], False),  # nothing had changed, so nothing of that moment could go
        ([PUT, ("flush", {}), ("collect", {})], True),
        ([PUT, ("maintain", {})], True),
    ],
    ids=["never collected", "collected at that moment", "collected", "maintained"],
)
def test_a_moment_is_gone_only_if_somebody_collected_past_it(
    step: Step, since: list[Step], may_be_gone: bool, elsewhere: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    with living(elsewhere, PUT, ("close", {}), SNAPSHOT, *since) as life, monkeypatch.context() as patched:
        patched.setattr(mw.Table, METHODS[step[0]], is_gone)
        if may_be_gone:
            do(life, step)
        else:
            with pytest.raises(AssertionError):
                do(life, step)


def test_a_checkpoint_is_never_gone(elsewhere: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Step] = [PUT, ("checkpoint", {}), PUT, ("maintain", {})]
    with living(elsewhere, *steps) as life, monkeypatch.context() as patched:
        patched.setattr(mw.Table, "at", is_gone)
        with pytest.raises(AssertionError):
            do(life, ASKED[0])


def test_an_answer_that_only_one_configuration_gives_is_noticed(elsewhere: Outside) -> None:
    count: Step = ("count", {"where": None})
    answers = Answers()
    with living(elsewhere, PUT) as life:
        told = do(life, count)
    assert told.keys() == {"count", "the table"}
    answers.take("one", 1, count, told)
    answers.take("two", 1, count, {"the table": told["the table"]})  # it may have nothing to say
    answers.take("three", 1, count, told)
    with pytest.raises(AssertionError, match=r"count is .* in 'four', and .* in 'one'"):
        answers.take("four", 1, count, told | {"count": [17]})
