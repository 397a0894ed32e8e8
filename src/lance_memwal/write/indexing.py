"""Indexes of a writer's memtables, kept up beside the puts.

Owns `Indexing`: rows whose indexing was deferred, the set of indexes that a new memtable gets, and graphs that searches
would gain by. Invariants:

1. Nothing here is needed for a right answer: a search takes in what is missing, or compares it row by row.
2. Deferred indexing is no part of a put, and no lock of the writer is held while something is built.
3. A graph is built only after searches asked for it, by one task, and no further than the writer lives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lance_memwal.clock import Clock
from lance_memwal.config import WriterConfig
from lance_memwal.memtable.index import HnswMemIndex, MemIndex
from lance_memwal.memtable.memtable import MemTable
from lance_memwal.process import telemetry
from lance_memwal.process.background import Task
from lance_memwal.sstable.mirrors import IndexSet
from lance_memwal.write.health import Health
from lance_memwal.write.stats import StatsHandle

_SLICE_ROWS = 512


class Indexing:
    """Which indexes the memtables of one writer have, and what of them is still to be done."""

    def __init__(
        self,
        indexes: IndexSet,
        config: WriterConfig,
        health: Health,
        stats: StatsHandle,
        clock: Clock,
        ticker: Task,
        grower: Task,
    ) -> None:
        self._indexes = indexes
        self._at_once = config.sync_indexed_write
        self._buffer_rows = config.async_index_buffer_rows
        self._interval_seconds = config.async_index_interval_ms / 1000
        self._health = health
        self._stats = stats
        self._clock = clock
        self._ticker = ticker
        self._grower = grower
        self._since: float | None = None  # when the oldest row came that is not indexed
        self._wanted = False
        self._graph_wanted = False

    def use(self, indexes: IndexSet) -> None:
        """Go on with another set, of other columns."""
        self._indexes = indexes

    def build(self, known: Sequence[MemIndex] = ()) -> list[MemIndex]:
        """The indexes of a new memtable, or those of `known` and what they lack."""
        return self._indexes.build(known)

    def refresh(self, active: MemTable) -> None:
        """Look the maintained indexes up anew, and give `active` those that it lacks."""
        if self._indexes.refresh():  # frozen meanwhile, it does no harm; the next one has the new set anyway
            active.adopt(self.build(active.indexes))

    def inserted(self, active: MemTable) -> None:
        """Take the new rows into the indexes, or see to it that the ticker does."""
        now = self._clock.monotonic()
        if self._at_once:
            active.index_rows()
            self._count([active], self._clock.monotonic() - now)
            return
        if self._since is None:
            self._since = now
            self._ticker.poke()
        if active.unindexed_rows >= self._buffer_rows and not self._wanted:
            self._wanted = True
            self._ticker.poke()

    def _count(self, memtables: Sequence[MemTable], seconds: float) -> None:
        rows = sum(memtable.take_indexed() for memtable in memtables)
        if rows:
            with self._health.lock:
                self._stats.count_indexed(rows, seconds)

    # ------------------------------------------------------------------------------------------- what the ticker does

    @property
    def next_due(self) -> float | None:
        """When (`monotonic`) there is something to do, if nothing else happens."""
        if self._wanted or self._graph_wanted:
            return 0.0
        return None if self._since is None else self._since + self._interval_seconds

    def take_due(self, now: float) -> bool:
        """Whether deferred rows must be indexed now, by the caller (`lock` is held)."""
        due = self._wanted or (self._since is not None and now >= self._since + self._interval_seconds)
        self._wanted = False
        if due:
            if self._since is not None and (told := telemetry.active()) is not None:
                told.note("lance_mem_wal_index_lag_seconds", now - self._since)
            self._since = None
        return due

    def take_graph(self) -> bool:
        """Whether a search asked for a graph; the caller has it built (`lock` is held)."""
        wanted, self._graph_wanted = self._graph_wanted, False
        return wanted

    def index(self, ends: Sequence[tuple[MemTable, int]]) -> None:
        """Take the first batches of memtables, as many as given, into their indexes."""
        started = self._clock.monotonic()
        for memtable, end in ends:
            memtable.index_rows(end)
        self._count([memtable for memtable, _ in ends], self._clock.monotonic() - started)

    def want_graph(self) -> None:
        """Ask the ticker to have a graph built; a search calls this."""
        with self._health.lock:
            if not self._graph_wanted:
                self._graph_wanted = True
                self._ticker.poke()

    def grow(self, active: Callable[[], MemTable]) -> None:
        """Grow graphs of the active memtable beside everything else."""
        if self._health.is_open:
            self._grower.start(lambda: self._grow_graphs(active)).poke()

    def _grow_graphs(self, active: Callable[[], MemTable]) -> None:
        """Bring the graphs of the active memtable that searches asked for up to date; searches are exact without them."""
        memtable = active()
        for index in memtable.indexes:
            if isinstance(index, HnswMemIndex) and index.wants_graph:
                while index.catch_up(_SLICE_ROWS) and self._health.is_open and active() is memtable:
                    memtable.measure()
                memtable.measure()
