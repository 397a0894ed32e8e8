"""Reads of Spark: a table of a million rows and fifty columns beside the same rows as Parquet.

Owns the cases `spark read: ...`. Both sides run the same query in one session, and take turns. The table is loaded anew for
every query, as Parquet is: the snapshot, the plan and the tasks are in the figure. The JVM starts with the first case and
stays until the process ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import lance_memwal as mw
from benchmarks.harness import Bench, Case, Sample, workplace

_ROWS, _FEW_ROWS = 1_000_000, 100_000
_NUMBERS, _FLOATS, _TEXTS = 20, 20, 9
_SHARDS = 4
_FRESH = 100  # one row of so many is fresh in the merged table

Query = Callable[[Any, int], Any]


def cases() -> Iterator[Case]:
    """Each query on a compacted table, and on one with fresh rows."""
    for name, query, goal in (
        ("3 columns", _three_columns, 2.0),
        ("range filter", _range, 2.5),
        ("point", _point, 2.5),
        ("count()", _count, 2.0),
        ("all columns", _all_columns, 2.5),
    ):
        for kind in ("base", "merged"):
            shown = name if kind == "base" else f"{name}, 1 % fresh"
            yield Case(
                f"spark read: {shown}", partial(_ours, query, kind), partial(_parquet, query), goal, "ms", rounds=5
            )


def _three_columns(frame: Any, _: int) -> Any:
    return frame.selectExpr("sum(id)", "sum(n3)", "sum(x7)").collect()


def _range(frame: Any, rows: int) -> Any:
    return (
        frame.where(f"id between {rows // 2} and {rows // 2 + rows // 100}").selectExpr("sum(n3)", "sum(x7)").collect()
    )


def _point(frame: Any, rows: int) -> Any:
    return frame.where(f"id = {rows // 3}").collect()


def _count(frame: Any, _: int) -> Any:
    return frame.count()


def _all_columns(frame: Any, _: int) -> Any:
    frame.write.format("noop").mode("overwrite").save()


def _ours(query: Query, kind: str, bench: Bench) -> Sample:
    rows = bench.scale(_ROWS, _FEW_ROWS)
    path = _places(rows)[kind]
    return _timed(lambda: query(_session().read.format("memwal").load(path), rows))


def _parquet(query: Query, bench: Bench) -> Sample:
    rows = bench.scale(_ROWS, _FEW_ROWS)
    path = _places(rows)["parquet"]
    return _timed(lambda: query(_session().read.parquet(path), rows))


def _timed(work: Callable[[], Any]) -> Sample:
    began = time.perf_counter()
    work()
    return Sample((time.perf_counter() - began) * 1000)


@cache
def _session() -> Any:
    import lance_memwal.spark as ms

    return ms.session("local[2]", **{"spark.log.level": "ERROR", "spark.driver.memory": "2g"})


@cache
def _places(rows: int) -> dict[str, str]:
    """Where the same rows are: as a table, as one with fresh rows above it, as Parquet written by Spark."""
    data, root = _data(rows), Path(workplace())
    places = {kind: str(root / f"{kind}-{rows}") for kind in ("base", "merged", "parquet")}
    for kind in ("base", "merged"):
        mw.create_table(places[kind], data, primary_key="id", sharding=mw.Bucket("id", _SHARDS))
    with mw.open_table(places["merged"]).writer(compaction=None) as writer:
        writer.put(data.slice(0, rows // _FRESH // 2))
    late = mw.open_table(places["merged"]).writer(compaction=None)
    late.put(data.slice(rows // 2, rows // _FRESH // 2))
    late.abort()
    _session().read.format("memwal").load(places["base"]).repartition(2).write.parquet(places["parquet"])
    return places


def _data(rows: int) -> pa.Table:
    rng = np.random.default_rng(7)
    columns: dict[str, Any] = {"id": pa.array(np.arange(rows))}
    columns |= {f"n{i}": pa.array(rng.integers(0, 1 << 40, rows)) for i in range(_NUMBERS)}
    columns |= {f"x{i}": pa.array(rng.random(rows)) for i in range(_FLOATS)}
    words = pa.array([f"word-{i:07d}" for i in range(10_000)])
    columns |= {f"s{i}": words.take(pa.array(rng.integers(0, len(words), rows))) for i in range(_TEXTS)}
    fields = [pa.field(name, array.type, nullable=name != "id") for name, array in columns.items()]
    return pa.table(columns, schema=pa.schema(fields))
