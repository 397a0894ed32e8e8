"""Whatever happens to a table, every read shows what a dictionary would, now and as of then; settings change no answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import lance_memwal as mw
from tests.harness.profile import scaled
from tests.kit.tables import Outside
from tests.machine.doing import do
from tests.machine.life import MachineLife
from tests.machine.setup import CONFIGURATIONS, KEYS, KINDS, Configuration, Kind
from tests.machine.steps import Step, steps_for

_FIRST = st.lists(st.integers(0, KEYS - 1), unique=True, max_size=6)
_PROFILE = settings(deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.reuse, Phase.generate])


class Machine(RuleBasedStateMachine):
    """One kind of table, in a configuration that is drawn."""

    def __init__(self, kind: Kind, elsewhere: Outside) -> None:
        super().__init__()
        self.kind, self.elsewhere = kind, elsewhere
        self.life: MachineLife | None = None

    @initialize(configuration=st.sampled_from(CONFIGURATIONS), numbers=_FIRST)
    def create(self, configuration: Configuration, numbers: list[int]) -> None:
        self.life = MachineLife(self.kind, configuration, numbers, self.elsewhere)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        assert self.life is not None
        do(self.life, data.draw(steps_for(self.kind)))

    def teardown(self) -> None:
        if self.life is not None:
            self.life.close()


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=600, prove=0))
@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_every_read_shows_what_a_dictionary_would(kind: Kind, elsewhere: Outside) -> None:
    sizes = scaled(ci=(3, 20), prove=(300, 60))
    profile = settings(_PROFILE, max_examples=sizes[0], stateful_step_count=sizes[1])
    run_state_machine_as_test(partial(Machine, kind, elsewhere), settings=profile)


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=600, prove=0))
def test_the_same_steps_give_the_same_answers_in_every_configuration(elsewhere: Outside) -> None:
    @settings(_PROFILE, max_examples=scaled(ci=4, prove=100))
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(KINDS))
        first = data.draw(_FIRST)
        steps = data.draw(st.lists(steps_for(kind), min_size=scaled(ci=8, prove=10), max_size=scaled(ci=10, prove=30)))
        answers = Answers()
        for configuration in CONFIGURATIONS:
            life = MachineLife(kind, configuration, first, elsewhere)
            try:
                for at, step in enumerate(steps):
                    answers.take(configuration.name, at, step, do(life, step))
            finally:
                life.close()

    run()


# The machine notices a table that says too early that something was collected, and configurations that answer
# differently.

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


# Orders of steps that were once judged wrongly, or not at all; each does exactly these.

LOOK_BACK: Step = ("look_back", {"which": 0})


def live(kind: Kind, elsewhere: Outside, *steps: Step) -> MachineLife:
    """A life of these steps, to its end."""
    life = MachineLife(kind, CONFIGURATIONS[0], [0, 1], elsewhere)
    try:
        for step in steps:
            do(life, step)
    finally:
        life.close()
    return life


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_a_moment_has_the_column_that_was_dropped_since(kind: Kind, elsewhere: Outside) -> None:
    steps: list[Step] = [("add_column", {}), PUT, ("checkpoint", {}), ("drop_column", {}), LOOK_BACK]
    life = live(kind, elsewhere, *steps)
    (moment,) = life.model.moments
    assert "e0" in moment.columns
    assert "e0" not in life.model.columns
    assert {row["e0"] for row in moment.rows.values()} > {None}


def test_the_next_column_has_nothing_of_the_one_that_was_dropped(elsewhere: Outside) -> None:
    steps: list[Step] = [("add_column", {}), PUT, ("close", {}), ("drop_column", {}), ("add_column", {}), PUT]
    for kind in KINDS[:1] + KINDS[-1:]:
        assert live(kind, elsewhere, *steps).model.columns[-1] == "e1"


def test_a_reader_of_pylance_is_not_asked_what_it_cannot_know(elsewhere: Outside) -> None:
    past: Step = ("lance_writes", {"numbers": [1, 2]})
    live(KINDS[0], elsewhere, PUT, ("flush", {}), past, ("peer_reads", {}))


def test_a_live_writer_has_older_generations_without_the_new_column(elsewhere: Outside) -> None:
    evolve: Step = ("evolve", {"numbers": [3], "adds": True})
    live(KINDS[0], elsewhere, PUT, ("flush", {}), evolve, ("merge_by_hand", {}))


# What one list of steps answered in several configurations: every answer must be that of the first one that gave it.
#
# A step may have nothing to say in a configuration: what it asks for is not there, or was collected, which each life
# judges by itself.


class Answers:
    """The first answer to everything that was asked, and whose it was."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, str], tuple[str, list[Any]]] = {}

    def take(self, configuration: str, at: int, step: Step, told: dict[str, list[Any]]) -> None:
        """Compare what a step, the so many-th, answered; an `AssertionError` names the two that differ."""
        for what, answer in told.items():
            whose, known = self._first.setdefault((at, what), (configuration, answer))
            assert answer == known, (
                f"step {at}, {step}: {what} is {answer} in {configuration!r}, and {known} in {whose!r}"
            )
