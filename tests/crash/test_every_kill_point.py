"""A kill at each named point of the order of effects, on every kind of table."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from lance_memwal.shard_writer import ShardWriter
from tests.harness.crash_child import ShardLife, all_rows
from tests.harness.crash_tables import KINDS, TableKind
from tests.harness.kill_points import FLUSH_POINTS, OPEN_POINTS, PUT_POINTS
from tests.harness.oracle import Oracle
from tests.harness.shard_audit import ShardAudit
from tests.harness.shard_crash import live_until_killed

SETTINGS = {"fsync": False, "max_memtable_rows": 6}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", [*OPEN_POINTS, *PUT_POINTS, *FLUSH_POINTS])
def test_a_kill_at_this_point_breaks_no_promise(point: str, kind: str, tmp_path: Path) -> None:
    uri, shard_id, oracle = str(tmp_path / "table"), str(uuid.uuid4()), Oracle()
    table = TableKind(kind)
    table.create(uri)
    first = ShardLife(
        uri, shard_id, kind, seed=1, first_number=1, writes=20, settings=SETTINGS | {"max_memtable_rows": 40}
    )
    assert live_until_killed(first, oracle), "the first life leaves rows in the log and is killed at its end"

    at_point = ShardLife(
        uri, shard_id, kind, seed=2, first_number=100, writes=40, settings=SETTINGS, kill_at=(point, 1), ending="close"
    )
    assert live_until_killed(at_point, oracle), f"{point} was not reached"
    assert ShardAudit(uri, shard_id).run() == []

    with ShardWriter.open(uri, shard_id=shard_id, fsync=False) as writer:
        assert oracle.check(table.rows_of(all_rows(writer, table, uri))) == []
    assert ShardAudit(uri, shard_id).run() == []
