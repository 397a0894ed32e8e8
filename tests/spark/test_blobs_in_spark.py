"""Blob columns in Spark: binary goes in, what Lance shows comes out; the feed and a compaction by tasks have them, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyspark.sql.types as st
import pytest

import lance_memwal as mw
from lance_memwal.spark.feed import ChangeFeed, feed_schema
from lance_memwal.spark.options import Options
from tests.kit.blobs import blob_table, check_blob, check_blobs
from tests.kit.spark_compaction import Tasks, compact_by_tasks

FRAME = st.StructType(
    [
        st.StructField("id", st.LongType(), False),
        st.StructField("image", st.BinaryType()),
        st.StructField("n", st.StringType()),
    ]
)
FIRST: dict[int, bytes | None] = {1: b"one", 2: b"two" * 1000}
THEN: dict[int, bytes | None] = {1: b"one", 2: b"2" * 3000, 3: None, 4: b""}


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_binary_goes_in_and_what_lance_shows_comes_out(spark: Any, tmp_path: Path, version: str) -> None:
    table = blob_table(tmp_path, FIRST, version)
    written = [(key, None if THEN[key] is None else bytearray(THEN[key] or b""), str(key)) for key in (2, 3, 4)]
    frame = spark.createDataFrame(written, FRAME)
    frame.write.format("memwal").mode("append").option("operation", "upsert").save(table.uri)
    check_blobs(table, THEN)
    for _ in ("log", "SSTable", "base table"):
        rows = spark.read.format("memwal").load(table.uri).collect()
        sizes = {row["id"]: None if row["image"] is None else int(row["image"]["size"]) for row in rows}
        assert sizes == {1: 3, 2: 3000, 3: None, 4: 0}
        some = spark.read.format("memwal").option("filter", "image is null").load(table.uri).select("id").collect()
        assert [row["id"] for row in some] == [3]
        table.flush(force=True)
        compact_by_tasks(table.uri, Tasks(2))  # every task twice, as Spark may run it
        check_blobs(table, THEN)


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_the_feed_shows_the_sizes_of_blobs(tmp_path: Path, version: str) -> None:
    table = blob_table(tmp_path, FIRST, version)
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put([{"id": 2, "image": b"22", "n": "2"}, {"id": 3, "image": None, "n": "3"}])
        writer.delete([1])
    feed = ChangeFeed(
        Options.parse({"path": table.uri, "changeFeed": "true"}), feed_schema(table.base.columns.shown.columns)
    )
    start = {"shards": dict.fromkeys(feed.reportLatestOffset()["shards"], 1)}
    parts = feed.partitions(start, feed.reportLatestOffset())
    rows = [row for part in parts for batch in feed.read(part) for row in batch.to_pylist()]
    found = [(row["_op"], row["id"], row["image"] and int(row["image"]["size"])) for row in rows]
    assert found == [("u", 2, 2), ("u", 3, None), ("d", 1, None)]


def test_a_large_blob_goes_through_a_compaction_by_tasks(tmp_path: Path) -> None:
    large = bytes(range(256)) * (10 << 12)  # more than one part
    table = blob_table(tmp_path, FIRST)
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put([{"id": 5, "image": large, "n": "5"}, {"id": 6, "image": b"small", "n": "6"}])
    assert compact_by_tasks(table.uri).rows_written == 2
    check_blob(table, 5, large)
    assert mw.open_table(table.uri).verify().ok
