"""The facade: a table, its writers, its reads, and what keeps it small and sound.

Owns `open_table` and `Table`; no engine logic, every method is a call into a room below.
Invariants:

1. A table follows new base versions by itself: every read and every new writer looks at the newest one. It also follows
   a table that was dropped and created anew at the same place.
2. A table whose MemWAL entry was lost (overwritten or dropped base) says so and gives no writer.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

import lance
import pyarrow as pa

from lance_memwal.arguments import check_choice, check_flag
from lance_memwal.compact.policy import DEFAULT_COMPACTION, CompactionPolicy
from lance_memwal.compact.reports import CompactionReport, Progress
from lance_memwal.compact.run import DEFAULT_MEMORY_BYTES
from lance_memwal.config import ShardSettings, WriterConfig, WriterSettings
from lance_memwal.engines.dataset import TableDataset, dataset_at, dataset_of
from lance_memwal.engines.sql import SQL_MEMORY_BYTES
from lance_memwal.engines.sql import query as sql_query
from lance_memwal.feed.changes import ChangeFeed, Request
from lance_memwal.feed.checkpoints import Moment
from lance_memwal.feed.starts import Start, Until
from lance_memwal.feed.time_travel import diff_moments, snapshot_of
from lance_memwal.feed.view import TableView, scan_at
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.lance.details import MemWalDetails
from lance_memwal.lance.marks import recorded
from lance_memwal.log.epochs import IDLE_SECONDS
from lance_memwal.process.aio import waits
from lance_memwal.read.lookup import LookupKeys, Undecided
from lance_memwal.read.readable import ReadableAio, WholeTable
from lance_memwal.read.reader import Reader
from lance_memwal.read.scan import Pickled, Read
from lance_memwal.read.snapshot import Snapshot
from lance_memwal.read.tiers import Consistency, Tiers
from lance_memwal.rows.filter import FilterLike
from lance_memwal.rows.merging import Merge
from lance_memwal.rows.notebook import html_of
from lance_memwal.rows.sharding import Sharding
from lance_memwal.shard_writer import ShardWriter, open_shard_of
from lance_memwal.sstable.maintained import with_names
from lance_memwal.store.location import Location, resolve
from lance_memwal.table.groups import Checkpoints, CheckpointsAio, Consumers, ConsumersAio, Indexes, IndexesAio
from lance_memwal.table.verbs import KeptWriter
from lance_memwal.table.writers import open_writer, shard_settings
from lance_memwal.table_writer import TableWriter
from lance_memwal.upkeep.drop import drop_table
from lance_memwal.upkeep.gc import Collector
from lance_memwal.upkeep.maintain import DEFAULT_VERSIONS, IndexUpkeep, Maintenance, compact_table
from lance_memwal.upkeep.repair import repair_table
from lance_memwal.upkeep.reports import (
    FlushReport,
    GcReport,
    MaintenanceReport,
    RepairReport,
    ShardInfo,
    TableStats,
    VerifyReport,
)
from lance_memwal.upkeep.stats import collect_stats, newest_transactions, shard_infos
from lance_memwal.upkeep.tails import ShardOpener, flush_live, flush_tails
from lance_memwal.upkeep.verify import verify_table
from lance_memwal.write.open_shards import DEFAULT_OPEN_SHARDS
from lance_memwal.write.request import Writable, Write
from lance_memwal.write.results import WriteResult

if TYPE_CHECKING:
    pass


def open_table(
    uri: str | Location, *, storage_options: Mapping[str, str] | None = None, for_repair: bool = False
) -> Table:
    """The table at `uri`; says so if it has no MemWAL index, or lost it.

    `for_repair=True` opens it all the same: `Table.verify` and `Table.repair` work then, reads and writes do not. If the
    newest version of the base table is damaged, they look at the newest one that can be read, and say so.
    """
    location = resolve(uri, storage_options)
    readable = BaseTable.open_newest_readable(location) if for_repair else None
    table = Table(location, readable or BaseTable.need(location))
    if not for_repair:
        table.details()
    return table


_FLUSH_SECONDS = 60.0  # how long `maintain` waits for the flush of a writer of this process


class Table(WholeTable, Writable):
    """A Lance table with a write path in front: fresh reads over all tiers, writers for its shards."""

    def __init__(self, location: Location, base: BaseTable) -> None:
        """Use `open_table`, `create_table` or `enable`."""
        self.location = location
        self._newest = NewestBase(base)
        self._reader = Reader(self._newest, scan_at=scan_at)
        self._kept = KeptWriter(self._newest, partial(open_writer, self._newest, self._reader, shared=True))

    def __repr__(self) -> str:
        base = self._newest.known
        return f"Table({self.uri!r}, primary_key=({', '.join(base.primary_key) or 'none'}), version={base.version})"

    def _repr_html_(self) -> str:
        """The columns that this handle read last; nothing is read from storage."""
        base = self._newest.known
        facts = {"primary key": ", ".join(base.primary_key) or "none", "version": base.version}
        rows = [{"column": field.name, "type": field.type, "nullable": field.nullable} for field in base.schema]
        return html_of(self.uri, facts, rows)

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled table is its place, with the options that were given for it, and is opened again where it arrives."""
        return open_table, (self.location,)

    # ------------------------------------------------------------------------------------------------------ the table

    @property
    def uri(self) -> str:
        """Where the table is, without credentials."""
        return self.location.describe()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the newest base version."""
        return self._newest().schema

    @property
    def primary_key(self) -> list[str]:
        """The key columns in key order; empty for an append-only table."""
        return list(self._newest.known.primary_key)

    @property
    def sharding(self) -> Sharding:
        """How rows are spread over shards."""
        return self._newest.with_index().sharding

    @property
    def merge(self) -> Merge | None:
        """What a later write of a key does; None: the last write wins."""
        return self._newest.with_index().merge

    @property
    def dataset(self) -> lance.LanceDataset:
        """The newest version of the base table, as a dataset of the caller's own: what it commits moves no read of ours."""
        return self._newest().handle()

    def details(self) -> MemWalDetails:
        """What the MemWAL index of the newest base version records."""
        base = self._newest()
        return replace(base.need_details(), compacted=recorded(base))

    def shards(self) -> list[ShardInfo]:
        """Every shard on storage."""
        return shard_infos(self.location)

    def transactions(self) -> dict[str, dict[str, int]]:
        """Per shard the newest version of every application that wrote with a transaction."""
        return newest_transactions(self.location, self._newest.known.tag)

    # ------------------------------------------------------------------------------------------------------ writing

    def writer(
        self,
        *,
        config: WriterConfig | None = None,
        compaction: CompactionPolicy | None = DEFAULT_COMPACTION,
        max_open_shards: int = DEFAULT_OPEN_SHARDS,
        shared: bool = False,
        **settings: Unpack[WriterSettings],
    ) -> TableWriter:
        """A writer that routes rows to shards.

        With `shared` it owns no shard: any number of processes append next to each other. A put then makes two requests
        instead of one, and busy processes take turns on a shard. Without `shared` the writer is exclusive: it claims its
        shards, and a newer exclusive writer fences it.

        Its shards are compacted in the background as `compaction` says; None switches that off. Of more than
        `max_open_shards` shards, those that were not written to for longest are parked: they stay this writer's own,
        without memory or threads.
        """
        return open_writer(
            self._newest,
            self._reader,
            config=config,
            compaction=compaction,
            max_open_shards=max_open_shards,
            shared=shared,
            overrides=settings,
        )

    def shard_writer(
        self,
        shard_id: str | uuid.UUID | None = None,
        *,
        config: WriterConfig | None = None,
        **settings: Unpack[ShardSettings],
    ) -> ShardWriter:
        """Open the writer of one shard. None: the shard of an unsharded table, or a new manual shard."""
        base = with_names(self._newest.with_index())
        return open_shard_of(base, shard_settings(base, shard_id, config, settings), routed=False)

    def _apply(self, write: Write) -> WriteResult:
        return self._kept.apply(write)

    def close(self) -> None:
        """Close the writer that the write verbs opened; they open another one when they are called again.

        What they acknowledged is durable without it.
        """
        self._kept.close()

    @property
    def aio(self) -> TableAio:
        """The calls that wait, as coroutines: `await table.aio.get(7)`, `async for batch in table.aio.scan()`."""
        return TableAio(self)

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------------ reading

    def _capture(self, read: Read, keys: LookupKeys | None = None) -> Tiers:
        return self._reader.capture(read, keys)

    def _find_in_memory(self, keys: LookupKeys, columns: Sequence[str] | None) -> dict[str, Any] | Undecided | None:
        return self._reader.find_in_memory(keys, columns)

    def _pickled(self) -> Pickled | None:
        return self._reader.pickled

    def to_dataset(self, *, consistency: Consistency = "fresh") -> TableDataset:
        """The live rows as a pyarrow dataset: DuckDB, Polars and DataFusion read it, with columns and filters pushed down.

        Every scan of it reads the newest state of the table.
        """
        return dataset_of(self, consistency)

    def sql(self, /, query: str, *, memory_bytes: int = SQL_MEMORY_BYTES, **tables: Any) -> pa.Table:
        """The answer to one SQL query of DataFusion in which this table is `t`; all of it sees one state of the table.

        `tables` are others that it names: tables of ours, pyarrow datasets, or data. The query only reads: statements that
        make, change or set something are refused. Sorts, groups and joins beyond `memory_bytes` spill to temporary files.
        """
        return sql_query(query, {"t": dataset_at(self._reader.capture()), **tables}, memory_bytes=memory_bytes)

    # ------------------------------------------------------------------------------------------------------ time

    def snapshot(self) -> Snapshot:
        """This moment as a small value, which `at` reads later; `str` of it is a text, and `Snapshot.parse` its inverse.

        It has every durable row. What it needs stays for the grace period of `gc`; a checkpoint keeps it for longer.
        """
        return self._reader.snapshot()

    def at(self, moment: Moment) -> TableView:
        """The table as it was: at a snapshot, the name of a checkpoint, a datetime, or a version of the base table.

        Scans, lookups and searches of it give what they gave then; a version of the base table shows exactly what plain
        Lance shows. `CollectedError` if a part of it is gone.
        """
        return TableView(self.location, snapshot_of(self._newest.with_index(), moment))

    @property
    def checkpoints(self) -> Checkpoints:
        """Named snapshots that GC keeps: `create`, `list` and `drop`."""
        return Checkpoints(self._newest, self.snapshot)

    def diff(self, a: Moment, b: Moment, *, before: bool = False) -> pa.Table:
        """What changed from one moment to another, net: one row per key that differs, with `_op`.

        `_op` is `insert`, `update` or `delete`; deleted rows come as they were, others as they became. With `before` an
        update is two rows, `update_before` and `update_after`. Moments are those that `at` takes.
        """
        check_flag("before", before)
        base = self._newest.with_index()
        return diff_moments(base, a, b, with_before=before)

    # ------------------------------------------------------------------------------------------------------ changes

    def changes(
        self,
        *,
        start: Start = "earliest",
        until: Until = None,
        columns: Sequence[str] | None = None,
        filter: FilterLike | None = None,  # noqa: A002
        before: bool = False,
    ) -> ChangeFeed:
        """Every change of the table, once, in order per key: an iterable of batches, with `_op`, `_shard`, `_position`,
        `_time` and `_txn` behind the columns.

        `start` is "earliest" (the first change that was not collected), "latest" (now), "snapshot" (all live rows, then what
        changes after them), a cursor or its text, a snapshot, the name of a checkpoint, or a time: the first change at or after
        it. It ends at `until`: "now", or one of these, of which a time is the first that does not come; None: never.
        `feed.cursor` is where to go on after the batch that was just handed out.

        `_op` is "u" for a row that was put and "d" for one that was deleted. With `before` it is "insert", "update_before",
        "update_after" or "delete", and the row before the change comes, too. A delete matches every filter that needs more
        than the key.

        `CollectedError` if collection removed a part of it: start again from a snapshot. `consumers` prevent that.
        """
        return ChangeFeed(self._newest, Request(columns, filter, before), start, until)

    @property
    def consumers(self) -> Consumers:
        """Named readers of the change feed: `open`, `list` and `drop`."""
        return Consumers(self._newest)

    # ------------------------------------------------------------------------------------------------------ upkeep

    @property
    def indexes(self) -> Indexes:
        """The indexes of the base table: `create`, `list`, `drop` and `maintain`."""
        return Indexes(self._newest, self.details, partial(self.compact, flush=True))

    def flush(
        self,
        *,
        shards: Collection[str | uuid.UUID] | None = None,
        idle_seconds: float = IDLE_SECONDS,
        force: bool = False,
    ) -> FlushReport:
        """Turn the log tails of shards that nobody writes any more into SSTables.

        This claims the shards. Those whose newest entry is younger than `idle_seconds`, or that a writer of this process
        owns, are skipped and reported; `force=True` takes them too, and fences their writers.
        """
        return flush_tails(
            self.location,
            self._flusher(),
            shards=shards,
            idle_seconds=idle_seconds,
            force=force,
            tag=self._newest.known.tag,
        )

    def _flusher(self) -> ShardOpener:
        """Opens shards whose logs were left behind."""
        base = self._newest()
        settings = partial(shard_settings, base, config=None, overrides={"enable_memtable": True})
        return lambda shard_id: open_shard_of(base, settings(shard_id), routed=True)

    def compact(
        self,
        *,
        shards: Collection[str | uuid.UUID] | None = None,
        max_generations: int | None = None,
        progress: Progress | None = None,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        flush: bool = False,
    ) -> CompactionReport:
        """Fold published generations into the base table, newest row per key, data and progress together.

        Runs beside writers and readers and fences nobody; several may run at once. `max_generations` bounds the work per
        shard, `memory_bytes` the memory; `progress` is told what was done and how much is left. Rows that are in a log only
        stay there, and the report says so; with `flush` they are folded too, as far as `flush()` would publish them and
        writers of this process do.
        """
        check_flag("flush", flush)
        return compact_table(
            self._newest,
            (lambda named: self.flush(shards=named)) if flush else None,
            shards=shards,
            max_generations=max_generations,
            progress=progress,
            memory_bytes=memory_bytes,
        )

    def maintain(
        self,
        *,
        indexes: IndexUpkeep = "catch_up",
        base_files: bool = True,
        versions: timedelta | None = DEFAULT_VERSIONS,
        progress: Progress | None = None,
        grace_seconds: float = 3600,
    ) -> MaintenanceReport:
        """Keep the table small and fast: flush, compact, update indexes, merge small base files, remove old versions, GC.

        Safe to run while other processes read and write. Writers of this process flush first. A log of another process is
        claimed only if its newest entry is older than twice `max_memtable_age_ms`, so no live writer is fenced.

        Args:
            indexes: "defer" leaves the indexes of the base table as they are; SSTables then wait for them.
            base_files: False leaves the files of the base table as they are.
            versions: Remove untagged versions of the base table that are older than this; None keeps all.
            progress: Called with each step.
            grace_seconds: Keep objects that became unneeded less than this ago.
        """
        flush_live(self.location, _FLUSH_SECONDS)
        maintenance = Maintenance(self._newest, self._flusher(), progress=progress)
        return maintenance.run(indexes=indexes, base_files=base_files, versions=versions, grace_seconds=grace_seconds)

    def drop(self, *, force: bool = False) -> None:
        """Remove the table: its rows in all tiers, and everything else in its directory. There is no way back.

        `ConflictError` while somebody seems to write: a writer of this process is open, or rows came within the last minute
        and are not flushed. With `force` it goes all the same, and such writers get `TableReplacedError`.
        """
        self._kept.close()
        drop_table(self.location, self._newest.known.tag, force=force)

    def gc(
        self,
        *,
        dry_run: bool = False,
        grace_seconds: float = 3600,
        progress: Progress | None = None,
        optimize_indices: bool = False,
    ) -> GcReport:
        """Delete what nobody needs any more: covered log entries, compacted SSTables, old manifests, orphans.

        What became unneeded within the grace period stays. `optimize_indices` lets the indexes of the base table catch up
        first, since an index that lags keeps its SSTables.
        """
        collector = Collector(self.location, self._newest)
        return collector.run(
            dry_run=dry_run, grace_seconds=grace_seconds, optimize_indices=optimize_indices, progress=progress
        )

    def verify(self) -> VerifyReport:
        """Check every invariant of the table on storage; reads only, and may run beside writers."""
        return verify_table(self._newest.readable)

    def repair(
        self,
        *,
        dry_run: bool = True,
        restored: Literal["keep_base"] | None = None,
        reused_ids: Literal["values", "null"] | None = None,
        accept_loss: bool = False,
    ) -> RepairReport:
        """Put right what can be without losing anything: a torn last entry, a lost MemWAL index.

        Damage further down in a log may hold acknowledged rows: restore the object from a backup. If there is none,
        `accept_loss=True` gives such entries up, so that the rest opens: their bytes are kept aside, and what was given
        up is written down beside them.

        If the base table was restored to a version before a compaction, reads raise an error. Restoring a later version
        brings the rows back. `restored="keep_base"` accepts the base table as it is: rows that were compacted after the
        restored version are lost.

        Lance may give the field id of a dropped column to a new column. If no kept base version shows whether rows belong to the
        dropped column, reads show null with a warning. `reused_ids="values"` shows the values in the column that has the id today
        (it was renamed), `reused_ids="null"` gives them up.
        """
        check_flag("dry_run", dry_run)
        check_flag("accept_loss", accept_loss)
        if restored is not None:
            check_choice("restored", restored, ("keep_base",))
        if reused_ids is not None:
            check_choice("reused_ids", reused_ids, ("values", "null"))
        return repair_table(
            self.location,
            self._newest.readable,
            dry_run=dry_run,
            restored=restored,
            reused_ids=reused_ids,
            accept_loss=accept_loss,
        )

    def stats(self, *, live_rows: bool = True, collectable: bool = True) -> TableStats:
        """Tiers, rows and bytes, what compaction and collection would do, and the store calls of this process.

        `live_rows=False` leaves the count of live rows out, which looks up the keys of fresh rows in the base table, and
        `collectable=False` what collection would delete, which looks at every object.
        """
        wanted = check_flag("collectable", collectable)
        garbage = Collector(self.location, self._newest).run(dry_run=True) if wanted else None
        live = self._reader.capture() if check_flag("live_rows", live_rows) else None
        return collect_stats(self.location, self._newest(), garbage, CompactionPolicy(), live=live)


class TableAio(ReadableAio):
    """The calls of a `Table` that wait, as coroutines."""

    __slots__ = ()
    head = waits(Table.head)
    to_arrow = waits(Table.to_arrow)
    to_pandas = waits(Table.to_pandas)
    sql = waits(Table.sql)
    put = waits(Table.put)
    insert = waits(Table.insert)
    update = waits(Table.update)
    delete = waits(Table.delete)
    compare_and_set = waits(Table.compare_and_set)
    details = waits(Table.details)
    stats = waits(Table.stats)
    shards = waits(Table.shards)
    transactions = waits(Table.transactions)
    at = waits(Table.at)
    snapshot = waits(Table.snapshot)
    diff = waits(Table.diff)
    maintain = waits(Table.maintain)
    flush = waits(Table.flush)
    compact = waits(Table.compact)
    gc = waits(Table.gc)
    verify = waits(Table.verify)
    repair = waits(Table.repair)
    drop = waits(Table.drop)
    close = waits(Table.close)

    @property
    def checkpoints(self) -> CheckpointsAio:
        """See `Table.checkpoints`."""
        return CheckpointsAio(self._owner.checkpoints)

    @property
    def consumers(self) -> ConsumersAio:
        """See `Table.consumers`."""
        return ConsumersAio(self._owner.consumers)

    @property
    def indexes(self) -> IndexesAio:
        """See `Table.indexes`."""
        return IndexesAio(self._owner.indexes)


def newest_base(table: Table) -> BaseTable:
    """Return the newest version of the base table, for the packages above this one."""
    return table._newest()
