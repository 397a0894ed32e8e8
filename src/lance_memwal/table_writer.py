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
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from lance_memwal.arguments import check_timeout
from lance_memwal.compact.policy import Background
from lance_memwal.errors import InvalidInputError
from lance_memwal.lance.base import BaseTable
from lance_memwal.lance.identity import TableWatch
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
from lance_memwal.rows.fit import Fitted, Fitter, Missing, fills_missing
from lance_memwal.rows.ingest import key_batch, to_batches, to_parts
from lance_memwal.rows.lookup_key import one_key
from lance_memwal.rows.merging import LastWrite
from lance_memwal.shard_writer import ShardWriter
from lance_memwal.write.changes import sequence_of
from lance_memwal.write.open_shards import OpenShards
from lance_memwal.write.request import NowaitWritable, Write, apply_to, begin_on, begins
from lance_memwal.write.results import WriteResult, joined
from lance_memwal.write.shared_shards import SharedShards
from lance_memwal.write.stats import WriteStats
from lance_memwal.write.writes import Ack

_PARALLEL_SHARDS = 8
T = TypeVar("T")


Shards = OpenShards[ShardWriter] | SharedShards


def _about_write(_: TableWriter, __: Write, *, result: WriteResult | None) -> dict[str, str | int]:
    """The attributes of the span of a write; spans of its shards have more."""
    return {} if result is None else {"shards": len(result.shards), "rows": result.written}


class TableWriter(Readable, NowaitWritable):
    """Writes a table: routes rows over its shards. Threads may share it."""

    def __init__(
        self,
        base: BaseTable,
        reader: Reader,
        shards: Shards,
        watch: TableWatch,
        compaction: Background,
    ) -> None:
        """Use `Table.writer`."""
        self._location = base.location
        self._reader = reader
        self._take_columns(base)
        self._lock = threading.RLock()
        self._shards = shards
        self._shared = isinstance(shards, SharedShards)
        self._watch = watch
        self._compaction = compaction
        weakref.finalize(self, self._compaction.stop).atexit = False
        weakref.finalize(self, self._shards.stop_background).atexit = False
        self._together = Together()
        close_in_child(self._orphan)

    # ------------------------------------------------------------------------------------------------------ writing

    @spanned(lambda _, write: f"memwal.{write.kind}", about=_about_write)
    def _apply(self, write: Write) -> WriteResult:
        self._admit()
        done = self._shard_by_shard(self._parts(write), apply_to)
        return done[0] if len(done) == 1 else joined(done, counts=write.counts)

    def _begin(self, write: Write, *, drain: bool = True) -> Ack:
        self._admit()
        write.refuse_lookup(self._merge)
        return Ack(self._shard_by_shard(self._parts(write), partial(begin_on, drain=drain)))

    def _parts(self, write: Write) -> dict[str, Write]:
        """The write of each shard."""
        if write.kind == "put":
            routed = (
                self._route_parts(write.rows) if write.missing == "keep" else self._route(write.rows, write.missing)
            )
            return {shard_id: write.part(rows) for shard_id, rows in routed.items()}
        self._schema.need_key()
        if write.kind == "compare_and_set":
            return {self._shard_of(write.key, write.expected, write.rows): write}
        if write.by_filter and write.where is not None:
            if write.kind == "update" and self._sharding.column in write.settings(self._schema).names:
                raise InvalidInputError(
                    f"column {self._sharding.column!r} shards the table, and cannot be set: delete and put"
                )
            return {s: write.part_of_found(keys) for s, keys in self._route_candidates(write.where).items()}
        if write.kind == "delete":
            beside, sequence = self._order_of_delete(write.sequence)
            return {s: write.part(keys, sequence) for s, keys in self._route_keys(write.rows, beside).items()}
        routed = self._route_parts(write.rows) if write.kind == "update" else self._route(write.rows, None)
        return {shard_id: write.part(rows) for shard_id, rows in routed.items()}

    def _order_of_delete(self, sequence: Any) -> tuple[list[str], pa.Scalar[Any] | None]:
        """The column that says beside the keys which write is the later one, or the one sequence that is given for all."""
        if sequence is not None:
            return [], sequence_of(sequence, self._schema, self._merge)[0]
        return [self._merge.sequence] if isinstance(self._merge, LastWrite) else [], None

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
                reason = "it names the shard, or the later write; sequence= gives one for all keys"
                raise InvalidInputError(f"{error} (give {listed} next to the key: {reason})") from None
        return self._split([named]) if named.num_rows else {}

    def _admit(self) -> None:
        """Raise if this writer is closed, or its table is another one."""
        self._shards.refuse_closed()
        self._watch.look_if_due()

    def _shard_by_shard(self, parts: Mapping[str, Write], call: Callable[[Any, Write], T]) -> list[T]:
        """What `call` does with each shard and its part; in parallel where storage is remote."""
        if not parts:
            return []
        self._compaction.start()
        if len(parts) == 1:
            ((shard_id, part),) = parts.items()
            return [self._shards.write(shard_id, call, part)]
        return list(self._shards.write_each(parts, call).values())

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
        return TableWriterAio(self, self._together, begins(self, self._merge))

    # ------------------------------------------------------------------------------------------------------ looking

    @property
    def shard_writers(self) -> dict[str, ShardWriter]:
        """The open shard writers by shard id; parked shards have none, and a shared writer has none at all."""
        return {} if isinstance(self._shards, SharedShards) else self._shards.open

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


def is_closed(writer: TableWriter) -> bool:
    """Return whether a writer was closed or aborted."""
    return writer._shards.closed


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
