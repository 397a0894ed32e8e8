"""`memwal exporter`: what Prometheus reads of a table."""

from __future__ import annotations

import http.server
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from lance_memwal.cli import main
from lance_memwal.cli.exporting import MetricsServer, exposition, samples
from lance_memwal.ui.addresses import MOST_CONNECTIONS, bind
from tests.kit.engine_tables import table_in_all_tiers

LINE = re.compile(r'^[a-z_]+\{([a-z_]+="([^"\\\n]|\\.)*",?)+\} [0-9.e+-]+$')


def test_a_table_is_told_in_the_language_of_prometheus(tmp_path: Path) -> None:
    with table_in_all_tiers(str(tmp_path / "t")) as table:
        stats = table.stats()
        lines = exposition(list(samples(table.uri, stats))).splitlines()
    told = [line for line in lines if not line.startswith("#")]
    assert all(LINE.match(line) for line in told)
    for name in ("base_rows", "uncompacted_generations", "wal_lag_entries", "collectable_bytes"):
        assert f'lance_mem_wal_table_{name}{{table="{table.uri}"}} {getattr(stats, name)}' in told
    assert lines.count("# TYPE lance_mem_wal_table_base_rows gauge") == 1


def test_a_table_that_cannot_be_read_is_down() -> None:
    assert exposition(list(samples('a"b\\c\nd', None))).splitlines()[-1] == (
        'lance_mem_wal_table_up{table="a\\"b\\\\c\\nd"} 0'
    )


@contextmanager
def served(uri: str) -> Iterator[str]:
    """Where the exporter answers for a table."""
    command = [sys.executable, "-m", "lance_memwal", "exporter", uri, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://[0-9.:]+/metrics", process.stderr.readline())
            assert found is not None
            yield found.group()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def asked(place: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(place, headers=headers), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.timeout(60)
def test_the_exporter_answers_until_it_is_stopped_and_not_under_names_of_others(tmp_path: Path) -> None:
    with table_in_all_tiers(str(tmp_path / "t")) as table:
        uri = table.uri
    with served(uri) as place:
        with urllib.request.urlopen(place, timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert answer.headers["Server"] is None
            assert f'lance_mem_wal_table_up{{table="{uri}"}} 1' in answer.read().decode()
        assert asked(place + "/other")[0] == 404
        port = port_of(place)
        assert asked(place, Host=f"localhost:{port}")[0] == 200
        for strange in ("evil.example", f"evil.example:{port}", "127.0.0.1", "127.0.0.1:80", ""):
            status, told = asked(place, Host=strange)
            assert (status, uri in told) == (421, False), strange
        for strange in ("http://evil.example", "null"):
            status, told = asked(place, Origin=strange)
            assert (status, uri in told) == (403, False), strange


def port_of(place: str) -> int:
    return int(place.rpartition(":")[2].partition("/")[0])


@pytest.mark.timeout(60)
def test_connections_that_say_nothing_keep_nobody_waiting(tmp_path: Path) -> None:
    with table_in_all_tiers(str(tmp_path / "t")) as table:
        uri = table.uri
    with served(uri) as place, ExitStack() as held:
        answered = 0
        with suppress(OSError):  # whoever comes on top is closed
            for opened in range(1, 2 * MOST_CONNECTIONS):
                silent = held.enter_context(socket.create_connection(("127.0.0.1", port_of(place)), timeout=30))
                silent.sendall(b"GET /metrics HTTP/1.1\r\n")
                if opened == 1 or opened >= MOST_CONNECTIONS - 1:
                    assert asked(place)[0] == 200
                    answered = opened
        assert MOST_CONNECTIONS - 1 <= answered < 2 * MOST_CONNECTIONS - 1


@pytest.mark.timeout(60)
def test_a_connection_that_does_not_come_to_its_end_is_closed() -> None:
    with (
        bind("127.0.0.1", 0) as listening,
        MetricsServer(listening, http.server.BaseHTTPRequestHandler, hearing_seconds=0.2) as server,
    ):
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        try:
            with socket.create_connection(listening.getsockname(), timeout=30) as slow:
                slow.sendall(b"GET /metrics HTTP/1.1\r\n")
                with suppress(OSError):
                    for _ in range(3_000):  # each says something before the time of a single read is over
                        slow.sendall(b"X: y\r\n")
                        if select.select([slow], [], [], 0.01)[0]:
                            break
                    assert slow.recv(1) == b""
        finally:
            server.shutdown()
            serving.join()


def test_the_exporter_does_not_listen_at_every_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with table_in_all_tiers(str(tmp_path / "t")) as table:
        uri = table.uri
    for every in ("0.0.0.0", "::", "", "0"):
        assert main(["exporter", uri, "--host", every]) == 1
        assert "name the one address" in capsys.readouterr().err, every
