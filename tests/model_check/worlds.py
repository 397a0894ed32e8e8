"""What a model of one shard is made of: the log, the manifest, the base table, processes, and puts that are on their way.

Owns the values, all frozen, and the two puts that every process makes. `Rule` lists what the protocol asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import NamedTuple

NOTHING: frozenset[str] = frozenset()


class Rule(StrEnum):
    """What the protocol asks for; a planted bug leaves one out."""

    CONFIRM_AFTER_LOG = (
        auto()
    )  # the manifest is confirmed after the log was read, before anything is skipped or created
    FORGET_UNCONFIRMED = auto()  # what was read while the manifest moved is not remembered either
    CARRY_TRANSACTION = auto()  # every append in a joint epoch carries a transaction
    LOOK_AFTER_CREATE = auto()  # after the create the manifest is read: the cursor may have passed the position
    AGAIN_FROM_MAP = auto()  # an append that is not acknowledged begins again, and asks the map
    READ_WHAT_IS_MET = auto()  # a sink that lives on knows all below the position that it creates, or reads it
    JOIN_ONLY_JOINT = auto()  # the newest entry of the manifest's epoch says whether one may join
    ENTRY_OF_EPOCH = auto()  # ... of that epoch, not the newest of all
    SEAL_BEFORE_FLUSH = auto()  # a flusher ends the generation in the log before it reads what it publishes
    SEAL_OF_OWN_EPOCH = auto()  # a seal below a sentinel of a higher epoch is void
    SEAL_ONLY_ROWS = auto()  # a generation without rows is not sealed
    MARK_BEFORE_BULK = auto()  # a generation that is not in the log is announced there before it is committed
    HELP_FIRST = auto()  # whoever finds an announced generation publishes it before it goes on
    BULK_COUNTS_DECIDED = auto()  # the transaction of a bulk mark counts once the cursor has reached the mark
    BULK_ONE_MARK = auto()  # a bulk makes a new mark only after its last commit is decided
    FEED_LISTED_PATH = auto()  # a mark whose generation is listed under another path is lost
    FEED_SAME_GENERATION = auto()  # one that is not listed is lost if what comes next has its generation
    JOINT_IF_PUBLISHED = auto()  # close() leaves the mark only if every generation is published
    JOINT_IF_DECIDED = auto()  # ... and no commit of its own is undecided
    OWNER_LEAVES_OUT = auto()  # the map of a sentinel leaves a mark out only while the claimer still owns the shard
    OWNER_KNOWS_CLIENTS = auto()  # an owner that writes for others skips what its predecessor wrote for them
    COLLECT_FLUSHED = auto()  # collection takes entries at or below the cursor only
    KEEP_SENTINELS = auto()  # ... and no sentinel
    KEEP_NEWEST_MAP = auto()  # ... and nothing from the newest whole map on
    KEEP_FOR_CONSUMERS = auto()  # ... and nothing that a consumer has not read
    PINS_AGAIN = auto()  # the places of consumers are read again before the floor is raised
    ANNOUNCE_FIRST = auto()  # ... after collection said what it is about to take
    FLOOR_BELOW_PINS = auto()  # the floor is raised to what the second reading leaves, not to what was announced
    BEGIN_ABOVE_ANNOUNCED = auto()  # a consumer that begins looks at what was announced after it left its record
    RECORD_BEFORE_READING = auto()  # ... which it leaves before it reads
    TRIM_COMPACTED = auto()  # a generation leaves the manifest after the base table has it
    ROWS_AND_MARK = auto()  # the base table gets rows and the mark of how far it is in one commit
    COMPACT_ON_READ = auto()  # ... on the version that the compaction started from
    ANSWER_WRITTEN = auto()  # an owner answers a client after the entry is there
    CLIENT_SAYS_WHO = auto()  # a client that got no answer asks again with the same transaction


class Entry(NamedTuple):
    """`kind`: r(ows), s(entinel), x (seal), b(ulk mark), m(ark). `full` is the whole map below it."""

    epoch: int
    kind: str
    generation: int = 0
    txn: str = ""
    path: str = ""
    full: frozenset[str] | None = None
    joint: bool = False


class Manifest(NamedTuple):
    """`listed` holds (generation, path, rows), `bulks` every path ever listed."""

    version: int = 0
    epoch: int = 0
    cursor: int = 0
    generation: int = 1
    listed: tuple[tuple[int, str, tuple[str, ...]], ...] = ()
    bulks: frozenset[str] = frozenset()


class Base(NamedTuple):
    """The base table: `mark` is the generation up to which it has all rows."""

    version: int = 0
    mark: int = 0
    rows: tuple[str, ...] = ()


class Plan(NamedTuple):
    """What a collector is about to delete, and what it does next."""

    at: str = ""
    dead: tuple[int, ...] = ()


class View(NamedTuple):
    """What one reading of the log says to whoever read `manifest` before."""

    manifest: Manifest
    tip: int
    joint: bool
    generation: int
    is_open: bool  # rows of this generation are in the tail, and it is not sealed
    rows: tuple[str, ...]  # of the manifest's next generation
    covered: int
    seen: frozenset[str]
    announced: tuple[int, Entry] | None
    hole: bool
    newest: int  # the highest generation with rows in the tail


class Process(NamedTuple):
    """`role`: append, bulk, flush (sinks); write, write_bulk, write_for (owners of an exclusive epoch, the last one for clients);
    ask (a client of owners); consume (a reader of changes); compact.

    `at` is the step that it takes next. `later` are appends that it makes afterwards, from what it knows by then (`known`).
    """

    role: str
    txn: str
    at: str = "start"
    view: View | None = None
    manifest: Manifest | None = None
    position: int = 0
    entry: Entry | None = None
    held: tuple[tuple[int, str], ...] = ()  # rows in the memory of a writer, with their generations
    generation: int = 0
    attempts: int = 0
    path: str = ""
    undecided: bool = False
    remembered: frozenset[str] = NOTHING
    later: tuple[str, ...] = ()
    known: View | None = None

    @property
    def is_owner(self) -> bool:
        """Whether it claims an epoch for itself."""
        return self.role.startswith("write")


class World(NamedTuple):
    log: tuple[Entry | None, ...] = ()
    manifest: Manifest = Manifest()
    processes: tuple[Process, ...] = ()
    base: Base = Base()
    late: frozenset[tuple[str, int, Entry | Manifest | Base]] = frozenset()
    acknowledged: frozenset[str] = frozenset()
    plan: Plan = Plan()
    announced: int = 0  # up to here collection may take entries soon
    floor: int = 0  # the highest position that collection emptied, or is about to
    place: tuple[int, bool] | None = None  # the record of the consumer: its position, and whether it has begun
    crashes: int = 0
    lates: int = 0
    collections: int = 0

    def at(self, position: int) -> Entry | None:
        return self.log[position - 1] if 0 < position <= len(self.log) else None

    @property
    def tip(self) -> int:
        return next((p for p in range(len(self.log), 0, -1) if self.log[p - 1] is not None), 0)

    def put(self, position: int, entry: Entry | None) -> World:
        log = list(self.log) + [None] * (position - len(self.log))
        log[position - 1] = entry
        return self._replace(log=tuple(log))

    def with_process(self, number: int, process: Process) -> World:
        return self._replace(processes=(*self.processes[:number], process, *self.processes[number + 1 :]))


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who is there, and how much may go wrong."""

    name: str
    processes: tuple[Process, ...]
    crashes: int = 1
    lates: int = 1
    collections: int = 2  # how many entries may be collected
    takes_over: bool = False  # sinks may take an exclusive owner over, at any moment
    log: tuple[Entry, ...] = (Entry(1, "s", full=frozenset(), joint=True),)
    epoch: int = 1
    flushed: Manifest | None = None  # what the manifest says, if rows of `log` are flushed
    acknowledged: frozenset[str] = frozenset()
    max_entries: int = 9


# --------------------------------------------------------------------------------------------------------------- puts


def put_entry(
    world: World, number: int, process: Process, then: Process, otherwise: Process
) -> Iterator[tuple[str, World]]:
    """Create an entry: it takes effect and we know; or it is on its way when the process dies."""
    position, entry = process.position, process.entry
    assert entry is not None
    if world.at(position) is None:
        yield f"create {entry.kind} at {position}", world.put(position, entry).with_process(number, then)
    else:
        yield f"{position} exists", world.with_process(number, otherwise)
    if world.lates and world.crashes:
        dead = world.with_process(number, Process(process.role, process.txn, "dead"))
        late = dead.late | {("entry", position, entry)}
        yield (
            f"{position} sent, then a crash",
            dead._replace(late=late, lates=world.lates - 1, crashes=world.crashes - 1),
        )


def put_manifest(
    world: World, number: int, process: Process, made: Manifest, then: Process, again: Process
) -> Iterator[tuple[str, World]]:
    """Create the next manifest; its outcome may stay unknown, with the put on its way."""
    if world.manifest.version == made.version - 1:
        yield f"commit {made.version}", world._replace(manifest=made).with_process(number, then)
    else:
        yield "commit lost", world.with_process(number, again)
    if world.lates:
        sent = world._replace(late=world.late | {("manifest", made.version, made)}, lates=world.lates - 1)
        yield "commit unknown", sent.with_process(number, again._replace(undecided=True))
        if world.crashes:
            dead = sent.with_process(number, Process(process.role, process.txn, "dead"))
            yield "commit sent, then a crash", dead._replace(crashes=world.crashes - 1)


# -------------------------------------------------------------------------------------------------------- reading
