"""A writer sleeps right before it writes its entry; somebody else takes the shard over; it wakes up."""

from __future__ import annotations

from collections.abc import Callable

from tests.harness.shard_audit import ShardAudit
from tests.kit.fenced_writers import Shard, hear_all, numbers_in, run, stalled, takes_over, writes_and_stops


def test_a_writer_that_slept_before_its_put_acknowledges_nothing_and_leaves_nothing(
    new_shard: Callable[..., Shard],
) -> None:
    shard = new_shard("append")
    with stalled(writes_and_stops, shard, "wal.before_put", [1, 2, 3], None) as sleeper:
        successor = run(takes_over, shard, [11, 12], None)
        sleeper.resume()
        woken = hear_all(sleeper)
    assert successor == {"open": ["ok"], "put": ["ok", "ok"], "close": ["ok"]}
    assert woken == {"last put": ["fenced"], "next put": ["fenced"], "seal": ["fenced"], "close": ["fenced"]}
    assert numbers_in(shard) == [1, 2, 11, 12]
    assert ShardAudit(shard.uri, shard.shard_id).run() == []


def test_the_value_of_the_successor_wins_over_what_the_sleeper_wanted_to_write(
    new_shard: Callable[..., Shard],
) -> None:
    shard = new_shard("integer")
    with stalled(writes_and_stops, shard, "wal.before_put", [1], 7) as sleeper:
        run(takes_over, shard, [2], 7)
        sleeper.resume()
        assert hear_all(sleeper)["last put"] == ["fenced"]
    with shard.open() as writer:
        assert writer.lookup([7])["number"].to_pylist() == [2]
