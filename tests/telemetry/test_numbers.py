"""Statistics that a table and its writers give without anybody listening."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import lance_memwal as mw
from lance_memwal.process.telemetry import Latencies, active
from lance_memwal.store.metering import Recorder
from lance_memwal.store.prices import price_of
from lance_memwal.write.stats import StatsHandle
from tests.harness.profile import scaled
from tests.kit.effort import cpu_seconds
from tests.kit.engine_tables import ROWS, SCHEMA, table_in_all_tiers
from tests.kit.writers import BLOOM, watched


def test_percentiles_are_those_of_the_times_to_five_percent() -> None:
    draw = random.Random(1)
    times = [draw.lognormvariate(-7, 2) for _ in range(5000)]
    latencies = Latencies()
    for seconds in times:
        latencies.add(seconds)
    found, times = latencies.percentiles(), sorted(times)
    for value, share in ((found.p50, 0.5), (found.p95, 0.95), (found.p99, 0.99)):
        assert value == pytest.approx(times[int(share * len(times))], rel=0.05)
    assert found.slowest == times[-1]


def test_nothing_measured_has_no_percentiles_and_extremes_have_a_place() -> None:
    latencies = Latencies()
    assert latencies.percentiles().p50 is None
    for seconds in (0.0, 1e-9, 1e12):
        latencies.add(seconds)
    assert latencies.percentiles().slowest == 1e12


def test_a_writer_knows_how_long_its_puts_took(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer(fsync=False) as writer:
        for _ in range(3):
            writer.put(ROWS.slice(0, 1))
        (stats,) = writer.stats().values()
        assert stats.put_count == 3
        assert stats.put_latency.p50 is not None
        assert stats.put_latency.slowest is not None
        assert 0 < stats.put_latency.p50 <= stats.put_latency.slowest


@pytest.mark.parametrize("sharding", [mw.Unsharded(), mw.Bucket("id", 3)], ids=str)
def test_a_table_knows_its_live_rows_and_its_store_calls(tmp_path: Path, sharding: mw.Unsharded | mw.Bucket) -> None:
    with table_in_all_tiers(str(tmp_path / "t"), sharding=sharding) as table:
        stats = table.stats()
        assert stats.live_rows == table.count_rows() == 60
        assert table.stats(live_rows=False).live_rows is None
        created = stats.store_calls["put_new"]
        assert created.count > 0
        assert created.latency.p50 is not None
        assert stats.request_cost_dollars == 0.0


def test_every_generation_of_a_shard_is_told_with_its_tier(tmp_path: Path) -> None:
    with table_in_all_tiers(str(tmp_path / "t")) as table:
        (shard,) = table.stats().shards
        told = [(found.generation, found.tier, found.rows) for found in shard.generations]
        assert [tier for _, tier, _ in told] == ["sstable", "memtable"]
        assert told[-1] == (shard.current_generation, "memtable", 10)
        assert sum(rows for _, tier, rows in told if tier == "sstable") == shard.uncompacted_rows
        assert shard.lag_since_ms <= shard.written_ms
        (without,) = table.stats(live_rows=False).shards
        assert [found.tier for found in without.generations] == ["sstable"]


def test_generations_that_wait_for_their_flush_are_frozen(tmp_path: Path) -> None:
    store, location = watched(tmp_path / "t")
    table = mw.create_table(location, SCHEMA, primary_key="id")
    with table.shard_writer(fsync=False) as writer:
        held = store.hold("put", BLOOM)
        writer.put(ROWS.slice(0, 5))
        writer.force_seal_active()
        held.wait_reached()
        writer.put(ROWS.slice(3, 4))
        (shard,) = table.stats().shards
        told = [(found.generation, found.tier, found.rows) for found in shard.generations]
        assert told == [(1, "frozen", 5), (2, "memtable", 4)]
        elsewhere = mw.open_table(str(tmp_path / "t"))  # its log tells the same
        assert elsewhere.stats().shards[0].generations == shard.generations
        held.open()


def test_requests_have_the_prices_of_their_store() -> None:
    recorder = Recorder("s3")
    recorder.record("put_new", 0.02, 100)
    recorder.record("get", 0.01, 100)
    recorder.record("get", 0.01, 100)
    recorder.record("delete", 0.01)
    calls = recorder.snapshot()
    assert calls["put_new"].cost_dollars == price_of("s3", "put_new") == 5e-6
    assert calls["get"].cost_dollars == pytest.approx(2 * 4e-7)
    assert calls["delete"].cost_dollars == price_of("", "put_new") == 0.0


def test_counting_a_put_costs_little_where_nobody_listens() -> None:
    assert active() is None
    import threading

    stats, times = StatsHandle(threading.Lock()), scaled(ci=20_000, prove=200_000)

    def count() -> None:
        for _ in range(times):
            stats.count_entry(100, 0.001, 0.001, [(0.001, 1)])

    assert cpu_seconds(count) / times < 20e-6
