"""The progress listener: what a query read, wrote, and left out because the table had it already."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

import lance_memwal.spark as ms
from lance_memwal.spark import batch_reports
from lance_memwal.spark.batch_reports import BatchStats
from lance_memwal.write.once import AppendResult
from tests.kit.spark_once import ROWS_PER_FILE, finish, forget_last_commit, judge, make_input
from tests.kit.spark_tables import append_only

RUN = "0e2f3c64-55a1-4d0e-9c44-0f6b2f9d1c10"


@pytest.fixture
def own_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / f"memwal-progress-{os.getuid()}"


def watched(spark: Any, start: Any) -> ms.QueryStats:
    """What a listener has counted when the query has ended."""
    listener = ms.ProgressListener()
    spark.streams.addListener(listener)
    try:
        query = finish(start)
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)
    return listener.queries[str(query.runId)]


@pytest.mark.parametrize("way", ["sink", "executors"])
def test_a_replayed_batch_is_counted_as_skipped(spark: Any, uri: str, tmp_path: Path, way: str) -> None:
    table = append_only(uri, 2)
    expected = make_input(tmp_path / "in", 3)

    def start() -> Any:
        stream = spark.readStream.schema("id long, value string").option("maxFilesPerTrigger", 1)
        writer = stream.json(str(tmp_path / "in")).writeStream
        if way == "sink":
            writer = writer.format("memwal").option("path", uri)
        else:
            writer = writer.foreachBatch(lambda df, n: ms.write_batch(df, uri, n, operation="append"))
        return writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

    first = watched(spark, start)
    assert (first.batches, first.rows, first.rows_written) == (3, 3 * ROWS_PER_FILE, 3 * ROWS_PER_FILE)
    assert (first.skipped_batches, first.skipped_shards) == (0, 0)
    assert first.size_bytes > 0
    forget_last_commit(tmp_path / "c")
    second = watched(spark, start)
    assert (second.batches, second.rows, second.rows_written, second.size_bytes) == (1, ROWS_PER_FILE, 0, 0)
    assert (second.skipped_batches, second.skipped_shards) == (1, 2)
    assert judge(table, expected) == (0, 0)


def test_a_half_written_batch_counts_its_shards_only(own_directory: Path) -> None:
    results = [AppendResult("a", 5, skipped=True), AppendResult("b", 7)]
    stats = BatchStats.of(results, [10, 20])
    assert stats == BatchStats(rows=7, size_bytes=20, shards=2, skipped_shards=1)
    assert not stats.is_skipped
    batch_reports.announce(RUN)
    batch_reports.report(RUN, 4, stats)
    batch_reports.report(RUN, 4, stats)  # a second table of the same foreachBatch
    assert batch_reports.collect(RUN, 4) == stats + stats
    assert batch_reports.collect(RUN, 4) is None
    batch_reports.retire(RUN)
    assert list(own_directory.iterdir()) == []


def test_without_a_listener_nothing_is_left_anywhere(own_directory: Path) -> None:
    batch_reports.report(RUN, 1, BatchStats(1, 1, 1, 0))
    batch_reports.report(None, 1, BatchStats(1, 1, 1, 0))
    batch_reports.report("../elsewhere", 1, BatchStats(1, 1, 1, 0))
    assert not own_directory.exists()


@pytest.mark.parametrize("content", ["", "[]", '{"rows": 1, "other": 2}'])
def test_a_report_that_cannot_be_read_is_logged(
    own_directory: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    batch_reports.announce(RUN)
    (own_directory / RUN / "3").write_text(content)
    with caplog.at_level(logging.WARNING):
        assert batch_reports.collect(RUN, 3) is None
    assert "batch 3 cannot be read" in caplog.text


def test_a_directory_that_is_not_ours_is_not_used(own_directory: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs" / RUN).mkdir(parents=True)
    (tmp_path / "theirs" / RUN / "1").write_text(json.dumps({"rows": 9}))
    own_directory.symlink_to(tmp_path / "theirs")
    batch_reports.announce(RUN)
    batch_reports.report(RUN, 2, BatchStats(1, 1, 1, 0))
    assert batch_reports.collect(RUN, 1) is None
    assert not (tmp_path / "theirs" / RUN / "2").exists()
