"""A commit moves the manifest on by one step, under its epoch, once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lance_memwal import ConflictError, FencedError, InvalidInputError, ShardManifestStore, UnavailableError
from lance_memwal.store import paths
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import ShardManifest, ShardStatus, SsTable
from tests.kit.logs import SHARD, interrupted, manifests_at, place

Update = Callable[[ShardManifest], ShardManifest]


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
    with pytest.raises(FencedError, match="Writer fenced") as error:
        store.commit_update(1, flush(1, 1))
    assert (error.value.our_epoch, error.value.current_epoch) == (1, 2)
    assert store.list_versions() == [1, 2]


def test_a_commit_under_an_epoch_that_nobody_claimed_is_refused(tmp_path: Path) -> None:
    store = manifests_at(place(tmp_path))
    store.claim_epoch()
    with pytest.raises(InvalidInputError, match="never claimed"):
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
def test_a_function_that_breaks_a_rule_is_refused_before_anything_is_written(
    how: str, maintenance: bool, tmp_path: Path
) -> None:
    store = manifests_at(place(tmp_path))
    store.claim_epoch()
    with pytest.raises(InvalidInputError):
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

    with pytest.raises(ConflictError) as error:
        store.commit_update(1, update)
    assert error.value.retryable


def test_a_takeover_in_the_middle_of_a_commit_fences_it(tmp_path: Path) -> None:
    store = manifests_at(place(tmp_path))
    store.claim_epoch()

    def update(manifest: ShardManifest) -> ShardManifest:
        if manifest.writer_epoch == 1:
            store.claim_epoch()
        return flush(1, 1)(manifest)

    with pytest.raises(FencedError):
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
    script = FaultScript(FaultPlan(at={3: kind}))  # list, two reads, then the put
    committed = manifests_at(place(tmp_path, wrap=script.wrap)).commit_update(1, flush(1, 4))
    assert [call.kind for call in script.injected] == ["put_new"]
    script.settle()
    assert committed == store.read_latest()
    assert (committed.version, len(committed.sstables)) == (2, 1)


def test_a_commit_is_judged_by_content_when_a_newer_manifest_was_written_on_top(tmp_path: Path) -> None:
    """Our put lands, its answer is lost, and a successor claims on top of it before we look."""
    store = manifests_at(place(tmp_path))
    store.claim_epoch()
    script = FaultScript(FaultPlan(at={3: FaultKind.ERROR_AFTER}), clock=SkippingClock())

    class Pausing(SkippingClock):
        def sleep(self, seconds: float) -> None:  # type: ignore[override]
            if len(store.list_versions()) == 2:
                store.claim_epoch()

    location = place(tmp_path, Pausing(), wrap=script.wrap)
    committed = manifests_at(location).commit_update(1, flush(1, 4), landed=lists(1))
    assert (committed.version, committed.writer_epoch) == (3, 2)
    assert [sstable.generation for sstable in committed.sstables] == [1]


@pytest.mark.parametrize("lost", [False, True], ids=["answered", "answer lost"])
def test_a_commit_upon_which_others_built_at_once_is_applied_once(lost: bool, tmp_path: Path) -> None:
    """Somebody commits, and a successor claims, between our put and our look at what is newest."""
    store = manifests_at(place(tmp_path))
    store.claim_epoch()

    def others() -> None:
        store.commit_maintenance(look(7))
        store.claim_epoch()

    path = paths.manifest_path(SHARD, 2)
    script = FaultScript(FaultPlan(at={3: FaultKind.CONFLICT_AFTER_EFFECT} if lost else {}))
    through = place(tmp_path, wrap=lambda inner: script.wrap(interrupted("put_new", path, others)(inner)))
    committed = manifests_at(through).commit_update(1, flush(1, 4))
    assert (committed.version, committed.writer_epoch, len(committed.sstables)) == (4, 2, 1)
    assert committed == store.read_latest()


def test_a_commit_that_is_not_in_the_newer_manifest_is_fenced(tmp_path: Path) -> None:
    """Our put fails without effect, and a successor claims before we try again."""
    store = manifests_at(place(tmp_path))
    store.claim_epoch()
    script = FaultScript(FaultPlan(at={3: FaultKind.ERROR_BEFORE}))

    class Pausing(SkippingClock):
        def sleep(self, seconds: float) -> None:  # type: ignore[override]
            if len(store.list_versions()) == 1:
                store.claim_epoch()

    location = place(tmp_path, Pausing(), wrap=script.wrap)
    with pytest.raises(FencedError):
        manifests_at(location).commit_update(1, flush(1, 4), landed=lists(1))
    latest = store.read_latest()
    assert latest is not None
    assert (latest.version, latest.sstables) == (2, ())


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

    with pytest.raises(FencedError):
        store.commit_update(1, update)
    latest = store.read_latest()
    assert latest is not None
    assert (latest.version, latest.writer_epoch, latest.replay_after_wal_entry_position) == (4, 2, 2)
    assert location.store.get(paths.manifest_hint_path(SHARD)) == b'{"version":4}'


def test_a_commit_that_storage_refuses_is_an_error_and_the_next_try_lands_once(tmp_path: Path) -> None:
    store = manifests_at(place(tmp_path))
    store.claim_epoch()
    script = FaultScript(FaultPlan(rate=1.0, kinds=frozenset({FaultKind.ERROR_AFTER})))
    with pytest.raises(UnavailableError):
        manifests_at(place(tmp_path, wrap=script.wrap)).commit_update(1, flush(1, 4))
    assert store.commit_update(1, flush(1, 4)).version == 2


def test_racing_maintenance_and_flushes_all_land_once(tmp_path: Path) -> None:
    store = ShardManifestStore(place(tmp_path), SHARD, fsync=False)
    store.claim_epoch()
    start = threading.Barrier(4)
    failures: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            start.wait()
            work()
        except BaseException as error:
            failures.append(error)

    def flushes() -> None:
        for generation in range(1, 11):
            store.commit_update(1, flush(generation, generation))

    def looks(name: int) -> None:
        for n in range(10):
            store.commit_maintenance(look(100 * name + n))

    works: list[Callable[[], object]] = [flushes, *(lambda name=n: looks(name) for n in (1, 2, 3))]
    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    latest = store.read_latest()
    assert latest is not None
    assert latest.version <= 1 + 10 + 30, "no commit takes two versions"
    assert store.list_versions() == list(range(1, latest.version + 1))
    assert [sstable.generation for sstable in latest.sstables] == list(range(1, 11))
    assert latest.wal_entry_position_last_seen == 309


@pytest.mark.parametrize("maintenance", [False, True])
def test_eight_callers_with_the_same_change_land_eight_times_or_say_so(tmp_path: Path, maintenance: bool) -> None:
    """All eight make the same bytes for the same version; one of them creates it, and that is not the success of others."""
    ShardManifestStore(place(tmp_path), SHARD, fsync=False).claim_epoch()
    together, outcomes = threading.Barrier(8), []

    def one_more(manifest: ShardManifest) -> ShardManifest:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.2)  # at first all have seen the same version
        seen = manifest.wal_entry_position_last_seen + 1
        return replace(manifest, version=manifest.version + 1, wal_entry_position_last_seen=seen)

    def run() -> None:
        store = ShardManifestStore(place(tmp_path), SHARD, fsync=False)
        try:
            made = store.commit_maintenance(one_more) if maintenance else store.commit_update(1, one_more)
            outcomes.append(made.version)
        except ConflictError:
            outcomes.append(None)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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
    with pytest.raises(InvalidInputError, match="I-10"):
        store.commit_update(1, lambda m: replace(flush(1, 4)(m), status=ShardStatus.ACTIVE))
    with pytest.raises(InvalidInputError, match="sealed"):
        store.claim_epoch()
    assert store.read_latest() == sealed
    undone = store.commit_update(1, lambda m: replace(m, version=3, status=ShardStatus.ACTIVE))
    assert undone == replace(sealed, version=3, status=ShardStatus.ACTIVE)
    assert store.claim_epoch()[0] == 2, "a drop that was aborted leaves the shard as it was"


def test_a_store_of_manifests_refuses_what_is_no_shard_and_shows_no_options(tmp_path: Path) -> None:
    for bad in ("", "..", "ABC", SHARD.upper(), f"{SHARD}/x"):
        with pytest.raises(InvalidInputError):
            ShardManifestStore(str(tmp_path), bad)
    with pytest.raises(InvalidInputError):
        ShardManifestStore(str(tmp_path), SHARD, scan_batch_size=0)
    shown = repr(ShardManifestStore(str(tmp_path), SHARD, storage_options={"secret": "hush"}))
    assert SHARD in shown
    assert "hush" not in shown
