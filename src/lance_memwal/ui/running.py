"""Serving the page: a socket, an address, and until when.

Owns `bind`, `link_of` and `serve`. Invariants:

1. The socket is bound before anybody is told its address, so that no other program can have it.
2. The token is in the fragment of the link, which a browser never sends, logs or refers to.
3. It ends with SIGINT or SIGTERM; queries are told to end, and are not waited for longer than their next step takes.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import Any

from lance_memwal.errors import InvalidInputError
from lance_memwal.process.extras import need
from lance_memwal.serve.endpoint import is_every_address
from lance_memwal.table import Table
from lance_memwal.ui.app import make_app
from lance_memwal.ui.looks import EVERY_SECONDS

__all__ = ["bind", "hosts_of", "is_loopback", "link_of", "serve"]

_LOCAL_NAME = "localhost"
_DEFAULT_PORT = 80  # browsers leave it out
_CONNECTIONS = 64


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return host == _LOCAL_NAME or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound to the one address; port 0 takes any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except (OSError, UnicodeError) as error:
        listening.close()
        raise InvalidInputError(
            f"cannot listen at {host}:{port}: {getattr(error, 'strerror', None) or error}; name another address or port"
        ) from None
    if is_every_address(listening.getsockname()[0]):  # asked of the socket: a host has many spellings
        listening.close()
        raise InvalidInputError("name the one address that browsers ask for, since they are refused under any other")
    return listening


def hosts_of(host: str, port: int) -> list[str]:
    """The names with ports under which a browser may ask for the page."""
    given = [host, _LOCAL_NAME, "127.0.0.1", "::1"] if is_loopback(host) else [host]
    names = [f"[{name}]" if ":" in name else name for name in dict.fromkeys(given)]
    return [f"{name}:{port}" for name in names] + (names if port == _DEFAULT_PORT else [])


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
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=1,
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    listening.listen()
    started()
    server.run(sockets=[listening])
