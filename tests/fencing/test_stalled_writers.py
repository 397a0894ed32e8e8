"""A writer stalls before or after its put, while it opens or in a flush; another takes the shard over; it wakes up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from lance_memwal.log.manifest import ShardManifestStore
from tests.harness.kill_points import OPEN_POINTS
from tests.harness.processes import start
from tests.harness.profile import scaled
from tests.harness.shard_audit import ShardAudit
from tests.kit.fenced_writers import (
    Shard,
    hear,
    hear_all,
    numbers_in,
    opens_and_stops,
    put,
    run,
    stalled,
    takes_over,
    writes_and_stops,
    writes_until_fenced,
)

BEFORE, AFTER = ["wal.before_put"], ["wal.after_put", "put.before_ack"]
IN_A_FLUSH = ["flush.before_write", "flush.before_commit", "flush.after_commit"]


@pytest.mark.parametrize("point", [*BEFORE, *AFTER, *IN_A_FLUSH])
def test_stalled_writer_acknowledges_nothing_and_its_rows_exist_once(
    point: str, new_shard: Callable[..., Shard]
) -> None:
    settings = {"max_memtable_rows": 3} if point in IN_A_FLUSH else {}
    shard = new_shard("append", **settings)
    with stalled(writes_and_stops, shard, point, [1, 2, 3], None) as sleeper:
        successor = run(takes_over, shard, [11, 12], None)
        sleeper.resume()
        woken = hear_all(sleeper)
    assert successor == {"open": ["ok"], "put": ["ok", "ok"], "close": ["ok"]}
    # The entry is in the log before the sentinel, and so is replayed: its acknowledgement may be true or missing.
    first = "drain" if point in IN_A_FLUSH else "last put"
    returned = point == "flush.after_commit" or (point in AFTER and woken[first] == ["ok"])
    assert woken[first] == (["ok"] if returned else ["fenced"])
    assert [woken[step] for step in ("next put", "seal", "close")] == [["fenced"]] * 3
    assert numbers_in(shard) == [1, 2, *([] if point in BEFORE else [3]), 11, 12]
    if point in IN_A_FLUSH:
        manifest = ShardManifestStore(shard.uri, shard.shard_id).read_latest()
        assert manifest is not None
        assert [sstable.physical_rows for sstable in manifest.sstables] in ([3, 2], [5])
    assert ShardAudit(shard.uri, shard.shard_id).run() == []


@pytest.mark.parametrize("point", [*BEFORE, *AFTER])
def test_a_later_value_of_the_successor_wins(point: str, new_shard: Callable[..., Shard]) -> None:
    shard = new_shard("integer")
    with stalled(writes_and_stops, shard, point, [1], 7) as sleeper:
        run(takes_over, shard, [2], 7)
        sleeper.resume()
        assert hear_all(sleeper)["last put"] in ([["fenced"]] if point in BEFORE else [["ok"], ["fenced"]])
    with shard.open() as writer:
        assert writer.lookup([7])["number"].to_pylist() == [2]


@pytest.mark.parametrize("point", OPEN_POINTS)
def test_overtaken_open_returns_no_writer_that_acknowledges(point: str, new_shard: Callable[..., Shard]) -> None:
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


PROCESSES = 4


@pytest.mark.scaled
@pytest.mark.parametrize("settings", [{}, {"max_memtable_rows": 7}], ids=["one memtable", "rotating memtables"])
def test_many_writers_lose_and_double_nothing(settings: dict[str, Any], new_shard: Callable[..., Shard]) -> None:
    shard = new_shard("append", **settings)
    opens = scaled(ci=6, prove=60)
    children = [start(writes_until_fenced, shard, 100_000 * (i + 1), opens) for i in range(PROCESSES)]
    heard: list[list[tuple[Any, ...]]] = [[] for _ in children]

    def listen(index: int) -> None:
        heard[index].extend(hear(children[index]))

    listeners = [threading.Thread(target=listen, args=(i,)) for i in range(PROCESSES)]
    for listener in listeners:
        listener.start()
    for listener in listeners:
        listener.join(100 * scaled(ci=1, prove=10))
    assert [child.wait(30) for child in children] == [0] * PROCESSES
    assert all(messages[-1] == ("ends",) for messages in heard)

    issued = {message[1] for messages in heard for message in messages if message[0] == "issued"}
    acknowledged = {message[1] for messages in heard for message in messages if message[0] == "returned"}
    there = numbers_in(shard)
    assert len(there) == len(set(there)), "a row is there twice"
    assert acknowledged <= set(there), "an acknowledged row is lost"
    assert set(there) <= issued, "a row that nobody wrote"
    assert ("fenced",) in [message for messages in heard for message in messages], "the processes did not meet"
    manifest = ShardManifestStore(shard.uri, shard.shard_id).read_latest()
    assert manifest is not None
    assert manifest.writer_epoch >= PROCESSES
    assert ShardAudit(shard.uri, shard.shard_id).run() == []
