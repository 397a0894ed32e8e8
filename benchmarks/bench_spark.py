"""Spark figures: loading against Parquet and plain Lance, merged reads against the base alone, both ways of compaction,
trigger times.

Owns the Spark benchmark; it has a session and a shape of its own (`python -m benchmarks.bench_spark`), since one JVM must
serve every measurement. Ways take turns in every round, the first round is thrown away, the figure is the median.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import write_fragments

import lance_memwal as mw
import lance_memwal.spark as ms
from benchmarks.harness import Case

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int32()), ("x", pa.float64())])
NARROW = "id, cast(id % 1000 as int) n, cast(id as double) / 3 x"
SHARDS = 4


def cases() -> Iterator[Case]:
    """None for `python -m benchmarks`: that would start a JVM beside the other measurements."""
    yield from ()


def table_at(path: Path, *, keyed: bool) -> mw.Table:
    """A new table with four bucket shards."""
    schema = SCHEMA if keyed else pa.schema([field.with_nullable(True) for field in SCHEMA])
    key = "id" if keyed else None
    return mw.create_table(str(path), schema, primary_key=key, sharding=mw.Bucket("id", SHARDS))


def in_turns(ways: Mapping[str, Callable[[Path], Any]], rounds: int, root: Path) -> dict[str, float]:
    """The median seconds of every way."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-1, rounds):
        for name, way in ways.items():
            place = root / f"{name.replace(' ', '-')}-{number}"
            began = time.perf_counter()
            way(place)
            seconds = time.perf_counter() - began
            if number >= 0:
                taken[name].append(seconds)
            shutil.rmtree(place, ignore_errors=True)
    return {name: round(statistics.median(values), 3) for name, values in taken.items()}


def loads(spark: Any, rows: int, rounds: int, root: Path) -> dict[str, float]:
    """Loading `rows` narrow rows into four shards, beside Parquet and plain Lance fragments."""
    frame = spark.range(0, rows, 1, SHARDS).selectExpr(*_columns())

    def sink(place: Path) -> None:
        table_at(place, keyed=False)
        frame.write.format("memwal").mode("append").option("flushBytes", "0").save(str(place))

    def executor(place: Path) -> None:
        table_at(place, keyed=False)
        ms.write_batch(frame, str(place), 1, app_id="bench", operation="append", flushBytes=0)

    def parquet(place: Path) -> None:
        frame.write.parquet(str(place))

    def fragments(place: Path) -> None:
        target = str(place)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            reader = pa.RecordBatchReader.from_batches(SCHEMA, (b.cast(SCHEMA) for b in batches))
            made = write_fragments(reader, target, schema=SCHEMA)
            yield pa.RecordBatch.from_pydict({"made": [json.dumps(f.to_json()) for f in made]})

        answers = frame.mapInArrow(write, "made string").collect()
        found = [lance.FragmentMetadata.from_json(row["made"]) for row in answers]
        lance.LanceDataset.commit(target, lance.LanceOperation.Overwrite(SCHEMA, found))

    ways = {"memwal sink": sink, "memwal executors": executor, "parquet": parquet, "lance fragments": fragments}
    return in_turns(ways, rounds, root)


def reads(spark: Any, rows: int, rounds: int, root: Path) -> dict[str, float]:
    """Reading a base of `rows` with a hundredth of it replaced, beside the base alone and beside Parquet."""
    uri, files = str(root / "read"), str(root / "read-parquet")
    table = table_at(root / "read", keyed=True)
    ids = pa.array(range(rows), pa.int64())
    data = pa.table({"id": ids, "n": ids.cast(pa.int32()), "x": ids.cast(pa.float64())}, schema=SCHEMA)
    lance.write_dataset(data, uri, mode="append", max_rows_per_file=rows // SHARDS)
    spark.range(0, rows, 1, SHARDS).selectExpr(*_columns()).write.parquet(files)
    with table.writer() as writer:
        writer.put(data.slice(0, rows // 200))
    late = table.writer()
    late.put(data.slice(rows // 200, rows // 200))
    late.abort()
    plain = str(root / "read-base")
    mw.create_table(plain, data, primary_key="id", sharding=mw.Bucket("id", SHARDS))

    def total(frame: Any) -> None:
        frame.selectExpr("sum(n)", "sum(x)", "count(id)").collect()

    ways = {
        "merged": lambda _: total(spark.read.format("memwal").load(uri)),
        "base alone": lambda _: total(spark.read.format("memwal").load(plain)),
        "parquet": lambda _: total(spark.read.parquet(files)),
    }
    return in_turns(ways, rounds, root)


def compactions(spark: Any, rows: int, rounds: int, root: Path) -> dict[str, float]:
    """Folding a tenth of `rows`, half of them new, into a base of `rows`: one process beside tasks."""
    template = root / "compact"
    ids = pa.array(range(rows + rows // 20), pa.int64())
    data = pa.table({"id": ids, "n": ids.cast(pa.int32()), "x": ids.cast(pa.float64())}, schema=SCHEMA)
    table = table_at(template, keyed=True)
    lance.write_dataset(data.slice(0, rows), str(template), mode="append", max_rows_per_file=rows // 8)
    with table.writer(compaction=None) as writer:
        writer.put(data.slice(rows - rows // 20))
    ways: dict[str, ms.CompactionMode] = {"one task": "single", "by tasks": "distributed"}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-1, rounds):
        for name, mode in ways.items():
            place = root / f"compact-{mode}"
            shutil.copytree(template, place)
            began = time.perf_counter()
            report = ms.compact(spark, str(place), mode=mode)
            seconds = time.perf_counter() - began
            if report.rows_written != rows // 10 or lance.dataset(str(place)).count_rows() != data.num_rows:
                raise AssertionError(f"{name} lost or repeated rows")
            if number >= 0:
                taken[name].append(seconds)
            shutil.rmtree(place)
    return {name: round(statistics.median(values), 3) for name, values in taken.items()}


def triggers(spark: Any, batches: int, root: Path) -> dict[str, float]:
    """The median time of a micro-batch of 1,000 rows: our sink, executor mode, and Spark's own floor."""
    source = root / "trigger-in"
    source.mkdir()
    for number in range(batches):
        lines = (json.dumps({"id": number * 1000 + i, "n": i, "x": i / 3}) for i in range(1000))
        (source / f"{number:05d}.json").write_text("\n".join(lines))
    stream = spark.readStream.schema("id long, n int, x double").option("maxFilesPerTrigger", 1).json(str(source))
    uris = [str(root / name) for name in ("trigger-a", "trigger-b")]
    for uri in uris:
        table_at(Path(uri), keyed=False)

    def each(frame: Any, number: int) -> None:
        ms.write_batch(frame, uris[1], number, operation="append")

    writers = {
        "noop": stream.writeStream.format("noop"),
        "memwal sink": stream.writeStream.format("memwal").option("path", uris[0]),
        "memwal executors": stream.writeStream.foreachBatch(each),
    }
    found = {}
    for name, writer in writers.items():
        place = str(root / f"checkpoint-{name.replace(' ', '-')}")
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        query.awaitTermination()
        times = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress[2:]]
        found[name] = round(statistics.median(times) / 1000, 3)
    return found


def _columns() -> list[str]:
    return [part.strip() for part in NARROW.split(", ")]


def _show(what: str, figures: dict[str, float]) -> None:
    print(json.dumps({"what": what, **figures}), flush=True)


def main() -> None:
    """Measure everything in one session and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=20)
    given = parser.parse_args()
    spark = ms.session("local[2]", **{"spark.log.level": "ERROR", "spark.driver.memory": "2g"})
    root = Path(tempfile.mkdtemp(prefix="memwal-spark-"))
    try:
        _show("load seconds", loads(spark, given.rows, given.rounds, root))
        _show("read seconds", reads(spark, given.rows, given.rounds, root))
        _show("compaction seconds", compactions(spark, given.rows, given.rounds, root))
        _show("trigger seconds", triggers(spark, given.batches, root))
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
