"""The life of a log under faults, and the oracle outside that judges it.

The life: open, three appends, a takeover, an append by the owner that was fenced, a repeat of a transaction and an
append by the new owner. Clients behave as users do: a failed open is tried again, a poisoned writer is opened again, a
row whose append failed is not appended again, so that its one maybe-entry can be told from a duplicate.

The oracle knows what was issued, what was acknowledged, and by whom. It reads storage through a store without faults.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from lance_memwal import CorruptDataError, MemWalError, WalAppender
from lance_memwal.errors import ObjectNotFoundError
from lance_memwal.log.entry import decode_entry
from lance_memwal.log.reading import list_positions
from lance_memwal.store import memory, paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.testing import FaultPlan, FaultScript, SimulatedCrash
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.types import WalEntry
from tests.harness.oracle import epoch_faults
from tests.kit.logs import SHARD, ids, manifests_at, rows

_PLACE = "log-life"
_OPEN_TRIES = 4
APP = "app"


@dataclass
class LogOracle:
    """What clients did and what they were told."""

    issued: set[int] = field(default_factory=set)
    acknowledged: dict[int, tuple[int, int]] = field(default_factory=dict)
    epochs: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    lost_opens: int = 0


@dataclass
class LogLife:
    """One run of the scenario; `script` has the faults, and after a crash a new one without faults goes on."""

    uri: str
    script: FaultScript
    oracle: LogOracle = field(default_factory=LogOracle)

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)
        self._versions = itertools.count(1)
        self._location = self._through(self.script)
        self._crashed = False

    def _through(self, script: FaultScript) -> Location:
        return resolve(self.uri, clock=SkippingClock(), wrap=script.wrap)

    def run(self) -> None:
        """Live it to the end, over crashes."""
        try:
            self._takeover(self._first_owner())
        except SimulatedCrash:
            self.script.settle()
            self._location = self._through(FaultScript())
            self._crashed = True
            self._takeover(None)
        self.script.settle()

    def _first_owner(self) -> WalAppender | None:
        owner = self._open()
        for is_transaction in (False, True, False):
            owner = self._append(owner, is_transaction=is_transaction)
        return owner

    def _takeover(self, stale: WalAppender | None) -> None:
        owner = self._open()
        if stale is not None and owner is not None:
            self._append_fenced(stale)
        if 2 in self.oracle.acknowledged and not self._crashed:
            self._repeat(owner)
        self._append(self._append(owner, is_transaction=True), is_transaction=False)

    def _open(self) -> WalAppender | None:
        for _ in range(_OPEN_TRIES):
            try:
                owner = WalAppender.open(self._location, SHARD, clock=SkippingClock())
            except MemWalError as error:
                self.oracle.refused.append(f"open: {type(error).__name__}")
            else:
                self.oracle.epochs.append(owner.epoch)
                return owner
        self.oracle.lost_opens += 1
        return None

    def _append(self, owner: WalAppender | None, *, is_transaction: bool) -> WalAppender | None:
        if owner is None:
            return None
        number = next(self._numbers)
        self.oracle.issued.add(number)
        try:
            position = owner.append(rows(number), txn=(APP, next(self._versions)) if is_transaction else None)
        except MemWalError as error:
            self.oracle.refused.append(f"append: {type(error).__name__}")
            return self._open()
        self._acknowledge(number, position, owner.epoch)
        return owner

    def _acknowledge(self, number: int, position: int, epoch: int) -> None:
        if position < 1:
            self.oracle.broken.append(f"row {number} was acknowledged without a position")
        if any(position == taken for taken, _ in self.oracle.acknowledged.values()):
            self.oracle.broken.append(f"I9: position {position} was acknowledged twice")
        self.oracle.acknowledged[number] = (position, epoch)

    def _append_fenced(self, stale: WalAppender) -> None:
        self.oracle.issued.add(100)
        try:
            position = stale.append(rows(100))
        except MemWalError as error:
            self.oracle.refused.append(f"fenced: {type(error).__name__}")
        else:
            self.oracle.broken.append(f"I9: a fenced owner acknowledged position {position}")

    def _repeat(self, owner: WalAppender | None) -> None:
        """Row 2 was acknowledged with version 1: the same again must be skipped."""
        if owner is None:
            return
        try:
            position = owner.append(rows(2), txn=(APP, 1))
        except MemWalError as error:
            self.oracle.refused.append(f"repeat: {type(error).__name__}")
        else:
            if position != 0:
                self.oracle.broken.append(f"a transaction that was acknowledged was written again, at {position}")


def record() -> FaultScript:
    life = new_life(FaultPlan())
    life.run()
    return life.script


def new_life(plan: FaultPlan) -> LogLife:
    """A life on an empty place; there is one life at a time."""
    memory.reset(_PLACE)
    return LogLife(f"memory://{_PLACE}/table", FaultScript(plan, SkippingClock()))


def verdict(life: LogLife, *, intact: bool) -> list[str]:
    """What is wrong after the life; `intact` says that no fault left damage on storage, so nothing may be refused."""
    oracle = life.oracle
    location = resolve(life.uri, clock=SkippingClock())
    entries, damaged = _read(location)
    broken = [*oracle.broken, *_rows(oracle, entries, damaged), *_epochs(oracle, entries)]
    if intact:
        broken += [*_whole(location, entries, damaged), *_recovers(location, entries)]
        if oracle.lost_opens:
            broken.append(f"the shard could not be opened: {oracle.refused}")
    else:
        broken += _recovers_or_says_where(location, entries)
    return broken


def _read(location: Location) -> tuple[dict[int, WalEntry], set[int]]:
    """Every entry by position, and the positions whose bytes are damaged."""
    entries, damaged = {}, set()
    for position in list_positions(location, SHARD):
        try:
            data = location.store.get(paths.wal_entry_path(SHARD, position))
            entries[position] = decode_entry(data, position)
        except CorruptDataError:
            damaged.add(position)
    return entries, damaged


def _rows(oracle: LogOracle, entries: dict[int, WalEntry], damaged: set[int]) -> Iterator[str]:
    held = Counter(number for entry in entries.values() for number in ids(entry))
    for number, (position, epoch) in oracle.acknowledged.items():
        if position in damaged:
            yield f"I1: row {number}, acknowledged at {position}, is damaged"
        elif position not in entries or ids(entries[position]) != [number]:
            yield f"I1: row {number}, acknowledged at {position}, is not there"
        elif entries[position].writer_epoch != epoch:
            yield f"I9: row {number} of epoch {epoch} is stored under epoch {entries[position].writer_epoch}"
    for number, count in held.items():
        if count > 1:
            yield f"row {number} is there {count} times"
        if number not in oracle.issued:
            yield f"I2: row {number} was never issued"
    if held[100]:
        yield "the row of the fenced owner is in the log"
    in_order = [position for position, _ in oracle.acknowledged.values()]
    if in_order != sorted(in_order):
        yield f"acknowledged positions fall: {in_order}"


def _epochs(oracle: LogOracle, entries: dict[int, WalEntry]) -> Iterator[str]:
    if sorted(set(oracle.epochs)) != oracle.epochs:
        yield f"I9: epochs do not grow from open to open: {oracle.epochs}"
    yield from (f"I9: {what}" for what in epoch_faults(entry for _, entry in sorted(entries.items())))


def _whole(location: Location, entries: dict[int, WalEntry], damaged: set[int]) -> Iterator[str]:
    if damaged:
        yield f"positions {sorted(damaged)} are damaged"
    if sorted(entries) != list(range(1, len(entries) + 1)):
        yield f"I3: the log has a hole: {sorted(entries)}"
    store = manifests_at(location)
    history = [store.read_version(version) for version in store.list_versions()]
    if [(m.version, m.writer_epoch) for m in history] != [(n, n) for n in range(1, len(history) + 1)]:
        yield f"I9: the manifest did not grow by claims alone: {[(m.version, m.writer_epoch) for m in history]}"
    if any(m.replay_after_wal_entry_position or m.sstables or m.current_generation != 1 for m in history):
        yield "a manifest says that something was flushed"


def _recovers(location: Location, entries: dict[int, WalEntry]) -> Iterator[str]:
    """Two more opens must find the same rows and the same transactions (I6), and go on behind the tip."""
    expected = sum(entry.num_rows for entry in entries.values())
    tip = max(entries, default=0)
    for opens in (1, 2):
        owner = WalAppender.open(location, SHARD, clock=SkippingClock())
        if owner.run.rows != expected or owner.next_position != tip + opens + 1:
            yield f"I6: a reopened log holds {owner.run.rows} rows up to {owner.next_position}, not {expected}"


def _recovers_or_says_where(location: Location, entries: dict[int, WalEntry]) -> Iterator[str]:
    try:
        yield from _recovers(location, entries)
    except CorruptDataError as error:
        if error.path is None:
            yield f"damage was found, but not where: {error}"
    except MemWalError as error:
        yield f"damage was reported as {type(error).__name__}: {error}"


def sweep(plans: Iterator[tuple[str, FaultPlan]], *, intact: Callable[[FaultScript], bool]) -> tuple[int, list[str]]:
    """Live once per plan; how many lives met a fault, and everything that was wrong."""
    met, broken = 0, list[str]()
    for name, plan in plans:
        life = new_life(plan)
        life.run()
        met += bool(life.script.injected)
        try:
            found = verdict(life, intact=intact(life.script))
        except (MemWalError, ObjectNotFoundError) as error:
            found = [f"the verdict failed: {error!r}"]
        broken += [f"{name}: {what} {life.oracle}" for what in found]
    return met, broken


# What each key may show at a time, by what was issued and acknowledged until then.
#
# The clock is one for all processes of a machine (`time.monotonic`). A key belongs to one writer at a time, so its
# writes have an order. Invariants:
#
# 1. A write that was acknowledged before a read began has happened; one that was issued after the read ended has not;
# any other may have. 2. A write without an acknowledgement (its process was killed, or it failed) may also happen
# later than writes of the next process for that key, but only than those that were issued within `LATE_SECONDS`; see
# there. What it made then stays until a later write replaces it.

Kind = Literal["put", "delete", "update"]
State = int | None
_KEPT_SECONDS = 30.0  # longer than any read takes
# How long after its process died, or got an error, a write may still take effect. In the log of an exclusive writer: not at all.
# Its entry is below the sentinel of the next claim, which replays it, or finds its position taken. In a shared epoch an entry of
# a process that got an error stays in the log, and may have been created a moment after a read by another process.
LATE_SECONDS = 2.0


@dataclass(slots=True)
class Write:
    """One write of some keys. An update changes those that are there."""

    number: int
    kind: Kind
    keys: tuple[int, ...]
    issued: float
    acked: float | None = None
    failed: float | None = None

    @property
    def end(self) -> float:
        """When it has happened, or never does, if it was not acknowledged."""
        return float("inf") if self.failed is None else self.failed + LATE_SECONDS

    def after(self, states: frozenset[State]) -> frozenset[State]:
        """What a key may be once it happened."""
        if self.kind == "put":
            return frozenset([self.number])
        if self.kind == "delete":
            return frozenset([None])
        return frozenset(None if state is None else self.number for state in states)


class Ledger:
    """The truth about every key, kept outside of the processes that write."""

    def __init__(self, keys: Iterable[int], first: State = 0) -> None:
        """All keys begin with a row of the write `first`; None: without a row."""
        self._states: dict[int, frozenset[State]] = dict.fromkeys(keys, frozenset([first]))
        self._recent: dict[int, list[Write]] = defaultdict(list)
        self._late: dict[int, list[Write]] = defaultdict(list)
        self._open: dict[int, Write] = {}
        self.acknowledged = 0
        self.failed = 0

    def issued(self, write: Write) -> None:
        self._open[write.number] = write
        for key in write.keys:
            self._recent[key].append(write)

    def returned(self, number: int, at: float) -> None:
        self._open.pop(number).acked = at
        self.acknowledged += 1

    def lost(self, number: int, at: float) -> None:
        """It failed, or nobody will hear of it any more."""
        write = self._open.pop(number)
        write.failed = at
        self.failed += 1
        for key in write.keys:
            self._late[key].append(write)

    def lost_by(self, numbers: range, at: float) -> None:
        for number in [number for number in self._open if number in numbers]:
            self.lost(number, at)

    def allowed(self, key: int, began: float, ended: float) -> frozenset[State]:
        """What a read of `key` in this time may have seen."""
        states = self._states[key]
        for write in self._recent.get(key, ()):
            if write.issued <= ended:
                states = self._after(key, states, write, is_done=write.acked is not None and write.acked < began)
        return states

    def _after(self, key: int, states: frozenset[State], write: Write, *, is_done: bool) -> frozenset[State]:
        """What a key may be after a write, or without it unless it is done; others that are late may come after it."""
        states = write.after(states) if is_done else states | write.after(states)
        late = [other for other in self._late.get(key, ()) if other.issued < write.issued <= other.end]
        for other in late * len(late):  # in any order
            states |= other.after(states)
        return states

    def wrong(self, seen: Mapping[int, int], keys: Iterable[int], began: float, ended: float) -> list[str]:
        """What is wrong with these keys, as one read saw them; a key that is not in `seen` had no row."""
        found = []
        for key in keys:
            allowed = self.allowed(key, began, ended)
            if seen.get(key) not in allowed:
                writes = [(w.number, w.kind, w.issued, w.acked) for w in self._recent.get(key, ())]
                found.append(f"key {key} shows {seen.get(key)}, not one of {set(allowed)} [{began}, {ended}]; {writes}")
        return found

    def forget(self, now: float) -> None:
        """Fold what every read to come has behind it."""
        for key, writes in list(self._recent.items()):
            while writes and (writes[0].acked or writes[0].failed or now) < now - _KEPT_SECONDS:
                write = writes.pop(0)
                self._states[key] = self._after(key, self._states[key], write, is_done=write.acked is not None)
            if not writes:
                del self._recent[key]
        for key, writes in list(self._late.items()):
            first = min((write.issued for write in self._recent.get(key, ())), default=now)
            writes[:] = [write for write in writes if write.end >= first]
            if not writes:
                del self._late[key]
