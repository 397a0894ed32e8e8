"""An HTTP service on an event loop: requests put rows and read them at once; puts of many requests share WAL entries.

The writer is shared: as many workers as you like write one table.

Run: `python examples/fastapi_service.py` starts it, sends it some requests, and ends.
Serve it for real: `EVENTS_TABLE=s3://bucket/events uvicorn --workers 4 --app-dir examples fastapi_service:app`
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pyarrow as pa
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

import lance_memwal as mw

SCHEMA = pa.schema([("id", pa.int64()), ("user", pa.string()), ("amount", pa.float64())])


class Event(BaseModel):
    """What a request brings."""

    id: int
    user: str
    amount: float


@asynccontextmanager
async def lifespan(service: FastAPI) -> AsyncIterator[None]:
    """One writer for the life of a worker."""
    table = mw.create_table(os.environ["EVENTS_TABLE"], SCHEMA, primary_key="id", exist_ok=True)
    async with table.writer(shared=True) as writer:
        service.state.table, service.state.writer = table, writer
        yield


app = FastAPI(lifespan=lifespan)


@app.put("/events")
async def put_event(event: Event) -> dict[str, int]:
    """Durable when the answer is sent."""
    result = await app.state.writer.aio.put(event)
    return {"written": result.written, "worker": os.getpid()}


@app.get("/events/{number}")
async def get_event(number: int) -> dict[str, object]:
    """The row as the last put left it."""
    row: dict[str, object] | None = await app.state.table.aio.get(number)
    if row is None:
        raise HTTPException(404, f"there is no event {number}")
    return row


@app.delete("/events/{number}")
async def delete_event(number: int) -> dict[str, int]:
    """Gone for every reader when the answer is sent."""
    result = await app.state.writer.aio.delete(number, count=True)
    return {"deleted": result.matched}


async def show(port: int) -> None:
    """Send requests as clients would."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        events = ({"id": n, "user": f"user-{n % 7}", "amount": n / 4} for n in range(200))
        answers = await asyncio.gather(*(client.put("/events", json=event) for event in events))
        print(f"{sum(answer.json()['written'] for answer in answers)} events, each durable before its answer")
        print((await client.get("/events/42")).json())
        print((await client.delete("/events/42")).json(), (await client.get("/events/42")).status_code)
        (stats,) = app.state.writer.stats().values()
        print(f"{stats.put_count} writes in {stats.wal_flush_count} WAL entries")


async def main() -> None:
    """Start the service on a free port, ask it, and stop it."""
    with tempfile.TemporaryDirectory() as directory, socket.socket() as listening:
        os.environ.setdefault("EVENTS_TABLE", f"{directory}/events")
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        await show(listening.getsockname()[1])
        server.should_exit = True
        await serving


if __name__ == "__main__":
    asyncio.run(main())
