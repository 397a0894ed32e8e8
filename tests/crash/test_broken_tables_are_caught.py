"""Lives over whole tables are worth something only if they call a broken engine broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import broken_tables
import pytest

from tests.harness.crash import CrashFailure, run_crashes, run_takeovers

ENGINES = [
    (broken_tables.appends_a_repeat_again, 5, {"I5:"}),
    (broken_tables.forgets_transactions_when_it_opens, 1, {"I5:"}),
    (broken_tables.loses_races_against_nobody, 0, {"ConflictError: somebody was faster"}),
    (broken_tables.erases_what_an_update_leaves_out, 0, {"I2:", "I12"}),
    (broken_tables.collects_what_others_need, 0, {"CollectedError", "feed"}),
    (broken_tables.keeps_moments_without_the_log, 1, {"I1: the new checkpoint"}),
    (broken_tables.searches_what_is_flushed_alone, 6, {"is not the nearest", "I7: a search for"}),
]


@pytest.mark.parametrize(("engine", "seed", "signs"), ENGINES, ids=[engine.__name__ for engine, _, _ in ENGINES])
def test_a_table_with_a_classic_bug_fails_within_fifty_kills(
    engine: Callable[..., None], seed: int, signs: set[str], tmp_path: Path
) -> None:
    with pytest.raises(CrashFailure) as failure:
        run_crashes(str(tmp_path), 50, seed, only="table", target=engine)
    assert any(sign in str(failure.value) for sign in signs), str(failure.value)


TAKEOVERS = [
    (broken_tables.forgets_transactions_when_it_opens, 1, {"I5:"}),
    (broken_tables.forgets_what_other_sinks_appended, 0, {"second time in shard", "I5:"}),
    (broken_tables.is_fenced_by_nobody, 0, {"(by nobody)"}),
]


@pytest.mark.parametrize(("engine", "seed", "signs"), TAKEOVERS, ids=[engine.__name__ for engine, _, _ in TAKEOVERS])
def test_a_table_with_a_classic_bug_fails_within_twenty_takeovers(
    engine: Callable[..., None], seed: int, signs: set[str], tmp_path: Path
) -> None:
    with pytest.raises(CrashFailure) as failure:
        run_takeovers(str(tmp_path), 20, seed, target=engine)
    assert any(sign in str(failure.value) for sign in signs), str(failure.value)


def test_a_stale_read_of_a_process_that_takes_over_is_caught(tmp_path: Path) -> None:
    with pytest.raises(CrashFailure, match="I1: a scan shows other rows than those that were settled"):
        run_takeovers(str(tmp_path), 40, 3, target=broken_tables.takes_over_what_is_flushed_alone)


def test_a_writer_that_acknowledges_after_a_takeover_is_caught(tmp_path: Path) -> None:
    with pytest.raises(CrashFailure) as failure:
        run_takeovers(str(tmp_path), 40, 0, target=broken_tables.acknowledges_after_a_takeover)
    signs = ("I1:", "I4:", "acknowledged rows (key, number) that no change told")  # whichever look comes first
    assert any(sign in str(failure.value) for sign in signs), str(failure.value)
