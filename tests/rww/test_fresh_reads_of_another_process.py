"""A reader that has no writer in its process sees every durable row that was acknowledged before its read began."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from writing_child import DELETED, KEYS, writes

import lance_memwal as mw
from tests.harness.processes import Child, start
from tests.harness.profile import scaled
from tests.kit.own_keys import KIND


def hear_so_far(child: Child, newest: dict[int, int]) -> bool:
    """Take what the writer has said by now, one to twenty messages; whether the last of them was that of its last put."""
    for number in range(20):  # however slow reads are beside writes, there are some
        message = child.receive(0 if number else 30)
        assert message is not None or number, "the writer is silent"
        if message is None or message == ("last put",):
            return message is not None
        newest[message[0]] = message[1]
    return False


@pytest.mark.scaled
def test_what_another_process_acknowledged_is_in_every_scan_that_starts_afterwards(tmp_path: Path) -> None:
    uri, shard_id = str(tmp_path / "table"), str(uuid.uuid4())
    KIND.create(uri)
    child = start(writes, uri, shard_id, scaled(ci=200, prove=2_000))
    table = mw.open_table(uri)
    newest: dict[int, int] = {}
    reads, ended = 0, False
    while not ended:
        ended = hear_so_far(child, newest)
        rows = KIND.rows_of(table.scan().to_table())
        seen = {row.key: row.number for row in rows}
        assert len(seen) == len(rows), "a key is there twice"
        missed = {key: number for key, number in newest.items() if key not in DELETED and seen.get(key, 0) < number}
        assert missed == {}, f"acknowledged, but only {seen} is shown"
        reads += 1
    assert child.receive(30) == ("deleted",)
    last = {row.key: row.number for row in KIND.rows_of(table.scan().to_table())}
    assert last == {key: number for key, number in newest.items() if key not in DELETED}
    assert len(newest) == KEYS
    assert reads >= 3
    child.wait(30)
