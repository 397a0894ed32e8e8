"""Debezium envelopes: out of a feed, and into writes."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.kit.tables import create, keyed, rows_of

SCHEMA = keyed(
    pa.field("name", pa.string()),
    pa.field("at", pa.timestamp("us", tz="UTC")),
    pa.field("local", pa.timestamp("us")),
    pa.field("day", pa.date32()),
    pa.field("price", pa.decimal128(10, 2)),
    pa.field("data", pa.binary()),
    pa.field("tags", pa.list_(pa.string())),
)


def row(number: int, **values: Any) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"n{number}",
        "at": dt.datetime(2026, 1, 2, 3, 4, 5, 678000, dt.UTC),
        "local": dt.datetime(2026, 1, 2, 3, 4, 5, 1),
        "day": dt.date(2026, 1, 31),
        "price": Decimal("12.30"),
        "data": b"\x00\xff",
        "tags": ["a", None],
    } | values


def apply(table: mw.Table, messages: list[Any]) -> None:
    with table.writer() as writer:
        for write in mw.from_debezium(messages, table.schema, table.primary_key):
            (writer.put if write.kind == "put" else writer.delete)(write.rows)


def test_what_goes_out_and_comes_in_again_is_the_same_table(tmp_path: Path) -> None:
    source = create(str(tmp_path / "a"), pa.Table.from_pylist([row(0)], SCHEMA))
    feed = source.changes(start="snapshot", before=True)
    with source.writer() as writer:
        writer.put([row(1), row(2), row(3)])
        writer.put([row(2, name="two", data=None)])
        writer.delete([0, 3])
    messages = []
    for batch in feed:
        messages += [json.dumps(envelope) for envelope in mw.to_debezium(batch)]
        if len(messages) == 7:
            feed.stop()
    assert [json.loads(message)["op"] for message in messages] == ["r", "c", "c", "c", "u", "d", "d"]
    target = create(str(tmp_path / "b"), SCHEMA)
    apply(target, messages)
    assert rows_of(target.scan()) == rows_of(source.scan()) == [row(1), row(2, name="two", data=None)]


def test_an_envelope_says_where_it_comes_from(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), keyed(pa.field("v", pa.int64())))
    with table.writer() as writer:
        writer.put({"id": [1], "v": [10]}, txn=("job", 3))
        writer.delete([1])
    (batch,) = table.changes(until="now")
    put, gone = mw.to_debezium(batch)
    assert (put["op"], put["before"], put["after"]) == ("u", None, {"id": 1, "v": 10})
    assert put["transaction"] == {"id": "job:3"}
    assert (put["source"]["position"], gone["source"]["position"]) == (1, 2)
    assert abs(put["ts_ms"] - dt.datetime.now(dt.UTC).timestamp() * 1000) < 60_000
    assert (gone["op"], gone["before"], gone["after"]) == ("d", {"id": 1}, None)


def test_messages_with_a_schema_tell_the_units_of_their_numbers(tmp_path: Path) -> None:
    table = create(str(tmp_path / "t"), SCHEMA)
    fields = [
        {"field": "local", "type": "int64", "name": "io.debezium.time.Timestamp"},
        {
            "field": "price",
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2"},
        },
    ]
    message = {
        "schema": {"fields": [{"field": "after", "type": "struct", "fields": fields}]},
        "payload": {"op": "c", "after": {"id": 1, "local": 1_767_323_045_000, "price": "BM4=", "day": 20_484}},
    }
    apply(table, [message, None])
    (found,) = rows_of(table.scan())
    assert found["local"] == dt.datetime(2026, 1, 2, 3, 4, 5)
    assert (found["price"], found["day"]) == (Decimal("12.30"), dt.date(2026, 1, 31))
    nanos = {"field": "local", "type": "int64", "name": "io.debezium.time.NanoTimestamp"}
    message["schema"]["fields"][0]["fields"] = [nanos]
    message["payload"]["after"] = {"id": 1, "local": 1_767_323_045_000_000_000}
    apply(table, [message])
    assert rows_of(table.scan())[0]["local"] == dt.datetime(2026, 1, 2, 3, 4, 5)


def test_a_key_that_changes_is_deleted_under_its_old_value(tmp_path: Path) -> None:
    schema = keyed(pa.field("v", pa.int64()))
    messages = [
        {"op": "r", "before": None, "after": {"id": 1, "v": 1}},
        {"op": "u", "before": {"id": 1, "v": 1}, "after": {"id": 2, "v": 1}},
        {"op": "m", "message": "not a row"},
    ]
    found = list(mw.from_debezium(messages, schema, "id"))
    assert [(write.kind, write.rows.column("id").to_pylist()) for write in found] == [
        ("put", [1]),
        ("delete", [1]),
        ("put", [2]),
    ]


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"op": "x"},
        {"op": "t"},
        {"op": "c", "after": None},
        {"op": "d", "before": None},
        {"op": "c", "after": {"id": 1, "unknown": 2}},
        {"op": "c", "after": {"id": 1, "data": "no base64!"}},
        {"op": "c", "after": {"id": 1, "price": "much"}},
        "[1]",
    ],
)
def test_what_is_no_change_of_the_table_is_refused(message: Any) -> None:
    with pytest.raises(mw.InvalidInputError):
        list(mw.from_debezium([message], SCHEMA, "id"))
