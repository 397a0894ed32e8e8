"""Values of the model of shared writers (`shared_model`): storage, the memory of each process, and its next step.

The rules are those of the design of shared writers: R1 to R23. All values are frozen. A row holds one more than the number of
rows below it, as a write does that reads the table before it writes. So a lost update shows as a value that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import NamedTuple, TypeAlias

NOTHING: frozenset[str] = frozenset()
Txn: TypeAlias = str


class Rule(StrEnum):
    """One rule of the protocol each; a planted bug leaves one out."""

    CHECK_AFTER_OPEN = auto()  # R3: a manifest check follows the first read of the log
    CHECK_AFTER_CREATE = auto()  # R5: a put is acknowledged after a manifest check that follows its create
    ACKNOWLEDGE_ABOVE_CURSOR = auto()  # R5: a put at or below a newer cursor counts only if the map has it
    CHECK_NEWEST = auto()  # R5: the check finds the newest version; a read of v + 1 misses collected ones
    KEEP_ATTEMPT = auto()  # R7: an undecided attempt keeps its writes, its transaction and its position
    ONE_UNCONFIRMED = auto()  # R8: a create follows at most one entry without a manifest check
    RESOLVE_AGAIN = auto()  # R12: conditional rows are resolved again after each collision
    READ_CONFIRMED_ROWS = auto()  # R14: a read shows confirmed rows only, not queued ones
    CHECK_BEFORE_READ = auto()  # R14: a read checks the manifest before it returns
    CHECK_AFTER_SEAL = auto()  # R17: a manifest check follows a seal, as it follows a put
    SEAL_BEFORE_FLUSH = auto()  # R18: a generation is published after an entry has closed it
    MARK_IF_DECIDED = auto()  # R21: an exclusive writer leaves its mark after its last commit is decided
    REPLAY_TO_SENTINEL = auto()  # R2: a claim replays everything below its sentinel
    KEEP_NEWEST = auto()  # GC keeps the newest entry of a log; R8 rests on it
    KEEP_ABOVE_MAP = auto()  # GC keeps every entry above the newest whole map
    FLOOR_FIRST = auto()  # GC raises the floor before it deletes


class Row(NamedTuple):
    """A row: the write that made it, and its value."""

    op: str
    value: int


class Entry(NamedTuple):
    """An entry of the log. `whole` is the map of all transactions below it, where the entry carries one."""

    epoch: int
    kind: str  # rows, sentinel, seal, mark
    generation: int = 0
    rows: tuple[Row, ...] = ()
    txns: tuple[Txn, ...] = ()
    whole: frozenset[Txn] | None = None
    shared: bool = True


class Manifest(NamedTuple):
    """The newest shard manifest."""

    version: int = 1
    epoch: int = 1
    cursor: int = 0
    generation: int = 1


class TailRow(NamedTuple):
    """A row of the tail in the memory of a process."""

    generation: int
    row: Row
    position: int


class Known(NamedTuple):
    """The memory of a process: `below` counts published rows, `unconfirmed` counts entries since its last manifest check."""

    manifest: Manifest
    last: int
    generation: int
    rows: tuple[TailRow, ...] = ()
    map: frozenset[Txn] = NOTHING
    below: int = 0
    unconfirmed: int = 0

    @property
    def size(self) -> int:
        return self.below + len(self.rows)

    def oldest(self) -> tuple[TailRow, ...]:
        """The rows of the generation that is flushed next."""
        return tuple(item for item in self.rows if item.generation == self.manifest.generation)


class SharedWriter(NamedTuple):
    """A process that appends in shared epochs. `at` is its next step.

    Writes whose names begin with `t` are transactions of a user; the others share the transaction of their entry.
    """

    todo: tuple[str, ...] = ()
    reads: int = 0
    flushes: int = 0
    at: str = "open"
    known: Known | None = None
    found: Known | None = None  # read from the log, without a manifest check
    manifest: Manifest | None = None  # read at the start, or claimed
    attempt: tuple[str, ...] = ()  # the writes of the entry that is created now
    number: int = 0  # of its transaction
    is_undecided: bool = False  # a create of it got no answer
    ahead: tuple[tuple[str, Txn], ...] = ()  # writes whose entry is created and awaits its manifest check
    position: int = 0
    entry: Entry | None = None
    flushing: tuple[Row, ...] = ()
    acknowledged_before: frozenset[str] = NOTHING  # by all processes, before this read began


class Memtable(NamedTuple):
    """One generation in the memory of an exclusive writer, and the last position that it covers."""

    generation: int
    rows: tuple[Row, ...]
    covered: int


class ExclusiveWriter(NamedTuple):
    """A process that claims an epoch for itself, at any moment: one of ours, or one like pylance's writer."""

    todo: tuple[str, ...] = ()
    flushes: int = 0
    at: str = "start"
    epoch: int = 0
    position: int = 0
    listed: int = 0
    generation: int = 0
    memtables: tuple[Memtable, ...] = ()
    manifest: Manifest | None = None


class Collector(NamedTuple):
    """A process that collects entries and manifests."""

    runs: int
    at: str = "start"
    cursor: int = 0
    dead: tuple[int, ...] = ()


Actor: TypeAlias = SharedWriter | ExclusiveWriter | Collector


class Late(NamedTuple):
    """A put on its way: an entry for a position, or a manifest that follows `before` and publishes rows."""

    position: int = 0
    entry: Entry | None = None
    before: Manifest | None = None
    manifest: Manifest | None = None
    rows: tuple[Row, ...] = ()


class World(NamedTuple):
    """Storage, the processes, and the promises made so far."""

    log: tuple[Entry | None, ...]
    manifest: Manifest
    actors: tuple[Actor, ...]
    published: tuple[tuple[int, tuple[Row, ...]], ...] = ()
    late: frozenset[Late] = frozenset()
    acknowledged: frozenset[str] = NOTHING
    shown: frozenset[str] = NOTHING  # to readers
    lates: int = 0  # how many answers may still get lost
    oldest_manifest: int = 1
    floor: int = 0
    recorded: tuple[int, frozenset[Txn]] = (0, NOTHING)  # a map outside of the log, and the position that it reaches to
    fault: str = ""

    def at(self, position: int) -> Entry | None:
        return self.log[position - 1] if 0 < position <= len(self.log) else None

    @property
    def tip(self) -> int:
        return next((p for p in range(len(self.log), 0, -1) if self.log[p - 1] is not None), 0)

    def put(self, position: int, entry: Entry | None) -> World:
        padding = (None,) * (position - 1 - len(self.log))
        return self._replace(log=(*self.log[: position - 1], *padding, entry, *self.log[position:]))

    def with_actor(self, number: int, actor: Actor) -> World:
        return self._replace(actors=(*self.actors[:number], actor, *self.actors[number + 1 :]))

    def acknowledge(self, ops: tuple[str, ...]) -> World:
        return self._replace(acknowledged=self.acknowledged.union(ops))

    def publish(self, manifest: Manifest, generation: int, rows: tuple[Row, ...]) -> World:
        return self._replace(manifest=manifest, published=(*self.published, (generation, rows)))

    def published_below(self, generation: int) -> Iterator[Row]:
        """The rows of the SSTables below a generation."""
        return (row for number, rows in self.published if number < generation for row in rows)

    def transactions(self, end: int | None = None) -> frozenset[Txn]:
        """The newest whole map, and the transactions of its entry and of all entries above; `end` is excluded."""
        first, whole = self.recorded
        found = set(whole)
        for position in range(self.tip if end is None else end - 1, first, -1):
            entry = self.at(position)
            if entry is not None:
                found.update(entry.txns)
                if entry.whole is not None:
                    return frozenset(found | entry.whole)
        return frozenset(found)

    def tail(self, manifest: Manifest) -> Iterator[tuple[int, Entry]]:
        """The entries above the cursor of a manifest, up to the first gap."""
        position = manifest.cursor + 1
        while (entry := self.at(position)) is not None:
            yield position, entry
            position += 1


FIRST = Entry(1, "sentinel", whole=NOTHING)


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    actors: tuple[Actor, ...]
    positions: int  # the log grows up to here
    lates: int = 0  # how many answers may get lost
    epochs: int = 2  # claims end at this epoch
    group: int = 2  # writes of one entry
    maps: str = "markers"  # which entries carry the whole map: sentinels, markers, even (positions), all
    row_limit: int = 0  # of a generation; 0: none
    unconfirmed: int = 1  # R8
    covers_seals: bool = False  # whether the cursor passes the entry that closed a generation
    creates_ahead: bool = False  # R8: the next create may go ahead of the manifest check
    checks_if_undecided: bool = (
        True  # R7: an entry of another writer at the position of an undecided attempt is confirmed first
    )
    is_foreign: bool = False  # exclusive writers are like pylance's: no maps, no transactions, no mark
    checks_floor: bool = False  # the check reads the GC floor instead of the manifests
    log: tuple[Entry, ...] = (FIRST,)
    acknowledged: frozenset[str] = NOTHING
    knows: tuple[Known, ...] = ()  # what the first processes know; the others know nothing

    def carries_map(self, position: int, kind: str) -> bool:
        if kind in ("sentinel", "mark") or self.maps == "all":
            return True
        return position % 2 == 0 if self.maps == "even" else self.maps == "markers" and kind == "seal"
