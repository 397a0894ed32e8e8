"""Once something of an append is on storage, no error of it says that nothing happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal import crash_points
from lance_memwal.store.location import Location
from lance_memwal.write.joining import Given, Sink
from lance_memwal.write.once import OnceAppender
from tests.kit.writers import WatchedStore, watched

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])
SHARDS = [mw.shard_id_for(mw.Identity("v"), value) for value in ("a", "b")]
READS = ("list", "list_names", "get", "head")


@pytest.fixture(autouse=True)
def _no_point_is_left() -> Iterator[None]:
    yield
    crash_points.install(None)


@pytest.fixture
def table(tmp_path: Path) -> mw.Table:
    return mw.create_table(str(tmp_path / "t"), SCHEMA, sharding=mw.Manual(), writer_defaults={"fsync": False})


def rows(number: int, size: int = 1) -> list[pa.RecordBatch]:
    return [pa.record_batch([pa.array([number]), pa.array(["a" * size])], schema=SCHEMA)]


def ids(table: mw.Table) -> list[int]:
    return sorted(mw.open_table(table.uri).scan(["id"]).to_table().column("id").to_pylist())


def slow_down() -> mw.UnavailableError:
    return mw.UnavailableError("503 Slow Down", ambiguous=False)


def refuse_reads(store: WatchedStore, part: str) -> None:
    for kind in READS:
        store.fail(kind, part, error=slow_down)


def after(point: str, action: Callable[[], Any]) -> None:
    def handler(reached: str) -> None:
        if reached == point:
            crash_points.install(None)
            action()

    crash_points.install(handler)


def opened(table: mw.Table, **options: Any) -> tuple[Sink, WatchedStore, Location]:
    store, location = watched(table.uri)
    sink = Sink(OnceAppender(location, **options))
    sink.append(SHARDS[0], rows(1))
    return sink, store, location


def test_an_entry_that_is_there_is_not_called_undone_when_the_look_after_it_fails(table: mw.Table) -> None:
    sink, store, _ = opened(table)
    after("once.after_put", lambda: refuse_reads(store, "manifest"))
    with pytest.raises(mw.UnavailableError) as told:
        sink.append(SHARDS[0], rows(2))
    assert told.value.ambiguous
    assert ids(table) == [1, 2]


def test_an_entry_that_is_there_is_not_called_undone_when_its_epoch_ends_meanwhile(table: mw.Table) -> None:
    sink, store, _ = opened(table)

    def taken_over() -> None:
        table.shard_writer(shard_id=SHARDS[0]).abort()
        refuse_reads(store, "/wal")

    after("once.after_put", taken_over)
    with pytest.raises(mw.UnavailableError) as told:
        sink.append(SHARDS[0], rows(2))
    assert told.value.ambiguous
    assert ids(table) == [1, 2]


def test_a_generation_that_was_announced_is_not_called_undone(table: mw.Table) -> None:
    sink, store, _ = opened(table, max_entry_bytes=4000)
    after("once.before_mark", lambda: after("once.before_commit", lambda: refuse_reads(store, "manifest")))
    with pytest.raises(mw.UnavailableError) as told:
        sink.append(SHARDS[0], rows(2, 9000))
    assert told.value.ambiguous
    for rule in store.rules:
        rule.open()
    sink.append(SHARDS[0], rows(3))  # which publishes what was announced
    assert ids(table) == [1, 2, 3]


def test_appends_to_several_shards_are_not_called_undone_after_the_first(table: mw.Table) -> None:
    sink, store, _ = opened(table)
    store.fail("put_new", f"{SHARDS[1]}/manifest", error=slow_down)
    with pytest.raises(mw.UnavailableError) as told:
        list(sink.append_all(SHARDS, lambda _: Given(rows(2), None), at_once=1))
    assert told.value.ambiguous
    assert ids(table) == [1, 2]


def test_an_append_of_which_nothing_was_tried_says_so(table: mw.Table) -> None:
    sink, store, _ = opened(table)
    store.fail("put_new", "/wal", error=slow_down)
    with pytest.raises(mw.UnavailableError) as told:
        sink.append(SHARDS[0], rows(2))
    assert not told.value.ambiguous
    assert ids(table) == [1]


def test_a_put_over_several_shards_is_not_called_undone_after_a_conflict_in_one(tmp_path: Path) -> None:
    sharding = mw.Identity("v")
    table = mw.create_table(str(tmp_path / "s"), SCHEMA, writer_defaults={"fsync": False}, sharding=sharding)
    with table.writer() as writer:
        writer.put([{"id": 0, "v": "b"}])
        [shard] = writer.shard_writers
    with table.shard_writer(shard_id=shard) as alone, table.writer(shared=True) as shared:
        alone.put([{"id": 1, "v": "b"}])
        with pytest.raises(mw.UnavailableError, match="does not share") as told:
            shared.put([{"id": 2, "v": "a"}, {"id": 3, "v": "b"}])
        assert told.value.ambiguous
    assert ids(table) == [0, 1, 2]
