"""An epoch is claimed by one, and a claim of unknown outcome is nobody's."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from lance_memwal import (
    CorruptDataError,
    InvalidInputError,
    ShardManifestStore,
    UnavailableError,
    UnsupportedFormatError,
)
from lance_memwal.log.manifest import with_generation
from lance_memwal.log.manifest_codec import encode_manifest
from lance_memwal.store import paths
from lance_memwal.store.port import ObjectStore, PutResult
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript
from lance_memwal.types import ShardManifest, ShardStatus, SsTable
from tests.kit.logs import SHARD, manifests_at, place


def test_the_first_claim_makes_version_1_of_epoch_1_with_nothing_in_it(tmp_path: Path) -> None:
    store = manifests_at(place(tmp_path))
    assert store.claim_epoch(7) == (1, ShardManifest(1, SHARD, shard_spec_id=7, writer_epoch=1))


def test_a_claim_copies_everything_but_version_and_epoch(tmp_path: Path) -> None:
    location = place(tmp_path)
    before = ShardManifest(
        5, SHARD, 1, (("bucket", b"\1\0\0\0"),), 3, 7, 9, 3, (SsTable(2, "0000000a_gen_2", 1, 2, 3),)
    )
    location.store.put_new(paths.manifest_path(SHARD, 5), encode_manifest(before))
    assert manifests_at(location).claim_epoch(9) == (4, replace(before, version=6, writer_epoch=4))


def test_a_sealed_shard_refuses_claims_and_stays_as_it_is(tmp_path: Path) -> None:
    location = place(tmp_path)
    sealed = ShardManifest(2, SHARD, writer_epoch=1, status=ShardStatus.SEALED)
    location.store.put_new(paths.manifest_path(SHARD, 2), encode_manifest(sealed))
    store = manifests_at(location)
    with pytest.raises(InvalidInputError, match="sealed"):
        store.claim_epoch()
    assert (store.list_versions(), store.read_latest()) == ([2], sealed)


def test_a_shard_with_fields_of_a_newer_version_takes_no_claim_and_no_flush_but_a_trim(tmp_path: Path) -> None:
    location = place(tmp_path)
    listed = (SsTable(1, "0000000a_gen_1", unknown=b"\xd8\x05\x01"), SsTable(2, "0000000b_gen_2"))
    newer = ShardManifest(5, SHARD, writer_epoch=3, current_generation=3, sstables=listed, unknown=b"\xa2\x1f\x01a")
    location.store.put_new(paths.manifest_path(SHARD, 5), encode_manifest(newer))
    store = manifests_at(location)
    with pytest.raises(UnsupportedFormatError, match="field 500") as caught:
        store.claim_epoch()
    assert caught.value.path == paths.manifest_path(SHARD, 5)
    with pytest.raises(UnsupportedFormatError):
        store.commit_update(3, lambda latest: with_generation(latest, SsTable(3, "0000000c_gen_3"), 4))
    assert store.list_versions() == [5]
    trimmed = store.commit_maintenance(lambda latest: replace(latest, version=6, sstables=latest.sstables[1:]))
    assert trimmed == replace(newer, version=6, sstables=listed[1:])
    assert location.store.get(paths.manifest_path(SHARD, 6)).endswith(b"\xa2\x1f\x01a")


def test_nested_fields_of_a_newer_version_refuse_a_claim_as_well(tmp_path: Path) -> None:
    location = place(tmp_path)
    listed = (SsTable(1, "0000000a_gen_1", unknown=b"\xd8\x05\x01"),)
    newer = ShardManifest(5, SHARD, writer_epoch=3, current_generation=2, sstables=listed)
    location.store.put_new(paths.manifest_path(SHARD, 5), encode_manifest(newer))
    with pytest.raises(UnsupportedFormatError, match="field of generation 1 91"):
        manifests_at(location).claim_epoch()


@pytest.mark.parametrize(
    "kind", [FaultKind.ERROR_AFTER, FaultKind.CONFLICT_AFTER_EFFECT], ids=lambda kind: str(kind.value)
)
def test_an_ambiguous_claim_is_never_taken_as_won(kind: FaultKind, tmp_path: Path) -> None:
    script = FaultScript()
    manifests_at(place(tmp_path / "dry", wrap=script.wrap)).claim_epoch()
    put = next(call.index for call in script.calls if call.kind == "put_new")
    faulty = FaultScript(FaultPlan(at={put: kind}))
    epoch, claimed = manifests_at(place(tmp_path, wrap=faulty.wrap)).claim_epoch()
    assert len(faulty.injected) == 1
    assert (epoch, claimed.version) == (2, 2), "the lost claim is there as epoch 1, and nobody holds it"
    assert [m.writer_epoch for m in _all(manifests_at(place(tmp_path)))] == [1, 2]


def test_a_claim_that_cannot_be_written_is_an_error_and_not_a_claim(tmp_path: Path) -> None:
    script = FaultScript(FaultPlan(rate=1.0, kinds=frozenset({FaultKind.CONFLICT_WITHOUT_EFFECT, FaultKind.THROTTLE})))
    with pytest.raises(UnavailableError):
        manifests_at(place(tmp_path, wrap=script.wrap)).claim_epoch()
    assert manifests_at(place(tmp_path)).list_versions() == []


class _Sleepy(WrappedStore):
    """A store whose first create of a manifest happens only after `meanwhile` has run."""

    def __init__(self, inner: ObjectStore, meanwhile: list[object]) -> None:
        super().__init__(inner)
        self._meanwhile = meanwhile

    def put_new(self, path: str, data: bytes, *, sync: bool = False, make_directory: bool = True) -> PutResult:
        if self._meanwhile:
            run = self._meanwhile.pop()
            assert callable(run)
            run()
        return super().put_new(path, data, sync=sync, make_directory=make_directory)


def test_a_claim_above_which_a_newer_version_exists_is_claimed_again(tmp_path: Path) -> None:
    """A claimer sleeps before its put; others claim on, and collection empties the slot that it is about to fill."""
    location = place(tmp_path)
    for _ in range(2):
        manifests_at(location).claim_epoch()

    def meanwhile() -> None:
        for _ in range(3):
            manifests_at(location).claim_epoch()
        for version in (1, 2, 3):
            location.store.delete(paths.manifest_path(SHARD, version))

    sleeper = place(tmp_path, wrap=lambda store: _Sleepy(store, [meanwhile]))
    epoch, claimed = manifests_at(sleeper).claim_epoch()
    assert (epoch, claimed.version) == (6, 6)
    assert [(m.version, m.writer_epoch) for m in _all(manifests_at(location))] == [(3, 3), (4, 4), (5, 5), (6, 6)]


def test_eight_racing_claimers_get_eight_epochs(tmp_path: Path) -> None:
    location = place(tmp_path)
    start = threading.Barrier(8)
    won: list[tuple[int, ShardManifest]] = []

    def claim() -> None:
        store = ShardManifestStore(location, SHARD, fsync=False)
        start.wait()
        for _ in range(5):
            won.append(store.claim_epoch())

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    epochs = [epoch for epoch, _ in won]
    assert len(epochs) == 40
    assert len(set(epochs)) == 40
    assert all(manifest.writer_epoch == epoch for epoch, manifest in won)
    history = _all(manifests_at(location))
    assert [m.version for m in history] == list(range(1, len(history) + 1))
    assert [m.writer_epoch for m in history] == [m.version for m in history]


def test_a_bit_that_flips_on_the_way_is_never_written_back(tmp_path: Path) -> None:
    """Every bit of the newest manifest, flipped in one read of a claim: an error, or a claim of what is really there."""
    location = place(tmp_path)
    before = ShardManifest(
        1, SHARD, 1, (("bucket", b"\1\0\0\0"),), 1, 2, 3, 3, (SsTable(2, "0000000a_gen_2", 1, 2, 3),)
    )
    data = encode_manifest(before)
    path = paths.manifest_path(SHARD, 1)
    location.store.put_new(path, data)
    outcomes = {"claimed": 0, "refused": 0}
    for bit in range(8 * len(data)):
        for read in (1, 2):
            flipping = _Flipping(location.store, path, bit, read)
            faulty = place(tmp_path, wrap=lambda _, store=flipping: store)
            try:
                claim = manifests_at(faulty).claim_epoch()
            except CorruptDataError:
                outcomes["refused"] += 1
                continue
            outcomes["claimed"] += 1
            assert claim == (2, replace(before, version=2, writer_epoch=2)), f"bit {bit}"
            location.store.delete(paths.manifest_path(SHARD, 2))
    assert manifests_at(location).list_versions() == [1]
    assert outcomes["refused"] > 8 * len(data)


class _Flipping(WrappedStore):
    """A store that flips one bit in the n-th read of one path."""

    def __init__(self, inner: ObjectStore, path: str, bit: int, read: int) -> None:
        super().__init__(inner)
        self._path = path
        self._bit = bit
        self._left = read

    def get(self, path: str) -> bytes:
        data = super().get(path)
        if path != self._path:
            return data
        self._left -= 1
        if self._left:
            return data
        flipped = bytearray(data)
        flipped[self._bit // 8] ^= 1 << self._bit % 8
        return bytes(flipped)


def _all(store: ShardManifestStore) -> list[ShardManifest]:
    return [store.read_version(version) for version in store.list_versions()]
