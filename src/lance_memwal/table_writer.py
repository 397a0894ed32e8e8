"""The table-level writer: every row to its shard, one acknowledgement for all.

Owns `TableWriter`. Invariants:

1. A row goes to the shard that its sharding column names; shard writers are opened when the first row needs them, and
   parked when there are many.
2. `put` returns when every shard that got rows has them durable (in durable mode); it is atomic per shard.
3. Reads through the writer see everything that it acknowledged.
4. The shards that it writes are compacted in the background by a `CompactionPolicy` (None: never); a failure there is
   logged and tried again, and touches no write.
5. A writer belongs to the table that it was opened on. Once that was removed, overwritten, restored or made anew at the
   same place, it takes no more writes and compacts nothing (`TableReplacedError`; see `lance.identity` for how soon).
"""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from lance_memwal.arguments import check_timeout
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.compact.policy import Background, CompactionPolicy
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.identity import TableWatch
from lance_memwal.memtable import live
from lance_memwal.process.aio import Together, in_thread, shares, waits
from lance_memwal.process.forking import close_in_child
from lance_memwal.process.telemetry import spanned
from lance_memwal.process.waiting import is_on_top, refuse_on_top
from lance_memwal.read.lookup import LookupKeys, Undecided
from lance_memwal.read.readable import Readable, ReadableAio
from lance_memwal.read.reader import Reader
from lance_memwal.read.scan import Pickled, Read
from lance_memwal.read.tiers import Tiers
from lance_memwal.rows.filter import FilterLike
from lance_memwal.rows.fit import Fitted, Fitter, Missing, fills_missing, keeps_missing
from lance_memwal.rows.ingest import key_batch, to_batches, to_parts
from lance_memwal.rows.lookup_key import one_key
from lance_memwal.rows.merging import LastWrite
from lance_memwal.serve.shared_shard import SharedShard
from lance_memwal.shard_writer import ShardWriter, unpublished_generation
from lance_memwal.types import Transaction, check_shard_id
from lance_memwal.write.changes import Settings, sequence_of
from lance_memwal.write.life import Parked
from lance_memwal.write.open_shards import DEFAULT_OPEN_SHARDS, OpenShards
from lance_memwal.write.results import CountedResult, RoutedResult, WriteResult
from lance_memwal.write.stats import WriteStats
from lance_memwal.write.writes import Ack

_PARALLEL_SHARDS = 8
T = TypeVar("T")


Shard = ShardWriter | SharedShard


def _owner_of(shard: Shard) -> ShardWriter | None:
    return shard.owned if isinstance(shard, SharedShard) else shard


def _owned(shards: OpenShards[Shard]) -> dict[str, int]:
    """The shards that this process owns, parked ones too, each with its oldest generation that is not published."""
    parked = {shard_id: kept.generation for shard_id, kept in shards.parked.items() if not kept.is_lost}
    owners = {shard_id: _owner_of(shard) for shard_id, shard in shards.open.items()}
    return {
        **{shard_id: generation for shard_id, generation in parked.items() if shard_id not in owners},
        **{shard_id: unpublished_generation(owner) for shard_id, owner in owners.items() if owner is not None},
    }


class TableAck(Ack):
    """The durability of one routed write: that of all its shards; `result` is what it did. May be awaited."""

    __slots__ = ("_acks",)

    def __init__(self, acks: Mapping[str, Ack]) -> None:
        self._acks = tuple(acks.values())
        self.result = RoutedResult({shard_id: ack.result for shard_id, ack in acks.items()})

    @property
    def durable(self) -> bool:
        """Whether the write is on storage in every shard."""
        return all(ack.durable for ack in self._acks)

    def wait(self, timeout: float | None = None) -> None:
        """Return once the write is on storage in every shard; raise what prevented it, or `UnavailableError` after
        `timeout` seconds in all."""
        timeout = check_timeout(timeout)
        deadline = None if timeout is None else SYSTEM_CLOCK.monotonic() + timeout
        for ack in self._acks:
            ack.wait(None if deadline is None else max(0.0, deadline - SYSTEM_CLOCK.monotonic()))


def _about_put(*_: object, result: RoutedResult | None, **_options: object) -> dict[str, str | int]:
    """What a span says of a put into a table; spans of its shards say more."""
    return {} if result is None else {"shards": len(result), "rows": sum(done.written for done in result.values())}


class TableWriter(Readable):
    """Writes a table: routes rows over its shards. Threads may share it."""

    def __init__(
        self,
        base: BaseTable,
        reader: Reader,
        open_shard: Callable[[str | None, Parked | None], Shard],
        watch: TableWatch,
        compaction: CompactionPolicy | None = None,
        max_open_shards: int = DEFAULT_OPEN_SHARDS,
        max_age_seconds: float | None = None,
        *,
        shared: bool = False,
        retake: bool = False,
    ) -> None:
        """Use `Table.writer`."""
        self._location = base.location
        self._reader = reader
        self._take_columns(base)
        self._lock = threading.RLock()
        self._shared = shared
        self._shards = OpenShards(
            open_shard,
            max_open_shards,
            max_age_seconds,
            retake=retake,
            at_once=base.location.at_once(_PARALLEL_SHARDS),
        )
        if not shared:  # else whoever needs a parked shard takes it
            live.keep(base.location.key, self._shards)
        self._watch = watch
        self._compaction = Background(compaction, base.location, watch.look, partial(_owned, self._shards))
        weakref.finalize(self, self._compaction.stop).atexit = False
        weakref.finalize(self, self._shards.stop_aging).atexit = False
        self._together = Together()
        close_in_child(self._orphan)

    # ------------------------------------------------------------------------------------------------------ writing

    @spanned("memwal.put", about=_about_put)
    def put(
        self,
        data: Any,
        *,
        txn: Transaction | tuple[str, int] | None = None,
        missing: Missing | None = None,
        if_absent: bool = False,
        where: FilterLike | None = None,
    ) -> RoutedResult:
        """Insert or replace rows; no rows are a no-op. Returns what each shard did.

        With `txn=(application, version)` the rows are written once per shard: a repeat is skipped there. `missing` says
        what becomes of columns that are left out, `if_absent` and `where` which rows are written: see `ShardWriter.put`.
        """
        self._admit()
        if missing is not None and keeps_missing(missing):
            routed = self._route_parts(data)
            return self._each(
                routed, lambda w, rows: w.put(rows, txn=txn, missing="keep", if_absent=if_absent, where=where)
            )
        routed = self._route(data, missing)
        if if_absent or where is not None:
            return self._each(
                routed, lambda w, rows: w.put(rows, txn=txn, missing=missing, if_absent=if_absent, where=where)
            )
        return self._each(routed, lambda writer, rows: writer.put(rows, txn=txn, missing=missing))

    def insert(
        self, data: Any, *, txn: Transaction | tuple[str, int] | None = None, missing: Missing | None = None
    ) -> RoutedResult:
        """Insert rows whose keys are not there; see `ShardWriter.insert`. It is atomic per shard."""
        self._admit()
        return self._each(
            self._route(data, missing), lambda writer, rows: writer.insert(rows, txn=txn, missing=missing)
        )

    def update(
        self,
        data: Any = None,
        *,
        txn: Transaction | tuple[str, int] | None = None,
        insert: bool = False,
        where: FilterLike | None = None,
        set: Mapping[str, str] | None = None,  # noqa: A002
        values: Mapping[str, Any] | None = None,
    ) -> RoutedResult:
        """Change the columns that are given; all others stay. See `ShardWriter.update`; it is atomic per shard.

        A sharding column that is not part of the key must be given, too: it says which shard has the row.
        """
        self._admit()
        if where is None and set is None and values is None:
            routed = self._route_parts(data)
            return self._each(routed, lambda writer, rows: writer.update(rows, txn=txn, insert=insert), counts=True)
        if where is None or data is not None or insert:
            raise InvalidInputError("give rows to update, or where= with set= or values=")
        condition, settings = where, Settings.of(set, values, self._schema)
        if self._sharding.column in settings.names:
            raise InvalidInputError(
                f"column {self._sharding.column!r} shards the table, and cannot be set: delete and put"
            )
        found = self._route_candidates(where)
        return self._each(found, lambda w, keys: w.update_matching(keys, condition, settings, txn), counts=True)

    def compare_and_set(
        self, key: Any, expected: Any, new: Any, *, txn: Transaction | tuple[str, int] | None = None
    ) -> bool:
        """Make `new` the row of `key` if it is `expected` now; returns whether it was. See `ShardWriter.compare_and_set`."""
        self._admit()
        shard_id = self._shard_of(key, expected, new)

        def compare(writer: Shard) -> bool:
            return writer.compare_and_set(key, expected, new, txn=txn)

        self._compaction.start()
        return self._shards.write(shard_id, compare)

    def delete(
        self,
        keys: Any = None,
        *,
        txn: Transaction | tuple[str, int] | None = None,
        count: bool = False,
        sequence: Any = None,
        where: FilterLike | None = None,
    ) -> RoutedResult:
        """Delete rows by primary key. A sharding column that is not part of the key must be given beside it.

        With `count` the result says how many live rows were hidden (`matched`). `delete(where=filter)` deletes all rows
        for which the filter is true, and counts them; it is atomic per shard. `sequence`: see `ShardWriter.delete`.
        """
        self._admit()
        if where is None:
            beside, given = self._order_of_delete(sequence)
            routed = self._route_keys(keys, beside)
            return self._each(
                routed, lambda w, rows: w.delete(rows, txn=txn, count=count, sequence=given), counts=count
            )
        if keys is not None or sequence is not None:
            raise InvalidInputError("give keys to delete, or where=")
        found = self._route_candidates(where)
        return self._each(found, lambda writer, some: writer.delete_matching(some, where, txn), counts=True)

    def _order_of_delete(self, sequence: Any) -> tuple[list[str], pa.Scalar[Any] | None]:
        """The column that says beside the keys which write is the later one, or the one sequence that is given for all."""
        if sequence is not None:
            return [], sequence_of(sequence, self._schema, self._merge)[0]
        return [self._merge.sequence] if isinstance(self._merge, LastWrite) else [], None

    def put_nowait(self, data: Any, *, missing: Missing | None = None, drain: bool = True) -> TableAck:
        """Insert rows and return at once; the `Ack` tells when all shards have them on storage. `drain`: see
        `ShardWriter.put_nowait`."""
        self._admit()
        acks = self._shard_by_shard(
            self._route(data, missing), lambda w, rows: w.put_nowait(rows, missing=missing, drain=drain)
        )
        return TableAck(acks)

    def delete_nowait(self, keys: Any, *, drain: bool = True) -> TableAck:
        """Delete rows by primary key and return at once; the `Ack` tells when all shards have that on storage."""
        self._admit()
        acks = self._shard_by_shard(self._route_keys(keys), lambda w, rows: w.delete_nowait(rows, drain=drain))
        return TableAck(acks)

    def _route(self, data: Any, missing: Missing | None) -> dict[str, list[pa.RecordBatch]]:
        fill = fills_missing(missing, self._schema)
        batches = [batch for batch in to_batches(data, self._schema.columns, whole=not fill) if batch.num_rows]
        refuse_on_top(self._lock, "a write")
        with self._lock:
            rows = [self._fitter.fit(batch, fill) for batch in batches]
            fitted = Fitted(rows, self._schema, fills=fill or not self._shared)  # other processes may evolve its shards
        if self._sharding.column is None:
            return {self._shards.default(): fitted} if fitted else {}
        return {s: Fitted(part, fitted.schema, fills=fitted.fills) for s, part in self._split(fitted).items()}

    def _route_parts(self, data: Any) -> dict[str, list[pa.RecordBatch]]:
        """Rows by shard that may leave columns out; those that say which shard they belong to are there."""
        batches = [batch for batch in to_parts(data, self._schema.columns) if batch.num_rows]
        column = self._sharding.column
        if column is not None and any(column not in batch.schema.names for batch in batches):
            raise InvalidInputError(f"column {column!r} shards the table: it must be given, it says where the row is")
        return self._split(batches)

    def _route_candidates(self, where: FilterLike) -> dict[str, pa.Table]:
        """The keys of the rows for which the filter is true now, by shard."""
        schema, column = self._schema, self._sharding.column
        key = schema.need_key()
        if column is None:
            shard_id = self._shards.default()
            found = self._reader.scan(list(key), where, shards=[shard_id]).to_table()
            return {shard_id: found} if found.num_rows else {}
        found = self._reader.scan(list(dict.fromkeys([*key, column])), where).to_table()
        return {s: pa.Table.from_batches(rows) for s, rows in self._split(found.to_batches()).items()}

    def _shard_of(self, key: Any, *rows: Any) -> str:
        """The shard of one key; what is not part of the key is taken from `rows`."""
        column, named = self._sharding.column, one_key(key, self._schema)
        if column is None:
            return self._shards.default()
        if column in self._schema.primary_key:
            return next(iter(self._split([named])))
        given = [row[column] for row in rows if isinstance(row, Mapping) and column in row]
        if not given or any(value != given[0] for value in given):
            raise InvalidInputError(f"column {column!r} shards the table: both rows must have it, and the same value")
        return next(iter(self._route_keys([{**named.to_pylist()[0], column: given[0]}])))

    def _split(self, batches: list[pa.RecordBatch]) -> dict[str, list[pa.RecordBatch]]:
        if not batches:
            return {}
        if self._sharding.column is None:
            return {self._shards.default(): batches}
        routed: dict[str, list[pa.RecordBatch]] = {}
        for batch in batches:
            for shard_id, rows in self._sharding.route(batch, self._schema.columns):
                routed.setdefault(shard_id, []).append(rows)
        return routed

    def _route_keys(self, keys: Any, beside: Sequence[str] = ()) -> dict[str, list[pa.RecordBatch]]:
        """Keys by shard; they hold the sharding column too, which is routed by, and the columns `beside`."""
        schema, column = self._schema, self._sharding.column
        wanted = [*beside, column] if column is not None and column not in schema.primary_key else list(beside)
        if not schema.primary_key or not wanted:
            named = key_batch(keys, schema)
        else:
            try:
                named = key_batch(keys, replace(schema, primary_key=(*schema.primary_key, *wanted)))
            except InvalidInputError as error:
                listed = " and ".join(map(repr, wanted))
                reason = f"beside the key, {listed} must be given: where the row is, or which write is the later one"
                raise InvalidInputError(f"{error} ({reason})") from None
        return self._split([named]) if named.num_rows else {}

    def _admit(self) -> None:
        """Raise if this writer is closed, or its table is another one."""
        self._shards.refuse_closed()
        self._watch.look_if_due()

    def _each(
        self, routed: Mapping[str, Any], write: Callable[[Shard, Any], WriteResult], *, counts: bool = False
    ) -> RoutedResult:
        done = self._shard_by_shard(routed, write)
        return CountedResult(done) if counts else RoutedResult(done)

    def _shard_by_shard(self, routed: Mapping[str, Any], write: Callable[[Shard, Any], T]) -> dict[str, T]:
        """Write to every shard; in parallel where storage is remote."""
        if not routed:
            return {}
        self._compaction.start()
        if len(routed) == 1:
            ((shard_id, rows),) = routed.items()
            return {shard_id: self._shards.write(shard_id, write, rows)}

        return self._shards.write_each(routed, write)

    def evolve_schema(self) -> None:
        """Move to the columns that the base table has now, in every open shard; see `ShardWriter.evolve_schema`."""
        refuse_on_top(self._lock, "evolve_schema")
        base = self._watch.look()
        base.check_columns()
        with self._lock:
            self._shards.evolve()
            self._take_columns(base)

    def _take_columns(self, base: BaseTable) -> None:
        self._schema, self._sharding, self._merge = base.columns, base.sharding, base.merge
        self._fitter = Fitter(self._schema)

    # ------------------------------------------------------------------------------------------------------ closing

    def flush(self, timeout: float | None = None) -> None:
        """Seal and flush all shards that this writer opened: what was written before is in SSTables when this returns.

        `UnavailableError` if that takes longer than `timeout` seconds in all.
        """
        check_timeout(timeout)
        self._shards.flush(timeout)

    def close(self) -> None:
        """Close all shard writers; raises the first failure after all were tried. Idempotent.

        In a signal handler on top of another call of the same thread it returns at once, and the shards are closed in the
        background; see `ShardWriter.close`.
        """
        self._end(self._shards.close)

    def abort(self) -> None:
        """Stop without flushing; what was acknowledged is in the logs, and the next open replays it. Idempotent."""
        self._end(self._shards.abort)

    def _end(self, end: Callable[[], list[Exception]]) -> None:
        waits = not is_on_top()
        self._compaction.stop()
        failures = end()
        if waits:
            self._compaction.join()
        if failures:
            raise failures[0]

    def _orphan(self) -> None:
        """Become closed in a forked child."""
        self._lock = threading.RLock()
        self._shards.orphan()
        self._compaction.orphan()
        self._together = Together()

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> TableWriter:
        return self

    async def __aexit__(self, *_: object) -> None:
        await in_thread(self.close)

    @property
    def aio(self) -> TableWriterAio:
        """The verbs as coroutines; plain puts and deletes of many tasks share entries."""
        deletes = () if self._shared or isinstance(self._merge, LastWrite) else ("delete",)
        plain = deletes if self._shared or self._merge is not None else ("put", *deletes)
        return TableWriterAio(self, self._together, plain)

    # ------------------------------------------------------------------------------------------------------ looking

    @property
    def shard_writers(self) -> dict[str, ShardWriter]:
        """The shard writers of this process that are open, by shard id; those that are parked are not."""
        owners = {shard_id: _owner_of(shard) for shard_id, shard in self._shards.open.items()}
        return {shard_id: writer for shard_id, writer in owners.items() if writer is not None}

    @property
    def owned_shards(self) -> set[str]:
        """The shards that this process owns now: its own, or those that it serves to others."""
        return set(_owned(self._shards))

    def attend(self, shard_ids: Iterable[str | uuid.UUID]) -> set[str]:
        """Own those of the shards that nobody owns, and serve them; returns the ones that this process owns now."""
        for shard_id in map(check_shard_id, shard_ids):
            self._admit()
            self._shards.write(shard_id, lambda shard: shard.attend() if isinstance(shard, SharedShard) else True)
        return self.owned_shards

    def stats(self) -> dict[str, WriteStats]:
        """What the writers of open shards did since they were opened, by shard id: puts, entries, flushes, latencies."""
        return self._shards.stats()

    def _capture(self, read: Read, keys: LookupKeys | None = None) -> Tiers:
        return self._reader.capture(read, keys)

    def _find_in_memory(self, keys: LookupKeys, columns: Sequence[str] | None) -> dict[str, Any] | Undecided | None:
        return self._reader.find_in_memory(keys, columns)

    def _pickled(self) -> Pickled | None:
        return self._reader.pickled

    def __repr__(self) -> str:
        state = "closed" if self._shards.closed else "open"
        return f"TableWriter({self._location.describe()!r}, shards={len(self._shards.names())}, {state})"


def follow_columns(writer: TableWriter) -> bool:
    """Evolve the columns of a writer if those of the base table differ; return whether they did."""
    if writer._watch.look().columns.is_like(writer._schema):
        return False
    writer.evolve_schema()
    return True


class TableWriterAio(ReadableAio):
    """The verbs of a `TableWriter` as coroutines."""

    __slots__ = ()
    put = shares(TableWriter.put)
    insert = waits(TableWriter.insert)
    update = waits(TableWriter.update)
    delete = shares(TableWriter.delete)
    compare_and_set = waits(TableWriter.compare_and_set)
    flush = waits(TableWriter.flush)
    evolve_schema = waits(TableWriter.evolve_schema)
    close = waits(TableWriter.close)
    abort = waits(TableWriter.abort)
