"""What tests of the feed share: changes as plain rows, a dict that applies them, and a collection that others come to."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

import lance_memwal as mw
from lance_memwal import crash_points
from tests.harness.points import run_once_at

EXTRA = ("_op", "_shard", "_position", "_time", "_txn")


def ops_of(batches: Iterable[pa.RecordBatch], *columns: str) -> list[tuple[Any, ...]]:
    names = ["_op", *columns]
    return [tuple(row[name] for name in names) for batch in batches for row in batch.to_pylist()]


def apply(state: dict[Any, Any], batch: pa.RecordBatch, key: str | Sequence[str] = "id") -> None:
    """Let `state` follow the changes of one batch; where `key` has a sequence of columns, the keys are tuples."""
    for row in batch.to_pylist():
        value = row[key] if isinstance(key, str) else tuple(row[name] for name in key)
        if row["_op"] in ("d", "delete"):
            state.pop(value, None)
        elif row["_op"] != "update_before":
            state[value] = {name: value for name, value in row.items() if name not in EXTRA}


def mirrored(batches: Iterable[pa.RecordBatch], key: str = "id") -> dict[Any, Any]:
    state: dict[Any, Any] = {}
    for batch in batches:
        apply(state, batch, key)
    return state


def collect_while(table: mw.Table, point: str, come: Callable[[], object]) -> None:
    """Collect, and let somebody come when collection is at `point` first."""
    came = run_once_at(point, come)
    try:
        table.gc(grace_seconds=0)
    finally:
        crash_points.install(None)
    assert came, f"collection was never at {point}"
