"""Over a Connect server: batch and streaming sink, source, executor mode, maintenance jobs, and SQL. One server for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from asked import Asked

from tests.kit.spark_sql import EXPECTED_SQL


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """A client of a server of its own, with the JVM face sent to it as an artifact."""
    made = Asked([], tmp_path_factory.mktemp("connect") / "log", script="connect_child.py")
    yield made
    made.close()


def test_the_face_reaches_the_server_as_an_artifact(remote: Asked) -> None:
    kind, face = remote.ask("kind")
    assert ".connect." in kind
    assert face == "jvm"


def test_sinks_source_and_compaction_work_over_connect(remote: Asked, tmp_path: Path) -> None:
    assert remote.ask("sinks", str(tmp_path)) == {
        "compacted": 200,
        "by_tasks": [0, 50, 1],
        "base": 150,
        "read": 160,
        "ids": 160,
        "written": [10, 0],
    }


def test_a_stream_over_connect_is_exactly_once(remote: Asked, tmp_path: Path) -> None:
    assert remote.ask("stream", str(tmp_path)) == [0, 0]


def test_two_calls_of_write_batch_in_one_foreach_batch_both_count_over_connect(remote: Asked, tmp_path: Path) -> None:
    assert remote.ask("foreach_batch", str(tmp_path)) == [True, 2]


def test_every_statement_works_over_connect(remote: Asked, tmp_path: Path) -> None:
    assert remote.ask("statements", str(tmp_path)) == EXPECTED_SQL
