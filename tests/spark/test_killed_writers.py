"""Drivers, JVM and executors are SIGKILLed again and again: 0 lost, 0 doubled."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from killing import Driver, kill_executors, wait_for

import lance_memwal as mw
from tests.kit.spark import (
    append_only,
    committed,
    expected_rows,
    give_streams,
    ids_of,
    job_ids,
    judge,
    keyed,
    lost_and_doubled,
    make_input,
    make_places,
)
from tests.kit.tables import compacting

ROUNDS = 5


class Writers:
    """Drivers by role, started again after each kill; who ends without being killed is an error."""

    def __init__(self, roles: list[str], master: str, root: Path, uri: str) -> None:
        self._root = root
        self._arguments = {role: [role, master, str(root), uri] for role in roles}
        self._drivers = {role: self._start(role) for role in roles}
        self.given = 0

    def _start(self, role: str) -> Driver:
        return Driver(self._arguments[role], self._root / "log", script="writers_child.py")

    def progress(self) -> tuple[int, ...]:
        """How far each of them is."""
        return committed(self._root, "a"), committed(self._root, "b"), len(job_ids(self._root))

    def work_until(self, done: Callable[[], bool], seconds: float = 900) -> None:
        """Give the streams more as they go on, until `done`."""
        deadline = time.monotonic() + seconds
        while not done():
            if self.given < min(self.progress()[:2]) + 2:
                give_streams(self._root, self.given)
                self.given += 1
            for role, driver in self._drivers.items():
                assert driver.process.poll() is None, f"{role} failed: {(self._root / 'log').read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"no progress: {self.progress()}"
            time.sleep(0.05)

    def step(self) -> None:
        """Every writer gets on by one at least."""
        before = self.progress()
        self.work_until(lambda: all(now > then for now, then in zip(self.progress(), before, strict=True)))

    def kill(self, role: str) -> None:
        assert self._drivers[role].kill_all() > 0
        self._drivers[role] = self._start(role)

    def end(self) -> None:
        """Let all of them finish what they have been given."""
        (self._root / "stop").touch()
        for role, driver in self._drivers.items():
            assert driver.process.wait(600) == 0, f"{role} failed: {(self._root / 'log').read_text()[-3000:]}"

    def close(self) -> None:
        for driver in self._drivers.values():
            driver.kill_all()


def check(table: mw.Table, root: Path, given: int) -> None:
    assert lost_and_doubled(table, expected_rows(root, given)) == (0, 0)
    assert table.verify().problems == []


def test_a_killed_driver_of_several_writers_loses_and_doubles_nothing(uri: str, tmp_path: Path) -> None:
    root = tmp_path / "work"
    make_places(root)
    table = keyed(uri, 2)
    writers = Writers(["streams,jobs"], "local[2]", root, uri)
    try:
        with compacting(table):
            writers.step()
            writers.kill("streams,jobs")
            writers.end()
    finally:
        writers.close()
    check(table, root, writers.given)


@pytest.mark.prove
def test_ten_drivers_and_executors_are_killed_and_tasks_run_twice(cluster: Any, uri: str, tmp_path: Path) -> None:
    root, rng = tmp_path / "work", random.Random(11)
    make_places(root)
    table = keyed(uri, 4)
    writers = Writers(["streams", "jobs"], cluster.master, root, uri)
    drivers = executors = 0
    try:
        with compacting(table):
            writers.step()
            for _ in range(ROUNDS):
                executors += kill_executors(cluster.workers, 2, rng)
                writers.step()
                for role in rng.sample(["streams", "jobs"], 2):
                    writers.kill(role)
                    drivers += 1
                writers.step()
            assert (drivers, executors) == (2 * ROUNDS, 2 * ROUNDS)
            wait_for(lambda: any((root / "speculated").iterdir()), "a second attempt of a task", 1)
            writers.end()
    finally:
        writers.close()
    check(table, root, writers.given)
    print(f"kills: {drivers} drivers, {executors} executors; second attempts: {len(list((root / 'speculated').iterdir()))}; "
          f"micro-batches: 2 x {writers.given}, jobs: {len(job_ids(root))}")  # fmt: skip


BATCHES = 30
KILLS = 6


def committed_batches(checkpoint: Path) -> int:
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
                alive = driver.wait_until(lambda due=due: committed_batches(checkpoint) >= due)
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
    table = append_only(uri, 4, writer_defaults={"max_memtable_size": 20_000})
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
