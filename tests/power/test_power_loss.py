"""With `fsync` what was acknowledged survives power loss: at every instant of a life, whatever the disk kept of the rest."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.errors import CorruptDataError
from tests.harness.profile import scaled
from tests.power.bugs import BUGS, ONLY_LANCE
from tests.power.outage import Outage, Outages, record_life

LIVES = scaled(ci=1, prove=8)
TELLING = scaled(ci=35, prove=1_000)  # states right after an acknowledgement or a new manifest, with what was synced
STATES = scaled(ci=30, prove=1_500)  # of all others
SHORT = "stand_on_versions_of_lance"
BROKEN = sorted(set(BUGS) - {"none"})
FIRST_SEED = int(os.environ.get("SEED", "0"))


def _first_broken(outages: Outages, states: list[Outage]) -> tuple[Outage, list[str]] | None:
    return next(((state, broken) for state in states if (broken := outages.judge(state))), None)


def _states(outages: Outages, seed: int, count: int, others: int) -> list[Outage]:
    draw = random.Random(seed)
    telling = [*outages.promised(), *outages.named()]
    return sorted(
        _some(draw, telling, count) + _some(draw, list(outages.all(seed)), others), key=lambda state: state.records
    )


def _some(draw: random.Random, states: list[Outage], count: int) -> list[Outage]:
    return draw.sample(states, min(count, len(states)))


def test_what_is_kept_survives_on_a_version_that_lance_did_not_sync(tmp_path: Path) -> None:
    outages = record_life(tmp_path, 1, story=SHORT)
    assert _first_broken(outages, _states(outages, 1, 40, 15)) is None


@pytest.mark.scaled
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + LIVES))
def test_acknowledged_rows_survive_power_loss(seed: int, tmp_path: Path) -> None:
    outages = record_life(tmp_path, seed)
    assert _first_broken(outages, _states(outages, seed, TELLING, STATES)) is None


@pytest.mark.parametrize("bug", BROKEN)
def test_an_engine_that_forgets_to_sync_is_caught(bug: str, tmp_path: Path) -> None:
    seed = int(bug in ONLY_LANCE)
    outages = record_life(tmp_path, seed, bug, story=SHORT)
    assert _first_broken(outages, _states(outages, seed, 40, 40)) is not None


def test_a_torn_version_says_what_to_do(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    mw.create_table(uri, pa.schema([("id", pa.int64())]))
    min((tmp_path / "t" / "_versions").glob("*.manifest")).write_bytes(b"")
    with pytest.raises(CorruptDataError) as torn:
        mw.open_table(uri)
    assert any("_versions" in note for note in torn.value.__notes__)
