"""Debezium: write change events into a table, and write a table's changes as events. Copy the functions that you need.

Run: `python examples/debezium.py`

`schemas.enable=false` and `decimal.handling.mode=string` are assumed: timestamps with a zone are ISO 8601 strings, timestamps
without one are microseconds, dates are days since 1970, decimals are strings, bytes are base64.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import tempfile
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

import lance_memwal as mw

EPOCH, EPOCH_DAY = dt.datetime(1970, 1, 1), dt.date(1970, 1, 1)
FEED_COLUMNS = {"_op", "_shard", "_position", "_time", "_txn"}


def encode(value: Any) -> Any:
    """A column value as Debezium writes it."""
    if isinstance(value, dt.datetime):
        return value.isoformat() if value.tzinfo else (value - EPOCH) // dt.timedelta(microseconds=1)
    if isinstance(value, dt.date):
        return (value - EPOCH_DAY).days
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, Decimal) else value


def decode(value: Any, kind: pa.DataType) -> Any:
    """The value that Debezium wrote, for a column of type `kind`."""
    if pa.types.is_timestamp(kind) and value is not None:
        is_text = isinstance(value, str)
        return dt.datetime.fromisoformat(value) if is_text else EPOCH + dt.timedelta(microseconds=value)
    if pa.types.is_date(kind) and value is not None:
        return EPOCH_DAY + dt.timedelta(days=value)
    if pa.types.is_binary(kind) and value is not None:
        return base64.b64decode(value, validate=True)
    return Decimal(value) if pa.types.is_decimal(kind) and value is not None else value


def to_events(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The events of one batch of `table.changes(before=True)`."""
    before = None
    for row in batch.to_pylist():
        values = {name: encode(value) for name, value in row.items() if name not in FEED_COLUMNS}
        if row["_op"] == "update_before":
            before = values
            continue
        is_delete = row["_op"] == "delete"
        op = "r" if row["_shard"] is None else {"insert": "c", "delete": "d"}.get(row["_op"], "u")
        time = None if row["_time"] is None else int(row["_time"].timestamp() * 1000)
        images = {"before": values if is_delete else before, "after": None if is_delete else values}
        yield images | {"op": op, "ts_ms": time, "source": {"shard": row["_shard"], "position": row["_position"]}}
        before = None


def to_writes(events: Iterable[str], table: mw.Table) -> Iterator[tuple[str, pa.Table]]:
    """`("put", rows)` and `("delete", keys)` for the events, in their order. A row whose key changed is deleted first."""
    schema, key = table.schema.remove_metadata(), table.primary_key
    keys = pa.schema([schema.field(name) for name in key])

    def steps() -> Iterator[tuple[str, dict[str, Any]]]:
        for text in events:
            event = json.loads(text)
            if event is None or event["op"] == "m":  # a tombstone for Kafka's compaction, or a message without a row
                continue
            if event["op"] == "t":
                raise ValueError("the source table was truncated; delete the rows of the copy, then continue")
            before, after = event["before"], event["after"]
            is_moved = before and after and any(before[name] != after[name] for name in key)
            if event["op"] == "d" or is_moved:
                yield "delete", before
            if event["op"] != "d":
                yield "put", after

    for kind, group in groupby(steps(), key=lambda step: step[0]):
        columns = schema if kind == "put" else keys
        rows = [{field.name: decode(row[field.name], field.type) for field in columns} for _, row in group]
        yield kind, pa.Table.from_pylist(rows, columns)


def check(is_right: bool) -> None:
    """Stop if the copy is not what it should be."""
    if not is_right:
        raise SystemExit("the copy differs from its source")


def main() -> None:
    """Copy a table through its events and compare the copies."""
    fields = [("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("day", pa.date32())]
    schema = pa.schema([*fields, ("price", pa.decimal128(10, 2)), ("data", pa.binary())])
    row = {"at": dt.datetime(2026, 1, 2, 3, 4, 5, 678, dt.UTC), "day": dt.date(2026, 1, 31), "data": b"\x00\xff"}
    with tempfile.TemporaryDirectory() as directory:
        source = mw.create_table(str(Path(directory) / "source"), schema, primary_key="id")
        with source.writer() as writer:
            writer.put([{"id": n, "name": f"n{n}", "price": Decimal("12.30"), **row} for n in range(4)])
            writer.put([{"id": 2, "name": "two", "price": None, **row}])
            writer.delete([0, 3])
        events = [json.dumps(event) for batch in source.changes(before=True, until="now") for event in to_events(batch)]
        check([json.loads(event)["op"] for event in events] == ["c", "c", "c", "c", "u", "d", "d"])
        moved = {"op": "u", "before": {"id": 1}, "after": json.loads(events[1])["after"] | {"id": 9}}

        copy = mw.create_table(str(Path(directory) / "copy"), schema, primary_key="id")
        with copy.writer() as writer:
            for kind, rows in to_writes([*events, "null"], copy):
                (writer.put if kind == "put" else writer.delete)(rows)
            check(copy.scan(order_by=["id"]).to_table() == source.scan(order_by=["id"]).to_table())
            for kind, rows in to_writes([json.dumps(moved)], copy):
                (writer.put if kind == "put" else writer.delete)(rows)
        check(copy.scan(order_by=["id"]).to_table()["id"].to_pylist() == [2, 9])
        print(f"{len(events)} events copied {source.count_rows()} rows")


if __name__ == "__main__":
    main()
