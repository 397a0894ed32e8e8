"""Who may ask the page for something.

Owns `Gate`, which every request passes. The table may hold anything, and the process may read it with credentials: a page of
another site, another user of this machine, and a name that leads here by DNS must get nothing. Invariants:

1. `Host` and `Origin` are ours, as `ui.addresses` has it.
2. For data so is `Sec-Fetch-Site`.
3. Data needs the token, in a header that no other site can set. It is compared in constant time. There is no cookie.
4. Only GET and HEAD; POST for queries alone, which are JSON of at most `MAX_BODY_BYTES`.
5. Every answer forbids all scripts, styles and connections but our own, framing, sniffing and referrers.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from lance_memwal.arguments import digits_of
from lance_memwal.ui.addresses import Names
from lance_memwal.ui.answers import Refusal, error_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["HEADERS", "MAX_BODY_BYTES", "TOKEN_HEADER", "Gate"]

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
