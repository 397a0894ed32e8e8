"""Appenders, flushes, collection and readers in random interleavings of their store calls, sleepers included.

Two appenders that take the shard from each other, a maintainer that takes it to flush the tail and then collects without
any grace, and a reader that follows. Whatever the order: no position is acknowledged twice, no acknowledged row is lost,
none is doubled, epochs are distinct, and the reader meets no hole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from lance_memwal import CollectedError, FencedError, MemWalError, WalAppender, WalTailer, WriterPoisonedError
from lance_memwal.log.entry import decode_entry
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.wal import PersistPolicy, ShardLog, list_positions, open_log, read_run
from lance_memwal.store import memory, paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import ShardManifest, SsTable
from tests.harness.profile import scaled
from tests.kit.interleaving import Scheduler
from tests.kit.logs import SHARD, ids, manifests_at, rows

PLACE = "interleavings"
URI = f"memory://{PLACE}/table"
KEPT_MANIFESTS = 1


@dataclass
class World:
    """What happened, from outside."""

    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    published: dict[int, list[int]] = field(default_factory=dict)
    epochs: list[int] = field(default_factory=list)
    issued: set[int] = field(default_factory=set)
    appenders: list[WalAppender] = field(default_factory=list)
    read: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    # ------------------------------------------------------------------------------------------------- clients

    def appender(self, first: int, lives: int) -> Callable[[Location], None]:
        """Takes the shard `lives` times and appends three rows each time, until it is fenced."""

        def work(location: Location) -> None:
            for life in range(lives):
                try:
                    owner = WalAppender.open(location, SHARD, clock=SkippingClock())
                except FencedError:
                    continue
                self.epochs.append(owner.epoch)
                self.appenders.append(owner)
                for number in range(first + 10 * life, first + 10 * life + 3):
                    self.issued.add(number)
                    successors = [epoch for epoch in self.epochs if epoch > owner.epoch]
                    try:
                        position = owner.append(rows(number))
                    except (FencedError, WriterPoisonedError):
                        break
                    if successors:
                        self.broken.append(f"I9: epoch {owner.epoch} acknowledged behind epoch {max(successors)}")
                    if position in (taken for taken, _ in self.acknowledged.values()):
                        self.broken.append(f"I9: position {position} was acknowledged twice")
                    self.acknowledged[number] = (position, owner.epoch)

        return work

    def maintainer(self, location: Location) -> None:
        """Takes the shard, publishes its tail, and collects at once."""
        for _ in range(2):
            manifests = manifests_at(location)
            try:
                opened = open_log(manifests, policy=PersistPolicy(fsync=False), clock=SkippingClock())
                self.epochs.append(opened.log.epoch)
                if opened.log.epoch == 1:  # a new shard has no tail
                    continue
                tail = read_run(location, SHARD, opened.replay_start, opened.replay_end)
                found = {entry.position: ids(entry) for entry in tail}
                manifests.commit_update(opened.log.epoch, _flush(opened.replay_end), landed=_has(opened.replay_end))
            except FencedError:
                continue
            self.published |= found
            self._collect(location, opened.replay_end)

    def _collect(self, location: Location, cursor: int) -> None:
        newest = max(list_positions(location, SHARD))
        for position in list_positions(location, SHARD):
            path = paths.wal_entry_path(SHARD, position)
            if position <= cursor and position != newest and not decode_entry(location.store.get(path)).is_sentinel:
                location.store.delete(path)
        for version in manifests_at(location).list_versions()[:-KEPT_MANIFESTS]:
            location.store.delete(paths.manifest_path(SHARD, version))

    def reader(self, location: Location) -> None:
        """Follows the log; collection may overtake it, but it must never meet a hole."""
        tailer = WalTailer(location, SHARD, clock=SkippingClock())
        position = 1
        for _ in range(25):
            try:
                entry = tailer.read_entry(position)
            except CollectedError:
                position = tailer.first_position()
                continue
            if entry is not None:
                self.read[position] = (entry.writer_epoch, ids(entry))
                position += 1

    # ------------------------------------------------------------------------------------------------- verdict

    def verdict(self) -> list[str]:
        location = resolve(URI, clock=SkippingClock())
        stored = {}
        for position in list_positions(location, SHARD):
            entry = decode_entry(location.store.get(paths.wal_entry_path(SHARD, position)))
            stored[position] = ids(entry)
        broken = list(self.broken)
        everything = stored | self.published  # a sleeper's sentinel may fill a slot that collection emptied
        for number, (position, _) in self.acknowledged.items():
            if everything.get(position) != [number]:
                broken.append(f"I1: row {number}, acknowledged at {position}, is gone: {everything.get(position)}")
        counts = Counter(number for found in everything.values() for number in found)
        broken += [f"row {number} is there {count} times" for number, count in counts.items() if count > 1]
        broken += [f"I2: row {number} was never issued" for number in counts if number not in self.issued]
        if len(set(self.epochs)) != len(self.epochs):
            broken.append(f"I9: an epoch was given twice: {self.epochs}")
        for position, (epoch, found) in self.read.items():
            if found not in (everything.get(position, found), stored.get(position)):
                broken.append(f"position {position} of epoch {epoch} changed after it was read: {found}")
        return broken + self._survivors(location)

    def _survivors(self, location: Location) -> list[str]:
        """After one more takeover no old appender acknowledges, and the new one goes on over a log without a hole."""
        last = WalAppender.open(location, SHARD, clock=SkippingClock())
        broken = [] if last.epoch > max(self.epochs, default=0) else [f"I9: epoch {last.epoch} after {self.epochs}"]
        for stale in self.appenders:
            try:
                stale.append(rows(999))
            except (FencedError, WriterPoisonedError):
                continue
            broken.append(f"I9: epoch {stale.epoch} acknowledged after epoch {last.epoch} was opened")
        last.append(rows(1_000))
        return broken


def _flush(cursor: int) -> Callable[[ShardManifest], ShardManifest]:
    def update(manifest: ShardManifest) -> ShardManifest:
        generation = manifest.current_generation
        return replace(
            manifest,
            version=manifest.version + 1,
            sstables=(*manifest.sstables, SsTable(generation, f"{cursor:08x}_gen_{generation}")),
            current_generation=generation + 1,
            replay_after_wal_entry_position=cursor,
            wal_entry_position_last_seen=max(cursor, manifest.wal_entry_position_last_seen),
        )

    return update


def _has(cursor: int) -> Callable[[ShardManifest], bool]:
    return lambda manifest: any(sstable.path.startswith(f"{cursor:08x}_") for sstable in manifest.sstables)


def interleave(seed: int) -> tuple[World, Scheduler]:
    memory.reset(PLACE)
    world = World()
    scheduler = Scheduler(URI, seed)
    scheduler.run([world.appender(100, 3), world.appender(200, 3), world.maintainer, world.reader])
    return world, scheduler


def judge(seed: int) -> list[str]:
    world, scheduler = interleave(seed)
    broken = [f"a client failed: {error!r}" for error in scheduler.failures]
    try:
        broken += world.verdict()
    except MemWalError as error:
        broken.append(f"the shard cannot be opened: {error!r}")
    return [f"seed {seed}: {what}" for what in broken]


@pytest.mark.scaled
@pytest.mark.parametrize("part", range(4))
def test_no_order_of_store_calls_loses_doubles_or_invents_an_entry(part: int) -> None:
    count = scaled(ci=25, prove=2_500)
    broken = [what for number in range(count) for what in judge(1_000_000 * part + number)]
    assert not broken, "\n".join(broken[:5])


def test_schedules_differ_can_be_repeated_and_reach_the_interesting_places() -> None:
    worlds = [interleave(seed) for seed in range(24)]
    assert len({tuple(scheduler.trace) for _, scheduler in worlds}) == 24
    again, scheduler = interleave(5)
    assert (scheduler.trace, again.acknowledged) == (worlds[5][1].trace, worlds[5][0].acknowledged)
    assert sum(len(world.acknowledged) for world, _ in worlds) > 120
    assert sum(bool(world.published) for world, _ in worlds) > 6
    assert sum(bool(world.read) for world, _ in worlds) > 12


@pytest.mark.parametrize("bug", ["no sentinel", "no second look", "a claim without a look at what is newer"])
def test_random_schedules_find_a_bug_that_was_put_in(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "no sentinel":
        monkeypatch.setattr(ShardLog, "place_sentinel", lambda self, transactions, **_: self.next_position)
    elif bug == "no second look":
        monkeypatch.setattr(ShardManifestStore, "check_fenced", lambda self, epoch: self.read_latest())
    else:
        monkeypatch.setattr(ShardManifestStore, "is_newest", lambda self, version: True)
    assert any(judge(seed) for seed in range(500))
