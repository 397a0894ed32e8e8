"""Moments on object stores: the same answers, and what they cost in requests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import lance_memwal as mw

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
SHARDS = 2
KEYS = list(range(40))
pytestmark = pytest.mark.xdist_group("services")


def put(table: mw.Table, value: str) -> None:
    with table.writer(compaction=None) as writer:
        writer.put({"id": KEYS, "v": [value] * len(KEYS)})


def values(view: mw.TableView) -> set[str]:
    return set(view.scan().to_table()["v"].to_pylist())


def test_moments_on_s3(s3_table: tuple[str, dict[str, str]]) -> None:
    uri, options = s3_table
    table = mw.create_table(uri, SCHEMA, primary_key="id", sharding=mw.Bucket("id", SHARDS), storage_options=options)
    put(table, "first")
    metrics = table.location.metrics

    def calls() -> int:
        return sum(stats.count for stats in metrics.snapshot().values())

    before = calls()
    snapshot = table.snapshot()
    assert calls() - before <= 4 + 4 * SHARDS
    assert len(snapshot.shards) == SHARDS
    before = calls()
    assert values(table.at(snapshot)) == {"first"}
    assert calls() - before <= 10 + 12 * SHARDS
    table.checkpoint_create("kept", lifetime=timedelta(days=1))
    for value in ("second", "third"):
        put(table, value)
    table.compact()
    assert values(table.at(datetime.now(UTC) + timedelta(seconds=2))) == {"third"}
    table.gc(grace_seconds=0)
    assert values(table.at("kept")) == values(table.at(snapshot)) == {"first"}
    assert {row["_op"] for row in table.diff("kept", table.snapshot()).to_pylist()} == {"update"}
    table.checkpoint_drop("kept")
    table.gc(grace_seconds=0)
    with pytest.raises(mw.CollectedError):
        table.at(snapshot)
