"""Whatever happens to a table, every read shows what a dictionary would, now and as of then; settings change no answer."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.harness.profile import scaled
from tests.kit.tables import Outside
from tests.machine.answers import Answers
from tests.machine.doing import do
from tests.machine.life import MachineLife
from tests.machine.setup import CONFIGURATIONS, KEYS, KINDS, Configuration, Kind
from tests.machine.steps import steps_for

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
