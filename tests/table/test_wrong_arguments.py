"""Every argument is answered by a result or one of our errors: wrong ones, no rows, shard ids as texts, notebooks."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import pickle
import shutil
import uuid
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lance_memwal as mw
from lance_memwal.rows.notebook import html_of, html_of_report
from tests.kit.tables import create, ids_of, keyed

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
    "shard scan": lambda w, v: w.shard.scan(columns=v).to_table(),
    "shard filter": lambda w, v: w.shard.scan(filter=v).to_table(),
    "drain": lambda w, v: w.shard.wait_for_flush_drain(v),
    "memory project": lambda w, v: w.shard.memtable_scanner().project(v).to_table(),
    "memory filter": lambda w, v: w.shard.memtable_scanner().filter(v).to_table(),
    "memory limit": lambda w, v: w.shard.memtable_scanner().limit(v).to_table(),
    "memory nearest": lambda w, v: w.shard.memtable_scanner().nearest(v, [1.0, 2.0], 2).to_table(),
    "memory nearest to": lambda w, v: w.shard.memtable_scanner().nearest("e", v, 2).to_table(),
    "memory nearest k": lambda w, v: w.shard.memtable_scanner().nearest("e", [1.0, 2.0], v).to_table(),
    "memory text": lambda w, v: w.shard.memtable_scanner().full_text_search("v", v).to_table(),
    "memory text column": lambda w, v: w.shard.memtable_scanner().full_text_search(v, "x").to_table(),
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


PLAIN = pa.schema([("id", pa.int64()), ("v", pa.string())])
NO_ROWS: dict[str, Callable[[], Any]] = {
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "columns": lambda: {"id": [], "v": []},
    "table": PLAIN.empty_table,
    "table without columns": lambda: pa.table({}),
    "tables": lambda: [PLAIN.empty_table()],
    "batch": lambda: pa.RecordBatch.from_pylist([], schema=PLAIN),
    "batches": lambda: [pa.RecordBatch.from_pylist([], schema=PLAIN)],
    "reader": lambda: pa.RecordBatchReader.from_batches(PLAIN, []),
    "pandas": pd.DataFrame,
    "pandas with columns": lambda: pd.DataFrame({"id": [], "v": []}),
    "polars": pl.DataFrame,
    "polars with columns": lambda: pl.DataFrame({"id": [], "v": []}),
}
NO_KEYS: dict[str, Callable[[], Any]] = {
    **NO_ROWS,
    "set": set,
    "range": lambda: range(0),
    "array": lambda: pa.array([], pa.int64()),
    "chunked": lambda: pa.chunked_array([], pa.int64()),
    "nulls": lambda: pa.array([]),
    "numpy": lambda: np.array([]),
    "series": lambda: pd.Series([], dtype=object),
}
SHARDINGS = [mw.Unsharded(), mw.Bucket("id", 2)]


@pytest.mark.repro("writer-17")
@pytest.mark.parametrize("sharding", SHARDINGS, ids=repr)
def test_no_rows_and_no_keys_change_nothing_at_the_table(tmp_path: Path, sharding: Any) -> None:
    table = mw.create_table(str(tmp_path / "t"), PLAIN, primary_key="id", sharding=sharding)
    with table.writer() as writer:
        for make in NO_ROWS.values():
            assert writer.put(make()).shards == {}
            assert not writer.put(make(), txn=("app", 1)).skipped
            assert writer.put_nowait(make()).durable
        for make in NO_KEYS.values():
            assert writer.delete(make()).shards == {}
            for lookup in (table.lookup, writer.lookup):
                assert lookup(make()).to_pydict() == {"id": [], "v": []}
                assert lookup(make(), ["v"]).schema.names == ["v"]
    assert table.shards() == []


@pytest.mark.parametrize("form", NO_ROWS)
def test_the_writer_of_a_shard_refuses_no_rows(tmp_path: Path, form: str) -> None:
    table = mw.create_table(str(tmp_path / "t"), PLAIN, primary_key="id", writer_defaults={"fsync": False})
    with table.shard_writer() as writer:
        for put in (writer.put, writer.put_nowait):
            with pytest.raises(mw.InvalidInputError, match=r"empty batch list|Batch 0 is empty"):
                put(NO_ROWS[form]())
        assert writer.stats().put_count == 0


def test_a_row_or_a_key_without_columns_is_refused_and_not_dropped(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), pa.schema([("id", pa.int64())]), primary_key="id")
    with table.writer() as writer:
        for call in (lambda: writer.put([{}]), lambda: writer.delete([{}]), lambda: table.get({})):
            with pytest.raises(mw.InvalidInputError, match="empty"):
                call()


FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2 << 64)


@pytest.fixture
def sharded(tmp_path: Path) -> mw.Table:
    """Row 1 in an SSTable of the first shard, row 2 in the log of the second."""
    made = create(str(tmp_path / "t"), sharding=mw.Manual(), allow_keys_across_shards=True)
    with made.shard_writer(FIRST) as writer:
        assert (writer.shard_id, writer.config.shard_id) == (str(FIRST), str(FIRST))
        writer.put({"id": [1], "v": [1], "s": ["one"]})
    appender = mw.WalAppender.open(made.uri, SECOND, fsync=False)
    appender.append(pa.table({"id": [2], "v": [2], "s": ["two"]}, schema=keyed()))
    assert appender.shard_id == str(SECOND)
    return made


@pytest.mark.parametrize("of", [uuid.UUID, str])
def test_shards_are_named_by_uuid_or_text(sharded: mw.Table, of: Any) -> None:
    first, second = of(str(FIRST)), of(str(SECOND))
    assert ids_of(sharded.scan(shards=[first])) == [1]
    assert ids_of(sharded.scan(shards={second})) == [2]
    assert ids_of(sharded.scan(shards=iter([first, second]))) == [1, 2]
    assert ids_of(pickle.loads(pickle.dumps(sharded.scan(shards=[second])))) == [2]
    tailer = mw.WalTailer(sharded.uri, second)
    assert tailer.shard_id == str(SECOND)
    assert tailer.read_entry(tailer.next_position() - 1) is not None
    assert mw.ShardManifestStore(sharded.uri, first).shard_id == str(FIRST)
    with sharded.changes(until="now") as feed:
        assert sum(batch.num_rows for batch in feed) == 2
        assert feed.cursor.place(second).position == tailer.next_position() - 1
    assert [shard.shard_id for shard in sharded.flush(shards=(second,), force=True).shards] == [str(SECOND)]
    assert sharded.compact(shards=[first]).generations == 1
    assert sharded.details().compacted == {str(FIRST): 1}
    with mw.ShardWriter.open(sharded.uri, config=mw.WriterConfig(shard_id=second), fsync=False) as writer:
        assert writer.get(2, ["s"]) == {"s": "two"}
    with mw.ShardWriter.open(sharded.uri, shard_id=first, fsync=False) as writer:
        assert writer.shard_id == str(FIRST)


@pytest.mark.parametrize("wrong", [str(FIRST).upper() + "A", SECOND.hex, SECOND.urn, SECOND.bytes, 1, True])
def test_what_is_not_a_shard_id_is_refused(sharded: mw.Table, wrong: Any) -> None:
    for call in (
        lambda: sharded.shard_writer(wrong),
        lambda: sharded.scan(shards=[wrong]),
        lambda: sharded.flush(shards=[wrong]),
        lambda: sharded.compact(shards=[wrong]),
        lambda: mw.WalTailer(sharded.uri, wrong),
        lambda: mw.Cursor(None).place(wrong),
        lambda: mw.WalAppender.open(sharded.uri, wrong),
        lambda: mw.ShardManifestStore(sharded.uri, wrong),
        lambda: mw.WriterConfig(shard_id=wrong),
    ):
        with pytest.raises(mw.InvalidInputError, match="shard id"):
            call()


@pytest.mark.parametrize("wrong", [FIRST, str(FIRST), 5])
def test_shards_that_are_not_a_list_are_refused(sharded: mw.Table, wrong: Any) -> None:
    for read in (sharded.scan, sharded.flush, sharded.compact):
        with pytest.raises(mw.InvalidInputError, match="list of shard ids"):
            read(shards=wrong)


HOSTILE = "<script>alert('x')</script>\"&"


class Tags(HTMLParser):
    """The tags and the texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.attributes: list[object] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def check(page: str) -> Tags:
    """Only what we write is markup."""
    found = Tags(page)
    assert found.tags <= {"div", "b", "br", "table", "thead", "tbody", "tr", "th", "td"}
    assert found.attributes == []
    return found


@pytest.fixture
def hostile(tmp_path: Path) -> mw.Table:
    schema = pa.schema([pa.field(HOSTILE, pa.string(), nullable=False), ("n", pa.int64())])
    hostile = create(str(tmp_path / "<b onclick=x>"), schema, primary_key=HOSTILE)
    with hostile:
        hostile.put([{HOSTILE: "<i>", "n": 1}])
    return hostile


def test_table_shows_its_columns_and_escapes_them(hostile: mw.Table) -> None:
    found = "".join(check(hostile._repr_html_()).texts)
    assert HOSTILE in found
    assert "<b onclick=x>" in found
    assert "int64" in found


def test_reports_show_their_figures(hostile: mw.Table) -> None:
    for report in (hostile.stats(), hostile.verify(), hostile.gc(dry_run=True), hostile.compact()):
        assert type(report).__name__ in check(report._repr_html_()).texts[0]
    problem = mw.Problem(HOSTILE, "<b>", "remedy")
    assert HOSTILE in check(mw.VerifyReport([problem])._repr_html_()).texts


def test_it_is_shown_without_storage(hostile: mw.Table) -> None:
    shutil.rmtree(hostile.uri)
    check(hostile._repr_html_())


def test_it_is_small() -> None:
    page = html_of("t", {"long": "x" * 10_000}, [{"a": number} for number in range(5000)])
    assert len(page) < 3000
    assert "4,950 more" in page
    assert len(html_of_report(mw.VerifyReport([mw.Problem("a", "b", "c")] * 1000))) < 10_000
