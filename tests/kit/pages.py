"""The web page of a table, asked over HTTP without a socket; and tables that are worth showing."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

import lance_memwal as mw
from lance_memwal.ui.app import make_app

HOST = "127.0.0.1:8470"
TOKEN = "0123456789abcdef"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("city", pa.string()),
        ("note", pa.string()),
        ("vec", pa.list_(pa.float32(), 2)),
    ]
)
CITIES = ("Oslo", "Bergen", "Tromsø")


class Page:
    """Asks an application as a browser would."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None, **rest: Any) -> httpx.Response:
        """One request, with the token and the host unless `headers` have others."""
        given = {"host": HOST, "x-memwal-token": TOKEN} | (headers or {})

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._app)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
                return await client.request(method, path, headers=given, **rest)

        return asyncio.run(send())

    def get(self, path: str, **parameters: Any) -> dict[str, Any]:
        answer = self.ask("GET", path, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    def query(self, **question: Any) -> dict[str, Any]:
        answer = self.ask("POST", "/api/query", json=question)
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    def problem(self, method: str, path: str, **rest: Any) -> tuple[int, str, str]:
        """Status, kind and text of a refusal."""
        answer = self.ask(method, path, **rest)
        told = answer.json()["error"]
        return answer.status_code, told["kind"], told["text"]


def page_of(table: mw.Table, **options: Any) -> Page:
    """The page of a table, which looks as often as it is asked."""
    return Page(make_app(table, hosts=[HOST], token=TOKEN, **{"every_seconds": 0.0, **options}))


def rows(*ids: int, city: str | None = None) -> pa.Table:
    made = [
        {
            "id": i,
            "city": city or CITIES[i % 3],
            "note": f"number {i} is {'even' if i % 2 == 0 else 'odd'}",
            "vec": [i, 1.0],
        }
        for i in ids
    ]
    return pa.Table.from_pylist(made, SCHEMA)


@contextmanager
def lived_in(path: Path, **options: Any) -> Iterator[mw.Table]:
    """A table with rows in every tier: 30 live rows; ids 0 to 9 are in the base table, and compacted by the first writer."""
    table = mw.create_table(str(path), rows(*range(10), city="old"), primary_key="id", **options)
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put(rows(*range(5)))
    table.compact()
    with table.writer(compaction=None, fsync=False) as writer:
        writer.put(rows(*range(5, 20)))
        writer.flush()
        writer.put(rows(*range(15, 25)))
        writer.flush()
        writer.put(rows(*range(24, 31)))
        writer.delete([30])
        yield table
