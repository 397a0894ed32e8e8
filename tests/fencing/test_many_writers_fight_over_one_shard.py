"""Several processes open the same shard again and again: each number that one of them was told to be safe is there."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from lance_memwal.log.manifest import ShardManifestStore
from tests.harness.processes import start
from tests.harness.profile import scaled
from tests.harness.shard_audit import ShardAudit
from tests.kit.fenced_writers import Shard, hear, numbers_in, writes_until_fenced

PROCESSES = 4


@pytest.mark.scaled
@pytest.mark.parametrize("settings", [{}, {"max_memtable_rows": 7}], ids=["one memtable", "rotating memtables"])
def test_of_many_writers_one_acknowledges_at_a_time_and_nothing_is_lost_or_doubled(
    settings: dict[str, Any], new_shard: Callable[..., Shard]
) -> None:
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
