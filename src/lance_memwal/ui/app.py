"""The web application: which address answers with what.

Owns the routes. Invariants: everything passes `ui.gate`; what waits for storage runs in a thread; the page's own files are read
once, when the application is made, and nothing else is ever served from disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import lance_memwal
from lance_memwal.arguments import digits_of
from lance_memwal.engines.dataset import columns_of
from lance_memwal.errors import InvalidInputError, need
from lance_memwal.memtable.index.analyzer import is_text
from lance_memwal.memtable.index.vectors import is_searchable
from lance_memwal.rows.text_values import to_plain
from lance_memwal.table import Table, newest_base
from lance_memwal.table.looking import Look
from lance_memwal.ui import browsing
from lance_memwal.ui.answers import Refusal, error_of
from lance_memwal.ui.gate import Gate
from lance_memwal.ui.looks import EVERY_SECONDS, Looks, tiers_of
from lance_memwal.ui.questions import MAX_ROWS, MAX_SECONDS, Desk, Running
from lance_memwal.ui.timeline import timeline
from lance_memwal.upkeep.reports import ShardStats
from lance_memwal.upkeep.stats import Rates

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

CLIENT_HEADER: Final = "x-memwal-client"
_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_SHARDS_SHOWN: Final = 50
_GENERATIONS_SHOWN: Final = 50
_SUMS: Final = (
    "uncompacted_generations",
    "uncompacted_rows",
    "uncompacted_bytes",
    "wal_lag_entries",
    "wal_lag_bytes",
    "request_cost_dollars",
)
_LARGEST: Final = 10**18 - 1  # of a position or a version that is asked for
_POLL_SECONDS: Final = 0.2
_SHORTEST_SECONDS: Final = 0.1
_Handler = Callable[["Request"], Awaitable["Response"]]


def make_app(
    table: Table,
    *,
    hosts: Collection[str],
    token: str,
    every_seconds: float = EVERY_SECONDS,
    max_seconds: float = MAX_SECONDS,
    is_ending: Callable[[], bool] = lambda: False,
) -> Gate:
    """The application that shows `table` under `hosts` to whoever knows `token`; it gives queries up once it `is_ending`."""
    applications = need("starlette.applications", "ui", "the web page")
    routing = need("starlette.routing", "ui", "the web page")
    views = _Views(table, every_seconds, max_seconds)
    routes = [routing.Route(f"/{name}", _file(*found), methods=["GET"]) for name, found in _page_files().items()]
    routes += [routing.Route(path, _answered(call), methods=["GET"]) for path, call in views.data().items()]
    routes.append(routing.Route("/api/query", _asked(views, is_ending), methods=["POST"]))
    routes.append(routing.Route("/{rest:path}", _answered(_nothing_here), methods=["GET"]))

    @asynccontextmanager
    async def until_the_end(_: object) -> AsyncIterator[None]:
        yield
        views.desk.close()

    return Gate(applications.Starlette(routes=routes, lifespan=until_the_end), hosts=hosts, token=token)


class _Views:
    """What is told of one table."""

    def __init__(self, table: Table, every_seconds: float, max_seconds: float) -> None:
        self._table = table
        self._every_seconds = every_seconds
        self._looks = Looks(table, every_seconds=every_seconds)
        self.desk = Desk(table, max_seconds=max_seconds)

    def data(self) -> dict[str, Callable[[Request], dict[str, Any]]]:
        """The answers by path."""
        place = self._table.location
        return {
            "/api/table": self._facts,
            "/api/look": self._look,
            "/api/log": lambda r: browsing.log(place, _shard(r), _number(r, "before")),
            "/api/entry": lambda r: browsing.entry(place, _shard(r), _need_number(r, "position")),
            "/api/manifests": lambda r: browsing.manifests(place, _shard(r)),
            "/api/manifest": lambda r: browsing.manifest(
                place, _shard(r), _need_number(r, "version"), _number(r, "against")
            ),
            "/api/timeline": lambda _: timeline(place),
        }

    def _facts(self, _: Request) -> dict[str, Any]:
        """What a table is, which changes seldom."""
        table = self._table
        base = newest_base(table)
        key = list(base.primary_key)
        merge = table.merge
        return {
            "uri": table.uri,
            "name": table.uri.rstrip("/").rpartition("/")[2],
            "columns": [
                {
                    "name": field.name,
                    "type": str(field.type),
                    "nullable": field.nullable,
                    "key": key.index(field.name) + 1 if field.name in key else None,
                    "search": "text" if is_text(field.type) else "vector" if is_searchable(field.type) else None,
                }
                for field in columns_of(table)
            ],
            "key": key,
            "sharding": str(table.sharding),
            "merge": None if merge is None else str(merge),
            "indexes": to_plain(table.indexes.list()),
            "base_version": base.version,
            "software": lance_memwal.__version__,
            "max_rows": MAX_ROWS,
            "every_seconds": max(_SHORTEST_SECONDS, self._every_seconds),
        }

    def _look(self, request: Request) -> dict[str, Any]:
        """The table now: sums, some shards, and the samples that the page has not."""
        seen = self._looks.newest()
        look, first, after = seen.look, _number(request, "from") or 0, _number(request, "after") or 0
        shards = _ordered(look, request.query_params.get("order", "busy"))
        return {
            "number": seen.sample.number,
            "time_ms": look.time_ms,
            "stats": {name: value for name, value in to_plain(look.stats).items() if name != "shards"}
            | {name: getattr(look.stats, name) for name in _SUMS},
            "tiers": tiers_of(look.stats),
            "oldest_lag_ms": min(
                (s.lag_since_ms for s in look.stats.shards if s.lag_since_ms is not None), default=None
            ),
            "rates": None if look.rates is None else to_plain(replace(look.rates, shards=())),
            "shards": [_shard_told(look, *pair) for pair in shards[first : first + _SHARDS_SHOWN]],
            "shards_in_all": len(shards),
            "samples": to_plain(self._looks.after(after)),
        }


def _ordered(look: Look, order: str) -> list[tuple[ShardStats, Rates]]:
    if order not in ("busy", "id"):
        raise InvalidInputError("order is busy or id")
    return look.busiest() if order == "busy" else look.shards()


def _shard_told(look: Look, shard: ShardStats, rates: Rates) -> dict[str, Any]:
    plain = to_plain(shard)
    return {
        **plain,
        "generations": plain["generations"][-_GENERATIONS_SHOWN:],
        "generations_in_all": len(shard.generations),
        "due": shard.shard_id in look.stats.compaction_due,
        "rates": to_plain(rates),
    }


# ---------------------------------------------------------------------------------------------------------- requests


def _shard(request: Request) -> str:
    shard_id = request.query_params.get("shard")
    if not shard_id:
        raise InvalidInputError("name a shard: ?shard=…")
    return str(shard_id)


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None or text == "":
        return None
    number = digits_of(text, most=_LARGEST)
    if number is None:
        raise InvalidInputError(f"{name} is a number")
    return number


def _need_number(request: Request, name: str) -> int:
    number = _number(request, name)
    if number is None:
        raise InvalidInputError(f"give a number: ?{name}=…")
    return number


def _nothing_here(_: Request) -> dict[str, Any]:
    raise Refusal(404, "there is nothing at this address")


def _answered(call: Callable[[Request], dict[str, Any]]) -> _Handler:
    """A handler that answers with what `call` says, in a thread."""

    return _told(lambda request: asyncio.to_thread(call, request))


def _asked(views: _Views, is_ending: Callable[[], bool]) -> _Handler:
    """The handler of queries: it stops those that nobody waits for, and all of them when the server ends."""

    async def answer(request: Request) -> dict[str, Any]:
        question = await _question(request)
        client = request.headers.get(CLIENT_HEADER, "")[:64]
        return await _awaited(request, views.desk.begin(client, question), is_ending)

    return _told(answer)


def _told(answer: Callable[[Request], Awaitable[dict[str, Any]]]) -> _Handler:
    """A handler that says what came of a request, also when the server ends before it is answered."""

    async def handler(request: Request) -> Response:
        try:
            return _json(200, await answer(request))
        except asyncio.CancelledError:  # the server ends, and waits no longer
            return _json(*error_of(Refusal(503, "the page was stopped: start memwal ui again")))
        except Exception as error:
            return _json(*error_of(error))

    return handler


async def _question(request: Request) -> dict[str, Any]:
    try:
        question = await request.json()
    except (ValueError, RecursionError):
        question = None
    if not isinstance(question, dict):
        raise InvalidInputError("a query is a JSON object")
    return question


async def _awaited(request: Request, running: Running, is_ending: Callable[[], bool]) -> dict[str, Any]:
    answer: asyncio.Future[dict[str, Any]] = asyncio.wrap_future(running.answer)
    answer.add_done_callback(lambda late: late.cancelled() or late.exception())  # nobody may be left to be told
    while not answer.done():
        await asyncio.wait({answer}, timeout=_POLL_SECONDS)
        if answer.done():
            break
        if is_ending() or await request.is_disconnected():
            running.limits.give_up()
        if not running.limits.left_seconds:
            running.limits.check()
    return answer.result()


def _json(status: int, body: dict[str, Any]) -> Response:
    responses = need("starlette.responses", "ui", "the web page")
    answer: Response = responses.JSONResponse(body, status)
    return answer


# ---------------------------------------------------------------------------------------------------------- files


def _page_files() -> dict[str, tuple[bytes, str]]:
    """The files of the page with their types, by name; the first page has none."""
    found = {}
    for item in resources.files("lance_memwal.ui").joinpath("page").iterdir():
        kind = _TYPES.get(item.name.rpartition(".")[2])
        if kind is not None:
            found["" if item.name == "index.html" else item.name] = item.read_bytes(), kind
    return found


def _file(content: bytes, kind: str) -> _Handler:
    responses = need("starlette.responses", "ui", "the web page")

    async def handler(_: Request) -> Response:
        answer: Response = responses.Response(content, media_type=f"{kind}; charset=utf-8")
        return answer

    return handler
