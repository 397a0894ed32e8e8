"""The streaming sink on an append-only table: 0 lost, 0 duplicated, whatever fails in between."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from faulty_source import FaultySource

import lance_memwal as mw
from tests.harness.profile import scaled
from tests.kit.maintained import wait_until
from tests.kit.spark_once import forget_last_commit, judge, make_input, run_until_done
from tests.kit.spark_tables import append_only, ids_of, keyed

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
def test_failures_after_the_store_put_lose_and_repeat_nothing(
    spark: Any, faulty: str, uri: str, tmp_path: Path
) -> None:
    table = append_only(uri, 4)
    expected, failures = run(spark, faulty, uri, tmp_path, "fail")
    assert failures >= 2
    assert judge(table, expected) == (0, 0)


@pytest.mark.scaled
def test_killed_python_workers_lose_and_repeat_nothing(spark: Any, faulty: str, uri: str, tmp_path: Path) -> None:
    table = append_only(uri, 4)
    expected, failures = run(spark, faulty, uri, tmp_path, "kill,task", flushBytes=4000)
    assert failures >= 2
    assert len(list((tmp_path / "faults").glob("task-*"))) > BATCHES
    assert judge(table, expected) == (0, 0)


@pytest.mark.scaled
def test_with_the_transaction_check_switched_off_rows_are_there_twice(
    spark: Any, faulty: str, uri: str, tmp_path: Path
) -> None:
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


def test_a_query_waits_for_a_writer_that_keeps_the_shard_and_goes_on_when_it_closes(
    spark: Any, uri: str, tmp_path: Path
) -> None:
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
