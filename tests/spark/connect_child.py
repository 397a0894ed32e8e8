"""What a Connect session must be able to do, question by question."""

from __future__ import annotations

import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

from asked import answer
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.core import DefaultChannelBuilder

import lance_memwal as mw
import lance_memwal.spark as ms
from lance_memwal.spark.session import provide_java
from tests.kit.spark import (
    Statements,
    append_only,
    finish,
    forget_last_commit,
    ids_of,
    judge,
    keyed,
    make_input,
    replay_first_batch,
    run_until_done,
)


def sinks(spark: Any, root: str) -> dict[str, Any]:
    """Batch sink, source, maintenance, and executor mode."""
    uri = f"{root}/keyed"
    table = keyed(uri, 2)
    spark.range(200).write.format("memwal").mode("append").option("missing", "null").save(uri)
    ms.flush(spark, uri, force=True)
    report = ms.compact(spark, uri)
    gone = spark.range(50).write.format("memwal").mode("append").option("missing", "null")
    gone.option("operation", "delete").save(uri)
    ms.flush(spark, uri, force=True)
    by_tasks = ms.compact(spark, uri, mode="distributed")
    again = [ms.write_batch(spark.range(300, 310), uri, 1, app_id="job", missing="null").rows for _ in range(2)]
    return {
        "compacted": report.rows_written,
        "by_tasks": [by_tasks.rows_written, by_tasks.rows_deleted, by_tasks.commits],
        "base": table.dataset.count_rows(),
        "read": spark.read.format("memwal").load(uri).count(),
        "ids": len(ids_of(table)),
        "written": again,
    }


def stream(spark: Any, root: str) -> list[int]:
    """The streaming sink: what was lost and what came twice."""
    expected = make_input(Path(root, "in"), 2)
    streamed = append_only(f"{root}/stream", 2)
    run_until_done(spark, Path(root, "in"), f"{root}/stream", Path(root, "checkpoint"))
    return list(judge(streamed, expected))


def two_calls(root: str) -> Any:
    """A function for `foreachBatch`, which runs in a process of the server."""

    def write(frame: Any, number: int) -> None:
        try:
            ms.write_batch(frame, f"{root}/twice", number, missing="null")
        except mw.InvalidInputError as error:
            Path(root, "refused").write_text(str(error))
        for rest in (0, 1):
            rows = frame.where(f"id % 2 = {rest}")
            ms.write_batch(rows, f"{root}/twice", number, app_id=f"half {rest}", missing="null")

    return write


def foreach_batch(spark: Any, root: str) -> list[Any]:
    """Micro-batches of two calls, replayed: whether all rows are there, the number of transactions, and a refusal."""
    expected = make_input(Path(root, "in"), 3)
    twice = keyed(f"{root}/twice", 2)
    each = spark.readStream.schema("id long, value string").json(f"{root}/in").writeStream.foreachBatch(two_calls(root))
    for _ in range(2):
        finish(lambda: each.option("checkpointLocation", f"{root}/c").trigger(availableNow=True).start())
        forget_last_commit(Path(root, "c"))
    refused = Path(root, "refused").read_text()
    return [sorted(ids_of(twice)) == expected, len(twice.transactions().popitem()[1]), refused]


def first_batch(spark: Any, root: str, start: str) -> list[int]:
    """A feed whose first micro-batch is replayed after more puts: the rows of the copy, and the changes it took."""
    table, copy = keyed(f"{root}/from", 2), keyed(f"{root}/to", 2)
    replay_first_batch(spark, table, copy, Path(root, "checkpoint"), start)
    return [len(ids_of(copy)), sum(change.num_rows for change in copy.changes(start="earliest", until="now"))]


def session() -> Any:
    """A client of a server of its own, on a port of its own: another one of this machine may have Spark's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    DefaultChannelBuilder.default_port = staticmethod(lambda: port)
    builder = SparkSession.builder.remote("local[2]").config("spark.connect.grpc.binding.port", str(port))
    return builder.config("spark.sql.shuffle.partitions", "2").config("spark.ui.enabled", "false").getOrCreate()


def main(number: str) -> None:
    provide_java()
    spark = session()
    ms.register(spark)
    answer(
        number,
        {
            "kind": lambda: [type(spark).__module__, ms.face(spark)],
            "sinks": partial(sinks, spark),
            "stream": partial(stream, spark),
            "foreach_batch": partial(foreach_batch, spark),
            "first_batch": partial(first_batch, spark),
            "statements": lambda warehouse: Statements(spark, warehouse).outcomes(),
        },
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
