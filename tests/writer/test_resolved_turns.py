"""Writers, appenders and pylance take turns at one table, with crashes, takeovers, compaction and collection between."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.profile import scaled
from tests.kit.turns import Play


@pytest.mark.scaled
@pytest.mark.parametrize("seed", range(scaled(ci=5, prove=400)))
def test_writers_that_take_turns_leave_what_a_dict_holds(tmp_path: Path, seed: int) -> None:
    Play(tmp_path / "t", seed).run(8)
