"""Sink, executor mode, jobs and source on an object store, with storage options."""

from __future__ import annotations

from typing import Any

import lance

import lance_memwal as mw
import lance_memwal.spark as ms
from tests.kit.spark import KEYED


def test_sink_jobs_and_source_work_on_s3(spark: Any, s3_table: tuple[str, dict[str, str]]) -> None:
    uri, options = s3_table
    given = {f"storage.{name}": value for name, value in options.items()}
    mw.create_table(uri, KEYED, primary_key="id", sharding=mw.Bucket("id", 2), storage_options=options)

    def save(frame: Any, **more: Any) -> None:
        frame.write.format("memwal").mode("append").options(**given, missing="null", **more).save(uri)

    save(spark.range(60).selectExpr("id", "'old' value"))
    ms.flush(spark, uri, force=True, storage_options=options)
    first = ms.compact(spark, uri, mode="distributed", storage_options=options)
    assert (first.rows_written, first.commits) == (60, 1)
    save(spark.range(50, 70).selectExpr("id", "'new' value"))
    save(spark.range(10), operation="delete")
    assert (
        ms.write_batch(spark.range(100, 103), uri, 1, app_id="job", missing="null", storage_options=options).rows == 3
    )
    expected = {i: "new" if 50 <= i < 70 else "old" for i in range(10, 70)} | dict.fromkeys(range(100, 103))
    frame = spark.read.format("memwal").options(**given).load(uri)
    assert {row["id"]: row["value"] for row in frame.collect()} == expected
    ms.flush(spark, uri, force=True, storage_options=options)
    second = ms.compact(spark, uri, mode="distributed", storage_options=options)
    assert (second.rows_written, second.rows_deleted, second.commits) == (23, 10, 1)
    rows = lance.dataset(uri, storage_options=options).to_table().to_pylist()
    assert len(rows) == len(expected)
    assert {row["id"]: row["value"] for row in rows} == expected
    assert ms.gc(spark, uri, grace_seconds=0, storage_options=options).refused == {}
    assert mw.open_table(uri, storage_options=options).verify().problems == []
