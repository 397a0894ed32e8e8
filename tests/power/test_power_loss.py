"""With `fsync` what was acknowledged survives power loss, whatever the disk kept of the rest.

Of a long life, and of all lives in CI, instants and fates are drawn. `make prove ARGS=tests/power` goes through every instant
of a short life, with every fate that does not draw, and through a sample of those that do; it says how many states that were.
Disks are played, so they are in memory.
"""

import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.errors import CorruptDataError
from tests.harness.processes import memory_directory
from tests.harness.profile import scaled
from tests.power.disk import FATES, REORDERED, Disk, Kind, Record
from tests.power.outage import Outage, Outages, record_life
from tests.power.promises import BUGS, ONLY_LANCE

LIVES = scaled(ci=1, prove=8)
TELLING = scaled(ci=35, prove=1_000)  # states right after an acknowledgement or a new manifest, with what was synced
STATES = scaled(ci=30, prove=1_500)  # of all others
DRAWS = scaled(ci=1, prove=40)  # of every fate that draws, at every instant of the short life
REORDERINGS = 4_000  # of these
SHORT = "stand_on_versions_of_lance"
BROKEN = sorted(set(BUGS) - {"none"})
FIRST_SEED = int(os.environ.get("SEED", "0"))


@pytest.fixture
def place() -> Iterator[Path]:
    with memory_directory() as directory:
        yield directory


def _first_broken(outages: Outages, states: list[Outage]) -> tuple[Outage, list[str]] | None:
    return next(((state, broken) for state in states if (broken := outages.judge(state))), None)


def _states(outages: Outages, seed: int, count: int, others: int) -> list[Outage]:
    draw = random.Random(seed)
    telling = [*outages.promised(), *outages.named()]
    return sorted(
        _some(draw, telling, count) + _some(draw, list(outages.all(FATES, [seed])), others),
        key=lambda state: state.records,
    )


def _some(draw: random.Random, states: list[Outage], count: int) -> list[Outage]:
    return draw.sample(states, min(count, len(states)))


@pytest.mark.parametrize("seed", [0, 1], ids=["versions of ours", "versions of Lance"])
def test_what_is_kept_survives_on_a_version_that_lance_did_not_sync(seed: int, place: Path) -> None:
    outages = record_life(place, seed, story=SHORT)
    assert _first_broken(outages, _states(outages, seed, 40, 40)) is None


def test_data_is_synced_before_a_version_of_the_base_that_has_it_gets_its_name(place: Path) -> None:
    """A version that Lance makes and names in one call is synced right after it (docs/reliability.md)."""
    assert record_life(place, 0, story=SHORT).named_before_synced() == []


@pytest.mark.prove
@pytest.mark.parametrize("seed", [0, 1], ids=["versions of ours", "versions of Lance"])
def test_short_life_survives_power_loss_at_any_time(seed: int, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outages = record_life(place, seed, story=SHORT)
    settled = list(outages.all(fate for fate in FATES if fate not in REORDERED))
    drawn = list(outages.all(REORDERED, range(FIRST_SEED, FIRST_SEED + DRAWS)))
    reordered = _some(random.Random(FIRST_SEED), drawn, REORDERINGS)
    with capsys.disabled():
        print(
            f"\n{len(list(outages.instants()))} instants, {len(FATES) - len(REORDERED)} fates each: {len(settled)} states; "
            f"{len(reordered)} of {len(drawn)} reorderings [seed={FIRST_SEED}]"
        )
    states = sorted(settled + reordered, key=lambda state: state.records)
    assert _first_broken(outages, states) is None


@pytest.mark.scaled
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + LIVES))
def test_acknowledged_rows_survive_power_loss(seed: int, place: Path) -> None:
    outages = record_life(place, seed)
    assert _first_broken(outages, _states(outages, seed, TELLING, STATES)) is None


@pytest.mark.parametrize("bug", BROKEN)
def test_an_engine_that_forgets_to_sync_is_caught(bug: str, place: Path) -> None:
    seed = int(bug in ONLY_LANCE)
    outages = record_life(place, seed, bug, story=SHORT)
    assert _first_broken(outages, _states(outages, seed, 40, 40)) is not None


def _empty(_data: bytes) -> bytes:
    return b""


def _zeros(data: bytes) -> bytes:
    return bytes(len(data))


def _without_its_message(data: bytes) -> bytes:
    """Lance takes it for a version 0."""
    (at,) = struct.unpack_from("<Q", data, len(data) - 16)
    return data[:at] + bytes(len(data) - 16 - at) + data[-16:]


def _without_its_layout(data: bytes) -> bytes:
    return data[:-10] + bytes(6) + data[-4:]


def _without_a_part_of_its_indexes(data: bytes) -> bytes:
    """Files of an index, of which we need to know nothing."""
    at = data.index(b"bitmap_page_lookup.lance") + 24
    return data[: at - 26] + bytes(26) + data[at:]


@pytest.mark.parametrize(
    "torn", [_empty, _zeros, _without_its_message, _without_its_layout, _without_a_part_of_its_indexes]
)
def test_a_torn_version_says_what_to_do(torn: Callable[[bytes], bytes], tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, pa.table({"id": [1], "n": [1]}), primary_key="id")
    table.indexes.create("n", index_type="BITMAP", name="by_n")
    newest = min((tmp_path / "t" / "_versions").glob("*.manifest"))
    newest.write_bytes(torn(newest.read_bytes()))
    with pytest.raises(CorruptDataError) as error:
        mw.open_table(uri)
    assert any("_versions" in note for note in error.value.__notes__)


# What a disk may hold of a write that was not synced: all, nothing, its beginning, room without bytes, or a hole.

OLD, NEW = b"o" * 40, b"n" * 100
ROOT = "/disk"


def left_by(place: Path, fate: str, *, old: bytes = OLD, seed: int = 0) -> bytes | None:
    """What is in a file whose first bytes and name were synced, after a later write of all of it; None: it has no name."""
    disk = Disk(ROOT)
    for record in (
        Record(Kind.MADE, 1),
        Record(Kind.NAMED, 1, path=f"{ROOT}/a"),
        Record(Kind.WROTE, 1, data=old),
        Record(Kind.SYNCED, 1),
        Record(Kind.SYNCED),
        Record(Kind.WROTE, 1, data=NEW),
    ):
        disk.play(record)
    disk.write(place / f"{fate}-{seed}", fate, random.Random(seed))
    file = place / f"{fate}-{seed}" / "a"
    return file.read_bytes() if file.exists() else None


@pytest.mark.parametrize(
    ("fate", "left"),
    [
        ("nothing more", OLD),
        ("everything", NEW),
        ("names without bytes", OLD),
        ("all but removals", NEW),
        ("zeros", OLD + bytes(60)),
    ],
)
def test_a_fate_that_does_not_draw_leaves_what_its_name_says(fate: str, left: bytes, tmp_path: Path) -> None:
    assert left_by(tmp_path, fate) == left


def test_a_hole_shows_what_was_there_before_and_zeros_behind_it(tmp_path: Path) -> None:
    before = OLD + bytes(60)
    holes = set()
    for seed in range(20):
        left = left_by(tmp_path, "a hole", seed=seed)
        assert left is not None
        lost = [at for at in range(100) if left[at] != NEW[at]]
        assert len(left) == 100
        assert all(left[at] == before[at] for at in lost)
        assert lost == list(range(min(lost, default=0), max(lost, default=-1) + 1))
        holes.add((min(lost, default=0), max(lost, default=-1)))
    assert len(holes) > 10
    assert any(0 < first <= last < 99 for first, last in holes)


def test_some_writes_are_cut_short_some_are_zeros_and_some_have_a_hole(tmp_path: Path) -> None:
    found = {left_by(tmp_path, "most", old=b"", seed=seed) for seed in range(200)}
    assert {b"", NEW, bytes(100)} <= found
    assert any(len(left) < 100 and left.strip(b"n") == b"" for left in found if left)
    assert any(left[:1] == left[-1:] == b"n" and b"\0" in left for left in found if left)


def test_every_fate_is_tried(tmp_path: Path) -> None:
    assert all(left_by(tmp_path, fate) is not None for fate in FATES)
