"""What it costs to follow the changes of a table.

In bulk: all changes of a table from the first one on. The raw side reads the same objects and decodes their Arrow streams, and
does nothing else: no checksums, no checks, no columns of the feed. From put to consumer: a thread follows the table while
another one puts one row at a time; the figure is the median time from the call of `put` to the row in the consumer's hands.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

import lance_memwal as mw
from benchmarks.harness import Bench, Case, Sample

BATCH_ROWS = 1_000
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.float64()), ("name", pa.string())])


def cases() -> list[Case]:
    """The cases of this module."""
    return [
        Case("feed, 1,000,000 rows, 1 shard", partial(changes, 1), partial(raw, 1), None, "rows/s", rounds=5),
        Case("feed, 1,000,000 rows, 16 shards", partial(changes, 16), partial(raw, 16), None, "rows/s", rounds=3),
        Case("feed with before-images, 200,000 rows", before, None, None, "rows/s", rounds=3),
        Case("feed, from put to consumer", latency, None, None, "ms", rounds=5),
    ]


def filled(bench: Bench, shards: int, count: int) -> mw.Table:
    """A table whose logs hold `count` rows, in puts of 1,000 rows per shard."""
    sharding = mw.Unsharded() if shards == 1 else mw.Bucket("id", shards)
    options = {"fsync": False, "stats_log_interval_ms": None}
    table = mw.create_table(
        f"{bench.directory}/table", SCHEMA, primary_key="id", sharding=sharding, writer_defaults=options
    )
    step = BATCH_ROWS * shards
    with table.writer(compaction=None) as writer:
        for start in range(0, count, step):
            ids = np.arange(start, min(start + step, count))
            names = pa.array([f"event number {i}" for i in ids.tolist()])
            writer.put(pa.record_batch([pa.array(ids), pa.array(ids.astype(float)), names], schema=SCHEMA))
    return table


def _rate(read: Callable[[], int], count: int) -> Sample:
    start = time.perf_counter()
    found = read()
    seconds = time.perf_counter() - start
    assert found == count
    return Sample(count / seconds)


def changes(shards: int, bench: Bench) -> Sample:
    """Every change, as the feed hands it out."""
    count = bench.scale(1_000_000, 50_000)
    table = filled(bench, shards, count)
    return _rate(lambda: sum(batch.num_rows for batch in table.changes(until="now")), count)


def raw(shards: int, bench: Bench) -> Sample:
    """The Arrow streams of the same objects, decoded."""
    count = bench.scale(1_000_000, 50_000)
    table = filled(bench, shards, count)

    def read() -> int:
        rows = 0
        for path in Path(table.uri).glob("_mem_wal/*/wal/*.arrow"):
            rows += sum(batch.num_rows for batch in ipc.open_stream(path.read_bytes()))
        return rows

    return _rate(read, count)


def before(bench: Bench) -> Sample:
    """Every change with what was there before it: each row was put twice."""
    count = bench.scale(200_000, 10_000)
    table = filled(bench, 1, count // 2)
    cursor = table.changes(start="latest").cursor
    with table.writer(compaction=None) as writer:
        for start in range(0, count // 2, BATCH_ROWS):
            ids = np.arange(start, start + BATCH_ROWS)
            writer.put({"id": ids, "value": ids.astype(float), "name": ["changed"] * BATCH_ROWS})
    feed = table.changes(start=cursor, until="now", before=True)
    return _rate(lambda: sum(batch.num_rows for batch in feed), count)


def latency(bench: Bench) -> Sample:
    """From the call of `put` to the consumer."""
    table = filled(bench, 1, 1_000)
    count = bench.scale(300, 50)
    feed, seen, arrived = table.changes(start="latest"), dict[int, float](), threading.Event()

    def follow() -> None:
        for batch in feed:
            now = time.perf_counter()
            for key in batch.column("id").to_pylist():
                seen[key] = now
            arrived.set()

    follower = threading.Thread(target=follow)
    follower.start()
    put_at: dict[int, float] = {}
    with table.writer(compaction=None) as writer:
        for number in range(count):
            arrived.clear()
            put_at[number] = time.perf_counter()
            writer.put({"id": [number], "value": [0.0], "name": ["one"]})
            arrived.wait(10)
            time.sleep(0.003)
    feed.stop()
    follower.join(10)
    waits = [seen[number] - put_at[number] for number in put_at if number in seen]
    assert len(waits) == count
    return Sample(statistics.median(waits) * 1e3, waits)
