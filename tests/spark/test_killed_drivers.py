"""Driver, JVM and all workers are SIGKILLed again and again: 0 lost, 0 duplicated."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from killing import Driver

import lance_memwal as mw
from tests.kit.spark_once import judge, make_input
from tests.kit.spark_tables import append_only, ids_of

BATCHES = 30
KILLS = 6


def committed(checkpoint: Path) -> int:
    return sum(1 for path in (checkpoint / "offsets").glob("[0-9]*")) if (checkpoint / "offsets").is_dir() else 0


def run_and_kill(arguments: list[str], checkpoint: Path, log: Path, batches: int, kills: int) -> int:
    """Run a driver to the end, killing it `kills` times on the way; returns how often that succeeded."""
    rng = random.Random(7)
    made = 0
    for turn in range(kills + 1):
        driver = Driver(arguments, log)
        try:
            if turn < kills:
                due = batches * (turn + 1) // (kills + 1)
                alive = driver.wait_until(lambda due=due: committed(checkpoint) >= due)
                made += alive
                if alive:
                    driver.wait_until(lambda: rng.random() < 0.05)  # somewhere in the micro-batch
            else:
                assert driver.process.wait(1500) == 0, log.read_text()[-3000:]
        finally:
            driver.kill_all()
    return made


@pytest.mark.prove
def test_a_sink_whose_driver_and_workers_are_killed_is_exactly_once(uri: str, tmp_path: Path) -> None:
    table = append_only(uri, 4)
    expected = make_input(tmp_path / "in", BATCHES)
    checkpoint = tmp_path / "checkpoint"
    arguments = ["sink", "local[2]", str(tmp_path / "in"), uri, str(checkpoint)]
    assert run_and_kill(arguments, checkpoint, tmp_path / "log", BATCHES, KILLS) == KILLS
    assert (checkpoint / "done").exists()
    assert judge(table, expected) == (0, 0)
    assert table.verify().ok


@pytest.mark.prove
def test_a_feed_of_100000_rows_survives_two_kills_in_order(uri: str, tmp_path: Path) -> None:
    source = append_only(uri, 4)
    with source.writer() as writer:
        for start in range(0, 100_000, 1000):
            writer.put({"id": list(range(start, start + 1000)), "value": [str(start)] * 1000})
    target_uri, checkpoint = str(tmp_path / "copy"), tmp_path / "checkpoint"
    columns = pa.schema([("id", pa.int64()), ("shard", pa.string()), ("position", pa.int64())])
    target = mw.create_table(target_uri, columns, sharding=mw.Unsharded())
    arguments = ["feed", "local[2]", uri, target_uri, str(checkpoint)]
    assert run_and_kill(arguments, checkpoint, tmp_path / "log", 50, 2) == 2
    assert ids_of(target) == list(range(100_000))
    assert_in_order(target)


def assert_in_order(target: mw.Table) -> None:
    """Per shard of the source the positions never fall, in the order in which the copy got them."""
    tailer = mw.WalTailer(target.uri, target.shards()[0].shard_id)
    reached: dict[str, int] = {}
    for position in range(tailer.first_position(), tailer.next_position()):
        entry = tailer.read_entry(position)
        assert entry is not None
        for row in (row for batch in entry.batches for row in batch.select(["shard", "position"]).to_pylist()):
            assert row["position"] >= reached.get(row["shard"], 0)
            reached[row["shard"]] = row["position"]
    assert len(reached) == 4
