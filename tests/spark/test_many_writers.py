"""Two streams, a backfill, a merge and compaction on one table, at once: nobody fails, nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lance_memwal.spark as ms
from tests.harness.profile import scaled
from tests.kit.compacting import compacting
from tests.kit.spark_tables import keyed, rows_of

BATCHES = scaled(ci=2, prove=20)


def _input(spark: Any, place: Path, first: int) -> str:
    """Files of ten ids each, one per micro-batch."""
    for number in range(BATCHES):
        start = first + 10 * number
        frame = spark.range(start, start + 10, 1, 1).selectExpr("id", "'stream' value", "int(id) n")
        frame.write.mode("append").parquet(str(place))
    return str(place)


def _stream(spark: Any, source: str) -> Any:
    return spark.readStream.schema("id long, value string, n int").option("maxFilesPerTrigger", 1).parquet(source)


@pytest.mark.scaled
def test_streams_a_backfill_a_merge_and_compaction_beside_each_other(spark: Any, uri: str, tmp_path: Path) -> None:
    table = keyed(uri, 2)
    first, second = _input(spark, tmp_path / "a", 0), _input(spark, tmp_path / "b", 1000)
    with compacting(table):
        queries = [
            _stream(spark, first).writeStream.format("memwal").option("checkpointLocation", str(tmp_path / "ca")),
            _stream(spark, second)
            .writeStream.foreachBatch(lambda frame, number: ms.write_batch(frame, uri, number))
            .option("checkpointLocation", str(tmp_path / "cb")),
        ]
        running = [queries[0].trigger(availableNow=True).start(uri), queries[1].trigger(availableNow=True).start()]
        backfill = spark.range(2000, 2050).selectExpr("id", "'backfill' value", "int(id) n")
        backfill.write.format("memwal").mode("append").save(uri)
        source = spark.range(2040, 2060).selectExpr("id", "'merge' value", "int(id) n")
        ms.merge_into(spark, uri, source, on="id").when_matched_update().when_not_matched_insert().execute()
        assert all(query.awaitTermination(300) for query in running)
    assert [query.exception() for query in running] == [None, None]
    streamed = [*range(10 * BATCHES), *range(1000, 1000 + 10 * BATCHES)]
    expected = {number: ("stream", number) for number in streamed}
    expected |= {number: ("backfill", number) for number in range(2000, 2040)}
    expected |= {number: ("merge", number) for number in range(2040, 2060)}
    assert rows_of(table) == expected
    assert max(info.epoch for info in table.shards()) <= 4, (
        "each of the four claims at most the shard that nobody has yet"
    )
    assert table.verify().problems == []
