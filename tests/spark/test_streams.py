"""The streaming sink and executor mode: 0 lost, 0 duplicated, whatever fails in between; and what a micro-batch costs."""

import datetime
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from faulty_source import FaultySource
from pyspark.sql import types as st

import lance_memwal as mw
import lance_memwal.spark as ms
from lance_memwal.spark.data_source import MemWalSource
from lance_memwal.store import paths
from tests.harness.profile import scaled
from tests.kit.maintained import wait_until
from tests.kit.spark import (
    append_only,
    entries_with_rows,
    finish,
    forget_last_commit,
    ids_of,
    judge,
    keyed,
    make_input,
    rows_of,
    run_until_done,
)
from tests.kit.tables import compacting


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
    large, small = spark.range(0, 3990, 1, 2), spark.range(3990, 4000, 1, 1)  # 6 MB per task, and one that fits
    frame = large.union(small).selectExpr("id", "repeat('x', 3000) value", "int(id % 7) n")
    reports = [ms.write_batch(frame, uri, 1, app_id="job") for _ in range(2)]
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


BATCHES = scaled(ci=3, prove=30)


@pytest.fixture
def faulty(spark: Any) -> str:
    spark.dataSource.register(FaultySource)
    return "memwal_faulty"


def run(spark: Any, fmt: str, uri: str, tmp_path: Path, mode: str, **options: Any) -> tuple[list[int], int]:
    expected = make_input(tmp_path / "in", BATCHES)
    (tmp_path / "faults").mkdir()
    faults = {"fmt": fmt, "faultMode": mode, "faultDir": str(tmp_path / "faults")}
    failures = run_until_done(spark, tmp_path / "in", uri, tmp_path / "checkpoint", **faults, **options)
    return expected, failures


@pytest.mark.scaled
def test_failures_after_a_store_put_lose_and_repeat_nothing(spark: Any, faulty: str, uri: str, tmp_path: Path) -> None:
    table = append_only(uri, 4)
    expected, failures = run(spark, faulty, uri, tmp_path, "fail")
    assert failures >= 2
    assert judge(table, expected) == (0, 0)


@pytest.mark.scaled
def test_killed_python_workers_lose_and_repeat_nothing(spark: Any, faulty: str, uri: str, tmp_path: Path) -> None:
    table = append_only(uri, 4, writer_defaults={"max_memtable_size": 4000})
    expected, failures = run(spark, faulty, uri, tmp_path, "kill,task")
    assert failures >= 2
    assert len(list((tmp_path / "faults").glob("task-*"))) > BATCHES
    assert judge(table, expected) == (0, 0)


@pytest.mark.scaled
def test_without_the_transaction_check_rows_are_doubled(spark: Any, faulty: str, uri: str, tmp_path: Path) -> None:
    table = append_only(uri, 4)
    expected, _ = run(spark, faulty, uri, tmp_path, "fail,unchecked")
    lost, duplicated = judge(table, expected)
    assert lost == 0
    assert duplicated > 0


@pytest.mark.scaled
def test_a_replayed_batch_whose_commit_was_forgotten_adds_nothing(spark: Any, uri: str, tmp_path: Path) -> None:
    table = append_only(uri, 4)
    expected = make_input(tmp_path / "in", 3)
    for _ in range(2):
        run_until_done(spark, tmp_path / "in", uri, tmp_path / "checkpoint")
        forget_last_commit(tmp_path / "checkpoint")
    run_until_done(spark, tmp_path / "in", uri, tmp_path / "checkpoint")
    assert judge(table, expected) == (0, 0)
    versions = {version for seen in table.transactions().values() for version in seen.values()}
    assert versions == {2}


def test_query_waits_for_the_writer_of_a_shard_and_continues_at_its_close(spark: Any, uri: str, tmp_path: Path) -> None:
    table = append_only(uri, 1)
    source = tmp_path / "in"
    make_input(source, 1)
    stream = spark.readStream.schema("id long, value string").json(str(source))
    query = stream.writeStream.format("memwal").option("checkpointLocation", str(tmp_path / "c")).start(uri)
    try:
        query.processAllAvailable()
        before = ids_of(table)
        with table.shard_writer(mw.shard_id_for(mw.Bucket("id", 1), 0)) as writer:
            writer.put({"id": [-1], "value": ["mine"]}, missing="null")
            (source / "late.json").write_text('{"id": 1000, "value": "late"}')
            assert wait_until(lambda: query.status["isDataAvailable"])
            writer.put({"id": [-2], "value": ["mine, too"]}, missing="null")
            assert ids_of(table) == [-2, -1, *before]
        query.processAllAvailable()
        assert ids_of(table) == [-2, -1, *before, 1000]
    finally:
        query.stop()


def test_changes_and_deletes_stream_into_a_keyed_table(spark: Any, uri: str, tmp_path: Path) -> None:
    table = keyed(uri, 2)
    source = tmp_path / "in"
    source.mkdir()
    (source / "0.json").write_text("\n".join(f'{{"id": {i}, "_op": "u", "n": 0}}' for i in range(10)))
    (source / "1.json").write_text('{"id": 3, "_op": "d"}\n{"id": 4, "_op": "u", "n": 9}')
    os.utime(source / "0.json", (1, 1))  # Spark takes files in the order of their age
    stream = spark.readStream.schema("id long, n int, _op string").option("maxFilesPerTrigger", 1).json(str(source))
    writer = stream.writeStream.format("memwal").options(checkpointLocation=str(tmp_path / "c"), missing="null")
    assert writer.trigger(availableNow=True).start(uri).awaitTermination(300)
    found = {row["id"]: row["n"] for row in table.scan().to_table().to_pylist()}
    assert found == {i: 9 if i == 4 else 0 for i in range(10) if i != 3}


COLUMNS = "id long, value string"


def add_file(spark: Any, source: Path, first: int, last: int) -> None:
    spark.range(first, last, 1, 1).selectExpr("id", "string(id) value").write.mode("append").parquet(str(source))


def stream_of(spark: Any, source: Path) -> Any:
    return spark.readStream.schema(COLUMNS).parquet(str(source)).writeStream


def each_batch(spark: Any, source: Path, checkpoint: Path, write: Any) -> None:
    writer = stream_of(spark, source).foreachBatch(write).option("checkpointLocation", str(checkpoint))
    finish(lambda: writer.trigger(availableNow=True).start())


def test_calls_on_one_table_in_one_micro_batch_need_names_of_their_own(spark: Any, uri: str, tmp_path: Path) -> None:
    table, source, checkpoint = append_only(uri, 2), tmp_path / "in", tmp_path / "checkpoint"
    add_file(spark, source, 0, 20)
    fails = iter([True, False])

    def write(frame: Any, number: int, *apps: str | None) -> None:
        for rest, app in enumerate(apps):
            ms.write_batch(frame.where(f"id % 2 = {rest}"), uri, number, app_id=app, operation="append")
        if next(fails, False):
            raise RuntimeError("after both calls")

    with pytest.raises(Exception, match="give each call its own app_id"):
        each_batch(spark, source, checkpoint, lambda frame, number: write(frame, number, None, None))
    assert ids_of(table) == list(range(0, 20, 2)), "the rows of the first call"
    with pytest.raises(Exception, match="after both calls"):
        each_batch(spark, source, checkpoint, lambda frame, number: write(frame, number, None, "odd"))
    assert ids_of(table) == list(range(20))
    for _ in range(2):
        each_batch(spark, source, checkpoint, lambda frame, number: write(frame, number, None, "odd"))
        forget_last_commit(checkpoint)
    assert ids_of(table) == list(range(20)), "the same calls again are repeats"


def test_an_input_error_in_a_task_fails_at_once(spark: Any, uri: str, tmp_path: Path) -> None:
    keyed(uri, 1)
    attempts = tmp_path / "attempts"
    attempts.mkdir()

    def counted(batches: Any) -> Any:
        from lance_memwal.clock import SYSTEM_CLOCK

        (attempts / SYSTEM_CLOCK.uuid4()).touch()
        yield from batches

    rows = spark.createDataFrame([(1, "a", 1), (None, "b", 2)], "id long, value string, n int").coalesce(1)
    frame = rows.mapInArrow(counted, rows.schema)
    ways = [
        lambda: frame.write.format("memwal").mode("append").save(uri),
        lambda: ms.write_batch(frame, uri, 1, app_id="job"),
    ]
    for count, write in enumerate(ways, 1):
        with pytest.raises(Exception, match="'id'") as caught:
            write()
        assert len(list(attempts.iterdir())) == count, "no attempt was repeated"
    assert isinstance(caught.value, mw.InvalidInputError)


# Requests of a micro-batch on S3, counted by the service: the driver's part of a stream, without a JVM.

FRAME = st.StructType([st.StructField("id", st.LongType(), False), st.StructField("n", st.IntegerType())])
COUNTED = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int32())])
Requests = Callable[[str], Counter[tuple[str, str]]]


class Stream:
    """Micro-batches of 200 rows, as Spark calls for them: planned anew each time, in one process."""

    def __init__(self, uri: str, storage: dict[str, str], **options: str) -> None:
        self._options = {"path": uri, **options, **{f"storage.{name}": value for name, value in storage.items()}}
        self._number = 0

    def write(self) -> None:
        sink = MemWalSource(self._options).streamWriter(FRAME, overwrite=False)
        ids = pa.array(range(self._number * 200, self._number * 200 + 200), pa.int64())
        rows = pa.record_batch({"id": ids, "n": ids.cast(pa.int32())})
        messages = [sink.write(iter([half])) for half in (rows.slice(0, 100), rows.slice(100))]
        sink.commit([replace(message, query_id="query") for message in messages], self._number)
        self._number += 1


def by_kind(after: Counter[tuple[str, str]], before: Counter[tuple[str, str]]) -> Counter[str]:
    """Requests by method and the directory of the table that they went to."""
    found: Counter[str] = Counter()
    for (method, below), number in (after - before).items():
        parts = below.split("/")
        found[f"{method} {'/'.join(part for part in parts[:-1] if '-' not in part) or parts[-1]}"] += number
    return found


@pytest.mark.parametrize("shards", [2, 5])
def test_micro_batch_makes_two_requests_per_shard_and_four_for_the_table(
    s3_table: tuple[str, dict[str, str]], s3_requests: Requests, shards: int
) -> None:
    uri, storage = s3_table
    table = mw.create_table(uri, COUNTED, primary_key="id", sharding=mw.Bucket("id", shards), storage_options=storage)
    stream = Stream(uri, storage, maintenance="off")
    for _ in range(2):
        stream.write()
    before, batches = s3_requests(uri), 3
    for _ in range(batches):
        stream.write()
    assert by_kind(s3_requests(uri), before) == {
        "PUT _mem_wal/wal": shards * batches,
        "LIST _mem_wal/manifest": shards * batches,  # the manifest check of each entry
        "LIST _versions": 2 * batches,  # the table is checked when a batch is planned, and when it is committed
        "HEAD _versions": 2 * batches,
    }
    assert table.count_rows() == 1000


# Two streams, a backfill, a merge and compaction on one table, at once: nobody fails, nothing is lost or doubled.

MANY_WRITERS_BATCHES = scaled(ci=2, prove=20)


def _input(spark: Any, place: Path, first: int) -> str:
    """Files of ten ids each, one per micro-batch."""
    for number in range(MANY_WRITERS_BATCHES):
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
    streamed = [*range(10 * MANY_WRITERS_BATCHES), *range(1000, 1000 + 10 * MANY_WRITERS_BATCHES)]
    expected = {number: ("stream", number) for number in streamed}
    expected |= {number: ("backfill", number) for number in range(2000, 2040)}
    expected |= {number: ("merge", number) for number in range(2040, 2060)}
    assert rows_of(table) == expected
    assert max(info.epoch for info in table.shards()) <= 4, (
        "each of the four claims at most the shard that nobody has yet"
    )
    assert table.verify().problems == []
