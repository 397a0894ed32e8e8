"""The change feed: every entry once, in order per shard, within limits, and never silently incomplete; where a query of
it stands, and its first micro-batch.
"""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles

import lance_memwal as mw
from lance_memwal.errors import CollectedError, TableReplacedError
from lance_memwal.spark.feed import ChangeFeed
from tests.kit.feeds import collect_while
from tests.kit.spark import feed_of, finish, ids_of, keyed, replay_first_batch


def read(feed: ChangeFeed, start: Any, end: Any) -> list[dict[str, Any]]:
    parts = feed.partitions(start, end)
    return [row for part in parts for batch in feed.read(part) for row in batch.to_pylist()]


def test_a_stream_of_the_table_is_its_changes_in_the_order_of_each_shard(spark: Any, uri: str, tmp_path: Path) -> None:
    table = keyed(uri, 2)
    with table.writer() as writer:
        for step in range(3):
            writer.put({"id": list(range(10)), "n": [step] * 10}, missing="null")
        writer.delete([4])
    options = {"columns": "id,n", "startingPosition": "earliest"}
    stream = spark.readStream.format("memwal").options(**options).load(uri)
    assert stream.columns == ["id", "n", "_op", "_shard", "_position", "_time", "_txn"]
    seen: list[Any] = []

    def keep(frame: Any, _: int) -> None:
        seen.extend(frame.collect())

    def run() -> None:
        writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
        finish(writer.trigger(availableNow=True).start)

    run()
    assert len(seen) == 31
    of_four = [(row["n"], row["_op"]) for row in sorted(seen, key=lambda row: row["_position"]) if row["id"] == 4]
    assert of_four == [(0, "u"), (1, "u"), (2, "u"), (None, "d")]
    with table.writer() as writer:
        writer.put({"id": [77], "n": [7]}, missing="null")
    run()
    assert [(row["id"], row["_op"]) for row in seen[31:]] == [(77, "u")]


def test_the_feed_has_a_format_of_its_own(spark: Any, uri: str, tmp_path: Path) -> None:
    table = keyed(uri)
    with table.writer() as writer:
        writer.put({"id": [1, 2], "n": [5, 6]}, missing="null")
    stream = spark.readStream.format("memwal_changes").option("columns", "id,n").load(uri)
    seen: list[Any] = []
    writer = stream.writeStream.foreachBatch(lambda frame, _: seen.extend(frame.collect()))
    finish(writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start)
    assert sorted((row["id"], row["n"], row["_op"]) for row in seen) == [(1, 5, "u"), (2, 6, "u")]
    with pytest.raises(Exception, match=r"use spark\.readStream"):
        spark.read.format("memwal_changes").load(uri).collect()


def test_a_query_begins_with_all_live_rows_and_goes_on_with_what_changes(spark: Any, uri: str, tmp_path: Path) -> None:
    """Whatever was compacted, collected or written as a generation of its own before: it is in the snapshot."""
    table = keyed(uri, 2)
    with table.writer(max_entry_bytes=2048) as writer:
        writer.put({"id": list(range(1000)), "n": [0] * 1000}, missing="null")
        writer.put({"id": [1], "n": [1]}, missing="null")
        writer.delete([2])
    table.compact()
    table.gc(grace_seconds=0)
    stream = spark.readStream.format("memwal").option("columns", "id,n").load(uri)
    batches: list[list[Any]] = []
    writer = stream.writeStream.foreachBatch(lambda frame, _: batches.append(frame.collect()))
    start = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start
    finish(start)
    first = [row for batch in batches for row in batch]
    assert sorted((row["id"], row["n"], row["_position"]) for row in first) == [
        (n, int(n == 1), 0) for n in range(1000) if n != 2
    ]
    batches.clear()
    with table.writer(max_entry_bytes=2048) as writer:
        writer.put({"id": list(range(500, 1500)), "n": [2] * 1000}, missing="null")
        writer.delete([3], txn=("job", 9))
    finish(start)
    later = [row for batch in batches for row in batch]
    assert sorted(row["id"] for row in later if row["_op"] == "u") == list(range(500, 1500)), "a large write is in it"
    assert [(row["id"], row["_txn"]["version"]) for row in later if row["_op"] == "d"] == [(3, 9)]
    assert all(row["_time"] is not None for row in later)


def test_an_empty_table_is_an_empty_snapshot(spark: Any, uri: str, tmp_path: Path) -> None:
    table = keyed(uri, 2)
    stream = spark.readStream.format("memwal_changes").option("columns", "id").load(uri)
    seen: list[Any] = []
    writer = stream.writeStream.foreachBatch(lambda frame, _: seen.extend(frame.collect()))
    start = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start
    finish(start)
    assert seen == []
    with table.writer() as writer:
        writer.put({"id": [5]}, missing="null")
    finish(start)
    assert [row["id"] for row in seen] == [5]


def test_collection_waits_for_a_query_that_is_a_consumer(uri: str) -> None:
    table = keyed(uri, 1)
    feed = feed_of(table, consumer="copy")
    start = feed.initialOffset()
    feed.latestOffset(start, ReadAllAvailable())
    for n in range(3):
        with table.writer() as writer:
            writer.put({"id": [n]}, missing="null")
    table.compact()
    table.gc(grace_seconds=0)
    end = feed.latestOffset(start, ReadAllAvailable())
    assert [row["id"] for row in read(feed, start, end)] == [0, 1, 2]
    feed.commit(end)
    assert feed_of(table, consumer="copy").initialOffset()["shards"] == end["shards"], "a new query goes on there"
    assert [info.lag_entries for info in table.consumers.list()] == [0]
    assert table.gc(grace_seconds=0).count("entry") > 0
    other = feed_of(table, consumer="copy")
    other.latestOffset(end, ReadAllAvailable())
    with pytest.raises(mw.FencedError):
        feed.commit(end)


def test_without_the_option_a_stream_says_what_is_missing(spark: Any, uri: str, tmp_path: Path) -> None:
    keyed(uri)
    reader = spark.readStream.format("memwal").option("__changeFeed", "false").load(uri)
    query = reader.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(Exception, match="memwal_changes"):
        query.awaitTermination(300)


def test_limits_bound_a_micro_batch_and_every_entry_comes_once(uri: str) -> None:
    table = keyed(uri, 2)
    with table.writer() as writer:
        for step in range(6):
            writer.put({"id": list(range(20)), "n": [step] * 20}, missing="null")
    for limits in ({"maxEntriesPerTrigger": "3"}, {"maxRowsPerTrigger": "25"}, {"maxBytesPerTrigger": "3000"}):
        feed = feed_of(table, **limits)
        offset, batches = feed.initialOffset(), []
        while True:
            end = feed.latestOffset(offset, ReadMaxFiles(1))
            if end == offset:
                break
            batches.append(read(feed, offset, end))
            offset = end
        assert len(batches) > 2
        rows = [row for batch in batches for row in batch]
        assert sorted((row["id"], row["n"]) for row in rows) == sorted((i, n) for i in range(20) for n in range(6))
        assert offset == feed.reportLatestOffset()
        if "maxRowsPerTrigger" in limits:
            assert max(map(len, batches)) <= 25
        assert feed.latestOffset(feed.initialOffset(), ReadAllAvailable())["shards"] == offset["shards"]


def test_a_shard_that_appears_later_is_read_from_its_first_entry(uri: str) -> None:
    table = mw.create_table(uri, keyed_schema(), primary_key="id", sharding=mw.Identity("id"))
    feed = feed_of(table, "latest")
    with table.writer() as writer:
        writer.put({"id": [1]}, missing="null")
        start = feed.initialOffset()
        writer.put({"id": [1]}, missing="null")
        writer.put({"id": [2]}, missing="null")
    end = feed.latestOffset(start, ReadAllAvailable())
    assert sorted(row["id"] for row in read(feed, start, end)) == [1, 2]


def keyed_schema() -> Any:
    from tests.kit.spark import KEYED

    return KEYED


def test_entries_that_collection_took_are_an_error_or_are_left_out_as_told(uri: str) -> None:
    table = keyed(uri, 1)
    feed = feed_of(table)
    with table.writer() as writer:
        writer.put({"id": [1]}, missing="null")
        writer.put({"id": [2]}, missing="null")
    start = feed.initialOffset()
    with table.writer() as writer:
        writer.put({"id": [3]}, missing="null")
    table.compact()
    table.gc(grace_seconds=0)
    with table.writer() as writer:
        writer.put({"id": [4]}, missing="null")
    end = feed.latestOffset(start, ReadAllAvailable())
    with pytest.raises(CollectedError, match="failOnDataLoss"):
        read(feed, start, end)
    lenient = feed_of(table, failOnDataLoss="false")
    assert [row["id"] for row in read(lenient, start, end)][-1] == 4


def test_the_progress_of_a_query_shows_rows_and_lag(spark: Any, uri: str, tmp_path: Path) -> None:
    import lance_memwal.spark as ms

    table = keyed(uri, 1)
    with table.writer() as writer:
        for step in range(4):
            writer.put({"id": [step]}, missing="null")
    listener = ms.ProgressListener()
    spark.streams.addListener(listener)
    try:
        options = {"maxEntriesPerTrigger": "1", "startingPosition": "earliest"}
        stream = spark.readStream.format("memwal").options(**options).load(uri)
        writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
        query = finish(writer.trigger(availableNow=True).start)
        lags = [_lag(progress) for progress in query.recentProgress]
        assert lags[0] > lags[-1] == 0
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)
    stats = listener.queries[str(query.runId)]
    assert (stats.rows, stats.lag_entries, stats.failed) == (4, 0, None)


def _lag(progress: Any) -> int:
    from lance_memwal.spark.progress import _lag as lag

    return sum(lag(source) for source in progress.sources)


# Where a query of the change feed stands: its consumer, and what collection leaves of the log.

ALL = ReadAllAvailable()
FAST: dict[str, Any] = {"writer_defaults": {"fsync": False}}


def read_ids(feed: ChangeFeed, start: Any, end: Any) -> list[int]:
    return [row["id"] for row in read(feed, start, end)]


def read_on(feed: ChangeFeed, start: Any) -> list[int]:
    """All that there is from `start` on; a snapshot is a micro-batch of its own."""
    end = feed.latestOffset(start, ALL)
    found = read_ids(feed, start, end)
    return found + read_ids(feed, end, feed.latestOffset(end, ALL))


def put_ids(table: mw.Table, *ids: int, **options: Any) -> None:
    with table.writer(**options) as writer:
        writer.put({"id": list(ids)}, missing="null")


def test_a_name_that_stands_inside_of_a_snapshot_is_refused_and_goes_on_after_it(uri: str) -> None:
    table = keyed(uri, 1, **FAST)
    put_ids(table, 1)
    table.compact()
    put_ids(table, 2)
    reader = table.consumers.open("copy", until="now")
    batches = iter(reader)
    first = next(batches).column("id").to_pylist()
    reader.commit()
    with pytest.raises(mw.InvalidInputError, match=r"inside of its first snapshot.*table\.consumers\.open"):
        feed_of(table, consumer="copy").initialOffset()
    rest = [n for batch in batches for n in batch.column("id").to_pylist()]
    reader.commit()
    assert sorted(first + rest) == [1, 2]
    put_ids(table, 3)
    feed = feed_of(table, consumer="copy")
    start = feed.initialOffset()
    assert read_ids(feed, start, feed.latestOffset(start, ALL)) == [3], "nothing comes twice under one name"


def test_a_name_that_stands_inside_of_a_large_write_is_refused(uri: str) -> None:
    table = keyed(uri, 1, **FAST)
    reader = table.consumers.open("copy", start="earliest", until="now")
    many = range(200_000)
    put_ids(table, *many, max_entry_bytes=4096)
    reader = table.consumers.open("copy", until="now")
    assert 0 < next(iter(reader)).num_rows < len(many)
    reader.commit()
    with pytest.raises(mw.InvalidInputError, match="inside of a large write"):
        feed_of(table, consumer="copy").initialOffset()
    table.consumers.drop("copy")
    feed = feed_of(table, consumer="copy")
    start = feed.initialOffset()
    assert sorted(read_ids(feed, start, feed.latestOffset(start, ALL))) == list(many)


def test_without_failing_on_data_loss_all_that_can_be_read_is_read(uri: str) -> None:
    """Collection wanted more than it took: a consumer that came just then kept the rest."""
    table = keyed(uri, 1, **FAST)
    put_ids(table, 1)
    put_ids(table, 2)
    table.compact()
    table.gc(grace_seconds=0)
    begin = table.changes(start="earliest").cursor
    lost = {"shards": dict.fromkeys(begin.shards, 1), "table": begin.table}
    put_ids(table, 3)
    put_ids(table, 4)
    table.compact()
    put_ids(table, 5)
    collect_while(table, "gc.proposed", lambda: table.consumers.open("other", start=begin))
    left = [n for b in table.changes(start=begin, until="now") for n in b.column("id").to_pylist()]
    assert left[-3:] == [3, 4, 5]
    lenient = feed_of(table, failOnDataLoss="false")
    assert read_ids(lenient, lost, lenient.latestOffset(lost, ALL)) == left


@pytest.mark.parametrize("start", ["snapshot", "earliest"])
@pytest.mark.parametrize("point", ["gc.proposed", "gc.before_floor"])
def test_collection_never_passes_a_query_from_its_first_offset_on(uri: str, point: str, start: str) -> None:
    table = keyed(uri, 1, **FAST)
    put_ids(table, 1)
    put_ids(table, 2)
    table.compact()
    put_ids(table, 3)
    feed = feed_of(table, start, consumer="copy")
    began: list[Any] = []
    collect_while(table, point, lambda: began.append(feed.initialOffset()))
    put_ids(table, 4)
    table.compact()
    put_ids(table, 5)
    table.gc(grace_seconds=0)
    assert read_on(feed, began[0])[-2:] == [4, 5]


@pytest.mark.parametrize("point", ["gc.proposed", "gc.announced", "gc.before_floor"])
def test_query_that_becomes_a_consumer_during_collection_fails_at_once_or_is_never_passed(uri: str, point: str) -> None:
    table = keyed(uri, 1, **FAST)
    put_ids(table, 0)
    offset = feed_of(table).initialOffset()
    put_ids(table, 1)
    put_ids(table, 2)
    table.compact()
    put_ids(table, 3)
    feed = feed_of(table, consumer="copy")
    came: list[list[int]] = []

    def come() -> None:
        try:
            came.append(read_ids(feed, offset, feed.latestOffset(offset, ALL)))
        except mw.CollectedError as error:
            assert "failOnDataLoss=false" in str(error)  # noqa: PT017 - either is right
            assert table.consumers.list() == []

    collect_while(table, point, come)
    assert bool(came) == (point == "gc.proposed")
    table.gc(grace_seconds=0)
    put_ids(table, 4)
    lenient = feed_of(table, consumer="lenient", failOnDataLoss="false")
    end = lenient.latestOffset(offset, ALL)
    found = read_ids(lenient, offset, end)
    assert found[-1] == 4
    if came:
        assert read_on(feed, offset) == [*came[0], 4] == found == [0, 1, 2, 3, 4]
    lenient.commit(end)
    put_ids(table, 5)
    table.compact()
    table.gc(grace_seconds=0)
    assert read_on(lenient, end) == [5]


def test_a_query_with_an_older_checkpoint_is_refused_and_leaves_its_name_as_it_was(uri: str) -> None:
    table = keyed(uri, 1, **FAST)
    feed = feed_of(table, consumer="copy")
    old = feed.initialOffset()
    put_ids(table, 1)
    put_ids(table, 2)
    end = feed.latestOffset(old, ALL)
    feed.commit(end)
    table.compact()
    put_ids(table, 3)
    table.gc(grace_seconds=0)
    with pytest.raises(mw.CollectedError, match="new checkpoint"):
        feed_of(table, consumer="copy").latestOffset(old, ALL)
    again = feed_of(table, consumer="copy")
    assert again.initialOffset()["shards"] == end["shards"]
    assert read_ids(again, end, again.latestOffset(end, ALL)) == [3]


# The first micro-batch of a change feed: a restarted query reads the same rows again, from any starting position.

STARTS = ["snapshot", "latest", "earliest"]


def read_sorted(feed: ChangeFeed, start: Any, end: Any) -> list[int]:
    return sorted(read_ids(feed, start, end))


def first_batch(table: mw.Table, start: str, limit: ReadLimit = ALL, **options: str) -> tuple[list[int], Any]:
    """The rows and the end of the first micro-batch of a query. One row is written after the query began."""
    feed = feed_of(table, start, **options)
    begin = feed.initialOffset()
    put_ids(table, 100)
    end = feed.latestOffset(begin, limit)
    return read_sorted(feed, begin, end), end


@pytest.mark.parametrize("start", STARTS)
def test_restarted_query_reads_its_first_batch_again(uri: str, start: str) -> None:
    table = keyed(uri, 2, **FAST)
    put_ids(table, 1, 2)
    rows, end = first_batch(table, start)
    assert rows == {"snapshot": [1, 2], "latest": [100], "earliest": [1, 2, 100]}[start]
    put_ids(table, 3, 4)
    again = feed_of(table, start)
    assert read_sorted(again, again.initialOffset(), end) == rows
    following = again.latestOffset(end, ALL)
    assert read_sorted(again, end, following) == ([3, 4, 100] if start == "snapshot" else [3, 4])
    assert again.latestOffset(following, ALL) == following
    put_ids(table, 5)
    assert read_sorted(again, following, again.latestOffset(following, ALL)) == [5]


@pytest.mark.parametrize("start", STARTS)
def test_first_batch_within_limits_is_read_again(uri: str, start: str) -> None:
    table = keyed(uri, 1, **FAST)
    put_ids(table, 1)
    put_ids(table, 2)
    rows, end = first_batch(table, start, ReadMaxFiles(1), maxEntriesPerTrigger="1")
    put_ids(table, 3)
    again = feed_of(table, start)
    assert read_sorted(again, again.initialOffset(), end) == rows
    everything = rows + read_sorted(again, end, again.latestOffset(end, ALL))
    assert sorted(everything) == ([3, 100] if start == "latest" else [1, 2, 3, 100])


@pytest.mark.parametrize("start", STARTS)
def test_first_batch_without_rows_stays_empty(uri: str, start: str) -> None:
    table = keyed(uri, 1, **FAST)
    feed = feed_of(table, start)
    begin = feed.initialOffset()
    end = feed.latestOffset(begin, ALL)
    assert read_sorted(feed, begin, end) == []
    put_ids(table, 1)
    again = feed_of(table, start)
    assert read_sorted(again, again.initialOffset(), end) == []
    assert read_sorted(again, end, again.latestOffset(end, ALL)) == [1]


def test_first_batch_whose_entries_were_collected_is_refused(uri: str) -> None:
    table = keyed(uri, 1, **FAST)
    put_ids(table, 1)
    _, end = first_batch(table, "earliest")
    put_ids(table, 2)
    table.compact()
    table.gc(grace_seconds=0)
    again = feed_of(table, "earliest")
    with pytest.raises(CollectedError, match="start a new query with a new checkpoint"):
        read_sorted(again, again.initialOffset(), end)
    lenient = feed_of(table, "earliest", failOnDataLoss="false")
    assert 1 not in read_sorted(lenient, lenient.initialOffset(), end)


def test_first_batch_whose_snapshot_was_collected_is_refused(uri: str) -> None:
    table = keyed(uri, 1, **FAST)
    put_ids(table, 1)
    _, end = first_batch(table, "snapshot")
    for n in (2, 3):
        put_ids(table, n)
        table.compact()
    table.gc(grace_seconds=0)
    again = feed_of(table, "snapshot")
    with pytest.raises(CollectedError, match="start a new query with a new checkpoint"):
        read_sorted(again, again.initialOffset(), end)


@pytest.mark.parametrize("start", STARTS)
def test_first_batch_of_a_recreated_table_is_refused(uri: str, start: str) -> None:
    table = keyed(uri, 1, **FAST)
    put_ids(table, 1)
    _, end = first_batch(table, start)
    table.drop()
    other = keyed(uri, 1, **FAST)
    put_ids(other, 2)
    again = feed_of(other, start)
    with pytest.raises(TableReplacedError):
        read_sorted(again, again.initialOffset(), end)


def test_first_batch_of_a_moved_consumer_is_read_again(uri: str) -> None:
    table = keyed(uri, 1, **FAST)
    put_ids(table, 1)
    rows, end = first_batch(table, "earliest", consumer="copy")
    reader = table.consumers.open("copy", until="now")
    list(reader)
    reader.commit()
    again = feed_of(table, "earliest", consumer="copy")
    assert read_sorted(again, again.initialOffset(), end) == rows == [1, 100]


@pytest.mark.parametrize("start", ["snapshot", "earliest"])
def test_replayed_first_batch_writes_no_row_twice(spark: Any, tmp_path: Path, start: str) -> None:
    """The sink has committed the batch and the checkpoint has not: the restarted query must go on."""
    table, copy = keyed(f"{tmp_path}/from", 2), keyed(f"{tmp_path}/to", 2)
    replay_first_batch(spark, table, copy, tmp_path / "c", start)
    assert ids_of(copy) == list(range(30))
    assert sum(change.num_rows for change in copy.changes(start="earliest", until="now")) == 40
