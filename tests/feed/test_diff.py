"""`diff`: what changed between two moments, net, is what a model says; and what following the changes costs."""

import random
import statistics
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.clock import SystemClock
from lance_memwal.feed.changes import ChangeFeed, Request
from lance_memwal.feed.consumers import Consumer
from lance_memwal.lance.base import BaseTable, NewestBase
from lance_memwal.rows.row_codes import row_codes, value_codes
from lance_memwal.store.location import resolve
from lance_memwal.store.metering import Recorder
from lance_memwal.table import newest_base
from tests.harness.profile import scaled
from tests.kit.effort import cpu_seconds
from tests.kit.tables import create, keyed

SCHEMA = pa.schema(
    [("id", pa.int64()), ("v", pa.string()), ("e", pa.list_(pa.float32(), 2)), ("t", pa.list_(pa.string()))]
)
Model = dict[int, dict[str, Any]]


def row(number: int, value: str) -> dict[str, Any]:
    return {"id": number, "v": value, "e": [float(number), 1.0], "t": [value, None] if number % 2 else None}


def net(before: Model, after: Model) -> dict[tuple[str, int], dict[str, Any]]:
    found = {}
    for key in before.keys() | after.keys():
        if key not in before:
            found["insert", key] = after[key]
        elif key not in after:
            found["delete", key] = before[key]
        elif before[key] != after[key]:
            found["update", key] = after[key]
    return found


def by_key(changes: pa.Table) -> dict[tuple[str, int], dict[str, Any]]:
    found = {(item.pop("_op"), item["id"]): item for item in changes.to_pylist()}
    assert len(found) == changes.num_rows
    return found


@pytest.mark.parametrize("seed", range(2))
def test_a_diff_is_what_a_model_says_whatever_lies_between(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    table = mw.create_table(
        str(tmp_path / "t"), SCHEMA, primary_key="id", sharding=mw.Bucket("id", 2), writer_defaults={"fsync": False}
    )
    model: Model = {}
    moments = [(table.snapshot(), dict(model))]
    for step in range(10):
        with table.writer(compaction=None) as writer:
            rows = [row(draw.randrange(40), f"s{step if draw.random() < 0.7 else 0}") for _ in range(6)]
            rows = list({item["id"]: item for item in rows}.values())
            writer.put(rows)
            model |= {item["id"]: item for item in rows}
            gone = draw.sample(sorted(model), min(2, len(model)))
            writer.delete(gone)
            model = {key: item for key, item in model.items() if key not in gone}
            if draw.random() < 0.5:
                writer.flush()
            moments.append((table.snapshot(), dict(model)))
            if draw.random() < 0.5:
                writer.abort()
        if draw.random() < 0.3:
            table.compact()
            moments.append((table.snapshot(), dict(model)))
    for _ in range(15):
        (a, before), (b, after) = draw.choice(moments), draw.choice(moments)
        assert by_key(table.diff(a, b)) == net(before, after)
    a, b = moments[0], moments[-1]
    assert table.diff(a[0], a[0]).num_rows == 0
    assert by_key(table.diff(a[0], b[0])).keys() == {("insert", key) for key in b[1]}


def test_an_update_may_come_with_the_row_before_it(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    with table.writer() as writer:
        writer.put([row(1, "a"), row(2, "a"), row(3, "a")])
        a = table.snapshot()
        writer.put([row(1, "b"), row(2, "b"), row(3, "a"), row(4, "b")])
        writer.delete([3])
    changes = table.diff(a, table.snapshot(), before=True).to_pylist()
    assert sorted((item["_op"], item["id"], item["v"]) for item in changes) == [
        ("delete", 3, "a"),
        ("insert", 4, "b"),
        ("update_after", 1, "b"),
        ("update_after", 2, "b"),
        ("update_before", 1, "a"),
        ("update_before", 2, "a"),
    ]
    ops = [(item["_op"], item["id"]) for item in changes if item["_op"].startswith("update")]
    assert [op for op, _ in ops] == ["update_before", "update_after"] * 2
    assert ops[0][1] == ops[1][1]


def test_a_table_without_a_key_counts_equal_rows(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, writer_defaults={"fsync": False})
    with table.writer(compaction=None) as writer:
        writer.put([row(1, "a"), row(1, "a"), row(2, "a")])
        a = table.snapshot()
        writer.flush()
        writer.put([row(1, "a"), row(3, "b")])
    table.compact()
    b = table.snapshot()
    assert sorted((item["_op"], item["id"]) for item in table.diff(a, b).to_pylist()) == [("insert", 1), ("insert", 3)]
    assert sorted((item["_op"], item["id"]) for item in table.diff(b, a).to_pylist()) == [("delete", 1), ("delete", 3)]


def test_columns_are_those_of_the_second_moment(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    with table.writer() as writer:
        writer.put([row(1, "a"), row(2, "a"), row(3, "a")])
    a = table.snapshot()
    lance.dataset(table.uri).add_columns(pa.field("n", pa.int64()))
    with table.writer() as writer:
        writer.put([row(1, "a") | {"n": 7}, row(2, "a") | {"n": None}])
        writer.delete([3])
    found = by_key(table.diff(a, table.snapshot()))
    assert found == {("update", 1): row(1, "a") | {"n": 7}, ("delete", 3): row(3, "a") | {"n": None}}


def test_what_lance_itself_changed_is_in_it(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id", writer_defaults={"fsync": False})
    with table.writer() as writer:
        writer.put([row(number, "a") for number in range(10)])
    table.compact()
    version = newest_base(table).version
    lance.dataset(table.uri).delete("id in (3, 4)")
    assert by_key(table.diff(version, table.snapshot())).keys() == {("delete", 3), ("delete", 4)}


def test_a_moment_before_the_table_had_a_key_is_compared_too(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(pa.table({"id": [1, 2], "v": ["a", "a"]}), uri)
    table = mw.enable(uri, primary_key="id")
    with table.writer() as writer:
        writer.put({"id": [2, 3], "v": ["b", "b"]})
    assert set(by_key(table.diff(1, table.snapshot()))) == {("update", 2), ("insert", 3)}


def test_blobs_are_compared_by_their_bytes(tmp_path: Path) -> None:
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    table = mw.create_table(
        str(tmp_path / "t"), pa.schema([("id", pa.int64()), blob]), primary_key="id", writer_defaults={"fsync": False}
    )
    with table.writer(compaction=None) as writer:
        writer.put({"id": [1, 2, 3], "b": [b"same", b"then", None]})
        a = table.snapshot()
        writer.put({"id": [1, 2, 3], "b": [b"same", b"now!", None]})
        writer.flush()
        b = table.snapshot()
    assert by_key(table.diff(a, b)).keys() == {("update", 2)}


def test_equal_values_have_equal_numbers() -> None:
    nested = [[1, 2], None, [], [1, 2], [None], [2, 1], [None]]
    assert value_codes(pa.array(nested)).tolist()[0] == value_codes(pa.array(nested)).tolist()[3]
    for values in (
        pa.array(nested),
        pa.array(nested, pa.large_list(pa.int64())),
        pa.array([{"a": 1, "b": [1]}, None, {"a": None, "b": []}, {"a": 1, "b": [1]}, {"a": 1, "b": None}]),
        pa.array([[("k", 1)], None, [("k", 2)], [("k", 1)], []], pa.map_(pa.string(), pa.int64())),
        pa.array(["x", None, "y", "x"]).dictionary_encode(),
        pa.array([1.5, float("nan"), None, float("nan")]),
        pa.array([[1.0, 2.0], None, [1.0, 3.0], [1.0, 2.0]], pa.list_(pa.float32(), 2)),
        pa.array([["a", None], ["a"], ["a", None]]),
    ):
        codes = value_codes(values)
        texts = [repr(value) for value in values.to_pylist()]
        for i in range(len(values)):
            for j in range(len(values)):
                assert (codes[i] == codes[j]) == (texts[i] == texts[j]), (values.type, i, j)
        sliced = value_codes(values.slice(1))
        assert len(np.unique(sliced)) == len(set(texts[1:]))
    pairs = row_codes([pa.array([1, 1, 2, 1]), pa.array(["a", "b", "a", "a"])])
    assert pairs.tolist()[0] == pairs.tolist()[3]
    assert len(set(pairs.tolist())) == 3


# What following costs: requests while nothing happens, time from put to consumer, rows per second in bulk.

COSTED = keyed(pa.field("v", pa.int64()))
HURRY = 40.0


class HurriedClock(SystemClock):
    """A monotonic time that runs faster, so that an idle minute is short."""

    def monotonic(self) -> float:  # type: ignore[override]
        return time.monotonic() * HURRY


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("named", [False, True])
def test_an_idle_follower_lists_at_most_once_per_second_and_shard(tmp_path: Path, shards: int, named: bool) -> None:
    uri = str(tmp_path / "t")
    table = create(uri, COSTED, sharding=mw.Bucket("id", shards))
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
    table = create(str(tmp_path / "t"), COSTED)
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


def fill_shards(table: mw.Table, count: int, step: int) -> None:
    with table.writer(compaction=None) as writer:
        for start in range(0, count, step):
            ids = np.arange(start, start + step)
            writer.put(pa.record_batch({"id": ids, "v": ids}))


@pytest.mark.scaled
@pytest.mark.timeout(600)
def test_a_million_changes_over_16_shards_come_once_and_fast(tmp_path: Path) -> None:
    count, step = scaled(ci=32_000, prove=1_000_000), 16_000
    table = create(str(tmp_path / "t"), COSTED, sharding=mw.Bucket("id", 16))
    fill_shards(table, count - count % step, step)
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
