"""What a consumer reads is pinned before it is read: the snapshot that it begins with, and every one that it takes
later, whose columns may be older than the table's.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.clock import SystemClock
from lance_memwal.feed.changes import Request
from lance_memwal.feed.consumers import Consumer
from lance_memwal.lance.base import NewestBase
from lance_memwal.table import newest_base
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.upkeep.gc import Collector
from tests.kit.feeds import collect_while, ops_of
from tests.kit.tables import create, keyed

SCHEMA = keyed(pa.field("v", pa.int64()))
TEN_MINUTES = 601.0
COLLECTION = ["gc.proposed", "gc.announced", "gc.before_floor", "gc.after_floor", "gc.before_entry"]


def put(table: mw.Table, ids: list[int], v: int = 0) -> None:
    with table.writer() as writer:
        writer.put({"id": ids, "v": [v] * len(ids)})


def live_on(table: mw.Table) -> None:
    """Everything that was there is compacted, and collected unless somebody keeps it."""
    for n in range(2):
        put(table, [900], n)
        table.compact()
    table.maintain(versions=timedelta(0), grace_seconds=0)
    table.gc(grace_seconds=0)


class Following:
    """A consumer that follows and shows what rows were before, under a clock that can be moved on."""

    def __init__(self, table: mw.Table, clock: SkippingClock, **options: Any) -> None:
        self.consumer = Consumer(NewestBase(newest_base(table)), "sync", Request(before=True), clock=clock, **options)
        self._batches: Iterator[pa.RecordBatch] = iter(self.consumer)

    def take(self, count: int) -> list[tuple[Any, ...]]:
        """The next changes, at least so many."""
        found: list[tuple[Any, ...]] = []
        while len(found) < count:
            found += ops_of([next(self._batches)], "id", "v")
        return found


def of_other_rows(changes: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Without those of `live_on`."""
    return [change for change in changes if change[1] != 900]


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_snapshot_that_a_consumer_took_meanwhile_is_kept_for_it(tmp_path: Path, is_committed: bool) -> None:
    table, clock = create(str(tmp_path / "t"), SCHEMA), SkippingClock()
    put(table, [1], 1)
    reader = Following(table, clock)
    assert reader.take(1) == [("insert", 1, 1)]
    reader.consumer.commit()
    put(table, [2], 1)
    assert reader.take(1) == [("insert", 2, 1)]
    reader.consumer.commit()
    clock.sleep(TEN_MINUTES)
    put(table, [3], 1)
    assert reader.take(1) == [("insert", 3, 1)]
    live_on(table)
    if is_committed:
        reader.consumer.commit()
        live_on(table)
    put(table, [2], 2)
    changed = [("update_before", 2, 1), ("update_after", 2, 2)]
    assert of_other_rows(reader.take(5))[-2:] == changed
    reader.consumer.stop()
    again = table.consumers.open("sync", before=True, until="now")
    assert of_other_rows(ops_of(again, "id", "v")) == ([] if is_committed else [("insert", 3, 1)]) + changed
    again.commit()


def test_snapshots_that_follow_each_other_without_a_commit_are_kept_and_let_go(tmp_path: Path) -> None:
    table, clock = create(str(tmp_path / "t"), SCHEMA), SkippingClock()
    put(table, [1, 2], 1)
    reader = Following(table, clock, start="latest")
    for v in range(2, 6):
        clock.sleep(TEN_MINUTES)
        put(table, [1], v)
        assert of_other_rows(reader.take(2))[-2:] == [("update_before", 1, v - 1), ("update_after", 1, v)]
        live_on(table)
    put(table, [2], 2)
    assert of_other_rows(reader.take(2))[-2:] == [("update_before", 2, 1), ("update_after", 2, 2)]
    kept = table.gc(grace_seconds=0).pinned
    reader.consumer.commit()
    assert table.gc(grace_seconds=0).objects
    assert table.gc(grace_seconds=0).pinned < kept / 2, "what was compared with earlier goes"
    put(table, [1], 6)
    assert reader.take(2) == [("update_before", 1, 5), ("update_after", 1, 6)]
    reader.consumer.stop()


@pytest.mark.parametrize("point", COLLECTION)
def test_a_snapshot_that_is_taken_while_collection_runs_is_whole(tmp_path: Path, point: str) -> None:
    table, clock = create(str(tmp_path / "t"), SCHEMA), SkippingClock()
    put(table, [1, 2], 1)
    reader = Following(table, clock, start="latest")
    put(table, [1], 2)
    assert len(reader.take(2)) == 2
    reader.consumer.commit()
    clock.sleep(TEN_MINUTES)
    put(table, [1], 3)
    table.compact()
    put(table, [900])
    assert reader.take(2)
    reader.consumer.commit()
    clock.sleep(TEN_MINUTES)
    put(table, [1], 4)
    collect_while(table, point, lambda: reader.take(2))
    live_on(table)
    reader.consumer.commit()
    live_on(table)
    put(table, [2], 2)
    assert of_other_rows(reader.take(2))[-2:] == [("update_before", 2, 1), ("update_after", 2, 2)]
    reader.consumer.stop()


class ArmedClock(SkippingClock):
    """Does something at the n-th time that somebody asks what time it is, from when it was armed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self._then: Callable[[], object] = lambda: None

    def arm(self, calls: int, then: Callable[[], object]) -> None:
        self.calls, self._then = calls, then

    def now_ms(self) -> int:
        self.calls -= 1
        if self.calls == 0:
            self._then()
        return super().now_ms()


@pytest.mark.parametrize("calls", range(1, 6))
def test_a_snapshot_that_is_collected_before_it_is_named_is_not_used(tmp_path: Path, calls: int) -> None:
    table, clock = create(str(tmp_path / "t"), SCHEMA), ArmedClock()
    put(table, [1, 2], 1)
    reader = Following(table, clock, start="latest")
    put(table, [1], 2)
    assert len(reader.take(2)) == 2
    reader.consumer.commit()
    put(table, [2], 2)
    clock.sleep(TEN_MINUTES)
    clock.arm(calls, lambda: live_on(table))
    told = reader.take(2)
    reader.consumer.commit()
    clock.arm(0, lambda: None)
    live_on(table)
    put(table, [1], 3)
    while ("update_after", 1, 3) not in told:
        told += reader.take(1)
    changed = [(2, 1), (2, 2), (1, 2), (1, 3)]
    assert [(key, v) for _, key, v in of_other_rows(told)] == changed
    reader.consumer.stop()


def test_a_shard_that_appears_while_a_snapshot_takes_over_does_not_wait_for_the_others(tmp_path: Path) -> None:
    many = list(range(1_000, 71_000))
    old = pa.table({"id": [1, 2], "v": [10, 20]}, SCHEMA)
    table = create(str(tmp_path / "t"), old, sharding=mw.Manual(), allow_keys_across_shards=True)
    lance.write_dataset(pa.table({"id": [3], "v": [30]}, SCHEMA), table.uri, mode="append")
    clock = SkippingClock()
    reader = Following(table, clock, start="latest")
    with table.shard_writer(mw.shard_id_for(mw.Unsharded())) as writer:
        writer.put({"id": [1], "v": [11]})
        assert len(reader.take(2)) == 2
        for v in range(4):
            writer.put({"id": many, "v": [v] * len(many)})
    table.dataset.optimize.compact_files()
    clock.sleep(TEN_MINUTES)  # the next snapshot is at the end of what there is to read
    assert len(reader.take(1)) == len(many)
    with table.shard_writer("ffffffff-0000-4000-8000-000000000001") as writer:
        writer.put({"id": [2], "v": [21]})
        clock.sleep(5.0)  # it is found
        told = reader.take(6 * len(many) + 2)
        assert [change for change in told if change[1] < 1_000] == [("update_before", 2, 20), ("update_after", 2, 21)]
        assert told[-1][1] >= 1_000, "it came before the last of what the other shard had"
        reader.consumer.commit()
        table.maintain(versions=timedelta(0), grace_seconds=0)
        writer.put({"id": [3], "v": [31]})
        assert reader.take(2) == [("update_before", 3, 30), ("update_after", 3, 31)]
    reader.consumer.stop()


# ---------------------------------------------------------------------------------------------------------- beginning


class DyingClock(SystemClock):
    """Ends its process, so to speak, at the second time that somebody asks what time it is."""

    def __init__(self) -> None:
        self._calls = 0

    def now_ms(self) -> int:
        self._calls += 1
        if self._calls > 1:
            raise KeyboardInterrupt
        return super().now_ms()


def die_after_the_first_record(table: mw.Table, name: str, **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        Consumer(NewestBase(newest_base(table)), name, Request(), clock=DyingClock(), **options)
    assert name in [info.name for info in table.consumers.list()]


@pytest.mark.parametrize("start", ["name", "snapshot"])
def test_a_consumer_begins_at_a_checkpoint_that_keeps_everything(tmp_path: Path, start: str) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    put(table, [1], 1)
    table.consumers.open("log", start="latest")
    checkpoint = table.checkpoints.create("then")
    put(table, [1], 2)
    live_on(table)
    reader = table.consumers.open(
        "sync", start="then" if start == "name" else checkpoint.snapshot, before=True, until="now"
    )
    told = of_other_rows(ops_of(reader, "id", "v"))
    assert told == [("update_before", 1, 1), ("update_after", 1, 2)]
    table.consumers.drop("log")
    table.checkpoints.drop("then")
    live_on(table)
    again = table.consumers.open("sync", before=True, until="now")
    assert of_other_rows(ops_of(again, "id", "v")) == told, "it keeps that itself"


def test_a_consumer_begins_where_another_one_stands(tmp_path: Path) -> None:
    """Collection announced more, and found a consumer there: nothing of it went."""
    table = create(str(tmp_path / "t"), SCHEMA)
    begin = table.changes(start="earliest").cursor
    put(table, [1], 1)
    put(table, [2], 1)
    table.compact()
    collect_while(table, "gc.proposed", lambda: table.consumers.open("first", start=begin))
    second = table.consumers.open("second", start=begin, until="now")
    table.consumers.drop("first")
    live_on(table)
    assert [change for change in ops_of(second, "id") if change[1] < 900] == [("u", 1), ("u", 2)]
    table.consumers.drop("second")
    live_on(table)
    with pytest.raises(mw.CollectedError, match="being collected"):
        table.consumers.open("third", start=begin)


def test_a_consumer_that_has_not_begun_keeps_nothing_for_others(tmp_path: Path) -> None:
    """Collection has read who keeps what: the two who come now are not seen, and neither may trust the other."""
    table = create(str(tmp_path / "t"), SCHEMA)
    begin = table.changes(start="earliest").cursor
    put(table, [1], 1)
    put(table, [2], 1)
    table.compact()

    def come() -> None:
        die_after_the_first_record(table, "first", start=begin)
        with pytest.raises(mw.CollectedError, match="being collected"):
            table.consumers.open("second", start=begin)

    collect_while(table, "gc.before_floor", come)
    assert [info.name for info in table.consumers.list()] == ["first"]


def test_a_consumer_that_never_began_does_not_expire_but_begins_anew(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    put(table, [1], 1)
    die_after_the_first_record(table, "sync", max_age=timedelta(hours=1))
    put(table, [2], 1)
    put(table, [3], 1)
    table.compact()
    late = SkippingClock()
    late.sleep(2 * 3600)
    report = Collector(table.location, NewestBase(newest_base(table)), late).run(grace_seconds=0)
    assert report.expired_consumers == ("sync",)
    reader = table.consumers.open("sync", until="now")
    assert sorted(ops_of(reader, "id")) == [("u", 1), ("u", 2), ("u", 3)]
    reader.commit()
    assert ops_of(table.consumers.open("sync", until="now"), "id") == []


def test_a_consumer_that_asks_for_images_later_keeps_what_they_need(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    put(table, [1], 1)
    reader = table.consumers.open("sync", until="now")
    list(reader)
    reader.commit()
    table.consumers.open("sync", before=True, until="now")
    put(table, [1], 2)
    live_on(table)
    again = table.consumers.open("sync", before=True, until="now")
    assert of_other_rows(ops_of(again, "id", "v")) == [("update_before", 1, 1), ("update_after", 1, 2)]


@pytest.mark.parametrize("calls", range(1, 4))
def test_a_consumer_that_asks_for_images_too_late_can_go_on_without(tmp_path: Path, calls: int) -> None:
    table, clock = create(str(tmp_path / "t"), SCHEMA), ArmedClock()
    put(table, [1], 1)
    reader = table.consumers.open("sync", until="now")
    list(reader)
    reader.commit()
    put(table, [1], 2)
    clock.arm(calls, lambda: live_on(table))
    images = [("update_before", 1, 1), ("update_after", 1, 2)]
    try:
        found = Consumer(NewestBase(newest_base(table)), "sync", Request(before=True), until="now", clock=clock)
        assert of_other_rows(ops_of(found, "id", "v")) == images
    except mw.CollectedError as error:
        assert "without before=True" in str(error)  # noqa: PT017 - either is right
    again = table.consumers.open("sync", until="now")
    assert of_other_rows(ops_of(again, "id", "v")) == [("u", 1, 2)], "its place is kept"


# Readers of changes whose snapshot is older than the table's columns: columns are matched by field id, never by name.

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("a", pa.string()),
        ("b", pa.int64()),
        ("z", pa.string()),
        ("s", pa.struct([("x", pa.int32()), ("y", pa.int32())])),
    ]
)
ROW = {"id": 2, "a": "two", "b": 2, "z": "end", "s": {"x": 3, "y": 4}}
BLOB = pa.field("data", pa.large_binary(), metadata={"lance-encoding:blob": "true"})


def add(dataset: lance.LanceDataset) -> None:
    dataset.add_columns(pa.schema([("c", pa.string())]))


def rename_columns(*names: tuple[str, str]) -> Callable[[lance.LanceDataset], None]:
    def change(dataset: lance.LanceDataset) -> None:
        for path, name in names:
            dataset.alter_columns({"path": path, "name": name})

    return change


def take_the_name(dataset: lance.LanceDataset) -> None:
    dataset.alter_columns({"path": "a", "name": "t"})
    lance.dataset(dataset.uri).add_columns(pa.schema([("a", pa.string())]))


def make_again(dataset: lance.LanceDataset) -> None:
    dataset.drop_columns(["b"])
    lance.dataset(dataset.uri).add_columns(pa.schema([("b", pa.int64())]))


def drop_column(dataset: lance.LanceDataset) -> None:
    dataset.drop_columns(["a"])


CHANGES: dict[str, tuple[Callable[[lance.LanceDataset], None], dict[str, Any]]] = {
    "add": (add, ROW | {"c": None}),
    "rename": (rename_columns(("b", "e")), {"id": 2, "a": "two", "e": 2, "z": "end", "s": ROW["s"]}),
    "rename a field": (rename_columns(("s.y", "w")), ROW | {"s": {"x": 3, "w": 4}}),
    "swap": (
        rename_columns(("a", "t"), ("z", "a"), ("t", "z")),
        {"id": 2, "z": "two", "b": 2, "a": "end", "s": ROW["s"]},
    ),
    "take the name": (take_the_name, {"id": 2, "t": "two", "b": 2, "z": "end", "s": ROW["s"], "a": None}),
    "make again": (make_again, {"id": 2, "a": "two", "z": "end", "s": ROW["s"], "b": None}),
    "drop": (drop_column, {"id": 2, "b": 2, "z": "end", "s": ROW["s"]}),
}


@pytest.fixture
def table(tmp_path: Path) -> Iterable[mw.Table]:
    table = mw.create_table(str(tmp_path / "t"), COLUMNS, primary_key="id", writer_defaults={"fsync": False})
    table.put([{**ROW, "id": 0, "b": None}])
    table.compact()  # so that a data file has all columns, and their ids are not given again
    yield table
    table.close()


def plain(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [{name: value for name, value in row.items() if name == "_op" or name[0] != "_"} for row in rows]


@pytest.mark.parametrize(("change", "shown"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("committed", [False, True])
def test_a_consumer_at_its_snapshot_continues_after_the_columns_changed(
    table: mw.Table, change: Callable[[lance.LanceDataset], None], shown: dict[str, Any], committed: bool
) -> None:
    table.put([{**ROW, "id": 1}, ROW])
    reader = table.consumers.open("mirror", start="snapshot", until="now")
    for _ in reader:
        if committed:
            reader.commit()
    change(table.dataset)
    table.put([{"id": 3, "z": "new"}], missing="null")
    found = plain(table.consumers.open("mirror", until="now"))
    assert sorted(row["id"] for row in found) == ([3] if committed else [0, 1, 2, 3])
    assert list(found[0]) == [*shown, "_op"]
    assert committed or {**shown, "_op": "u"} in found


@pytest.mark.parametrize(("change", "shown"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("stored", ["log", "sstable", "base table"])
def test_images_of_rows_before_the_columns_changed(
    table: mw.Table, change: Callable[[lance.LanceDataset], None], shown: dict[str, Any], stored: str
) -> None:
    with table.writer(compaction=None) as writer:
        writer.put([ROW, {**ROW, "id": 3}])
        if stored == "sstable":
            writer.flush()
    if stored == "base table":
        table.compact()
    consumer = table.consumers.open("mirror", until="now", before=True)
    for _ in consumer:
        consumer.commit()
    snapshot, cursor = table.snapshot(), table.consumers.open("other", start="latest").cursor
    change(table.dataset)
    after = dict.fromkeys(shown) | {"id": 2, "z": "new"}
    with table.writer(compaction=None) as writer:
        writer.put([after])
        writer.delete([3])
        writer.put([{**after, "z": "newest"}])
    expected = [
        {**shown, "_op": "update_before"},
        {**after, "_op": "update_after"},
        {**shown, "id": 3, "_op": "delete"},
        {**after, "_op": "update_before"},
        {**after, "z": "newest", "_op": "update_after"},
    ]
    assert plain(table.consumers.open("mirror", until="now", before=True)) == expected
    assert plain(table.changes(start=snapshot, until="now", before=True)) == expected
    assert plain(table.changes(start=cursor, until="now", before=True)) == expected
    for columns in (["z"], ["id"], list(reversed(shown))):
        found = plain(table.changes(columns=columns, start=snapshot, until="now", before=True))
        assert found == [{name: row[name] for name in [*columns, "_op"]} for row in expected]
    net = plain(table.diff(snapshot, table.snapshot(), before=True).to_batches())
    assert net == [expected[0], expected[4], expected[2]]
    assert table.at(snapshot).get(2) == ROW


def test_a_feed_that_is_open_while_the_columns_change_keeps_its_own(table: mw.Table) -> None:
    feed = table.changes(start="latest", before=True)
    found: list[dict[str, Any]] = []
    take_the_name(table.dataset)
    reader = iter(feed)
    for number, after in enumerate([{"id": 0, "t": "x", "a": "new"}, {"id": 0, "t": "y", "a": "newer"}]):
        table.put([after], missing="null")
        found += plain([next(reader)])
        assert len(found) == 2 * (number + 1)
    feed.stop()
    assert [(row["_op"], row["a"], row["b"]) for row in found] == [
        ("update_before", "two", None),
        ("update_after", "x", None),
        ("update_before", "x", None),
        ("update_after", "y", None),
    ]


def test_rows_of_a_snapshot_that_has_none_of_the_columns_are_all_there(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), pa.schema([("v", pa.int64())]), writer_defaults={"fsync": False})
    table.put([{"v": 1}, {"v": 2}])
    consumer = table.consumers.open("mirror", until="now")
    add(table.dataset)
    assert plain(table.consumers.open("mirror", columns=["c"], until="now")) == [{"c": None, "_op": "u"}] * 2
    consumer.stop()
    table.close()


def test_blobs_of_a_column_that_was_renamed_are_compared(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), BLOB])
    table = mw.create_table(str(tmp_path / "t"), schema, primary_key="id", writer_defaults={"fsync": False})
    table.put([{"id": 1, "data": b"same"}, {"id": 2, "data": b"then"}])
    table.compact()
    snapshot = table.snapshot()
    rename_columns(("data", "content"))(table.dataset)
    table.put([{"id": 1, "content": b"same"}, {"id": 2, "content": b"now!"}])
    assert table.diff(snapshot, table.snapshot()).column("id").to_pylist() == [2]
    table.close()
