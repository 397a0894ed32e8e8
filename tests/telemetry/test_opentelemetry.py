"""What an application that has set OpenTelemetry up is told, in a process of its own: providers are set once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lance_memwal.process.telemetry import CACHE_BYTES, METRICS

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
found = {}
for resource in reader.get_metrics_data().resource_metrics:
    for scope in resource.scope_metrics:
        assert scope.scope.name == "lance_memwal"
        for metric in scope.metrics:
            for point in metric.data.data_points:
                labels = ",".join(f"{k}={v}" for k, v in sorted((point.attributes or {}).items()))
                found[f"{metric.name}{{{labels}}}"] = getattr(point, "value", None) or getattr(point, "count", 0)
print(json.dumps({"metrics": found, "spans": [span.name for span in spans.get_finished_spans()]}))
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
    assert found["lance_mem_wal_puts_total{}"] == 5
    assert found["lance_mem_wal_put_duration_seconds{}"] == 5
    assert found["lance_mem_wal_entries_total{}"] == 5
    assert found["lance_mem_wal_entry_bytes{}"] == found["lance_mem_wal_group_puts{}"] == 5
    assert found["lance_mem_wal_flush_duration_seconds{kind=wal}"] == 5
    assert found["lance_mem_wal_flush_duration_seconds{kind=memtable}"] == 1
    assert found["lance_mem_wal_flush_rows_total{}"] == 5
    assert found["lance_mem_wal_replay_rows_total{}"] == 5
    assert found["lance_mem_wal_writers_stopped_total{kind=fenced}"] == 1
    assert found["lance_mem_wal_compaction_generations_total{}"] == 2
    assert found["lance_mem_wal_compaction_rows_total{}"] == 5
    assert found["lance_object_store_requests_total{operation=put_new}"] >= 8
    assert found["lance_object_store_request_bytes_total{operation=put_new}"] > 1000
    assert CACHE_BYTES in {name.partition("{")[0] for name in found}


def test_no_metric_has_a_name_of_its_own(told: dict[str, Any]) -> None:
    assert {name.partition("{")[0] for name in told["metrics"]} <= {*METRICS, CACHE_BYTES}


def test_spans_are_around_puts_flushes_compactions_scans_and_searches(told: dict[str, Any]) -> None:
    assert {"memwal.shard.put", "memwal.flush", "memwal.compact", "memwal.scan", "memwal.search"} <= set(told["spans"])
    assert told["spans"].count("memwal.shard.put") == 6


def test_the_library_does_not_load_opentelemetry(tmp_path: Path) -> None:
    code = (
        "import sys, pyarrow as pa, lance_memwal as mw\n"
        "table = mw.create_table('t', pa.schema([pa.field('id', pa.int64(), nullable=False)]), primary_key='id')\n"
        "with table.writer(fsync=False) as writer: writer.put({'id': [1]})\n"
        "table.scan().to_table(); table.stats()\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=100)
