"""The harness is worth something only if it calls a broken engine, and a broken table, broken."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import broken
import pytest

from tests.harness.crash import CrashFailure, run_crashes, run_takeovers

SHARD = partial(run_crashes, kills=100, only="shard")
TABLE = partial(run_crashes, kills=50, only="table")
TAKEOVERS, MANY_TAKEOVERS = partial(run_takeovers, takeovers=20), partial(run_takeovers, takeovers=40)
# Which check fails first depends on the timing: an insert or a comparison may also meet what a fenced writer acknowledged.
ACKNOWLEDGED = (
    "I1:",
    "I4:",
    "acknowledged rows (key, number) that no change told",
    "have a key that is there",
    "was read, and is not there to compare with",
)
CASES = [
    (SHARD, broken.acknowledges_before_the_log, 0, ("I1:", "I2:", "I4:", "I10:")),
    (SHARD, broken.moves_the_cursor_too_far, 0, ("I10:", "I1:", "I3:")),
    (SHARD, broken.publishes_without_a_sidecar, 0, ("I10:",)),
    (SHARD, broken.forgets_the_tail, 0, ("I1:", "I4:")),
    (SHARD, broken.replays_what_is_published, 0, ("I5:", "I10:")),
    (SHARD, broken.writes_half_a_put, 0, ("I4:",)),
    (TABLE, broken.appends_a_repeat_again, 5, ("I5:",)),
    (TABLE, broken.forgets_transactions_when_it_opens, 1, ("I5:",)),
    (TABLE, broken.loses_races_against_nobody, 0, ("ConflictError: somebody was faster",)),
    (TABLE, broken.erases_what_an_update_leaves_out, 0, ("I2:", "I12")),
    (TABLE, broken.collects_what_others_need, 0, ("CollectedError", "feed")),
    (TABLE, broken.keeps_moments_without_the_log, 1, ("I1: the new checkpoint",)),
    (TABLE, broken.searches_what_is_flushed_alone, 6, ("is not the nearest", "I7: a search for")),
    (TAKEOVERS, broken.forgets_transactions_when_it_opens, 1, ("I5:",)),
    (TAKEOVERS, broken.forgets_what_other_sinks_appended, 0, ("second time in shard", "I5:")),
    (TAKEOVERS, broken.is_fenced_by_nobody, 0, ("(by nobody)",)),
    (MANY_TAKEOVERS, broken.takes_over_what_is_flushed_alone, 3, ("I1: a scan shows other rows than those that were",)),
    (MANY_TAKEOVERS, broken.acknowledges_after_a_takeover, 0, ACKNOWLEDGED),
]


@pytest.mark.parametrize(("run", "engine", "seed", "signs"), CASES, ids=[engine.__name__ for _, engine, *_ in CASES])
def test_engine_with_a_bug_fails(
    run: Callable[..., object], engine: Callable[..., None], seed: int, signs: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(CrashFailure) as failure:
        run(str(tmp_path), seed=seed, target=engine)
    assert any(sign in str(failure.value) for sign in signs), str(failure.value)
