"""A writer that is killed while it rolls generations up has published all that it acknowledged."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from lance_memwal.shard_writer import ShardWriter
from tests.harness.crash_child import ShardLife, all_rows
from tests.harness.crash_tables import TableKind
from tests.harness.oracle import Oracle
from tests.harness.shard_audit import ShardAudit
from tests.harness.shard_crash import live_until_killed
from tests.kit.roll_ups import roll_ups

SETTINGS = {"fsync": False, "max_memtable_rows": 1}


@pytest.mark.parametrize(("point", "left"), [("rollup.before_put", 0), ("rollup.after_put", 1)])
def test_a_kill_beside_a_roll_up_breaks_no_promise(point: str, left: int, tmp_path: Path) -> None:
    uri, shard_id, oracle = str(tmp_path / "table"), str(uuid.uuid4()), Oracle()
    table = TableKind("integer")
    table.create(uri)
    life = ShardLife(
        uri,
        shard_id,
        "integer",
        seed=3,
        first_number=1,
        writes=80,
        settings=SETTINGS,
        kill_at=(point, 1),
        ending="wait",  # a close would end the roll-ups
    )
    assert live_until_killed(life, oracle), f"{point} was not reached"
    assert len(roll_ups(uri)) == left
    assert ShardAudit(uri, shard_id).run() == []
    with ShardWriter.open(uri, shard_id=shard_id, fsync=False) as writer:
        assert oracle.check(table.rows_of(all_rows(writer, table, uri))) == []
    assert ShardAudit(uri, shard_id).run() == []
