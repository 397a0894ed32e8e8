"""What a disk may hold of a write that was not synced: all, nothing, its beginning, room without bytes, or a hole."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.power.disk import FATES, Disk, Kind, Record

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
