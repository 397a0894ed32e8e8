"""Sinks, a writer that comes and goes, and maintenance on one table, in processes that are killed."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.harness.processes import Child, start
from tests.harness.profile import scaled
from tests.wal.sink_children import SHARD, append_ids, keep_tidy, write_ids


@pytest.mark.scaled
@pytest.mark.timeout(scaled(ci=60, prove=400))
def test_processes_beside_each_other_lose_and_double_nothing(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])
    uri, stop = str(tmp_path / "t"), str(tmp_path / "stop")
    table = mw.create_table(uri, schema, sharding=mw.Unsharded(), writer_defaults={"fsync": False})
    draw, names = random.Random(7), itertools.count(1)

    def begin(kind: str) -> Child:
        if kind == "tidy":
            return start(keep_tidy, uri, stop)
        name = next(names)
        return start(append_ids if kind == "sink" else write_ids, uri, str(tmp_path / f"acks-{name}"), name, stop)

    kinds = ["sink"] * 4 + ["writer", "tidy"]
    children = [begin(kind) for kind in kinds]
    end = time.monotonic() + scaled(ci=6.0, prove=120.0)
    while time.monotonic() < end:
        time.sleep(0.7)
        victim = draw.randrange(len(children))
        children[victim].kill()
        children[victim] = begin(kinds[victim])
    (tmp_path / "stop").touch()
    for kind, child in zip(kinds, children, strict=True):
        assert child.receive(90) == ("done", []), f"a {kind} that lives failed"
    acked = Counter(int(line) for path in tmp_path.glob("acks-*") for line in path.read_text().split("\n")[:-1])
    found = Counter(table.scan(columns=["id"]).to_table().column("id").to_pylist())
    assert len(acked) > 20
    assert acked.keys() - found.keys() == set(), "lost"
    assert [number for number, times in found.items() if times > 1] == [], "doubled"
    assert table.verify().problems == []
    shards = {info.shard_id: info for info in table.shards()}
    assert shards[SHARD].epoch > 1, "a writer was there"
