"""A kill while a write is resolved, or between its entry and its answer."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pytest

import lance_memwal as mw
from tests.harness.deaths import DEADLINE_SECONDS, KILLED
from tests.harness.kill_points import kill_at
from tests.harness.processes import start

BEFORE = {"id": 1, "a": 1, "b": "kept"}
AFTER = {"id": 1, "a": 2, "b": "kept"}


def update_once(uri: str, point: str, pipe: Connection) -> None:
    """Die in the middle of a partial update."""
    writer = mw.open_table(uri).writer(fsync=False)
    writer.put([{"id": 2, "a": 0, "b": "other"}])
    pipe.send("ready")
    kill_at(point)
    writer.update({"id": [1], "a": [2]}, txn=("job", 1))
    pipe.send("done")


@pytest.mark.parametrize("point", ["resolve.before_insert", "wal.before_put", "wal.after_put", "put.before_ack"])
def test_an_update_that_is_killed_is_there_whole_or_not_at_all(point: str, tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    table = mw.create_table(uri, pa.Table.from_pylist([BEFORE]), primary_key="id")
    child = start(update_once, uri, point)
    assert child.receive(DEADLINE_SECONDS) == "ready"
    assert child.wait(DEADLINE_SECONDS) == KILLED
    landed = point in ("wal.after_put", "put.before_ack")
    assert table.get(1) == (AFTER if landed else BEFORE)
    with table.writer(fsync=False) as writer:
        assert writer.update({"id": [1], "a": [2]}, txn=("job", 1)).skipped is landed
        assert writer.get(1) == AFTER
        assert writer.compare_and_set(1, AFTER, None, txn=("job", 2))
        assert writer.get(1) is None
