"""A driver for tests that kill it: two streams, or a backfill and merges, or all of them, on one table, until told to stop.

Everything goes on where it was when the driver is started again: streams from their checkpoints, jobs from the number of files
that say which are done.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

import lance_memwal.spark as ms
from tests.kit.spark import BACKFILL, JOB_ROWS, job_ids, merged_ids, on_slow_host


def now_and_then_slow(root: str) -> Any:
    """Passes rows on; on the slow host some tasks take so long that Spark begins them a second time."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        task = f"{context.stageId()}-{context.partitionId()}"
        running = Path(root, "tasks", task)
        if context.attemptNumber() > 0 and running.exists() and Path(f"/proc/{running.read_text()}").exists():
            Path(root, "speculated", f"{task}-{os.getpid()}").touch()  # while the first attempt is still at it
        elif context.attemptNumber() == 0:
            running.write_text(str(os.getpid()))
        if on_slow_host() and context.stageId() % 3 == 0:
            time.sleep(4)
        yield from batches

    return run


def start_streams(spark: Any, root: str, uri: str) -> list[Any]:
    """One with the streaming sink, one with executor mode."""
    queries = []
    for name in ("a", "b"):
        schema = "id long, value string, n int"
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(f"{root}/in-{name}")
        slowed = stream.repartition(2).mapInArrow(now_and_then_slow(root), schema)
        writer = slowed.writeStream.option("checkpointLocation", f"{root}/checkpoint-{name}")
        if name == "a":
            queries.append(writer.format("memwal").start(uri))
        else:
            queries.append(writer.foreachBatch(lambda frame, number: write(frame, uri, number)).start())
    return queries


def write(frame: Any, uri: str, number: int) -> None:
    ms.write_batch(frame, uri, number)


def run_job(spark: Any, uri: str, number: int) -> None:
    """One part of a backfill, once however often it is run, and a merge into the part before it."""
    first = BACKFILL + number * JOB_ROWS
    part = spark.range(first, first + JOB_ROWS, 1, 2).selectExpr("id", "'backfill' value", "int(id) n")
    part.write.format("memwal").mode("append").options(txnAppId="backfill", txnVersion=number).save(uri)
    if number:
        chosen = merged_ids(number - 1)
        news = spark.createDataFrame([(i, "merge", i) for i in chosen], "id long, value string, n int")
        ms.merge_into(spark, uri, news, on="id").when_matched_update().when_not_matched_insert().execute()


def main(roles: str, master: str, root: str, uri: str) -> None:
    spark = ms.session(
        master,
        **{
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": 2,
            "spark.log.level": "OFF",
            "spark.cores.max": 2,
            "spark.executor.cores": 1,
            "spark.executor.memory": "512m",
            "spark.task.maxFailures": 40,  # executors are killed
            "spark.stage.maxConsecutiveAttempts": 40,
            "spark.speculation": True,
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "1s",
        },
    )
    stop = Path(root, "stop")
    queries = start_streams(spark, root, uri) if "streams" in roles else []
    while True:  # a job that was begun before a kill is done in any case
        number = len(job_ids(root))
        if "jobs" in roles:
            run_job(spark, uri, number)
            Path(root, "jobs", str(number)).touch()
        for query in queries:
            if query.exception() is not None:
                raise AssertionError(f"a stream failed: {query.exception()}")
        if stop.exists():
            break
        time.sleep(0.1)
    for query in queries:
        query.processAllAvailable()
        query.stop()
    Path(root, f"done-{roles}").touch()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
