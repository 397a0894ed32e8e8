"""Two streams, a backfill, merges and compaction on one table, while drivers and executors are SIGKILLed: 0 lost, 0 doubled."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from killing import Driver, kill_executors, wait_for

import lance_memwal as mw
from tests.kit.compacting import compacting
from tests.kit.spark_killed import committed, expected_rows, give_streams, job_ids, lost_and_doubled, make_places
from tests.kit.spark_tables import keyed

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
def test_ten_drivers_and_ten_executors_are_killed_and_tasks_are_run_twice(
    cluster: Any, uri: str, tmp_path: Path
) -> None:
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
