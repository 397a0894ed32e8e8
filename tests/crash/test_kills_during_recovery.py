"""Recovery itself is killed, again and again: it costs epochs, never rows."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from lance_memwal.log.manifest import ShardManifestStore
from lance_memwal.log.tailer import WalTailer
from lance_memwal.shard_writer import ShardWriter
from tests.harness.crash_child import ShardLife, live
from tests.harness.crash_tables import TableKind
from tests.harness.deaths import DEADLINE_SECONDS, KILLED
from tests.harness.kill_points import OPEN_POINTS
from tests.harness.processes import Child, start
from tests.harness.shard_audit import ShardAudit

ROWS = 30
KILLS = 5


def _said_by(child: Child) -> list[tuple[Any, ...]]:
    """All that it said before it died."""
    said: list[tuple[Any, ...]] = []
    while True:
        try:
            message = child.receive(DEADLINE_SECONDS)
        except EOFError:
            assert "opened" not in {tag for tag, *_ in said}
            return said
        assert message is not None, "nothing was heard of it"
        said.append(message)


@pytest.mark.parametrize("point", [*OPEN_POINTS, "flush.before_write", "flush.before_commit", "flush.after_commit"])
def test_a_recovery_that_was_killed_five_times_shows_the_same_rows(point: str, tmp_path: Path) -> None:
    uri, shard_id, table = str(tmp_path / "table"), str(uuid.uuid4()), TableKind("append")
    table.create(uri)
    # Many generations in the log and none of them published, so that every recovery has to flush.
    log_only = ShardWriter.open(uri, shard_id=shard_id, fsync=False, enable_memtable=False, max_memtable_rows=2)
    for number in range(1, ROWS + 1):
        log_only.put(table.batch_of([number], number))
    log_only.abort()

    for attempt in range(KILLS):
        life = ShardLife(
            uri, shard_id, "append", attempt, 1_000, writes=0, settings={"fsync": False}, kill_at=(point, 2)
        )
        if point in OPEN_POINTS[:2]:
            life = ShardLife(
                uri, shard_id, "append", attempt, 1_000, writes=0, settings={"fsync": False}, kill_at=(point, 1)
            )
        child = start(live, life)
        assert _said_by(child)[-1] == ("dies", point), "the recovery was over before"
        assert child.wait(DEADLINE_SECONDS) == KILLED
        assert ShardAudit(uri, shard_id).run() == []

    with ShardWriter.open(uri, shard_id=shard_id, fsync=False) as writer:
        assert sorted(writer.lsm_scan().to_table()["id"].to_pylist()) == list(range(1, ROWS + 1))
        assert writer.epoch == KILLS + 2
    manifest = ShardManifestStore(uri, shard_id).read_latest()
    assert manifest is not None
    assert sum(sstable.physical_rows or 0 for sstable in manifest.sstables) == ROWS
    entries = [WalTailer(uri, shard_id).read_entry(p) for p in range(1, manifest.replay_after_wal_entry_position + 1)]
    assert sum(entry.num_rows for entry in entries if entry is not None) == ROWS, "replayed rows were appended again"
