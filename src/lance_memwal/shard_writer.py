"""The public writer of one shard.

Owns `ShardWriter`: what a user calls. Each verb is one call into `write`, or into `read` with what is in memory. Invariants:

1. A writer that is dropped without close flushes nothing, and its background work ends.
2. A writer in a forked child is closed.
3. A call in a signal handler, on top of a commit of the same thread, is refused and did nothing (`ambiguous` says where that
   is not known). A close returns at once there, and is done in the background.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import pyarrow as pa

from lance_memwal.arguments import check_instance
from lance_memwal.clock import SYSTEM_CLOCK, Clock
from lance_memwal.config import WriterConfig, WriterSettings
from lance_memwal.errors import InvalidInputError, UnavailableError
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.lance.identity import TableWatch
from lance_memwal.log.shards import for_writing
from lance_memwal.log.transactions import is_own
from lance_memwal.memtable import live
from lance_memwal.memtable.memtable import InMemoryMemTableRef, InMemoryMemTables
from lance_memwal.process.aio import Together, in_thread, shares, waits
from lance_memwal.process.background import JOIN_SECONDS
from lance_memwal.process.forking import close_in_child
from lance_memwal.process.lazy import lazy
from lance_memwal.process.telemetry import spanned
from lance_memwal.process.waiting import is_on_top
from lance_memwal.read.lookup import LookupKeys, Undecided
from lance_memwal.read.memory_scan import MemTableScanner
from lance_memwal.read.readable import Readable, ReadableAio
from lance_memwal.read.reader import Reader
from lance_memwal.read.scan import Read
from lance_memwal.read.shard_alone import ShardAlone
from lance_memwal.read.tiers import Tiers
from lance_memwal.rows.filter import FilterLike
from lance_memwal.rows.merging import LastWrite, Merge
from lance_memwal.rows.schema import TableSchema
from lance_memwal.sstable.target import ShardTarget
from lance_memwal.store.location import Location, resolve
from lance_memwal.types import SeenTransaction, ShardManifest
from lance_memwal.write import columns, life, resolved, writes
from lance_memwal.write.in_order import put_in_order
from lance_memwal.write.life import Parked
from lance_memwal.write.request import NowaitWritable, Write, begins
from lance_memwal.write.results import ShardWrite, WriteResult, result_of
from lance_memwal.write.shard import Shard
from lance_memwal.write.stats import BackpressureStats, MemTableStats, StatsHandle, WalStats, WriteStats
from lance_memwal.write.table_target import target_of, with_shard, writer_config
from lance_memwal.write.writes import Ack, InsertedRows

_LOG = logging.getLogger(__name__)


class ShardWriter(Readable, NowaitWritable):
    """Writes one shard: durable puts and deletes, visible at once, flushed to SSTables in the background."""

    def __init__(
        self, target: ShardTarget, config: WriterConfig, clock: Clock, *, parked: Parked | None = None
    ) -> None:
        """Use `open`."""
        self._shard = life.open_shard(target, config, clock, parked)
        self._key = target.location.key
        self._live = life.LiveWriter(self._shard, self)
        self._together = Together()
        try:
            life.start(self._shard)
            self._finalizer = weakref.finalize(self, self._shard.abandon)
            self._finalizer.atexit = False  # a program's own hook may still close this writer
            live.register(self._key, self._live)
            close_in_child(self._orphan)
        except BaseException:  # no second thread to be had, or interrupted: the first one must not live on
            self._shard.abandon()
            raise

    @classmethod
    def open(
        cls,
        uri: str | Location,
        schema: pa.Schema | None = None,
        config: WriterConfig | None = None,
        *,
        indexes: Sequence[Any] = (),
        storage_options: Mapping[str, str] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[WriterSettings],
    ) -> ShardWriter:
        """Own a shard: validate, claim, fence the predecessor, replay. A refused open has fenced nobody.

        `schema` may be left out where a base table exists. `indexes` (`BTreeIndex`, `FtsIndex`, `HnswIndex`) are had
        beside those that the table maintains. Settings come from the table's stored defaults, or from
        `config`, and then from `settings`.
        """
        if schema is not None:
            check_instance("schema", schema, pa.Schema, "a pyarrow schema")
        check_instance("indexes", indexes, (list, tuple), "a list of indexes")
        location = resolve(uri, storage_options)
        base = BaseTable.open(location)
        chosen = writer_config(base, config, settings, indexes)
        if base is not None:
            chosen = with_shard(chosen, base.sharding)
            base.check_columns()
            base = for_writing(base, clock)
        return cls(target_of(location, base, schema, fsync=chosen.fsync, indexes=indexes, clock=clock), chosen, clock)

    # -------------------------------------------------------------------------------------------------------- writing

    def _about_write(self, _: Write, *, result: WriteResult | None) -> dict[str, str | int]:
        return self._shard.span_attributes(None if result is None else result.written)

    @spanned(lambda _, write: f"memwal.shard.{write.kind}", about=_about_write)
    def _apply(self, write: Write) -> WriteResult:
        target = self._shard.columns.target
        if write.needs_lookup(target.merge):
            done = self._look_up_and_write(write, target.merge)
        elif write.kind == "put":
            done = writes.put(self._shard, write.rows, write.txn, write.missing)
        else:
            done = writes.delete(self._shard, write.rows, write.txn)
        shards = {self._shard.log.shard_id: done}
        return WriteResult(done.written, done.matched, done.rejected, done.skipped, shards)

    def _look_up_and_write(self, write: Write, merge: Merge | None) -> ShardWrite:
        if write.kind == "put" and write.is_plain and isinstance(merge, LastWrite):
            highest = partial(self._highest, merge)
            return put_in_order(self._shard, self._newest_rows, highest, write.rows, write.txn, write.missing, merge)
        if write.by_filter and write.found is None and write.where is not None:
            if write.kind == "update":
                write.settings(self._shard.columns.target.schema)
            write = write.part_of_found(self._candidates(write.where))
        return resolved.write(self._shard, self._newest_rows, write.change(), write.txn)

    def _begin(self, write: Write, *, drain: bool = True) -> Ack:
        write.refuse_lookup(self._shard.columns.target.merge)
        if write.kind == "put":
            done = writes.put_nowait(self._shard, write.rows, write.missing, drain=drain)
        else:
            done = writes.delete_nowait(self._shard, write.rows, drain=drain)
        result = result_of({self.shard_id: done})
        return Ack([InsertedRows(self._shard.commits, result, done.positions.stop)])

    def _candidates(self, where: FilterLike) -> pa.Table:
        """The keys of the rows of this shard, or of the base table, for which the filter is true now."""
        target = self._shard.columns.target
        key = target.schema.need_key()
        sharding = None if target.watch is None else target.watch.look().sharding
        beside = [] if sharding is None or sharding.column is None else [sharding.column]
        names = list(dict.fromkeys([*key, *beside]))
        found = self.scan(names, where).to_table()
        if not beside or sharding is None:
            return found
        routed = [sharding.route(batch, target.schema.columns) for batch in found.to_batches()]
        own = [rows for parts in routed for shard_id, rows in parts if shard_id == self.shard_id]
        return pa.Table.from_batches(own, schema=found.schema)

    def _newest_rows(
        self, keys: pa.RecordBatch, columns: Sequence[str], schema: TableSchema, memory: InMemoryMemTables
    ) -> pa.Table:
        return self._reader.newest_rows(keys, columns, schema, memory)

    def _highest(self, merge: LastWrite, memory: InMemoryMemTables) -> Any:
        reader = self._reader
        if isinstance(reader, ShardAlone):  # a merge is stored with the table
            raise InvalidInputError("there is no base table")
        return reader.highest_sequence(self._shard.columns.target.schema, merge, memory)

    def evolve_schema(self) -> None:
        """Move to the columns that the base table has now: added, renamed and dropped ones.

        Writes wait meanwhile. What was written before is flushed under the old columns, and is read by field id.
        """
        columns.evolve(self._shard)

    def force_seal_active(self) -> None:
        """Freeze the active memtable (no-op if it is empty); `FencedError` if another writer owns the shard."""
        life.force_seal(self._shard)

    def _about_drain(self, *_: object, **_options: object) -> dict[str, str | int]:
        return life.about_unflushed(self._shard)

    @spanned("memwal.drain", about=_about_drain)
    def wait_for_flush_drain(self, timeout: float | None = None) -> None:
        """Wait until every frozen memtable is an SSTable; `UnavailableError` after `timeout` seconds.

        While a flush keeps failing, this waits for its next attempt and raises the error of that attempt.
        """
        life.wait_for_drain(self._shard, timeout)

    # -------------------------------------------------------------------------------------------------------- closing

    def close(self) -> None:
        """Flush the log and all memtables, end the background work, and raise the first failure. Idempotent.

        In a signal handler on top of another call of the same thread it returns at once: no more writes are accepted, and
        the writer is closed in the background after that call, at the latest when the program ends.
        """
        if is_on_top():
            self._shard.health.request_close(self._close_quietly, at_once=False)
        else:
            life.close(self._shard, self._stop)

    def _close_quietly(self) -> None:
        """Close for a caller that is gone."""
        try:
            life.close(self._shard, self._stop)
        except Exception as error:
            _LOG.warning("closing a writer failed [shard=%s]: %s", self.shard_id, error)

    def abort(self) -> None:
        """Stop without flushing; what is in the log is replayed by the next open. Idempotent."""
        if is_on_top():
            self._shard.health.request_close(self._stop, at_once=True)
        else:
            self._stop()

    def _stop(self, seconds: float = JOIN_SECONDS) -> None:
        """End the background work, and wait for what of it runs, for some time."""
        live.forget(self._key, self._live)
        self._shard.stop(seconds)
        self._finalizer.detach()  # not before: an interrupt in between would leave the background work to nobody

    def _orphan(self) -> None:
        """Become closed in a forked child, where this writer's threads and locks do not exist."""
        self._finalizer.detach()
        self._shard.orphan()
        self._together = Together()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> ShardWriter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await in_thread(self.close)

    @property
    def aio(self) -> ShardWriterAio:
        """The verbs as coroutines; plain puts and deletes of many tasks share entries."""
        return ShardWriterAio(self, self._together, begins(self, self._shard.columns.target.merge))

    # -------------------------------------------------------------------------------------------------------- reading

    def memtable_scanner(self) -> MemTableScanner:
        """A scan of the memtables alone, active and frozen; `scan` reads flushed rows too."""
        target = self._shard.columns.target
        return MemTableScanner(Tiers.of_memory(target.location, target.schema, self.in_memory_memtable_refs()))

    def _capture(self, read: Read, keys: LookupKeys | None = None) -> Tiers:
        """The tiers of this shard and the base table."""
        if read.shards is not None and self.shard_id not in read.shards:
            raise InvalidInputError(
                f"a shard writer reads its own shard, {self.shard_id}; read other shards of the table"
            )
        memory = read.in_memory if read.in_memory is not None else self.in_memory_memtable_refs()
        return self._reader.capture(replace(read, shards=(self.shard_id,), in_memory=memory), keys)

    def _find_in_memory(self, keys: LookupKeys, columns: Sequence[str] | None) -> dict[str, Any] | Undecided | None:
        self._shard.tables.need()
        self._shard.health.refuse()
        return self._reader.find_in_memory(keys, columns, self._live)

    @property
    def _reader(self) -> Reader | ShardAlone:
        """Reads of this shard, with the base table if there is one by now."""
        target = self._shard.columns.target
        if target.watch is None and not BaseTable.is_there(target.location):
            return ShardAlone(target.location, self.shard_id, target.schema, self._shard.manifests)
        return self._table_reader

    @lazy
    def _table_reader(self) -> Reader:
        return Reader(NewestBase(BaseTable.need(self._shard.columns.target.location)), self._shard.clock)

    def in_memory_memtable_refs(self) -> InMemoryMemTables:
        """Active and frozen memtables, captured together."""
        return self._shard.capture()

    def active_memtable_ref(self) -> InMemoryMemTableRef:
        """The active memtable, captured."""
        return self._shard.capture().active

    # -------------------------------------------------------------------------------------------------------- looking

    def check_fenced(self) -> None:
        """Raise `FencedError` if the newest manifest carries a higher epoch, `TableReplacedError` if the table is another one."""
        life.check_fenced(self._shard)

    def manifest(self) -> ShardManifest:
        """The newest manifest of the shard."""
        latest = self._shard.manifests.read_latest()
        if latest is None:
            raise UnavailableError(f"the manifest of shard {self.shard_id} is gone; run verify", ambiguous=False)
        return latest

    @property
    def epoch(self) -> int:
        """The epoch under which this writer owns the shard."""
        return self._shard.log.epoch

    @property
    def shard_id(self) -> str:
        """The shard that this writer owns."""
        return self._shard.log.shard_id

    @property
    def config(self) -> WriterConfig:
        """The settings in force."""
        return self._shard.config

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return self._shard.columns.target.schema.columns

    @property
    def closed(self) -> bool:
        """Whether the writer was closed or aborted."""
        return not self._shard.health.is_open

    def transactions(self) -> dict[str, SeenTransaction]:
        """The newest version per application that is on storage; ids of lance-memwal itself are left out."""
        return {app: seen for app, seen in self._shard.commits.transactions().items() if not is_own(app)}

    def stats(self) -> WriteStats:
        """What this writer did since it was opened, or since a reset: puts, entries, flushes, latencies."""
        return self._shard.stats.snapshot()

    def stats_handle(self) -> StatsHandle:
        """The live counters; usable after close."""
        return self._shard.stats

    def wal_stats(self) -> WalStats:
        """The next position of the log."""
        return WalStats(self._shard.log.next_position)

    def backpressure_stats(self) -> BackpressureStats:
        """How many puts waited until a flush made room in memory, and for how long."""
        return self._shard.commits.backpressure()

    def memtable_stats(self) -> MemTableStats:
        """Rows and bytes that are in memtables now: active and frozen."""
        return self._shard.memtable_stats()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"ShardWriter(shard_id={self.shard_id!r}, epoch={self.epoch}, {state})"


def open_shard_of(
    base: BaseTable,
    settings: WriterConfig,
    *,
    routed: bool,
    watch: TableWatch | None = None,
    parked: Parked | None = None,
) -> ShardWriter:
    """Own a shard of `base`, or take a parked one up again; `routed`: the caller sends only rows that belong to it."""
    settings = with_shard(settings, base.sharding)
    base.check_columns()
    target = target_of(base.location, for_writing(base), None, fsync=settings.fsync, routed=routed, watch=watch)
    return ShardWriter(target, settings, SYSTEM_CLOCK, parked=parked)


def core_of(writer: ShardWriter) -> Shard:
    """Return the parts of a writer."""
    return writer._shard


def park(writer: ShardWriter) -> Parked | None:
    """Put a writer away, with everything durable; it is closed then.

    None if it does not write any more, or is too busy for that: then it stays open.
    """
    return life.park(writer._shard, writer._stop)


def unpublished_generation(writer: ShardWriter) -> int:
    """Return the oldest generation that is in no SSTable yet; 0 in WAL-only mode."""
    return writer._shard.tables.unpublished_generation


class ShardWriterAio(ReadableAio):
    """The verbs of a `ShardWriter` as coroutines."""

    __slots__ = ()
    put = shares(ShardWriter.put)
    insert = waits(ShardWriter.insert)
    update = waits(ShardWriter.update)
    delete = shares(ShardWriter.delete)
    compare_and_set = waits(ShardWriter.compare_and_set)
    evolve_schema = waits(ShardWriter.evolve_schema)
    force_seal_active = waits(ShardWriter.force_seal_active)
    wait_for_flush_drain = waits(ShardWriter.wait_for_flush_drain)
    check_fenced = waits(ShardWriter.check_fenced)
    manifest = waits(ShardWriter.manifest)
    close = waits(ShardWriter.close)
    abort = waits(ShardWriter.abort)
