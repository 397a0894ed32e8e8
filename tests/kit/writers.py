"""What the writer's tests share: small tables, and a store whose calls can be held, failed and waited for."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import lance_memwal as mw
from lance_memwal.errors import UnavailableError
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.log.reading import list_positions
from lance_memwal.memtable import live
from lance_memwal.read.reader import Reader
from lance_memwal.rows.normal_form import no_rows
from lance_memwal.store import paths
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.retry import RetryPolicy
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.write.once import OnceAppender
from lance_memwal.write.request import Write, begin_on
from lance_memwal.write.table_appender import TableAppender, TakeoverPolicy

PK = {b"lance-schema:unenforced-primary-key": b"true"}
SECONDS = 30.0  # the longest that a test waits for something that should happen at once
SHARD = "11111111-2222-4333-8444-555555555555"
WAL, MANIFEST, BLOOM = "/wal/", ".binpb", "bloom_filter"


def key_field(name: str = "id", kind: pa.DataType | None = None, position: int | None = None) -> pa.Field:
    """A primary key column; `position` (from 1) where the key has several."""
    metadata = dict(PK)
    if position is not None:
        metadata[b"lance-schema:unenforced-primary-key:position"] = str(position).encode()
    return pa.field(name, kind or pa.int64(), nullable=False, metadata=metadata)


KEYED = pa.schema([key_field(), pa.field("v", pa.string())])
UNKEYED = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])


def rows(ids: Iterable[int], value: str = "a", schema: pa.Schema = KEYED) -> pa.RecordBatch:
    numbers = list(ids)
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array([value] * len(numbers))], schema=schema)


def contents(table: pa.Table) -> dict[int, str]:
    """Key to value; a key that is there twice is an error."""
    pairs = list(zip(table.column("id").to_pylist(), table.column("v").to_pylist(), strict=True))
    assert len({key for key, _ in pairs}) == len(pairs), "a key appears twice"
    return dict(pairs)


def scanned(writer: mw.ShardWriter) -> dict[int, str]:
    return contents(writer.memtable_scanner().to_table())


def flushed(root: str | Path, shard_id: str = SHARD) -> dict[int, list[dict[str, Any]]]:
    """Generation to the live rows of its SSTable (older versions of a key left out, tombstones in), read by Lance."""
    manifest = mw.ShardManifestStore(str(root), shard_id).read_latest()
    assert manifest is not None
    location = resolve(str(root))
    return {
        item.generation: lance.dataset(location.child_uri(paths.sstable_dir(shard_id, item.path)))
        .to_table()
        .to_pylist()
        for item in manifest.sstables
    }


def everything(writer: mw.ShardWriter, root: str | Path) -> dict[int, str]:
    """SSTables and memtables merged by hand: what a reader of the whole shard must see."""
    in_memory = [ref.table().to_pylist() for ref in writer.in_memory_memtable_refs().ascending]  # newest tier first
    merged: dict[int, str] = {}
    for found in [*(rows for _, rows in sorted(flushed(root, writer.shard_id).items())), *in_memory]:
        for row in found:
            if row["_tombstone"]:
                merged.pop(row["id"], None)
            else:
                merged[row["id"]] = row["v"]
    return merged


def entries(root: str | Path, shard_id: str = SHARD) -> list[mw.WalEntry]:
    """Every entry of the log that is still there, in order."""
    tailer = mw.WalTailer(str(root), shard_id)
    found = [tailer.read_entry(position) for position in list_positions(resolve(str(root)), shard_id)]
    return [entry for entry in found if entry is not None]


def row_entries(root: str | Path, shard_id: str = SHARD) -> list[mw.WalEntry]:
    return [entry for entry in entries(root, shard_id) if entry.batches]


def open_writer(place: str | Path | Location, schema: pa.Schema | None = KEYED, **settings: Any) -> mw.ShardWriter:
    """A writer of the test shard without fsync, since power does not fail here."""
    settings = {"shard_id": SHARD, "fsync": False, "wal_persist_retry_base_delay_ms": 1, **settings}
    return mw.ShardWriter.open(place if isinstance(place, Location) else str(place), schema, **settings)


def epoch_of(root: str | Path, shard_id: str = SHARD) -> int:
    """The epoch that owns the shard; 0 if nobody claimed it."""
    manifest = mw.ShardManifestStore(str(root), shard_id).read_latest()
    return 0 if manifest is None else manifest.writer_epoch


def in_thread(work: Callable[[], Any]) -> Running:
    """Run `work` on a thread; `result()` waits for it and raises what it raised."""
    return Running(work)


class Running:
    """A call on another thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._value = work()
        except BaseException as error:
            self._error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Return when the call has, and after `seconds` anyway."""
        self._thread.join(seconds)

    def result(self, timeout: float = SECONDS) -> Any:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the call hangs"
        if self._error is not None:
            raise self._error
        return self._value


def in_threads(call: Callable[..., Any], arguments: Iterable[Any], seconds: float = 4 * SECONDS) -> list[Any]:
    """Call `call` with each argument on a thread of its own, all at once; what the calls returned or the first raised."""
    running = [in_thread(lambda argument=argument: call(argument)) for argument in arguments]
    return [each.result(seconds) for each in running]


def wait_for(done: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Return once `done`; for what nobody is notified of."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.001)


def memwal_threads() -> set[threading.Thread]:
    """The background threads of all writers."""
    return {t for t in threading.enumerate() if t.name.startswith(("memwal-ticker", "memwal-flush"))}


# --------------------------------------------------------------------------------------------- a store under control


@dataclass(eq=False)
class Rule:
    """What happens to calls named `kind` whose path contains `part`."""

    kind: str
    part: str
    error: Callable[[], BaseException] | None = None
    left: int | None = None
    after: bool = False
    opened: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)

    def open(self) -> None:
        self.left = 0
        self.opened.set()

    def wait_reached(self) -> None:
        """Return once a call met this rule."""
        assert self.reached.wait(SECONDS), f"no {self.kind} of {self.part} happened"


class WatchedStore(WrappedStore):
    """A real store; rules hold or fail calls, every call is recorded."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._changed = threading.Condition()
        self.rules: list[Rule] = []
        self.calls: list[tuple[str, str]] = []
        self.synced: list[tuple[str, bool]] = []

    def hold(self, kind: str, part: str, times: int | None = None) -> Rule:
        """Block matching calls, before their effect, until the rule is opened."""
        self.rules.append(Rule(kind, part, left=times))
        return self.rules[-1]

    def fail(
        self,
        kind: str,
        part: str,
        times: int | None = None,
        *,
        after: bool = False,
        error: Callable[[], BaseException] = lambda: UnavailableError("the test says no"),
    ) -> Rule:
        """Let matching calls fail (`times`, or until the rule is opened), before or after their effect."""
        self.rules.append(Rule(kind, part, error, times, after))
        return self.rules[-1]

    def count(self, kind: str, part: str) -> int:
        with self._changed:
            return sum(1 for name, path in self.calls if name == kind and part in path)

    def wait_for(self, kind: str, part: str, count: int = 1) -> None:
        """Return once `count` matching calls succeeded."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: sum(1 for name, path in self.calls if name == kind and part in path) >= count, SECONDS
            )
        assert done, f"fewer than {count} {kind} of {part}"

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        matching = [r for r in self.rules if r.kind == kind and r.part in path and self._take(r)]
        for rule in matching:
            rule.reached.set()
            if rule.error is None:
                assert rule.opened.wait(SECONDS), "a held call was never let go"
            elif not rule.after:
                raise rule.error()
        result = call(path, *rest, **options)
        for rule in matching:
            if rule.error is not None:
                raise rule.error()
        with self._changed:
            self.calls.append((kind, path))
            if "sync" in options:
                self.synced.append((path, options["sync"]))
            self._changed.notify_all()
        return result

    def _take(self, rule: Rule) -> bool:
        with self._changed:
            if rule.left is None:
                return True
            rule.left -= 1
            return rule.left >= 0


def watched(root: str | Path) -> tuple[WatchedStore, Location]:
    """A location on a local directory, its store under control; a failing call is not retried below the engine."""
    stores: list[WatchedStore] = []

    def wrap(inner: ObjectStore) -> ObjectStore:
        stores.append(WatchedStore(inner))
        return stores[0]  # type: ignore[return-value]

    location = resolve(str(root), wrap=wrap, policy=RetryPolicy(max_attempts=1))
    return stores[0], location


def base_table(
    root: str | Path, schema: pa.Schema = KEYED, data: list[dict[str, Any]] | None = None, **kw: Any
) -> mw.Table:
    """A table with a MemWAL index; its shards are named by the tests, unless the options say otherwise."""
    kw = {"sharding": mw.Manual(), "allow_keys_across_shards": True, **kw}
    return mw.create_table(str(root), pa.Table.from_pylist(data, schema=schema) if data else schema, **kw)


def enabled_table(root: str | Path, schema: pa.Schema, **kw: Any) -> mw.Table:
    """A table with columns of exactly these types, made by Lance and enabled."""
    kw = {"sharding": mw.Manual(), "allow_keys_across_shards": True, **kw}
    lance.write_dataset(no_rows(schema), str(root))
    return mw.enable(str(root), **kw)


def fork() -> int:
    """`os.fork`, although other threads run: that is what is tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def put_undrained(writer: mw.ShardWriter | mw.TableWriter, rows: Any) -> mw.Ack:
    """Put rows without waiting; their entry is left to the next call that waits."""
    return begin_on(writer, Write("put", rows), drain=False)


def positions_of(result: mw.WriteResult) -> range:
    """The batch positions of a write that went to one shard."""
    (done,) = result.shards.values()
    return done.positions


def hide_writers(table: mw.Table) -> list[live.LiveShard]:
    """Let this process treat its writers of the table as writers of another process; returns them for `live.register`."""
    owners = live.all_of(table.location.key)
    for owner in owners:
        live.forget(table.location.key, owner)
    return owners


def take_over_shared(table: mw.Table, rows: pa.RecordBatch, shard_id: str | None = None) -> None:
    """Let a shared writer take over a shard, as one of another process does after its owner has been idle, and append."""
    owners = hide_writers(table)
    try:
        look_up = Reader(NewestBase(BaseTable.need(table.location))).stored_rows
        appender = TableAppender(OnceAppender(table.location, look_up=look_up), policy=TakeoverPolicy(20, 0.0))
        appender.append(shard_id or mw.shard_id_for(mw.Unsharded()), [rows])
    finally:
        for owner in owners:
            live.register(table.location.key, owner)
