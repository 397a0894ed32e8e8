"""What a standalone cluster of two workers must be able to do; prints one line of JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import lance_memwal.spark as ms
from lance_memwal.spark import executor_mode
from tests.kit.spark_once import judge, make_input, run_until_done
from tests.kit.spark_sql import run_statements
from tests.kit.spark_tables import append_only, ids_of, keyed

SLOW_HOST = "127.0.0.2"
EXPECTED = [(number, "new" if number >= 190 else None) for number in range(50, 210)]


def on_slow_host() -> bool:
    """Whether the executor above this process belongs to the slow host."""
    number = "self"
    for _ in range(4):
        status = Path(f"/proc/{number}/status").read_text()
        number = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:"))
        if f"--hostname\0{SLOW_HOST}" in Path(f"/proc/{number}/cmdline").read_text():
            return True
    return False


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
    given = {"app_id": "a", "operation": "append", "inlineBytes": 0}  # so that tasks append
    reports = [
        ms.write_batch(spark.range(n * 400, (n + 1) * 400).selectExpr("id", "'x' value"), uri, n, **given)
        for n in range(3)
    ]
    executor_mode._append_group = plain
    lost, duplicated = judge(table, list(range(1200)))
    return {"lost": lost, "duplicated": duplicated, "second_attempts": sum(r.skipped_shards for r in reports)}


def everything(spark: Any, root: Path) -> dict[str, Any]:
    """Batch sink, streaming sink, source and compaction."""
    uri = str(root / "keyed")
    table = keyed(uri, 2)
    spark.range(200).write.format("memwal").mode("append").option("missing", "null").save(uri)
    ms.flush(spark, uri, force=True)
    report = ms.compact(spark, uri)
    spark.range(50).write.format("memwal").mode("append").option("missing", "null").option("operation", "delete").save(
        uri
    )
    spark.range(190, 210).selectExpr("id", "'new' value").write.format("memwal").mode("append").option(
        "missing", "null"
    ).save(uri)
    ms.flush(spark, uri, force=True)
    by_tasks = ms.compact(spark, uri, mode="distributed")
    base = sorted(table.dataset.to_table().to_pylist(), key=lambda row: row["id"])
    expected = make_input(root / "in", 3)
    stream_uri = str(root / "stream")
    streamed = append_only(stream_uri, 2)
    run_until_done(spark, root / "in", stream_uri, root / "checkpoint")
    return {
        "compacted": report.rows_written,
        "by_tasks": [by_tasks.rows_written, by_tasks.rows_deleted, by_tasks.commits],
        "base": [(row["id"], row["value"]) for row in base] == EXPECTED,
        "read": spark.read.format("memwal").load(uri).count(),
        "ids": len(ids_of(table)),
        "sql": run_statements(spark, ms.face(spark), str(root / "warehouse")),
        "stream": judge(streamed, expected),
    }


def main(master: str, root: str) -> None:
    spark = ms.session(
        master,
        **{
            "spark.driver.host": "127.0.0.1",
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
    result = {"speculation": speculate(spark, f"{root}/speculated"), **everything(spark, Path(root))}
    Path(root, "result.json").write_text(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
