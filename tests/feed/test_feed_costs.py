"""What following costs: requests while nothing happens, time from put to consumer, rows per second in bulk."""

from __future__ import annotations

import statistics
import threading
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.clock import SystemClock
from lance_memwal.feed.changes import ChangeFeed, Request
from lance_memwal.feed.consumers import Consumer
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.store.location import resolve
from lance_memwal.store.metering import Recorder
from tests.harness.profile import scaled
from tests.kit.effort import cpu_seconds
from tests.kit.tables import create, keyed

SCHEMA = keyed(pa.field("v", pa.int64()))
HURRY = 40.0


class HurriedClock(SystemClock):
    """A monotonic time that runs faster, so that an idle minute is short."""

    def monotonic(self) -> float:  # type: ignore[override]
        return time.monotonic() * HURRY


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("named", [False, True])
def test_an_idle_follower_lists_at_most_once_per_second_and_shard(tmp_path: Path, shards: int, named: bool) -> None:
    uri = str(tmp_path / "t")
    table = create(uri, SCHEMA, sharding=mw.Bucket("id", shards))
    with table.writer() as writer:
        writer.put({"id": list(range(100)), "v": [0] * 100})
    recorder = Recorder()
    newest = NewestBase(BaseTable.need(resolve(uri, metrics=recorder)))
    clock = HurriedClock()
    feed: ChangeFeed | Consumer
    if named:
        feed = Consumer(newest, "sync", Request(), start="latest", max_age=timedelta(days=1), clock=clock)
    else:
        feed = ChangeFeed(newest, Request(), "latest", None, clock=clock)
    follower = threading.Thread(target=lambda: list(feed))
    follower.start()
    time.sleep(0.5)
    recorder.reset()
    began = time.monotonic()
    time.sleep(1.0)
    counted = recorder.snapshot()
    seconds = (time.monotonic() - began) * HURRY
    feed.stop()
    follower.join(20)
    assert not follower.is_alive()
    lists = sum(stats.count for kind, stats in counted.items() if kind.startswith("list"))
    assert 0 < lists <= seconds * shards
    assert not any(kind.startswith("put") for kind in counted), "a follower writes nothing"


@pytest.mark.scaled
def test_a_put_reaches_a_follower_within_milliseconds(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    feed, arrived = table.changes(start="latest"), threading.Event()
    seen: dict[int, float] = {}

    def follow() -> None:
        for batch in feed:
            for key in batch.column("id").to_pylist():
                seen[key] = time.perf_counter()
            arrived.set()

    follower = threading.Thread(target=follow)
    follower.start()
    waits = []
    with table.writer() as writer:
        writer.put({"id": [0], "v": [0]})
        assert arrived.wait(20)
        for number in range(1, 80):
            arrived.clear()
            began = time.perf_counter()
            writer.put({"id": [number], "v": [0]})
            assert arrived.wait(20)
            waits.append(seen[number] - began)
            time.sleep(0.002)
    feed.stop()
    follower.join(20)
    assert statistics.median(waits) <= scaled(ci=0.1, prove=0.02)


def fill(table: mw.Table, count: int, step: int) -> None:
    with table.writer(compaction=None) as writer:
        for start in range(0, count, step):
            ids = np.arange(start, start + step)
            writer.put(pa.record_batch({"id": ids, "v": ids}))


@pytest.mark.scaled
@pytest.mark.timeout(600)
def test_a_million_changes_over_16_shards_come_once_and_fast(tmp_path: Path) -> None:
    count, step = scaled(ci=32_000, prove=1_000_000), 16_000
    table = create(str(tmp_path / "t"), SCHEMA, sharding=mw.Bucket("id", 16))
    fill(table, count - count % step, step)
    count -= count % step
    clock = scaled(ci=time.process_time, prove=time.perf_counter)
    best = count / cpu_seconds(lambda: list(table.changes(until="now")), tries=3, clock=clock)
    batches = list(table.changes(until="now"))
    seen = pa.chunked_array([batch.column("id") for batch in batches]).combine_chunks()
    assert len(seen) == count
    assert len(seen.unique()) == count
    assert best >= scaled(ci=50_000, prove=500_000)


def test_memory_is_bounded_by_chunks_not_by_the_log(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), keyed(pa.field("v", pa.binary())))
    with table.writer(compaction=None) as writer:
        for start in range(0, 400, 10):
            writer.put({"id": list(range(start, start + 10)), "v": [bytes(100_000)] * 10})
    before = pa.total_allocated_bytes()
    highest = 0
    rows = 0
    for batch in table.changes(until="now"):
        rows += batch.num_rows
        highest = max(highest, pa.total_allocated_bytes() - before)
    assert rows == 400
    assert highest < 30 << 20, "of 40 MB of changes"
