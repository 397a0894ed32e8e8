"""What an application that has set OpenTelemetry up is told, in a process of its own: providers are set once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lance_memwal.cli.exporting import PREFIX, TEXTS
from lance_memwal.process.telemetry import BOUNDS, METRICS

SPANS = (
    "memwal.put", "memwal.shard.put", "memwal.flush", "memwal.compact", "memwal.scan", "memwal.scan.start",
    "memwal.get", "memwal.lookup", "memwal.search",
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
print(json.dumps({"metrics": found, "bounds": bounds, "spans": [span.name for span in spans.get_finished_spans()]}))
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
    assert set(told["spans"]) == set(SPANS) - {"memwal.put"}  # its writers are of single shards
    assert told["spans"].count("memwal.shard.put") == 7


def test_the_page_about_observing_names_every_instrument_and_nothing_else() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "observing.md").read_text()
    told = {*METRICS, *(f"{PREFIX}_{name}" for name in TEXTS)}
    assert set(re.findall(r"lance_[a-z_]+_[a-z]+", page)) == told
    assert set(re.findall(r"memwal\.[a-z.]+(?=`)", page)) == set(SPANS)


def test_the_library_does_not_load_opentelemetry(tmp_path: Path) -> None:
    code = (
        "import sys, pyarrow as pa, lance_memwal as mw\n"
        "table = mw.create_table('t', pa.schema([pa.field('id', pa.int64(), nullable=False)]), primary_key='id')\n"
        "with table.writer(fsync=False) as writer: writer.put({'id': [1]})\n"
        "table.scan().to_table(); table.stats()\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=100)
