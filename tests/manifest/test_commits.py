"""A commit moves the manifest on by one step, under its epoch, once; an epoch is claimed by one process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import lance_memwal as mw
from lance_memwal.log.manifest import with_generation
from lance_memwal.log.manifest_codec import encode_manifest
from lance_memwal.store import paths
from lance_memwal.store.port import ObjectStore, PutResult
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import ShardManifest, ShardStatus, SsTable
from tests.kit.logs import SHARD, interrupted, manifests_at, place
from tests.kit.writers import in_threads

Update = Callable[[ShardManifest], ShardManifest]
PUT = 4  # the first commit at a location: a listing, two reads, the check of the store, then the put


def flush(generation: int, cursor: int, token: str = "0000000a") -> Update:
    """What a flush commits, made to be applied once."""
    sstable = SsTable(generation, f"{token}_gen_{generation}")

    def update(manifest: ShardManifest) -> ShardManifest:
        return replace(
            manifest,
            version=manifest.version + 1,
            sstables=(*manifest.sstables, sstable),
            current_generation=generation + 1,
            replay_after_wal_entry_position=cursor,
            wal_entry_position_last_seen=max(cursor, manifest.wal_entry_position_last_seen),
        )

    return update


def look(position: int) -> Update:
    """Record a last-seen position."""
    return lambda m: replace(
        m, version=m.version + 1, wal_entry_position_last_seen=max(position, m.wal_entry_position_last_seen)
    )


def lists(generation: int) -> Callable[[ShardManifest], bool]:
    return lambda manifest: any(sstable.generation == generation for sstable in manifest.sstables)


def test_a_commit_writes_the_next_version_and_then_the_hint(tmp_path: Path) -> None:
    location = place(tmp_path)
    store = manifests_at(location)
    store.claim_epoch()
    committed = store.commit_update(1, flush(1, 4))
    assert committed == store.read_latest()
    assert (committed.version, committed.replay_after_wal_entry_position, committed.current_generation) == (2, 4, 2)
    assert location.store.get(paths.manifest_hint_path(SHARD)) == b'{"version":2}'


def test_a_commit_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    store = manifests_at(place(tmp_path))
    store.claim_epoch()
    assert store.commit_update(1, lambda manifest: manifest).version == 1
    assert store.list_versions() == [1]


def test_a_commit_under_a_lower_epoch_is_fenced_and_writes_nothing(tmp_path: Path) -> None:
    store = manifests_at(place(tmp_path))
    store.claim_epoch()
    store.claim_epoch()
    with pytest.raises(mw.FencedError, match="Writer fenced") as error:
        store.commit_update(1, flush(1, 1))
    assert (error.value.our_epoch, error.value.current_epoch) == (1, 2)
    assert store.list_versions() == [1, 2]


def test_a_commit_under_an_epoch_that_nobody_claimed_is_refused(tmp_path: Path) -> None:
    store = manifests_at(place(tmp_path))
    store.claim_epoch()
    with pytest.raises(mw.InvalidInputError, match="never claimed"):
        store.commit_update(2, flush(1, 1))
    assert store.list_versions() == [1]


BAD: dict[str, Update] = {
    "skips a version": lambda m: replace(m, version=m.version + 2),
    "keeps the version": lambda m: replace(m, wal_entry_position_last_seen=9),
    "goes back a version": lambda m: replace(m, version=m.version - 1),
    "raises the epoch": lambda m: replace(m, version=m.version + 1, writer_epoch=m.writer_epoch + 1),
    "lowers the epoch": lambda m: replace(m, version=m.version + 1, writer_epoch=0),
    "moves the cursor without an SSTable": lambda m: replace(
        m, version=m.version + 1, replay_after_wal_entry_position=5, wal_entry_position_last_seen=5
    ),
    "skips a generation": flush(2, 1),
    "becomes another shard": lambda m: replace(m, version=m.version + 1, shard_id="0" * 8 + SHARD[8:]),
    "leads outside the shard": lambda m: replace(
        m, version=m.version + 1, sstables=(SsTable(1, "../0000000a_gen_1"),), current_generation=2
    ),
}


@pytest.mark.parametrize("how", BAD)
@pytest.mark.parametrize("maintenance", [False, True])
def test_update_that_breaks_a_rule_is_refused_before_writing(how: str, maintenance: bool, tmp_path: Path) -> None:
    store = manifests_at(place(tmp_path))
    store.claim_epoch()
    with pytest.raises(mw.InvalidInputError):
        store.commit_maintenance(BAD[how]) if maintenance else store.commit_update(1, BAD[how])
    assert store.list_versions() == [1]


def test_a_lost_race_is_retried_on_the_newest_copy(tmp_path: Path) -> None:
    store = manifests_at(place(tmp_path))
    store.claim_epoch()
    met: list[int] = []

    def update(manifest: ShardManifest) -> ShardManifest:
        met.append(manifest.version)
        if len(met) < 3:  # somebody else is faster, twice
            store.commit_maintenance(look(manifest.version + 1))
        return flush(1, 1)(manifest)

    committed = store.commit_update(1, update)
    assert met == [1, 2, 3]
    assert (committed.version, committed.wal_entry_position_last_seen, len(committed.sstables)) == (4, 3, 1)


def test_a_race_that_is_lost_for_ever_ends_as_a_conflict(tmp_path: Path) -> None:
    store = manifests_at(place(tmp_path))
    store.claim_epoch()

    def update(manifest: ShardManifest) -> ShardManifest:
        store.commit_maintenance(look(manifest.version + 1))
        return flush(1, 1)(manifest)

    with pytest.raises(mw.ConflictError) as error:
        store.commit_update(1, update)
    assert error.value.retryable


def test_a_takeover_in_the_middle_of_a_commit_fences_it(tmp_path: Path) -> None:
    store = manifests_at(place(tmp_path))
    store.claim_epoch()

    def update(manifest: ShardManifest) -> ShardManifest:
        if manifest.writer_epoch == 1:
            store.claim_epoch()
        return flush(1, 1)(manifest)

    with pytest.raises(mw.FencedError):
        store.commit_update(1, update)
    latest = store.read_latest()
    assert latest is not None
    assert (latest.writer_epoch, latest.sstables) == (2, ())


@pytest.mark.parametrize(
    "kind",
    [FaultKind.ERROR_AFTER, FaultKind.CONFLICT_AFTER_EFFECT, FaultKind.LATE_EFFECT, FaultKind.DUPLICATE],
    ids=lambda kind: str(kind.value),
)
def test_a_commit_whose_answer_was_lost_is_applied_once(kind: FaultKind, tmp_path: Path) -> None:
    store = manifests_at(place(tmp_path))
    store.claim_epoch()
    script = FaultScript(FaultPlan(at={PUT: kind}))
    committed = manifests_at(place(tmp_path, wrap=script.wrap)).commit_update(1, flush(1, 4))
    assert [(call.kind, call.path) for call in script.injected] == [("put_new", paths.manifest_path(SHARD, 2))]
    script.settle()
    assert committed == store.read_latest()
    assert (committed.version, len(committed.sstables)) == (2, 1)


@pytest.mark.parametrize("landed", [True, False])
def test_commit_of_unknown_outcome_is_judged_by_the_content_of_a_newer_manifest(landed: bool, tmp_path: Path) -> None:
    """The answer of our put is lost, with or without an effect, and a successor claims before we look."""
    store = manifests_at(place(tmp_path))
    store.claim_epoch()
    script = FaultScript(FaultPlan(at={PUT: FaultKind.ERROR_AFTER if landed else FaultKind.ERROR_BEFORE}))

    class Pausing(SkippingClock):
        def sleep(self, seconds: float) -> None:  # type: ignore[override]
            if len(store.list_versions()) == (2 if landed else 1):
                store.claim_epoch()

    through = manifests_at(place(tmp_path, Pausing(), wrap=script.wrap))
    if landed:
        committed = through.commit_update(1, flush(1, 4), landed=lists(1))
        assert (committed.version, committed.writer_epoch) == (3, 2)
        assert [sstable.generation for sstable in committed.sstables] == [1]
        return
    with pytest.raises(mw.FencedError):
        through.commit_update(1, flush(1, 4), landed=lists(1))
    latest = store.read_latest()
    assert latest is not None
    assert (latest.version, latest.sstables) == (2, ())


@pytest.mark.parametrize("lost", [False, True], ids=["answered", "answer lost"])
def test_a_commit_upon_which_others_built_at_once_is_applied_once(lost: bool, tmp_path: Path) -> None:
    """Somebody commits, and a successor claims, between our put and our look at what is newest."""
    store = manifests_at(place(tmp_path))
    store.claim_epoch()

    def others() -> None:
        store.commit_maintenance(look(7))
        store.claim_epoch()

    path = paths.manifest_path(SHARD, 2)
    script = FaultScript(FaultPlan(at={PUT: FaultKind.CONFLICT_AFTER_EFFECT} if lost else {}))
    through = place(tmp_path, wrap=lambda inner: script.wrap(interrupted("put_new", path, others)(inner)))
    committed = manifests_at(through).commit_update(1, flush(1, 4))
    assert (committed.version, committed.writer_epoch, len(committed.sstables)) == (4, 2, 1)
    assert committed == store.read_latest()


@pytest.mark.parametrize("emptied", [(1, 2), (1, 2, 3)], ids=["up to the slot", "beyond the slot"])
def test_a_commit_into_a_slot_that_collection_emptied_does_not_count(emptied: tuple[int, ...], tmp_path: Path) -> None:
    """A writer sleeps before its put; its successor flushes on, and collection empties the slot."""
    location = place(tmp_path)
    store = manifests_at(location)
    store.claim_epoch()

    def update(manifest: ShardManifest) -> ShardManifest:
        if manifest.version == 1:
            store.claim_epoch()
            store.commit_update(2, flush(1, 1))
            store.commit_update(2, flush(2, 2))
            for version in emptied:
                location.store.delete(paths.manifest_path(SHARD, version))
        return flush(1, 9, "0000000b")(manifest)

    with pytest.raises(mw.FencedError):
        store.commit_update(1, update)
    latest = store.read_latest()
    assert latest is not None
    assert (latest.version, latest.writer_epoch, latest.replay_after_wal_entry_position) == (4, 2, 2)
    assert location.store.get(paths.manifest_hint_path(SHARD)) == b'{"version":4}'


def test_a_commit_that_storage_refuses_is_an_error_and_the_next_try_lands_once(tmp_path: Path) -> None:
    store = manifests_at(place(tmp_path))
    store.claim_epoch()
    script = FaultScript(FaultPlan(rate=1.0, kinds=frozenset({FaultKind.ERROR_AFTER})))
    with pytest.raises(mw.UnavailableError):
        manifests_at(place(tmp_path, wrap=script.wrap)).commit_update(1, flush(1, 4))
    assert store.commit_update(1, flush(1, 4)).version == 2


def test_racing_maintenance_and_flushes_all_land_once(tmp_path: Path) -> None:
    store = mw.ShardManifestStore(place(tmp_path), SHARD, fsync=False)
    store.claim_epoch()
    start = threading.Barrier(4)

    def run(work: Callable[[], object]) -> None:
        start.wait()
        work()

    def flushes() -> None:
        for generation in range(1, 11):
            store.commit_update(1, flush(generation, generation))

    def looks(name: int) -> None:
        for n in range(10):
            store.commit_maintenance(look(100 * name + n))

    works: list[Callable[[], object]] = [flushes, *(lambda name=n: looks(name) for n in (1, 2, 3))]
    in_threads(run, works)
    latest = store.read_latest()
    assert latest is not None
    assert latest.version <= 1 + 10 + 30, "no commit takes two versions"
    assert store.list_versions() == list(range(1, latest.version + 1))
    assert [sstable.generation for sstable in latest.sstables] == list(range(1, 11))
    assert latest.wal_entry_position_last_seen == 309


@pytest.mark.parametrize("maintenance", [False, True])
def test_eight_callers_with_the_same_change_land_eight_times_or_say_so(tmp_path: Path, maintenance: bool) -> None:
    """All eight make the same bytes for the same version; one of them creates it, and that is not the success of others."""
    mw.ShardManifestStore(place(tmp_path), SHARD, fsync=False).claim_epoch()
    together, outcomes = threading.Barrier(8), []

    def one_more(manifest: ShardManifest) -> ShardManifest:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.2)  # at first all have seen the same version
        seen = manifest.wal_entry_position_last_seen + 1
        return replace(manifest, version=manifest.version + 1, wal_entry_position_last_seen=seen)

    def run() -> None:
        store = mw.ShardManifestStore(place(tmp_path), SHARD, fsync=False)
        try:
            made = store.commit_maintenance(one_more) if maintenance else store.commit_update(1, one_more)
            outcomes.append(made.version)
        except mw.ConflictError:
            outcomes.append(None)

    in_threads(lambda _: run(), range(8))
    landed = [version for version in outcomes if version is not None]
    latest = manifests_at(place(tmp_path)).read_latest()
    assert latest is not None
    assert sorted(landed) == sorted(set(landed)), "two callers were told that the same version is theirs"
    assert latest.wal_entry_position_last_seen == len(landed)
    assert len(outcomes) == 8
    assert len(landed) >= 1


def test_maintenance_fences_nobody(tmp_path: Path) -> None:
    store = manifests_at(place(tmp_path))
    store.claim_epoch()
    store.commit_update(1, flush(1, 1))
    trimmed = store.commit_maintenance(lambda m: replace(m, version=m.version + 1, sstables=()))
    assert (trimmed.writer_epoch, trimmed.sstables, trimmed.current_generation) == (1, (), 2)
    assert store.commit_update(1, flush(2, 2)).sstables[0].generation == 2


def test_a_hint_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    store = manifests_at(place(tmp_path))
    store.claim_epoch()
    dry = FaultScript()
    manifests_at(place(tmp_path, wrap=dry.wrap)).commit_update(1, flush(1, 1))
    hint = next(call.index for call in dry.calls if call.kind == "put")
    script = FaultScript(FaultPlan(at={hint: FaultKind.ERROR_BEFORE}))
    committed = manifests_at(place(tmp_path, wrap=script.wrap)).commit_update(1, flush(2, 2))
    assert [call.kind for call in script.injected] == ["put"]
    assert (committed.version, store.read_latest()) == (3, committed)


def test_a_sealed_shard_is_opened_again_only_by_a_commit_that_does_nothing_else(tmp_path: Path) -> None:
    store = manifests_at(place(tmp_path))
    store.claim_epoch()
    sealed = store.commit_update(1, lambda m: replace(m, version=2, status=ShardStatus.SEALED))
    with pytest.raises(mw.InvalidInputError, match="I-10"):
        store.commit_update(1, lambda m: replace(flush(1, 4)(m), status=ShardStatus.ACTIVE))
    with pytest.raises(mw.InvalidInputError, match="sealed"):
        store.claim_epoch()
    assert store.read_latest() == sealed
    undone = store.commit_update(1, lambda m: replace(m, version=3, status=ShardStatus.ACTIVE))
    assert undone == replace(sealed, version=3, status=ShardStatus.ACTIVE)
    assert store.claim_epoch()[0] == 2, "a drop that was aborted leaves the shard as it was"


def test_a_store_of_manifests_refuses_what_is_no_shard_and_shows_no_options(tmp_path: Path) -> None:
    for bad in ("", "..", "ABC", SHARD.upper(), f"{SHARD}/x"):
        with pytest.raises(mw.InvalidInputError):
            mw.ShardManifestStore(str(tmp_path), bad)
    with pytest.raises(mw.InvalidInputError):
        mw.ShardManifestStore(str(tmp_path), SHARD, scan_batch_size=0)
    shown = repr(mw.ShardManifestStore(str(tmp_path), SHARD, storage_options={"secret": "hush"}))
    assert SHARD in shown
    assert "hush" not in shown


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
    with pytest.raises(mw.InvalidInputError, match="sealed"):
        store.claim_epoch()
    assert (store.list_versions(), store.read_latest()) == ([2], sealed)


def test_a_shard_with_fields_of_a_newer_version_takes_no_claim_and_no_flush_but_a_trim(tmp_path: Path) -> None:
    location = place(tmp_path)
    listed = (SsTable(1, "0000000a_gen_1", unknown=b"\xd8\x05\x01"), SsTable(2, "0000000b_gen_2"))
    newer = ShardManifest(5, SHARD, writer_epoch=3, current_generation=3, sstables=listed, unknown=b"\xa2\x1f\x01a")
    location.store.put_new(paths.manifest_path(SHARD, 5), encode_manifest(newer))
    store = manifests_at(location)
    with pytest.raises(mw.UnsupportedFormatError, match="field 500") as caught:
        store.claim_epoch()
    assert caught.value.path == paths.manifest_path(SHARD, 5)
    with pytest.raises(mw.UnsupportedFormatError):
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
    with pytest.raises(mw.UnsupportedFormatError, match="field of generation 1 91"):
        manifests_at(location).claim_epoch()


@pytest.mark.parametrize(
    "kind", [FaultKind.ERROR_AFTER, FaultKind.CONFLICT_AFTER_EFFECT], ids=lambda kind: str(kind.value)
)
def test_an_ambiguous_claim_is_never_taken_as_won(kind: FaultKind, tmp_path: Path) -> None:
    script = FaultScript()
    manifests_at(place(tmp_path / "dry", wrap=script.wrap)).claim_epoch()
    put = next(call.index for call in script.calls if call.kind == "put_new" and "/manifest/" in call.path)
    faulty = FaultScript(FaultPlan(at={put: kind}))
    epoch, claimed = manifests_at(place(tmp_path, wrap=faulty.wrap)).claim_epoch()
    assert len(faulty.injected) == 1
    assert (epoch, claimed.version) == (2, 2), "the lost claim is there as epoch 1, and nobody holds it"
    assert [m.writer_epoch for m in _all(manifests_at(place(tmp_path)))] == [1, 2]


def test_a_claim_that_cannot_be_written_is_an_error_and_not_a_claim(tmp_path: Path) -> None:
    script = FaultScript(FaultPlan(rate=1.0, kinds=frozenset({FaultKind.CONFLICT_WITHOUT_EFFECT, FaultKind.THROTTLE})))
    with pytest.raises(mw.UnavailableError):
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
        store = mw.ShardManifestStore(location, SHARD, fsync=False)
        start.wait()
        for _ in range(5):
            won.append(store.claim_epoch())

    in_threads(lambda _: claim(), range(8))
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
            except mw.CorruptDataError:
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


def _all(store: mw.ShardManifestStore) -> list[ShardManifest]:
    return [store.read_version(version) for version in store.list_versions()]
