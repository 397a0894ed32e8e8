"""A life of a table whose credentials are canaries; prints everything that a person or a machine could be told, as JSON by kind.

The URI and its options come on stdin.
"""

import asyncio
import io
import json
import logging
import pickle
import sys
import traceback
from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pyarrow as pa
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import lance_memwal as mw
from lance_memwal.spark.options import Options
from lance_memwal.store.location import Location, resolve
from lance_memwal.store.retry import RetryPolicy
from lance_memwal.table import newest_base
from lance_memwal.ui.app import make_app

HOST = "127.0.0.1:8470"
ONCE = RetryPolicy(max_attempts=1)
told: dict[str, list[str]] = {}


def tell(kind: str, *values: Any) -> None:
    told.setdefault(kind, []).extend(map(str, values))


def failing(call: Callable[[], object]) -> None:
    """What a failure says, with all that it came from."""
    try:
        tell("errors", repr(call()))
    except Exception as error:
        tell("errors", str(error), repr(error), "".join(traceback.format_exception(error)))
        while error is not None:  # type: ignore[truthy-bool]
            tell("errors", vars(error))
            error = error.__cause__ or error.__context__  # type: ignore[assignment]


def live(place: Location) -> mw.Table:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    table = mw.create_table(place, schema, primary_key="id")
    with table.writer(shared=True) as writer:
        tell("reprs", repr(writer), writer.put([{"id": n, "v": "a"} for n in range(5)]), writer.stats())
        writer.delete([1])
        writer.flush()
        failing(lambda: writer.put([{"id": "x"}]))
    scan = table.scan(filter="id > 2")
    reader = table.consumers.open("mirror", until="now")
    for _ in reader:
        reader.commit()
    tell("reprs", repr(table), table._repr_html_(), repr(place), repr(place.store), scan, repr(table.snapshot()))
    tell(
        "reprs",
        reader,
        table.checkpoints.create("then"),
        table.checkpoints.list(),
        table.consumers.list(),
        table.shards(),
    )
    tell("reprs", repr(pickle.loads(pickle.dumps(scan))), repr(pickle.loads(pickle.dumps(table))), table.at("then"))
    tell(
        "reprs",
        table.details(),
        newest_base(table),
        table.changes(until="now"),
        table.to_dataset(),
        table.indexes.list(),
    )
    tell("plans", scan.explain(), scan.plan(), table.sql("explain select * from t where id = 3").to_pylist())
    tell("reports", table.compact(), table.maintain(), table.gc(), table.verify(), table.stats(), table.repair())
    tell("metrics", place.metrics.snapshot())
    return table


def asynchronous(place: Location) -> None:
    """What tasks are told: of a put, of a fenced and of a closed writer, and of reads."""

    async def live() -> None:
        table = mw.open_table(place)
        writer, other = table.writer(), table.writer()
        tell("reprs", repr(writer), writer.put_nowait([{"id": 20, "v": "a"}]))
        calls = (
            lambda: writer.aio.put([{"id": "x"}]),
            lambda: table.aio.lookup(["x"]),
            lambda: table.aio.get("x"),
            lambda: table.aio.search([1.0], column="none"),
        )
        for call in calls:
            await failing_task(call)
        other.put([{"id": 21, "v": "a"}])
        await failing_task(lambda: writer.aio.put([{"id": 22, "v": "a"}]))
        other.close()
        await failing_task(lambda: other.aio.put([{"id": 23, "v": "a"}]))
        writer.abort()

    asyncio.run(live())


async def failing_task(call: Callable[[], Awaitable[object]]) -> None:
    result = (await asyncio.gather(call(), return_exceptions=True))[0]

    def again() -> object:
        if isinstance(result, Exception):
            raise result
        return result

    failing(again)


def errors(uri: str, options: dict[str, str], canary: str) -> None:
    nobody = options | {"aws_endpoint": "http://127.0.0.1:9"}
    failing(lambda: resolve(uri, nobody, policy=ONCE).store.get("x"))
    failing(lambda: resolve(uri, nobody, policy=ONCE).store.put_new("x", b""))
    failing(lambda: mw.open_table(resolve(f"{uri}-absent", options, policy=ONCE)))
    failing(lambda: resolve(uri, options | {"secret_access_key": f"{canary}-other"}))
    failing(lambda: resolve(uri, options | {"no_such_option": canary}).store.get("x"))
    named = {"aws_secret_access_key": canary, "aws_endpoint": f"http://u:{canary}@127.0.0.1:9", "allow_http": "true"}
    failing(lambda: resolve(uri, nobody | named, policy=ONCE).store.get("x"))
    azure = {"account_name": "a", "account_key": b64encode(canary.encode()).decode(), "allow_http": "true"}
    azure["azure_storage_endpoint"] = "http://127.0.0.1:9"
    for bad in (
        f"s3://user:{canary}@bucket/t",
        f"s3://bucket/t?token={canary}",
        f"s3://bucket/t#{canary}",
        f"az://container/t?sv=1&sig={canary}",
        f"abfss://c@account.dfs.core.windows.net/t?sig={canary}",
    ):
        given = azure if bad.startswith("a") else nobody
        failing(lambda bad=bad, given=given: resolve(bad, given, policy=ONCE).store.get("x"))
    for bad in (f"https://user:{canary}@host/t?sig={canary}", f"gs://bucket:{canary}/t", f"gs://b/t?token={canary}"):
        failing(lambda bad=bad: resolve(bad, {"google_bearer_token": canary}))
    failing(lambda: Options.parse({"path": uri, "storage.aws_secret_access_key": canary, "no.such": canary}))


def page(table: mw.Table, token: str) -> None:
    app = make_app(table, token=token, hosts=[HOST])
    shard = table.shards()[0].shard_id
    paths = ("/", "/app.js", "/api/table", "/api/look", f"/api/log?shard={shard}", "/api/none")
    questions = ({"kind": "scan"}, {"kind": "sql", "sql": "select * from u"})
    asked = [*(("GET", path, None) for path in paths), *(("POST", "/api/query", body) for body in questions)]

    async def ask(given: str) -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=f"http://{HOST}") as client:
            for method, path, body in asked:
                answer = await client.request(method, path, json=body, headers={"x-memwal-token": given})
                tell("pages", answer.status_code, dict(answer.headers), answer.text)

    asyncio.run(ask(token))
    asyncio.run(ask("another"))


def stored(place: Location) -> None:
    for item in place.store.list(""):
        tell("objects", item, place.store.get(item.path).decode("latin-1"))


def main() -> None:
    job = json.load(sys.stdin)
    log = io.StringIO()
    logging.basicConfig(level=logging.DEBUG, stream=log, force=True)
    numbers, spans = InMemoryMetricReader(), InMemorySpanExporter()
    metrics.set_meter_provider(MeterProvider([numbers]))
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    place = resolve(job["uri"], job["options"])
    table = live(place)
    asynchronous(place)
    tell("reprs", repr(Options.parse({"path": job["uri"], **{f"storage.{k}": v for k, v in job["options"].items()}})))
    errors(job["uri"], job["options"], job["canary"])
    page(table, job["canary"] + "-page")
    stored(place)
    tell("traces", *[span.to_json() for span in spans.get_finished_spans()])
    data = numbers.get_metrics_data()
    tell("metrics", "" if data is None else data.to_json())
    tell("logs", log.getvalue())
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
