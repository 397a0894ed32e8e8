"""Statistics of tables and writers, rates between two of them, what OpenTelemetry is told, and the exporter."""

import json
import random
import re
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import lance_memwal as mw
from lance_memwal.cli import main
from lance_memwal.cli.exporting import PREFIX, TEXTS, TableCollector
from lance_memwal.process.telemetry import BOUNDS, METRICS, Latencies, active
from lance_memwal.store.metering import Recorder, price_of
from lance_memwal.upkeep.stats import rates_between
from lance_memwal.write.stats import StatsHandle
from tests.harness.profile import scaled
from tests.kit.effort import cpu_seconds
from tests.kit.engine_tables import ROWS, SCHEMA, table_in_all_tiers
from tests.kit.writers import BLOOM, watched

SPANS = (
    "memwal.put", "memwal.shard.put", "memwal.flush", "memwal.compact", "memwal.scan", "memwal.scan.start",
    "memwal.get", "memwal.lookup", "memwal.search", "memwal.open", "memwal.wal_flush", "memwal.seal", "memwal.drain",
    "memwal.close",
)  # fmt: skip
WORK = """
import json, sys
import pyarrow as pa
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import lance_memwal as mw

schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.list_(pa.float32(), 2))])
table = mw.create_table("t", schema, primary_key="id")
with table.writer(fsync=False) as writer:
    writer.put([{"id": 0, "v": [0, 0]}])  # nobody listens yet

reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
metrics.set_meter_provider(MeterProvider([reader]))
traces = TracerProvider()
traces.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(traces)

first = table.shard_writer(fsync=False)
for n in range(5):
    first.put([{"id": n, "v": [n, 0]}])
second = table.shard_writer(fsync=False)  # replays five rows
try:
    first.put([{"id": 9, "v": [9, 0]}])
except mw.FencedError:
    pass
first.abort()
second.close()
table.compact()
table.scan().to_table()
table.search(vector=[1.0, 0.0], column="v", k=1)
assert table.get(3) is not None
table.lookup([3, 4])
table.dataset.create_scalar_index("id", "BTREE")
with table.shard_writer(fsync=False, sync_indexed_write=False, async_index_interval_ms=1) as third:
    third.put([{"id": 7, "v": [7, 0]}])
    while not third.stats().index_update_count:
        pass
table.compact()
assert sum(batch.num_rows for batch in table.changes(until="now")) == 7
table.gc(grace_seconds=0)
found, bounds = {}, {}
for resource in reader.get_metrics_data().resource_metrics:
    for scope in resource.scope_metrics:
        assert scope.scope.name == "lance_memwal"
        for metric in scope.metrics:
            for point in metric.data.data_points:
                bounds[metric.name] = list(getattr(point, "explicit_bounds", ()))
                labels = ",".join(f"{k}={v}" for k, v in sorted((point.attributes or {}).items()))
                found[f"{metric.name}{{{labels}}}"] = getattr(point, "value", None) or getattr(point, "count", 0)
with mw.ShardWriter.open("queue", schema, shard_id="11111111-2222-4333-8444-555555555555", enable_memtable=False) as queue:
    queue.put([{"id": 1, "v": [0, 0]}, {"id": 2, "v": [0, 0]}])
routed = mw.create_table("routed", schema, primary_key="id", sharding=mw.Bucket("id", 64))
with routed.writer(fsync=False, compaction=None) as writer:
    for _ in range(2):
        writer.put([{"id": 1, "v": [0, 0]}, {"id": 2, "v": [0, 0]}], txn=("app", 1))  # the repeat is skipped
traced = [[span.name, dict(span.attributes)] for span in spans.get_finished_spans()]
print(json.dumps({"metrics": found, "bounds": bounds, "spans": traced, "shard": second.shard_id}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", WORK],
        capture_output=True,
        text=True,
        cwd=tmp_path_factory.mktemp("otel"),
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_metrics_say_what_happened(told: dict[str, Any]) -> None:
    found = told["metrics"]
    assert found["lance_mem_wal_puts_total{}"] == 6
    assert found["lance_mem_wal_put_duration_seconds{}"] == 6
    assert found["lance_mem_wal_entries_total{}"] == found["lance_mem_wal_entry_rows_total{}"] == 6
    assert found["lance_mem_wal_entry_bytes{}"] == found["lance_mem_wal_group_puts{}"] == 6
    assert found["lance_mem_wal_flush_duration_seconds{kind=wal}"] == 6
    assert found["lance_mem_wal_flush_duration_seconds{kind=memtable}"] == 2
    assert found["lance_mem_wal_flush_rows_total{}"] == 6
    assert found["lance_mem_wal_replay_rows_total{}"] == 5
    assert found["lance_mem_wal_writers_stopped_total{kind=fenced}"] == 1
    assert found["lance_mem_wal_compaction_generations_total{}"] == 3
    assert found["lance_mem_wal_compaction_rows_total{}"] == 6
    assert found["lance_mem_wal_feed_rows_total{}"] == 7
    assert found["lance_mem_wal_read_duration_seconds{operation=get}"] == 1
    assert found["lance_mem_wal_read_duration_seconds{operation=search}"] == 1
    assert found["lance_object_store_requests_total{base=file,operation=put_new}"] >= 8
    assert found["lance_object_store_request_bytes_total{base=file,operation=put_new}"] > 1000
    assert found["lance_cache_size_bytes{cache=mem_wal}"] < found["lance_cache_capacity_bytes{cache=mem_wal}"]
    assert found["lance_cache_lookups_total{cache=mem_wal,outcome=miss}"] > 0


def test_every_metric_is_told_unless_nothing_went_wrong(told: dict[str, Any]) -> None:
    trouble = {
        "lance_mem_wal_backpressure_wait_seconds",
        "lance_object_store_errors_total",
        "lance_object_store_retryable_responses_total",
        "lance_object_store_request_cost_dollars_total",  # a local disk
    }
    assert {name.partition("{")[0] for name in told["metrics"]} == METRICS.keys() - trouble


def test_histograms_have_buckets_for_what_they_measure(told: dict[str, Any]) -> None:
    for name, (kind, unit, _) in METRICS.items():
        if kind == "histogram" and name in told["bounds"]:
            assert told["bounds"][name] == list(BOUNDS[unit]), name


def test_spans_are_around_puts_flushes_compactions_scans_and_searches(told: dict[str, Any]) -> None:
    names = [name for name, _ in told["spans"]]
    assert set(names) == set(SPANS)
    assert names.count("memwal.shard.put") == 12


def attributes_of(told: dict[str, Any], name: str, epoch: int) -> list[dict[str, Any]]:
    """What the spans of one writer say, in the order in which they ended."""
    found = [about for span, about in told["spans"] if span == name and about.get("shard") == told["shard"]]
    return [about for about in found if about["epoch"] == epoch]


def test_spans_of_writers_name_shard_epoch_generation_and_rows(told: dict[str, Any]) -> None:
    second = {"shard": told["shard"], "epoch": 3, "generation": 2, "rows": 5}  # its log held five rows
    assert attributes_of(told, "memwal.open", 3) == [second]
    for name in ("memwal.seal", "memwal.flush", "memwal.close"):
        assert attributes_of(told, name, 3) == [second], name
    puts, entries = (attributes_of(told, name, 2) for name in ("memwal.shard.put", "memwal.wal_flush"))
    assert [put["rows"] for put in puts[:5]] == [entry["rows"] for entry in entries[:5]] == [1] * 5
    assert {entry["generation"] for entry in entries[:5]} == {2}
    failed = {"shard": told["shard"], "epoch": 2}
    assert puts[5] == {**failed, "generation": 2}
    assert entries[5] == failed
    assert all(drain["shard"] for name, drain in told["spans"] if name == "memwal.drain")


def test_spans_of_wal_only_writer_have_no_rows_in_memory(told: dict[str, Any]) -> None:
    queue = "11111111-2222-4333-8444-555555555555"
    found = {name: about for name, about in told["spans"] if about.get("shard") == queue}
    opened = {"shard": queue, "epoch": 1, "generation": 1, "rows": 0}
    assert found["memwal.open"] == found["memwal.close"] == opened
    assert found["memwal.shard.put"] == found["memwal.wal_flush"] == {**opened, "rows": 2}


def test_spans_of_puts_into_tables_have_shards_and_rows(told: dict[str, Any]) -> None:
    assert [about for name, about in told["spans"] if name == "memwal.put"] == [
        {"shards": 2, "rows": 2},
        {"shards": 2, "rows": 0},
    ]


def test_the_page_about_observing_names_every_instrument_and_nothing_else() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "observing.md").read_text()
    told = {*METRICS, *(f"{PREFIX}_{name}" for name in TEXTS)}
    assert set(re.findall(r"lance_[a-z_]+_[a-z]+", page)) == told
    assert set(re.findall(r"memwal\.[a-z._]+(?=`)", page)) == set(SPANS)


def test_the_library_does_not_load_opentelemetry(tmp_path: Path) -> None:
    code = (
        "import sys, pyarrow as pa, lance_memwal as mw\n"
        "table = mw.create_table('t', pa.schema([pa.field('id', pa.int64(), nullable=False)]), primary_key='id')\n"
        "with table.writer(fsync=False) as writer: writer.put({'id': [1]})\n"
        "table.scan().to_table(); table.stats()\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=100)


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


def later(stats: mw.TableStats, earlier: mw.TableStats, seconds: float) -> mw.TableStats:
    return replace(stats, seen_seconds=earlier.seen_seconds + seconds)


def test_rates_count_what_came_between_two_looks(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer(fsync=False, compaction=None) as writer:
        writer.put(ROWS.slice(0, 1))
        before = table.stats(live_rows=False, collectable=False)
        for number in range(1, 11):
            writer.put(ROWS.slice(number, 1))
        during = table.stats(live_rows=False, collectable=False)
    table.compact()
    after = table.stats(live_rows=False, collectable=False)
    first = rates_between(before, later(during, before, 2.0))
    assert first.entries == 5.0
    assert first.size_bytes == (during.shards[0].wal_bytes - before.shards[0].wal_bytes) / 2
    assert (first.flushes, first.compacted, first.takeovers) == (0.0, 0.0, 0)
    second = rates_between(during, later(after, during, 4.0))
    assert (second.flushes, second.compacted) == (0.25, 0.25)
    assert second.base_rows == 11 / 4
    assert second.requests > 0


def test_collection_between_two_looks_takes_nothing_from_the_rates(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    with table.writer(fsync=False) as writer:
        for number in range(20):
            writer.put(ROWS.slice(number, 1))
    table.compact()
    before = table.stats()
    table.gc(grace_seconds=0)
    with table.writer(fsync=False) as writer:
        writer.put(ROWS.slice(30, 1))
        after = table.stats()
    assert after.shards[0].wal_first > before.shards[0].wal_first
    rates = rates_between(before, later(after, before, 1.0))
    assert rates.entries >= 1
    assert 0 < rates.size_bytes < after.shards[0].wal_bytes * rates.entries
    assert rates.takeovers == 1


def test_a_shard_that_is_new_or_began_anew_has_no_rate_yet(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    before = table.stats()
    with table.writer(fsync=False) as writer:
        writer.put(ROWS)
        after = table.stats()
    assert rates_between(before, later(after, before, 1.0)).entries == 0.0
    assert len(rates_between(before, later(after, before, 1.0)).shards) == 1
    anew = replace(after, shards=(replace(after.shards[0], wal_tip=0, wal_entries=0, epoch=1),))
    assert rates_between(after, later(anew, after, 1.0)).entries == 0.0


def test_one_look_is_no_rate(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    stats = table.stats()
    with pytest.raises(mw.InvalidInputError, match="two observations"):
        rates_between(stats, stats)


def test_what_collection_would_delete_is_left_out_if_it_is_not_asked_for(tmp_path: Path) -> None:
    table = mw.create_table(str(tmp_path / "t"), SCHEMA, primary_key="id")
    assert table.stats(collectable=False).collectable_bytes is None
    assert table.stats().collectable_bytes == 0


def exposition(*tables: mw.Table) -> str:
    registry = CollectorRegistry()
    registry.register(TableCollector(list(tables), every_seconds=0))
    return generate_latest(registry).decode()


def test_exporter_metrics_equal_stats_of_table(tmp_path: Path) -> None:
    with table_in_all_tiers(str(tmp_path / "t")) as table:
        stats = table.stats()
        families = {family.name: family for family in text_string_to_metric_families(exposition(table))}
    for name in ("base_rows", "uncompacted_generations", "wal_lag_entries", "collectable_bytes"):
        (sample,) = families[f"lance_mem_wal_table_{name}"].samples
        assert (sample.labels, sample.value) == ({"table": table.uri}, getattr(stats, name)), name
        assert families[f"lance_mem_wal_table_{name}"].type == "gauge"
    requests = families["lance_mem_wal_table_store_requests"].samples
    assert {sample.labels["operation"] for sample in requests} == set(stats.store_calls)


def test_exporter_reports_unreadable_table_as_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = mw.create_table(str(tmp_path / 'b"\\x'), {"id": [1]}, primary_key="id")
    mw.open_table(bad.uri).drop()
    with table_in_all_tiers(str(tmp_path / "a")) as good:
        families = {family.name: family for family in text_string_to_metric_families(exposition(good, bad))}
    up = {sample.labels["table"]: sample.value for sample in families["lance_mem_wal_table_up"].samples}
    assert up == {good.uri: 1, bad.uri: 0}
    assert bad.uri in capsys.readouterr().err


@pytest.mark.timeout(60)
def test_exporter_serves_metrics_until_interrupted(tmp_path: Path) -> None:
    with table_in_all_tiers(str(tmp_path / "t")) as table:
        uri = table.uri
    command = [sys.executable, "-m", "lance_memwal", "exporter", uri, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://127[0-9.:]+/metrics", process.stderr.readline())
            assert found is not None
            with urllib.request.urlopen(found.group(), timeout=30) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain")
                assert f'lance_mem_wal_table_up{{table="{uri}"}} 1' in answer.read().decode()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_exporter_port_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with table_in_all_tiers(str(tmp_path / "t")) as table:
        uri = table.uri
    assert main(["exporter", uri, "--host", "256.0.0.1", "--port", "1"]) == 1
    assert "cannot listen on 256.0.0.1" in capsys.readouterr().err
