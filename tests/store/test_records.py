"""Numbered records: the newest counts, and a create that others have passed is not won."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lance_memwal as mw
from lance_memwal.log.floor import Floor
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.store.records import Records
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript

SHARD = mw.shard_id_for(mw.Unsharded())


def records(tmp_path: Path) -> Records:
    return Records(resolve(str(tmp_path)).store, paths.record_dir(paths.CONSUMERS_DIR, "sync"))


def test_the_newest_record_counts_and_old_ones_go(tmp_path: Path) -> None:
    found = records(tmp_path)
    assert found.newest() is None
    for number in range(1, 13):
        assert found.create(number, {"n": number})
    newest = found.newest()
    assert newest is not None
    assert (newest.number, newest.value) == (12, {"n": 12})
    assert found.numbers() == [10, 11, 12]


def test_a_create_into_an_emptied_slot_is_not_won(tmp_path: Path) -> None:
    found = records(tmp_path)
    for number in range(1, 8):
        found.create(number, {"n": number})
    assert not found.create(2, {"n": "late"})
    newest = found.newest()
    assert newest is not None
    assert newest.number == 7


def test_a_taken_number_is_not_won(tmp_path: Path) -> None:
    found = records(tmp_path)
    assert found.create(1, {"by": "a"})
    assert not found.create(1, {"by": "b"})
    assert found.read(1).value == {"by": "a"}


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7"])
def test_a_damaged_record_is_named(tmp_path: Path, data: bytes) -> None:
    found = records(tmp_path)
    path = tmp_path / found.directory / "1.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    with pytest.raises(mw.CorruptDataError, match=r"1\.json"):
        found.newest()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a" * 101, "ä", None, 3])
def test_a_name_cannot_point_elsewhere(name: str) -> None:
    with pytest.raises(mw.InvalidInputError):
        paths.record_dir(paths.CONSUMERS_DIR, name)


@pytest.mark.parametrize("name", ["1.json", "987654321.json"])
def test_names_of_records_round_trip(name: str) -> None:
    number = paths.parse_record_name(name)
    assert number is not None
    assert paths.record_path("d", number) == f"d/{name}"


@pytest.mark.parametrize("name", ["0.json", "01.json", "1.json.tmp", "-1.json", "x.json", "1"])
def test_stray_names_are_no_records(name: str) -> None:
    assert paths.parse_record_name(name) is None


def test_a_floor_never_falls_whoever_raises_it(tmp_path: Path) -> None:
    location = resolve(str(tmp_path))
    assert Floor(location, SHARD).position() == 0
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda position: Floor(location, SHARD).raise_to(position), [5, 40, 7, 39, 12, 40]))
    floor = Floor(location, SHARD)
    assert floor.position() == 40
    Floor(location, SHARD).raise_to(41)
    assert floor.position() == 41, "a floor that was looked at before sees it rise"


@pytest.mark.parametrize("kind", [FaultKind.CONFLICT_AFTER_EFFECT, FaultKind.CONFLICT_WITHOUT_EFFECT])
def test_a_record_of_ours_that_exists_already_and_one_that_does_not_are_won(tmp_path: Path, kind: FaultKind) -> None:
    script = FaultScript(FaultPlan(at={0: kind}))
    found = Records(resolve(str(tmp_path), wrap=script.wrap).store, paths.record_dir(paths.CONSUMERS_DIR, "sync"))
    assert found.create(1, {"by": "us"})
    assert [call.fault for call in script.injected] == [kind]
    assert not found.create(1, {"by": "others"})
    newest = found.newest()
    assert newest is not None
    assert newest.value == {"by": "us"}
