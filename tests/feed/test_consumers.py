"""Named consumers: their place is kept, collection waits for them, and one reader at a time reads for a name."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.clock import SystemClock
from lance_memwal.feed.changes import Request
from lance_memwal.feed.consumers import Consumer
from lance_memwal.feed.cursor import Place
from lance_memwal.feed.shard_changes import ShardChanges
from lance_memwal.lance.base import NewestBase
from lance_memwal.log.reading import list_positions
from lance_memwal.read.tiers import TierSource
from lance_memwal.store import paths
from lance_memwal.table import newest_base
from lance_memwal.testing.clocks import SkippingClock
from lance_memwal.upkeep.gc import Collector
from tests.harness.processes import Child, start
from tests.harness.profile import scaled
from tests.kit.feeds import collect_while, mirrored, ops_of
from tests.kit.tables import create, keyed
from tests.kit.writers import in_thread

SHARD = mw.shard_id_for(mw.Unsharded())
SCHEMA = keyed(pa.field("v", pa.int64()))
LARGE = {"max_entry_bytes": 4096}


def put(table: mw.Table, ids: list[int], v: int = 0, **options: Any) -> None:
    with table.writer(**options) as writer:
        writer.put({"id": ids, "v": [v] * len(ids)})


def life(table: mw.Table, first: int) -> None:
    """Three generations that are compacted, and a sentinel above them: all that they left can go."""
    for n in range(3):
        put(table, [first + n])
    table.compact()
    put(table, [first])


def collect(table: mw.Table) -> mw.GcReport:
    table.compact()
    return table.gc(grace_seconds=0)


def consumer(table: mw.Table, name: str = "sync", **options: Any) -> mw.Consumer:
    return table.consumers.open(name, until="now", **options)


def ids_of(batches: Any) -> list[int]:
    return [row[1] for row in ops_of(batches, "id")]


def test_a_consumer_goes_on_where_it_committed(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    put(table, [1, 2])
    reader = consumer(table)
    assert ids_of(reader) == [1, 2]
    again = consumer(table)
    assert ids_of(again) == [1, 2], "nothing was committed"
    again.commit()
    put(table, [3])
    third = consumer(table)
    assert third.lag() > 0
    assert ids_of(third) == [3]
    third.commit()
    assert third.lag() == 0
    assert ids_of(consumer(table)) == []


def test_collection_never_passes_a_consumer_that_stopped(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    reader = consumer(table, start="earliest")
    life(table, 10)
    assert collect(table).count("entry") == 0
    found = consumer(table)
    assert ids_of(found) == [10, 11, 12, 10]
    found.commit()
    assert collect(table).count("entry") > 0
    with pytest.raises(mw.FencedError, match="Reader of the consumer"):
        reader.commit()


def test_the_rows_of_a_large_write_stay_until_a_consumer_has_passed_them(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    reader = consumer(table, start="earliest")
    put(table, list(range(2000)), **LARGE)
    put(table, [5000])
    table.compact()
    put(table, [5001])
    assert not any("_gen_1/" in item.path for item in collect(table).objects)
    reader = consumer(table)
    assert ids_of(reader) == [*range(2000), 5000, 5001]
    reader.commit()
    report = collect(table)
    assert any("_gen_1/" in item.path for item in report.objects)
    assert report.count("entry") > 0


def test_without_a_consumer_the_rows_of_a_large_write_go_and_earliest_begins_after_them(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    cursor = table.changes(start="latest").cursor
    put(table, list(range(2000)), **LARGE)
    table.compact()
    table.compact()
    assert table.gc(grace_seconds=0).count("sstable") > 0
    put(table, [5001])
    assert ids_of(table.changes(until="now")) == [5001]
    with pytest.raises(mw.CollectedError, match="snapshot"):
        list(table.changes(start=cursor, until="now"))


def test_a_start_below_what_collection_left_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    put(table, [1])
    cursor = table.changes(start="earliest").cursor
    life(table, 10)
    assert collect(table).count("entry") > 0
    with pytest.raises(mw.CollectedError, match="start='snapshot'"):
        list(table.changes(start=cursor, until="now"))
    assert sorted(mirrored(table.changes(start="snapshot", until="now"))) == [1, 10, 11, 12]


def test_an_object_that_came_late_into_an_emptied_slot_is_no_change(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    table = create(str(uri), SCHEMA)
    put(table, [1])
    cursor = table.changes(start="earliest").cursor
    late = uri / paths.wal_entry_path(SHARD, 1)
    data = late.read_bytes()
    life(table, 10)
    collect(table)
    assert not late.exists()
    late.write_bytes(data)
    alone = mw.Cursor(cursor.table, {SHARD: Place(1)})
    with pytest.raises(mw.CollectedError, match="were collected"):
        list(table.changes(start=cursor, until=alone))


def test_a_consumer_that_was_silent_for_too_long_expires_and_is_told_so(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    put(table, [1])
    reader = consumer(table, start="earliest", max_age=timedelta(hours=1))
    kept = consumer(table, "other", start="earliest", max_age=timedelta(days=30))
    list(kept)
    life(table, 10)
    table.compact()
    late = SkippingClock()
    late.sleep(2 * 3600)
    newest = NewestBase(newest_base(table))
    dry = Collector(table.location, newest, late).run(dry_run=True, grace_seconds=0)
    assert dry.expired_consumers == ("sync",)
    assert [info.state for info in table.consumers.list()] == ["active", "active"], "a dry run changes nothing"
    report = Collector(table.location, newest, late).run(grace_seconds=0)
    assert report.expired_consumers == ("sync",)
    assert report.count("entry") == 0, "the other one still holds its entries back"
    assert {info.name: info.state for info in table.consumers.list()} == {"other": "active", "sync": "expired"}
    with pytest.raises(mw.CollectedError, match=r"up to \d+ log entries"):
        reader.commit()
    with pytest.raises(mw.CollectedError, match=r"consumers\.drop"):
        consumer(table)
    table.consumers.drop("sync")
    fresh = consumer(table)
    assert sorted(mirrored(fresh)) == [1, 10, 11, 12]


def test_a_consumer_that_holds_nothing_back_does_not_expire(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    life(table, 10)
    reader = consumer(table, max_age=timedelta(hours=1))
    list(reader)
    reader.commit()
    late = SkippingClock()
    late.sleep(2 * 3600)
    table.compact()
    report = Collector(table.location, NewestBase(newest_base(table)), late).run(grace_seconds=0)
    assert report.expired_consumers == ()
    reader.commit()


def test_a_consumer_that_reads_says_that_it_is_there(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    put(table, [1])
    clock = SkippingClock()
    reader = Consumer(
        NewestBase(newest_base(table)),
        "sync",
        Request(),
        start="earliest",
        until="now",
        max_age=timedelta(hours=1),
        clock=clock,
    )
    before = reader.committed
    clock.sleep(1800)
    list(reader)
    info = table.consumers.list()[0]
    assert info.silent_seconds == 0
    assert reader.committed == before, "nothing was committed"
    reader.commit()


def test_a_second_reader_takes_over_and_the_first_one_stops(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    put(table, [1])
    first = consumer(table)
    list(first)
    second = consumer(table)
    with pytest.raises(mw.FencedError):
        first.commit()
    list(second)
    second.commit()
    with pytest.raises(mw.FencedError):
        first.commit()
    assert ids_of(consumer(table)) == []


def test_a_dropped_consumer_stops_and_holds_nothing_back(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    reader = consumer(table, start="earliest")
    life(table, 10)
    table.consumers.drop("sync")
    assert table.consumers.list() == []
    assert collect(table).count("entry") > 0
    with pytest.raises(mw.ClosedError):
        reader.commit()
    with pytest.raises(mw.InvalidInputError):
        table.consumers.drop("sync")


def test_a_damaged_record_is_named_and_can_be_dropped(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    consumer(table)
    path = tmp_path / "t" / paths.record_path(paths.record_dir(paths.CONSUMERS_DIR, "sync"), 2)
    path.write_bytes(b"{}")
    with pytest.raises(mw.UnsupportedFormatError):
        table.gc()
    path.write_bytes(b"{")
    with pytest.raises(mw.CorruptDataError, match=r"2\.json"):
        table.gc()
    table.consumers.drop("sync")
    table.gc()
    assert ids_of(consumer(table)) == []


def test_the_clean_up_of_lance_leaves_the_place_of_a_consumer(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    put(table, [1])
    reader = consumer(table)
    list(reader)
    reader.commit()
    table.compact()
    table.dataset.cleanup_old_versions(timedelta(0), delete_unverified=True)
    assert [info.name for info in table.consumers.list()] == ["sync"]
    put(table, [2])
    assert ids_of(consumer(table)) == [2]


def test_lag_is_in_the_statistics(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    reader = consumer(table, start="earliest")
    put(table, [1])
    put(table, [2])
    (info,) = table.stats().consumers
    assert (info.name, info.state) == ("sync", "active")
    assert info.lag_entries >= 2
    list(reader)
    consumer(table)
    assert info.max_age_seconds == 7 * 24 * 3600


@pytest.mark.parametrize("name", ["", "a/b", "..", 3])
def test_a_name_that_cannot_be_one_is_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(mw.InvalidInputError):
        create(str(tmp_path / "t"), SCHEMA).consumers.open(name)


COLLECTION = ["gc.proposed", "gc.announced", "gc.before_floor", "gc.after_floor", "gc.before_entry"]


@pytest.mark.parametrize("point", COLLECTION)
def test_a_consumer_that_comes_while_collection_runs_misses_nothing_unsaid(tmp_path: Path, point: str) -> None:
    """It reads everything from its start on, or is told at once that it cannot, and leaves nothing behind."""
    table = create(str(tmp_path / "t"), SCHEMA)
    put(table, [1])
    begin = table.changes(start="earliest").cursor
    life(table, 10)
    table.compact()
    came: list[mw.Consumer] = []

    def come() -> None:
        try:
            came.append(consumer(table, start=begin))
        except mw.CollectedError:
            assert table.consumers.list() == []

    collect_while(table, point, come)
    assert bool(came) == (point == "gc.proposed")
    if came:
        assert ids_of(came[0]) == [1, 10, 11, 12, 10]
        assert min(list_positions(table.location, SHARD)) == 1


@pytest.mark.parametrize("start", ["snapshot", "earliest", "latest"])
@pytest.mark.parametrize("point", COLLECTION)
def test_a_consumer_that_came_while_collection_ran_is_never_passed(tmp_path: Path, point: str, start: Any) -> None:
    """What it was handed out and has not committed is handed out again: it must not be told to begin anew instead."""
    table = create(str(tmp_path / "t"), SCHEMA)
    life(table, 10)
    table.compact()
    begun: list[int] = []
    collect_while(table, point, lambda: begun.extend(ids_of(consumer(table, start=start))))
    life(table, 20)
    collect(table)
    reader = consumer(table)
    assert ids_of(reader) == [*begun, 20, 21, 22, 20]
    reader.commit()


class InterruptedClock(SystemClock):
    """Does something when it is asked for the time first."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._then: Callable[[], object] | None = then

    def now_ms(self) -> int:
        then, self._then = self._then, None
        if then is not None:
            then()
        return super().now_ms()


def test_a_snapshot_that_is_collected_before_the_first_record_is_taken_again(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    life(table, 10)
    with table.writer(compaction=None) as writer:
        writer.put({"id": [20], "v": [0]})
        writer.flush()

        def collect_all() -> None:
            put(table, [30])
            life(table, 40)
            collect(table)
            collect(table)

        clock = InterruptedClock(collect_all)
        reader = Consumer(NewestBase(newest_base(table)), "sync", Request(), until="now", clock=clock)
        first = reader.cursor
        found = mirrored(reader)
        writer.abort()
    assert reader.cursor != first
    assert sorted(found) == [10, 11, 12, 20, 30, 40, 41, 42]
    reader.commit()


def test_a_restarted_consumer_knows_what_rows_were_before(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), pa.table({"id": [1, 2], "v": [10, 20]}, SCHEMA))
    reader = consumer(table, start="latest", before=True)
    put(table, [1], 11)
    reader = consumer(table, before=True)
    assert ops_of(reader, "id", "v") == [("update_before", 1, 10), ("update_after", 1, 11)]
    reader.commit()
    put(table, [1, 3], 12)
    collect(table)
    put(table, [2], 21)
    collect(table)
    reader = consumer(table, before=True)
    assert ops_of(reader, "id", "v") == [
        ("update_before", 1, 11),
        ("update_after", 1, 12),
        ("insert", 3, 12),
        ("update_before", 2, 20),
        ("update_after", 2, 21),
    ]


def test_a_consumer_that_stopped_inside_of_its_snapshot_goes_on_there(tmp_path: Path) -> None:
    rows = pa.table({"id": range(300_000), "v": [0] * 300_000}, SCHEMA)
    table = create(str(tmp_path / "t"), rows)
    reader = consumer(table)
    taken = iter(reader)
    first = [next(taken), next(taken)]
    reader.commit()
    put(table, [5], 1)
    collect(table)
    rest = list(consumer(table))
    ids = [n for batch in [*first, *rest] for n in batch.column("id").to_pylist()]
    assert sorted(ids) == sorted([*range(300_000), 5])


@pytest.mark.parametrize("reads", ["consumer", "changes"])
def test_a_snapshot_that_collection_passes_while_its_place_is_looked_up_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    """A process that slept there was told to begin from a snapshot, which is what it did."""
    table = create(str(tmp_path / "t"), SCHEMA)
    writer = table.writer()
    writer.put({"id": [1], "v": [1]})
    look, slept = ShardChanges.before_mark, []

    def after_a_while(changes: ShardChanges, tip: int, cursor: int) -> Place:
        if not slept:
            slept.append(tip)
            in_thread(meanwhile).result()
        return look(changes, tip, cursor)

    def meanwhile() -> None:
        writer.close()
        life(table, 2)
        collect(table)

    monkeypatch.setattr(ShardChanges, "before_mark", after_a_while)
    reader = consumer(table) if reads == "consumer" else table.changes(start="snapshot", until="now")
    assert sorted(ids_of(reader)) == [1, 2, 3, 4]
    assert slept


def test_snapshot_shows_nothing_that_its_feed_tells_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process slept between its looks at a shard and at the base table, into which the next rows came meanwhile."""
    table = create(str(tmp_path / "t"), SCHEMA)
    put(table, [1])
    look, slept = TierSource._point_of, []

    def meanwhile() -> None:
        put(table, [2])
        table.compact()

    def and_then(source: TierSource, *given: Any) -> Any:
        point = look(source, *given)
        if not slept:
            slept.append(point)
            in_thread(meanwhile).result()
        return point

    monkeypatch.setattr(TierSource, "_point_of", and_then)
    assert ids_of(consumer(table)) == [1, 2]
    assert slept


# Writers and consumers that are killed at any instant: every change that landed is committed exactly once.

SHARDS = 3


def write(uri: str, first: int, pipe: Connection) -> None:
    """Put new keys without an end, now and then so many that they become a generation; tell what was acknowledged."""
    table, draw = mw.open_table(uri), random.Random(first)
    with table.writer(fsync=False, max_entry_bytes=4096, compaction=None) as writer:
        while True:
            count = 900 if draw.random() < 0.1 else draw.randint(1, 20)
            ids = list(range(first, first + count))
            writer.put({"id": ids, "v": ids})
            pipe.send((first, first + count))
            first += count
            if draw.random() < 0.1:
                writer.flush()


def follow(uri: str, target: str, pipe: Connection) -> None:
    """Apply every change to a file, then commit."""
    consumer = mw.open_table(uri).consumers.open("copy", start="earliest")
    pipe.send("opened")
    with open(target, "a", encoding="ascii") as file:
        for batch in consumer:
            for shard, position, key in zip(
                *(batch.column(name).to_pylist() for name in ("_shard", "_position", "id")), strict=True
            ):
                file.write(json.dumps([shard, position, key]) + "\n")
            file.flush()
            consumer.commit()


def kill(child: Child, draw: random.Random, at_most: float) -> list[Any]:
    time.sleep(draw.random() * at_most)
    child.kill()
    told: list[Any] = []
    with suppress(EOFError):
        while (message := child.receive(30)) is not None:
            told.append(message)
    child.wait(30)
    return told


def committed_rows(table: mw.Table, target: Path) -> list[int]:
    """The keys that were applied and committed since this was asked last; the rest is forgotten, as a reader would."""
    lines = [json.loads(line) for line in target.read_text().splitlines() if line.endswith("]")]
    target.write_text("")
    (info,) = table.consumers.list()
    cursor = mw.Cursor.parse(info.cursor)
    kept, inside = [], Counter[str]()
    for shard, position, key in lines:
        place = cursor.place(shard)
        if position == place.position + 1:
            inside[shard] += 1
        if position <= place.position or (position == place.position + 1 and inside[shard] <= place.rows):
            kept.append(key)
    return kept


@pytest.mark.scaled
@pytest.mark.timeout(600)
def test_every_change_is_committed_once_although_both_ends_are_killed(tmp_path: Path) -> None:
    uri, target, draw = str(tmp_path / "t"), tmp_path / "applied", random.Random(5)
    table = create(uri, SCHEMA, sharding=mw.Bucket("id", SHARDS))
    table.consumers.open("copy", start="earliest")
    target.write_text("")
    first, acknowledged, kept = 0, set[int](), list[int]()
    for _ in range(scaled(ci=2, prove=40)):
        writer = start(write, uri, first)
        follower = start(follow, uri, str(target))
        assert follower.receive(60) == "opened"
        told = kill(follower, draw, 0.4)
        assert told == []
        kept += committed_rows(table, target)
        for low, high in kill(writer, draw, 0.3):
            acknowledged.update(range(low, high))
            first = max(first, high)
        first += 2000  # of what it was about to write nobody knows
        if draw.random() < 0.7:
            table.flush(idle_seconds=0)
            table.compact()
            table.gc(grace_seconds=0)
    last = table.consumers.open("copy", until="now")
    kept += [key for batch in last for key in batch.column("id").to_pylist()]
    there = table.scan(columns=["id"]).to_table().column("id").to_pylist()
    assert Counter(kept) == Counter(there), "what landed was committed once"
    assert acknowledged <= set(there)
    assert table.verify().ok
