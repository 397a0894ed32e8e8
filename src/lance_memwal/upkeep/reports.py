"""What maintenance did, found, or would do: the values that its calls return.

Owns the report dataclasses. Invariant: reports are plain values; nothing here reads storage.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lance_memwal.compact.reports import CompactionReport
from lance_memwal.rows.notebook import html_of_report
from lance_memwal.store.metering import CallStats
from lance_memwal.types import ShardStatus


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken invariant: where it is, what is wrong, what to do. `shard_id` is None for the base table."""

    where: str
    what: str
    remedy: str
    invariant: str = ""
    shard_id: str | None = None
    position: int | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({self.invariant}). {self.remedy}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `Table.verify` looked at and found wrong."""

    problems: list[Problem]
    shards: int = 0
    entries: int = 0
    sstables: int = 0
    seconds: float = field(default=0.0, compare=False)

    @property
    def ok(self) -> bool:
        """Whether every invariant holds."""
        return not self.problems

    def _repr_html_(self) -> str:
        return html_of_report(self)


@dataclass(frozen=True, slots=True)
class CollectedObject:
    """One object that collection removed or would remove, and why."""

    path: str
    size_bytes: int
    kind: str


@dataclass(frozen=True, slots=True)
class GcReport:
    """One call of `Table.gc`. `objects` are what was removed (or would be, in a dry run); `refused` shards had faults.

    `waiting` counts SSTables that only an index keeps, `pinned` objects that only checkpoints and consumers keep;
    `objects_left` is what is left below the shards' directories.
    `expired_consumers` held something back for longer than they may, and were passed.
    """

    dry_run: bool
    objects: tuple[CollectedObject, ...] = ()
    refused: dict[str, list[Problem]] = field(default_factory=dict)
    waiting: int = 0
    pinned: int = 0
    objects_left: int = 0
    expired_consumers: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def size_bytes(self) -> int:
        """Bytes of all objects removed."""
        return sum(item.size_bytes for item in self.objects)

    def count(self, kind: str) -> int:
        """Objects of one kind: entry, sstable, orphan, manifest, deletes, rollup, owner, staging."""
        return sum(item.kind == kind for item in self.objects)

    def _repr_html_(self) -> str:
        return html_of_report(self)


@dataclass(frozen=True, slots=True)
class RepairAction:
    """One repair that was made, or would be in a dry run; `done` is False where only a person can decide."""

    where: str
    what: str
    done: bool = False


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What `Table.repair` did (or would do) and the problems that are left."""

    dry_run: bool
    actions: tuple[RepairAction, ...] = ()
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FlushedShard:
    """One shard of `Table.flush`: the generations and rows that it got, or why it was left alone."""

    shard_id: str
    generations: tuple[int, ...] = ()
    rows: int = 0
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class FlushReport:
    """One call of `Table.flush`."""

    shards: tuple[FlushedShard, ...] = ()

    @property
    def rows(self) -> int:
        """Rows that became SSTables."""
        return sum(shard.rows for shard in self.shards)

    @property
    def generations(self) -> int:
        """SSTables that were written."""
        return sum(len(shard.generations) for shard in self.shards)

    @property
    def skipped(self) -> dict[str, str]:
        """Why shards were left alone."""
        return {shard.shard_id: shard.skipped for shard in self.shards if shard.skipped is not None}


@dataclass(frozen=True, slots=True)
class MaintenanceReport:
    """One call of `Table.maintain`: what every step did.

    `indexes` are those that got new parts, or fewer. `postponed` says which steps others kept from being done, and why.
    """

    flushed: FlushReport
    compaction: CompactionReport
    garbage: GcReport
    indexes: tuple[str, ...] = ()
    files_removed: int = 0
    files_added: int = 0
    versions_removed: int = 0
    postponed: dict[str, str] = field(default_factory=dict)
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard as storage shows it: its owner's epoch, its SSTables, their `bytes` on storage, and the length of its tail."""

    shard_id: str
    epoch: int
    status: ShardStatus
    generations: tuple[int, ...]
    current_generation: int
    wal_tail: int
    bytes: int


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """One generation of a shard above the base table, or still listed beside it.

    `tier` is "memtable" (the newest that is not flushed), "frozen" (older, not flushed yet), "sstable", or "compacted" (the
    base table has its rows, and something still needs the SSTable). Rows are before newest-wins. `size_bytes` are bytes on
    storage, None for a memtable. `in_memory_bytes` are those of the rows in memory. None: not recorded.
    """

    generation: int
    tier: str
    rows: int | None
    size_bytes: int | None = None
    in_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ShardStats:
    """One shard: what its tiers hold and what compaction and collection have to do there.

    `wal_first` and `wal_tip` are the lowest and the highest position in its log, 0 if it is empty; `written_ms` is when the
    highest was written, `lag_since_ms` when the oldest one that no SSTable holds yet. `generations` ascend; those that are not
    flushed are among them only if live rows were asked for. All sizes are bytes on storage, from one listing of the shard.
    """

    shard_id: str
    epoch: int
    current_generation: int
    compacted_generation: int
    sstables: int
    sstable_rows: int
    sstable_bytes: int
    uncompacted_generations: int
    uncompacted_rows: int
    uncompacted_bytes: int
    wal_entries: int
    wal_bytes: int
    wal_lag_entries: int
    wal_lag_bytes: int
    manifests: int
    objects: int
    size_bytes: int
    wal_first: int = 0
    wal_tip: int = 0
    written_ms: int | None = None
    lag_since_ms: int | None = None
    generations: tuple[GenerationStats, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A named consumer of changes: how many log entries it has not committed yet, and how long ago it said something.

    `state` is "active" or "expired": it was silent for longer than `max_age_seconds`, and collection went on without it.
    """

    name: str
    state: str
    lag_entries: int
    silent_seconds: float
    max_age_seconds: float
    cursor: str


@dataclass(frozen=True, slots=True)
class TableStats:
    """One table: its base, its shards, and the work that is due.

    `cache_bytes` is what this process keeps of all tables now (`set_cache_bytes` says how much it may).
    `waiting_for_indexes` says per index how many compacted generations stay listed until it is brought up to date.
    `consumers` are those who follow its changes by name, with their lag. `live_rows` is what a scan would count now.
    They, and what collection would delete, are None where they were not asked for.
    `store_calls` are the calls that this process made for the table, by operation, with the percentiles of their times and
    what they cost by list prices; Lance's own requests for data files are not among them. `seen_seconds` is when they were
    collected, by a clock that only this process has: `rates_between` compares two of them.
    """

    base_version: int
    base_rows: int
    base_fragments: int
    base_bytes: int
    shards: tuple[ShardStats, ...]
    compaction_due: tuple[str, ...]
    collectable_objects: int | None
    collectable_bytes: int | None
    cache_bytes: int = 0
    waiting_for_indexes: dict[str, int] = field(default_factory=dict)
    consumers: tuple[ConsumerInfo, ...] = ()
    live_rows: int | None = None
    store_calls: dict[str, CallStats] = field(default_factory=dict, compare=False)
    seen_seconds: float = field(default=0.0, compare=False)

    @property
    def request_cost_dollars(self) -> float:
        """What `store_calls` cost in all, by list prices."""
        return sum(calls.cost_dollars for calls in self.store_calls.values())

    def _sum(self, name: str) -> int:
        return sum(int(getattr(shard, name)) for shard in self.shards)

    @property
    def uncompacted_generations(self) -> int:
        """SSTables that the base table does not hold yet."""
        return self._sum("uncompacted_generations")

    @property
    def uncompacted_rows(self) -> int:
        """Rows in those SSTables, before newest-wins."""
        return self._sum("uncompacted_rows")

    @property
    def uncompacted_bytes(self) -> int:
        """Bytes of those SSTables on storage."""
        return self._sum("uncompacted_bytes")

    @property
    def wal_lag_entries(self) -> int:
        """Log entries that no SSTable holds yet."""
        return self._sum("wal_lag_entries")

    @property
    def wal_lag_bytes(self) -> int:
        """Bytes of those entries."""
        return self._sum("wal_lag_bytes")

    @property
    def objects(self) -> int:
        """Objects below all shards."""
        return self._sum("objects")

    @property
    def size_bytes(self) -> int:
        """Bytes below all shards."""
        return self._sum("size_bytes")

    def _repr_html_(self) -> str:
        return html_of_report(self)
