"""Where a query of the change feed stands: its consumer, and what collection leaves of the log."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import lance_memwal as mw
from lance_memwal.spark.feed import ChangeFeed, feed_schema
from lance_memwal.spark.options import Options
from tests.kit.feeds import collect_while
from tests.kit.spark_tables import keyed

ALL = ReadAllAvailable()
FAST: dict[str, Any] = {"writer_defaults": {"fsync": False}}


def feed_of(table: mw.Table, **options: str) -> ChangeFeed:
    parsed = Options.parse({"path": table.uri, "changeFeed": "true", "startingPosition": "earliest", **options})
    return ChangeFeed(parsed, feed_schema(table.schema, parsed.columns))


def read(feed: ChangeFeed, start: Any, end: Any) -> list[int]:
    parts = feed.partitions(start, end)
    return [n for part in parts for batch in feed.read(part) for n in batch.column("id").to_pylist()]


def read_on(feed: ChangeFeed, start: Any) -> list[int]:
    """All that there is from `start` on; a snapshot is a micro-batch of its own."""
    end = feed.latestOffset(start, ALL)
    found = read(feed, start, end)
    return found + read(feed, end, feed.latestOffset(end, ALL))


def put(table: mw.Table, *ids: int, **options: Any) -> None:
    with table.writer(**options) as writer:
        writer.put({"id": list(ids)}, missing="null")


def test_a_name_that_stands_inside_of_a_snapshot_is_refused_and_goes_on_after_it(uri: str) -> None:
    table = keyed(uri, 1, **FAST)
    put(table, 1)
    table.compact()
    put(table, 2)
    reader = table.consumer("copy", until="now")
    batches = iter(reader)
    first = next(batches).column("id").to_pylist()
    reader.commit()
    with pytest.raises(mw.InvalidInputError, match=r"inside of its first snapshot.*Table\.consumer"):
        feed_of(table, consumer="copy").initialOffset()
    rest = [n for batch in batches for n in batch.column("id").to_pylist()]
    reader.commit()
    assert sorted(first + rest) == [1, 2]
    put(table, 3)
    feed = feed_of(table, consumer="copy")
    start = feed.initialOffset()
    assert read(feed, start, feed.latestOffset(start, ALL)) == [3], "nothing comes twice under one name"


def test_a_name_that_stands_inside_of_a_large_write_is_refused(uri: str) -> None:
    table = keyed(uri, 1, **FAST)
    reader = table.consumer("copy", start="earliest", until="now")
    many = range(200_000)
    put(table, *many, max_entry_bytes=4096)
    reader = table.consumer("copy", until="now")
    assert 0 < next(iter(reader)).num_rows < len(many)
    reader.commit()
    with pytest.raises(mw.InvalidInputError, match="inside of a large write"):
        feed_of(table, consumer="copy").initialOffset()
    table.drop_consumer("copy")
    feed = feed_of(table, consumer="copy")
    start = feed.initialOffset()
    assert sorted(read(feed, start, feed.latestOffset(start, ALL))) == list(many)


def test_without_failing_on_data_loss_all_that_can_be_read_is_read(uri: str) -> None:
    """Collection wanted more than it took: a consumer that came just then kept the rest."""
    table = keyed(uri, 1, **FAST)
    put(table, 1)
    put(table, 2)
    table.compact()
    table.gc(grace_seconds=0)
    begin = table.changes(start="earliest").cursor
    lost = {"shards": dict.fromkeys(begin.shards, 1), "table": begin.table}
    put(table, 3)
    put(table, 4)
    table.compact()
    put(table, 5)
    collect_while(table, "gc.proposed", lambda: table.consumer("other", start=begin))
    left = [n for b in table.changes(start=begin, until="now") for n in b.column("id").to_pylist()]
    assert left[-3:] == [3, 4, 5]
    lenient = feed_of(table, failOnDataLoss="false")
    assert read(lenient, lost, lenient.latestOffset(lost, ALL)) == left


@pytest.mark.parametrize("start", ["snapshot", "earliest"])
@pytest.mark.parametrize("point", ["gc.proposed", "gc.before_floor"])
def test_collection_never_passes_a_query_from_its_first_offset_on(uri: str, point: str, start: str) -> None:
    table = keyed(uri, 1, **FAST)
    put(table, 1)
    put(table, 2)
    table.compact()
    put(table, 3)
    feed = feed_of(table, consumer="copy", startingPosition=start)
    began: list[Any] = []
    collect_while(table, point, lambda: began.append(feed.initialOffset()))
    put(table, 4)
    table.compact()
    put(table, 5)
    table.gc(grace_seconds=0)
    assert read_on(feed, began[0])[-2:] == [4, 5]


@pytest.mark.parametrize("point", ["gc.proposed", "gc.announced", "gc.before_floor"])
def test_a_query_that_becomes_a_consumer_while_collection_runs_is_told_at_once_or_never_passed(
    uri: str, point: str
) -> None:
    table = keyed(uri, 1, **FAST)
    put(table, 0)
    offset = feed_of(table).initialOffset()
    put(table, 1)
    put(table, 2)
    table.compact()
    put(table, 3)
    feed = feed_of(table, consumer="copy")
    came: list[list[int]] = []

    def come() -> None:
        try:
            came.append(read(feed, offset, feed.latestOffset(offset, ALL)))
        except mw.CollectedError as error:
            assert "failOnDataLoss=false" in str(error)  # noqa: PT017 - either is right
            assert table.consumers() == []

    collect_while(table, point, come)
    assert bool(came) == (point == "gc.proposed")
    table.gc(grace_seconds=0)
    put(table, 4)
    lenient = feed_of(table, consumer="lenient", failOnDataLoss="false")
    end = lenient.latestOffset(offset, ALL)
    found = read(lenient, offset, end)
    assert found[-1] == 4
    if came:
        assert read_on(feed, offset) == [*came[0], 4] == found == [0, 1, 2, 3, 4]
    lenient.commit(end)
    put(table, 5)
    table.compact()
    table.gc(grace_seconds=0)
    assert read_on(lenient, end) == [5]


def test_a_query_with_an_older_checkpoint_is_refused_and_leaves_its_name_as_it_was(uri: str) -> None:
    table = keyed(uri, 1, **FAST)
    feed = feed_of(table, consumer="copy")
    old = feed.initialOffset()
    put(table, 1)
    put(table, 2)
    end = feed.latestOffset(old, ALL)
    feed.commit(end)
    table.compact()
    put(table, 3)
    table.gc(grace_seconds=0)
    with pytest.raises(mw.CollectedError, match="new checkpoint"):
        feed_of(table, consumer="copy").latestOffset(old, ALL)
    again = feed_of(table, consumer="copy")
    assert again.initialOffset() == end
    assert read(again, end, again.latestOffset(end, ALL)) == [3]
