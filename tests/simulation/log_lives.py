"""Lives of one log: appenders that take the shard from each other, a maintainer that publishes and collects, a reader.

Whatever the order, the faults and the crashes: no position is acknowledged twice, no acknowledged row is lost, none is
doubled or invented, epochs are distinct, and the reader meets no hole.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from lance_memwal import CollectedError, FencedError, MemWalError, WalAppender, WalTailer, WriterPoisonedError
from lance_memwal.log.entry import decode_entry
from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.reading import list_positions, read_run
from lance_memwal.log.wal import PersistPolicy, open_log
from lance_memwal.store import paths
from lance_memwal.store.location import Location
from lance_memwal.types import ShardManifest, SsTable
from tests.kit.logs import SHARD, ids, rows
from tests.simulation.schedule import ScheduledClock
from tests.simulation.world import Machine, World

_POLICY = PersistPolicy(fsync=False)


class LogLife:
    """One life, and what happened in it, as seen from outside."""

    def __init__(self, seed: int, *, keep_trace: bool = False, size: int | None = None) -> None:
        self.world = world = World(seed, keep_trace=keep_trace)
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.published: dict[str, dict[int, list[int]]] = {}
        self.epochs: list[int] = []
        self.issued: set[int] = set()
        self.appenders: list[WalAppender] = []
        self.read: dict[int, list[int]] = {}
        drawn = world.draw.choice((1, 1, 1, 2, 3))
        self._size = size = drawn if size is None else size
        world.client("appender", lambda machine: self._appender(machine, 100, size))
        world.client("appender", lambda machine: self._appender(machine, 200, size))
        world.client("maintainer", self._maintainer)
        if world.draw.random() < 0.7:
            world.client("reader", self._reader)

    def run(self) -> list[str]:
        self.world.live()
        self.world.afterwards(self._judge)
        return self.world.verdict()

    # --------------------------------------------------------------------------------------------------------- clients

    def _appender(self, machine: Machine, first: int, lives: int) -> None:
        """Takes the shard `lives` times and appends a few rows each time, until it is fenced."""
        for life in range(lives):
            self.world.claim(SHARD)
            try:
                owner = WalAppender.open(machine.location, SHARD, clock=machine.clock)
            except MemWalError as error:
                self.world.expect(error, *self.world.fences(SHARD))
                continue
            self.epochs.append(owner.epoch)
            self.appenders.append(owner)
            for number in range(first + 10 * life, first + 10 * life + 2):
                if number not in self.issued and not self._append(owner, number):
                    break

    def _append(self, owner: WalAppender, number: int) -> bool:
        self.issued.add(number)
        later = [epoch for epoch in self.epochs if epoch > owner.epoch]
        try:
            position = owner.append(rows(number))
        except MemWalError as error:
            self.world.expect(error, *self.world.fences(SHARD))
            return False
        self.world.check(not later, f"I9: epoch {owner.epoch} acknowledged after epochs {later} were claimed")
        taken = [position for position, _ in self.acknowledged.values()]
        self.world.check(position not in taken, f"I9: position {position} was acknowledged twice")
        self.acknowledged[number] = (position, owner.epoch)
        return True

    def _maintainer(self, machine: Machine) -> None:
        """Takes the shard, publishes its tail, and collects at once."""
        location = machine.location
        for _ in range(min(2, self._size)):
            manifests = ShardManifestStore(location, SHARD, fsync=False, clock=machine.clock)
            self.world.claim(SHARD)
            try:
                opened = open_log(manifests, policy=_POLICY, clock=machine.clock)
                epoch, cursor = opened.log.epoch, opened.replay_end
                self.epochs.append(epoch)
                if epoch == 1:  # a new shard has no tail
                    continue
                tail = read_run(location, SHARD, opened.replay_start, cursor)
                self.published[f"{cursor:08x}"] = {entry.position: ids(entry) for entry in tail}
                manifests.commit_update(epoch, _flush(cursor), landed=_has(cursor))
                self._collect(location, manifests, cursor)
            except MemWalError as error:
                self.world.expect(error, *self.world.fences(SHARD))

    def _collect(self, location: Location, manifests: ShardManifestStore, cursor: int) -> None:
        newest = max(list_positions(location, SHARD))
        for position in list_positions(location, SHARD):
            path = paths.wal_entry_path(SHARD, position)
            if position <= cursor and position != newest and not decode_entry(location.store.get(path)).is_sentinel:
                location.store.delete(path)
        for version in manifests.list_versions()[:-1]:
            location.store.delete(paths.manifest_path(SHARD, version))

    def _reader(self, machine: Machine) -> None:
        """Follows the log; collection may overtake it, but it must never meet a hole."""
        tailer = WalTailer(machine.location, SHARD, clock=machine.clock)
        position: int | None = 1
        for _ in range(5 * self._size):
            try:
                position = tailer.first_position() if position is None else position
                entry = tailer.read_entry(position)
            except CollectedError:
                position = None
                continue
            except MemWalError as error:
                self.world.expect(error)
                continue
            if entry is not None:
                self.read[position] = ids(entry)
                position += 1

    # ------------------------------------------------------------------------------------------------------- verdict

    def _judge(self, location: Location, clock: ScheduledClock) -> None:
        check = self.world.check
        manifest = ShardManifestStore(location, SHARD, clock=clock).read_latest()
        listed = {sstable.path[:8] for sstable in manifest.sstables} if manifest is not None else set()
        everything = {}
        for position in list_positions(location, SHARD):
            everything[position] = ids(decode_entry(location.store.get(paths.wal_entry_path(SHARD, position))))
        stored = dict(everything)
        for name in sorted(listed):
            everything |= self.published[name]  # a sleeper's sentinel may fill a slot that collection emptied
        for number, (position, _) in self.acknowledged.items():
            found = everything.get(position)
            check(found == [number], f"I1: row {number}, acknowledged at {position}, is gone: {found}")
        counts = Counter(number for found in everything.values() for number in found)
        check(max(counts.values(), default=0) < 2, f"rows are there twice: {counts.most_common(2)}")
        check(counts.keys() <= self.issued, f"I2: never issued: {counts.keys() - self.issued}")
        check(len(set(self.epochs)) == len(self.epochs), f"I9: an epoch was given twice: {self.epochs}")
        for position, found in self.read.items():
            known = (everything.get(position, found), stored.get(position))
            check(found in known, f"position {position} changed after it was read: {found}, now {known}")
        self._take_over(location, clock)

    def _take_over(self, location: Location, clock: ScheduledClock) -> None:
        """After one more takeover no old appender acknowledges, and the new one goes on over a log without a hole."""
        last = WalAppender.open(location, SHARD, clock=clock)
        self.world.check(last.epoch > max(self.epochs, default=0), f"I9: epoch {last.epoch} after {self.epochs}")
        for stale in self.appenders:
            try:
                stale.append(rows(999))
            except MemWalError as error:
                self.world.expect(error, FencedError, WriterPoisonedError)
                continue
            self.world.check(False, f"I9: epoch {stale.epoch} acknowledged after epoch {last.epoch} was opened")
        last.append(rows(1_000))


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
