"""Whatever a caller hands over: the answer is a result or one of our errors, with words, and never a raw one."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_memwal as mw

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("e", pa.list_(pa.float32(), 2))])
ROW = {"id": 1, "v": "a", "e": [1.0, 2.0]}
ONE = mw.shard_id_for(mw.Unsharded())


class Spiteful:
    """An object that fails whenever it is asked something."""

    def __len__(self) -> int:
        raise ZeroDivisionError

    def __bool__(self) -> bool:
        raise ZeroDivisionError


def _closed_reader() -> pa.RecordBatchReader:
    reader = pa.RecordBatchReader.from_batches(SCHEMA, [])
    reader.close()
    return reader


VALUES: list[Any] = [
    None, True, 0, 1, -1, 2**63, 2**200, 1.5, float("nan"), float("inf"), "", "x", "\ud800", "\0", "id = ", "id = 'x'",
    b"\xff", bytearray(b"x"), [], [None], [1], ["x"], [1, "x"], [float("nan")], ["\ud800"], (1, 2), ("app", 2**70),
    {}, {"id": None}, {1: 2}, {"id": [object()]}, {"v": ["\ud800"], "id": [1]}, [{1: 1}], [{"id": 2**70}], [None, ROW],
    {1}, {"x"}, range(2**63, 2**63 + 2), object(), int, dt.timedelta(1), decimal.Decimal("1.5"), 1j, np.int64(1),
    np.array([1, 2]), np.array(object()), pd.DataFrame({"id": [object()]}), pd.DataFrame({1: [1]}), pd.Series([None]),
    pa.array([None]), pa.array([[1]]), pa.scalar(1), pa.table({"id": [None]}), pa.int64(), pa.schema([]),
    pa.table([[1], [2]], names=["id", "id"]), [pa.record_batch({"id": [1]}), pa.record_batch({"v": ["x"]})],
    _closed_reader, mw.Manual(), mw.WriterConfig(), pc.field("id") == 1, pc.field("nope") == "x", Spiteful(),
]  # fmt: skip


class World:
    """Tables and writers that the calls use."""

    def __init__(self, place: Path) -> None:
        self._names = (str(place / f"n{n}") for n in itertools.count())
        defaults = {"fsync": False, "stats_log_interval_ms": None}
        self.uri = str(place / "t")
        self.table = mw.create_table(self.uri, SCHEMA, primary_key="id", writer_defaults=defaults)
        pair = pa.schema([("a", pa.string()), ("b", pa.int32()), ("v", pa.int8())])
        self.pair = mw.create_table(str(place / "p"), pair, primary_key=["a", "b"], sharding=mw.Bucket("a", 2))
        self.plain = mw.create_table(str(place / "a"), SCHEMA, writer_defaults=defaults)
        self.writer = self.table.writer(compaction=None)
        self.writer.put([ROW])
        self.pair_writer = self.pair.writer(compaction=None, fsync=False)
        self.shard = self.writer.shard_writers[ONE]
        self.appender = mw.WalAppender.open(str(place / "w"), ONE, fsync=False)

    def new(self) -> str:
        """A place where nothing is."""
        return next(self._names)

    def close(self) -> None:
        self.writer.abort()
        self.pair_writer.abort()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"))
    yield made
    made.close()


NEAR = {"vector": [1.0, 2.0]}
CALLS: dict[str, Callable[[World, Any], object]] = {
    "get": lambda w, v: w.table.get(v),
    "get columns": lambda w, v: w.table.get(1, v),
    "get of a pair": lambda w, v: w.pair.get(v),
    "get without key": lambda w, v: w.plain.get(v),
    "lookup": lambda w, v: w.table.lookup(v),
    "lookup columns": lambda w, v: w.table.lookup([1], v),
    "lookup with_tombstones": lambda w, v: w.table.lookup([1], with_tombstones=v),
    "delete_nowait": lambda w, v: w.writer.delete_nowait(v),
    "lookup of pairs": lambda w, v: w.pair.lookup(v),
    **{
        f"scan {name}": lambda w, v, name=name: w.table.scan(**{name: v}).to_table()  # type: ignore[misc]
        for name in (
            "columns",
            "filter",
            "limit",
            "offset",
            "consistency",
            "shards",
            "in_memory",
            "with_row_address",
            "with_row_id",
            "order_by",
        )
    },
    "scan with_generation": lambda w, v: w.table.scan(with_generation=v).to_table(),
    "explain": lambda w, v: w.table.scan(filter=v).explain(),
    "count_rows": lambda w, v: w.table.count_rows(v),
    "count_rows consistency": lambda w, v: w.table.count_rows(consistency=v),
    "search vector": lambda w, v: w.table.search(vector=v),
    "search text": lambda w, v: w.table.search(text=v, column="v"),
    **{
        f"search {name}": lambda w, v, name=name: w.table.search(**NEAR, **{name: v})  # type: ignore[misc]
        for name in ("column", "k", "filter", "columns", "metric", "nprobes", "refine_factor", "ef", "consistency")
    },
    "put": lambda w, v: w.writer.put(v),
    "put txn": lambda w, v: w.writer.put([ROW], txn=v),
    "put missing": lambda w, v: w.writer.put([ROW], missing=v),
    "put_nowait": lambda w, v: w.writer.put_nowait(v).wait(10),
    "put a pair": lambda w, v: w.pair_writer.put(v),
    "delete": lambda w, v: w.writer.delete(v),
    "delete txn": lambda w, v: w.writer.delete([77], txn=v),
    "delete pairs": lambda w, v: w.pair_writer.delete(v),
    "wait": lambda w, v: w.writer.put_nowait([ROW]).wait(v),
    "flush": lambda w, v: w.writer.flush(v),
    **{
        f"a value of {name}": lambda w, v, name=name: w.shard.put([{**ROW, name: v}])  # type: ignore[misc]
        for name in ("id", "v", "e")
    },
    "shard put": lambda w, v: w.shard.put(v),
    "shard delete": lambda w, v: w.shard.delete(v),
    "shard get": lambda w, v: w.shard.get(v),
    "shard scan": lambda w, v: w.shard.lsm_scan(columns=v).to_table(),
    "shard filter": lambda w, v: w.shard.lsm_scan(filter=v).to_table(),
    "drain": lambda w, v: w.shard.wait_for_flush_drain(v),
    "memory project": lambda w, v: w.shard.scan().project(v).to_table(),
    "memory filter": lambda w, v: w.shard.scan().filter(v).to_table(),
    "memory limit": lambda w, v: w.shard.scan().limit(v).to_table(),
    "memory nearest": lambda w, v: w.shard.scan().nearest(v, [1.0, 2.0], 2).to_table(),
    "memory nearest to": lambda w, v: w.shard.scan().nearest("e", v, 2).to_table(),
    "memory nearest k": lambda w, v: w.shard.scan().nearest("e", [1.0, 2.0], v).to_table(),
    "memory text": lambda w, v: w.shard.scan().full_text_search("v", v).to_table(),
    "memory text column": lambda w, v: w.shard.scan().full_text_search(v, "x").to_table(),
    "writer config": lambda w, v: w.plain.writer(config=v).close(),
    "writer compaction": lambda w, v: w.plain.writer(compaction=v).close(),
    "writer setting": lambda w, v: w.plain.writer(max_memtable_rows=v).close(),
    "shard id": lambda w, v: None if v is None else w.plain.shard_writer(v).abort(),
    "shard config": lambda w, v: None if v is None else w.plain.shard_writer(config=v).abort(),
    "table uri": lambda w, v: mw.open_table(v),
    "table options": lambda w, v: mw.open_table(w.uri, storage_options=v),
    "enable": lambda w, v: mw.enable(v),
    "new table": lambda w, v: mw.create_table(w.new(), v, primary_key="id"),
    "new table key": lambda w, v: mw.create_table(w.new(), SCHEMA, primary_key=v) if v is not None else None,
    "new table sharding": lambda w, v: mw.create_table(w.new(), SCHEMA, primary_key="id", sharding=v),
    "new table indexes": lambda w, v: mw.create_table(w.new(), SCHEMA, maintained_indexes=v),
    "new table defaults": lambda w, v: mw.create_table(w.new(), SCHEMA, writer_defaults=v),
    "new table setting": lambda w, v: mw.create_table(w.new(), SCHEMA, writer_defaults={"max_memtable_rows": v}),
    "same table": lambda w, v: mw.create_table(w.uri, v, exist_ok=True),
    "same table key": lambda w, v: mw.create_table(w.uri, SCHEMA, primary_key=v, exist_ok=True),
    "bucket column": lambda w, v: mw.Bucket(v, 2),
    "buckets": lambda w, v: mw.Bucket("id", v),
    "identity": lambda w, v: mw.Identity(v),
    "shard_id_for": lambda w, v: mw.shard_id_for(v, 1),
    "shard_id_for value": lambda w, v: mw.shard_id_for(mw.Bucket("id", 3), v),
    "shard_id_for kind": lambda w, v: mw.shard_id_for(mw.Bucket("id", 3), 1, kind=v),
    "route": lambda w, v: mw.route(v, mw.Bucket("id", 2)),
    "route sharding": lambda w, v: mw.route(pa.record_batch({"id": [1]}), v),
    "route schema": lambda w, v: mw.route(pa.record_batch({"id": [1]}), mw.Bucket("id", 2), v),
    "config": lambda w, v: mw.WriterConfig(max_memtable_rows=v),
    "config shard": lambda w, v: mw.WriterConfig(shard_id=v),
    "config replace": lambda w, v: mw.WriterConfig().replace(fsync=v),
    "btree": lambda w, v: mw.BTreeIndex(v),
    "btree name": lambda w, v: mw.BTreeIndex("v", v),
    "text index": lambda w, v: mw.FtsIndex(v),
    "text index option": lambda w, v: mw.FtsIndex("v", max_token_length=v),
    "graph": lambda w, v: mw.HnswIndex(v),
    "graph metric": lambda w, v: mw.HnswIndex("e", metric=v),
    "graph m": lambda w, v: mw.HnswIndex("e", m=v),
    "open shard schema": lambda w, v: mw.ShardWriter.open(w.new(), v, fsync=False).abort(),
    "open shard config": lambda w, v: mw.ShardWriter.open(w.new(), SCHEMA, v, fsync=False).abort(),
    "open shard indexes": lambda w, v: mw.ShardWriter.open(w.new(), SCHEMA, indexes=v, fsync=False).abort(),
    "open shard index": lambda w, v: mw.ShardWriter.open(w.new(), SCHEMA, indexes=[v], fsync=False).abort(),
    "append": lambda w, v: w.appender.append(v),
    "append txn": lambda w, v: w.appender.append(pa.record_batch({"id": [1]}), txn=v),
    "appender shard": lambda w, v: mw.WalAppender.open(w.new(), v),
    "tailer": lambda w, v: mw.WalTailer(v, ONE).first_position(),
    "tailer shard": lambda w, v: mw.WalTailer(w.uri, v).first_position(),
    "read_entry": lambda w, v: mw.WalTailer(w.uri, ONE).read_entry(v),
    "follow": lambda w, v: next(mw.WalTailer(w.uri, ONE).follow(start=v, stop=lambda: True), None),
    "follow stop": lambda w, v: next(mw.WalTailer(w.uri, ONE).follow(start=1, stop=v), None),
    "manifests": lambda w, v: mw.ShardManifestStore(v, ONE).read_latest(),
    "manifests shard": lambda w, v: mw.ShardManifestStore(w.uri, v).read_latest(),
    "manifests batch": lambda w, v: mw.ShardManifestStore(w.uri, ONE, scan_batch_size=v).read_latest(),
    "check_fenced": lambda w, v: mw.ShardManifestStore(w.uri, ONE).check_fenced(v),
    "commit_update": lambda w, v: mw.ShardManifestStore(w.new(), ONE).commit_update(v, lambda manifest: manifest),
    "claim_epoch": lambda w, v: mw.ShardManifestStore(w.new(), ONE).claim_epoch(v),
    "flush shards": lambda w, v: w.plain.flush(shards=v),
    "flush idle": lambda w, v: w.plain.flush(idle_seconds=v),
    "compact shards": lambda w, v: w.plain.compact(shards=v),
    "compact generations": lambda w, v: w.plain.compact(max_generations=v),
    "compact progress": lambda w, v: None if callable(v) else w.plain.compact(progress=v),
    "gc grace": lambda w, v: w.plain.gc(dry_run=True, grace_seconds=v),
    "gc dry": lambda w, v: w.plain.gc(dry_run=v),
    "repair": lambda w, v: w.plain.repair(dry_run=v),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_argument_is_answered_in_our_own_words(world: World, call: str) -> None:
    told = []
    for value in VALUES:
        given = value() if value is _closed_reader else value
        try:
            CALLS[call](world, given)
        except mw.MemWalError as error:
            told.append(str(error))
        except Exception as error:
            raise AssertionError(f"{call} of {given!r}: {type(error).__name__}: {error}") from error
    assert all(told)


class OwnError(Exception):
    pass


def _failing() -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist([ROW], schema=SCHEMA)
    raise OwnError("the caller's own")


def test_what_the_callers_own_data_raises_is_passed_on(world: World) -> None:
    before = world.table.scan().to_table().to_pylist()
    for write in (world.writer.put, world.writer.put_nowait, world.shard.put, world.writer.delete, world.table.lookup):
        with pytest.raises(OwnError, match="the caller's own"):
            write(pa.RecordBatchReader.from_batches(SCHEMA, _failing()))
    assert world.table.scan().to_table().to_pylist() == before
