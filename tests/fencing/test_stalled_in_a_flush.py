"""A writer sleeps in the middle of a flush; somebody else takes over and flushes the same rows; it wakes up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lance_memwal.log.manifest import ShardManifestStore
from tests.harness.shard_audit import ShardAudit
from tests.kit.fenced_writers import Shard, hear_all, numbers_in, run, stalled, takes_over, writes_and_stops


@pytest.mark.parametrize("point", ["flush.before_write", "flush.before_commit", "flush.after_commit"])
def test_a_flush_that_was_overtaken_publishes_no_row_twice(point: str, new_shard: Callable[..., Shard]) -> None:
    shard = new_shard("append", max_memtable_rows=3)
    with stalled(writes_and_stops, shard, point, [1, 2, 3], None) as sleeper:
        successor = run(takes_over, shard, [11, 12], None)
        sleeper.resume()
        woken = hear_all(sleeper)
    assert successor == {"open": ["ok"], "put": ["ok", "ok"], "close": ["ok"]}
    assert woken["drain"] == (["ok"] if point == "flush.after_commit" else ["fenced"])
    assert woken["next put"] == ["fenced"]
    assert woken["seal"] == ["fenced"]
    assert woken["close"] == ["fenced"]
    assert numbers_in(shard) == [1, 2, 3, 11, 12]
    manifest = ShardManifestStore(shard.uri, shard.shard_id).read_latest()
    assert manifest is not None
    assert [sstable.physical_rows for sstable in manifest.sstables] in ([3, 2], [5])
    assert ShardAudit(shard.uri, shard.shard_id).run() == []
