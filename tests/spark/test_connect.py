"""Over a Connect server: batch and streaming sink, source, executor mode, maintenance jobs, and SQL. One server for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from asked import Asked

from tests.kit.spark import EXPECTED_SQL


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


def test_calls_of_write_batch_in_foreach_batch_need_an_app_id_over_connect(remote: Asked, tmp_path: Path) -> None:
    all_rows, transactions, refused = remote.ask("foreach_batch", str(tmp_path))
    assert (all_rows, transactions) == (True, 2)
    assert "over Spark Connect: a name for this writer" in refused


@pytest.mark.parametrize("start", ["snapshot", "earliest"])
def test_replayed_first_batch_of_a_feed_over_connect(remote: Asked, tmp_path: Path, start: str) -> None:
    assert remote.ask("first_batch", str(tmp_path), start) == [30, 40]


def test_every_statement_works_over_connect(remote: Asked, tmp_path: Path) -> None:
    assert remote.ask("statements", str(tmp_path)) == EXPECTED_SQL
