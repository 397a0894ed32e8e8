"""One shard that changes hands again and again, ours, the peer's, ours, compared with a dictionary all the way."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.harness.profile import scaled
from tests.harness.shard_audit import ShardAudit
from tests.kit.interop_tables import APPEND, SHAPES, Duel, Shape, in_order

CHOSEN = [shape for shape in SHAPES if shape.name in {"scalars", "lists", "composite key", "dropped column"}]
STORAGE = ("2.0", "2.1", "2.2")


@pytest.mark.scaled
@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.parametrize("shape", CHOSEN, ids=[shape.name for shape in CHOSEN])
def test_a_shard_that_alternates_between_us_and_the_peer_keeps_every_row(
    shape: Shape, storage: str, tmp_path: Path
) -> None:
    duel = Duel(tmp_path, shape, storage)
    draw = random.Random(storage)
    # One limit for all: the peer refuses a generation that was written under a larger one than its own.
    limits = {"max_memtable_rows": draw.choice((6, 15, 1_000))}
    for turn in range(scaled(ci=6, prove=40)):
        if turn % 2:
            _peers_turn(duel, draw, turn, limits)
        else:
            _our_turn(duel, draw, turn, limits)
    with duel.ours() as last:
        assert duel.our_rows(last) == duel.rows
    assert duel.peer_rows() == duel.rows
    assert duel.stored_rows() == duel.rows
    assert ShardAudit(duel.uri, duel.shard_id).run() == []


def _our_turn(duel: Duel, draw: random.Random, turn: int, limits: dict[str, Any]) -> None:
    writer = duel.ours(**limits)
    assert duel.our_rows(writer) == duel.rows, f"turn {turn}: after our replay"
    duel.write_at_random(writer, draw, 12, turn * 100)
    assert duel.our_rows(writer) == duel.rows, f"turn {turn}: after our writes"
    draw.choice((writer.close, writer.abort))()


def _peers_turn(duel: Duel, draw: random.Random, turn: int, limits: dict[str, Any]) -> None:
    writer = duel.peer(**limits)
    if draw.random() < 0.5:  # its own reads miss memtables that rotate, so it is asked before it writes
        seen = in_order(writer.lsm_scanner().to_table().select(duel.schema.names))
        assert seen == duel.rows, f"turn {turn}: after the peer's replay"
    duel.write_at_random(writer, draw, 12, turn * 100)
    if draw.random() < 0.6:
        writer.close()


@pytest.mark.parametrize("storage", STORAGE)
def test_an_append_only_shard_that_changes_hands_counts_every_row_once(storage: str, tmp_path: Path) -> None:
    duel = Duel(tmp_path, APPEND, storage)
    for turn in range(6):
        numbers = [range(turn * 10 + i, turn * 10 + i + 2) for i in range(8)]
        if turn % 2:
            peer = duel.peer(max_memtable_rows=5)
            for some in numbers:
                duel.put(peer, some, turn)
            if turn % 3:
                peer.close()
        else:
            ours = duel.ours(max_memtable_rows=5)
            assert duel.our_rows(ours) == duel.rows
            for some in numbers:
                duel.put(ours, some, turn)
            assert duel.our_rows(ours) == duel.rows
            (ours.close if turn % 4 else ours.abort)()
    with duel.ours() as last:
        assert duel.our_rows(last) == duel.rows
    assert duel.stored_rows() == duel.rows
