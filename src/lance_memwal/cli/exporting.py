"""`memwal exporter`: metrics of tables for Prometheus.

It reads storage only, at most once per `--every-seconds`, and claims nothing. Labels are tables, indexes and consumers, never
shards: a table may have ten thousand. A table that cannot be read has `lance_mem_wal_table_up 0`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from lance_memwal.cli.options import Json, Options, open_for
from lance_memwal.cli.output import note, print_json
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import InvalidInputError, MemWalError
from lance_memwal.table import Table
from lance_memwal.ui.gate import REACHED_BY_OTHERS, is_loopback
from lance_memwal.upkeep.reports import TableStats

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX = "lance_mem_wal_table"
TEXTS = {
    "up": "Whether the table could be read",
    "base_version": "The newest version of the base table",
    "base_rows": "Rows of the base table, superseded ones included",
    "base_fragments": "Fragments of the base table",
    "base_bytes": "Bytes of the base table's files",
    "shards": "Shards on storage",
    "uncompacted_generations": "SSTables that are not compacted yet",
    "uncompacted_rows": "Rows in those SSTables",
    "uncompacted_bytes": "Bytes of those SSTables on storage",
    "wal_lag_entries": "Log entries that are not flushed yet",
    "wal_lag_bytes": "Bytes of those entries",
    "compaction_due_shards": "Shards that are due for compaction",
    "collectable_bytes": "Bytes that GC would delete",
    "index_lag_generations": "Compacted SSTables that are kept until an index has their rows",
    "feed_lag_entries": "Log entries that a consumer of the change feed has not read",
    "feed_silent_seconds": "Time since a consumer last committed",
    "store_requests": "Requests of this exporter, by operation",
    "store_request_cost_dollars": "What they cost by list prices, by operation",
}


def _samples(uri: str, stats: TableStats | None) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """The metrics of one table; `stats` is None if it could not be read."""
    table = {"table": uri}
    yield "up", table, 0 if stats is None else 1
    if stats is None:
        return
    counted = {"shards": len(stats.shards), "compaction_due_shards": len(stats.compaction_due)}
    for name in list(TEXTS)[1:13]:
        yield name, table, counted[name] if name in counted else getattr(stats, name)
    for index, generations in stats.waiting_for_indexes.items():
        yield "index_lag_generations", table | {"index": index}, generations
    for consumer in stats.consumers:
        yield "feed_lag_entries", table | {"consumer": consumer.name}, consumer.lag_entries
        yield "feed_silent_seconds", table | {"consumer": consumer.name}, consumer.silent_seconds
    for operation, calls in stats.store_calls.items():
        yield "store_requests", table | {"operation": operation}, calls.count
        yield "store_request_cost_dollars", table | {"operation": operation}, calls.cost_dollars


class TableCollector:
    """The metrics of `tables`, read again when they are older than `every_seconds`."""

    def __init__(self, tables: list[Table], every_seconds: float) -> None:
        self._tables = tables
        self._every_seconds = every_seconds
        self._metrics: list[Metric] = []
        self._read_at = 0.0
        self._lock = threading.Lock()

    def collect(self) -> list[Metric]:
        """What prometheus_client asks of a collector; concurrent calls wait for one read."""
        with self._lock:
            now = SYSTEM_CLOCK.monotonic()
            if not self._metrics or now - self._read_at >= self._every_seconds:
                self._metrics, self._read_at = self._read(), now
            return self._metrics

    def _read(self) -> list[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        metrics: dict[str, Metric] = {}
        for table in self._tables:
            for name, labels, value in _samples(table.uri, _stats_of(table)):
                family = metrics.setdefault(name, GaugeMetricFamily(f"{PREFIX}_{name}", TEXTS[name]))
                family.add_sample(family.name, dict(labels), value)
        return list(metrics.values())

    def stop(self) -> None:
        """Wait for a read that is running, and start no other: a process must not exit during a read."""
        self._lock.acquire()


def _stats_of(table: Table) -> TableStats | None:
    try:
        return table.stats(live_rows=False)
    except MemWalError as error:
        note(f"{table.uri}: {error}")
        return None


def exporter(
    uris: Annotated[list[str], typer.Argument(help="The tables.", show_default=False)],
    host: Annotated[str, typer.Option(help="The address to listen on. Traffic is not encrypted.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 selects a free one.", min=0, max=65535)] = 9464,
    every_seconds: Annotated[float, typer.Option(help="Read storage at most this often.", min=0.0)] = 15.0,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Serve metrics of tables to Prometheus until Ctrl-C.

    The metrics are at http://HOST:PORT/metrics. They come from storage: lags, sizes, work that is due. Metrics of writers go to
    OpenTelemetry.
    """
    from prometheus_client import CollectorRegistry, start_http_server

    collector = TableCollector([open_for(uri, storage_option) for uri in uris], every_seconds)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise InvalidInputError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    where = f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
    if not is_loopback(host):
        note(REACHED_BY_OTHERS)
    print_json({"serves": where}) if json else note(f"serving {where}; stop with Ctrl-C")
    sys.stdout.flush()
    try:
        thread.join()
    finally:
        collector.stop()
        server.shutdown()
