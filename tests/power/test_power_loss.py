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
from tests.power.outage import Outage, Outages, record_life
from tests.power.power_child import BUGS

LIVES = scaled(ci=1, prove=8)
STATES = scaled(ci=60, prove=4_000)  # of each life, beside those right after each acknowledgement
BROKEN = sorted(set(BUGS) - {"none"})
FIRST_SEED = int(os.environ.get("SEED", "0"))


def _first_broken(outages: Outages, states: list[Outage]) -> tuple[Outage, list[str]] | None:
    return next(((state, broken) for state in states if (broken := outages.judge(state))), None)


def _states(outages: Outages, seed: int, count: int) -> list[Outage]:
    drawn = list(outages.all(seed))
    return [*outages.promised(), *random.Random(seed).sample(drawn, min(count, len(drawn)))]


@pytest.mark.scaled
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + LIVES))
def test_acknowledged_rows_survive_power_loss(seed: int, tmp_path: Path) -> None:
    outages = record_life(tmp_path, seed, 45)
    assert _first_broken(outages, _states(outages, seed, STATES)) is None


@pytest.mark.parametrize("bug", BROKEN)
def test_an_engine_that_forgets_to_sync_is_caught(bug: str, tmp_path: Path) -> None:
    outages = record_life(tmp_path, 1, 45, bug)
    assert _first_broken(outages, _states(outages, 1, 40)) is not None


def test_a_torn_version_says_what_to_do(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    mw.create_table(uri, pa.schema([("id", pa.int64())]))
    min((tmp_path / "t" / "_versions").glob("*.manifest")).write_bytes(b"")
    with pytest.raises(CorruptDataError) as torn:
        mw.open_table(uri)
    assert any("_versions" in note for note in torn.value.__notes__)
