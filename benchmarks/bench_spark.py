"""Writes of Spark: loads beside Parquet, micro-batches beside Spark's noop sink, `write_batch` on many shards and on few;
and both ways of compaction.

Owns the cases `spark write: ...` and `spark compaction`. Both sides run in one session, and take turns. A micro-batch is timed
by Spark itself (`triggerExecution`): a turn is one query, its first two batches do not count (they claim shards and fill
caches), and its figure is the median of the others.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import lance_memwal as mw
from benchmarks.harness import Bench, Case, Sample, workplace

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int32()), ("x", pa.float64())])
_NARROW = ("id", "cast(id % 1000 as int) n", "cast(id as double) / 3 x")
_ROWS, _FEW_ROWS = 2_000_000, 200_000
_BATCH_ROWS = 1000
_FEW, _MANY = 4, 64


def cases() -> Iterator[Case]:
    """Loads, micro-batches, shards, and compaction."""
    yield Case("spark write: 2M narrow rows, sink / parquet", _load, _parquet, 1.5, "s", rounds=5)
    yield Case("spark write: 2M narrow rows, write_batch / parquet", _load_by_executors, _parquet, 1.5, "s", rounds=5)
    for shards, goal in ((_FEW, 1.4), (_MANY, 1.6)):
        name = f"spark write: micro-batch of 1,000 rows, {shards} shards / noop"
        yield Case(name, partial(_trigger, shards), _noop, goal, "ms", rounds=5)
    yield Case(
        "spark write: write_batch of 1,000 rows, 64 shards / 4 shards",
        partial(_write_batches, _MANY),
        partial(_write_batches, _FEW),
        1.5,
        "ms",
        rounds=5,
    )
    yield Case(
        "spark compaction: by tasks / one task",
        partial(_compaction, "distributed"),
        partial(_compaction, "single"),
        None,
        "s",
        rounds=3,
    )


@cache
def _session() -> Any:
    import lance_memwal.spark as ms

    return ms.session("local[2]", **{"spark.log.level": "ERROR", "spark.driver.memory": "2g"})


def table_at(path: str | Path, *, keyed: bool, shards: int = _FEW) -> mw.Table:
    """A new table with so many bucket shards."""
    schema = SCHEMA if keyed else pa.schema([field.with_nullable(True) for field in SCHEMA])
    return mw.create_table(str(path), schema, primary_key="id" if keyed else None, sharding=mw.Bucket("id", shards))


def _timed(work: Callable[[], Any]) -> Sample:
    began = time.perf_counter()
    work()
    return Sample(time.perf_counter() - began)


# ---------------------------------------------------------------------------------------------------------------- loads


def _frame(bench: Bench) -> Any:
    return _session().range(0, bench.scale(_ROWS, _FEW_ROWS), 1, _FEW).selectExpr(*_NARROW)


def _load(bench: Bench) -> Sample:
    path, frame = f"{bench.directory}/t", _frame(bench)
    table_at(path, keyed=False)
    return _timed(lambda: frame.write.format("memwal").mode("append").option("maintenance", "off").save(path))


def _load_by_executors(bench: Bench) -> Sample:
    import lance_memwal.spark as ms

    path, frame = f"{bench.directory}/t", _frame(bench)
    table_at(path, keyed=False)
    return _timed(lambda: ms.write_batch(frame, path, 1, app_id="bench", operation="append", maintenance="off"))


def _parquet(bench: Bench) -> Sample:
    frame = _frame(bench)
    return _timed(lambda: frame.write.parquet(f"{bench.directory}/p"))


# -------------------------------------------------------------------------------------------------------- micro-batches


@cache
def _source(batches: int) -> str:
    """A directory with one file of 1,000 rows per micro-batch."""
    place = Path(workplace()) / f"source-{batches}"
    place.mkdir()
    for number in range(batches):
        first = number * _BATCH_ROWS
        lines = (json.dumps({"id": first + i, "n": i, "x": i / 3}) for i in range(_BATCH_ROWS))
        (place / f"{number:05d}.json").write_text("\n".join(lines))
    return str(place)


def _stream(bench: Bench) -> Any:
    reader = _session().readStream.schema("id long, n int, x double").option("maxFilesPerTrigger", 1)
    return reader.json(_source(bench.scale(12, 6))).writeStream


def _median_trigger(bench: Bench, writer: Any) -> Sample:
    query = writer.option("checkpointLocation", f"{bench.directory}/c").trigger(availableNow=True).start()
    query.awaitTermination()
    times = [progress["durationMs"]["triggerExecution"] for progress in query.recentProgress[2:]]
    return Sample(statistics.median(times))


def _trigger(shards: int, bench: Bench) -> Sample:
    path = f"{bench.directory}/t"
    table_at(path, keyed=True, shards=shards)
    return _median_trigger(bench, _stream(bench).format("memwal").option("path", path))


def _noop(bench: Bench) -> Sample:
    return _median_trigger(bench, _stream(bench).format("noop"))


def _write_batches(shards: int, bench: Bench) -> Sample:
    import lance_memwal.spark as ms

    path = f"{bench.directory}/t"
    table_at(path, keyed=True, shards=shards)
    seconds = []
    for number in range(bench.scale(10, 5)):
        first = number * _BATCH_ROWS
        frame = _session().range(first, first + _BATCH_ROWS, 1, 2).selectExpr(*_NARROW)
        seconds.append(_timed(partial(ms.write_batch, frame, path, number, app_id="bench")).value)
    return Sample(statistics.median(seconds[2:]) * 1000)


# ----------------------------------------------------------------------------------------------------------- compaction


@cache
def _uncompacted(rows: int) -> str:
    """A base of `rows` rows, and a tenth of it in generations, half of these new."""
    place = str(Path(workplace()) / f"uncompacted-{rows}")
    ids = pa.array(range(rows + rows // 20), pa.int64())
    data = pa.table({"id": ids, "n": ids.cast(pa.int32()), "x": ids.cast(pa.float64())}, schema=SCHEMA)
    table = table_at(place, keyed=True)
    lance.write_dataset(data.slice(0, rows), place, mode="append", max_rows_per_file=rows // 8)
    with table.writer(compaction=None) as writer:
        writer.put(data.slice(rows - rows // 20))
    return place


def _compaction(mode: Any, bench: Bench) -> Sample:
    import lance_memwal.spark as ms

    rows, place = bench.scale(_ROWS, _FEW_ROWS), f"{bench.directory}/t"
    shutil.copytree(_uncompacted(rows), place)
    sample = _timed(lambda: ms.compact(_session(), place, mode=mode))
    if lance.dataset(place).count_rows() != rows + rows // 20:
        raise AssertionError(f"{mode} lost or repeated rows")
    return sample
