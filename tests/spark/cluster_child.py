"""What a standalone cluster of two workers must be able to do, question by question."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from asked import answer

import lance_memwal.spark as ms
from lance_memwal.spark import executor_mode
from tests.kit.spark import Statements, append_only, ids_of, judge, keyed, make_input, on_slow_host, run_until_done

EXPECTED = [(number, "new" if number >= 190 else None) for number in range(50, 210)]


def slow_after_put(point: str) -> None:
    if point == "once.after_put" and on_slow_host():
        time.sleep(12)


def speculate(spark: Any, uri: str) -> dict[str, Any]:
    """Every append on the slow host is followed by a long sleep, so that a second attempt of the task runs meanwhile."""
    table = append_only(uri, 4)
    plain = executor_mode._append_group

    def slow(plan: Any, claims: Any, txn: Any, argument: str) -> str:
        from lance_memwal import crash_points

        crash_points.install(slow_after_put)
        return plain(plan, claims, txn, argument)

    executor_mode._append_group = slow
    given = {"app_id": "a", "operation": "append"}
    second_attempts = rows = 0
    for number in range(8):  # one is enough, unless no task was on the slow host
        large = spark.range(rows, rows + 400).selectExpr("id", "repeat('x', 20000) value")
        batch = large.coalesce(1)  # 8 MB in one task do not fit into messages, so tasks append
        report = ms.write_batch(batch, uri, number, **given)
        second_attempts, rows = second_attempts + report.skipped_shards, rows + 400
        if second_attempts:
            break
    executor_mode._append_group = plain
    lost, duplicated = judge(table, list(range(rows)))
    return {"lost": lost, "duplicated": duplicated, "second_attempts": second_attempts}


def sinks(spark: Any, root: str) -> dict[str, Any]:
    uri = f"{root}/keyed"
    table = keyed(uri, 2)
    spark.range(200).write.format("memwal").mode("append").option("missing", "null").save(uri)
    ms.flush(spark, uri, force=True)
    report = ms.compact(spark, uri)
    append = spark.range(50).write.format("memwal").mode("append").option("missing", "null")
    append.option("operation", "delete").save(uri)
    news = spark.range(190, 210).selectExpr("id", "'new' value")
    news.write.format("memwal").mode("append").option("missing", "null").save(uri)
    ms.flush(spark, uri, force=True)
    by_tasks = ms.compact(spark, uri, mode="distributed")
    base = sorted(table.dataset.to_table().to_pylist(), key=lambda row: row["id"])
    return {
        "compacted": report.rows_written,
        "by_tasks": [by_tasks.rows_written, by_tasks.rows_deleted, by_tasks.commits],
        "base": [(row["id"], row["value"]) for row in base] == EXPECTED,
        "read": spark.read.format("memwal").load(uri).count(),
        "ids": len(ids_of(table)),
    }


def stream(spark: Any, root: str) -> list[int]:
    """The streaming sink: what was lost and what came twice."""
    expected = make_input(Path(root, "in"), 2)
    streamed = append_only(f"{root}/stream", 2)
    run_until_done(spark, Path(root, "in"), f"{root}/stream", Path(root, "checkpoint"))
    return list(judge(streamed, expected))


def main(number: str, master: str) -> None:
    spark = ms.session(
        master,
        **{
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": 2,
            "spark.log.level": "OFF",
            "spark.speculation": True,
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "1s",
        },
    )
    answer(
        number,
        {
            "face": lambda: ms.face(spark),
            "speculate": partial(speculate, spark),
            "sinks": partial(sinks, spark),
            "stream": partial(stream, spark),
            "statements": lambda warehouse: Statements(spark, warehouse).outcomes(),
        },
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
