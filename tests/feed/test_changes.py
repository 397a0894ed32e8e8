"""One feed over all shards: what is in it, in which order, from where to where; reads that are broken off; what
following costs.
"""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.feed import before
from lance_memwal.feed.changes import ChangeFeed, Request
from lance_memwal.feed.consumers import Consumer
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.log.entry import EntryEncoder
from lance_memwal.store import paths
from lance_memwal.store.location import resolve
from lance_memwal.store.port import ObjectStore
from lance_memwal.store.wrap import WrappedStore
from lance_memwal.table import newest_base
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.write.once import OnceAppender
from tests.kit.feeds import mirrored, ops_of
from tests.kit.tables import create, keyed, rows_of
from tests.kit.writers import wait_for

LARGE = {"max_entry_bytes": 4096}
LATER = timedelta(milliseconds=1)


def large(first: int, count: int = 500) -> dict[str, list[Any]]:
    ids = list(range(first, first + count))
    return {"id": ids, "v": ids, "s": [f"a large row {n}" for n in ids]}


def put(table: mw.Table, ids: list[int], v: int = 0, **options: Any) -> None:
    with table.writer() as writer:
        writer.put({"id": ids, "v": [v] * len(ids), "s": [f"{v}" for _ in ids]}, **options)


def test_every_change_comes_once_in_order_with_where_it_comes_from(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    began = datetime.now(UTC) - LATER
    with table.writer() as writer:
        writer.put({"id": [1, 2], "v": [10, 20], "s": ["a", "b"]}, txn=("job", 7))
        writer.put({"id": [1], "v": [11], "s": ["c"]})
        writer.delete([2])
    feed = table.changes(until="now")
    rows = [row for batch in feed for row in batch.to_pylist()]
    assert [(row["_op"], row["id"], row["v"]) for row in rows] == [
        ("u", 1, 10),
        ("u", 2, 20),
        ("u", 1, 11),
        ("d", 2, None),
    ]
    assert [row["_position"] for row in rows] == [1, 1, 2, 3]
    assert {row["_shard"] for row in rows} == {mw.shard_id_for(mw.Unsharded())}
    assert [row["_txn"] for row in rows] == [{"app": "job", "version": 7}] * 2 + [None] * 2
    assert all(began <= row["_time"] <= datetime.now(UTC) for row in rows)
    assert feed.schema.names == ["id", "v", "s", "_op", "_shard", "_position", "_time", "_txn"]


def test_all_shards_are_one_feed_and_a_cursor_goes_on_where_it_stood(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=mw.Bucket("id", 4))
    put(table, list(range(100)))
    feed = table.changes(until="now")
    assert len(mirrored(feed)) == 100
    kept = str(feed.cursor)
    assert mw.Cursor.parse(kept) == feed.cursor
    put(table, list(range(50, 150)), 1)
    found = [row for batch in table.changes(start=mw.Cursor.parse(kept), until="now") for row in batch.to_pylist()]
    assert sorted(row["id"] for row in found) == list(range(50, 150))
    assert list(table.changes(start=kept, until=kept)) == [], "the text of a cursor is as good"


def test_a_large_write_is_in_the_feed_in_its_place(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table.writer(**LARGE) as writer:
        writer.put({"id": [0], "v": [1], "s": ["before"]})
        writer.put(large(0), txn=("load", 1))
        writer.put({"id": [0], "v": [2], "s": ["after"]})
    rows = [row for batch in table.changes(until="now") for row in batch.to_pylist()]
    assert [row["_position"] for row in rows] == [1] + [2] * 500 + [3]
    assert [row["s"] for row in rows if row["id"] == 0] == ["before", "a large row 0", "after"]
    assert {row["_txn"]["version"] for row in rows if row["_position"] == 2} == {1}
    table.compact()
    assert len(mirrored(table.changes(until="now"))) == 500, "compaction does not take it out"


def test_a_cursor_inside_of_a_large_write_goes_on_inside_of_it(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table.writer(**LARGE) as writer:
        writer.put(large(0, 150_000))
    feed = table.changes(until="now")
    first = next(iter(feed))
    assert 0 < first.num_rows < 150_000
    kept = mw.Cursor.parse(str(feed.cursor))
    rest = list(table.changes(start=kept, until="now"))
    ids = pa.chunked_array([batch.column("id") for batch in [first, *rest]]).to_pylist()
    assert ids == list(range(150_000))
    again = list(table.changes(until=kept))
    assert sum(batch.num_rows for batch in again) == first.num_rows, "it can end there, too"


def test_images_inside_of_a_large_write_are_those_before_each_row(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table.writer(**LARGE) as writer:
        writer.put(large(0, 70_000))
        writer.put({"id": [5, 69_999], "v": [-1, -2], "s": ["", ""]})
    feed = table.changes(until="now")
    first = next(iter(feed))
    assert first.num_rows < 70_000
    found = ops_of(table.changes(start=feed.cursor, until="now", before=True), "id", "v")
    assert found[: 70_000 - first.num_rows] == [("insert", n, n) for n in range(first.num_rows, 70_000)]
    assert found[70_000 - first.num_rows :] == [
        ("update_before", 5, 5),
        ("update_after", 5, -1),
        ("update_before", 69_999, 69_999),
        ("update_after", 69_999, -2),
    ]


def test_large_writes_of_appenders_without_a_writer_are_in_the_feed(tmp_path: Path) -> None:
    uri, shard = str(tmp_path / "t"), mw.shard_id_for(mw.Unsharded())
    table = create(uri)
    appender = OnceAppender(uri, max_entry_bytes=4096)
    claim = appender.claim(shard)
    for number in range(3):
        appender.append(claim, [pa.record_batch(large(500 * number), schema=table.schema)], txn=("job", number))
        appender.append(claim, [pa.record_batch(large(9000 + number, 1), schema=table.schema)])
    rows = [row for batch in table.changes(until="now") for row in batch.to_pylist()]
    assert [row["id"] for row in rows if row["id"] < 9000] == list(range(1500))
    assert [row["id"] for row in rows if row["id"] >= 9000] == [9000, 9001, 9002]
    assert {row["_txn"]["version"] for row in rows if row["_txn"] is not None} == {0, 1, 2}


def test_a_generation_that_an_earlier_release_did_not_announce_is_an_error(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table.shard_writer() as writer:
        writer.put({"id": [1], "v": [1], "s": ["one"]})
        epoch, shard = writer.epoch, writer.shard_id
        rows = pa.record_batch({**large(2, 1), "_tombstone": [False]}, schema=newest_base(table).columns.memory)
        data = EntryEncoder(newest_base(table).columns.wal, epoch, 3).encode([rows])
        table.location.store.put_new(paths.wal_entry_path(shard, 2), data)
        with pytest.raises(mw.CollectedError, match="generation 2"):
            list(table.changes(until="now"))
        writer.abort()


def test_a_large_write_that_is_not_decided_ends_the_feed(tmp_path: Path) -> None:
    from lance_memwal import crash_points

    table = create(str(tmp_path / "t"))
    seen: list[list[Any]] = []

    def look(point: str) -> None:
        if point == "bulk.before_commit":
            feed = table.changes(until="now")
            seen.append([row["id"] for batch in feed for row in batch.to_pylist()])
            seen.append([feed.cursor.place(shard).position for shard in feed.cursor.shards])

    with table.writer(**LARGE) as writer:
        writer.put({"id": [7], "v": [1], "s": ["small"]})
        crash_points.install(look)
        try:
            writer.put(large(0))
        finally:
            crash_points.install(None)
    assert seen == [[7], [1]]
    assert len(mirrored(table.changes(until="now"))) == 500


@pytest.mark.parametrize("start", ["snapshot", "latest"])
def test_a_large_write_that_is_announced_comes_after_a_snapshot_that_lacks_it(tmp_path: Path, start: Any) -> None:
    from lance_memwal import crash_points

    table = create(str(tmp_path / "t"))
    feeds: list[mw.ChangeFeed] = []
    with table.writer(**LARGE) as writer:
        writer.put({"id": [7000], "v": [1], "s": ["small"]})
        crash_points.install(
            lambda point: feeds.append(table.changes(start=start)) if point == "bulk.before_commit" else None
        )
        try:
            writer.put(large(0))
        finally:
            crash_points.install(None)
    (feed,) = feeds
    expected = [*([7000] if start == "snapshot" else []), *range(500)]
    found: list[int] = []
    for batch in feed:
        found += batch.column("id").to_pylist()
        if len(found) >= len(expected):
            feed.stop()
    assert found == expected


def test_a_large_write_that_was_never_committed_is_no_change(tmp_path: Path) -> None:
    from lance_memwal import crash_points

    table = create(str(tmp_path / "t"))

    def die(point: str) -> None:
        if point == "bulk.before_commit":
            raise KeyboardInterrupt

    writer = table.shard_writer(**LARGE)
    crash_points.install(die)
    try:
        with pytest.raises(KeyboardInterrupt):
            writer.put(large(0))
    finally:
        crash_points.install(None)
        writer.abort()
    assert list(table.changes(until="now")) == []
    with table.shard_writer() as successor:
        successor.put({"id": [3], "v": [0], "s": ["0"]})
        found = ops_of(table.changes(until="now"), "id")
        assert [row[1] for row in found] == [3], "a higher epoch decides it, before any flush"
    assert [row[1] for row in ops_of(table.changes(until="now"), "id")] == [3]
    table.compact()
    assert [row[1] for row in ops_of(table.changes(until="now"), "id")] == [3], (
        "also when its number is not listed any more"
    )


def test_start_latest_shows_only_what_comes_after(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    put(table, [1])
    cursor = table.changes(start="latest").cursor
    put(table, [2])
    assert ops_of(table.changes(start=cursor, until="now"), "id") == [("u", 2)]


def test_snapshot_then_tail_has_every_row_once(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), pa.table({"id": [1, 2, 3], "v": [0, 0, 0]}, keyed(pa.field("v", pa.int64()))))
    with table.writer() as writer:
        writer.put({"id": [2, 4], "v": [1, 1]})
        writer.delete([3])
        feed = table.changes(start="snapshot")
        found = iter(feed)
        first = [next(found), next(found)]
        assert sorted(row["id"] for batch in first for row in batch.to_pylist()) == [1, 2, 4]
        assert {row["_position"] for batch in first for row in batch.to_pylist()} == {0}
        writer.put({"id": [5], "v": [2]})
        assert ops_of([next(found)], "id") == [("u", 5)]
    feed.stop()
    assert list(found) == []


def test_a_cursor_inside_of_a_snapshot_goes_on_inside_of_it(tmp_path: Path) -> None:
    table = create(
        str(tmp_path / "t"), pa.table({"id": range(1000), "v": [0] * 1000}, keyed(pa.field("v", pa.int64())))
    )
    with table.writer() as writer:
        writer.put({"id": list(range(500, 1500)), "v": [1] * 1000})
    feed = table.changes(start="snapshot", until="now")
    first = next(iter(feed))
    kept = mw.Cursor.parse(str(feed.cursor))
    put_after = {"id": [7], "v": [9]}
    with table.writer() as writer:
        writer.put(put_after)
    rest = list(table.changes(start=kept, until="now"))
    ids = [row["id"] for batch in [first, *rest] for row in batch.to_pylist()]
    assert sorted(ids) == sorted([*range(1500), 7])
    assert ids[-1] == 7


def test_a_time_is_a_place_in_every_shard(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=mw.Bucket("id", 3))
    put(table, list(range(20)), 1)
    time.sleep(0.005)
    between = datetime.now(UTC)
    time.sleep(0.005)
    put(table, list(range(30)), 2)
    assert {op[1] for op in ops_of(table.changes(start=between, until="now"), "v")} == {2}
    assert {op[1] for op in ops_of(table.changes(until=between), "v")} == {1}
    with pytest.raises(mw.InvalidInputError, match="time zone"):
        table.changes(start=datetime(2024, 1, 1))


def test_columns_and_filter_narrow_the_feed_and_deletes_pass(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    with table.writer() as writer:
        writer.put({"id": [1, 2], "v": [10, 20], "s": ["a", "b"]})
        writer.delete([1])
    feed = table.changes(columns=["s"], filter="v > 15", until="now")
    assert feed.schema.names[0] == "s"
    assert ops_of(feed, "s") == [("u", "b"), ("d", None)]
    by_key = table.changes(filter="id > 1", until="now")
    assert ops_of(by_key, "id") == [("u", 2)], "the key of a delete is known"


def test_before_images_say_what_each_change_was(tmp_path: Path) -> None:
    schema = keyed(pa.field("v", pa.int64()))
    table = create(str(tmp_path / "t"), pa.table({"id": [1, 2], "v": [10, 20]}, schema))
    feed = table.changes(start="latest", before=True)
    found = iter(feed)
    with table.writer() as writer:
        writer.put({"id": [1, 3], "v": [11, 30]})
        assert ops_of([next(found)], "id", "v") == [
            ("update_before", 1, 10),
            ("update_after", 1, 11),
            ("insert", 3, 30),
        ]
        writer.delete([1, 2, 9])
        assert ops_of([next(found)], "id", "v") == [("delete", 1, 11), ("delete", 2, 20)]
        writer.put({"id": [1, 1, 1], "v": [1, 2, 3]})
        assert ops_of([next(found)], "id", "v") == [
            ("insert", 1, 1),
            ("update_before", 1, 1),
            ("update_after", 1, 2),
            ("update_before", 1, 2),
            ("update_after", 1, 3),
        ]
    feed.stop()


def test_before_images_that_only_a_removed_base_version_held_are_not_made_up(tmp_path: Path) -> None:
    """A tag keeps an older base version, and a newer one is there; the one between them had the row."""
    table = create(str(tmp_path / "t"))
    put(table, [1], 10)
    table.compact()
    table.checkpoints.create("old")
    put(table, [2], 20)
    table.compact()
    feed = table.changes(until="now")
    assert len(mirrored(feed)) == 2
    put(table, [2], 21)
    table.compact()
    changed = [("update_before", 2, 20), ("update_after", 2, 21)]
    assert ops_of(table.changes(start=feed.cursor, before=True, until="now"), "id", "v") == changed
    table.dataset.cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
    with pytest.raises(
        mw.CollectedError
    ):  # an SSTable has the row, but others may have changed the version that is gone
        list(table.changes(start=feed.cursor, before=True, until="now"))
    with table.consumers.open("keeps-the-log", start=feed.cursor):
        assert table.gc(grace_seconds=0).objects
    with pytest.raises(mw.CollectedError):
        list(table.changes(start=feed.cursor, before=True, until="now"))
    assert ops_of(table.changes(start=feed.cursor, until="now"), "id", "v") == [("u", 2, 21)]


def test_before_images_are_not_those_of_a_version_on_the_other_side_of_a_gap(tmp_path: Path) -> None:
    """What plain Lance changed is in no log: the version that had it is gone, and one from before is kept."""
    table = create(str(tmp_path / "t"), pa.table({"id": [1, 2], "v": [10, 20], "s": ["", ""]}, keyed()))
    put(table, [3], 30)
    snapshot = table.checkpoints.create("old").snapshot
    table.dataset.update({"v": "11"}, where="id = 1")
    cursor = table.changes(start="latest").cursor
    put(table, [1], 12)
    put(table, [2], 21)
    table.compact()
    images = [("update_before", 1, 11), ("update_after", 1, 12), ("update_before", 2, 20), ("update_after", 2, 21)]
    assert ops_of(table.changes(start=cursor, before=True, until="now"), "id", "v") == images
    table.dataset.cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
    with pytest.raises(mw.CollectedError, match="gone"):
        list(table.changes(start=cursor, before=True, until="now"))
    since = [ops_of(table.changes(start=start, before=True, until="now"), "id", "v") for start in ("old", snapshot)]
    assert since[0] == since[1] != [], "a name stands for the whole moment"


def test_before_images_are_known_from_the_earliest_change_on(tmp_path: Path) -> None:
    schema = keyed(pa.field("v", pa.int64()))
    table = create(str(tmp_path / "t"), pa.table({"id": [1], "v": [10]}, schema))
    with table.writer() as writer:
        writer.put({"id": [1, 2], "v": [11, 21]})
        cursor = table.changes(start="latest").cursor
        writer.put({"id": [1], "v": [12]})
    table.compact()
    changes = [("update_before", 1, 10), ("update_after", 1, 11), ("insert", 2, 21)]
    later = [("update_before", 1, 11), ("update_after", 1, 12)]
    assert ops_of(table.changes(before=True, until="now"), "id", "v") == changes + later
    assert ops_of(table.changes(start=cursor, before=True, until="now"), "id", "v") == later


@pytest.mark.parametrize(
    "options",
    [
        {"start": "begin"},
        {"until": "never"},
        {"start": 3},
        {"columns": ["x"]},
        {"filter": "x > 1"},
        {"before": 1},
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    table = create(str(tmp_path / "t"))
    with pytest.raises(mw.InvalidInputError):
        table.changes(**options)


def test_a_follower_sees_what_comes_and_shards_that_appear(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), sharding=mw.Manual(), allow_keys_across_shards=True)
    feed = table.changes()
    found: list[int] = []

    def follow() -> None:
        for batch in feed:
            found.extend(batch.column("id").to_pylist())

    follower = threading.Thread(target=follow)
    follower.start()
    for number in range(3):
        with table.shard_writer() as writer:
            writer.put({"id": [number], "v": [0], "s": [""]})
    wait_for(lambda: len(found) >= 3)
    feed.stop()
    follower.join(10)
    assert sorted(found) == [0, 1, 2]


def test_another_table_at_the_same_place_is_refused(tmp_path: Path) -> None:
    import shutil

    uri = str(tmp_path / "t")
    table = create(uri)
    put(table, [1])
    cursor = table.changes(start="latest").cursor
    shutil.rmtree(uri)
    with pytest.raises(mw.TableReplacedError):
        create(uri).changes(start=cursor)


def test_an_append_only_table_has_only_inserts(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), pa.schema([("n", pa.int64())]), primary_key=None)
    with table.writer() as writer:
        writer.put({"n": [1, 1]})
    assert ops_of(table.changes(until="now"), "n") == [("u", 1), ("u", 1)]
    assert ops_of(table.changes(until="now", before=True), "n") == [("insert", 1), ("insert", 1)]
    assert rows_of(table.scan(), "n") == [{"n": 1}, {"n": 1}]


@pytest.mark.parametrize("text", ["", "c1", "c2,-", "c1,zz", "c1,-,x=1", "c1,-,", "c1,-/3", "c1,-/x/y", "c1,-/3/"])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(mw.InvalidInputError):
        mw.Cursor.parse(text)


def test_a_feed_has_the_columns_of_its_start_and_a_later_one_those_of_today(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"))
    put(table, [1], 1)
    old = table.changes()
    batches = iter(old)
    assert ops_of([next(batches)], "id", "v") == [("u", 1, 1)]
    table.dataset.add_columns({"extra": "cast(null as int)"})
    with table.writer() as writer:
        writer.put({"id": [2], "v": [2], "s": ["two"], "extra": [7]})
    assert next(batches).schema.names == old.schema.names
    old.stop()
    assert ops_of(table.changes(until="now"), "id", "extra") == [("u", 1, None), ("u", 2, 7)]


# Reads that are broken off at any request go on where they were: no change is left out, none comes twice.

SCHEMA = keyed(pa.field("v", pa.int64()))
SIGNS = timedelta(milliseconds=1)  # so that a consumer says with every batch that it is there
_T = TypeVar("_T")


class Interrupted(WrappedStore):
    """Interrupts its caller once, before or after one call."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.calls = 0
        self.at: int | None = None
        self.after = False

    def around(self, kind: str, call: Callable[..., _T], path: str, *rest: Any, **options: Any) -> _T:
        is_now, self.calls = self.calls == self.at, self.calls + 1
        if is_now and not self.after:
            raise KeyboardInterrupt
        found = call(path, *rest, **options)
        if is_now:
            raise KeyboardInterrupt
        return found


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows in a base table, and changes above them in several entries."""
    path = str(tmp_path_factory.mktemp("feed") / "t")
    table = create(path, pa.table({"id": [1, 2], "v": [0, 0]}, SCHEMA))
    with table.writer() as writer:
        for v in range(1, 4):
            writer.put({"id": [1, 10 + v], "v": [v, v]})
    return path


Follow = Callable[[NewestBase, SkippingClock], ChangeFeed | Consumer]


def lived(uri: str, follow: Follow, at: int | None, after: bool) -> tuple[list[Any], int]:
    """What is handed out by a reader that is interrupted once, at request `at` after it was opened; and its requests."""
    stores: list[Interrupted] = []

    def wrap(inner: ObjectStore) -> ObjectStore:
        stores.append(Interrupted(inner))
        return stores[0]

    clock = SkippingClock()
    base = BaseTable.open(resolve(uri, clock=clock, wrap=wrap))
    assert base is not None
    reader = follow(NewestBase(base), clock)
    stores[0].calls, stores[0].at, stores[0].after = 0, at, after
    found = list(_handed_out(reader))
    return found, stores[0].calls


def _handed_out(reader: ChangeFeed | Consumer) -> Iterator[Any]:
    for _ in range(2):
        try:
            for batch in reader:
                yield from ops_of([batch], "id", "v")
                if isinstance(reader, Consumer):
                    _commit(reader)
        except KeyboardInterrupt:
            continue
        return


def _commit(reader: Consumer) -> None:
    try:
        reader.commit()
    except KeyboardInterrupt:
        reader.commit()


def plain(newest: NewestBase, clock: SkippingClock) -> ChangeFeed:
    return ChangeFeed(newest, Request(), "earliest", "now", clock=clock)


def with_rows_before(newest: NewestBase, clock: SkippingClock) -> ChangeFeed:
    return ChangeFeed(newest, Request(before=True), "earliest", "now", clock=clock)


def whole_table(newest: NewestBase, clock: SkippingClock) -> ChangeFeed:
    return ChangeFeed(newest, Request(), "snapshot", "now", clock=clock)


def consumer(newest: NewestBase, clock: SkippingClock) -> Consumer:
    name = clock.uuid4()
    return Consumer(newest, name, Request(), start="earliest", until="now", max_age=SIGNS, clock=clock)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("follow", [plain, with_rows_before, whole_table, consumer])
def test_interrupted_reader_continues(uri: str, follow: Follow, after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(before, "_RENEW_SECONDS", 0.0)  # a new snapshot whenever one may be taken
    monkeypatch.setattr("lance_memwal.feed.shard_changes._CHUNK_ENTRIES", 1)
    whole, calls = lived(uri, follow, None, after)
    assert len(whole) >= 5
    for at in range(calls):
        assert lived(uri, follow, at, after)[0] == whole, f"interrupted at request {at}"
