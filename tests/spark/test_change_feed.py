"""The change feed: every entry once, in order per shard, within limits, and never silently incomplete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

import lance_memwal as mw
from lance_memwal.errors import CollectedError
from lance_memwal.spark.feed import ChangeFeed, feed_schema
from lance_memwal.spark.options import Options
from tests.kit.spark_once import finish
from tests.kit.spark_tables import keyed


def feed_of(table: mw.Table, **options: str) -> ChangeFeed:
    parsed = Options.parse({"path": table.uri, "changeFeed": "true", "startingPosition": "earliest", **options})
    return ChangeFeed(parsed, feed_schema(table.schema, parsed.columns))


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
    assert feed_of(table, consumer="copy").initialOffset() == end, "a new query goes on there"
    assert [info.lag_entries for info in table.consumers()] == [0]
    assert table.gc(grace_seconds=0).count("entry") > 0
    other = feed_of(table, consumer="copy")
    other.latestOffset(end, ReadAllAvailable())
    with pytest.raises(mw.FencedError):
        feed.commit(end)


def test_without_the_option_a_stream_says_what_is_missing(spark: Any, uri: str, tmp_path: Path) -> None:
    keyed(uri)
    reader = spark.readStream.format("memwal").option("changeFeed", "false").load(uri)
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
        assert feed.latestOffset(feed.initialOffset(), ReadAllAvailable()) == offset


def test_a_shard_that_appears_later_is_read_from_its_first_entry(uri: str) -> None:
    table = mw.create_table(uri, keyed_schema(), primary_key="id", sharding=mw.Identity("id"))
    feed = feed_of(table, startingPosition="latest")
    with table.writer() as writer:
        writer.put({"id": [1]}, missing="null")
        start = feed.initialOffset()
        writer.put({"id": [1]}, missing="null")
        writer.put({"id": [2]}, missing="null")
    end = feed.latestOffset(start, ReadAllAvailable())
    assert sorted(row["id"] for row in read(feed, start, end)) == [1, 2]


def keyed_schema() -> Any:
    from tests.kit.spark_tables import KEYED

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
