"""A standalone master with two workers: everything works there, and speculation writes nothing twice. One driver for all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asked import Asked

from tests.kit.spark import EXPECTED_SQL


@pytest.fixture(scope="module")
def remote(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """A driver whose executors are on the two workers."""
    made = Asked([cluster.master], tmp_path_factory.mktemp("driver") / "log", script="cluster_child.py")
    yield made
    made.close()


def test_the_face_is_in_use_on_a_cluster(remote: Asked) -> None:
    assert remote.ask("face") == "jvm"


def test_speculation_writes_nothing_twice(remote: Asked, tmp_path: Path) -> None:
    found = remote.ask("speculate", str(tmp_path / "speculated"))
    assert found.pop("second_attempts") > 0
    assert found == {"lost": 0, "duplicated": 0}


def test_sinks_source_and_compaction_on_two_workers(remote: Asked, tmp_path: Path) -> None:
    assert remote.ask("sinks", str(tmp_path)) == {
        "compacted": 200,
        "by_tasks": [20, 50, 1],
        "base": True,
        "read": 160,
        "ids": 160,
    }


def test_a_stream_on_two_workers_is_exactly_once(remote: Asked, tmp_path: Path) -> None:
    assert remote.ask("stream", str(tmp_path)) == [0, 0]


def test_every_statement_works_on_two_workers(remote: Asked, tmp_path: Path) -> None:
    assert remote.ask("statements", str(tmp_path)) == EXPECTED_SQL
