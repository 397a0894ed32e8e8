"""What table tests share: small tables, compaction that stops half way, and a reader in a second process."""

import multiprocessing
import os
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import lance
import pyarrow as pa

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.lance.base import BaseTable
from lance_memwal.process.cache import CACHE
from lance_memwal.store.location import resolve
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.wrap import WrappedStore

FAST = {"fsync": False, "stats_log_interval_ms": None}
TOMBSTONE = "_tombstone"


def keyed(*columns: pa.Field) -> pa.Schema:
    """An int64 key `id` and these columns, or `v: int64, s: string`."""
    rest = columns or (pa.field("v", pa.int64()), pa.field("s", pa.string()))
    return pa.schema([pa.field("id", pa.int64(), nullable=False), *rest])


def create(uri: str, schema: Any = None, **options: Any) -> mw.Table:
    """A table that does not wait for the disk; unsharded by `id` unless the options say otherwise."""
    options.setdefault("sharding", mw.Unsharded())
    if schema is None:
        schema = keyed()
    if "primary_key" not in options:
        options["primary_key"] = "id"
    options["writer_defaults"] = FAST | dict(options.get("writer_defaults") or {})
    return mw.create_table(uri, schema, **options)


def rows_of(table: pa.Table | mw.Scan, key: str = "id") -> list[dict[str, Any]]:
    found = table.to_table() if isinstance(table, mw.Scan) else table
    return sorted(found.to_pylist(), key=lambda row: row[key])


def ids_of(table: pa.Table | mw.Scan, key: str = "id") -> list[Any]:
    return [row[key] for row in rows_of(table, key)]


# ------------------------------------------------------------------------------------------------------- by hand


def manifest_of(uri: str, shard_id: str) -> mw.ShardManifest:
    manifest = mw.ShardManifestStore(uri, shard_id).read_latest()
    assert manifest is not None
    return manifest


def compacted_up_to(uri: str, shard_id: str) -> int:
    """The generation up to which the base table holds a shard's rows."""
    return mw.open_table(uri).details().compacted.get(shard_id, 0)


def sstable_path(uri: str, shard_id: str, sstable: mw.SsTable) -> str:
    return os.path.join(uri, "_mem_wal", shard_id, sstable.path)


class _Stopped(BaseException):
    """Ends a compaction where a crash would."""


def compact_shard(uri: str, shard_id: str, *, generations: int | None = None, trim: bool = True) -> int:
    """Fold the oldest SSTables of a shard into the base table; returns how many. Without `trim` they stay listed."""
    before = compacted_up_to(uri, shard_id)

    def stop(point: str) -> None:
        if point == "compact.before_trim":
            raise _Stopped

    if not trim:
        crash_points.install(stop)
    try:
        mw.open_table(uri).compact(shards=[shard_id], max_generations=generations)
    except _Stopped:
        pass
    finally:
        if not trim:
            crash_points.install(None)
    return compacted_up_to(uri, shard_id) - before


def compact_all(uri: str, *, trim: bool = True) -> None:
    for shard in mw.open_table(uri).shards():
        compact_shard(uri, shard.shard_id, trim=trim)


def trim_shard(uri: str, shard_id: str) -> None:
    """Take compacted SSTables out of the manifest, under whatever epoch owns the shard."""
    mark = compacted_up_to(uri, shard_id)

    def update(latest: mw.ShardManifest) -> mw.ShardManifest:
        left = tuple(sstable for sstable in latest.sstables if sstable.generation > mark)
        if len(left) == len(latest.sstables):
            return latest
        return replace(latest, version=latest.version + 1, sstables=left)

    mw.ShardManifestStore(uri, shard_id, fsync=False).commit_maintenance(update)


def upsert_base(uri: str, rows: pa.Table) -> None:
    """Change the base table behind memwal's back, as any Lance program may."""
    base = lance.dataset(uri)
    key = mw.open_table(uri).primary_key
    base.merge_insert(key).when_matched_update_all().when_not_matched_insert_all().execute(rows.cast(base.schema))


def lance_filter(rows: pa.Table, where: str) -> pa.Table:
    return lance.write_dataset(rows, f"memory://{uuid.uuid4()}").to_table(filter=where)


def has_entry(uri: str) -> bool:
    base = BaseTable.open(resolve(uri))
    return base is not None and base.details is not None


def files_below(directory: str) -> dict[str, int]:
    found = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, directory)] = os.path.getsize(path)
    return found


class Interceptor(WrappedStore):
    """A store that tells `seen` of every call before it is made."""

    def __init__(self, store: ObjectStore, seen: Callable[[str, str], None]) -> None:
        super().__init__(store)
        self._seen = seen

    def around(self, kind: str, call: Callable[..., Any], path: str, *rest: Any, **options: Any) -> Any:
        self._seen(kind, path)
        return call(path, *rest, **options)


def watched_table(uri: str, seen: Callable[[str, str], None]) -> mw.Table:
    """The table at `uri`, each of whose own requests is told to `seen`; those that Lance makes are not."""
    location = resolve(uri, wrap=lambda store: Interceptor(store, seen))
    base = BaseTable.open(location)
    assert base is not None
    return mw.Table(location, base)


@contextmanager
def held_flush() -> Iterator[None]:
    """Frozen memtables stay frozen: no flush begins until the end of the block."""
    released = threading.Event()

    def hold(point: str) -> None:
        if point == "flush.before_write" and threading.current_thread().name.startswith("memwal-flush"):
            released.wait(60)

    crash_points.install(hold)
    try:
        yield
    finally:
        crash_points.install(None)
        released.set()


# --------------------------------------------------------------------------------------------------- second process


class Outside:
    """A reader in a process of its own: it has no writer, so it reads what storage holds."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.harness.fork_server"])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, call: str, uri: str, *arguments: Any, **options: Any) -> Any:
        """The answer of `Table.<call>`; a scan answers with its rows, a shard writer with its epoch."""
        self._pipe.send((call, uri, arguments, options))
        if not self._pipe.poll(60):
            raise TimeoutError(f"the second process did not answer {call}")
        failed, answer = self._pipe.recv()
        if failed:
            raise AssertionError(f"the second process failed:\n{answer}")
        return answer

    def close(self) -> None:
        self._pipe.close()
        self._process.join(10)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()


def _serve(pipe: Any) -> None:
    tables: dict[str, mw.Table] = {}
    held: list[mw.ShardWriter] = []
    while True:
        try:
            call, uri, arguments, options = pipe.recv()
        except EOFError:
            return
        try:
            if uri not in tables:
                tables[uri] = mw.open_table(uri)
            answer = getattr(tables[uri], call)(*arguments, **options)
            if isinstance(answer, mw.Scan):
                answer = answer.to_table()
            if isinstance(answer, mw.ShardWriter):  # stays open here; the epoch is all that can be told
                held.append(answer)
                answer = answer.epoch
            pipe.send((False, answer))
        except BaseException:
            pipe.send((True, traceback.format_exc()))


@contextmanager
def outside() -> Iterator[Outside]:
    reader = Outside()
    try:
        yield reader
    finally:
        reader.close()


def table_of(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


@contextmanager
def nothing_kept() -> Iterator[None]:
    """Nothing that is read is kept, until the end of the block."""
    limit = CACHE.limit_bytes
    CACHE.limit_bytes = 0
    try:
        yield
    finally:
        CACHE.limit_bytes = limit


@contextmanager
def compacting(table: mw.Table) -> Iterator[None]:
    """Flush and compact beside the writers; what goes wrong there is raised at the end."""
    over, broken = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not over.wait(0.5):
                table.flush()
                table.compact()
        except BaseException as error:
            broken.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(120)
    assert broken == []


def compact_everything(table: mw.Table, seconds: float = 60) -> None:
    """Flush and compact until the base table has every row; no process may be writing."""
    deadline = time.monotonic() + seconds
    while True:
        table.flush(idle_seconds=0)
        left = table.compact(flush=True).in_log_only
        if not left:
            return
        assert time.monotonic() < deadline, left
