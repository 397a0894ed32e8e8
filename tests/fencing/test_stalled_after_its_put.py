"""A writer sleeps after its entry is on storage, before it says so; somebody else takes the shard over; it wakes up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.harness.shard_audit import ShardAudit
from tests.kit.fenced_writers import Shard, hear_all, numbers_in, run, stalled, takes_over, writes_and_stops


@pytest.mark.parametrize("point", ["wal.after_put", "put.before_ack"])
def test_a_row_that_was_written_before_the_takeover_is_there_once_and_nothing_follows_it(
    point: str, new_shard: Callable[..., Shard]
) -> None:
    shard = new_shard("append")
    with stalled(writes_and_stops, shard, point, [1, 2, 3], None) as sleeper:
        successor = run(takes_over, shard, [11, 12], None)
        sleeper.resume()
        woken = hear_all(sleeper)
    assert successor == {"open": ["ok"], "put": ["ok", "ok"], "close": ["ok"]}
    # The entry was in the log before the successor's sentinel, and so is replayed: its acknowledgement may be true or missing.
    assert woken["last put"] in (["ok"], ["fenced"])
    assert woken["next put"] == ["fenced"]
    assert woken["seal"] == ["fenced"]
    assert woken["close"] == ["fenced"]
    assert numbers_in(shard) == [1, 2, 3, 11, 12]
    assert ShardAudit(shard.uri, shard.shard_id).run() == []


@pytest.mark.parametrize("point", ["wal.after_put", "put.before_ack"])
def test_a_later_value_of_the_successor_wins(point: str, new_shard: Callable[..., Shard]) -> None:
    shard = new_shard("integer")
    with stalled(writes_and_stops, shard, point, [1], 7) as sleeper:
        run(takes_over, shard, [2], 7)
        sleeper.resume()
        hear_all(sleeper)
    with shard.open() as writer:
        assert writer.lookup([7])["number"].to_pylist() == [2]
