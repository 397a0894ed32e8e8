"""Which orders of epochs a log may have: the one rule that audits of shards and of logs under faults share."""

from __future__ import annotations

import pytest

from lance_memwal.types import WalEntry
from tests.harness.log_rules import epoch_faults


def log(text: str) -> list[WalEntry]:
    """`1 2s 2`: an entry with rows of epoch 1, the sentinel of epoch 2, rows of epoch 2."""
    written = enumerate(text.split(), 1)
    return [WalEntry(position, int(word.rstrip("s")), None, (), word.endswith("s")) for position, word in written]


@pytest.mark.parametrize("text", ["", "1 1", "1 2s 2 3s", "1 2s 4s 4", "2s 1s", "1 3s 2s 3", "1 3s 3 2s 3"])
def test_epochs_grow_and_a_sentinel_may_come_late(text: str) -> None:
    assert list(epoch_faults(log(text))) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 2s 1", "position 3: epoch 1 wrote above epoch 2"),
        ("1 2s 3s 2", "position 4: epoch 2 wrote above epoch 3"),
        ("1 3s 2s 2", "position 4: epoch 2 wrote above epoch 3"),
        ("1 2", "position 2: epoch 2 wrote before its sentinel"),
        ("1 2 2s", "position 2: epoch 2 wrote before its sentinel"),
        ("1 2s 2 2s", "position 4: epoch 2 has a second sentinel"),
    ],
)
def test_rows_of_an_epoch_lie_between_its_sentinel_and_the_next(text: str, told: str) -> None:
    assert list(epoch_faults(log(text))) == [told]
