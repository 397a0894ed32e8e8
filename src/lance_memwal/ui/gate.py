"""Where the page listens for HTTP, under which names it answers, and who may ask.

Owns `bind`, `hosts_of`, `Names`, the warning about addresses that other machines reach, and `Gate`, which every request passes.
The table may hold anything, and the process may read it with credentials: a page of another site, another user of this machine,
and a name that leads here by DNS must get nothing. Invariants:

1. The socket is bound to one address, never to all, and before the address is printed: no other program can have it.
2. `Host` is a name that the server listens under, given once. `Origin`, if it is given, is the page's own. There is no CORS.
3. For data `Sec-Fetch-Site` must be the page's own, too.
4. Data needs the token, in a header that no other site can set. It is compared in constant time. There is no cookie.
5. Only GET and HEAD; POST for queries alone, which are JSON of at most `MAX_BODY_BYTES`.
6. Every answer forbids all scripts, styles and connections but the page's own, framing, sniffing and referrers.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
import socket
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from lance_memwal.arguments import digits_of
from lance_memwal.errors import InvalidInputError
from lance_memwal.ui.answers import Refusal, error_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

REACHED_BY_OTHERS: Final = "other machines can reach this address, and nothing is encrypted: an SSH tunnel is safer"
MOST_CONNECTIONS: Final = 64
_LOCAL_NAME: Final = "localhost"
_DEFAULT_PORT: Final = 80  # browsers leave it out


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return host == _LOCAL_NAME or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_every_address(host: str) -> bool:
    """Whether a host is a spelling of all addresses of this machine. A name is not one."""
    try:
        address = ipaddress.ip_address(socket.inet_aton(host) if re.fullmatch("[0-9a-fA-Fx.]+", host) else host)
    except (OSError, ValueError):
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_unspecified


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
        raise InvalidInputError("name the one address that others ask for, since they are refused under any other")
    return listening


def hosts_of(host: str, port: int) -> list[str]:
    """The names with ports under which we answer, the one to tell first."""
    given = [host, _LOCAL_NAME, "127.0.0.1", "::1"] if is_loopback(host) else [host]
    names = [f"[{name}]" if ":" in name else name for name in dict.fromkeys(given)]
    return [f"{name}:{port}" for name in names] + (names if port == _DEFAULT_PORT else [])


class Names:
    """The names with ports under which a server answers, as browsers send them."""

    def __init__(self, hosts: Collection[str]) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)

    def check(self, hosts: Sequence[str], origins: Sequence[str]) -> None:
        """Raise `Refusal` unless these values of `Host` and `Origin` are of somebody who asked for us."""
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            raise Refusal(421, "this server answers under its own address only: use the one that memwal printed")
        if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in origins):
            raise Refusal(403, "another site asked: only the page itself may")


# --------------------------------------------------------------------------------------------------------------- gate


MAX_BODY_BYTES: Final = 64 << 10
TOKEN_HEADER: Final = "x-memwal-token"  # noqa: S105 - a name
_DATA: Final = "/api/"
_QUERY: Final = "/api/query"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


class Gate:
    """Lets a request through to `app`, or refuses it."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], token: str) -> None:
        """`hosts` are names with ports, as browsers send them."""
        self._app = app
        self._names = Names(hosts)
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # a websocket is closed by saying nothing

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_RAW]
            await send(message)

        try:
            self._check(scope)
        except Refusal as refusal:
            await _refuse(refusal, dressed)
        else:
            await self._app(scope, receive, dressed)

    def _check(self, scope: Scope) -> None:
        """Raise why a request is refused; the order tells a stranger least."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        self._names.check(headers.get("host", []), headers.get("origin", []))
        if not scope["path"].startswith("/"):
            raise Refusal(404, "there is nothing at this address")
        self._check_method(scope["method"], scope["path"], headers)
        if scope["path"].startswith(_DATA):
            self._check_asker(headers)

    def _check_asker(self, headers: dict[str, list[str]]) -> None:
        """The page itself may be linked to from anywhere; data is for the page alone."""
        if any(site not in ("same-origin", "none") for site in headers.get("sec-fetch-site", [])):
            raise Refusal(403, "another site asked: only the page itself may")
        if not self._knows_token(headers.get(TOKEN_HEADER, [])):
            raise Refusal(401, "the token is missing or wrong: open the link that memwal ui printed")

    def _check_method(self, method: str, path: str, headers: dict[str, list[str]]) -> None:
        is_query = method == "POST" and path == _QUERY
        if method not in ("GET", "HEAD") and not is_query:
            raise Refusal(405, "the page only reads: GET, and POST for queries")
        if is_query:
            if headers.get("content-type", [""])[0].partition(";")[0].strip() != "application/json":
                raise Refusal(415, "a query is application/json")
            sizes = headers.get("content-length", [])
            size = digits_of(sizes[0]) if len(sizes) == 1 else None
            if size is None:
                raise Refusal(411, "say how long the query is (Content-Length)")
            if size > MAX_BODY_BYTES:
                raise Refusal(413, f"a query has at most {MAX_BODY_BYTES:,} bytes")

    def _knows_token(self, given: list[str]) -> bool:
        return len(given) == 1 and hmac.compare_digest(given[0].encode("latin-1", "replace"), self._token)


_RAW: Final = tuple((name.encode(), value.encode()) for name, value in HEADERS.items())


async def _refuse(refusal: Refusal, send: Send) -> None:
    status, told = error_of(refusal)
    body = json.dumps(told).encode()
    size = str(len(body)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", size)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
