"""A writer sleeps while it opens the shard; somebody else opens it, writes and closes; it wakes up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.harness.kill_points import OPEN_POINTS
from tests.harness.shard_audit import ShardAudit
from tests.kit.fenced_writers import Shard, hear_all, numbers_in, opens_and_stops, put, run, stalled, takes_over


@pytest.mark.parametrize("point", OPEN_POINTS)
def test_an_open_that_was_overtaken_yields_no_writer_that_acknowledges(
    point: str, new_shard: Callable[..., Shard]
) -> None:
    shard = new_shard("append")
    first = shard.open()
    for number in (1, 2, 3):
        put(first, shard, number)
    first.abort()
    with stalled(opens_and_stops, shard, point) as sleeper:
        successor = run(takes_over, shard, [11, 12], None)
        sleeper.resume()
        woken = hear_all(sleeper)
    assert successor == {"open": ["ok"], "put": ["ok", "ok"], "close": ["ok"]}
    if point == "open.after_claim":
        assert woken == {"open": ["fenced"]}, "a writer without a sentinel must not come alive behind its successor"
    else:
        assert woken.get("next put", ["fenced"]) == ["fenced"]
        assert woken.get("close", ["fenced"]) == ["fenced"]
    assert numbers_in(shard) == [1, 2, 3, 11, 12]
    assert ShardAudit(shard.uri, shard.shard_id).run() == []
