"""The command that lets Prometheus watch tables: exporter.

Owns the text that Prometheus reads. Invariants:

1. It only reads, and claims nothing. Storage is looked at at most once per `--every-seconds`, however often it is asked.
2. Labels are tables, indexes and consumers, never shards: a table may have ten thousand.
3. A table that cannot be read is `lance_mem_wal_table_up 0`, and the others are told all the same.
4. Where it listens, under which names it answers, and to how many at once, is the rule of the page (`ui.addresses`).
5. Nobody keeps others waiting: every connection has a thread of its own, and so much time to say what it wants.
"""

from __future__ import annotations

import http.server
import math
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any

import typer

from lance_memwal.cli.options import Json, Options, open_for
from lance_memwal.cli.output import note, print_json
from lance_memwal.clock import SYSTEM_CLOCK
from lance_memwal.errors import MemWalError
from lance_memwal.table import Table
from lance_memwal.ui.addresses import MOST_CONNECTIONS, REACHED_BY_OTHERS, Names, bind, hosts_of, is_loopback
from lance_memwal.ui.answers import Refusal
from lance_memwal.upkeep.reports import TableStats

__all__ = ["PREFIX", "TEXTS", "MetricsServer", "exporter", "exposition", "samples"]

PREFIX = "lance_mem_wal_table"
TEXTS = {
    "up": "Whether the table could be read",
    "base_version": "The newest version of the base table",
    "base_rows": "Rows of the base table, those that fresh ones hide included",
    "base_fragments": "Fragments of the base table",
    "base_bytes": "Bytes of the base table's files",
    "shards": "Shards on storage",
    "uncompacted_generations": "SSTables that the base table does not hold yet",
    "uncompacted_rows": "Rows in those SSTables",
    "uncompacted_bytes": "Bytes of those SSTables in memory",
    "wal_lag_entries": "Log entries that no SSTable holds yet",
    "wal_lag_bytes": "Bytes of those entries",
    "compaction_due_shards": "Shards that compaction should fold",
    "collectable_bytes": "Bytes that collection would delete",
    "index_lag_generations": "Compacted SSTables that are kept until an index has their rows",
    "feed_lag_entries": "Log entries that a consumer of the change feed has not read",
    "feed_silent_seconds": "Time since a consumer last committed",
    "store_requests": "Requests of this exporter, by operation",
    "store_request_cost_dollars": "What they cost by list prices, by operation",
}
_HEARING_SECONDS = 10.0
Sample = tuple[str, Mapping[str, str], float]


def samples(uri: str, stats: TableStats | None) -> Iterator[Sample]:
    """What is told of one table; `stats` is None if it could not be read."""
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


def exposition(found: list[Sample]) -> str:
    """The samples as Prometheus reads them."""
    lines = []
    for name, text in TEXTS.items():
        values = [(labels, value) for given, labels, value in found if given == name]
        if values:
            lines += [f"# HELP {PREFIX}_{name} {text}", f"# TYPE {PREFIX}_{name} gauge"]
            lines += [f"{PREFIX}_{name}{{{_labels(labels)}}} {value}" for labels, value in values]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    quoted = {
        name: text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') for name, text in labels.items()
    }
    return ",".join(f'{name}="{text}"' for name, text in quoted.items())


class _Pages:
    """The page, made anew when it is older than it may be."""

    def __init__(self, tables: list[Table], every_seconds: float) -> None:
        self._tables = tables
        self._every_seconds = every_seconds
        self._page, self._made = "", -every_seconds - 1.0
        self._lock = threading.Lock()

    def read(self) -> str:
        """The page as it is now; whoever asks while it is made waits for it."""
        with self._lock:
            now = SYSTEM_CLOCK.monotonic()
            if not self._page or now - self._made >= self._every_seconds:
                found = [sample for table in self._tables for sample in samples(table.uri, _stats_of(table))]
                self._page, self._made = exposition(found), now
            return self._page

    def end(self) -> None:
        """Make no page any more; one that is being made is waited for, since a process must not end within a read."""
        self._lock.acquire()


def _stats_of(table: Table) -> TableStats | None:
    try:
        return table.stats(live_rows=False)
    except MemWalError as error:
        note(f"{table.uri}: {error}")
        return None


def exporter(
    uris: Annotated[list[str], typer.Argument(help="The tables.", show_default=False)],
    host: Annotated[
        str, typer.Option(help="The address to listen at. Another than this machine's own is not encrypted.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0: any that is free.", min=0, max=65535)] = 9464,
    every_seconds: Annotated[float, typer.Option(help="How often storage is looked at, at most.", min=0.0)] = 15.0,
    storage_option: Options = None,
    json: Json = False,
) -> None:
    """Tell Prometheus about tables, at http://HOST:PORT/metrics, until Ctrl-C.

    It reads storage only: lags, sizes, work that is due. What writers measure themselves goes to OpenTelemetry.
    """
    pages = _Pages([open_for(uri, storage_option) for uri in uris], every_seconds)
    with bind(host, port) as listening:
        hosts = hosts_of(host, listening.getsockname()[1])
        server = MetricsServer(listening, _handler(pages, Names(hosts)))
        where = f"http://{hosts[0]}/metrics"
        if not is_loopback(host):
            note(REACHED_BY_OTHERS)
        print_json({"serves": where}) if json else note(f"serving {where}; stop with Ctrl-C")
        sys.stdout.flush()
        try:
            server.serve_forever()
        finally:
            pages.end()


class MetricsServer(http.server.ThreadingHTTPServer):
    """Answers on a socket that is bound: at most `MOST_CONNECTIONS` at once, each of which says soon what it wants."""

    block_on_close = False
    request_queue_size = MOST_CONNECTIONS

    def __init__(
        self,
        listening: socket.socket,
        handler: type[http.server.BaseHTTPRequestHandler],
        *,
        hearing_seconds: float = _HEARING_SECONDS,
    ) -> None:
        super().__init__(listening.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self._hearing_seconds = hearing_seconds
        self._lock = threading.Lock()
        self._until: dict[Any, float] = {}  # per connection: when it must have asked
        self.server_activate()

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 (the name is http.server's)
        """Whether a connection is heard: whoever comes on top is closed."""
        with self._lock:
            if len(self._until) >= MOST_CONNECTIONS:
                return False
            self._until[request] = SYSTEM_CLOCK.monotonic() + self._hearing_seconds
            return True

    def heard(self, request: Any) -> None:
        """It has asked, and waits for us from now on."""
        with self._lock:
            self._until[request] = math.inf

    def shutdown_request(self, request: Any) -> None:
        """It is answered, or gone."""
        with self._lock:
            self._until.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Hang up on those that took too long; called again and again."""
        now = SYSTEM_CLOCK.monotonic()
        with self._lock:
            for request, until in self._until.items():
                if until < now:
                    with suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that broke."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def _handler(pages: _Pages, names: Names) -> type[http.server.BaseHTTPRequestHandler]:
    """What answers a request."""

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 30  # of one read, and of the whole answer

        def do_GET(self) -> None:
            """Answer with the page."""
            if isinstance(self.server, MetricsServer):
                self.server.heard(self.connection)
            status, text = 404, "see /metrics\n"
            try:
                names.check(self.headers.get_all("Host", []), self.headers.get_all("Origin", []))
            except Refusal as refusal:
                status, text = refusal.status, f"{refusal.text}\n"
            else:
                if self.path in ("/", "/metrics"):
                    status, text = 200, pages.read()
            body = text.encode()
            self.send_response_only(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing about single requests."""

    return Handler
