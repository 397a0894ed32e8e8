"""Changes as Debezium envelopes, and envelopes as writes.

Owns `to_debezium` and `from_debezium`. An envelope is a dict that JSON can hold: `{"before", "after", "op", "ts_ms", "source",
"transaction"}`, alone or as the `payload` beside a `schema`. Values outside of JSON:

| value | as Debezium writes it |
|---|---|
| timestamp with a zone | text of ISO 8601 (ZonedTimestamp) |
| timestamp without one | microseconds since 1970 (MicroTimestamp) |
| date | days since 1970 |
| decimal | text (`decimal.handling.mode=string`); the bytes of `precise` are read, too |
| bytes | base64 |

Invariants:

1. What goes out and comes in again is the same rows.
2. A message says more than its values only if its `schema` does: it tells the unit of a number that is a time.
3. The order of the messages is the order of the writes.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa

from lance_memwal.errors import InvalidInputError
from lance_memwal.feed.changed_rows import EXTRA

__all__ = ["DebeziumWrite", "from_debezium", "to_debezium"]

_EXTRA = frozenset(field.name for field in EXTRA)
_EPOCH_DAY = dt.date(1970, 1, 1)
_EPOCH = dt.datetime(1970, 1, 1)
_UNITS = {
    "io.debezium.time.Timestamp": 1_000,
    "io.debezium.time.MicroTimestamp": 1,
    "org.apache.kafka.connect.data.Timestamp": 1_000,
}
_NANOS = "io.debezium.time.NanoTimestamp"
_DECIMAL = "org.apache.kafka.connect.data.Decimal"


# ---------------------------------------------------------------------------------------------------------------- out


def to_debezium(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The envelopes of a batch of a feed, in order; with `before=True` they hold both images.

    Rows of a snapshot are `r`, inserts `c`, updates `u`, deletes `d`. Without images a put is `u` (it may be the first one of
    its key), and of a deleted row only the key is known.
    """
    names = [name for name in batch.schema.names if name not in _EXTRA]
    found: list[dict[str, Any]] = []
    before: dict[str, Any] | None = None
    for row in batch.to_pylist():
        values = {name: _encoded(row[name]) for name in names}
        op = row["_op"]
        if op == "update_before":
            before = values
            continue
        if op in ("d", "delete"):
            found.append(_envelope(row, "d", _known(values) if op == "d" else values, None))
        else:
            first = "c" if op == "insert" else "u"
            found.append(_envelope(row, "r" if row["_shard"] is None else first, before, values))
        before = None
    return found


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _envelope(
    row: Mapping[str, Any], op: str, before: dict[str, Any] | None, after: dict[str, Any] | None
) -> dict[str, Any]:
    time, txn = row["_time"], row["_txn"]
    return {
        "before": before,
        "after": after,
        "op": op,
        "ts_ms": None if time is None else int(time.timestamp() * 1000),
        "source": {
            "connector": "lance-memwal",
            "shard": row["_shard"],
            "position": row["_position"],
            "snapshot": "true" if row["_shard"] is None else "false",
        },
        "transaction": None if txn is None else {"id": f"{txn['app']}:{txn['version']}"},
    }


def _encoded(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return (value - _EPOCH) // dt.timedelta(microseconds=1) if value.tzinfo is None else value.isoformat()
    if isinstance(value, dt.date):
        return (value - _EPOCH_DAY).days
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {name: _encoded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


# ----------------------------------------------------------------------------------------------------------------- in


@dataclass(frozen=True, slots=True)
class DebeziumWrite:
    """Rows to put, or keys to delete, of messages that follow each other: `writer.put(write.rows)` or
    `writer.delete(write.rows)`."""

    kind: Literal["put", "delete"]
    rows: pa.Table


def from_debezium(
    messages: Iterable[Mapping[str, Any] | str | bytes | None], schema: pa.Schema, primary_key: str | Sequence[str]
) -> Iterator[DebeziumWrite]:
    """What to write for these messages, in their order, in columns of `schema`; null messages (tombstones) say nothing.

    A message is an envelope, or its JSON. A row whose key changed is deleted under the old one. Columns that a message lacks
    are null.
    """
    key = [primary_key] if isinstance(primary_key, str) else list(primary_key)
    kind: Literal["put", "delete"] | None = None
    rows: list[dict[str, Any]] = []
    for message in messages:
        for step, row in _writes(message, schema, key):
            if step != kind and kind is not None:
                yield _write(kind, rows, schema, key)
                rows = []
            kind = step
            rows.append(row)
    if kind is not None:
        yield _write(kind, rows, schema, key)


def _write(
    kind: Literal["put", "delete"], rows: list[dict[str, Any]], schema: pa.Schema, key: list[str]
) -> DebeziumWrite:
    columns = schema.remove_metadata() if kind == "put" else pa.schema([schema.field(name) for name in key])
    arrays = [_column([row[field.name] for row in rows], field) for field in columns]
    return DebeziumWrite(kind, pa.Table.from_arrays(arrays, schema=columns))


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        raise InvalidInputError(f"a message holds a value of column {field.name!r} that is no {field.type}") from None


def _writes(
    message: Mapping[str, Any] | str | bytes | None, schema: pa.Schema, key: list[str]
) -> Iterator[tuple[Literal["put", "delete"], dict[str, Any]]]:
    value = _parsed(message)
    payload = value.get("payload", value) if isinstance(value, Mapping) else value
    if payload is None:
        return
    if not isinstance(payload, Mapping) or payload.get("op") not in ("c", "u", "r", "d", "t", "m"):
        raise InvalidInputError("not an envelope of Debezium: it has no 'op' of c, u, r, d, t or m")
    op, types = payload["op"], _types(value)
    if op == "t":
        raise InvalidInputError("a message says that the whole table was emptied: do that first, then go on after it")
    if op == "m":
        return  # words of the database, not rows
    before = _decoded(payload.get("before"), schema, types)
    after = _decoded(payload.get("after"), schema, types)
    if (before if op == "d" else after) is None:
        raise InvalidInputError(
            f"an envelope of op {op!r} lacks the row {'before' if op == 'd' else 'after'} the change"
        )
    if before is not None and (op == "d" or (after is not None and _key(before, key) != _key(after, key))):
        yield "delete", {name: before[name] for name in key}
    if op != "d" and after is not None:
        yield "put", after


def _parsed(message: Mapping[str, Any] | str | bytes | None) -> Any:
    if not isinstance(message, str | bytes):
        return message
    try:
        return json.loads(message)
    except (ValueError, RecursionError):
        raise InvalidInputError("a message is not JSON") from None


def _key(row: Mapping[str, Any], key: list[str]) -> list[Any]:
    return [row.get(name) for name in key]


def _types(message: Any) -> dict[str, Mapping[str, Any]]:
    """What the schema of a message says of its fields."""
    schema = message.get("schema") if isinstance(message, Mapping) else None
    images = [image for image in _fields(schema) if image["field"] in ("before", "after")]
    return {field["field"]: field for image in images for field in _fields(image)}


def _fields(schema: Any) -> list[Mapping[str, Any]]:
    """The fields of a schema that have a name; none, if it is no schema."""
    fields = schema.get("fields") if isinstance(schema, Mapping) else None
    listed = fields if isinstance(fields, list) else []
    return [field for field in listed if isinstance(field, Mapping) and isinstance(field.get("field"), str)]


def _decoded(
    row: Mapping[str, Any] | None, schema: pa.Schema, types: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any] | None:
    if row is None:
        return None
    if not isinstance(row, Mapping):
        raise InvalidInputError("not an envelope of Debezium: what it calls a row is none")
    unknown = sorted(set(row) - set(schema.names))
    if unknown:
        raise InvalidInputError(f"a message has a column {unknown[0]!r}, which the table has not")
    return {
        field.name: _value(row.get(field.name), field.type, types.get(field.name, {}), field.name) for field in schema
    }


def _value(value: Any, kind: pa.DataType, told: Mapping[str, Any], name: str) -> Any:
    try:
        return value if value is None or isinstance(value, bool) else _converted(value, kind, told)
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise InvalidInputError(f"a message holds a value of column {name!r} that is no {kind}: {error}") from None


def _converted(value: Any, kind: pa.DataType, told: Mapping[str, Any]) -> Any:
    types = pa.types
    if types.is_timestamp(kind):
        return _timestamp(value, str(told.get("name", "")))
    if types.is_date(kind) and isinstance(value, int):
        return _EPOCH_DAY + dt.timedelta(days=value)
    if types.is_decimal(kind):
        return _decimal(value, told)
    if isinstance(value, str) and (types.is_binary(kind) or types.is_large_binary(kind)):
        return base64.b64decode(value, validate=True)
    return value


def _timestamp(value: Any, unit: str) -> Any:
    if isinstance(value, str):
        return dt.datetime.fromisoformat(value)
    if unit == _NANOS:
        value //= 1000
    return _EPOCH + dt.timedelta(microseconds=value * _UNITS.get(unit, 1))


def _decimal(value: Any, told: Mapping[str, Any]) -> Decimal:
    if told.get("name") == _DECIMAL and isinstance(value, str):
        scale = int(told.get("parameters", {}).get("scale", 0))
        return Decimal(int.from_bytes(base64.b64decode(value), signed=True)).scaleb(-scale)
    return Decimal(str(value))
