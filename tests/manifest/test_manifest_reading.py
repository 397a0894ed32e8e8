"""Reading shard manifests: the newest version, and one that is trusted because a listing showed it to be the newest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import lance_memwal as mw
from lance_memwal import CorruptDataError, FencedError, InvalidInputError, UnavailableError
from lance_memwal.errors import ObjectNotFoundError
from lance_memwal.log.manifest import SightedManifests
from lance_memwal.log.manifest_codec import encode_manifest
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.metering import Recorder
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript
from lance_memwal.types import ShardManifest
from tests.kit.logs import SHARD, interrupted, manifests_at, place


def write(location: Location, manifest: ShardManifest) -> None:
    location.store.put_new(paths.manifest_path(SHARD, manifest.version), encode_manifest(manifest))


def history(location: Location, *versions: int) -> None:
    for version in versions:
        write(location, ShardManifest(version, SHARD, writer_epoch=version))


HINTS = {
    "missing": None,
    "stale": b'{"version":1}',
    "too high": b'{"version":900}',
    "zero": b'{"version":0}',
    "negative": b'{"version":-7}',
    "beyond 64 bits": b'{"version":99999999999999999999999}',
    "garbage": b"\xff\x00 no json",
    "empty": b"",
    "of another shape": b"[1, 2, 3]",
    "with more keys": b'{"version":2,"more":true}',
}


@pytest.mark.parametrize("hint", HINTS)
def test_the_newest_version_is_found_whatever_the_hint_says(hint: str, tmp_path: Path) -> None:
    location = place(tmp_path)
    history(location, 1, 2, 3, 4, 5)
    data = HINTS[hint]
    if data is not None:
        location.store.put(paths.manifest_hint_path(SHARD), data)
    store = manifests_at(location)
    assert (store.list_versions(), store.read_latest()) == ([1, 2, 3, 4, 5], ShardManifest(5, SHARD, writer_epoch=5))
    epoch, claimed = store.claim_epoch()
    assert (epoch, claimed.version) == (6, 6)
    assert location.store.get(paths.manifest_hint_path(SHARD)) == b'{"version":6}'


def test_gaps_that_collection_left_do_not_hide_the_newest_version(tmp_path: Path) -> None:
    location = place(tmp_path)
    history(location, 1, 9, 200)
    location.store.put(paths.manifest_hint_path(SHARD), b'{"version":1}')
    latest = manifests_at(location).read_latest()
    assert latest is not None
    assert latest.version == 200


def test_a_shard_that_nobody_claimed_has_no_manifest_and_cannot_be_updated(tmp_path: Path) -> None:
    store = manifests_at(place(tmp_path))
    assert (store.read_latest(), store.list_versions()) == (None, [])
    with pytest.raises(InvalidInputError, match="claim it first"):
        store.commit_update(1, lambda manifest: manifest)


def test_names_that_are_no_versions_do_not_count(tmp_path: Path) -> None:
    location = place(tmp_path)
    history(location, 1)
    directory = paths.manifest_dir(SHARD)
    for name in ("x.binpb", f"{paths.number_name(7)}.tmp", f"{paths.number_name(8)}.binpb.tmp", "1" * 63 + ".binpb"):
        location.store.put(f"{directory}/{name}", b"stray")
    assert manifests_at(location).list_versions() == [1]


@pytest.mark.parametrize("kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.THROTTLE])
@pytest.mark.parametrize("call", ["list_names", "get"])
def test_a_storage_error_is_never_read_as_absence(call: str, kind: FaultKind, tmp_path: Path) -> None:
    clean = place(tmp_path)
    history(clean, 1, 2)
    plan = _EveryCall(rate=1.0, kinds=frozenset({kind}), name=call)
    store = manifests_at(place(tmp_path, wrap=FaultScript(plan).wrap))
    for ask in (store.read_latest, store.claim_epoch, lambda: store.check_fenced(2)):
        with pytest.raises(UnavailableError) as error:
            ask()
        assert error.value.retryable
    assert manifests_at(clean).list_versions() == [1, 2]


@dataclass(frozen=True)
class _EveryCall(FaultPlan):
    """One fault on every call of one name."""

    name: str = ""

    def fault(self, index: int, call: str) -> FaultKind | None:
        return super().fault(index, call) if call == self.name else None


def test_a_passing_storage_error_is_retried(tmp_path: Path) -> None:
    history(place(tmp_path), 1, 2)
    script = FaultScript(FaultPlan(at={0: FaultKind.ERROR_BEFORE, 2: FaultKind.THROTTLE}))
    latest = manifests_at(place(tmp_path, wrap=script.wrap)).read_latest()
    assert latest is not None
    assert latest.version == 2
    assert len(script.injected) == 2


def test_a_version_that_vanishes_between_the_listing_and_the_read_is_looked_up_again(tmp_path: Path) -> None:
    location = place(tmp_path)
    history(location, 1)

    def collect() -> None:  # a writer commits and GC removes, right after the listing
        history(location, 2)
        location.store.delete(paths.manifest_path(SHARD, 1))

    through = place(tmp_path, wrap=interrupted("list_names", paths.manifest_dir(SHARD), collect))
    latest = manifests_at(through).read_latest()
    assert latest is not None
    assert latest.version == 2
    with pytest.raises(ObjectNotFoundError):
        manifests_at(location).read_version(1)


@pytest.mark.parametrize(
    ("why", "data"),
    [
        ("empty", b""),
        ("cut", encode_manifest(ShardManifest(3, SHARD, writer_epoch=3))[:-5]),
        ("another version inside", encode_manifest(ShardManifest(4, SHARD))),
        ("another shard inside", encode_manifest(ShardManifest(3, "00000000-0000-4000-8000-000000000000"))),
    ],
)
def test_corrupt_newest_manifest_is_an_error_that_names_it(why: str, data: bytes, tmp_path: Path) -> None:
    location = place(tmp_path)
    history(location, 1, 2)
    location.store.put(paths.manifest_path(SHARD, 3), data)
    store = manifests_at(location)
    for ask in (
        store.read_latest,
        store.claim_epoch,
        lambda: store.check_fenced(9),
        lambda: store.commit_update(2, fn),
    ):
        with pytest.raises(CorruptDataError) as error:
            ask()
        assert error.value.path == paths.manifest_path(SHARD, 3)


def fn(manifest: ShardManifest) -> ShardManifest:
    return replace(manifest, version=manifest.version + 1)


def test_a_fence_check_returns_the_newest_manifest_or_says_who_owns_the_shard(tmp_path: Path) -> None:
    location = place(tmp_path)
    store = manifests_at(location)
    with pytest.raises(CorruptDataError):
        store.check_fenced(1)
    history(location, 1, 2)
    assert store.check_fenced(2).version == 2
    with pytest.raises(FencedError, match="Writer fenced") as error:
        store.check_fenced(1)
    assert (error.value.our_epoch, error.value.current_epoch) == (1, 2)
    with pytest.raises(UnavailableError):  # a listing that lacks the claim of whoever asks
        store.check_fenced(3)


TRUSTED = "aaaaaaaa-0000-4000-8000-000000000001"


class Reader:
    """A store of manifests whose listings are counted; it trusts the version that it read."""

    def __init__(self, place: Path) -> None:
        self._recorder = Recorder()
        self.store = SightedManifests(resolve(place, metrics=self._recorder), TRUSTED)
        newest = self.store.read_latest()
        assert newest is not None
        self.store.sight(newest)
        assert self.store.is_newest(newest.version)
        self._listings()

    def _listings(self) -> int:
        found = self._recorder.snapshot().get("list_names")
        self._recorder.reset()
        return 0 if found is None else found.count

    def look(self, version: int) -> tuple[bool, int]:
        """Whether a version is the newest, and how often that needed a listing."""
        return self.store.is_newest(version), self._listings()


@pytest.fixture
def writer(tmp_path: Path) -> SightedManifests:
    store = SightedManifests(tmp_path, TRUSTED, fsync=False)
    store.claim_epoch()
    return store


def bump(store: SightedManifests) -> None:
    store.commit_update(1, lambda m: replace(m, version=m.version + 1, wal_entry_position_last_seen=m.version))


def test_what_did_not_move_is_not_listed(writer: SightedManifests, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    assert [reader.look(1) for _ in range(3)] == [(True, 0)] * 3


def test_every_new_version_is_found(writer: SightedManifests, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    bump(writer)
    assert not reader.look(1)[0]
    newest = reader.store.read_latest()
    assert newest is not None
    assert newest.version == 2


def remove(location: Location, *versions: int) -> None:
    for version in versions:
        location.store.delete(paths.manifest_path(TRUSTED, version))


def test_versions_that_collection_removed_are_not_taken_for_the_end(writer: SightedManifests, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for _ in range(4):
        bump(writer)
    remove(writer.location, 1, 2)  # the next one is gone, but so is the trusted one
    assert reader.look(1) == (False, 0)  # the object itself says no


def test_another_object_of_the_same_version_is_not_trusted(writer: SightedManifests, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    path = paths.manifest_path(TRUSTED, 1)
    data = writer.location.store.get(path)
    for _ in range(3):
        bump(writer)
    remove(writer.location, 1, 2)
    writer.location.store.put_new(path, data)  # somebody who slept fills the slot again, with the same bytes
    assert reader.look(1) == (False, 0)  # the object itself says no


UNSHARDED = mw.shard_id_for(mw.Unsharded())


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return resolve(str(tmp_path), metrics=Recorder())


@pytest.fixture
def trusting(location: Location) -> SightedManifests:
    """A store that has seen version 1 as the newest."""
    store = SightedManifests(location, UNSHARDED)
    store.claim_epoch()
    store.sight(store.check_fenced(1))
    assert store.is_newest(1)
    return store


def others_claim(location: Location) -> ShardManifest:
    return SightedManifests(location, UNSHARDED).claim_epoch()[1]


def test_unchanged_manifest_costs_two_requests(location: Location, trusting: SightedManifests) -> None:
    location.metrics.reset()
    assert trusting.check_fenced(1).version == 1
    assert {kind: stats.count for kind, stats in location.metrics.snapshot().items()} == {"get": 1, "head": 1}
    assert trusting.is_newest(1)
    assert "list_names" not in location.metrics.snapshot()


def test_nothing_is_trusted_that_no_listing_has_shown_as_the_newest(location: Location) -> None:
    store = SightedManifests(location, UNSHARDED)
    store.claim_epoch()
    store.sight(store.check_fenced(1))
    others_claim(location)
    with pytest.raises(mw.FencedError):
        store.check_fenced(1)


def test_a_newer_version_is_seen(location: Location, trusting: SightedManifests) -> None:
    others_claim(location)
    assert not trusting.is_newest(1)
    with pytest.raises(mw.FencedError):
        trusting.check_fenced(1)


def test_commit_builds_on_what_was_read(location: Location, trusting: SightedManifests) -> None:
    location.metrics.reset()
    made = trusting.commit_update(1, lambda latest: replace(latest, version=2, wal_entry_position_last_seen=7))
    assert made.version == 2
    assert location.metrics.snapshot()["get"].count >= 1
    assert trusting.check_fenced(1) == made
