"""Events that come in any order over batches leave the table that they leave in order, deletes included."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from lance_memwal.spark.options import Options
from lance_memwal.spark.pieces import write_pieces
from lance_memwal.spark.rows import OP, WritePlan
from lance_memwal.spark.sink import commit_pieces
from lance_memwal.spark.types import struct_type
from lance_memwal.types import Transaction
from tests.kit.spark_once import finish
from tests.kit.spark_tables import rows_of

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("value", pa.string()), pa.field("ts", pa.int64(), nullable=False)]
)
EVENTS = SCHEMA.append(pa.field(OP, pa.string()))
Event = dict[str, Any]


@pytest.fixture(params=["the table decides", "each write decides"])
def merge(request: pytest.FixtureRequest) -> mw.LastWrite | None:
    return mw.LastWrite(sequence="ts") if request.param == "the table decides" else None


def make(uri: str, merge: mw.LastWrite | None) -> mw.Table:
    defaults = {"fsync": False}
    return mw.create_table(
        uri, SCHEMA, primary_key="id", sharding=mw.Bucket("id", 2), merge=merge, writer_defaults=defaults
    )


def events(chance: random.Random, count: int, keys: int) -> list[Event]:
    """Changes of some keys, one after the other; every third is a delete."""
    made = []
    for ts in range(count):
        op = "d" if chance.random() < 0.33 else "u"
        made.append({"id": chance.randrange(keys), "value": None if op == "d" else f"v{ts}", "ts": ts, OP: op})
    return made


def outcome(ordered: list[Event]) -> dict[int, tuple[Any, ...]]:
    newest = {event["id"]: event for event in ordered}
    return {key: (event["value"], event["ts"]) for key, event in newest.items() if event[OP] == "u"}


@pytest.mark.parametrize("seed", range(4))
def test_batches_in_any_order_with_flush_and_compaction_between_them(
    uri: str, merge: mw.LastWrite | None, seed: int
) -> None:
    chance = random.Random(seed)
    table, ordered = make(uri, merge), events(chance, 90, 12)
    given = list(ordered)
    chance.shuffle(given)
    plan = WritePlan.make(table, struct_type(EVENTS), Options.parse({"path": uri, "sequenceBy": "TS"}))
    for number, start in enumerate(range(0, len(given), 9)):
        batch = pa.RecordBatch.from_pylist(given[start : start + 9], schema=EVENTS)
        commit_pieces(plan, [write_pieces(plan, "job", iter([batch]))], Transaction("cdc", number, "cdc"))
        if number % 3 == 1:
            table.flush(force=True)
        if number % 3 == 2:
            table.flush(force=True)
            table.compact()
    assert rows_of(table) == outcome(ordered)


def test_a_stream_of_disordered_events(spark: Any, uri: str, merge: mw.LastWrite | None, tmp_path: Path) -> None:
    chance = random.Random(7)
    table, ordered, source = make(uri, merge), events(chance, 60, 10), tmp_path / "in"
    given = list(ordered)
    chance.shuffle(given)
    source.mkdir()
    stream = spark.readStream.schema(f"id long, value string, ts long, {OP} string").option("maxFilesPerTrigger", 1)
    writer = stream.json(str(source)).writeStream.format("memwal").option("sequenceBy", "ts")
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    for part in range(4):
        path = source / f"{part}.json"
        path.write_text("\n".join(json.dumps(event) for event in given[part * 15 : part * 15 + 15]))
        os.utime(path, (part, part))
        if part % 2:
            finish(lambda: writer.start(uri))
            table.flush(force=True)
            table.compact()
    assert rows_of(table) == outcome(ordered)
