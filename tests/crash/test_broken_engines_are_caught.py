"""The harness is worth something only if it calls a broken engine broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import broken_engines
import pytest

from tests.harness.crash import CrashFailure, run_crashes

ENGINES = [
    (broken_engines.acknowledges_before_the_log, {"I1", "I2", "I4", "I10"}),
    (broken_engines.moves_the_cursor_too_far, {"I10", "I1", "I3"}),
    (broken_engines.publishes_without_a_sidecar, {"I10"}),
    (broken_engines.forgets_the_tail, {"I1", "I4"}),
    (broken_engines.replays_what_is_published, {"I5", "I10"}),
    (broken_engines.writes_half_a_put, {"I4"}),
]


@pytest.mark.parametrize(("engine", "rules"), ENGINES, ids=[engine.__name__ for engine, _ in ENGINES])
def test_an_engine_with_a_classic_bug_fails_within_a_hundred_kills(
    engine: Callable[..., None], rules: set[str], tmp_path: Path
) -> None:
    with pytest.raises(CrashFailure) as failure:
        run_crashes(str(tmp_path), 100, only="shard", target=engine)
    assert any(f"{rule}:" in str(failure.value) for rule in rules), str(failure.value)
