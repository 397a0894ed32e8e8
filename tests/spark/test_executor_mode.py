"""`write_batch`, merges and maintenance jobs: executors append to their own shards."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
import lance_memwal.spark as ms
from lance_memwal.store import paths
from tests.kit.spark_once import forget_last_commit
from tests.kit.spark_tables import append_only, entries_with_rows, ids_of, keyed, rows_of


def test_a_batch_is_written_once(spark: Any, uri: str) -> None:
    table = append_only(uri, 4)
    frame = spark.range(0, 1000, 1, 3).selectExpr("id", "string(id) value")
    first = ms.write_batch(frame, uri, 3, app_id="job", operation="append")
    again = ms.write_batch(frame, uri, 3, app_id="job", operation="append")
    assert (first.rows, first.shards, first.skipped_shards) == (1000, 4, 0)
    assert (again.rows, again.skipped_shards) == (0, 4)
    assert ids_of(table) == list(range(1000))
    assert {info.epoch for info in table.shards()} == {1}  # the second call joined the epoch of the first
    with pytest.raises(mw.InvalidInputError, match="app_id"):
        ms.write_batch(frame, uri, 4, operation="append")


def test_a_table_whose_hash_spark_does_not_know_is_written_once_too(spark: Any, uri: str) -> None:
    table = mw.create_table(uri, pa.schema([("id", pa.uint32())]), sharding=mw.Bucket("id", 3))
    frame = spark.range(100)
    reports = [ms.write_batch(frame, uri, 1, app_id="job", operation="append") for _ in range(2)]
    assert [(report.rows, report.skipped_shards) for report in reports] == [(100, 0), (0, 3)]
    assert ids_of(table) == list(range(100))


def test_a_batch_that_is_too_large_for_messages_is_appended_by_tasks(spark: Any, uri: str) -> None:
    table = keyed(uri, 8)
    frame = spark.range(0, 4000, 1, 3).selectExpr("id", "repeat('x', 100) value", "int(id % 7) n")
    given = {"inlineBytes": "100k", "messageBytes": "300k"}  # the last task has fewer bytes than its share in messages
    reports = [ms.write_batch(frame, uri, 1, app_id="job", **given) for _ in range(2)]
    assert [(r.rows, r.shards, r.skipped_shards) for r in reports] == [(4000, 8, 0), (0, 8, 8)]
    assert ids_of(table) == list(range(4000))
    assert entries_with_rows(table) == 8
    assert table.location.store.list(paths.STAGE_DIR) == []


def test_foreach_batch_is_exactly_once_over_a_replayed_batch(spark: Any, uri: str, tmp_path: Path) -> None:
    table = append_only(uri, 2)
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    spark.range(200).selectExpr("id", "string(id) value").write.parquet(str(source))

    def run() -> None:
        query = (
            spark.readStream.schema("id long, value string")
            .parquet(str(source))
            .writeStream.foreachBatch(lambda frame, number: ms.write_batch(frame, uri, number, operation="append"))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)

    run()
    forget_last_commit(checkpoint)
    run()
    assert ids_of(table) == list(range(200))


def test_a_merge_updates_deletes_and_inserts(spark: Any, uri: str) -> None:
    table = keyed(uri, 2)
    with table.writer() as writer:
        writer.put({"id": [1, 2, 3], "value": ["a", "b", "c"], "n": [1, 2, 3]})
    source = spark.createDataFrame([(1, "A"), (2, "gone"), (3, "C"), (4, "D"), (5, "no")], "id long, value string")
    report = (
        ms.merge_into(spark, uri, source, on="id")
        .when_matched_delete("source.value = 'gone'")
        .when_matched_update("target.n < 3")
        .when_not_matched_insert("source.value != 'no'")
        .execute()
    )
    assert report.rows == 3
    assert rows_of(table) == {1: ("A", 1), 3: ("c", 3), 4: ("D", None)}
    with pytest.raises(mw.InvalidInputError, match="primary key"):
        ms.merge_into(spark, uri, source, on="value")


def test_flush_compact_and_gc_run_as_jobs(spark: Any, uri: str) -> None:
    table = keyed(uri, 3)
    ms.write_batch(spark.range(300), uri, 1, app_id="job", missing="null")
    flushed = ms.flush(spark, uri)
    assert ms.flush(spark, uri).shards == ()
    assert [shard.generations for shard in flushed.shards] == [(1,), (1,), (1,)]
    report = ms.compact(spark, uri)
    assert (report.rows_written, report.generations) == (300, 3)
    assert table.dataset.count_rows() == 300
    assert ms.gc(spark, uri, grace_seconds=0).count("sstable") > 0
    assert ids_of(table) == list(range(300))
    ms.write_batch(spark.range(300), uri, 1, app_id="job", missing="null")
    assert ids_of(table) == list(range(300))


def test_maintenance_runs_as_a_job(spark: Any, uri: str) -> None:
    table = keyed(uri, 2)
    table.dataset.create_scalar_index("n", "BTREE", name="by_n")
    ms.write_batch(spark.range(50), uri, 1, app_id="job", missing="null")
    report = ms.maintain(spark, uri, versions=datetime.timedelta(0), grace_seconds=0)
    assert (len(report.flushed.shards), report.flushed.skipped) == (
        2,
        {},
    )  # a sink may still be at it: nobody is fenced
    assert (report.compaction.generations, report.compaction.rows_written) == (2, 50)
    assert report.indexes == ("by_n",)
    assert report.versions_removed > 0
    assert report.garbage.count("sstable") > 0
    assert report.postponed == {}
    assert table.stats().waiting_for_indexes == {}
    assert ids_of(table) == list(range(50))
    with pytest.raises(mw.InvalidInputError, match="indexes"):
        ms.maintain(spark, uri, indexes="never")  # type: ignore[arg-type]
