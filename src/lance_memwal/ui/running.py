"""Serving the page: under which link, and until when.

Owns `link_of` and `serve`. Invariants:

1. The token is in the fragment of the link, which a browser never sends, logs or refers to.
2. It ends with SIGINT or SIGTERM; queries are told to end, and are not waited for longer than their next step takes.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from lance_memwal.errors import need
from lance_memwal.table import Table
from lance_memwal.ui.app import make_app
from lance_memwal.ui.gate import MOST_CONNECTIONS, hosts_of
from lance_memwal.ui.looks import EVERY_SECONDS


def link_of(host: str, port: int, token: str) -> str:
    """Where the page is."""
    return f"http://{hosts_of(host, port)[0]}/#token={token}"


def serve(
    table: Table,
    listening: socket.socket,
    *,
    host: str,
    token: str,
    every_seconds: float = EVERY_SECONDS,
    started: Callable[[], Any] = lambda: None,
) -> None:
    """Serve the page of `table` on a socket until a signal ends it; `started` is called once it answers."""
    uvicorn = need("uvicorn", "ui", "the web page")
    port = listening.getsockname()[1]
    app = make_app(
        table,
        hosts=hosts_of(host, port),
        token=token,
        every_seconds=every_seconds,
        is_ending=lambda: server.should_exit,
    )
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    listening.listen()
    started()
    server.run(sockets=[listening])
