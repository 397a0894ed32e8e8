"""Decoders of what a person, a page or another program asks for: texts, options, environments, data files, HTTP requests."""

import asyncio
import json
import os
import tempfile
from collections.abc import Callable
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

_SHARD = "00112233-4455-4677-8899-aabbccddeeff"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _each(calls: list[Callable[[], object]]) -> None:
    """Make all calls; `InvalidInputError` if every one of them is refused."""
    from lance_memwal.errors import InvalidInputError

    refused = 0
    for call in calls:
        try:
            call()
        except InvalidInputError:
            refused += 1
    if refused == len(calls):
        raise InvalidInputError("all were refused")


# ---------------------------------------------------------------------------------------------------------------- texts


def typed_text(data: bytes) -> None:
    """What the command line, the page and options take as one text: moments, vectors, ranges, columns, rules."""
    from lance_memwal.feed.checkpoints import milliseconds, parse_moment
    from lance_memwal.rows import text_values
    from lance_memwal.rows.merging import merge_of_text
    from lance_memwal.rows.sharding import sharding_of_text
    from lance_memwal.store.paths import check_record_name

    text = _text(data)

    def moment() -> None:
        found = parse_moment(text)
        if isinstance(found, str):
            check_record_name(found)
        if isinstance(found, datetime):
            milliseconds(found)

    readers = [
        text_values.typed_vector,
        text_values.typed_range,
        text_values.typed_columns,
        merge_of_text,
        sharding_of_text,
    ]
    _each([moment, *((lambda read=read: read(text)) for read in readers)])  # type: ignore[misc]


def typed_text_corpus() -> list[bytes]:
    return [
        b"17",
        b"2026-01-31T12:00:00+01:00",
        b"memwal1:0a1b2c3d:7:ABEiM0RVRneImaq7zN3u_w.3.17.20",
        b"nightly",
        b"[0.5, -1, 2e3]",
        b"0.5:2",
        b"id:int64,v:vector[16],at:timestamp",
        b"last-write:seq",
        b"bucket(id,16)",
        b"identity(city)",
    ]


def spark_options(data: bytes) -> None:
    """The options of a read or a write, as JSON."""
    from lance_memwal.errors import InvalidInputError
    from lance_memwal.spark.options import Options

    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise InvalidInputError("Spark hands over a map")
    Options.parse({name: value for name, value in given.items() if isinstance(value, str)})


def spark_options_corpus() -> list[bytes]:
    reading = {"path": "/t", "columns": "id, v", "rowsPerPartition": "100", "asOf": "17", "storage.region": "eu"}
    writing = {"path": "/t", "txnAppId": "a", "txnVersion": "7", "maxBytesPerTrigger": "4m", "ifAbsent": "true"}
    return [json.dumps(given).encode() for given in (reading, writing, {"path": "/t", "maxBytesPerTrigger": "1g"})]


def spark_filter(data: bytes) -> None:
    """A filter in Spark's dialect: a zone, a line feed, and the text."""
    import pyarrow as pa

    from lance_memwal.spark.dialect import as_spark_reads

    zone, _, sql = _text(data).partition("\n")
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("plain", pa.timestamp("us"))])
    as_spark_reads(sql, schema, zone=zone or None)


def spark_filter_corpus() -> list[bytes]:
    return [
        b"Europe/Oslo\nat > timestamp '2026-01-31 12:00:00' and id in (1, 2)",
        b"+01:30\nid = 3 or at <= timestamp '2026-01-31'",
        b"\nplain = timestamp_ntz '2026-01-31 12:00:00' and not (id is null or id between -3 and 7)",
    ]


def stream_offset(data: bytes) -> None:
    """An offset of the change feed in the checkpoint of a query of Spark."""
    from lance_memwal.errors import InvalidInputError
    from lance_memwal.spark.feed import checked_offset, cursor_of_offset, offset_of

    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidInputError("Spark hands over JSON") from None
    found = checked_offset(given)
    cursor = cursor_of_offset(found.get("table"), found)
    assert cursor_of_offset(None, offset_of(cursor)) == cursor
    if "initial" not in found:
        assert offset_of(cursor)["shards"] == found["shards"]


def stream_offset_corpus() -> list[bytes]:
    plain = {"shards": {_SHARD: 17, "11112233-4455-4677-8899-aabbccddeeff": 1}, "table": "0a1b2c3d"}
    begin = f"c1,0a1b2c3d,{_SHARD}=16/0/memwal1:0a1b2c3d:7:ABEiM0RVRneImaq7zN3u_w.3.17.20"
    offsets = (plain, plain | {"initial": begin}, plain | {"began_at": begin}, {"shards": {}})
    return [json.dumps(offset).encode() for offset in offsets]


# ---------------------------------------------------------------------------------------------------------- environment


def environment(data: bytes) -> None:
    """Lines of NAME=VALUE."""
    from lance_memwal.process.cache import Cache

    before = dict(os.environ)
    for line in data.replace(b"\0", b"").split(b"\n"):
        name, _, value = line.partition(b"=")
        if name:
            os.environb[name] = value
    try:
        _each([lambda: Cache().limit_bytes])
    finally:
        os.environ.clear()
        os.environ.update(before)


def environment_corpus() -> list[bytes]:
    return [b"LANCE_MEMWAL_CACHE_BYTES=1048576", b"A=b\nLANCE_MEMWAL_CACHE_BYTES=0"]


# ----------------------------------------------------------------------------------------------------------- data files

_SUFFIXES = (".csv", ".jsonl", ".arrows", ".arrow", ".parquet")


def data_file(data: bytes) -> None:
    """A file that somebody wants to load; the first byte chooses its kind."""
    import pyarrow as pa

    from lance_memwal.cli.files import DataFile
    from lance_memwal.rows.fit import validate_rows

    columns = pa.schema([("id", pa.int64()), ("v", pa.string()), ("d", pa.date32())])
    path = _scratch() / f"input{_SUFFIXES[(data or b'0')[0] % len(_SUFFIXES)]}"
    path.write_bytes(data[1:])
    for _, batch in zip(range(50), DataFile(path, columns).batches(1_000), strict=False):
        validate_rows(batch)  # as a writer does first


@cache
def _scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="memwal-fuzz-"))


def data_file_corpus() -> list[bytes]:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pa.table({"id": [1, 2], "v": ["a", None], "d": ["2026-01-31", None]})
    stream, file, parquet = io.BytesIO(), io.BytesIO(), io.BytesIO()
    with pa.ipc.new_stream(stream, rows.schema) as writer:
        writer.write_table(rows)
    with pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    pq.write_table(rows, parquet)
    csv, lines = b"id,v,d\n1,a,2026-01-31\n2,,\n", b'{"id": 1, "v": "a", "d": "2026-01-31"}\n{"id": 2}\n'
    contents = (csv, lines, stream.getvalue(), file.getvalue(), parquet.getvalue())
    return [bytes([number]) + content for number, content in enumerate(contents)]


# ------------------------------------------------------------------------------------------------------------- the page


_HOST, _TOKEN = "127.0.0.1:8470", "0123456789abcdef"


@cache
def _page() -> Any:
    """The page of a small table in memory, and the loop that it runs in."""
    import pyarrow as pa

    import lance_memwal as mw
    from lance_memwal.ui.app import make_app

    fields = [pa.field("id", pa.int64(), nullable=False), ("city", pa.string()), ("note", pa.string())]
    schema = pa.schema([*fields, ("vec", pa.list_(pa.float32(), 2))])
    rows = [{"id": n, "city": "Oslo", "note": "odd" if n % 2 else "even", "vec": [n, 1]} for n in range(5)]
    table = mw.create_table("memory://fuzz/page", pa.Table.from_pylist(rows[:4], schema), primary_key="id")
    with table.writer(compaction=None) as writer:
        writer.put(rows[3:])
    app = make_app(table, hosts=[_HOST], token=_TOKEN, every_seconds=3_600.0, max_seconds=10.0)
    return app, asyncio.new_event_loop(), [(b"host", _HOST.encode()), (b"x-memwal-token", _TOKEN.encode())]


def _ask(method: str, path: str, query: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    from lance_memwal.errors import InvalidInputError

    app, loop, known = _page()
    scope = {"type": "http", "method": method, "path": path, "query_string": query, "http_version": "1.1"}
    scope |= {"headers": [*known, *headers], "scheme": "http", "raw_path": path.encode(), "root_path": ""}
    told: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    loop.run_until_complete(app(scope, receive, send))
    status, answer = told[0]["status"], b"".join(message.get("body", b"") for message in told)
    assert status < 500 or status == 503, answer
    if status >= 400:
        raise InvalidInputError(answer.decode())


def query_of_the_page(data: bytes) -> None:
    size = str(len(data)).encode()
    _ask("POST", "/api/query", b"", [(b"content-type", b"application/json"), (b"content-length", size)], data)


def query_of_the_page_corpus() -> list[bytes]:
    asked: list[dict[str, Any]] = [
        {"kind": "scan", "filter": "city = 'Oslo'", "columns": "id, city", "order_by": "-id", "limit": 5},
        {"kind": "get", "key": "3", "columns": "id"},
        {"kind": "search", "text": "odd", "column": "note", "k": 3},
        {"kind": "search", "vector": "[12, 1]", "k": 1, "filter": "id > 1"},
        {"kind": "sql", "sql": "select city, count(*) as n from t group by city", "limit": 10},
    ]
    return [json.dumps(one).encode() for one in asked]


def request_of_the_page(data: bytes) -> None:
    """A line with method, path and query string, then lines with headers."""
    from starlette.datastructures import QueryParams

    line, *lines = data.split(b"\n")
    method, _, target = _text(line).partition(" ")
    path, _, query = target.partition("?")
    pairs = (header.partition(b":") for header in lines)
    headers = [(name.strip().lower(), value.strip()) for name, _, value in pairs if name.strip()]
    query_bytes = query.encode("utf-8", "surrogateescape")
    QueryParams(query_bytes.decode("latin-1"))
    _ask(method, path.encode("utf-8", "replace").decode(), query_bytes, headers, b"{}")


def request_of_the_page_corpus() -> list[bytes]:
    from lance_memwal.rows.sharding import Unsharded, shard_id_for

    shard = shard_id_for(Unsharded())
    return [
        b"GET /api/table\nsec-fetch-site: same-origin",
        b"GET /api/look?from=0&after=3&order=id",
        f"GET /api/log?shard={shard}&before=9".encode(),
        f"GET /api/entry?shard={shard}&position=2".encode(),
        f"GET /api/manifests?shard={shard}".encode(),
        f"GET /api/manifest?shard={shard}&version=2&against=1".encode(),
        f"GET /api/timeline?shard={shard}".encode(),
        b"GET /\norigin: http://127.0.0.1:8470",
        b"HEAD /style.css",
    ]
