"""A writer that slept through takeover, flush, compaction and collection cannot acknowledge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from gc_child import put_and_stop

import lance_memwal as mw
from lance_memwal.store import paths
from lance_memwal.upkeep.gc import Collector
from lance_memwal.upkeep.reports import CollectedObject
from lance_memwal.upkeep.verify import ShardFindings
from tests.harness.processes import start

SHARD = "11111111-2222-4333-8444-555555555555"


def _wake_after_collection(place: Path, point: str) -> tuple[str, mw.Table]:
    """What a writer says that was stopped at `point` while everything else happened."""
    table = mw.create_table(
        str(place),
        pa.schema([("id", pa.int64()), ("v", pa.string())]),
        primary_key="id",
        sharding=mw.Manual(),
        allow_keys_across_shards=True,
    )
    child = start(put_and_stop, table.uri, SHARD, point)
    assert child.receive(20.0) == ("stopping",)
    child.wait_until_stopped(20.0)
    for value in ("first", "second"):
        with table.shard_writer(SHARD, fsync=False) as successor:
            successor.put({"id": [10], "v": [value]})
    table.compact()
    report = table.gc(grace_seconds=0)
    assert report.count("entry") >= 1
    assert not report.refused
    child.resume()
    message = child.receive(30.0)
    assert message is not None
    child.wait(30.0)
    return message[0], table


@pytest.mark.parametrize("point", ["wal.before_put", "flush.before_write", "flush.before_commit"])
def test_a_writer_that_slept_through_everything_is_fenced(tmp_path: Path, point: str) -> None:
    outcome, table = _wake_after_collection(tmp_path / "t", point)
    assert outcome == "fenced"
    assert {row["id"]: row["v"] for row in table.scan().to_table().to_pylist()} == {1: "acknowledged", 10: "second"}
    table.compact()
    assert sorted(lance.dataset(table.uri).to_table()["id"].to_pylist()) == [1, 10]
    assert table.verify().ok


def test_the_sentinels_are_what_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the protection off (sentinels are collected like any entry) the sleeper acknowledges, and its row is lost."""

    def all_covered(self: Collector, shard: object, findings: ShardFindings) -> Iterator[CollectedObject]:
        for position in sorted(findings.entries)[:-1]:
            yield CollectedObject(paths.wal_entry_path(findings.shard_id, position), 0, "entry")

    monkeypatch.setattr(Collector, "_entries", all_covered)
    outcome, table = _wake_after_collection(tmp_path / "t", "wal.before_put")
    assert outcome == "acknowledged"
    assert table.get(2) is None
