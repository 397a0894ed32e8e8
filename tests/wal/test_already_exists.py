"""What an appender does when its position is taken: it reads, and what is there decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lance_memwal import (
    ConflictError,
    CorruptDataError,
    FencedError,
    UnavailableError,
    WalAppender,
    WriterPoisonedError,
)
from lance_memwal.log.entry import encode_mark, encode_sentinel
from lance_memwal.log.wal import PersistPolicy, ShardLog, open_log
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.testing import FaultKind, FaultPlan, FaultScript
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import ShardManifest
from tests.kit.logs import (
    NO_SYNC,
    SHARD,
    entry_bytes,
    interrupted,
    manifests_at,
    open_shard,
    place,
    put_entry,
    read_all,
    rows,
    story,
)


def second_owner(location: Location) -> ShardLog:
    """The log under epoch 2: its sentinel is at 1, its next position is 2."""
    manifests_at(location).claim_epoch()
    return open_shard(location).log


def faulty(log: ShardLog, script: FaultScript, policy: PersistPolicy = NO_SYNC) -> ShardLog:
    """The same log through a store with faults."""
    location = replace(log.location, store_once=script.wrap(log.location.store_once))
    return ShardLog(location, log.shard_id, log.epoch, log.next_position, policy, SkippingClock())


def test_same_epoch_and_same_bytes_are_ours(tmp_path: Path) -> None:
    location = place(tmp_path)
    log = second_owner(location)
    data = entry_bytes(2, 5)
    put_entry(location, 2, data)
    assert log.append(data) == 2
    assert log.next_position == 3
    assert story(read_all(location)) == [(1, 2, "sentinel"), (2, 2, [5])]


def test_same_epoch_and_other_bytes_poison(tmp_path: Path) -> None:
    location = place(tmp_path)
    log = second_owner(location)
    put_entry(location, 2, entry_bytes(2, 5))
    with pytest.raises(WriterPoisonedError) as error:
        log.append(entry_bytes(2, 6))
    assert isinstance(error.value.__cause__, ConflictError)
    assert log.next_position == 2
    assert story(read_all(location))[1:] == [(2, 2, [5])]


@pytest.mark.parametrize(
    "data", [entry_bytes(3, 5), encode_sentinel(3), encode_mark(3)], ids=["rows", "sentinel", "mark"]
)
def test_a_higher_epoch_fences(data: bytes, tmp_path: Path) -> None:
    location = place(tmp_path)
    log = second_owner(location)
    put_entry(location, 2, data)
    with pytest.raises(FencedError, match="Writer fenced") as error:
        log.append(entry_bytes(2, 6))
    assert (error.value.our_epoch, error.value.current_epoch) == (2, 3)


def test_a_lower_sentinel_moves_the_entry_to_the_next_position(tmp_path: Path) -> None:
    location = place(tmp_path)
    log = second_owner(location)
    put_entry(location, 2, encode_sentinel(1))
    put_entry(location, 3, encode_sentinel(0))
    assert log.append(entry_bytes(2, 6)) == 4
    assert log.next_position == 5
    assert story(read_all(location))[1:] == [(2, 1, "sentinel"), (3, 0, "sentinel"), (4, 2, [6])]


@pytest.mark.parametrize("data", [entry_bytes(1, 5), encode_mark(1)], ids=["rows", "mark"])
def test_a_lower_entry_after_the_open_poisons_and_reopening_reads_it(data: bytes, tmp_path: Path) -> None:
    location = place(tmp_path)
    log = second_owner(location)
    put_entry(location, 2, data)
    with pytest.raises(WriterPoisonedError, match="reopen") as error:
        log.append(entry_bytes(2, 6))
    assert isinstance(error.value.__cause__, ConflictError)
    reopened = open_shard(location)
    assert (reopened.log.epoch, reopened.replay_start, reopened.replay_end) == (3, 1, 3)


@pytest.mark.parametrize("data", [b"", b"torn", entry_bytes(1, 5)[:-9]], ids=["empty", "text", "cut"])
def test_damage_at_our_position_poisons(data: bytes, tmp_path: Path) -> None:
    location = place(tmp_path)
    log = second_owner(location)
    put_entry(location, 2, data)
    with pytest.raises(WriterPoisonedError) as error:
        log.append(entry_bytes(2, 6))
    assert isinstance(error.value.__cause__, CorruptDataError)


def test_taken_but_not_found_is_tried_again_at_the_same_position(tmp_path: Path) -> None:
    location = place(tmp_path)
    log = second_owner(location)
    script = FaultScript(FaultPlan(at={0: FaultKind.CONFLICT_WITHOUT_EFFECT}))
    assert faulty(log, script).append(entry_bytes(2, 6)) == 2
    assert [call.kind for call in script.calls] == ["put_new", "get", "put_new"]


def test_an_entry_that_vanished_before_it_was_read_is_tried_again_at_the_same_position(tmp_path: Path) -> None:
    """A staging object of a store may show up and go: the position decides, not the first answer."""
    location = place(tmp_path)
    log = second_owner(location)
    path = paths.wal_entry_path(SHARD, 2)
    put_entry(location, 2, encode_sentinel(1))
    vanishing = place(tmp_path, wrap=interrupted("get", path, lambda: location.store.delete(path), before=True))
    again = ShardLog(vanishing, SHARD, log.epoch, log.next_position, NO_SYNC, SkippingClock())
    assert again.append(entry_bytes(2, 6)) == 2


def test_a_read_back_that_fails_is_tried_again(tmp_path: Path) -> None:
    log = second_owner(place(tmp_path))
    script = FaultScript(FaultPlan(at={0: FaultKind.ERROR_AFTER, 2: FaultKind.ERROR_BEFORE}))
    assert faulty(log, script).append(entry_bytes(2, 6)) == 2
    assert [call.kind for call in script.calls] == ["put_new", "put_new", "get", "put_new", "get"]


@pytest.mark.parametrize("kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.LATE_EFFECT])
def test_a_retry_sends_exactly_the_bytes_of_the_first_attempt_to_the_same_position(
    kind: FaultKind, tmp_path: Path
) -> None:
    location = place(tmp_path)
    log = second_owner(location)
    script = FaultScript(FaultPlan(at={0: kind}))
    data = entry_bytes(2, 6)
    assert faulty(log, script).append(data) == 2
    script.settle()
    assert {call.path for call in script.calls} == {paths.wal_entry_path(SHARD, 2)}
    assert location.store.get(paths.wal_entry_path(SHARD, 2)) == data
    assert len(read_all(location)) == 2


def test_a_put_that_keeps_failing_poisons_after_the_configured_retries_with_growing_waits(tmp_path: Path) -> None:
    log = second_owner(place(tmp_path))
    script = FaultScript(FaultPlan(rate=1.0, kinds=frozenset({FaultKind.ERROR_BEFORE})))
    clock = SkippingClock()
    location = replace(log.location, store_once=script.wrap(log.location.store_once))
    policy = PersistPolicy(max_retries=4, base_delay_seconds=0.1, fsync=False)
    with pytest.raises(WriterPoisonedError) as error:
        ShardLog(location, SHARD, 2, 2, policy, clock).append(entry_bytes(2, 6))
    assert isinstance(error.value.__cause__, UnavailableError)
    assert [call.kind for call in script.calls] == ["put_new"] * 5
    assert len(clock.slept) == 4
    for wait, ceiling in zip(clock.slept, (0.1, 0.2, 0.4, 0.8), strict=True):
        assert ceiling / 2 <= wait <= ceiling


def test_an_entry_that_is_found_to_be_there_is_made_durable_before_it_is_acknowledged(tmp_path: Path) -> None:
    """The first attempt may have created the name and failed at its fsync."""
    log = second_owner(place(tmp_path))
    script = FaultScript(FaultPlan(at={0: FaultKind.ERROR_AFTER}))
    assert faulty(log, script, PersistPolicy(fsync=True)).append(entry_bytes(2, 6)) == 2
    assert [(call.kind, call.path) for call in script.calls] == [
        (kind, paths.wal_entry_path(SHARD, 2)) for kind in ("put_new", "put_new", "get", "sync_tree")
    ]


def test_an_entry_that_cannot_be_made_durable_is_not_acknowledged(tmp_path: Path) -> None:
    log = second_owner(place(tmp_path))
    plan = FaultPlan(at={0: FaultKind.ERROR_AFTER, 3: FaultKind.ERROR_BEFORE, 6: FaultKind.ERROR_BEFORE})
    policy = PersistPolicy(max_retries=2, fsync=True)
    with pytest.raises(WriterPoisonedError):
        faulty(log, FaultScript(plan), policy).append(entry_bytes(2, 6))


def test_a_sentinel_whose_answer_was_lost_is_recognised_and_no_second_one_is_written(tmp_path: Path) -> None:
    location = place(tmp_path)
    WalAppender.open(location, SHARD).append(rows(1))
    script = FaultScript(FaultPlan(at={0: FaultKind.ERROR_AFTER}))
    through = replace(location, store_once=_OnlyTheLog(script, location))
    opened = open_log(manifests_at(through), policy=NO_SYNC, clock=SkippingClock())
    assert len(script.injected) == 1
    assert (opened.replay_end, opened.log.next_position) == (2, 3)
    assert story(read_all(location)) == [(1, 1, [1]), (2, 2, "sentinel")]


class _OnlyTheLog(WrappedStore):
    """A store with faults for WAL entries, and none for the hint of the manifest."""

    def __init__(self, script: FaultScript, location: Location) -> None:
        super().__init__(script.wrap(location.store_once))
        self._plain = location.store_once

    def put(self, path: str, data: bytes, *, sync: bool = False) -> None:
        self._plain.put(path, data, sync=sync)


def test_a_takeover_between_two_attempts_of_one_append_fences_it(tmp_path: Path) -> None:
    """The first attempt fails without effect; a successor fences; the retry meets its sentinel."""
    location = place(tmp_path)
    opened = open_shard(location)
    clock = _TakingOver(location)
    script = FaultScript(FaultPlan(at={0: FaultKind.ERROR_BEFORE}))
    through = replace(location, store_once=script.wrap(location.store_once))
    log = ShardLog(through, SHARD, opened.log.epoch, opened.log.next_position, NO_SYNC, clock)
    with pytest.raises(FencedError):
        log.append(entry_bytes(1, 1))
    assert story(read_all(location)) == [(1, 2, "sentinel")]


def test_a_takeover_after_the_effect_of_a_lost_answer_keeps_the_entry_below_the_sentinel(tmp_path: Path) -> None:
    """The effect was there before the successor's sentinel: the entry is acknowledged, and the successor has it."""
    location = place(tmp_path)
    opened = open_shard(location)
    clock = _TakingOver(location)
    script = FaultScript(FaultPlan(at={0: FaultKind.ERROR_AFTER}))
    through = replace(location, store_once=script.wrap(location.store_once))
    log = ShardLog(through, SHARD, opened.log.epoch, opened.log.next_position, NO_SYNC, clock)
    assert log.append(entry_bytes(1, 1)) == 1
    with pytest.raises(FencedError):
        log.append(entry_bytes(1, 2))
    assert story(read_all(location)) == [(1, 1, [1]), (2, 2, "sentinel")]


class _TakingOver(SkippingClock):
    """A clock whose first sleep is long enough for somebody else to open the shard."""

    def __init__(self, location: Location) -> None:
        super().__init__()
        self._location: Location | None = location

    def sleep(self, seconds: float) -> None:  # type: ignore[override]
        if self._location is not None:
            location, self._location = self._location, None
            open_shard(location)


def test_a_manifest_that_has_moved_on_changes_nothing_for_an_append(tmp_path: Path) -> None:
    """Appends do not read the manifest: the log alone decides, so a claim without a sentinel fences at the next open."""
    location = place(tmp_path)
    log = second_owner(location)
    claimed: tuple[int, ShardManifest] = manifests_at(location).claim_epoch()
    assert claimed[0] == 3
    script = FaultScript()
    assert faulty(log, script).append(entry_bytes(2, 6)) == 2
    assert [call.kind for call in script.calls] == ["put_new"]
