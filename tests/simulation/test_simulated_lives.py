"""Some lives of each kind in every run, many in `make prove`; and that a life can be lived again, and finds what is wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lance_memwal.log.manifest import ShardManifestStore, with_generation
from lance_memwal.log.transactions import TransactionMap
from lance_memwal.log.wal import ShardLog
from lance_memwal.types import ShardManifest, SsTable
from lance_memwal.write import flush
from tests.harness.profile import scaled
from tests.simulation.kinds import KINDS, kind_of
from tests.simulation.log_lives import LogLife
from tests.simulation.once_lives import OnceLife
from tests.simulation.writer_lives import WriterLife


def lived(kind: str, seed: int) -> list[str]:
    return [
        f"{what}\n  python -m tests.simulation --kind {kind} --seed {seed} --trace" for what in KINDS[kind](seed).run()
    ]


@pytest.mark.scaled
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_life_breaks_a_promise(kind: str) -> None:
    ci, prove = {"log": (40, 20_000), "once": (15, 10_000), "writer": (10, 5_000)}[kind]
    broken = [what for seed in range(scaled(ci=ci, prove=prove)) for what in lived(kind, seed)]
    assert not broken, "\n".join(broken[:5])


@pytest.mark.scaled
@pytest.mark.parametrize("live", [OnceLife, WriterLife])
def test_no_life_with_lance_breaks_a_promise(live: Callable[..., Any], tmp_path: Path) -> None:
    broken = []
    for seed in range(scaled(ci=5, prove=1_000)):
        broken += live(seed, directory=tmp_path / "table").run()
        shutil.rmtree(tmp_path / "table")
    assert not broken, "\n".join(broken[:5])


def test_every_number_has_a_kind() -> None:
    assert {kind_of(seed) for seed in range(12)} == set(KINDS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_life_can_be_lived_again(kind: str) -> None:
    lives = [KINDS[kind](3, keep_trace=True) for _ in range(2)]
    for life in lives:
        life.run()
    first, second = (life.world.schedule.trace for life in lives)
    assert first == second
    assert len(first) > 20


def test_lives_reach_the_interesting_places() -> None:
    lives = [KINDS[kind](seed) for kind in sorted(KINDS) for seed in range(100, 108)]
    assert not [what for life in lives for what in life.run()]
    assert sum(life.world.crashes for life in lives) > 4
    assert sum(len(life.acknowledged) for life in lives) > 60


# ------------------------------------------------------------------------------------------------------- bugs, put in


def _no_sentinel(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardLog, "place_sentinel", lambda self, transactions, **_: self.next_position)


def _no_second_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardManifestStore, "check_fenced", lambda self, epoch: self.read_latest())


def _claims_without_a_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardManifestStore, "is_newest", lambda self, version: True)


def _sentinel_of_a_sleeper(patch: pytest.MonkeyPatch) -> None:
    """The map of a claimer that slept leaves out what its successor published."""
    take = TransactionMap.take

    def forgetful(self: TransactionMap, *given: Any, **named: Any) -> None:
        take(self, *given, **named)
        self.leaves_out = False

    patch.setattr(TransactionMap, "take", forgetful)


def _cursor_goes_too_far(patch: pytest.MonkeyPatch) -> None:
    """A flush calls the first entry of the next generation flushed, too."""

    def too_far(latest: ShardManifest, sstable: SsTable, covered: int) -> ShardManifest:
        return with_generation(latest, sstable, covered + 1)

    patch.setattr(flush, "with_generation", too_far)


def _repeats_are_new(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionMap, "is_repeat", lambda self, txn: False)


BUGS: dict[str, tuple[str, int, Callable[[pytest.MonkeyPatch], None]]] = {  # the first life that is tried
    "no sentinel": ("log", 0, _no_sentinel),
    "no second look at the manifest": ("log", 0, _no_second_look),
    "a claim without a look at what is newer": ("large log", 715, _claims_without_a_look),
    "a late sentinel forgets": ("once", 440, _sentinel_of_a_sleeper),
    "repeats are new": ("once", 0, _repeats_are_new),
    "the cursor goes too far": ("writer", 0, _cursor_goes_too_far),
}


@pytest.mark.parametrize("bug", BUGS)
def test_lives_find_a_bug_that_was_put_in(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, first, plant = BUGS[bug]
    plant(monkeypatch)
    live = partial(LogLife, size=3) if kind == "large log" else KINDS[kind]
    assert any(live(seed).run() for seed in range(first, first + 300))
