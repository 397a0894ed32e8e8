"""Tables about a table: `SELECT * FROM lake.orders.history`, and the answers of procedures.

Owns their columns and rows; a row is a list of JSON values, times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import types as st

from lance_memwal.table import Table

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def listed(columns: Mapping[str, st.DataType], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Rows as the JVM takes them."""
    schema = st.StructType([st.StructField(name, kind) for name, kind in columns.items()])
    return {"schema": json.loads(schema.json()), "rows": [list(row) for row in rows]}


def _history(table: Table) -> dict[str, Any]:
    """Every version of the base table that is still there, the newest first, and what made it."""
    dataset, rows = table.dataset, []
    for version in reversed(dataset.versions()):
        number, moment = int(str(version["version"])), version["timestamp"]
        made = dataset.read_transaction(number)
        operation = None if made is None else type(made.operation).__name__
        rows.append((number, _micros(moment) if isinstance(moment, datetime) else None, operation))
    return listed({"version": st.LongType(), "timestamp": st.TimestampType(), "operation": st.StringType()}, rows)


def _micros(moment: datetime) -> int:
    aware = moment.astimezone(UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def _shards(table: Table) -> dict[str, Any]:
    """Every shard on storage."""
    rows = [
        (info.shard_id, info.epoch, str(info.status.name).lower(), len(info.generations), info.wal_tail, info.bytes)
        for info in table.shards()
    ]
    columns: dict[str, st.DataType] = {
        "shard": st.StringType(),
        "epoch": st.LongType(),
        "status": st.StringType(),
        "generations": st.LongType(),
        "log_entries": st.LongType(),
        "bytes": st.LongType(),
    }
    return listed(columns, rows)


def _now(table: Table) -> dict[str, Any]:
    """The table as it is, as a text that VERSION AS OF and CHANGES take."""
    return listed({"snapshot": st.StringType()}, [(str(table.snapshot()),)])


def _checkpoints(table: Table) -> dict[str, Any]:
    """The moments that are kept by name."""
    rows = [(kept.name, _micros(kept.created), str(kept.snapshot)) for kept in table.checkpoints.list()]
    return listed({"name": st.StringType(), "created": st.TimestampType(), "snapshot": st.StringType()}, rows)


LISTINGS: dict[str, Callable[[Table], dict[str, Any]]] = {
    "checkpoints": _checkpoints,
    "history": _history,
    "now": _now,
    "shards": _shards,
}


# ---------------------------------------------------------------------------------------------------------- procedures


def _reported(report: Any) -> dict[str, Any]:
    """The numbers of a report, by name; of what it lists, how much."""
    rows = []
    for item in fields(report):
        value = getattr(report, item.name)
        if isinstance(value, bool | int | float | str):
            rows.append((item.name, str(value)))
        elif isinstance(value, Sequence | Mapping):
            rows.append((item.name, str(len(value))))
    return listed({"name": st.StringType(), "value": st.StringType()}, rows)


def _flush(table: Table) -> dict[str, Any]:
    rows = [(done.shard_id, done.rows, done.skipped) for done in table.flush().shards]
    return listed({"shard": st.StringType(), "rows": st.LongType(), "skipped": st.StringType()}, rows)


def _verify(table: Table) -> dict[str, Any]:
    rows = [(found.where, found.what, found.remedy) for found in table.verify().problems]
    return listed({"where": st.StringType(), "what": st.StringType(), "remedy": st.StringType()}, rows)


def _checkpoint(table: Table, name: str) -> dict[str, Any]:
    kept = table.checkpoints.create(name)
    return listed({"name": st.StringType(), "snapshot": st.StringType()}, [(kept.name, str(kept.snapshot))])


def _checkpoint_drop(table: Table, name: str) -> dict[str, Any]:
    table.checkpoints.drop(name)
    return listed({"name": st.StringType()}, [(name,)])


PROCEDURES: dict[str, Callable[..., dict[str, Any]]] = {
    "checkpoint": _checkpoint,
    "checkpoint_drop": _checkpoint_drop,
    "compact": lambda table: _reported(table.compact(flush=True)),
    "flush": _flush,
    "gc": lambda table: _reported(table.gc()),
    "maintain": lambda table: _reported(table.maintain()),
    "verify": _verify,
}
