"""Each call of a micro-batch counts once, a batch that was planned anew is noticed, and an input error fails at once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import lance_memwal as mw
import lance_memwal.spark as ms
from tests.kit.spark_once import finish, forget_last_commit
from tests.kit.spark_tables import append_only, ids_of, keyed

COLUMNS = "id long, value string"


def add_file(spark: Any, source: Path, first: int, last: int) -> None:
    spark.range(first, last, 1, 1).selectExpr("id", "string(id) value").write.mode("append").parquet(str(source))


def stream_of(spark: Any, source: Path) -> Any:
    return spark.readStream.schema(COLUMNS).parquet(str(source)).writeStream


def each_batch(spark: Any, source: Path, checkpoint: Path, write: Any) -> None:
    writer = stream_of(spark, source).foreachBatch(write).option("checkpointLocation", str(checkpoint))
    finish(lambda: writer.trigger(availableNow=True).start())


def into_sink(spark: Any, source: Path, checkpoint: Path, uri: str, **options: Any) -> None:
    writer = stream_of(spark, source).format("memwal").options(checkpointLocation=str(checkpoint), **options)
    finish(lambda: writer.trigger(availableNow=True).start(uri))


def test_two_calls_on_one_table_in_one_micro_batch_both_count_once(spark: Any, uri: str, tmp_path: Path) -> None:
    table, source, checkpoint = append_only(uri, 2), tmp_path / "in", tmp_path / "checkpoint"
    add_file(spark, source, 0, 20)
    fails = iter([True, False])

    def write(frame: Any, number: int) -> None:
        ms.write_batch(frame.where("id < 10"), uri, number, operation="append")
        ms.write_batch(frame.where("id >= 10"), uri, number, operation="append")
        if next(fails, False):
            raise RuntimeError("after both calls")

    with pytest.raises(Exception, match="after both calls"):
        each_batch(spark, source, checkpoint, write)
    assert ids_of(table) == list(range(20))
    each_batch(spark, source, checkpoint, write)
    forget_last_commit(checkpoint)
    each_batch(spark, source, checkpoint, write)
    assert ids_of(table) == list(range(20)), "the same calls in the same order are repeats"


@pytest.mark.parametrize("way", ["sink", "write_batch"])
def test_a_restored_checkpoint_that_plans_a_batch_anew_is_noticed(
    spark: Any, uri: str, tmp_path: Path, way: str
) -> None:
    table, source, checkpoint, saved = append_only(uri, 2), tmp_path / "in", tmp_path / "checkpoint", tmp_path / "saved"

    def run(**options: Any) -> None:
        if way == "sink":
            into_sink(spark, source, checkpoint, uri, **options)
        else:
            write = lambda frame, n: ms.write_batch(frame, uri, n, operation="append", **options)  # noqa: E731
            each_batch(spark, source, checkpoint, write)

    add_file(spark, source, 0, 10)
    run()
    shutil.copytree(checkpoint, saved)
    add_file(spark, source, 10, 20)
    run()
    forget_last_commit(checkpoint)
    run()  # the same rows, and no error
    assert ids_of(table) == list(range(20))
    shutil.rmtree(checkpoint)
    shutil.copytree(saved, checkpoint)
    add_file(spark, source, 20, 30)
    with pytest.raises(Exception, match="replayMismatch=skip"):
        run()
    run(replayMismatch="skip")
    assert ids_of(table) == list(range(20)), "who says so loses them"


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
    with pytest.raises(Exception, match="option 'replayMismatch' is one of error, skip"):
        frame.write.format("memwal").mode("append").option("replayMismatch", "no").save(uri)
