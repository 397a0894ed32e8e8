"""Writers and consumers that are killed at any instant: every change that landed is committed exactly once."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.harness.processes import Child, start
from tests.harness.profile import scaled
from tests.kit.tables import create, keyed

SCHEMA = keyed(pa.field("v", pa.int64()))
SHARDS = 3


def write(uri: str, first: int, pipe: Connection) -> None:
    """Put new keys without an end, now and then so many that they become a generation; tell what was acknowledged."""
    table, draw = mw.open_table(uri), random.Random(first)
    with table.writer(fsync=False, max_entry_bytes=4096, compaction=None) as writer:
        while True:
            count = 900 if draw.random() < 0.1 else draw.randint(1, 20)
            ids = list(range(first, first + count))
            writer.put({"id": ids, "v": ids})
            pipe.send((first, first + count))
            first += count
            if draw.random() < 0.1:
                writer.flush()


def follow(uri: str, target: str, pipe: Connection) -> None:
    """Apply every change to a file, then commit."""
    consumer = mw.open_table(uri).consumer("copy", start="earliest")
    pipe.send("opened")
    with open(target, "a", encoding="ascii") as file:
        for batch in consumer:
            for shard, position, key in zip(
                *(batch.column(name).to_pylist() for name in ("_shard", "_position", "id")), strict=True
            ):
                file.write(json.dumps([shard, position, key]) + "\n")
            file.flush()
            consumer.commit()


def kill(child: Child, draw: random.Random, at_most: float) -> list[Any]:
    """Kill a child after a while; returns what it told."""
    time.sleep(draw.random() * at_most)
    child.kill()
    told: list[Any] = []
    with suppress(EOFError):
        while (message := child.receive(30)) is not None:
            told.append(message)
    child.wait(30)
    return told


def committed_rows(table: mw.Table, target: Path) -> list[int]:
    """The keys that were applied and committed since this was asked last; the rest is forgotten, as a reader would."""
    lines = [json.loads(line) for line in target.read_text().splitlines() if line.endswith("]")]
    target.write_text("")
    (info,) = table.consumers()
    cursor = mw.Cursor.parse(info.cursor)
    kept, inside = [], Counter[str]()
    for shard, position, key in lines:
        place = cursor.place(shard)
        if position == place.position + 1:
            inside[shard] += 1
        if position <= place.position or (position == place.position + 1 and inside[shard] <= place.rows):
            kept.append(key)
    return kept


@pytest.mark.scaled
@pytest.mark.timeout(600)
def test_every_change_is_committed_once_although_both_ends_are_killed(tmp_path: Path) -> None:
    uri, target, draw = str(tmp_path / "t"), tmp_path / "applied", random.Random(5)
    table = create(uri, SCHEMA, sharding=mw.Bucket("id", SHARDS))
    table.consumer("copy", start="earliest")
    target.write_text("")
    first, acknowledged, kept = 0, set[int](), list[int]()
    for _ in range(scaled(ci=2, prove=40)):
        writer = start(write, uri, first)
        follower = start(follow, uri, str(target))
        assert follower.receive(60) == "opened"
        told = kill(follower, draw, 0.4)
        assert told == []
        kept += committed_rows(table, target)
        for low, high in kill(writer, draw, 0.3):
            acknowledged.update(range(low, high))
            first = max(first, high)
        first += 2000  # of what it was about to write nobody knows
        if draw.random() < 0.7:
            table.flush(idle_seconds=0)
            table.compact()
            table.gc(grace_seconds=0)
    last = table.consumer("copy", until="now")
    kept += [key for batch in last for key in batch.column("id").to_pylist()]
    there = table.scan(columns=["id"]).to_table().column("id").to_pylist()
    assert Counter(kept) == Counter(there), "what landed was committed once"
    assert acknowledged <= set(there)
    assert table.verify().ok
