"""Real HTTP proxies in front of an S3 service: one drops conditions, one loses the answers of chosen requests."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

_NOT_RETURNED = frozenset({"transfer-encoding", "connection", "content-length", "date", "server"})


@contextmanager
def proxy(
    endpoint: str, *, not_forwarded: frozenset[str] = frozenset(), loses: Callable[[str, str], bool] | None = None
) -> Iterator[str]:
    """The address of a proxy that forwards every request to `endpoint`, without some headers.

    If `loses(method, path)`, the request takes effect, and the answer is a status 500.
    """
    backend = urlsplit(endpoint).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {
                name: text for name, text in self.headers.items() if name.lower() not in {*not_forwarded, "connection"}
            }
            connection = http.client.HTTPConnection(backend, timeout=30)
            try:
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                data = answer.read()
            finally:
                connection.close()
            is_lost = loses is not None and loses(self.command, self.path)
            self.send_response(500 if is_lost else answer.status)
            for name, text in answer.getheaders():
                if name.lower() not in _NOT_RETURNED:
                    self.send_header(name, text)
            length = answer.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward  # noqa: N815 - named by http.server

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="proxy")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="session")
def unconditional_endpoint(s3_endpoint: str) -> Iterator[str]:
    """The address of an S3 service that ignores conditions."""
    with proxy(s3_endpoint, not_forwarded=frozenset({"if-none-match"})) as endpoint:
        yield endpoint


@pytest.fixture
def unconditional(s3_table: tuple[str, dict[str, str]], unconditional_endpoint: str) -> dict[str, str]:
    """Storage options that reach the table of `s3_table` through a proxy that drops conditions."""
    return {**s3_table[1], "aws_endpoint": unconditional_endpoint}
